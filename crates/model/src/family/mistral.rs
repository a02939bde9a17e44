//! Mistral and Ministral: Llama whose rows see a window of the latest positions, in all layers or in some.
//!
//! GGUF files of Mistral are of the architecture `llama`, and those with a window do not say so: they are run without,
//! as llama.cpp does.

use super::layout::HUGGING;
use super::{Asked, Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::LayerAttention;

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("mistral", mistral)), None), Family::new(Some(("ministral", ministral)), None)];

fn mistral(config: &JsonConfig, asked: Asked) -> Result<Plan, ModelError> {
    of_json(config, asked, "mistral")
}

fn ministral(config: &JsonConfig, asked: Asked) -> Result<Plan, ModelError> {
    of_json(config, asked, "ministral")
}

/// Of a `mistral` all layers have the window, of a `ministral` those that `layer_types` names.
fn of_json(config: &JsonConfig, asked: Asked, name: &'static str) -> Result<Plan, ModelError> {
    let fields = json::Fields { kv_heads_default: Some(8), context_default: 131_072, ..json::HUGGING };
    let mut spec = json::spec(config, name, &fields)?;
    rope::HALVES.set(config, asked, &mut spec)?;
    let full = spec.attention[0];
    let sliding = LayerAttention { window: json::window_or(config, "sliding_window", 4096)?, ..full };
    spec.attention = match name {
        "mistral" => vec![sliding],
        _ => json::windows(config, spec.layers, [full, sliding], vec![sliding])?,
    };
    Ok(Plan { spec, layout: HUGGING })
}
