//! Export of a checkpoint's configuration to the keys of a GGUF file.
//!
//! A description of the file is made from the [`Spec`] and read by the architecture's own reader before anything is
//! written. The reader must find the same [`Spec`]; a difference is refused with the field that it comes from. So a
//! writer cannot disagree with the reader, and features that files cannot express or imply (windows, which layers have
//! them, the scale of scores) need no list of their own. The reader also yields the names and the [`Layout`] of the
//! file's tensors.
//!
//! A family's file adds the keys that are particular to it. Tensors are exported by `layout/write.rs`.

use foretoken_kernels::rope::Pairing;
use foretoken_weights::gguf::{Array, Metadata, Value};
use foretoken_weights::{Tensor, Weights};

use super::gguf::Gguf;
use super::layout::{Layout, QkNormNames, Qkv};
use super::tensors::Bias;
use super::{Plan, ReadGguf, json, rope};
use crate::checkpoint::JsonConfig;
use crate::collected::tensor;
use crate::error::ModelError;
use crate::spec::{Activation, Experts, FeedForward, LayerAttention, Norm, Positions, Rotation, Router, Scaling, Spec};

/// Keys of a GGUF file with their values, in order.
pub(crate) type Keys = Vec<(String, Value)>;

/// The key of a further multiplier of rotated elements.
const ATTENTION_FACTOR: &str = "rope.scaling.attn_factor";

/// How the checkpoints of a family are exported.
pub(super) struct GgufExport {
    /// The architecture of the file.
    pub(super) architecture: &'static str,
    /// Adds the keys that are particular to the family.
    pub(super) keys: fn(&mut GgufDescription<'_>) -> Result<(), ModelError>,
}

/// The description of a GGUF file before it is written.
pub(super) struct GgufDescription<'a> {
    pub(super) config: &'a JsonConfig,
    /// The spec that the file should express: that of the configuration, unless a family notes a difference.
    pub(super) spec: Spec,
    /// Where the checkpoint's tensors lie.
    pub(super) layout: &'a Layout,
    pub(super) keys: Keys,
    /// Tensors that the checkpoint does not have.
    pub(super) tensors: Vec<Tensor>,
    pub(super) notes: Vec<String>,
    /// Names of tensors by which the reader distinguishes variants of the network.
    marker_tensors: Vec<String>,
}

/// The keys of an architecture without keys of its own.
pub(super) fn no_further_keys(_: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    Ok(())
}

/// The keys of an architecture that cannot express windows ([`GgufDescription::limit_context_to_window`]).
pub(super) fn limit_context_to_window(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.limit_context_to_window();
    Ok(())
}

/// A pair of this frequency or a lower one is not rotated at any position.
const UNROTATED_FREQUENCY_MAX: f32 = 1e-24;

/// A count as GGUF stores it. Every count of a [`Spec`] is bounded far below.
fn number(number: usize) -> Value {
    Value::U32(u32::try_from(number).unwrap_or(u32::MAX))
}

fn near(a: f32, b: f32) -> bool {
    (a - b).abs() <= 2e-6 * a.abs().max(b.abs())
}

impl<'a> GgufDescription<'a> {
    /// Describes a file of a checkpoint.
    ///
    /// # Errors
    /// The family knows that the file format cannot express something.
    pub(super) fn new(config: &'a JsonConfig, plan: &'a Plan, export: &GgufExport) -> Result<Self, ModelError> {
        let architecture = export.architecture;
        let spec = Spec { family: architecture, ..plan.spec.clone() };
        let keys = vec![("general.architecture".to_string(), architecture.into())];
        let (layout, tensors, notes, marker_tensors) = (&plan.layout, Vec::new(), Vec::new(), Vec::new());
        let mut description = Self { config, spec, layout, keys, tensors, notes, marker_tensors };
        let rotation = description.spec.positions.rotations().first().cloned();
        if let Some(Scaling::Dynamic { trained, .. }) = rotation.as_ref().map(|rotation| &rotation.scaling) {
            description.spec.context_max = *trained;
            description.note(format!(
                "GGUF has no word for dynamic scaling of rotations; the file is one for texts of up to {trained} tokens"
            ));
        }
        description.add_common_keys();
        if let Some(rotation) = rotation {
            description.add_rotation(&rotation);
        }
        (export.keys)(&mut description)?;
        Ok(description)
    }

