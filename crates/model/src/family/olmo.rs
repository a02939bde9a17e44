//! OLMo 2 and 3: norms behind the halves and none before them, q and k normalized over their whole width. OLMo 3 has
//! windows, and stretches the rotation of the layers without. OLMoE has experts, and norms before the halves.

use foretoken_kernels::rope::Pairing;

use super::experts;
use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING, Layout, Pieces};
use super::rope::{HALVES, Rope};
use super::write::Writing;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Positions, Router, Spec};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("olmo2", olmo2)), Some(("olmo2", of_gguf))).written("olmo2", keys),
    Family::new(Some(("olmo3", olmo3)), None).written("olmo2", keys),
    Family::new(Some(("olmoe", olmoe)), Some(("olmoe", olmoe_of_gguf))).written("olmoe", olmoe_keys),
];

const LAYOUT: Layout = Layout {
    attention_norm: None,
    piece_norms: Pieces::Whole(["self_attn.q_norm", "self_attn.k_norm"]),
    attention_post_norm: Some("post_attention_layernorm"),
    ffn_norm: None,
    ffn_post_norm: Some("post_feedforward_layernorm"),
    ..HUGGING
};

fn spec(config: &JsonConfig, name: &'static str) -> Result<(Spec, Layout), ModelError> {
    let fields = json::Fields { epsilon_default: 1e-5, ..json::HUGGING };
    let bias = json::bias(config, "attention_bias", false)?;
    Ok((json::spec(config, name, &fields)?, Layout { qkv_bias: bias, output_bias: bias, ..LAYOUT }))
}

fn olmo2(config: &JsonConfig) -> Result<Plan, ModelError> {
    let (mut spec, layout) = spec(config, "olmo2")?;
    HALVES.set(config, &mut spec)?;
    Ok(Plan { spec, layout })
}

/// Norms before the halves, as Llama has them, and experts in all layers.
fn olmoe(config: &JsonConfig) -> Result<Plan, ModelError> {
    if let Some(clip) = config.optional_f32("clip_qkv")? {
        return Err(config.refuse("clip_qkv", "null (queries, keys and values as they are)", clip));
    }
    let mut spec = json::spec(config, "olmoe", &json::Fields { epsilon_default: 1e-5, ..json::HUGGING })?;
    HALVES.set(config, &mut spec)?;
    let fields = experts::Fields {
        count_default: 64,
        ffn_width: "intermediate_size",
        ffn_width_default: 2048,
        ..experts::HUGGING
    };
    spec.experts = Some(experts::of_json(config, &fields)?);
    let bias = json::bias(config, "attention_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: bias, output_bias: bias, piece_norms: LAYOUT.piece_norms, ..HUGGING } })
}

fn olmoe_of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("olmoe", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    spec.experts = Some(gguf.experts(&spec, Router::SOFTMAX)?);
    Ok(Plan { spec, layout: Layout { piece_norms: Pieces::Whole(["attn_q_norm", "attn_k_norm"]), ..GGUF } })
}

fn olmo3(config: &JsonConfig) -> Result<Plan, ModelError> {
    let (mut spec, layout) = spec(config, "olmo3")?;
    let theta = 500_000.0;
    let full_only = rope::parameters(config)?.is_some_and(|all| !all.has("full_attention"));
    let rotations = if full_only {
        // The older spelling: its scaling is of the layers without a window alone.
        let full = Rope { theta, ..HALVES }.of_json(config, rope::parameters(config)?.as_ref(), &mut spec)?;
        let plain = Rope { theta, ..HALVES }.of_json(config, None, &mut spec)?;
        [full, plain]
    } else {
        rope::of_layer_types(config, &mut spec, [theta, theta])?
    };
    spec.positions = Positions::Rope(rotations.into());
    let window = json::window_or(config, "sliding_window", 4096)?;
    spec.attention = json::windows(config, spec.layers, both(window), every_fourth(both(window)))?;
    Ok(Plan { spec, layout })
}

/// Layers without and with a window.
fn both(window: Option<usize>) -> [LayerAttention; 2] {
    [LayerAttention::rotated(0, None), LayerAttention::rotated(1, window)]
}

fn every_fourth([full, sliding]: [LayerAttention; 2]) -> Vec<LayerAttention> {
    vec![sliding, sliding, sliding, full]
}

/// Files of both: those of OLMo 3 have a window.
fn of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("olmo2", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    if let Some(window) = gguf.optional_count(&spec, "attention.sliding_window")? {
        let full = spec.positions.rotations()[0].clone();
        let base = gguf.optional_f32(&spec, "rope.freq_base")?.unwrap_or(10_000.0);
        let plain = HALVES.rotation(base, 2 * full.frequencies.len());
        spec.positions = Positions::Rope(vec![full, plain]);
        spec.attention = gguf.windows(&spec, both(Some(window)), every_fourth(both(Some(window))))?;
    }
    let layout = Layout {
        attention_norm: None,
        piece_norms: Pieces::Whole(["attn_q_norm", "attn_k_norm"]),
        attention_post_norm: Some("post_attention_norm"),
        ffn_norm: None,
        ffn_post_norm: Some("post_ffw_norm"),
        ..GGUF
    };
    Ok(Plan { spec, layout })
}

fn olmoe_keys(file: &mut Writing<'_>) -> Result<(), ModelError> {
    file.require_tied(false)?;
    file.refuse_biases("attention_bias", &[file.layout.output_bias])
}

fn keys(file: &mut Writing<'_>) -> Result<(), ModelError> {
    file.require_tied(false)?;
    file.refuse_biases("attention_bias", &[file.layout.output_bias])?;
    if let Some(window) = file.spec.attention.iter().find_map(|layer| layer.window) {
        file.count("attention.sliding_window", window);
        file.say_each("attention.sliding_window_pattern", file.windowed());
        let base = file.spec.positions.rotations().last().map(|rotation| rotation.base);
        base.into_iter().for_each(|base| file.say("rope.freq_base_swa", base));
    }
    Ok(())
}
