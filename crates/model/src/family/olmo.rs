//! OLMo 2 and 3: norms after the sublayers and none before them, q and k normalized over their whole width. OLMo 3 has
//! windows, and a scaled rotation in the layers without them. OLMoE has experts, and norms before the sublayers.

use foretoken_kernels::rope::Pairing;

use super::experts;
use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING_FACE, Layout, QkNormNames};
use super::rope::{HALVES, Rope};
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Positions, Router, Spec};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("olmo2", olmo2)), Some(("olmo2", from_gguf))).exported_as("olmo2", keys),
    Family::new(Some(("olmo3", olmo3)), None).exported_as("olmo2", keys),
    Family::new(Some(("olmoe", olmoe)), Some(("olmoe", olmoe_from_gguf))).exported_as("olmoe", olmoe_keys),
];

const LAYOUT: Layout = Layout {
    attention_norm: None,
    qk_norms: QkNormNames::WholeRow(["self_attn.q_norm", "self_attn.k_norm"]),
    attention_post_norm: Some("post_attention_layernorm"),
    ffn_norm: None,
    ffn_post_norm: Some("post_feedforward_layernorm"),
    ..HUGGING_FACE
};

fn spec(config: &JsonConfig, name: &'static str) -> Result<(Spec, Layout), ModelError> {
    let fields = json::Fields { epsilon_default: 1e-5, ..json::HUGGING_FACE };
    let bias = json::bias(config, "attention_bias", false)?;
    Ok((json::spec(config, name, &fields)?, Layout { qkv_bias: bias, output_bias: bias, ..LAYOUT }))
}

fn olmo2(config: &JsonConfig) -> Result<Plan, ModelError> {
    let (mut spec, layout) = spec(config, "olmo2")?;
    HALVES.set(config, &mut spec)?;
    Ok(Plan { spec, layout })
}

/// The plan of OLMoE: norms before the sublayers, as in Llama, and experts in all layers.
fn olmoe(config: &JsonConfig) -> Result<Plan, ModelError> {
    if let Some(clip) = config.optional_f32("clip_qkv")? {
        return Err(config.refuse("clip_qkv", "null (queries, keys and values as they are)", clip));
    }
    let mut spec = json::spec(config, "olmoe", &json::Fields { epsilon_default: 1e-5, ..json::HUGGING_FACE })?;
    HALVES.set(config, &mut spec)?;
    let fields = experts::Fields {
        count_default: 64,
        ffn_width: "intermediate_size",
        ffn_width_default: 2048,
        ..experts::HUGGING_FACE
    };
    spec.experts = Some(experts::from_json(config, &fields)?);
    let bias = json::bias(config, "attention_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: bias, output_bias: bias, qk_norms: LAYOUT.qk_norms, ..HUGGING_FACE } })
}

fn olmoe_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("olmoe", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    spec.experts = Some(gguf.experts(&spec, Router::SOFTMAX)?);
    Ok(Plan { spec, layout: Layout { qk_norms: QkNormNames::WholeRow(["attn_q_norm", "attn_k_norm"]), ..GGUF } })
}

fn olmo3(config: &JsonConfig) -> Result<Plan, ModelError> {
    let (mut spec, layout) = spec(config, "olmo3")?;
    let theta = 500_000.0;
    let full_only = rope::parameters(config)?.is_some_and(|all| !all.has("full_attention"));
    let rotations = if full_only {
        // This is the older format, in which the scaling applies only to the layers without a window.
        let full =
            Rope { theta, ..HALVES }.rotation_of_config(config, rope::parameters(config)?.as_ref(), &mut spec)?;
        let plain = Rope { theta, ..HALVES }.rotation_of_config(config, None, &mut spec)?;
        [full, plain]
    } else {
        rope::of_layer_types(config, &mut spec, [theta, theta])?
    };
    spec.positions = Positions::Rope(rotations.into());
    let window = json::window_or(config, "sliding_window", 4096)?;
    spec.attention = json::windows(config, spec.layers, both(window), every_fourth(both(window)))?;
    Ok(Plan { spec, layout })
}

/// The layers without and with a window.
fn both(window: Option<usize>) -> [LayerAttention; 2] {
    [LayerAttention::rotated(0, None), LayerAttention::rotated(1, window)]
}

fn every_fourth([full, sliding]: [LayerAttention; 2]) -> Vec<LayerAttention> {
    vec![sliding, sliding, sliding, full]
}

/// The plan of a GGUF file of OLMo 2 or 3; those of OLMo 3 have a window.
fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
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
        qk_norms: QkNormNames::WholeRow(["attn_q_norm", "attn_k_norm"]),
        attention_post_norm: Some("post_attention_norm"),
        ffn_norm: None,
        ffn_post_norm: Some("post_ffw_norm"),
        ..GGUF
    };
    Ok(Plan { spec, layout })
}

fn olmoe_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(false)?;
    file.refuse_biases("attention_bias", &[file.layout.output_bias])
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(false)?;
    file.refuse_biases("attention_bias", &[file.layout.output_bias])?;
    if let Some(window) = file.spec.attention.iter().find_map(|layer| layer.window) {
        file.add_count("attention.sliding_window", window);
        file.add_flags("attention.sliding_window_pattern", file.windowed());
        let base = file.spec.positions.rotations().last().map(|rotation| rotation.base);
        base.into_iter().for_each(|base| file.add_key("rope.freq_base_swa", base));
    }
    Ok(())
}
