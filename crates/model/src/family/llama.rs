//! Llama: RMSNorm, rotary positions, grouped-query attention, SiLU-gated feed-forward, a separate or tied output head.
//!
//! There are two formats: Hugging Face names (with or without the `model.` prefix) with rotary pairs that are halves of
//! a head, and GGUF names with q and k rows that were permuted so that pairs are interleaved. The configuration decides
//! whether there are biases. Yi and the dense models of DeepSeek are this family except for their tokenizers, and their
//! configurations name it.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING_FACE, Layout};
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Router};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some((NAME, from_json)), Some((NAME, from_gguf))).exported_as(NAME, keys)];

const NAME: &str = "llama";

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let mut spec = json::spec(config, NAME, &json::HUGGING_FACE)?;
    rope::HALVES.set(config, &mut spec)?;
    let attention = json::bias(config, "attention_bias", false)?;
    let ffn_bias = json::bias(config, "mlp_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: attention, output_bias: attention, ffn_bias, ..HUGGING_FACE } })
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec(NAME, NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Interleaved)?;
    // Files of Mixtral have this architecture, too.
    if gguf.optional_count(&spec, "expert_count")?.is_some() {
        spec.experts = Some(gguf.experts(&spec, Router::SOFTMAX_OF_CHOSEN)?);
    }
    Ok(Plan { spec, layout: GGUF })
}

/// The keys of the file. Rows of q and k are interleaved, head by head, because GGUF rotates interleaved pairs and
/// transformers rotates halves.
pub(super) fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.add_divisors();
    Ok(())
}
