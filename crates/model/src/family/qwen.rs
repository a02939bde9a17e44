//! Qwen 2, 2.5 and 3: Llama with biases of q, k and v (2 and 2.5) or norms of the heads of q and k (3), and both with
//! experts, in all layers or in some; Qwen 2 also has a shared expert.
//!
//! The configurations have a window, which is off by default: `use_sliding_window` turns it on for the layers from
//! `max_window_layers` on.

use foretoken_kernels::rope::Pairing;

use super::checks::count;
use super::experts;
use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING_FACE, Layout, QkNormNames};
use super::tensors::Bias;
use super::write::{GgufDescription, limit_context_to_window};
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, Experts, FeedForward, LayerAttention, Router, SharedExpert, Spec};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("qwen2", qwen2)), Some(("qwen2", qwen2_from_gguf))).exported_as("qwen2", limit_context_to_window),
    Family::new(Some(("qwen3", qwen3)), Some(("qwen3", qwen3_from_gguf))).exported_as("qwen3", qwen3_keys),
    Family::new(Some(("qwen2_moe", qwen2_moe)), Some(("qwen2moe", qwen2_moe_from_gguf)))
        .exported_as("qwen2moe", qwen2_moe_keys),
    Family::new(Some(("qwen3_moe", qwen3_moe)), Some(("qwen3moe", qwen3_moe_from_gguf)))
        .exported_as("qwen3moe", qwen3_moe_keys),
];

/// The names of the norms of the heads of queries and keys.
const HEAD_NORMS: QkNormNames = QkNormNames::SharedByHeads(["self_attn.q_norm", "self_attn.k_norm"]);
const HEAD_NORMS_OF_GGUF: QkNormNames = QkNormNames::SharedByHeads(["attn_q_norm", "attn_k_norm"]);

fn qwen2(config: &JsonConfig) -> Result<Plan, ModelError> {
    let spec = spec(config, "qwen2", json::HUGGING_FACE)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: Bias::Required, ..HUGGING_FACE } })
}

fn qwen3(config: &JsonConfig) -> Result<Plan, ModelError> {
    let spec = spec(config, "qwen3", json::Fields { head_dim_default: Some(128), ..json::HUGGING_FACE })?;
    let bias = json::bias(config, "attention_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: bias, output_bias: bias, qk_norms: HEAD_NORMS, ..HUGGING_FACE } })
}

fn qwen2_moe(config: &JsonConfig) -> Result<Plan, ModelError> {
    let mut spec = spec(config, "qwen2_moe", json::HUGGING_FACE)?;
    let fields =
        experts::Fields { count_default: 60, chosen_default: 4, ffn_width_default: 1408, ..experts::HUGGING_FACE };
    let shared = config.optional_usize("shared_expert_intermediate_size")?.unwrap_or(5632);
    let ffn_width = count(config.file(), "shared_expert_intermediate_size", shared)?;
    spec.experts = Some(Experts {
        shared: Some(SharedExpert { ffn_width, gated: true }),
        layers: experts::sparse_layers(config, spec.layers)?,
        ..experts::from_json(config, &fields)?
    });
    Ok(Plan { spec, layout: Layout { qkv_bias: json::bias(config, "qkv_bias", true)?, ..HUGGING_FACE } })
}

fn qwen3_moe(config: &JsonConfig) -> Result<Plan, ModelError> {
    let mut spec = spec(config, "qwen3_moe", json::HUGGING_FACE)?;
    let layers = experts::sparse_layers(config, spec.layers)?;
    spec.experts = Some(Experts { layers, ..experts::from_json(config, &experts::HUGGING_FACE)? });
    let bias = json::bias(config, "attention_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: bias, output_bias: bias, qk_norms: HEAD_NORMS, ..HUGGING_FACE } })
}

fn spec(config: &JsonConfig, name: &'static str, fields: json::Fields) -> Result<Spec, ModelError> {
    let mut spec = json::spec(config, name, &json::Fields { context_default: 32_768, ..fields })?;
    rope::HALVES.set(config, &mut spec)?;
    let full = spec.attention[0];
    let on = config.optional_bool("use_sliding_window")?.unwrap_or(false);
    let window = if on { json::window(config, "sliding_window")? } else { None };
    let sliding = LayerAttention { window, ..full };
    let first = config.optional_usize("max_window_layers")?.unwrap_or(28);
    let default = if window.is_some() && first < spec.layers {
        json::check_listed(config, "num_hidden_layers", spec.layers)?;
        (0..spec.layers).map(|layer| if layer < first { full } else { sliding }).collect()
    } else {
        vec![full]
    };
    spec.attention = json::windows(config, spec.layers, [full, sliding], default)?;
    Ok(spec)
}

fn qwen2_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("qwen2", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    Ok(Plan { spec, layout: GGUF })
}

fn qwen3_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("qwen3", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    Ok(Plan { spec, layout: Layout { qk_norms: HEAD_NORMS_OF_GGUF, ..GGUF } })
}

fn qwen2_moe_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("qwen2moe", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    spec.experts = Some(gguf.experts(&spec, Router::SOFTMAX)?);
    Ok(Plan { spec, layout: GGUF })
}

fn qwen3_moe_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("qwen3moe", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    spec.experts = Some(gguf.experts(&spec, Router::SOFTMAX_OF_CHOSEN)?);
    Ok(Plan { spec, layout: Layout { qk_norms: HEAD_NORMS_OF_GGUF, ..GGUF } })
}

fn qwen2_moe_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_experts_everywhere()?;
    file.require_tied(false)?;
    file.add_expert_width();
    file.limit_context_to_window();
    Ok(())
}

fn qwen3_moe_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_experts_everywhere()?;
    file.add_expert_width();
    qwen3_keys(file)
}

fn qwen3_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.limit_context_to_window();
    file.refuse_biases("attention_bias", &[file.layout.output_bias])
}
