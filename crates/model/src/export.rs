//! A Hugging Face checkpoint said in GGUF's words: names of tensors, order of rows, keys of the network.
//!
//! The way back of what `family/` reads. Nothing is converted here: an [`Exported`] tensor knows its name and shape in
//! the new file and hands out its rows as floats, in the new order, from where they lie. Two things are in another
//! order. Rows of Llama's q and k are interleaved, head by head, because GGUF rotates neighbours where transformers
//! rotates halves; GPT-2's matrices are transposed. Left out: vocabularies, and what type the new file stores.

use foretoken_kernels::rope::Pairing;
use foretoken_weights::gguf::Value;
use foretoken_weights::{Bytes, Dtype, Tensor, Weights};

use crate::checkpoint::{Checkpoint, Config, JsonConfig};
use crate::error::ModelError;
use crate::family;
use crate::linear::Storage;
use crate::spec::{Activation, FeedForward, Norm, Positions, Spec};

/// A checkpoint as a GGUF file would hold it.
pub struct Export {
    /// The keys that describe the network.
    pub metadata: Vec<(String, Value)>,
    /// The tensors.
    pub tensors: Vec<Exported>,
    /// Tensors of the checkpoint that the network does not use.
    pub left_out: Vec<String>,
}

/// How the rows of a tensor come from those of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Same,
    /// Within each head of so many rows, the second half goes between the rows of the first.
    Interleaved(usize),
    /// Row i is column i of the source.
    Transposed,
}

/// A tensor of the new file.
pub struct Exported {
    /// Its name there.
    pub name: String,
    /// Its shape there, outermost first.
    pub shape: Vec<usize>,
    /// Where its elements come from.
    pub source: Tensor,
    order: Order,
}

impl Exported {
    /// A tensor that goes over as it is.
    ///
    /// # Errors
    /// It is not in `weights`, or of a type that cannot be computed with.
    pub fn same(weights: &Weights, name: &str) -> Result<Self, ModelError> {
        let source = weights.require(name)?.clone();
        Ok(Self { name: name.to_string(), shape: source.shape.clone(), source, order: Order::Same })
    }

    /// Elements of a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows, all outer dimensions multiplied.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// The bytes of the source if they are the elements of the new tensor one after another.
    pub fn verbatim(&self) -> Option<&Bytes> {
        (self.order == Order::Same).then_some(&self.source.bytes)
    }

    /// The tensor's rows, ready to be read by many threads.
    pub fn reader(&self) -> Rows<'_> {
        Rows { exported: self, storage: Storage::new(&self.source) }
    }
}

/// Rows of an [`Exported`] tensor as floats.
pub struct Rows<'a> {
    exported: &'a Exported,
    storage: Storage,
}

impl Rows<'_> {
    /// Spells out the rows from `first` on, as many as `out` has room for.
    ///
    /// # Panics
    /// If `out` is not whole rows, or there are not so many.
    pub fn read(&self, first: usize, out: &mut [f32]) {
        let columns = self.exported.columns();
        let rows = self.exported.rows();
        assert!(out.len().is_multiple_of(columns.max(1)), "read: {} elements of rows of {columns}", out.len());
        for (row, out) in (first..).zip(out.chunks_exact_mut(columns)) {
            match self.exported.order {
                Order::Same => self.storage.widen(row * columns..(row + 1) * columns, out),
                Order::Interleaved(head) => {
                    let (within, half) = (row % head, head / 2);
                    let row = row - within + within % 2 * half + within / 2;
                    self.storage.widen(row * columns..(row + 1) * columns, out);
                }
                Order::Transposed => {
                    for (column, out) in out.iter_mut().enumerate() {
                        let at = column * rows + row;
                        self.storage.widen(at..at + 1, std::slice::from_mut(out));
                    }
                }
            }
        }
    }
}

