//! Command-R: a parallel block with one LayerNorm without bias, interleaved pairs rotated, logits multiplied.
//! Command-R+ has norms of q and k, one per head; in Command-R7B (`cohere2`) only the layers with a window have a
//! rotation.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING_FACE, Layout, QkNormNames};
use super::rope::Rope;
use super::write::GgufDescription;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Residual, Scaling};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("cohere", cohere)), Some(("command-r", command_r_from_gguf))).exported_as("command-r", keys),
    Family::new(Some(("cohere2", cohere2)), Some(("cohere2", cohere2_from_gguf))).exported_as("cohere2", cohere2_keys),
];

fn from_json(config: &JsonConfig, name: &'static str, theta: f32) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        context: if config.has("model_max_length") { "model_max_length" } else { "max_position_embeddings" },
        context_default: 8192,
        epsilon: "layer_norm_eps",
        epsilon_default: 1e-5,
        norm: json::layer,
        tied: true,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, name, &fields)?;
    Rope { pairing: Pairing::Interleaved, theta, partial: None }.set(config, &mut spec)?;
    spec.residual = Residual::Parallel;
    spec.logit_multiplier = json::positive(config, "logit_scale", 0.0625)?;
    let bias = json::bias(config, "attention_bias", false)?;
    Ok(Plan { spec, layout: Layout { ffn_norm: None, qkv_bias: bias, output_bias: bias, ..HUGGING_FACE } })
}

fn cohere(config: &JsonConfig) -> Result<Plan, ModelError> {
    let Plan { spec, layout } = from_json(config, "command-r", 500_000.0)?;
    let normed = config.optional_bool("use_qk_norm")?.unwrap_or(false);
    let norms = QkNormNames::PerHead(["self_attn.q_norm", "self_attn.k_norm"]);
    Ok(Plan { spec, layout: Layout { qk_norms: if normed { norms } else { QkNormNames::None }, ..layout } })
}

/// Every fourth layer has full attention and no rotation.
fn fourths(rotated: LayerAttention, window: Option<usize>) -> ([LayerAttention; 2], Vec<LayerAttention>) {
    let (full, sliding) = (LayerAttention::default(), LayerAttention { window, ..rotated });
    ([full, sliding], vec![sliding, sliding, sliding, full])
}

fn cohere2(config: &JsonConfig) -> Result<Plan, ModelError> {
    let Plan { mut spec, layout } = from_json(config, "cohere2", 10_000.0)?;
    let window = json::window_or(config, "sliding_window", 4096)?;
    let (both, mut default) = fourths(spec.attention[0], window);
    let period = json::period(config, "sliding_window_pattern", 4)?;
    if period != 4 {
        default = (1..=period).map(|layer| both[usize::from(layer != period)]).collect();
    }
    spec.attention = json::windows(config, spec.layers, both, default)?;
    Ok(Plan { spec, layout })
}

fn from_gguf(gguf: Gguf<'_>, name: &'static str) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec(name, NormKind::Layer, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Interleaved)?;
    spec.residual = Residual::Parallel;
    spec.logit_multiplier = gguf.optional_f32(&spec, "logit_scale")?.filter(|scale| *scale > 0.0).unwrap_or(1.0);
    let normed = gguf.has("blk.0.attn_q_norm.weight");
    let norms = QkNormNames::PerHead(["attn_q_norm", "attn_k_norm"]);
    let qk_norms = if normed { norms } else { QkNormNames::None };
    Ok(Plan { spec, layout: Layout { qk_norms, ffn_norm: None, ..GGUF } })
}

fn command_r_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    from_gguf(gguf, "command-r")
}

fn cohere2_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let Plan { mut spec, layout } = from_gguf(gguf, "cohere2")?;
    let window = gguf.optional_count(&spec, "attention.sliding_window")?;
    spec.attention = fourths(spec.attention[0], window).1;
    Ok(Plan { spec, layout })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(true)?;
    file.refuse_biases("attention_bias", &[file.layout.output_bias])?;
    file.add_key("logit_scale", file.spec.logit_multiplier);
    if file.spec.positions.rotations()[0].scaling == Scaling::None {
        file.add_key("rope.scaling.type", "none");
    }
    Ok(())
}

/// Without windows, a window as wide as the context is written, since llama.cpp requires the key.
fn cohere2_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    keys(file)?;
    let window = file.spec.attention.iter().find_map(|layer| layer.window).unwrap_or(file.spec.context_max);
    file.add_count("attention.sliding_window", window);
    Ok(())
}
