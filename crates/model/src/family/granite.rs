//! Granite: Llama with four multipliers: of the embedding, of scores, of the sublayers' outputs, and of logits. Some
//! models (`granitemoe`) have experts in all layers, with gate and up of all experts in one tensor, and perhaps a
//! shared expert.

use foretoken_kernels::rope::Pairing;

use super::checks::count;
use super::experts::{self, Normalized};
use super::gguf::{Gguf, NormKind};
use super::layout::{EACH, ExpertNames, ExpertStorage, GGUF, HUGGING_FACE, Layout, Up};
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, Experts, FeedForward, Router, SharedExpert, Spec};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("granite", granite)), Some(("granite", granite_from_gguf))).exported_as("granite", keys),
    Family::new(Some(("granitemoe", granite_moe)), Some(("granitemoe", granite_moe_from_gguf))),
    Family::new(Some(("granitemoeshared", granite_moe_shared)), None),
];

fn spec(config: &JsonConfig, family: &'static str) -> Result<Spec, ModelError> {
    let mut spec = json::spec(config, family, &json::HUGGING_FACE)?;
    rope::HALVES.set(config, &mut spec)?;
    let number = |field: &str| json::positive(config, field, 1.0);
    spec.embedding_multiplier = number("embedding_multiplier")?;
    spec.residual_multiplier = number("residual_multiplier")?;
    spec.attention_scale = number("attention_multiplier")?;
    spec.logit_multiplier = 1.0 / number("logits_scaling")?;
    Ok(spec)
}

fn granite(config: &JsonConfig) -> Result<Plan, ModelError> {
    let attention = json::bias(config, "attention_bias", false)?;
    let ffn_bias = json::bias(config, "mlp_bias", false)?;
    let layout = Layout { qkv_bias: attention, output_bias: attention, ffn_bias, ..HUGGING_FACE };
    Ok(Plan { spec: spec(config, "granite")?, layout })
}

fn granite_moe(config: &JsonConfig) -> Result<Plan, ModelError> {
    let mut spec = spec(config, "granitemoe")?;
    spec.experts = Some(experts::from_json(config, &EXPERTS)?);
    let bias = json::bias(config, "attention_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: bias, output_bias: bias, experts: NAMES, ..HUGGING_FACE } })
}

fn granite_moe_shared(config: &JsonConfig) -> Result<Plan, ModelError> {
    let Plan { spec, layout } = granite_moe(config)?;
    const SHARED: &str = "shared_intermediate_size";
    let shared = match config.optional_usize(SHARED)?.unwrap_or(0) {
        0 => None,
        width => Some(SharedExpert { ffn_width: count(config.file(), SHARED, width)?, gated: false }),
    };
    let experts = spec.experts.map(|experts| Experts { shared, ..experts });
    Ok(Plan { spec: Spec { experts, ..spec }, layout })
}

const EXPERTS: experts::Fields = experts::Fields {
    count: &["num_local_experts"],
    count_default: 8,
    chosen_default: 2,
    ffn_width: "intermediate_size",
    normalized: Normalized::Always,
    ..experts::HUGGING_FACE
};

const PUBLISHED: ExpertNames = ExpertNames {
    router: "block_sparse_moe.router.layer",
    storage: ExpertStorage::Fused(["block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"]),
    shared: (Up::Fused("shared_mlp.input_linear"), "shared_mlp.output_linear"),
    ..EACH
};

/// The names of published checkpoints, and those of transformers 5 in memory.
const NAMES: &[ExpertNames] = &[
    PUBLISHED,
    ExpertNames {
        router: "block_sparse_moe.router",
        storage: ExpertStorage::Fused(["block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"]),
        ..PUBLISHED
    },
];

fn from_gguf(gguf: Gguf<'_>, family: &'static str) -> Result<Spec, ModelError> {
    let mut spec = gguf.spec(family, NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Interleaved)?;
    let number = |field: &str| Ok::<_, ModelError>(gguf.optional_f32(&spec, field)?.filter(|found| *found > 0.0));
    let (embedding, residual) = (number("embedding_scale")?, number("residual_scale")?);
    let (attention, logits) = (number("attention.scale")?, number("logit_scale")?);
    spec.embedding_multiplier = embedding.unwrap_or(1.0);
    spec.residual_multiplier = residual.unwrap_or(1.0);
    spec.attention_scale = attention.unwrap_or(spec.attention_scale);
    spec.logit_multiplier = 1.0 / logits.unwrap_or(1.0);
    Ok(spec)
}

fn granite_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    Ok(Plan { spec: from_gguf(gguf, "granite")?, layout: GGUF })
}

/// The plan of a GGUF file, with or without a shared expert; files of dense models may have this architecture, too.
fn granite_moe_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = from_gguf(gguf, "granitemoe")?;
    if gguf.optional_count(&spec, "expert_count")?.is_some() {
        spec.experts = Some(gguf.experts(&spec, Router::SOFTMAX_OF_CHOSEN)?);
    }
    Ok(Plan { spec, layout: GGUF })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.add_divisors();
    file.add_key("attention.scale", file.spec.attention_scale);
    file.add_key("embedding_scale", file.spec.embedding_multiplier);
    file.add_key("residual_scale", file.spec.residual_multiplier);
    // Both formats divide by it.
    file.add_key("logit_scale", json::positive(file.config, "logits_scaling", 1.0)?);
    Ok(())
}