/// Says a Hugging Face checkpoint in GGUF's words.
///
/// # Errors
/// The configuration is not one that can be run, asks for something that GGUF has no word for, or a tensor is missing,
/// of a type that cannot be computed with, or of another shape than the configuration says.
///
/// # Panics
/// If the checkpoint is a GGUF file.
pub fn gguf(checkpoint: &Checkpoint) -> Result<Export, ModelError> {
    let Config::Json(config) = &checkpoint.config else { panic!("export: {} is GGUF already", checkpoint.name) };
    let spec = family::spec(checkpoint)?;
    let mut collected = Collected { weights: &checkpoint.weights, tensors: Vec::new(), used: Vec::new() };
    let metadata = match spec.family {
        "llama" => llama(config, &spec, &mut collected)?,
        "gpt2" => gpt2(config, &spec, &mut collected)?,
        other => return Err(config.refuse("model_type", "one of llama, gpt2", other)),
    };
    let Collected { tensors, used, .. } = collected;
    let unused = |name: &&str| !used.iter().any(|used| used == name);
    let left_out = checkpoint.weights.names().filter(unused).map(str::to_string).collect();
    Ok(Export { metadata, tensors, left_out })
}

/// Tensors as they are found.
struct Collected<'a> {
    weights: &'a Weights,
    tensors: Vec<Exported>,
    /// Names in the checkpoint.
    used: Vec<String>,
}

impl Collected<'_> {
    fn has(&self, name: &str) -> bool {
        self.weights.get(name).is_some()
    }

    fn add(&mut self, from: &str, to: String, shape: &[usize], order: Order) -> Result<(), ModelError> {
        let source = self.weights.require(from)?.clone();
        let expected = if order == Order::Transposed { shape.iter().rev().copied().collect() } else { shape.to_vec() };
        if source.shape != expected {
            return Err(ModelError::Shape {
                file: self.weights.source().to_string(),
                tensor: from.to_string(),
                expected,
                found: source.shape,
            });
        }
        self.used.push(from.to_string());
        self.tensors.push(Exported { name: to, shape: shape.to_vec(), source, order });
        Ok(())
    }

    /// `weight` and, if there has to be one, `bias` of a linear layer.
    fn linear(
        &mut self,
        names: (String, String),
        matrix: [usize; 2],
        bias: bool,
        order: Order,
    ) -> Result<(), ModelError> {
        let (from, to) = names;
        self.add(&format!("{from}.weight"), format!("{to}.weight"), &matrix, order)?;
        if bias {
            self.add(&format!("{from}.bias"), format!("{to}.bias"), &matrix[..1], Order::Same)?;
            if let (Order::Interleaved(head), Some(last)) = (order, self.tensors.last_mut()) {
                // A row of biases is rows of one element as far as their order goes.
                let column =
                    Exported { shape: vec![matrix[0], 1], order, name: String::new(), source: last.source.clone() };
                let mut biases = vec![0.0; matrix[0]];
                column.reader().read(0, &mut biases);
                debug_assert!(matrix[0].is_multiple_of(head));
                last.source = floats(&last.source.name, &biases);
            }
        }
        Ok(())
    }
}

/// A vector of floats that no file holds.
fn floats(name: &str, values: &[f32]) -> Tensor {
    let bytes = Bytes::from_vec(values.iter().flat_map(|value| value.to_le_bytes()).collect());
    Tensor { name: name.to_string(), dtype: Dtype::F32, shape: vec![values.len()], bytes }
}

/// A count as GGUF stores it. Every count of a `Spec` is bounded far below.
fn count(number: usize) -> Value {
    Value::U32(u32::try_from(number).unwrap_or(u32::MAX))
}

