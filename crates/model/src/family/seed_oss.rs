//! Seed-OSS: Llama with biases of q, k and v, and a head width that is independent of the network's width.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING_FACE, Layout};
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("seed_oss", from_json)), Some(("seed_oss", from_gguf))).exported_as("seed_oss", keys)];

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        kv_heads_default: Some(8),
        head_dim_default: Some(128),
        context_default: 524_288,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "seed_oss", &fields)?;
    rope::HALVES.set(config, &mut spec)?;
    let qkv_bias = json::bias(config, "attention_bias", true)?;
    let output_bias = json::bias(config, "attention_out_bias", false)?;
    let ffn_bias = json::bias(config, "mlp_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias, output_bias, ffn_bias, ..HUGGING_FACE } })
}

/// The plan of a GGUF file, in which the norm before the feed-forward network has the name of a norm after attention.
fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("seed_oss", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    Ok(Plan { spec, layout: Layout { ffn_norm: Some("post_attention_norm"), ..GGUF } })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.refuse_biases("attention_out_bias", &[file.layout.output_bias])?;
    file.refuse_biases("mlp_bias", &[file.layout.ffn_bias])
}
