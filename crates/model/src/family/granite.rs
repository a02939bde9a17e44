//! Granite: Llama with four multipliers, of the embedding, of scores, of what the halves add, and of logits.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING, Layout};
use super::write::Writing;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("granite", of_json)), Some(("granite", of_gguf))).written("granite", keys)];

fn of_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let mut spec = json::spec(config, "granite", &json::HUGGING)?;
    rope::HALVES.set(config, &mut spec)?;
    let number = |field: &str| json::positive(config, field, 1.0);
    spec.embedding_multiplier = number("embedding_multiplier")?;
    spec.residual_multiplier = number("residual_multiplier")?;
    spec.attention_scale = number("attention_multiplier")?;
    spec.logit_multiplier = 1.0 / number("logits_scaling")?;
    let attention = json::bias(config, "attention_bias", false)?;
    let ffn_bias = json::bias(config, "mlp_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: attention, output_bias: attention, ffn_bias, ..HUGGING } })
}

fn of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("granite", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Neighbours)?;
    let number = |field: &str| Ok::<_, ModelError>(gguf.optional_f32(&spec, field)?.filter(|found| *found > 0.0));
    let (embedding, residual) = (number("embedding_scale")?, number("residual_scale")?);
    let (attention, logits) = (number("attention.scale")?, number("logit_scale")?);
    spec.embedding_multiplier = embedding.unwrap_or(1.0);
    spec.residual_multiplier = residual.unwrap_or(1.0);
    spec.attention_scale = attention.unwrap_or(spec.attention_scale);
    spec.logit_multiplier = 1.0 / logits.unwrap_or(1.0);
    Ok(Plan { spec, layout: GGUF })
}

fn keys(file: &mut Writing<'_>) -> Result<(), ModelError> {
    file.divisors();
    file.say("attention.scale", file.spec.attention_scale);
    file.say("embedding_scale", file.spec.embedding_multiplier);
    file.say("residual_scale", file.spec.residual_multiplier);
    // Both divide by it.
    file.say("logit_scale", json::positive(file.config, "logits_scaling", 1.0)?);
    Ok(())
}