/// The keys that all families have.
fn common(spec: &Spec) -> Vec<(String, Value)> {
    let key = |field: &str| format!("{}.{field}", spec.family);
    let epsilon = match spec.norm {
        Norm::Rms { epsilon } => ("attention.layer_norm_rms_epsilon", epsilon),
        Norm::Layer { epsilon } => ("attention.layer_norm_epsilon", epsilon),
    };
    vec![
        ("general.architecture".to_string(), spec.family.into()),
        (key("context_length"), count(spec.context_max)),
        (key("embedding_length"), count(spec.width)),
        (key("block_count"), count(spec.layers)),
        (key("feed_forward_length"), count(spec.ffn_width)),
        (key("attention.head_count"), count(spec.heads)),
        (key(epsilon.0), epsilon.1.into()),
    ]
}

fn llama(config: &JsonConfig, spec: &Spec, all: &mut Collected<'_>) -> Result<Vec<(String, Value)>, ModelError> {
    let mut metadata = common(spec);
    let mut say = |field: &str, value: Value| metadata.push((format!("llama.{field}"), value));
    say("attention.head_count_kv", count(spec.kv_heads));
    say("vocab_size", count(spec.vocabulary));
    say("rope.dimension_count", count(spec.head_dim));
    say("attention.key_length", count(spec.head_dim));
    say("attention.value_length", count(spec.head_dim));
    rotation(config, spec, &mut say, &mut all.tensors)?;

    let prefix = if all.has("model.embed_tokens.weight") { "model." } else { "" };
    let bias = |field: &str| Ok::<bool, ModelError>(config.optional_bool(field)?.unwrap_or(false));
    let (attention, ffn) = (bias("attention_bias")?, bias("mlp_bias")?);
    let Spec { vocabulary, width, ffn_width, head_dim, .. } = *spec;
    let (queries, keys) = (spec.heads * head_dim, spec.kv_heads * head_dim);
    let (same, rotated) = (Order::Same, Order::Interleaved(head_dim));
    all.add(&format!("{prefix}embed_tokens.weight"), "token_embd.weight".into(), &[vocabulary, width], same)?;
    all.add(&format!("{prefix}norm.weight"), "output_norm.weight".into(), &[width], same)?;
    head(spec, all)?;
    for i in 0..spec.layers {
        let names = |from: &str, to: &str| (format!("{prefix}layers.{i}.{from}"), format!("blk.{i}.{to}"));
        for (from, to) in [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")] {
            let (from, to) = names(from, to);
            all.add(&format!("{from}.weight"), format!("{to}.weight"), &[width], same)?;
        }
        all.linear(names("self_attn.q_proj", "attn_q"), [queries, width], attention, rotated)?;
        all.linear(names("self_attn.k_proj", "attn_k"), [keys, width], attention, rotated)?;
        all.linear(names("self_attn.v_proj", "attn_v"), [keys, width], attention, same)?;
        all.linear(names("self_attn.o_proj", "attn_output"), [width, queries], attention, same)?;
        all.linear(names("mlp.gate_proj", "ffn_gate"), [ffn_width, width], ffn, same)?;
        all.linear(names("mlp.up_proj", "ffn_up"), [ffn_width, width], ffn, same)?;
        all.linear(names("mlp.down_proj", "ffn_down"), [width, ffn_width], ffn, same)?;
        // Old checkpoints store the frequencies of every layer; they follow from the configuration.
        all.used.push(format!("{prefix}layers.{i}.self_attn.rotary_emb.inv_freq"));
    }
    Ok(metadata)
}

/// The head, if it is not the embedding; a copy of that which lies in the file all the same is not used.
fn head(spec: &Spec, all: &mut Collected<'_>) -> Result<(), ModelError> {
    const NAME: &str = "lm_head.weight";
    if spec.tied_head {
        all.used.push(NAME.to_string());
        return Ok(());
    }
    all.add(NAME, "output.weight".into(), &[spec.vocabulary, spec.width], Order::Same)
}

