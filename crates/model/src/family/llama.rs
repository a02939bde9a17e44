//! Llama: RMSNorm, rotary positions, grouped heads, SiLU-gated feed-forward, a head of its own or tied.
//!
//! Two spellings: Hugging Face names (with or without the `model.` prefix) whose rotary pairs are halves of a
//! head, and GGUF names whose q and k rows were permuted so that pairs are neighbours. Biases are
//! there if the configuration says so. Yi and the dense models of DeepSeek are this family in all but their tokenizers,
//! and say so in their configurations.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING, Layout};
use super::write::Writing;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Router};

pub(super) const FAMILIES: &[Family] = &[Family::new(Some((NAME, of_json)), Some((NAME, of_gguf))).written(NAME, keys)];

const NAME: &str = "llama";

fn of_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let mut spec = json::spec(config, NAME, &json::HUGGING)?;
    rope::HALVES.set(config, &mut spec)?;
    let attention = json::bias(config, "attention_bias", false)?;
    let ffn_bias = json::bias(config, "mlp_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: attention, output_bias: attention, ffn_bias, ..HUGGING } })
}

fn of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec(NAME, NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Neighbours)?;
    // Mixtral's files are of this architecture, too.
    if gguf.optional_count(&spec, "expert_count")?.is_some() {
        spec.experts = Some(gguf.experts(&spec, Router::SOFTMAX_OF_CHOSEN)?);
    }
    Ok(Plan { spec, layout: GGUF })
}

/// Rows of q and k are interleaved, head by head, because GGUF rotates neighbours where transformers rotates halves.
pub(super) fn keys(file: &mut Writing<'_>) -> Result<(), ModelError> {
    file.divisors();
    Ok(())
}
