//! OPT: GPT-2 with ReLU and a table of positions that begins at row 2. OPT-350m differs: post-norm, and an embedding
//! narrower than the stream. GGUF does not have this family.

use super::checks::count;
use super::layout::{HUGGING_FACE, Layout, Qkv, Up};
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::Residual;

pub(super) const FAMILIES: &[Family] = &[Family::new(Some(("opt", from_json)), None)];

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        ffn_width: "ffn_dim",
        // In transformers there is no such field; the default is that of its LayerNorm.
        epsilon: "layer_norm_eps",
        epsilon_default: 1e-5,
        norm: json::layer,
        activation: "activation_function",
        activation_default: "relu",
        gated: false,
        tied: true,
        ..json::HUGGING_FACE
    };
    const AFFINE: &str = "layer_norm_elementwise_affine";
    if !config.optional_bool(AFFINE)?.unwrap_or(true) {
        return Err(config.refuse(AFFINE, "true (norms with weights)", false));
    }
    let mut spec = json::spec(config, "opt", &fields)?;
    const NARROW: &str = "word_embed_proj_dim";
    spec.embedding_width = count(config.file(), NARROW, config.optional_usize(NARROW)?.unwrap_or(spec.width))?;
    let before = config.optional_bool("do_layer_norm_before")?.unwrap_or(true);
    spec.residual = if before { Residual::Sequential } else { Residual::NormedSum };
    let last = before && !config.optional_bool("_remove_final_layer_norm")?.unwrap_or(false);
    let bias = json::bias(config, "enable_bias", true)?;
    let layout = Layout {
        prefixes: &["model.decoder.", "decoder."],
        positions: Some(("embed_positions", 2)),
        attention_norm: Some("self_attn_layer_norm"),
        qkv: Qkv::Three(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        attention_output: "self_attn.out_proj",
        ffn_norm: Some("final_layer_norm"),
        up: Up::Plain("fc1"),
        down: "fc2",
        output_norm: last.then_some("final_layer_norm"),
        ..HUGGING_FACE.with_bias(bias)
    };
    Ok(Plan { spec, layout })
}
