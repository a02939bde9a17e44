//! Arcee (AFM): Llama with a feed-forward network without gate, activated by squared ReLU.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING_FACE, Layout, Up};
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Scaling};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("arcee", from_json)), Some(("arcee", from_gguf))).exported_as("arcee", keys)];

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        context_default: 4096,
        epsilon_default: 1e-5,
        activation_default: "relu2",
        gated: false,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "arcee", &fields)?;
    rope::HALVES.set(config, &mut spec)?;
    let attention = json::bias(config, "attention_bias", false)?;
    let ffn_bias = json::bias(config, "mlp_bias", false)?;
    let up = Up::Plain("mlp.up_proj");
    Ok(Plan { spec, layout: Layout { up, qkv_bias: attention, output_bias: attention, ffn_bias, ..HUGGING_FACE } })
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("arcee", NormKind::Rms, FeedForward::Plain(Activation::ReluSquared))?;
    gguf.rotate(&mut spec, Pairing::Interleaved)?;
    Ok(Plan { spec, layout: Layout { up: Up::Plain("ffn_up"), ..GGUF } })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    let by_length = |scaling: &Scaling| matches!(scaling, Scaling::LongRope { .. });
    // llama.cpp loads only one list of divisors here; LongRoPE, which has two, is refused because none of them is
    // added.
    if !file.spec.positions.rotations().iter().any(|rotation| by_length(&rotation.scaling)) {
        file.add_divisors();
    }
    file.refuse_biases("attention_bias", &[file.layout.output_bias])?;
    file.refuse_biases("mlp_bias", &[file.layout.ffn_bias])
}
