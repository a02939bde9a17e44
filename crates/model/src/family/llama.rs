//! Llama: RMSNorm, rotary positions, grouped heads, SiLU-gated feed-forward, a head of its own or tied.
//!
//! Two spellings: Hugging Face names (with or without the `model.` prefix) whose rotary pairs are halves of a
//! head, and GGUF names whose q and k rows were permuted so that pairs are neighbours. Biases are
//! there if the configuration says so.

use foretoken_kernels::rope::Pairing;
use foretoken_weights::Weights;
use foretoken_weights::gguf::{Metadata, Value};

use super::checks::{check_epsilon, check_head_dim, check_heads, count, gguf_vocabulary};
use super::rope;
use super::tensors::{Bias, Tensors, optional_vector};
use crate::checkpoint::{Config, JsonConfig};
use crate::collected::{Collected, Keys, Order, common, number};
use crate::error::ModelError;
use crate::linear::Unpacked;
use crate::network::{Inner, Layer, Network};
use crate::spec::{FeedForward, Norm, Positions, Rotation, Spec};

pub(super) const MODEL_TYPE: &str = "llama";
pub(super) const ARCHITECTURE: &str = "llama";

pub(super) fn spec_of_json(config: &JsonConfig) -> Result<Spec, ModelError> {
    let file = config.file();
    let field = |name: &str| count(file, name, config.usize(name)?);
    let (width, heads) = (field("hidden_size")?, field("num_attention_heads")?);
    let kv_heads = count(file, "num_key_value_heads", config.optional_usize("num_key_value_heads")?.unwrap_or(heads))?;
    check_heads(file, ["num_attention_heads", "num_key_value_heads"], heads, kv_heads)?;
    let head_dim = match config.optional_usize("head_dim")? {
        Some(head_dim) => check_head_dim(file, "head_dim", head_dim)?,
        None if width.is_multiple_of(heads) => {
            check_head_dim(file, "hidden_size / num_attention_heads", width / heads)?
        }
        None => {
            return Err(config.refuse("hidden_size", format!("a multiple of num_attention_heads = {heads}"), width));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(config.refuse("head_dim", "an even number", head_dim));
    }
    let activation = config.optional_str("hidden_act")?.unwrap_or("silu");
    if !["silu", "swish"].contains(&activation) {
        return Err(config.refuse("hidden_act", "silu", format!("{activation:?}")));
    }
    let rotated = config.optional_f32("partial_rotary_factor")?.unwrap_or(1.0);
    if rotated != 1.0 {
        return Err(config.refuse("partial_rotary_factor", "1 (whole heads are rotated)", rotated));
    }
    let frequencies = rope::of_json(config, head_dim)?;
    Ok(Spec {
        family: ARCHITECTURE,
        vocabulary: field("vocab_size")?,
        width,
        layers: field("num_hidden_layers")?,
        heads,
        kv_heads,
        head_dim,
        ffn_width: field("intermediate_size")?,
        context_max: count(
            file,
            "max_position_embeddings",
            config.optional_usize("max_position_embeddings")?.unwrap_or(2048),
        )?,
        norm: Norm::Rms {
            epsilon: check_epsilon(file, "rms_norm_eps", config.optional_f32("rms_norm_eps")?.unwrap_or(1e-6))?,
        },
        positions: Positions::Rope(Rotation { frequencies, pairing: Pairing::Halves }),
        feed_forward: FeedForward::SiluGated,
        attention_scale: 1.0 / (head_dim as f32).sqrt(),
        tied_head: config.optional_bool("tie_word_embeddings")?.unwrap_or(false),
    })
}

const EPSILON: &str = "llama.attention.layer_norm_rms_epsilon";

pub(super) fn spec_of_gguf(metadata: &Metadata, weights: &Weights) -> Result<Spec, ModelError> {
    let file = metadata.source();
    let field = |name: &str| count(file, name, metadata.usize(name)?);
    let (width, heads) = (field("llama.embedding_length")?, field("llama.attention.head_count")?);
    let kv_heads = metadata.optional_usize("llama.attention.head_count_kv")?.unwrap_or(heads);
    let kv_heads = count(file, "llama.attention.head_count_kv", kv_heads)?;
    check_heads(file, ["llama.attention.head_count", "llama.attention.head_count_kv"], heads, kv_heads)?;
    let head_dim = match metadata.optional_usize("llama.attention.key_length")? {
        Some(head_dim) => check_head_dim(file, "llama.attention.key_length", head_dim)?,
        None if width.is_multiple_of(heads) => {
            check_head_dim(file, "llama.embedding_length / llama.attention.head_count", width / heads)?
        }
        None => {
            let expected = format!("a multiple of llama.attention.head_count = {heads}");
            return Err(ModelError::config(file, "llama.embedding_length", expected, width));
        }
    };
    let value_dim = metadata.optional_usize("llama.attention.value_length")?.unwrap_or(head_dim);
    if value_dim != head_dim {
        let expected = format!("the key length, {head_dim}");
        return Err(ModelError::config(file, "llama.attention.value_length", expected, value_dim));
    }
    if let Some(experts) = metadata.optional_usize("llama.expert_count")?.filter(|experts| *experts > 0) {
        return Err(ModelError::config(file, "llama.expert_count", "0 (a dense network)", experts));
    }
    Ok(Spec {
        family: ARCHITECTURE,
        vocabulary: gguf_vocabulary(metadata, weights)?,
        width,
        layers: field("llama.block_count")?,
        heads,
        kv_heads,
        head_dim,
        ffn_width: field("llama.feed_forward_length")?,
        context_max: field("llama.context_length")?,
        norm: Norm::Rms { epsilon: check_epsilon(file, EPSILON, metadata.f32(EPSILON)?)? },
        positions: Positions::Rope(Rotation {
            frequencies: gguf_frequencies(metadata, weights, head_dim)?,
            pairing: Pairing::Neighbours,
        }),
        feed_forward: FeedForward::SiluGated,
        attention_scale: 1.0 / (head_dim as f32).sqrt(),
        tied_head: weights.get("output.weight").is_none(),
    })
}

/// Frequencies of a GGUF file: linear scaling by its keys, llama3 scaling by the tensor of divisors that the
/// converter has already worked out.
fn gguf_frequencies(metadata: &Metadata, weights: &Weights, head_dim: usize) -> Result<Vec<f32>, ModelError> {
    let file = metadata.source();
    let dim = metadata.optional_usize("llama.rope.dimension_count")?.unwrap_or(head_dim);
    if dim == 0 || dim > head_dim || !dim.is_multiple_of(2) {
        let expected = format!("an even number up to the head's width, {head_dim}");
        return Err(ModelError::config(file, "llama.rope.dimension_count", expected, dim));
    }
    let base = metadata.optional_f32("llama.rope.freq_base")?.unwrap_or(10_000.0);
    if !(base > 0.0 && base.is_finite()) {
        return Err(ModelError::config(file, "llama.rope.freq_base", "a finite number above 0", base));
    }
    let mut frequencies = rope::plain(base, dim);
    let kind = metadata.optional_str("llama.rope.scaling.type")?.unwrap_or("none");
    let factor = match kind {
        "none" => metadata.optional_f32("llama.rope.scale_linear")?.unwrap_or(1.0),
        "linear" => metadata.f32("llama.rope.scaling.factor")?,
        other => {
            return Err(ModelError::config(file, "llama.rope.scaling.type", "none or linear", format!("{other:?}")));
        }
    };
    if !(factor > 0.0 && factor.is_finite()) {
        return Err(ModelError::config(file, "llama.rope.scaling.factor", "a finite number above 0", factor));
    }
    frequencies.iter_mut().for_each(|frequency| *frequency /= factor);
    if let Some(divisors) = optional_vector(weights, "rope_freqs.weight", dim / 2)? {
        if let Some(found) = divisors.iter().find(|divisor| !(divisor.is_finite() && **divisor > 0.0)) {
            return Err(ModelError::config(file, "tensor rope_freqs.weight", "finite numbers above 0", found));
        }
        frequencies.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= divisor);
    }
    Ok(frequencies)
}

