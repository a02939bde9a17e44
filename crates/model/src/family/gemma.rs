//! Gemma 1, 2 and 3 (text): scaled embeddings, norms that multiply by 1 + their weight, tanh GELU, a head width that is
//! independent of the network's width.
//!
//! Gemma 2 adds a norm after each sublayer, soft caps of scores and logits, and a window in every other layer. Gemma 3
//! has norms of q and k instead of the soft cap of scores, and another rotary base in the layers with a window. In GGUF
//! files the converter has already added the 1 to the norms. Gemma 4 has a file of its own (`gemma4.rs`).

use foretoken_kernels::dtype::{bf16, f16};
use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING_FACE, Layout, QkNormNames};
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Positions, Spec};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("gemma", gemma)), Some(("gemma", gemma_from_gguf))).exported_as("gemma", gemma_keys),
    Family::new(Some(("gemma2", gemma2)), Some(("gemma2", gemma2_from_gguf))).exported_as("gemma2", gemma2_keys),
    Family::new(Some(("gemma3_text", gemma3)), Some(("gemma3", gemma3_from_gguf))).exported_as("gemma3", gemma3_keys),
];

pub(super) const FIELDS: json::Fields = json::Fields {
    head_dim_default: Some(256),
    context_default: 8192,
    activation: "hidden_activation",
    activation_default: "gelu_pytorch_tanh",
    tied: true,
    ..json::HUGGING_FACE
};

/// The layout of Gemma 1 in transformers.
const LAYOUT: Layout = Layout { one_plus: true, ..HUGGING_FACE };

/// The layout with a norm after each sublayer.
pub(super) const FOUR_NORMS: Layout = Layout {
    attention_post_norm: Some("post_attention_layernorm"),
    ffn_norm: Some("pre_feedforward_layernorm"),
    ffn_post_norm: Some("post_feedforward_layernorm"),
    ..LAYOUT
};

pub(super) const FOUR_NORMS_OF_GGUF: Layout =
    Layout { attention_post_norm: Some("post_attention_norm"), ffn_post_norm: Some("post_ffw_norm"), ..GGUF };

/// The root of the width, rounded as transformers rounds it: to the type in which it keeps the weights.
pub(super) fn embedding_multiplier(config: &JsonConfig, width: usize) -> Result<f32, ModelError> {
    let root = (width as f32).sqrt();
    let field = if config.has("dtype") { "dtype" } else { "torch_dtype" };
    Ok(match config.optional_str(field)? {
        Some("bfloat16") => bf16::from_f32(root).to_f32(),
        Some("float16") => f16::from_f32(root).to_f32(),
        _ => root,
    })
}

/// The spec and layout that all Gemma models share.
fn spec(config: &JsonConfig, name: &'static str, fields: &json::Fields) -> Result<(Spec, Layout), ModelError> {
    json::refuse_true(config, &["use_bidirectional_attention"])?;
    let mut spec = json::spec(config, name, fields)?;
    // Old files name the wrong form of GELU.
    if spec.feed_forward == FeedForward::Gated(Activation::GeluErf) {
        spec.feed_forward = FeedForward::Gated(Activation::GeluTanh);
    }
    spec.embedding_multiplier = embedding_multiplier(config, spec.width)?;
    let bias = json::bias(config, "attention_bias", false)?;
    Ok((spec, Layout { qkv_bias: bias, output_bias: bias, ..LAYOUT }))
}

fn gemma(config: &JsonConfig) -> Result<Plan, ModelError> {
    let (mut spec, layout) = spec(config, "gemma", &FIELDS)?;
    if !config.has("hidden_activation") {
        let activation = json::activation(config, "hidden_act", "gelu_pytorch_tanh")?;
        let activation = if activation == Activation::GeluErf { Activation::GeluTanh } else { activation };
        spec.feed_forward = FeedForward::Gated(activation);
    }
    rope::HALVES.set(config, &mut spec)?;
    Ok(Plan { spec, layout })
}

