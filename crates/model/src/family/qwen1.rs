//! Qwen 1, whose code comes with its checkpoints: Llama with fused queries, keys and values, which have biases, and
//! with other names. `intermediate_size` is the width of gate and up together.
//!
//! Two measures are for texts longer than the trained `seq_length`: queries grow with the logarithm of their position
//! (`use_logn_attn`), and the base of the rotation grows when the length doubles (`use_dynamic_ntk`). The checkpoints'
//! code chooses the base by the length of the prompt, and it is chosen by the context here. GGUF files can express
//! neither, so an exported file has the trained length as its context.

use foretoken_kernels::rope::Pairing;

use super::checks::count;
use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, GGUF_QKV, HUGGING_FACE, Layout, Qkv, Up};
use super::tensors::Bias;
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Positions, QueryGrowth, Rotation, Scaling, Spec};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("qwen", from_json)), Some(("qwen", from_gguf))).exported_as("qwen", keys)];

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        kv_heads: "num_attention_heads",
        head_dim: "kv_channels",
        context_default: 8192,
        epsilon: "layer_norm_epsilon",
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "qwen", &fields)?;
    if spec.head_dim * spec.heads != spec.width {
        let expected = format!("hidden_size / num_attention_heads = {} / {}", spec.width, spec.heads);
        return Err(config.refuse(fields.head_dim, expected, spec.head_dim));
    }
    if !spec.ffn_width.is_multiple_of(2) {
        return Err(config.refuse(fields.ffn_width, "an even number (gate and up together)", spec.ffn_width));
    }
    spec.ffn_width /= 2;
    set_positions(config, &mut spec)?;
    let has_bias = !config.optional_bool("no_bias")?.unwrap_or(true);
    let bias = if has_bias { Bias::Required } else { Bias::None };
    let layout = Layout {
        prefixes: &["transformer."],
        embedding: "wte",
        layers: "h",
        attention_norm: Some("ln_1"),
        qkv: Qkv::Fused("attn.c_attn", Fusion::Stacked),
        attention_output: "attn.c_proj",
        ffn_norm: Some("ln_2"),
        up: Up::Gated(["mlp.w2", "mlp.w1"]),
        down: "mlp.c_proj",
        output_norm: Some("ln_f"),
        qkv_bias: Bias::Required,
        output_bias: bias,
        ffn_bias: bias,
        ..HUGGING_FACE
    };
    Ok(Plan { spec, layout })
}

/// Sets the rotation, and what changes beyond the trained length, unless no text can be so long.
fn set_positions(config: &JsonConfig, spec: &mut Spec) -> Result<(), ModelError> {
    let trained = count(config.file(), "seq_length", config.usize("seq_length")?)?;
    if trained < 2 {
        return Err(config.refuse("seq_length", "at least 2", trained));
    }
    let theta = json::positive(config, "rotary_emb_base", 10_000.0)?;
    let part = json::positive(config, "rotary_pct", 1.0)?;
    if part > 1.0 {
        return Err(config.refuse("rotary_pct", "a number above 0 and up to 1", part));
    }
    let dim = (spec.head_dim as f64 * f64::from(part) + 1e-6) as usize;
    let unscaled = rope::HALVES.rotation(theta, rope::even(config, "rotary_pct", dim)?);
    let applies = |field: &str| Ok::<_, ModelError>(config.optional_bool(field)?.unwrap_or(true));
    let [ntk, logn] =
        [applies("use_dynamic_ntk")?, applies("use_logn_attn")?].map(|on| on && spec.context_max > trained);
    let scaling = if ntk { Scaling::DynamicByDoubling { trained } } else { Scaling::None };
    spec.positions = Positions::Rope(vec![Rotation { scaling, ..unscaled }]);
    spec.attention = vec![LayerAttention::rotated(0, None)];
    spec.query_growth = logn.then_some(QueryGrowth::Logarithm { trained });
    Ok(())
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("qwen", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    if !spec.ffn_width.is_multiple_of(2) {
        let expected = "an even number (gate and up together)";
        return Err(gguf.refuse("qwen.feed_forward_length", expected, spec.ffn_width));
    }
    spec.ffn_width /= 2;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    Ok(Plan { spec, layout: Layout { qkv: GGUF_QKV, ..GGUF } })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(false)?;
    if matches!(file.layout.output_bias, Bias::Required) {
        return Err(file.refuse(&["no_bias"], true, false));
    }
    file.add_counts("feed_forward_length", &[2 * file.spec.ffn_width]);
    let scaling = file.spec.positions.rotations().first().map(|rotation| &rotation.scaling);
    let trained = match (scaling, file.spec.query_growth) {
        (Some(Scaling::DynamicByDoubling { trained }), _) => *trained,
        (_, Some(QueryGrowth::Logarithm { trained })) => trained,
        _ => return Ok(()),
    };
    file.spec.query_growth = None;
    file.limit_context(trained);
    file.note(format!(
        "GGUF has no word for use_dynamic_ntk and use_logn_attn; the file is one for texts of up to {trained} tokens, \
         in which they change nothing"
    ));
    Ok(())
}
