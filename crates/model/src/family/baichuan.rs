//! Baichuan 1 and 2: Llama with fused queries, keys and values. The 7B has rotary positions; the 13B, whose
//! configuration has `model_max_length` instead of `max_position_embeddings`, has ALiBi. The rows of Baichuan 2's
//! output head are normalized to length 1; it is recognized by its vocabulary of 125 696 tokens.

use foretoken_kernels::rope::Pairing;

use super::alibi::slopes;
use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, HUGGING_FACE, Layout, Qkv};
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Positions};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("baichuan", from_json)), Some(("baichuan", from_gguf))).exported_as("baichuan", keys)];

/// Number of tokens of Baichuan 2.
const VOCABULARY_2: usize = 125_696;

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let rotates = config.has("max_position_embeddings");
    let context = if rotates { "max_position_embeddings" } else { "model_max_length" };
    let mut spec =
        json::spec(config, "baichuan", &json::Fields { context, context_default: 4096, ..json::HUGGING_FACE })?;
    if rotates {
        rope::HALVES.set(config, &mut spec)?;
    } else {
        spec.positions = Positions::Alibi(slopes(spec.heads));
    }
    let unit_head = spec.vocabulary == VOCABULARY_2;
    Ok(Plan {
        spec,
        layout: Layout { qkv: Qkv::Fused("self_attn.W_pack", Fusion::Stacked), unit_head, ..HUGGING_FACE },
    })
}

/// The 13B is recognized by its 40 layers, as in llama.cpp; the rows of the output head are as the converter wrote
/// them.
fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("baichuan", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    match spec.layers {
        40 => spec.positions = Positions::Alibi(slopes(spec.heads)),
        _ => gguf.rotate(&mut spec, Pairing::Interleaved)?,
    }
    Ok(Plan { spec, layout: GGUF })
}

/// The rows of Baichuan 2's output head are written normalized, since programs that read the file do not normalize
/// them.
fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(false)?;
    file.add_key("tensor_data_layout", "Meta AI original pth");
    Ok(())
}