/// A soft cap, with a default if the field is missing; null means none.
pub(super) fn cap(config: &JsonConfig, field: &str, default: Option<f32>) -> Result<Option<f32>, ModelError> {
    match (config.optional_f32(field)?, config.has_key(field)) {
        (None, true) => Ok(None),
        (None, false) => Ok(default),
        (Some(cap), _) if cap > 0.0 => Ok(Some(cap)),
        (Some(cap), _) => Err(config.refuse(field, "a number above 0", cap)),
    }
}

/// Sets the scale and the soft caps of Gemma 2 and 3.
fn scores(config: &JsonConfig, spec: &mut Spec, caps: [Option<f32>; 2]) -> Result<(), ModelError> {
    spec.attention_soft_cap = cap(config, "attn_logit_softcapping", caps[0])?;
    spec.logit_soft_cap = cap(config, "final_logit_softcapping", caps[1])?;
    spec.attention_scale = 1.0 / json::positive(config, "query_pre_attn_scalar", 256.0)?.sqrt();
    Ok(())
}

/// A pattern of layers in which every `period`th has full attention.
pub(super) fn pattern(period: usize, [full, sliding]: [LayerAttention; 2]) -> Vec<LayerAttention> {
    (1..=period).map(|layer| if layer == period { full } else { sliding }).collect()
}

fn gemma2(config: &JsonConfig) -> Result<Plan, ModelError> {
    let (mut spec, layout) = spec(config, "gemma2", &FIELDS)?;
    rope::HALVES.set(config, &mut spec)?;
    scores(config, &mut spec, [Some(50.0), Some(30.0)])?;
    let full = spec.attention[0];
    let both = [full, LayerAttention { window: json::window_or(config, "sliding_window", 4096)?, ..full }];
    spec.attention = json::windows(config, spec.layers, both, pattern(2, both))?;
    Ok(Plan { spec, layout: Layout { qkv_bias: layout.qkv_bias, output_bias: layout.output_bias, ..FOUR_NORMS } })
}

fn gemma3(config: &JsonConfig) -> Result<Plan, ModelError> {
    // The text configurations of multimodal models omit defaults.
    let fields = json::Fields {
        vocabulary_default: Some(262_208),
        heads_default: Some(8),
        kv_heads_default: Some(4),
        context_default: 131_072,
        ..FIELDS
    };
    let (mut spec, layout) = spec(config, "gemma3", &fields)?;
    scores(config, &mut spec, [None, None])?;
    let [full, sliding] = rope::of_layer_types(config, &mut spec, [1_000_000.0, 10_000.0])?;
    spec.positions = Positions::Rope(vec![full, sliding]);
    let window = json::window_or(config, "sliding_window", 4096)?;
    let both = [LayerAttention::rotated(0, None), LayerAttention::rotated(1, window)];
    let period = json::period(config, "sliding_window_pattern", 6)?;
    spec.attention = json::windows(config, spec.layers, both, pattern(period, both))?;
    let qk_norms = QkNormNames::SharedByHeads(["self_attn.q_norm", "self_attn.k_norm"]);
    let [qkv_bias, output_bias] = [layout.qkv_bias, layout.output_bias];
    Ok(Plan { spec, layout: Layout { qkv_bias, output_bias, qk_norms, ..FOUR_NORMS } })
}

pub(super) const GGUF_FEED_FORWARD: FeedForward = FeedForward::Gated(Activation::GeluTanh);

fn gemma_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    gemma_like(gguf, "gemma")
}

/// Files have no key for the scale of scores: the largest model, which has another scale, is recognized by its number
/// of layers.
fn scale_from_gguf(spec: &mut Spec, layers_of_largest: usize) {
    if spec.layers == layers_of_largest {
        spec.attention_scale = 1.0 / ((spec.width / spec.heads) as f32).sqrt();
    }
}

