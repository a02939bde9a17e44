//! gpt-oss: experts in all layers, an attention sink for every head, and every second layer without a window.
//!
//! Experts, their router and the matrices of attention have biases. The activation is a SwiGLU with clamped gate and
//! up. In checkpoints of floats the experts of a layer are one tensor for each matrix, `[experts, inputs, outputs]`,
//! and gate and up are one tensor with alternating columns; published checkpoints have the same matrices as MXFP4
//! blocks, row by row (`mxfp4.rs`). GGUF files are read but not written.

use foretoken_kernels::rope::Pairing;

use super::experts::{self, Normalized};
use super::gguf::{Gguf, NormKind};
use super::json;
use super::layout::{EACH, ExpertNames, ExpertStorage, GGUF, HUGGING_FACE, Layout, STACKED};
use super::rope::{self, HALVES, Rope};
use super::tensors::Bias;
use super::{Family, Plan};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Positions, Router};

pub(super) const FAMILIES: &[Family] = &[Family::new(Some(("gpt_oss", gpt_oss)), Some(("gpt-oss", from_gguf)))];

const EXPERTS: experts::Fields = experts::Fields {
    count: &["num_local_experts", "num_experts"],
    chosen_default: 4,
    ffn_width: "intermediate_size",
    ffn_width_default: 2880,
    normalized: Normalized::Always,
    ..experts::HUGGING_FACE
};

const INTERLEAVED: &[ExpertNames] = &[ExpertNames {
    router: "mlp.router",
    storage: ExpertStorage::Interleaved(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    bias: Bias::Required,
    ..EACH
}];

const STACKED_WITH_BIASES: &[ExpertNames] = &[ExpertNames { bias: Bias::Required, ..STACKED }];

/// Slope and limit of the activation if the configuration has none (GGUF files have no keys for them).
const SLOPE: f32 = 1.702;
const LIMIT: f32 = 7.0;

fn gpt_oss(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        kv_heads_default: Some(8),
        head_dim_default: Some(64),
        context_default: 131_072,
        epsilon_default: 1e-5,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "gpt-oss", &fields)?;
    let Some(scaling) = rope::parameters(config)? else {
        let expected = "how positions are scaled (here or in rope_scaling)";
        return Err(config.refuse("rope_parameters", expected, "nothing"));
    };
    let rotation = Rope { theta: 150_000.0, ..HALVES }.rotation_of_config(config, Some(&scaling), &mut spec)?;
    spec.positions = Positions::Rope(vec![rotation]);
    let Some(window) = json::window_or(config, "sliding_window", 128)? else {
        return Err(config.refuse("sliding_window", "a number of positions", "null"));
    };
    spec.attention = json::windows(config, spec.layers, layers(window), every_second(window))?;
    let slope = json::positive(config, "swiglu_alpha", SLOPE)?;
    let limit = json::positive(config, "swiglu_limit", LIMIT)?;
    spec.feed_forward = FeedForward::Gated(Activation::ClampedSwiglu { slope, limit });
    spec.experts = Some(experts::from_json(config, &EXPERTS)?);
    let bias = json::bias(config, "attention_bias", true)?;
    let sinks = Some("self_attn.sinks");
    Ok(Plan { spec, layout: Layout { qkv_bias: bias, output_bias: bias, sinks, experts: INTERLEAVED, ..HUGGING_FACE } })
}

/// The layers without and with the window.
fn layers(window: usize) -> [LayerAttention; 2] {
    [LayerAttention::rotated(0, None), LayerAttention::rotated(0, Some(window))]
}

fn every_second(window: usize) -> Vec<LayerAttention> {
    let [full, sliding] = layers(window);
    vec![sliding, full]
}

/// The plan of a GGUF file. The file has the window, and a list of the layers with it only if these are not every
/// second layer. There is no key for whether the borders of YaRN's blended pairs are rounded to integers: they are
/// rounded, as in llama.cpp.
fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let activation = Activation::ClampedSwiglu { slope: SLOPE, limit: LIMIT };
    let mut spec = gguf.spec("gpt-oss", NormKind::Rms, FeedForward::Gated(activation))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    const WINDOW: &str = "attention.sliding_window";
    let Some(window) = gguf.optional_count(&spec, WINDOW)? else {
        return Err(gguf.refuse(&gguf.key(&spec, WINDOW), "a number of positions above 0", "none"));
    };
    spec.attention = gguf.windows(&spec, layers(window), every_second(window))?;
    spec.experts = Some(gguf.experts(&spec, Router::SOFTMAX_OF_CHOSEN)?);
    let layout = Layout {
        ffn_norm: Some("post_attention_norm"),
        sinks: Some("attn_sinks.weight"),
        experts: STACKED_WITH_BIASES,
        ..GGUF
    };
    Ok(Plan { spec, layout })
}
