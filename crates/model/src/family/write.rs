//! Export of a checkpoint's configuration to the keys of a GGUF file.
//!
//! A description of the file is made from the [`Spec`] and read by the architecture's own reader before anything is
//! written. The reader must find the same [`Spec`]; a difference is refused by the field that causes it
//! (`write/compare.rs`). So a writer cannot disagree with the reader, and features that files cannot express or imply
//! (windows, which layers have them, the scale of scores) need no list of their own. The reader also yields the names
//! and the [`Layout`] of the file's tensors.
//!
//! A family's file adds the keys that are particular to it. Tensors are exported by `layout/write.rs`.

mod compare;

use foretoken_kernels::rope::Pairing;
use foretoken_weights::gguf::{Array, Metadata, Value};
use foretoken_weights::{Tensor, Weights};

use super::gguf::Gguf;
use super::layout::{Layout, QkNormNames, Qkv};
use super::tensors::Bias;
use super::{Plan, ReadGguf, rope};
use crate::checkpoint::JsonConfig;
use crate::collected::tensor;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Norm, Rotation, Scaling, Spec};

/// Keys of a GGUF file with their values, in order.
pub(crate) type Keys = Vec<(String, Value)>;

/// The key of a further multiplier of the rotated elements.
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
    /// How the checkpoint's tensors are stored.
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

/// A count as GGUF stores it. Every count of a [`Spec`] has a bound far below 2^32.
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
    /// If the family finds that the file format cannot express something.
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

    /// Adds the keys of experts that all architectures have; readers see from the tensors which layers have experts.
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

    /// Refuses dense layers together with layers with experts: llama.cpp expects experts in all layers of most
    /// architectures.
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
            Scaling::None | Scaling::Divided | Scaling::Dynamic { .. } | Scaling::DynamicByDoubling { .. } => {}
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

    /// Adds the tensors of divisors of frequencies, if there are any. llama.cpp reads them in some architectures; in
    /// the others they are not added, and scalings that need them are refused.
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
            _ => {}
        }
    }

    /// Limits the file's context.
    pub(super) fn limit_context(&mut self, positions: usize) {
        self.spec.context_max = positions;
        self.add_counts("context_length", &[positions]);
    }

    /// For an architecture that cannot express windows: limits the file's context to the shortest window, within which
    /// windows have no effect, and adds a note.
    pub(super) fn limit_context_to_window(&mut self) {
        let Some(shortest) = (0..self.spec.layers).filter_map(|layer| self.spec.window_of(layer)).min() else { return };
        self.limit_context(shortest);
        self.note(format!(
            "GGUF's {} has no word for windows; the file is one for texts of up to {shortest} tokens, in which they \
             change nothing",
            self.spec.family
        ));
    }

    /// Sets GELU to its tanh form, which llama.cpp computes in this architecture whatever the checkpoint has, and adds
    /// a note.
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

    /// Refuses a tied output head if llama.cpp expects a separate one, or the reverse.
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

    /// Reads the description with the architecture's reader, for sequences of up to `context` tokens, and checks that
    /// the result equals the configuration's.
    ///
    /// # Errors
    /// If the reader finds a difference.
    pub(super) fn read_back(&self, from_gguf: ReadGguf, context: Option<usize>) -> Result<Plan, ModelError> {
        let metadata = Metadata::new(self.config.file(), self.keys.iter().cloned());
        let mut names: Vec<&str> = self.marker_tensors.iter().map(String::as_str).collect();
        names.extend((!self.spec.tied_head).then_some("output.weight"));
        names.extend(self.layout.ffn_norm.map(|_| "blk.0.ffn_norm.weight"));
        names.extend((!matches!(self.layout.qk_norms, QkNormNames::None)).then_some("blk.0.attn_q_norm.weight"));
        names.extend(matches!(self.layout.qkv, Qkv::Fused(..)).then_some("blk.0.attn_qkv.weight"));
        // The reader checks only that the tensors are present, and the number of rows of the embedding.
        let stubs = names.into_iter().map(|name| tensor(name, vec![0], &[]));
        let embedding = tensor("token_embd.weight", vec![self.spec.vocabulary, 0], &[]);
        let tensors = self.tensors.iter().cloned().chain(stubs).chain([embedding]);
        let weights = Weights::new(self.config.file(), tensors)?;
        let plan = from_gguf(Gguf { metadata: &metadata, weights: &weights })?.for_context(context);
        self.compare(&plan.spec)?;
        Ok(plan)
    }
}

/// Whether rotated pairs are halves of a head in a checkpoint and interleaved in its file.
///
/// # Panics
/// If it is the reverse.
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
