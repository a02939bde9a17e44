//! GPT-2: LayerNorm with biases, learned positions, one fused projection for q, k and v, GELU, a tied head.
//!
//! Hugging Face stores its matrices `[inputs, outputs]` and its names come with and without `transformer.`;
//! GGUF stores them the usual way round. The fused projection is taken apart here, so the decoder sees three.

use foretoken_weights::Weights;
use foretoken_weights::gguf::Metadata;

use super::checks::{check_epsilon, count, gguf_vocabulary};
use super::tensors::{Bias, Tensors};
use crate::checkpoint::{Config, JsonConfig};
use crate::collected::{Collected, Keys, Order, common};
use crate::error::ModelError;
use crate::linear::Unpacked;
use crate::network::{Inner, Layer, Network};
use crate::spec::{Activation, FeedForward, Norm, Positions, Spec};

pub(super) const MODEL_TYPE: &str = "gpt2";
pub(super) const ARCHITECTURE: &str = "gpt2";

pub(super) fn spec_of_json(config: &JsonConfig) -> Result<Spec, ModelError> {
    let file = config.file();
    let field = |name: &str| count(file, name, config.usize(name)?);
    let (width, heads) = (field("n_embd")?, field("n_head")?);
    if !width.is_multiple_of(heads) {
        return Err(config.refuse("n_embd", format!("a multiple of n_head = {heads}"), width));
    }
    for unsupported in ["scale_attn_by_inverse_layer_idx", "add_cross_attention"] {
        if config.optional_bool(unsupported)?.unwrap_or(false) {
            return Err(config.refuse(unsupported, "false", "true"));
        }
    }
    let scaled = config.optional_bool("scale_attn_weights")?.unwrap_or(true);
    let epsilon = config.optional_f32("layer_norm_epsilon")?.unwrap_or(1e-5);
    let epsilon = check_epsilon(file, "layer_norm_epsilon", epsilon)?;
    Ok(Spec {
        family: ARCHITECTURE,
        vocabulary: field("vocab_size")?,
        width,
        layers: field("n_layer")?,
        heads,
        kv_heads: heads,
        head_dim: width / heads,
        ffn_width: count(file, "n_inner", config.optional_usize("n_inner")?.unwrap_or(4 * width))?,
        context_max: count(file, "n_positions", config.optional_usize("n_positions")?.unwrap_or(1024))?,
        norm: Norm::Layer { epsilon },
        positions: Positions::Learned,
        feed_forward: FeedForward::Plain(activation_of(config)?),
        attention_scale: if scaled { 1.0 / ((width / heads) as f32).sqrt() } else { 1.0 },
        tied_head: config.optional_bool("tie_word_embeddings")?.unwrap_or(true),
    })
}

/// The activation that `activation_function` names.
fn activation_of(config: &JsonConfig) -> Result<Activation, ModelError> {
    Ok(match config.optional_str("activation_function")?.unwrap_or("gelu_new") {
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::GeluErf,
        "relu" => Activation::Relu,
        other => {
            let expected = "one of gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, relu";
            return Err(config.refuse("activation_function", expected, format!("{other:?}")));
        }
    })
}

/// The only activation that GGUF's gpt2 has.
const OF_GGUF: Activation = Activation::GeluTanh;

const EPSILON: &str = "gpt2.attention.layer_norm_epsilon";

pub(super) fn spec_of_gguf(metadata: &Metadata, weights: &Weights) -> Result<Spec, ModelError> {
    let file = metadata.source();
    let field = |name: &str| count(file, name, metadata.usize(name)?);
    let (width, heads) = (field("gpt2.embedding_length")?, field("gpt2.attention.head_count")?);
    if !width.is_multiple_of(heads) {
        let expected = format!("a multiple of gpt2.attention.head_count = {heads}");
        return Err(ModelError::config(file, "gpt2.embedding_length", expected, width));
    }
    Ok(Spec {
        family: ARCHITECTURE,
        vocabulary: gguf_vocabulary(metadata, weights)?,
        width,
        layers: field("gpt2.block_count")?,
        heads,
        kv_heads: heads,
        head_dim: width / heads,
        ffn_width: field("gpt2.feed_forward_length")?,
        context_max: field("gpt2.context_length")?,
        norm: Norm::Layer { epsilon: check_epsilon(file, EPSILON, metadata.f32(EPSILON)?)? },
        positions: Positions::Learned,
        feed_forward: FeedForward::Plain(OF_GGUF),
        attention_scale: 1.0 / ((width / heads) as f32).sqrt(),
        tied_head: weights.get("output.weight").is_none(),
    })
}

pub(super) fn read(spec: Spec, tensors: Tensors<'_>, config: &Config) -> Result<Network<Unpacked>, ModelError> {
    let Spec { vocabulary, width, ffn_width, context_max, .. } = spec;
    let (gguf, activation) = match config {
        Config::Json(config) => (false, activation_of(config)?),
        Config::Gguf(_) => (true, OF_GGUF),
    };
    let prefix = if tensors.has("transformer.wte.weight") { "transformer." } else { "" };
    let name = |hugging: &str, ggml: &str| if gguf { ggml.to_string() } else { format!("{prefix}{hugging}") };
    let linear = |name: &str, inputs: usize, outputs: usize| {
        if gguf {
            tensors.linear(name, inputs, outputs, Bias::Required)
        } else {
            tensors.transposed(name, inputs, outputs, Bias::Required)
        }
    };
    let mut layers = Vec::new();
    for i in 0..spec.layers {
        let at = name(&format!("h.{i}"), &format!("blk.{i}"));
        let part = |hugging: &str, ggml: &str| format!("{at}.{}", if gguf { ggml } else { hugging });
        let fused = linear(&part("attn.c_attn", "attn_qkv"), width, 3 * width)?;
        layers.push(Layer {
            attention_norm: tensors.norm(&part("ln_1", "attn_norm"), width, true)?,
            query: fused.outputs(0..width),
            key: fused.outputs(width..2 * width),
            value: fused.outputs(2 * width..3 * width),
            attention_output: linear(&part("attn.c_proj", "attn_output"), width, width)?,
            ffn_norm: tensors.norm(&part("ln_2", "ffn_norm"), width, true)?,
            inner: Inner::Plain { activation, up: linear(&part("mlp.c_fc", "ffn_up"), width, ffn_width)? },
            down: linear(&part("mlp.c_proj", "ffn_down"), ffn_width, width)?,
        });
    }
    let head = if gguf { "output" } else { "lm_head" };
    let in_file = name("wte", "token_embd");
    let embedding = tensors.table(&in_file, width, vocabulary)?;
    Ok(Network {
        positions: Some(tensors.table(&name("wpe", "position_embd"), width, context_max)?),
        layers,
        output_norm: tensors.norm(&name("ln_f", "output_norm"), width, true)?,
        head: tensors.head(head, &in_file, &spec)?,
        embedding,
        spec,
    })
}

/// The checkpoint in GGUF's words. Its matrices are transposed.
pub(super) fn export(config: &JsonConfig, spec: &Spec, all: &mut Collected<'_>) -> Result<Keys, ModelError> {
    if activation_of(config)? != OF_GGUF {
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
    all.head("lm_head", spec)?;
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
