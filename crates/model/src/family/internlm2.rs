//! InternLM 2: Llama with tensor names of its own, and queries, keys and values fused group by group.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, HUGGING_FACE, Layout, Qkv, Up};
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("internlm2", from_json)), Some(("internlm2", from_gguf))).exported_as("internlm2", keys)];

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let mut spec = json::spec(config, "internlm2", &json::HUGGING_FACE)?;
    rope::HALVES.set(config, &mut spec)?;
    let bias = json::bias(config, "bias", false)?;
    let layout = Layout {
        embedding: "tok_embeddings",
        attention_norm: Some("attention_norm"),
        qkv: Qkv::Fused("attention.wqkv", Fusion::ByGroup),
        attention_output: "attention.wo",
        ffn_norm: Some("ffn_norm"),
        up: Up::Gated(["feed_forward.w1", "feed_forward.w3"]),
        down: "feed_forward.w2",
        heads: &["output", "lm_head"],
        qkv_bias: bias,
        output_bias: bias,
        ..HUGGING_FACE
    };
    Ok(Plan { spec, layout })
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("internlm2", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Interleaved)?;
    Ok(Plan { spec, layout: GGUF })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(false)?;
    file.refuse_biases("bias", &[file.layout.output_bias])
}
