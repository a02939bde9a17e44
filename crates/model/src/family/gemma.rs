//! Gemma 1, 2 and 3 (text): scaled embeddings, norms that multiply by 1 + their weight, tanh GELU, heads apart from the
//! width.
//!
//! Gemma 2 adds a norm behind each half, soft caps of scores and logits, and a window in every other layer. Gemma 3 has
//! norms of q and k instead of the scores' cap, and rotates the layers with a window by another base. In GGUF files the
//! converter has added the 1 to the norms. Left out: Gemma 4 (`gemma4.rs`), and images.

use foretoken_kernels::dtype::{bf16, f16};
use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING, Layout, Pieces};
use super::{Asked, Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Positions, Rotation, Spec};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("gemma", gemma)), Some(("gemma", gemma_of_gguf))),
    Family::new(Some(("gemma2", gemma2)), Some(("gemma2", gemma2_of_gguf))),
    Family::new(Some(("gemma3_text", gemma3)), Some(("gemma3", gemma3_of_gguf))),
];

pub(super) const FIELDS: json::Fields = json::Fields {
    head_dim_default: Some(256),
    context_default: 8192,
    activation: "hidden_activation",
    activation_default: "gelu_pytorch_tanh",
    tied: true,
    ..json::HUGGING
};

/// Gemma 1 in transformers.
const LAYOUT: Layout = Layout { one_plus: true, ..HUGGING };

/// With a norm behind each half.
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

/// What all of them have.
fn spec(config: &JsonConfig, name: &'static str, fields: &json::Fields) -> Result<(Spec, Layout), ModelError> {
    json::refuse_true(config, &["use_bidirectional_attention"])?;
    let mut spec = json::spec(config, name, fields)?;
    // Whatever old files call it.
    if spec.feed_forward == FeedForward::Gated(Activation::GeluErf) {
        spec.feed_forward = FeedForward::Gated(Activation::GeluTanh);
    }
    spec.embedding_multiplier = embedding_multiplier(config, spec.width)?;
    let bias = json::bias(config, "attention_bias", false)?;
    Ok((spec, Layout { qkv_bias: bias, output_bias: bias, ..LAYOUT }))
}

fn gemma(config: &JsonConfig, asked: Asked) -> Result<Plan, ModelError> {
    let (mut spec, layout) = spec(config, "gemma", &FIELDS)?;
    if !config.has("hidden_activation") {
        let activation = json::activation(config, "hidden_act", "gelu_pytorch_tanh")?;
        let activation = if activation == Activation::GeluErf { Activation::GeluTanh } else { activation };
        spec.feed_forward = FeedForward::Gated(activation);
    }
    rope::HALVES.set(config, asked, &mut spec)?;
    Ok(Plan { spec, layout })
}

/// A soft cap: null is none, and where the field is missing the default holds.
pub(super) fn cap(config: &JsonConfig, field: &str, default: Option<f32>) -> Result<Option<f32>, ModelError> {
    match (config.optional_f32(field)?, config.names(field)) {
        (None, true) => Ok(None),
        (None, false) => Ok(default),
        (Some(cap), _) if cap > 0.0 => Ok(Some(cap)),
        (Some(cap), _) => Err(config.refuse(field, "a number above 0", cap)),
    }
}

/// What Gemma 2 and 3 say of scores and logits.
fn scores(config: &JsonConfig, spec: &mut Spec, caps: [Option<f32>; 2]) -> Result<(), ModelError> {
    spec.attention_soft_cap = cap(config, "attn_logit_softcapping", caps[0])?;
    spec.logit_soft_cap = cap(config, "final_logit_softcapping", caps[1])?;
    spec.attention_scale = 1.0 / json::positive(config, "query_pre_attn_scalar", 256.0)?.sqrt();
    Ok(())
}

/// Layers of which every `period`th sees everything.
pub(super) fn pattern(period: usize, [full, sliding]: [LayerAttention; 2]) -> Vec<LayerAttention> {
    (1..=period).map(|layer| if layer == period { full } else { sliding }).collect()
}

