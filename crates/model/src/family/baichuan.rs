//! Baichuan 1 and 2: Llama with fused queries, keys and values. The 7B rotates; the 13B, whose configuration says
//! `model_max_length` instead of `max_position_embeddings`, has ALiBi. The rows of Baichuan 2's head are brought to
//! length 1; its vocabulary of 125 696 tells it from Baichuan 1.

use foretoken_kernels::rope::Pairing;

use super::alibi::slopes;
use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, HUGGING, Layout, Qkv};
use super::write::Writing;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Positions};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("baichuan", of_json)), Some(("baichuan", of_gguf))).written("baichuan", keys)];

/// Tokens of Baichuan 2.
const VOCABULARY_2: usize = 125_696;

fn of_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let rotates = config.has("max_position_embeddings");
    let context = if rotates { "max_position_embeddings" } else { "model_max_length" };
    let mut spec = json::spec(config, "baichuan", &json::Fields { context, context_default: 4096, ..json::HUGGING })?;
    if rotates {
        rope::HALVES.set(config, &mut spec)?;
    } else {
        spec.positions = Positions::Alibi(slopes(spec.heads));
    }
    let unit_head = spec.vocabulary == VOCABULARY_2;
    Ok(Plan { spec, layout: Layout { qkv: Qkv::Fused("self_attn.W_pack", Fusion::Stacked), unit_head, ..HUGGING } })
}

/// llama.cpp tells the 13B by its 40 layers; a head's rows are as the converter left them.
fn of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("baichuan", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    match spec.layers {
        40 => spec.positions = Positions::Alibi(slopes(spec.heads)),
        _ => gguf.rotate(&mut spec, Pairing::Neighbours)?,
    }
    Ok(Plan { spec, layout: GGUF })
}

/// The rows of Baichuan 2's head are written with the length 1, since no program brings them to it.
fn keys(file: &mut Writing<'_>) -> Result<(), ModelError> {
    file.require_tied(false)?;
    file.say("tensor_data_layout", "Meta AI original pth");
    Ok(())
}
