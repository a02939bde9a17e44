//! What configurations say of experts, in both formats.
//!
//! Names differ from family to family and are given; what is checked is the same: there are some, and a row chooses no
//! more than there are. Left out: which tensors they are (`layout.rs`).

use super::checks::count;
use super::gguf::Gguf;
use super::json::{LISTED_MAX, check_listed};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Experts, SharedExpert, Spec};

/// The names of a configuration's fields of experts, and what holds where a field is missing.
#[derive(Clone, Copy)]
pub(super) struct Fields {
    /// How many there are: the first of these that is there.
    pub(super) count: &'static [&'static str],
    pub(super) count_default: usize,
    pub(super) chosen: &'static str,
    pub(super) chosen_default: usize,
    pub(super) ffn_width: &'static str,
    pub(super) ffn_width_default: usize,
    /// Whether the weights of those that are chosen are brought to the sum 1.
    pub(super) normalized: Normalized,
}

/// Where it is said whether weights are brought to the sum 1.
#[derive(Clone, Copy)]
pub(super) enum Normalized {
    Always,
    /// In a field, which is `false` where it is missing.
    Field(&'static str),
}

/// As Qwen 3 has them.
pub(super) const HUGGING: Fields = Fields {
    count: &["num_experts", "num_local_experts"],
    count_default: 128,
    chosen: "num_experts_per_tok",
    chosen_default: 8,
    ffn_width: "moe_intermediate_size",
    ffn_width_default: 768,
    normalized: Normalized::Field("norm_topk_prob"),
};

/// The experts of a configuration, of all layers.
pub(super) fn of_json(config: &JsonConfig, fields: &Fields) -> Result<Experts, ModelError> {
    let file = config.file();
    let field = |name: &str, default: usize| count(file, name, config.optional_usize(name)?.unwrap_or(default));
    let of_count = fields.count.iter().find(|name| config.names(name)).unwrap_or(&fields.count[0]);
    let (all, chosen) = (field(of_count, fields.count_default)?, field(fields.chosen, fields.chosen_default)?);
    if chosen > all {
        return Err(config.refuse(fields.chosen, format!("at most {of_count}, {all}"), chosen));
    }
    let normalized = match fields.normalized {
        Normalized::Always => true,
        Normalized::Field(name) => config.optional_bool(name)?.unwrap_or(false),
    };
    let ffn_width = field(fields.ffn_width, fields.ffn_width_default)?;
    Ok(Experts { count: all, chosen, ffn_width, normalized, shared: None, layers: vec![true] })
}

/// Which layers have experts: one of so many (`decoder_sparse_step`), but for those that are named (`mlp_only_layers`).
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

impl Gguf<'_> {
    /// The experts of a file, in the layers that have a router.
    pub(super) fn experts(&self, spec: &Spec, normalized: bool) -> Result<Experts, ModelError> {
        let required = |field: &str| {
            let missing = || self.refuse(&self.key(spec, field), "a number above 0", "none");
            self.optional_count(spec, field)?.ok_or_else(missing)
        };
        let (all, chosen) = (required("expert_count")?, required("expert_used_count")?);
        if chosen > all {
            let expected = format!("at most {}, {all}", self.key(spec, "expert_count"));
            return Err(self.refuse(&self.key(spec, "expert_used_count"), expected, chosen));
        }
        let width_of = |tensor: &str| {
            let found = self.weights.iter().find(|found| found.name.ends_with(&format!(".{tensor}.weight")));
            found.and_then(|found| Some(found.shape[found.shape.len().checked_sub(2)?]))
        };
        // Older files do not say their widths: the tensors do.
        let ffn_width = match self.optional_count(spec, "expert_feed_forward_length")? {
            Some(width) => width,
            None => width_of("ffn_up_exps").unwrap_or(spec.ffn_width),
        };
        let shared = match self.optional_count(spec, "expert_shared_feed_forward_length")? {
            Some(width) => Some(width),
            None => width_of("ffn_up_shexp"),
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
        Ok(Experts { count: all, chosen, ffn_width, normalized, shared, layers })
    }
}