/// Whether the attention's and the feed-forward's linear layers have biases.
fn biases(config: &Config) -> Result<[Bias; 2], ModelError> {
    let Config::Json(config) = config else { return Ok([Bias::IfThere; 2]) };
    let bias = |field| -> Result<Bias, ModelError> {
        let says = config.optional_bool(field)?.unwrap_or(false);
        Ok(if says { Bias::Required } else { Bias::None })
    };
    Ok([bias("attention_bias")?, bias("mlp_bias")?])
}

pub(super) fn read(spec: Spec, tensors: Tensors<'_>, config: &Config) -> Result<Network<Unpacked>, ModelError> {
    let Spec { vocabulary, width, heads, kv_heads, head_dim, ffn_width, .. } = spec;
    let (gguf, [attention, ffn]) = (matches!(config, Config::Gguf(_)), biases(config)?);
    let prefix = if gguf || !tensors.has("model.embed_tokens.weight") { "" } else { "model." };
    let name = |hugging: &str, ggml: &str| if gguf { ggml.to_string() } else { format!("{prefix}{hugging}") };
    let mut layers = Vec::new();
    for i in 0..spec.layers {
        let at = name(&format!("layers.{i}"), &format!("blk.{i}"));
        let part = |hugging: &str, ggml: &str| format!("{at}.{}", if gguf { ggml } else { hugging });
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        layers.push(Layer {
            attention_norm: tensors.norm(&part("input_layernorm", "attn_norm"), width, false)?,
            query: tensors.linear(&part("self_attn.q_proj", "attn_q"), width, queries, attention)?,
            key: tensors.linear(&part("self_attn.k_proj", "attn_k"), width, keys, attention)?,
            value: tensors.linear(&part("self_attn.v_proj", "attn_v"), width, keys, attention)?,
            attention_output: tensors.linear(&part("self_attn.o_proj", "attn_output"), queries, width, attention)?,
            ffn_norm: tensors.norm(&part("post_attention_layernorm", "ffn_norm"), width, false)?,
            inner: Inner::SiluGated {
                gate: tensors.linear(&part("mlp.gate_proj", "ffn_gate"), width, ffn_width, ffn)?,
                up: tensors.linear(&part("mlp.up_proj", "ffn_up"), width, ffn_width, ffn)?,
            },
            down: tensors.linear(&part("mlp.down_proj", "ffn_down"), ffn_width, width, ffn)?,
        });
    }
    let head = if gguf { "output" } else { "lm_head" };
    let in_file = name("embed_tokens", "token_embd");
    let embedding = tensors.table(&in_file, width, vocabulary)?;
    Ok(Network {
        positions: None,
        layers,
        output_norm: tensors.norm(&name("norm", "output_norm"), width, false)?,
        head: tensors.head(head, &in_file, &spec)?,
        embedding,
        spec,
    })
}

