//! Falcon: parallel blocks with one LayerNorm (7B, 11B) or two (40B), or sequential ones with ALiBi (RW).
//!
//! ALiBi is computed in f32 here, and its slopes are not rounded; transformers rounds slopes, positions and their
//! products to bf16, in networks of any type, so that scores jump with the absolute position. Logits of Falcon-RW
//! differ for this reason (docs/families.md).

use foretoken_kernels::rope::Pairing;

use super::alibi::slopes;
use super::checks::{check_heads, count};
use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, GGUF_QKV, HUGGING_FACE, Layout, Qkv, Up};
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Positions, Residual};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("falcon", from_json)), Some(("falcon", from_gguf))).exported_as("falcon", keys)];

const FIELDS: json::Fields = json::Fields {
    // The number of key-value heads is read below, since it depends on the variant.
    kv_heads: "num_key_value_heads",
    ffn_width: "ffn_hidden_size",
    ffn_factor: Some(4),
    epsilon: "layer_norm_epsilon",
    epsilon_default: 1e-5,
    norm: json::layer,
    activation: "activation",
    activation_default: "gelu",
    gated: false,
    tied: true,
    ..json::HUGGING_FACE
};

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let flag = |field: &str, default: bool| Ok::<_, ModelError>(config.optional_bool(field)?.unwrap_or(default));
    let (grouped, one) = (flag("new_decoder_architecture", false)?, flag("multi_query", true)?);
    let (parallel, alibi) = (flag("parallel_attn", true)?, flag("alibi", false)?);
    if grouped && !parallel {
        return Err(config.refuse("parallel_attn", "true (with new_decoder_architecture)", false));
    }
    let mut spec = json::spec(config, "falcon", &FIELDS)?;
    let (kv_heads, fusion) = match (grouped, one) {
        (true, _) => (config.optional_usize("num_kv_heads")?.unwrap_or(spec.heads), Fusion::ByGroup),
        (false, true) => (1, Fusion::Stacked),
        (false, false) => (spec.heads, Fusion::ByGroup),
    };
    spec.kv_heads = count(config.file(), "num_kv_heads", kv_heads)?;
    check_heads(config.file(), ["num_attention_heads", "num_kv_heads"], spec.heads, spec.kv_heads)?;
    if alibi {
        // transformers scales the sum of score and slope.
        let scaled = slopes(spec.heads).into_iter().map(|slope| slope * spec.attention_scale);
        spec.positions = Positions::Alibi(scaled.collect());
    } else {
        rope::HALVES.set(config, &mut spec)?;
    }
    if parallel {
        spec.residual = Residual::Parallel;
    }
    let norms = config.optional_usize("num_ln_in_parallel_attn")?.unwrap_or(2);
    let (attention_norm, ffn_norm) = match (parallel, grouped) {
        (false, _) => ("input_layernorm", Some("post_attention_layernorm")),
        (true, true) if norms == 2 => ("ln_attn", Some("ln_mlp")),
        (true, _) => ("input_layernorm", None),
    };
    let bias = json::bias(config, "bias", false)?;
    let layout = Layout {
        prefixes: &["transformer."],
        embedding: "word_embeddings",
        layers: "h",
        attention_norm: Some(attention_norm),
        qkv: Qkv::Fused("self_attention.query_key_value", fusion),
        attention_output: "self_attention.dense",
        ffn_norm,
        up: Up::Plain("mlp.dense_h_to_4h"),
        down: "mlp.dense_4h_to_h",
        output_norm: Some("ln_f"),
        ..HUGGING_FACE.with_bias(bias)
    };
    Ok(Plan { spec, layout })
}

/// A tensor that files of blocks with two norms have.
const SECOND_NORM: &str = "blk.0.attn_norm_2.weight";

/// Blocks are always parallel, with rotary positions. If there are two norms, `attn_norm` is that of the feed-forward
/// network. llama.cpp computes GELU by tanh.
fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("falcon", NormKind::Layer, FeedForward::Plain(Activation::GeluTanh))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    spec.residual = Residual::Parallel;
    let (attention_norm, ffn_norm) = match gguf.has(SECOND_NORM) {
        true => (Some("attn_norm_2"), Some("attn_norm")),
        false => (Some("attn_norm"), None),
    };
    let up = Up::Plain("ffn_up");
    Ok(Plan { spec, layout: Layout { attention_norm, ffn_norm, qkv: GGUF_QKV, up, norm_bias: true, ..GGUF } })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.refuse_biases("bias", &[file.layout.qkv_bias])?;
    file.use_tanh_gelu();
    // Queries, keys and values are stored one after another.
    file.add_key("tensor_data_layout", "jploski");
    if file.layout.ffn_norm.is_some() {
        file.add_marker_tensor(SECOND_NORM);
    }
    Ok(())
}