    /// Adds the keys that all architectures have.
    fn add_common_keys(&mut self) {
        let Spec { context_max, width, layers, ffn_width, heads, kv_heads, head_dim, vocabulary, norm, .. } = self.spec;
        for (field, count) in [
            ("context_length", context_max),
            ("embedding_length", width),
            ("block_count", layers),
            ("feed_forward_length", ffn_width),
            ("attention.head_count", heads),
            ("attention.head_count_kv", kv_heads),
            ("attention.key_length", head_dim),
            ("attention.value_length", head_dim),
            ("vocab_size", vocabulary),
        ] {
            self.add_count(field, count);
        }
        self.add_experts();
        match norm {
            Norm::Rms { epsilon } => self.add_key("attention.layer_norm_rms_epsilon", epsilon),
            Norm::Layer { epsilon } => self.add_key("attention.layer_norm_epsilon", epsilon),
        }
    }

    /// Adds the keys of experts that all architectures have; readers see by tensors which layers have experts.
    fn add_experts(&mut self) {
        let Some(experts) = self.spec.experts.clone() else { return };
        self.add_count("expert_count", experts.count);
        self.add_count("expert_used_count", experts.chosen);
        if let Some(shared) = experts.shared {
            self.add_count("expert_shared_feed_forward_length", shared.ffn_width);
        }
        for layer in 0..self.spec.layers {
            if self.spec.experts_of(layer).is_none() {
                continue;
            }
            self.add_marker_tensor(format!("blk.{layer}.ffn_gate_inp.weight"));
            if experts.shared.is_some_and(|shared| shared.gated) {
                self.add_marker_tensor(format!("blk.{layer}.ffn_gate_inp_shexp.weight"));
            }
        }
    }

    /// Adds the width of experts, for architectures in which it differs from that of dense layers.
    pub(super) fn add_expert_width(&mut self) {
        let width = self.spec.experts.as_ref().map(|experts| experts.ffn_width);
        width.into_iter().for_each(|width| self.add_count("expert_feed_forward_length", width));
    }

