//! SmolLM 3: Llama in which every fourth layer has no rotary embedding (NoPE).

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING_FACE, Layout};
use super::rope::{HALVES, Rope};
use super::write::GgufDescription;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("smollm3", from_json)), Some(("smollm3", from_gguf))).exported_as("smollm3", keys)];

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields { kv_heads_default: Some(4), context_default: 32_768, tied: true, ..json::HUGGING_FACE };
    let mut spec = json::spec(config, "smollm3", &fields)?;
    Rope { theta: 2_000_000.0, ..HALVES }.set(config, &mut spec)?;
    let rotated = rotated_layers(config, spec.layers)?;
    let windowed = config.optional_bool("use_sliding_window")?.unwrap_or(false);
    let window = if windowed { json::window(config, "sliding_window")? } else { None };
    // If windows are on, the layers without rotation have them, or the layers that the file names.
    let kinds = json::layer_types(config, spec.layers, |name| match name {
        "full_attention" => Some(LayerAttention::default()),
        "sliding_attention" => Some(LayerAttention { window, ..LayerAttention::default() }),
        _ => None,
    })?;
    let layers = rotated.iter().enumerate().map(|(layer, rotates)| LayerAttention {
        rotation: rotates.then_some(0),
        window: match &kinds {
            Some(kinds) => kinds[layer].window,
            None if *rotates => None,
            None => window,
        },
        ..LayerAttention::default()
    });
    spec.attention = layers.collect();
    let attention = json::bias(config, "attention_bias", false)?;
    let ffn_bias = json::bias(config, "mlp_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: attention, output_bias: attention, ffn_bias, ..HUGGING_FACE } })
}

/// Whether each layer has a rotation, as a repeating pattern.
fn rotated_layers(config: &JsonConfig, layers: usize) -> Result<Vec<bool>, ModelError> {
    const LIST: &str = "no_rope_layers";
    const PERIOD: &str = "no_rope_layer_interval";
    match config.optional_usizes(LIST)? {
        Some(list) if list.len() == layers => Ok(list.into_iter().map(|rotates| rotates != 0).collect()),
        Some(list) => Err(config.refuse(LIST, format!("one number a layer, {layers}"), list.len())),
        None => {
            json::check_listed(config, "num_hidden_layers", layers)?;
            let period = json::period(config, PERIOD, 4)?;
            Ok((1..=layers).map(|layer| !layer.is_multiple_of(period)).collect())
        }
    }
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("smollm3", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Interleaved)?;
    let rotated = spec.attention[0];
    spec.attention = vec![rotated, rotated, rotated, LayerAttention::default()];
    Ok(Plan { spec, layout: GGUF })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.refuse_biases("attention_bias", &[file.layout.output_bias])?;
    file.refuse_biases("mlp_bias", &[file.layout.ffn_bias])
}
