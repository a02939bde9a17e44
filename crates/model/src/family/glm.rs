//! GLM-4: Llama with biases of q, k and v, half of each head rotated in interleaved pairs, gate and up fused. Later
//! models (`glm4`) also have a norm after each sublayer. ChatGLM 2 and 3 and the first GLM-4 files (`chatglm`) are the
//! same network with other names.
//!
//! The first ChatGLM, a different network, is refused: its prompts see themselves in both directions, so the rows of a
//! prompt depend on tokens after them and cannot be computed in chunks or kept for another text; and its positions are
//! pairs of numbers, of which the first stands still in an answer.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, GGUF_QKV, HUGGING_FACE, Layout, Qkv, Up};
use super::rope::Rope;
use super::write::no_further_keys;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Positions, Rotation, Scaling};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("glm", glm)), Some(("chatglm", chatglm_from_gguf))).exported_as("chatglm", no_further_keys),
    Family::new(Some(("glm4", glm4)), Some(("glm4", glm4_from_gguf))).exported_as("glm4", no_further_keys),
    Family::new(Some(("chatglm", chatglm)), None).exported_as("chatglm", no_further_keys),
];

/// The rotation: half of each head, in interleaved pairs.
const ROPE: Rope = Rope { pairing: Pairing::Interleaved, theta: 10_000.0, partial: Some(0.5) };

fn from_json(config: &JsonConfig, name: &'static str) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        kv_heads_default: Some(2),
        head_dim_default: Some(128),
        context_default: 131_072,
        epsilon_default: 1.562_5e-7,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, name, &fields)?;
    ROPE.set(config, &mut spec)?;
    let qkv_bias = json::bias(config, "attention_bias", true)?;
    Ok(Plan { spec, layout: Layout { up: Up::Fused("mlp.gate_up_proj"), qkv_bias, ..HUGGING_FACE } })
}

fn glm(config: &JsonConfig) -> Result<Plan, ModelError> {
    from_json(config, "chatglm")
}

fn glm4(config: &JsonConfig) -> Result<Plan, ModelError> {
    let Plan { spec, layout } = from_json(config, "glm4")?;
    let layout = Layout {
        attention_post_norm: Some("post_self_attn_layernorm"),
        ffn_post_norm: Some("post_mlp_layernorm"),
        ..layout
    };
    Ok(Plan { spec, layout })
}

/// The plan of ChatGLM follows the code that comes with the checkpoints, since transformers has no class for it.
fn chatglm(config: &JsonConfig) -> Result<Plan, ModelError> {
    let refuse = |field: &str, only: bool| match config.optional_bool(field)?.filter(|found| *found != only) {
        None => Ok(()),
        Some(found) => Err(config.refuse(field, only, found)),
    };
    if config.has("inner_hidden_size") || config.optional_bool("position_encoding_2d")?.unwrap_or(false) {
        let found =
            "the first ChatGLM, whose prompts see themselves in both directions, with positions in two dimensions";
        return Err(config.refuse("position_encoding_2d", "false (ChatGLM 2 or later, GLM-4)", found));
    }
    for (field, only) in [
        ("rmsnorm", true),
        ("post_layer_norm", true),
        ("apply_residual_connection_post_layernorm", false),
        ("add_bias_linear", false),
        ("original_rope", true),
    ] {
        refuse(field, only)?;
    }
    // Tensors packed by the checkpoint's own code, and keys and values that a fine-tuning put before every text.
    for field in ["quantization_bit", "pre_seq_len"] {
        if let Some(found) = config.optional_usize(field)?.filter(|found| *found > 0) {
            return Err(config.refuse(field, "0", found));
        }
    }
    let grouped = config.optional_bool("multi_query_attention")?.unwrap_or(false);
    let fields = json::Fields {
        layers: "num_layers",
        kv_heads: if grouped { "multi_query_group_num" } else { "num_key_value_heads" },
        head_dim: "kv_channels",
        ffn_width: "ffn_hidden_size",
        context: "seq_length",
        epsilon: "layernorm_epsilon",
        epsilon_default: 1e-5,
        vocabulary: "padded_vocab_size",
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "chatglm", &fields)?;
    let dim = rope::even(config, "kv_channels", spec.head_dim / 2)?;
    spec.positions = Positions::Rope(vec![chatglm_rotation(config, dim)?]);
    spec.attention = vec![LayerAttention::rotated(0, None)];
    let layout = Layout {
        prefixes: &["transformer."],
        embedding: "embedding.word_embeddings",
        layers: "encoder.layers",
        qkv: Qkv::Fused("self_attention.query_key_value", Fusion::Stacked),
        attention_output: "self_attention.dense",
        up: Up::Fused("mlp.dense_h_to_4h"),
        down: "mlp.dense_4h_to_h",
        output_norm: Some("encoder.final_layernorm"),
        heads: &["transformer.output_layer", "output_layer"],
        qkv_bias: json::bias(config, "add_qkv_bias", false)?,
        ..HUGGING_FACE
    };
    Ok(Plan { spec, layout })
}

/// The rotation of ChatGLM. Its `rope_ratio` multiplies the base; the code of ChatGLM 2, which only its name tells from
/// ChatGLM 3, divides positions by it.
fn chatglm_rotation(config: &JsonConfig, dim: usize) -> Result<Rotation, ModelError> {
    let factor = json::positive(config, "rope_ratio", 1.0)?;
    let is_second = config.optional_str("_name_or_path")?.is_some_and(|name| name.to_lowercase().contains("chatglm2"));
    if factor == 1.0 || !is_second {
        return Ok(ROPE.rotation(ROPE.theta * factor, dim));
    }
    let unscaled = ROPE.rotation(ROPE.theta, dim);
    let frequencies = unscaled.frequencies.iter().map(|frequency| frequency / factor).collect();
    Ok(Rotation { frequencies, scaling: Scaling::Linear { factor }, ..unscaled })
}

fn from_gguf(gguf: Gguf<'_>, name: &'static str) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec(name, NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Interleaved)?;
    let qkv = if gguf.has("blk.0.attn_qkv.weight") { GGUF_QKV } else { GGUF.qkv };
    Ok(Plan { spec, layout: Layout { qkv, up: Up::Fused("ffn_up"), ..GGUF } })
}

fn chatglm_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    from_gguf(gguf, "chatglm")
}

fn glm4_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let Plan { spec, layout } = from_gguf(gguf, "glm4")?;
    let [attention_post_norm, ffn_post_norm] = [Some("post_attention_norm"), Some("post_ffw_norm")];
    Ok(Plan { spec, layout: Layout { attention_post_norm, ffn_post_norm, ..layout } })
}
