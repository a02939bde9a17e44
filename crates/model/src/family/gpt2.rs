//! GPT-2: LayerNorm with biases, learned positions, one fused projection for q, k and v, GELU, a tied head.
//!
//! Hugging Face stores its matrices `[inputs, outputs]` and its names come with and without `transformer.`;
//! GGUF stores them the usual way round. The fused projection is taken apart here, so the decoder sees three.

use foretoken_weights::{Weights, gguf::Metadata};

use super::{Bias, Layer, Parts, Progress, Tensors, check_epsilon, count};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Norm, Positions, Spec};

pub(super) fn spec_of_json(config: &JsonConfig) -> Result<Spec, ModelError> {
    let file = config.file();
    let field = |name: &str| count(file, name, config.usize(name)?);
    let (width, heads) = (field("n_embd")?, field("n_head")?);
    if !width.is_multiple_of(heads) {
        return Err(config.refuse("n_embd", format!("a multiple of n_head = {heads}"), width));
    }
    let activation = match config.optional_str("activation_function")?.unwrap_or("gelu_new") {
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
        "gelu" => Activation::GeluErf,
        "relu" => Activation::Relu,
        other => {
            let expected = "one of gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, relu";
            return Err(config.refuse("activation_function", expected, format!("{other:?}")));
        }
    };
    for unsupported in ["scale_attn_by_inverse_layer_idx", "add_cross_attention"] {
        if config.optional_bool(unsupported)?.unwrap_or(false) {
            return Err(config.refuse(unsupported, "false", "true"));
        }
    }
    let scaled = config.optional_bool("scale_attn_weights")?.unwrap_or(true);
    let epsilon = config.optional_f32("layer_norm_epsilon")?.unwrap_or(1e-5);
    let epsilon = check_epsilon(file, "layer_norm_epsilon", epsilon)?;
    Ok(Spec {
        family: "gpt2",
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
        feed_forward: FeedForward::Plain(activation),
        attention_scale: if scaled { 1.0 / ((width / heads) as f32).sqrt() } else { 1.0 },
        tied_head: config.optional_bool("tie_word_embeddings")?.unwrap_or(true),
    })
}

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
        family: "gpt2",
        vocabulary: super::gguf_vocabulary(metadata, weights)?,
        width,
        layers: field("gpt2.block_count")?,
        heads,
        kv_heads: heads,
        head_dim: width / heads,
        ffn_width: field("gpt2.feed_forward_length")?,
        context_max: field("gpt2.context_length")?,
        norm: Norm::Layer { epsilon: check_epsilon(file, EPSILON, metadata.f32(EPSILON)?)? },
        positions: Positions::Learned,
        feed_forward: FeedForward::Plain(Activation::GeluTanh),
        attention_scale: 1.0 / ((width / heads) as f32).sqrt(),
        tied_head: weights.get("output.weight").is_none(),
    })
}

pub(super) fn load(spec: Spec, tensors: Tensors<'_>, gguf: bool, progress: Progress<'_>) -> Result<Parts, ModelError> {
    let Spec { vocabulary, width, ffn_width, context_max, .. } = spec;
    let prefix = if tensors.has("transformer.wte.weight") { "transformer." } else { "" };
    let name = |hugging: &str, ggml: &str| if gguf { ggml.to_string() } else { format!("{prefix}{hugging}") };
    let linear = |name: &str, inputs: usize, outputs: usize| {
        if gguf {
            tensors.unpacked(name, inputs, outputs, Bias::Required)
        } else {
            tensors.transposed(name, inputs, outputs, Bias::Required)
        }
    };
    let packed =
        |name: &str, inputs: usize, outputs: usize| Ok::<_, ModelError>(tensors.pack(linear(name, inputs, outputs)?));
    let mut layers = Vec::new();
    for i in 0..spec.layers {
        let at = name(&format!("h.{i}"), &format!("blk.{i}"));
        let part = |hugging: &str, ggml: &str| format!("{at}.{}", if gguf { ggml } else { hugging });
        let fused = linear(&part("attn.c_attn", "attn_qkv"), width, 3 * width)?;
        layers.push(Layer {
            attention_norm: tensors.norm(&part("ln_1", "attn_norm"), width, true)?,
            query: tensors.pack(fused.outputs(0..width)),
            key: tensors.pack(fused.outputs(width..2 * width)),
            value: tensors.pack(fused.outputs(2 * width..3 * width)),
            attention_output: packed(&part("attn.c_proj", "attn_output"), width, width)?,
            ffn_norm: tensors.norm(&part("ln_2", "ffn_norm"), width, true)?,
            gate: None,
            up: packed(&part("mlp.c_fc", "ffn_up"), width, ffn_width)?,
            down: packed(&part("mlp.c_proj", "ffn_down"), ffn_width, width)?,
        });
        progress(i + 1, spec.layers);
    }
    let head = if gguf { "output" } else { "lm_head" };
    let embedding = tensors.table(&name("wte", "token_embd"), width, vocabulary)?;
    Ok(Parts {
        positions: Some(tensors.table(&name("wpe", "position_embd"), width, context_max)?),
        layers,
        output_norm: tensors.norm(&name("ln_f", "output_norm"), width, true)?,
        head: tensors.head((!spec.tied_head).then_some(head), &embedding, &spec)?,
        embedding,
        spec,
    })
}
