//! The experts in configurations of both formats.
//!
//! The names differ from family to family, while the checks are the same: there is at least one expert, a row chooses
//! no more experts than there are, and groups have one size. Their tensors are described in `layout/experts.rs`.

use super::checks::count;
use super::gguf::Gguf;
use super::json::{LISTED_MAX, check_listed};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Experts, GroupScore, Groups, Router, Scoring, SharedExpert, Spec, Sum};

/// The names of a configuration's fields of experts, and the values of missing fields.
#[derive(Clone, Copy)]
pub(super) struct Fields {
    /// The number of experts: the first of these that is present.
    pub(super) count: &'static [&'static str],
    pub(super) count_default: usize,
    pub(super) chosen: &'static str,
    pub(super) chosen_default: usize,
    pub(super) ffn_width: &'static str,
    pub(super) ffn_width_default: usize,
    /// Whether the weights of the chosen experts are normalized to the sum 1.
    pub(super) normalized: Normalized,
}

/// Whether the weights of the chosen experts are normalized to the sum 1.
#[derive(Clone, Copy)]
pub(super) enum Normalized {
    Always,
    /// According to this field, which is `false` if it is missing.
    Field(&'static str),
}

/// Qwen 3's fields.
pub(super) const HUGGING_FACE: Fields = Fields {
    count: &["num_experts", "num_local_experts"],
    count_default: 128,
    chosen: "num_experts_per_tok",
    chosen_default: 8,
    ffn_width: "moe_intermediate_size",
    ffn_width_default: 768,
    normalized: Normalized::Field("norm_topk_prob"),
};

/// The experts of a configuration, of all layers.
pub(super) fn from_json(config: &JsonConfig, fields: &Fields) -> Result<Experts, ModelError> {
    let file = config.file();
    let field = |name: &str, default: usize| count(file, name, config.optional_usize(name)?.unwrap_or(default));
    let of_count = fields.count.iter().find(|name| config.has_key(name)).unwrap_or(&fields.count[0]);
    let (all, chosen) = (field(of_count, fields.count_default)?, field(fields.chosen, fields.chosen_default)?);
    if all > COUNT_MAX {
        return Err(config.refuse(of_count, AT_MOST, all));
    }
    if chosen > all {
        return Err(config.refuse(fields.chosen, format!("at most {of_count}, {all}"), chosen));
    }
    let normalized = match fields.normalized {
        Normalized::Always => true,
        Normalized::Field(name) => config.optional_bool(name)?.unwrap_or(false),
    };
    let router = if normalized { Router::SOFTMAX_OF_CHOSEN } else { Router::SOFTMAX };
    let ffn_width = field(fields.ffn_width, fields.ffn_width_default)?;
    Ok(Experts { count: all, chosen, ffn_width, router, shared: None, beside_dense: false, layers: vec![true] })
}

/// The sum to which DeepSeek's code and code derived from it add a number.
pub(super) const ADDED: Sum = Sum { added: 1e-20, least: 0.0 };

/// The groups of experts, of which a row chooses `chosen`, if there is more than one. `fields` are the fields with the
/// numbers of groups, of chosen groups, and of experts.
///
/// # Errors
/// If the groups cannot have one size, or have too few experts.
pub(super) fn groups(
    file: &str,
    fields: [&str; 3],
    [count, chosen]: [usize; 2],
    experts: &Experts,
    by: GroupScore,
) -> Result<Option<Groups>, ModelError> {
    let [of_count, of_chosen, of_experts] = fields;
    let refuse = |field: &str, expected: String, found: usize| Err(ModelError::config(file, field, expected, found));
    if !(1..=count).contains(&chosen) {
        return refuse(of_chosen, format!("a number from 1 to {of_count}, {count}"), chosen);
    }
    if count == 1 {
        return Ok(None);
    }
    let least = match by {
        GroupScore::Best => 1,
        GroupScore::BestTwo => 2,
    };
    let size = experts.count / count;
    if !experts.count.is_multiple_of(count) || size < least {
        let expected = format!("groups of one size and of at least {least} of {of_experts}, {}", experts.count);
        return refuse(of_count, expected, count);
    }
    if size * chosen < experts.chosen {
        let expected = format!("groups of at least the {} experts that a row chooses", experts.chosen);
        return refuse(of_chosen, expected, chosen);
    }
    Ok(Some(Groups { count, chosen, by }))
}

/// Experts of the layers from `first` on; those before are dense (`first_k_dense_replace`).
pub(super) fn from_layer(config: &JsonConfig, first: usize, layers: usize) -> Result<Vec<bool>, ModelError> {
    if first == 0 {
        return Ok(vec![true]);
    }
    check_listed(config, "num_hidden_layers", layers)?;
    Ok((0..layers).map(|layer| layer >= first).collect())
}

/// Which layers have experts: every `decoder_sparse_step`th, except those in `mlp_only_layers`.
pub(super) fn sparse_layers(config: &JsonConfig, layers: usize) -> Result<Vec<bool>, ModelError> {
    const STEP: &str = "decoder_sparse_step";
    let step = count(config.file(), STEP, config.optional_usize(STEP)?.unwrap_or(1))?;
    let dense = config.optional_usizes("mlp_only_layers")?.unwrap_or_default();
    if step == 1 && dense.is_empty() {
        return Ok(vec![true]);
    }
    check_listed(config, "num_hidden_layers", layers)?;
    Ok((0..layers).map(|layer| (layer + 1).is_multiple_of(step) && !dense.contains(&layer)).collect())
}

/// The key of the scoring function of a GGUF file's router.
const SCORING: &str = "expert_gating_func";
/// The value of [`SCORING`] for a softmax over the chosen experts.
const SOFTMAX_OF_CHOSEN: usize = 3;

/// Maximum number of experts of a layer; the largest known number is 2048 (Switch Transformers).
const COUNT_MAX: usize = 1 << 12;
const AT_MOST: &str = "at most 4096";
/// Maximum number of experts of all layers, since each is described before its weights are read; the largest known
/// number is about 23 000 (Kimi K2).
const ALL_MAX: usize = 1 << 18;

/// Checks the number of experts of all layers.
pub(super) fn check_all(file: &str, spec: &Spec) -> Result<(), ModelError> {
    let all = spec.experts.as_ref().map_or(0, |experts| experts.count.saturating_mul(spec.layers));
    if all <= ALL_MAX {
        return Ok(());
    }
    Err(ModelError::config(file, "experts", format!("at most {ALL_MAX} of all layers"), all))
}

impl Gguf<'_> {
    /// The experts of a file, in the layers that have a router; `router` is the default.
    pub(super) fn experts(&self, spec: &Spec, router: Router) -> Result<Experts, ModelError> {
        let required = |field: &str| {
            let missing = || self.refuse(&self.key(spec, field), "a number above 0", "none");
            self.optional_count(spec, field)?.ok_or_else(missing)
        };
        let (all, chosen) = (required("expert_count")?, required("expert_used_count")?);
        if all > COUNT_MAX {
            return Err(self.refuse(&self.key(spec, "expert_count"), AT_MOST, all));
        }
        if chosen > all {
            let expected = format!("at most {}, {all}", self.key(spec, "expert_count"));
            return Err(self.refuse(&self.key(spec, "expert_used_count"), expected, chosen));
        }
        let width_of = |tensor: &str| {
            let found = self.weights.iter().find(|found| found.name.ends_with(&format!(".{tensor}.weight")));
            let width = found.and_then(|found| Some((found, *found.shape.last()?)));
            width.map(|(found, width)| count(self.metadata.source(), &found.name, width)).transpose()
        };
        // Older files have no key for their widths: the shapes of tensors are used.
        let ffn_width = match self.optional_count(spec, "expert_feed_forward_length")? {
            Some(width) => width,
            None => width_of("ffn_down_exps")?.unwrap_or(spec.ffn_width),
        };
        let shared = match self.optional_count(spec, "expert_shared_feed_forward_length")? {
            Some(width) => Some(width),
            None => width_of("ffn_down_shexp")?,
        };
        if spec.layers > LISTED_MAX {
            let expected = format!("at most {LISTED_MAX} layers that may differ");
            return Err(self.refuse(&self.key(spec, "block_count"), expected, spec.layers));
        }
        let has = |layer: usize, name: &str| self.has(&format!("blk.{layer}.{name}.weight"));
        let gated = (0..spec.layers).any(|layer| has(layer, "ffn_gate_inp_shexp"));
        let layers: Vec<bool> = (0..spec.layers).map(|layer| has(layer, "ffn_gate_inp")).collect();
        if !layers.contains(&true) {
            return Err(self.refuse(&self.key(spec, "expert_count"), "0 (a dense network)", all));
        }
        let layers = if layers.iter().all(|sparse| *sparse) { vec![true] } else { layers };
        let shared = shared.map(|ffn_width| SharedExpert { ffn_width, gated });
        let corrected = (0..spec.layers).any(|layer| self.has(&format!("blk.{layer}.exp_probs_b.bias")));
        let mut experts = Experts { count: all, chosen, ffn_width, router, shared, beside_dense: false, layers };
        experts.router = Router { corrected, ..self.router(spec, &experts)? };
        // Other programs then add corrections to the logits before the softmax, and no family has both.
        if corrected && self.optional_count(spec, SCORING)? == Some(SOFTMAX_OF_CHOSEN) {
            let expected = "another than 3 (softmax over the chosen) beside corrections (exp_probs_b)";
            return Err(self.refuse(&self.key(spec, SCORING), expected, SOFTMAX_OF_CHOSEN));
        }
        Ok(experts)
    }