/// Base and scaling of the rotation: keys for a linear one, a tensor of divisors for any other.
fn rotation(
    config: &JsonConfig,
    spec: &Spec,
    say: &mut impl FnMut(&str, Value),
    tensors: &mut Vec<Exported>,
) -> Result<(), ModelError> {
    let Positions::Rope { frequencies, pairing: Pairing::Halves } = &spec.positions else {
        return Err(config.refuse("model_type", "a network that rotates halves", spec.family));
    };
    let parameters = match config.optional_object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => config.optional_object("rope_scaling")?,
    };
    let within = parameters.as_ref().filter(|parameters| parameters.has("rope_theta")).unwrap_or(config);
    let base = within.optional_f32("rope_theta")?.unwrap_or(10_000.0);
    say("rope.freq_base", base.into());
    let kind = match &parameters {
        Some(parameters) => parameters
            .optional_str(if parameters.has("rope_type") { "rope_type" } else { "type" })?
            .unwrap_or("default"),
        None => "default",
    };
    match (kind, &parameters) {
        ("default", _) => {}
        ("linear", Some(parameters)) => {
            say("rope.scaling.type", "linear".into());
            say("rope.scaling.factor", parameters.f32("factor")?.into());
        }
        _ => {
            let plain = |i: usize| 1.0 / base.powf((2 * i) as f32 / spec.head_dim as f32);
            let divisors: Vec<f32> = frequencies.iter().enumerate().map(|(i, scaled)| plain(i) / scaled).collect();
            let source = floats("rope_freqs.weight", &divisors);
            tensors.push(Exported {
                name: source.name.clone(),
                shape: source.shape.clone(),
                source,
                order: Order::Same,
            });
        }
    }
    Ok(())
}

fn gpt2(config: &JsonConfig, spec: &Spec, all: &mut Collected<'_>) -> Result<Vec<(String, Value)>, ModelError> {
    if spec.feed_forward != FeedForward::Plain(Activation::GeluTanh) {
        let found = config.optional_str("activation_function")?.unwrap_or_default();
        return Err(config.refuse("activation_function", "gelu_new (GGUF's gpt2 has no other)", format!("{found:?}")));
    }
    if !config.optional_bool("scale_attn_weights")?.unwrap_or(true) {
        return Err(config.refuse("scale_attn_weights", "true (GGUF's gpt2 always scales)", false));
    }
    let prefix = if all.has("transformer.wte.weight") { "transformer." } else { "" };
    let Spec { vocabulary, width, ffn_width, context_max, .. } = *spec;
    let same = Order::Same;
    all.add(&format!("{prefix}wte.weight"), "token_embd.weight".into(), &[vocabulary, width], same)?;
    all.add(&format!("{prefix}wpe.weight"), "position_embd.weight".into(), &[context_max, width], same)?;
    head(spec, all)?;
    let norm = |all: &mut Collected<'_>, from: String, to: String| {
        ["weight", "bias"]
            .into_iter()
            .try_for_each(|part| all.add(&format!("{from}.{part}"), format!("{to}.{part}"), &[width], same))
    };
    norm(all, format!("{prefix}ln_f"), "output_norm".into())?;
    for i in 0..spec.layers {
        let names = |from: &str, to: &str| (format!("{prefix}h.{i}.{from}"), format!("blk.{i}.{to}"));
        for (from, to) in [("ln_1", "attn_norm"), ("ln_2", "ffn_norm")] {
            let (from, to) = names(from, to);
            norm(all, from, to)?;
        }
        for (from, to, matrix) in [
            ("attn.c_attn", "attn_qkv", [3 * width, width]),
            ("attn.c_proj", "attn_output", [width, width]),
            ("mlp.c_fc", "ffn_up", [ffn_width, width]),
            ("mlp.c_proj", "ffn_down", [width, ffn_width]),
        ] {
            all.linear(names(from, to), matrix, true, Order::Transposed)?;
        }
        // Masks that old checkpoints carry along.
        all.used.extend(["attn.bias", "attn.masked_bias"].map(|mask| format!("{prefix}h.{i}.{mask}")));
    }
    Ok(common(spec))
}