    /// Refuses dense layers beside layers with experts: llama.cpp expects experts in all layers of most architectures.
    pub(super) fn require_experts_everywhere(&self) -> Result<(), ModelError> {
        let dense = (0..self.spec.layers).find(|layer| self.spec.experts_of(*layer).is_none());
        let Some(layer) = dense else { return Ok(()) };
        let named = self.config.optional_usizes("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty());
        let field = if named { "mlp_only_layers" } else { "decoder_sparse_step" };
        Err(self.refuse(&[field], "experts in all layers", format!("none in layer {layer}")))
    }

    /// Adds a key of the architecture.
    pub(super) fn add_key(&mut self, field: &str, value: impl Into<Value>) {
        self.keys.push((format!("{}.{field}", self.spec.family), value.into()));
    }

    /// Adds a key of the architecture that is a count.
    pub(super) fn add_count(&mut self, field: &str, count: usize) {
        self.add_key(field, number(count));
    }

    /// Adds a key of the architecture that has a boolean for each layer.
    pub(super) fn add_flags(&mut self, field: &str, layers: Vec<bool>) {
        self.keys.push((format!("{}.{field}", self.spec.family), Value::Array(Array::Bool(layers))));
    }

    /// Which layers have a window.
    pub(super) fn windowed(&self) -> Vec<bool> {
        (0..self.spec.layers).map(|layer| self.spec.attention_of(layer).window.is_some()).collect()
    }

    /// Adds a line about a difference between the file and the checkpoint.
    pub(super) fn note(&mut self, line: String) {
        self.notes.push(format!("{}: {line}", self.config.file()));
    }

    /// Adds a tensor by whose presence the reader distinguishes variants of the network.
    pub(super) fn add_marker_tensor(&mut self, tensor: impl Into<String>) {
        self.marker_tensors.push(tensor.into());
    }

    /// Sets a key of the architecture that has a count for each layer, or one count if all are equal; it replaces an
    /// earlier value.
    pub(super) fn add_counts(&mut self, field: &str, layers: &[usize]) {
        let key = format!("{}.{field}", self.spec.family);
        self.keys.retain(|(known, _)| *known != key);
        match layers {
            [first, rest @ ..] if rest.iter().any(|count| count != first) => {
                let counts = layers.iter().map(|count| u32::try_from(*count).unwrap_or(u32::MAX)).collect();
                self.keys.push((key, Value::Array(Array::U32(counts))));
            }
            _ => self.add_count(field, layers[0]),
        }
    }

    fn add_rotation(&mut self, rotation: &Rotation) {
        let Rotation { frequencies, magnitude, base, scaling, .. } = rotation;
        self.add_count("rope.dimension_count", 2 * frequencies.len());
        self.add_key("rope.freq_base", *base);
        match scaling {
            Scaling::None | Scaling::Divided | Scaling::Dynamic { .. } => {}
            Scaling::Linear { factor } => {
                self.add_key("rope.scaling.type", "linear");
                self.add_key("rope.scaling.factor", *factor);
            }
            Scaling::Yarn { factor, original } => {
                self.add_key("rope.scaling.type", "yarn");
                self.add_key("rope.scaling.factor", *factor);
                self.add_count("rope.scaling.original_context_length", *original as usize);
                let further = magnitude / rope::yarn_magnitude(*factor, 1.0);
                if !near(further, 1.0) {
                    self.add_key(ATTENTION_FACTOR, further);
                }
            }
            Scaling::LongRope { original, .. } => {
                self.add_key("rope.scaling.type", "longrope");
                self.add_count("rope.scaling.original_context_length", *original as usize);
                self.add_key(ATTENTION_FACTOR, *magnitude);
            }
        }
    }

    /// Replaces the attention factor by YaRN's logarithm multiplier, for architectures that have this key.
    pub(super) fn add_yarn_log_multiplier(&mut self, multiplier: f32) {
        let factor = format!("{}.{ATTENTION_FACTOR}", self.spec.family);
        self.keys.retain(|(key, _)| *key != factor);
        self.add_key(rope::YARN_LOG_MULTIPLIER, multiplier);
    }

    /// Adds the tensors of divisors of frequencies, if there are any. llama.cpp reads them in some architectures; where
    /// they are not added, scalings that need them are refused.
    pub(super) fn add_divisors(&mut self) {
        let Some(Rotation { frequencies, base, scaling, .. }) = self.spec.positions.rotations().first() else { return };
        let mut add = |name: &str, divisors: &[f32]| {
            self.tensors.push(tensor(name, vec![divisors.len()], divisors));
        };
        match scaling {
            Scaling::Divided => {
                let plain = rope::plain(*base, 2 * frequencies.len());
                let divisors: Vec<f32> = plain.iter().zip(frequencies).map(|(plain, scaled)| plain / scaled).collect();
                add("rope_freqs.weight", &divisors);
            }
            Scaling::LongRope { divisors: [short, long], .. } => {
                add("rope_factors_short.weight", short);
                add("rope_factors_long.weight", long);
            }
            Scaling::None | Scaling::Linear { .. } | Scaling::Yarn { .. } | Scaling::Dynamic { .. } => {}
        }
    }

    /// For an architecture that cannot express windows: limits the file's context to the shortest window, within which
    /// windows have no effect, and notes it.
    pub(super) fn limit_context_to_window(&mut self) {
        let Some(shortest) = (0..self.spec.layers).filter_map(|layer| self.spec.window_of(layer)).min() else { return };
        self.spec.context_max = shortest;
        let context = format!("{}.context_length", self.spec.family);
        self.keys.retain(|(key, _)| *key != context);
        self.add_count("context_length", shortest);
        self.note(format!(
            "GGUF's {} has no word for windows; the file is one for texts of up to {shortest} tokens, in which they \
             change nothing",
            self.spec.family
        ));
    }

    /// Sets GELU to its tanh form, which llama.cpp computes in this architecture whatever the checkpoint had, and notes
    /// it.
    pub(super) fn use_tanh_gelu(&mut self) {
        if self.spec.feed_forward == FeedForward::Plain(Activation::GeluErf) {
            self.spec.feed_forward = FeedForward::Plain(Activation::GeluTanh);
            let family = self.spec.family;
            self.note(format!("GGUF's {family} computes GELU by tanh; logits may differ by some thousandths"));
        }
    }

    /// Refuses biases that llama.cpp does not load in this architecture.
    pub(super) fn refuse_biases(&self, field: &str, biases: &[Bias]) -> Result<(), ModelError> {
        match biases.iter().any(|bias| matches!(bias, Bias::Required)) {
            true => Err(self.refuse(&[field], "false", "true")),
            false => Ok(()),
        }
    }

    /// Refuses a network without biases that llama.cpp expects in this architecture.
    pub(super) fn require_biases(&self, field: &str, bias: Bias) -> Result<(), ModelError> {
        match bias {
            Bias::None => Err(self.refuse(&[field], "true", "false")),
            Bias::Required | Bias::IfThere => Ok(()),
        }
    }

    /// Refuses a tied head where llama.cpp expects one of its own, or the reverse.
    pub(super) fn require_tied(&self, tied: bool) -> Result<(), ModelError> {
        match self.spec.tied_head == tied {
            true => Ok(()),
            false => Err(self.refuse(&["tie_word_embeddings"], tied, !tied)),
        }
    }

    /// The first of these fields that the configuration has.
    fn field<'n>(&self, fields: &[&'n str]) -> &'n str {
        fields.iter().copied().find(|field| self.config.has(field)).unwrap_or(fields[0])
    }

    /// An error about the first of these fields that the configuration has.
    pub(super) fn refuse(
        &self,
        fields: &[&str],
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> ModelError {
        let expected = format!("{expected} (GGUF's {} has no other)", self.spec.family);
        self.config.refuse(self.field(fields), expected, found)
    }

    /// Reads the description with the architecture's reader, for sequences of up to so many tokens, and checks that the
    /// result is what the configuration says.
    ///
    /// # Errors
    /// The reader finds something else.
    pub(super) fn read_back(&self, from_gguf: ReadGguf, context: Option<usize>) -> Result<Plan, ModelError> {
        let metadata = Metadata::new(self.config.file(), self.keys.iter().cloned());
        let mut names: Vec<&str> = self.marker_tensors.iter().map(String::as_str).collect();
        names.extend((!self.spec.tied_head).then_some("output.weight"));
        names.extend(self.layout.ffn_norm.map(|_| "blk.0.ffn_norm.weight"));
        names.extend((!matches!(self.layout.qk_norms, QkNormNames::None)).then_some("blk.0.attn_q_norm.weight"));
        names.extend(matches!(self.layout.qkv, Qkv::Fused(..)).then_some("blk.0.attn_qkv.weight"));
        // The reader checks only that they are present, and how many rows the embedding has.
        let stubs = names.into_iter().map(|name| tensor(name, vec![0], &[]));
        let embedding = tensor("token_embd.weight", vec![self.spec.vocabulary, 0], &[]);
        let tensors = self.tensors.iter().cloned().chain(stubs).chain([embedding]);
        let weights = Weights::new(self.config.file(), tensors)?;
        let plan = from_gguf(Gguf { metadata: &metadata, weights: &weights })?.for_context(context);
        self.compare(&plan.spec)?;
        Ok(plan)
    }

    /// Refuses what the reader finds different.
    fn compare(&self, file: &Spec) -> Result<(), ModelError> {
        let own = &self.spec;
        self.compare_layers(file)?;
        for layer in 0..own.layers {
            let of = |spec: &Spec| {
                let LayerAttention { values_are_keys, .. } = spec.attention_of(layer);
                (spec.kv_heads_of(layer), values_are_keys, spec.ffn_width_of(layer))
            };
            assert_eq!(of(own), of(file), "layer {layer} of {}", own.family);
        }
        assert_eq!((own.shared_kv, own.layer_inputs), (file.shared_kv, file.layer_inputs), "{}", own.family);
        if own.feed_forward != file.feed_forward {
            let fields = ["activation_function", "hidden_activation", "hidden_act", "activation"];
            let found = self.config.optional_str(self.field(&fields))?.unwrap_or_default();
            return Err(self.refuse(&fields, json::name_of(file.feed_forward), format!("{found:?}")));
        }
        self.compare_experts(file)?;
        if own.residual != file.residual {
            let fields = ["use_parallel_residual", "parallel_attn"];
            return Err(self.refuse(&fields, format!("{:?}", file.residual), format!("{:?}", own.residual)));
        }
        for (fields, file, own) in [
            (
                &["scale_attn_weights", "query_pre_attn_scalar", "attention_multiplier"][..],
                Some(file.attention_scale),
                Some(own.attention_scale),
            ),
            (&["attn_logit_softcapping"], file.attention_soft_cap, own.attention_soft_cap),
            (&["final_logit_softcapping"], file.logit_soft_cap, own.logit_soft_cap),
            (&["logits_scaling", "logit_scale"], Some(file.logit_multiplier), Some(own.logit_multiplier)),
            (&["embedding_multiplier"], Some(file.embedding_multiplier), Some(own.embedding_multiplier)),
            (&["residual_multiplier"], Some(file.residual_multiplier), Some(own.residual_multiplier)),
            (&["llama_4_scaling_beta"], file.query_growth.map(|of| of.rate), own.query_growth.map(|of| of.rate)),
            (&["rope_parameters"], file.query_growth.map(|of| of.period), own.query_growth.map(|of| of.period)),
        ] {
            let same = match (file, own) {
                (Some(file), Some(own)) => near(file, own),
                (file, own) => file == own,
            };
            if !same {
                let shown = |number: Option<f32>| number.map_or("nothing".to_string(), |number| number.to_string());
                let field = self.field(fields);
                let scale = fields[0] == "scale_attn_weights";
                let what = if scale { "scores multiplied with " } else { "" };
                return Err(self.refuse(&[field], format!("{what}{}", shown(file)), format!("{what}{}", shown(own))));
            }
        }
        Ok(())
    }

    /// Refuses a router that the reader finds different.
    fn compare_experts(&self, file: &Spec) -> Result<(), ModelError> {
        let [own, other] = [&self.spec, file].map(|spec| spec.experts.clone());
        if let (Some(own), Some(other)) = (&own, &other)
            && own.router != other.router
        {
            let shown = |router: &Router| format!("weights brought to the sum 1: {}", router.divided.is_some());
            return Err(self.refuse(&["norm_topk_prob", "model_type"], shown(&other.router), shown(&own.router)));
        }
        let layers = |spec: &Spec| (0..spec.layers).map(|layer| spec.experts_of(layer).is_some()).collect::<Vec<_>>();
        assert_eq!(layers(&self.spec), layers(file), "layers of {} with experts", file.family);
        let shape = |experts: Option<Experts>| experts.map(|experts| Experts { layers: Vec::new(), ..experts });
        assert_eq!(shape(own), shape(other), "experts of {}", file.family);
        Ok(())
    }

    /// Refuses positions, rotations and windows that the reader finds different.
    fn compare_layers(&self, file: &Spec) -> Result<(), ModelError> {
        let own = &self.spec;
        let kind = |spec: &Spec| match spec.positions {
            Positions::Rope(_) => "positions by rotation",
            Positions::Learned => "a table of positions",
            Positions::Alibi(_) => "positions by ALiBi",
        };
        if kind(own) != kind(file) {
            return Err(self.refuse(&["alibi", "model_max_length"], kind(file), kind(own)));
        }
        let slopes = own.positions.slopes().iter().zip(file.positions.slopes());
        assert!(slopes.clone().all(|(own, file)| near(*own, *file)), "slopes of {}: {slopes:?}", own.family);
        let rotation =
            |spec: &Spec, layer| Some(spec.positions.rotations()[spec.attention_of(layer).rotation?].clone());
        for layer in 0..own.layers {
            if own.window_of(layer) != file.window_of(layer) {
                let shown = |window: Option<usize>| match window {
                    None => format!("no window below the context of {}", own.context_max),
                    Some(window) => format!("a window of {window}"),
                };
                let (expected, found) = (shown(file.window_of(layer)), shown(own.window_of(layer)));
                let windowed = (0..file.layers).any(|layer| file.window_of(layer).is_some());
                let fields = ["layer_types", "sliding_window_pattern", "sliding_window"];
                let fields = if windowed { &fields[..] } else { &fields[2..] };
                return Err(self.refuse(fields, format!("{expected} in layer {layer}"), found));
            }
            let same = match (rotation(file, layer), rotation(own, layer)) {
                (None, None) => true,
                (Some(file), Some(own)) => is_same_rotation(&file, &own),
                (file, own) => {
                    let shown = |is_rotated: bool| if is_rotated { "a rotation" } else { "none" };
                    let fields = ["no_rope_layers", "no_rope_layer_interval", "layer_types"];
                    let expected = format!("{} in layer {layer}", shown(file.is_some()));
                    return Err(self.refuse(&fields, expected, shown(own.is_some())));
                }
            };
            if !same {
                let expected = "a rotation and a scaling of it that files can say";
                return Err(self.refuse(&["rope_parameters", "rope_scaling"], expected, "another"));
            }
        }
        Ok(())
    }
}

/// Whether two rotations have the same angles.
fn is_same_rotation(a: &Rotation, b: &Rotation) -> bool {
    let frequencies = a.frequencies.iter().zip(&b.frequencies);
    a.frequencies.len() == b.frequencies.len()
        && near(a.magnitude, b.magnitude)
        && frequencies.clone().all(|(a, b)| near(*a, *b) || a.max(*b) < UNROTATED_FREQUENCY_MAX)
}

/// Whether rotated pairs are halves of a head in a checkpoint and interleaved in its file.
///
/// # Panics
/// If it is the other way round.
pub(super) fn interleaved(checkpoint: &Spec, file: &Spec) -> bool {
    let pairing = |spec: &Spec| spec.positions.rotations().first().map(|rotation| rotation.pairing);
    match (pairing(checkpoint), pairing(file)) {
        (Some(Pairing::Halves), Some(Pairing::Interleaved)) => true,
        (own, of_file) => {
            assert_eq!(own, of_file, "pairs of {}", file.family);
            false
        }
    }
}