    /// The router of these experts, with the keys of the file.
    fn router(&self, spec: &Spec, experts: &Experts) -> Result<Router, ModelError> {
        let mut router = experts.router;
        let scoring = self.optional_count(spec, SCORING)?;
        match scoring {
            None => {}
            Some(1) => router.scoring = Scoring::Softmax,
            Some(2) => router.scoring = Scoring::Sigmoid,
            Some(SOFTMAX_OF_CHOSEN) => {
                router = Router { scoring: Scoring::Softmax, divided: Some(Sum::PLAIN), ..router }
            }
            Some(other) => {
                let expected = "1 (softmax), 2 (sigmoid) or 3 (softmax over the chosen)";
                return Err(self.refuse(&self.key(spec, SCORING), expected, other));
            }
        }
        match self.optional_bool(spec, "expert_weights_norm")? {
            None => {}
            Some(true) => router.divided = router.divided.or(Some(ADDED)),
            // The weights of a softmax over the chosen experts have the sum 1 without a division.
            Some(false) if scoring == Some(SOFTMAX_OF_CHOSEN) => {}
            Some(false) => router.divided = None,
        }
        if let Some(factor) = self.optional_f32(spec, "expert_weights_scale")?.filter(|factor| *factor != 0.0) {
            router.factor = factor;
        }
        let [count, chosen] = ["expert_group_count", "expert_group_used_count"];
        if let Some(all) = self.optional_count(spec, count)? {
            let some = self.optional_count(spec, chosen)?.unwrap_or(usize::from(all == 1));
            let keys = [count, chosen, "expert_count"].map(|field| self.key(spec, field));
            let keys = keys.each_ref().map(String::as_str);
            router.groups = groups(self.metadata.source(), keys, [all, some], experts, GroupScore::BestTwo)?;
        }
        Ok(router)
    }
}