fn gemma2(config: &JsonConfig, asked: Asked) -> Result<Plan, ModelError> {
    let (mut spec, layout) = spec(config, "gemma2", &FIELDS)?;
    rope::HALVES.set(config, asked, &mut spec)?;
    scores(config, &mut spec, [Some(50.0), Some(30.0)])?;
    let full = spec.attention[0];
    let both = [full, LayerAttention { window: json::window_or(config, "sliding_window", 4096)?, ..full }];
    spec.attention = json::windows(config, spec.layers, both, pattern(2, both))?;
    Ok(Plan { spec, layout: Layout { qkv_bias: layout.qkv_bias, output_bias: layout.output_bias, ..FOUR_NORMS } })
}

fn gemma3(config: &JsonConfig, asked: Asked) -> Result<Plan, ModelError> {
    // Models with images leave out of the configuration of their text what is the default.
    let fields = json::Fields {
        vocabulary_default: Some(262_208),
        heads_default: Some(8),
        kv_heads_default: Some(4),
        context_default: 131_072,
        ..FIELDS
    };
    let (mut spec, layout) = spec(config, "gemma3", &fields)?;
    scores(config, &mut spec, [None, None])?;
    let [full, sliding] = rope::of_layer_types(config, asked, &mut spec, [1_000_000.0, 10_000.0])?;
    spec.positions = Positions::Rope(vec![full, sliding]);
    let window = json::window_or(config, "sliding_window", 4096)?;
    let both = [LayerAttention::rotated(0, None), LayerAttention::rotated(1, window)];
    let period = json::period(config, "sliding_window_pattern", 6)?;
    spec.attention = json::windows(config, spec.layers, both, pattern(period, both))?;
    let piece_norms = Pieces::EveryHead(["self_attn.q_norm", "self_attn.k_norm"]);
    let [qkv_bias, output_bias] = [layout.qkv_bias, layout.output_bias];
    Ok(Plan { spec, layout: Layout { qkv_bias, output_bias, piece_norms, ..FOUR_NORMS } })
}

pub(super) const OF_GGUF: FeedForward = FeedForward::Gated(Activation::GeluTanh);

fn gemma_of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    gemma_like(gguf, "gemma")
}

/// Files do not say what scores are multiplied with: it is known of the largest model of each, by its layers.
fn scale_of_gguf(spec: &mut Spec, layers_of_largest: usize) {
    if spec.layers == layers_of_largest {
        spec.attention_scale = 1.0 / ((spec.width / spec.heads) as f32).sqrt();
    }
}

fn gemma2_of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let Plan { mut spec, .. } = gemma_like(gguf, "gemma2")?;
    let cap = |field: &str, default: f32| Ok::<_, ModelError>(gguf.optional_f32(&spec, field)?.unwrap_or(default));
    let caps = [cap("attn_logit_softcapping", 50.0)?, cap("final_logit_softcapping", 30.0)?];
    [spec.attention_soft_cap, spec.logit_soft_cap] = caps.map(|cap| Some(cap).filter(|cap| *cap > 0.0));
    scale_of_gguf(&mut spec, 46);
    let full = spec.attention[0];
    let window = gguf.optional_count(&spec, "attention.sliding_window")?;
    spec.attention = pattern(2, [full, LayerAttention { window, ..full }]);
    Ok(Plan { spec, layout: FOUR_NORMS_OF_GGUF })
}

fn gemma3_of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let Plan { mut spec, .. } = gemma_like(gguf, "gemma3")?;
    scale_of_gguf(&mut spec, 62);
    let global = spec.positions.rotations()[0].clone();
    let local = rope::plain(gguf.base_of_windows(&spec)?, 2 * global.frequencies.len());
    let local = Rotation { frequencies: local, magnitude: 1.0, ..global.clone() };
    spec.positions = Positions::Rope(vec![global, local]);
    let window = gguf.optional_count(&spec, "attention.sliding_window")?;
    let both = [LayerAttention::rotated(0, None), LayerAttention::rotated(1, window)];
    spec.attention = gguf.windows(&spec, both, pattern(6, both))?;
    let piece_norms = Pieces::EveryHead(["attn_q_norm", "attn_k_norm"]);
    Ok(Plan { spec, layout: Layout { piece_norms, ..FOUR_NORMS_OF_GGUF } })
}

/// A Gemma of GGUF by its architecture.
fn gemma_like(gguf: Gguf<'_>, name: &'static str) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec(name, NormKind::Rms, OF_GGUF)?;
    spec.embedding_multiplier = (spec.width as f32).sqrt();
    gguf.rotate(&mut spec, Pairing::Halves)?;
    Ok(Plan { spec, layout: GGUF })
}
