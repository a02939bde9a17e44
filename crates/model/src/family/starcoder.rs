//! StarCoder: GPTBigCode is GPT-2 with one key-value head (or all), StarCoder2 is Llama with LayerNorms, biases and a
//! feed-forward network without gate.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, HUGGING_FACE, Layout, Qkv, Up};
use super::write::{limit_context_to_window, no_further_keys};
use super::{Family, Plan, gpt2, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("gpt_bigcode", bigcode)), Some(("starcoder", bigcode_from_gguf)))
        .exported_as("starcoder", no_further_keys),
    Family::new(Some(("starcoder2", starcoder2)), Some(("starcoder2", starcoder2_from_gguf)))
        .exported_as("starcoder2", limit_context_to_window),
];

const GGUF_FEED_FORWARD: FeedForward = FeedForward::Plain(Activation::GeluTanh);

fn bigcode(config: &JsonConfig) -> Result<Plan, ModelError> {
    json::refuse_true(config, &["add_cross_attention"])?;
    let fields = json::Fields { activation_default: "gelu_pytorch_tanh", ..gpt2::FIELDS };
    let mut spec = json::spec(config, "starcoder", &fields)?;
    if !config.optional_bool("scale_attn_weights")?.unwrap_or(true) {
        spec.attention_scale = 1.0;
    }
    let one = config.optional_bool("multi_query")?.unwrap_or(true);
    spec.kv_heads = if one { 1 } else { spec.heads };
    let fusion = if one { Fusion::Stacked } else { Fusion::ByGroup };
    let layout = Layout { qkv: Qkv::Fused("attn.c_attn", fusion), transposed: false, ..gpt2::LAYOUT };
    Ok(Plan { spec, layout })
}

fn bigcode_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let spec = gguf.spec("starcoder", NormKind::Layer, GGUF_FEED_FORWARD)?;
    Ok(Plan { spec, layout: gpt2::LAYOUT_OF_GGUF })
}

fn starcoder2(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        kv_heads_default: Some(2),
        context_default: 4096,
        epsilon: "norm_epsilon",
        epsilon_default: 1e-5,
        norm: json::layer,
        activation_default: "gelu_pytorch_tanh",
        gated: false,
        tied: true,
        ..json::HUGGING_FACE
    };
    json::refuse_text(config, "norm_type", "layer_norm")?;
    json::refuse_text(config, "mlp_type", "default")?;
    let mut spec = json::spec(config, "starcoder2", &fields)?;
    rope::HALVES.set(config, &mut spec)?;
    spec.attention[0].window = json::window(config, "sliding_window")?;
    let bias = json::bias(config, "use_bias", true)?;
    let layout = Layout { up: Up::Plain("mlp.c_fc"), down: "mlp.c_proj", ..HUGGING_FACE.with_bias(bias) };
    Ok(Plan { spec, layout })
}

/// The plan of a GGUF file, in which there is no key for windows.
fn starcoder2_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("starcoder2", NormKind::Layer, GGUF_FEED_FORWARD)?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    Ok(Plan { spec, layout: Layout { up: Up::Plain("ffn_up"), norm_bias: true, ..GGUF } })
}