/// The checkpoint in GGUF's words. Rows of q and k are interleaved, head by head, because GGUF rotates neighbours where
/// transformers rotates halves.
pub(super) fn export(config: &JsonConfig, spec: &Spec, all: &mut Collected<'_>) -> Result<Keys, ModelError> {
    let mut metadata = common(spec);
    let mut say = |field: &str, value: Value| metadata.push((format!("{ARCHITECTURE}.{field}"), value));
    say("attention.head_count_kv", number(spec.kv_heads));
    say("vocab_size", number(spec.vocabulary));
    say("rope.dimension_count", number(spec.head_dim));
    say("attention.key_length", number(spec.head_dim));
    say("attention.value_length", number(spec.head_dim));
    export_rotation(config, spec, &mut say, all)?;

    let prefix = if all.has("model.embed_tokens.weight") { "model." } else { "" };
    let bias = |field: &str| Ok::<bool, ModelError>(config.optional_bool(field)?.unwrap_or(false));
    let (attention, ffn) = (bias("attention_bias")?, bias("mlp_bias")?);
    let Spec { vocabulary, width, ffn_width, head_dim, .. } = *spec;
    let (queries, keys) = (spec.heads * head_dim, spec.kv_heads * head_dim);
    let (same, rotated) = (Order::Same, Order::Interleaved(head_dim));
    all.add(&format!("{prefix}embed_tokens.weight"), "token_embd.weight".into(), &[vocabulary, width], same)?;
    all.add(&format!("{prefix}norm.weight"), "output_norm.weight".into(), &[width], same)?;
    all.head("lm_head", spec)?;
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

/// Base and scaling of the rotation: keys for a linear one, a tensor of divisors for any other.
fn export_rotation(
    config: &JsonConfig,
    spec: &Spec,
    say: &mut impl FnMut(&str, Value),
    all: &mut Collected<'_>,
) -> Result<(), ModelError> {
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
            let (plain, scaled) = (rope::plain(base, spec.head_dim), rope::of_json(config, spec.head_dim)?);
            let divisors: Vec<f32> = plain.iter().zip(scaled).map(|(plain, scaled)| plain / scaled).collect();
            all.add_floats("rope_freqs.weight", &divisors);
        }
    }
    Ok(())
}
