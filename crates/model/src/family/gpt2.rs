//! GPT-2: LayerNorm with biases, learned positions, one fused projection for q, k and v, GELU, a tied output head.
//!
//! Hugging Face stores the matrices `[inputs, outputs]`, under names with or without `transformer.`; GGUF stores them
//! `[outputs, inputs]`. The fused projection is split here, so the decoder sees three matrices.

use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, GGUF_QKV, HUGGING_FACE, Layout, Qkv, Up};
use super::tensors::Bias;
use super::write::no_further_keys;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some((NAME, from_json)), Some((NAME, from_gguf))).exported_as(NAME, no_further_keys)];

const NAME: &str = "gpt2";

/// The fields of GPT-2 and related families.
pub(super) const FIELDS: json::Fields = json::Fields {
    width: "n_embd",
    layers: "n_layer",
    heads: "n_head",
    ffn_width: "n_inner",
    ffn_factor: Some(4),
    context: "n_positions",
    context_default: 1024,
    epsilon: "layer_norm_epsilon",
    epsilon_default: 1e-5,
    norm: json::layer,
    activation: "activation_function",
    activation_default: "gelu_new",
    gated: false,
    tied: true,
    ..json::HUGGING_FACE
};

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    json::refuse_true(config, &["scale_attn_by_inverse_layer_idx", "add_cross_attention"])?;
    let mut spec = json::spec(config, NAME, &FIELDS)?;
    if !config.optional_bool("scale_attn_weights")?.unwrap_or(true) {
        spec.attention_scale = 1.0;
    }
    Ok(Plan { spec, layout: LAYOUT })
}

/// The layout, in which matrices are stored `[inputs, outputs]`.
pub(super) const LAYOUT: Layout = Layout {
    prefixes: &["transformer."],
    embedding: "wte",
    positions: Some(("wpe", 0)),
    layers: "h",
    attention_norm: Some("ln_1"),
    qkv: Qkv::Fused("attn.c_attn", Fusion::Stacked),
    attention_output: "attn.c_proj",
    ffn_norm: Some("ln_2"),
    up: Up::Plain("mlp.c_fc"),
    down: "mlp.c_proj",
    output_norm: Some("ln_f"),
    transposed: true,
    ..HUGGING_FACE.with_bias(Bias::Required)
};

/// The only activation that GGUF's gpt2 has.
const GGUF_FEED_FORWARD: FeedForward = FeedForward::Plain(Activation::GeluTanh);

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let spec = gguf.spec(NAME, NormKind::Layer, GGUF_FEED_FORWARD)?;
    Ok(Plan { spec, layout: LAYOUT_OF_GGUF })
}

pub(super) const LAYOUT_OF_GGUF: Layout = Layout {
    positions: Some(("position_embd", 0)),
    qkv: GGUF_QKV,
    up: Up::Plain("ffn_up"),
    ..GGUF.with_bias(Bias::Required)
};
