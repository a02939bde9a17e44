//! StarCoder: GPTBigCode is GPT-2 with one head of keys and values (or all), StarCoder2 is Llama with LayerNorms,
//! biases and a plain feed-forward half.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, HUGGING, Layout, Qkv, Up};
use super::write::{nothing, within_windows};
use super::{Family, Plan, gpt2, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("gpt_bigcode", bigcode)), Some(("starcoder", bigcode_of_gguf))).written("starcoder", nothing),
    Family::new(Some(("starcoder2", starcoder2)), Some(("starcoder2", starcoder2_of_gguf)))
        .written("starcoder2", within_windows),
];

const OF_GGUF: FeedForward = FeedForward::Plain(Activation::GeluTanh);

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

fn bigcode_of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let spec = gguf.spec("starcoder", NormKind::Layer, OF_GGUF)?;
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
        ..json::HUGGING
    };
    json::refuse_text(config, "norm_type", "layer_norm")?;
    json::refuse_text(config, "mlp_type", "default")?;
    let mut spec = json::spec(config, "starcoder2", &fields)?;
    rope::HALVES.set(config, &mut spec)?;
    spec.attention[0].window = json::window(config, "sliding_window")?;
    let bias = json::bias(config, "use_bias", true)?;
    let layout = Layout {
        up: Up::Plain("mlp.c_fc"),
        down: "mlp.c_proj",
        qkv_bias: bias,
        output_bias: bias,
        ffn_bias: bias,
        norm_bias: true,
        ..HUGGING
    };
    Ok(Plan { spec, layout })
}

/// Files say nothing of windows.
fn starcoder2_of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("starcoder2", NormKind::Layer, OF_GGUF)?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    Ok(Plan { spec, layout: Layout { up: Up::Plain("ffn_up"), norm_bias: true, ..GGUF } })
}