fn gemma2_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let Plan { mut spec, .. } = gemma_like(gguf, "gemma2")?;
    let cap = |field: &str, default: f32| Ok::<_, ModelError>(gguf.optional_f32(&spec, field)?.unwrap_or(default));
    let caps = [cap("attn_logit_softcapping", 50.0)?, cap("final_logit_softcapping", 30.0)?];
    [spec.attention_soft_cap, spec.logit_soft_cap] = caps.map(|cap| Some(cap).filter(|cap| *cap > 0.0));
    scale_from_gguf(&mut spec, 46);
    let full = spec.attention[0];
    let window = gguf.optional_count(&spec, "attention.sliding_window")?;
    spec.attention = pattern(2, [full, LayerAttention { window, ..full }]);
    Ok(Plan { spec, layout: FOUR_NORMS_OF_GGUF })
}

fn gemma3_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let Plan { mut spec, .. } = gemma_like(gguf, "gemma3")?;
    scale_from_gguf(&mut spec, 62);
    let global = spec.positions.rotations()[0].clone();
    let local = rope::HALVES.rotation(gguf.base_of_windows(&spec)?, 2 * global.frequencies.len());
    spec.positions = Positions::Rope(vec![global, local]);
    let window = gguf.optional_count(&spec, "attention.sliding_window")?;
    let both = [LayerAttention::rotated(0, None), LayerAttention::rotated(1, window)];
    spec.attention = gguf.windows(&spec, both, pattern(6, both))?;
    let qk_norms = QkNormNames::SharedByHeads(["attn_q_norm", "attn_k_norm"]);
    Ok(Plan { spec, layout: Layout { qk_norms, ..FOUR_NORMS_OF_GGUF } })
}

/// The plan of a GGUF file of one of these architectures.
fn gemma_like(gguf: Gguf<'_>, name: &'static str) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec(name, NormKind::Rms, GGUF_FEED_FORWARD)?;
    spec.embedding_multiplier = (spec.width as f32).sqrt();
    gguf.rotate(&mut spec, Pairing::Halves)?;
    Ok(Plan { spec, layout: GGUF })
}

pub(super) fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.refuse_biases("attention_bias", &[file.layout.output_bias])?;
    let root = (file.spec.width as f32).sqrt();
    if file.spec.embedding_multiplier != root {
        let rounded = file.spec.embedding_multiplier;
        file.note(format!(
            "embeddings are multiplied with {root} in GGUF, which the checkpoint's type rounds to {rounded}"
        ));
        file.spec.embedding_multiplier = root;
    }
    for (field, cap) in [
        ("attn_logit_softcapping", file.spec.attention_soft_cap),
        ("final_logit_softcapping", file.spec.logit_soft_cap),
    ] {
        cap.into_iter().for_each(|cap| file.add_key(field, cap));
    }
    Ok(())
}

fn gemma_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(true)?;
    keys(file)
}

/// Without windows, a window as wide as the context is written, since llama.cpp assumes one if the key is missing.
fn gemma2_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(true)?;
    keys(file)?;
    let window = file.spec.attention.iter().find_map(|layer| layer.window).unwrap_or(file.spec.context_max);
    file.add_count("attention.sliding_window", window);
    Ok(())
}

/// The layers with a window are listed if they are not all but every sixth.
fn gemma3_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    keys(file)?;
    let Some(window) = file.spec.attention.iter().find_map(|layer| layer.window) else { return Ok(()) };
    file.add_count("attention.sliding_window", window);
    if let [_, local] = file.spec.positions.rotations() {
        file.add_key("rope.freq_base_swa", local.base);
    }
    let windowed = file.windowed();
    if windowed.iter().enumerate().any(|(layer, windowed)| *windowed == (layer % 6 == 5)) {
        file.add_flags("attention.sliding_window_pattern", windowed);
    }
    Ok(())
}
