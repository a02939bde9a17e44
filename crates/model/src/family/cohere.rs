//! Command-R: a parallel block behind one LayerNorm without bias, neighbouring pairs rotated, logits multiplied.
//! Command-R+ has norms of q and k, one a head; in Command-R7B (`cohere2`) the layers with a window rotate, and the
//! others do not.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING, Layout, Pieces};
use super::rope::Rope;
use super::write::Writing;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Residual, Scaling};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("cohere", cohere)), Some(("command-r", command_r_of_gguf))).written("command-r", keys),
    Family::new(Some(("cohere2", cohere2)), Some(("cohere2", cohere2_of_gguf))).written("cohere2", cohere2_keys),
];

fn of_json(config: &JsonConfig, name: &'static str, theta: f32) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        context: if config.has("model_max_length") { "model_max_length" } else { "max_position_embeddings" },
        context_default: 8192,
        epsilon: "layer_norm_eps",
        epsilon_default: 1e-5,
        norm: json::layer,
        tied: true,
        ..json::HUGGING
    };
    let mut spec = json::spec(config, name, &fields)?;
    Rope { pairing: Pairing::Neighbours, theta, partial: None }.set(config, &mut spec)?;
    spec.residual = Residual::Parallel;
    spec.logit_multiplier = json::positive(config, "logit_scale", 0.0625)?;
    let bias = json::bias(config, "attention_bias", false)?;
    Ok(Plan { spec, layout: Layout { ffn_norm: None, qkv_bias: bias, output_bias: bias, ..HUGGING } })
}

fn cohere(config: &JsonConfig) -> Result<Plan, ModelError> {
    let Plan { spec, layout } = of_json(config, "command-r", 500_000.0)?;
    let normed = config.optional_bool("use_qk_norm")?.unwrap_or(false);
    let norms = Pieces::EachHead(["self_attn.q_norm", "self_attn.k_norm"]);
    Ok(Plan { spec, layout: Layout { piece_norms: if normed { norms } else { Pieces::None }, ..layout } })
}

/// Every fourth layer sees everything, and is not rotated.
fn fourths(rotated: LayerAttention, window: Option<usize>) -> ([LayerAttention; 2], Vec<LayerAttention>) {
    let (full, sliding) = (LayerAttention::default(), LayerAttention { window, ..rotated });
    ([full, sliding], vec![sliding, sliding, sliding, full])
}

fn cohere2(config: &JsonConfig) -> Result<Plan, ModelError> {
    let Plan { mut spec, layout } = of_json(config, "cohere2", 10_000.0)?;
    let window = json::window_or(config, "sliding_window", 4096)?;
    let (both, mut default) = fourths(spec.attention[0], window);
    let period = json::period(config, "sliding_window_pattern", 4)?;
    if period != 4 {
        default = (1..=period).map(|layer| both[usize::from(layer != period)]).collect();
    }
    spec.attention = json::windows(config, spec.layers, both, default)?;
    Ok(Plan { spec, layout })
}

fn of_gguf(gguf: Gguf<'_>, name: &'static str) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec(name, NormKind::Layer, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Neighbours)?;
    spec.residual = Residual::Parallel;
    spec.logit_multiplier = gguf.optional_f32(&spec, "logit_scale")?.filter(|scale| *scale > 0.0).unwrap_or(1.0);
    let normed = gguf.has("blk.0.attn_q_norm.weight");
    let norms = Pieces::EachHead(["attn_q_norm", "attn_k_norm"]);
    let piece_norms = if normed { norms } else { Pieces::None };
    Ok(Plan { spec, layout: Layout { piece_norms, ffn_norm: None, ..GGUF } })
}

fn command_r_of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    of_gguf(gguf, "command-r")
}

fn cohere2_of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let Plan { mut spec, layout } = of_gguf(gguf, "cohere2")?;
    let window = gguf.optional_count(&spec, "attention.sliding_window")?;
    spec.attention = fourths(spec.attention[0], window).1;
    Ok(Plan { spec, layout })
}

fn keys(file: &mut Writing<'_>) -> Result<(), ModelError> {
    file.require_tied(true)?;
    file.refuse_biases("attention_bias", &[file.layout.output_bias])?;
    file.say("logit_scale", file.spec.logit_multiplier);
    if file.spec.positions.rotations()[0].scaling == Scaling::None {
        file.say("rope.scaling.type", "none");
    }
    Ok(())
}

/// A window as wide as the context is none: llama.cpp wants one.
fn cohere2_keys(file: &mut Writing<'_>) -> Result<(), ModelError> {
    keys(file)?;
    let window = file.spec.attention.iter().find_map(|layer| layer.window).unwrap_or(file.spec.context_max);
    file.count("attention.sliding_window", window);
    Ok(())
}
