//! GPT-2: LayerNorm with biases, learned positions, one fused projection for q, k and v, GELU, a tied head.
//!
//! Hugging Face stores its matrices `[inputs, outputs]` and its names come with and without `transformer.`;
//! GGUF stores them the usual way round. The fused projection is taken apart here, so the decoder sees three.

use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, GGUF_QKV, HUGGING, Layout, Qkv, Up};
use super::tensors::Bias;
use super::{Asked, Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::collected::{Collected, Keys, Order, common};
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Spec};

pub(super) const FAMILIES: &[Family] =
    &[Family { json: Some((NAME, of_json)), gguf: Some((NAME, of_gguf)), export: Some(export) }];

const NAME: &str = "gpt2";

/// As GPT-2 and its kin name them.
pub(super) const FIELDS: json::Fields = json::Fields {
    width: "n_embd",
    layers: "n_layer",
    heads: "n_head",
    ffn_width: "n_inner",
    ffn_factor: Some(4),
    context: "n_positions",
    context_default: 1024,
    epsilon: "layer_norm_epsilon",
    epsilon_default: 1e-5,
    norm: json::layer,
    activation: "activation_function",
    activation_default: "gelu_new",
    gated: false,
    tied: true,
    ..json::HUGGING
};

fn of_json(config: &JsonConfig, _: Asked) -> Result<Plan, ModelError> {
    json::refuse_true(config, &["scale_attn_by_inverse_layer_idx", "add_cross_attention"])?;
    let mut spec = json::spec(config, NAME, &FIELDS)?;
    if !config.optional_bool("scale_attn_weights")?.unwrap_or(true) {
        spec.attention_scale = 1.0;
    }
    Ok(Plan { spec, layout: LAYOUT })
}

/// Matrices are stored `[inputs, outputs]`.
pub(super) const LAYOUT: Layout = Layout {
    prefixes: &["transformer."],
    embedding: "wte",
    positions: Some(("wpe", 0)),
    layers: "h",
    attention_norm: Some("ln_1"),
    qkv: Qkv::Fused("attn.c_attn", Fusion::Stacked),
    attention_output: "attn.c_proj",
    ffn_norm: Some("ln_2"),
    up: Up::Plain("mlp.c_fc"),
    down: "mlp.c_proj",
    output_norm: Some("ln_f"),
    qkv_bias: Bias::Required,
    output_bias: Bias::Required,
    ffn_bias: Bias::Required,
    norm_bias: true,
    transposed: true,
    ..HUGGING
};

/// The only activation that GGUF's gpt2 has.
const OF_GGUF: FeedForward = FeedForward::Plain(Activation::GeluTanh);

fn of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let spec = gguf.spec(NAME, NormKind::Layer, OF_GGUF)?;
    Ok(Plan { spec, layout: LAYOUT_OF_GGUF })
}

pub(super) const LAYOUT_OF_GGUF: Layout = Layout {
    positions: Some(("position_embd", 0)),
    qkv: GGUF_QKV,
    up: Up::Plain("ffn_up"),
    qkv_bias: Bias::Required,
    output_bias: Bias::Required,
    ffn_bias: Bias::Required,
    norm_bias: true,
    ..GGUF
};

/// The checkpoint in GGUF's words. Its matrices are transposed.
fn export(config: &JsonConfig, spec: &Spec, all: &mut Collected<'_>) -> Result<Keys, ModelError> {
    if spec.feed_forward != OF_GGUF {
        let found = config.optional_str("activation_function")?.unwrap_or_default();
        return Err(config.refuse("activation_function", "gelu_new (GGUF's gpt2 has no other)", format!("{found:?}")));
    }
    if !config.optional_bool("scale_attn_weights")?.unwrap_or(true) {
        return Err(config.refuse("scale_attn_weights", "true (GGUF's gpt2 always scales)", false));
    }
    let prefix = if all.has("transformer.wte.weight") { "transformer." } else { "" };
    let Spec { vocabulary, width, ffn_width, context_max, .. } = *spec;
    let same = Order::Same;
    all.add(&format!("{prefix}wte.weight"), "token_embd.weight".into(), &[vocabulary, width], same)?;
    all.add(&format!("{prefix}wpe.weight"), "position_embd.weight".into(), &[context_max, width], same)?;
    all.head("lm_head", spec)?;
    let norm = |all: &mut Collected<'_>, from: String, to: String| {
        ["weight", "bias"]
            .into_iter()
            .try_for_each(|part| all.add(&format!("{from}.{part}"), format!("{to}.{part}"), &[width], same))
    };
    norm(all, format!("{prefix}ln_f"), "output_norm".into())?;
    for i in 0..spec.layers {
        let names = |from: &str, to: &str| (format!("{prefix}h.{i}.{from}"), format!("blk.{i}.{to}"));
        for (from, to) in [("ln_1", "attn_norm"), ("ln_2", "ffn_norm")] {
            let (from, to) = names(from, to);
            norm(all, from, to)?;
        }
        for (from, to, matrix) in [
            ("attn.c_attn", "attn_qkv", [3 * width, width]),
            ("attn.c_proj", "attn_output", [width, width]),
            ("mlp.c_fc", "ffn_up", [ffn_width, width]),
            ("mlp.c_proj", "ffn_down", [width, ffn_width]),
        ] {
            all.linear(names(from, to), matrix, true, Order::Transposed)?;
        }
        // Masks that old checkpoints carry along.
        all.used.extend(["attn.bias", "attn.masked_bias"].map(|mask| format!("{prefix}h.{i}.{mask}")));
    }
    Ok(common(spec))
}
