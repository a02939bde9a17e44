//! GPT-NeoX and Pythia: a parallel block with two LayerNorms of its input, part of each head rotated, queries, keys and
//! values fused head by head. Sequential blocks are supported, too.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, GGUF_QKV, HUGGING_FACE, Layout, Qkv, Up};
use super::rope::{HALVES, Rope};
use super::tensors::Bias;
use super::write::GgufDescription;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Residual};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("gpt_neox", from_json)), Some(("gptneox", from_gguf))).exported_as("gptneox", keys)];

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        epsilon: "layer_norm_eps",
        epsilon_default: 1e-5,
        norm: json::layer,
        activation_default: "gelu",
        gated: false,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "gptneox", &fields)?;
    // These are older names of the base and the rotated part.
    let theta = json::positive(config, "rotary_emb_base", 10_000.0)?;
    let partial = json::positive(config, "rotary_pct", 0.25)?;
    Rope { theta, partial: Some(partial), ..HALVES }.set(config, &mut spec)?;
    spec.residual = parallel(config.optional_bool("use_parallel_residual")?);
    let bias = json::bias(config, "attention_bias", true)?;
    let layout = Layout {
        prefixes: &["gpt_neox."],
        embedding: "embed_in",
        qkv: Qkv::Fused("attention.query_key_value", Fusion::ByGroup),
        attention_output: "attention.dense",
        up: Up::Plain("mlp.dense_h_to_4h"),
        down: "mlp.dense_4h_to_h",
        output_norm: Some("final_layer_norm"),
        heads: &["embed_out", "lm_head"],
        qkv_bias: bias,
        output_bias: bias,
        ffn_bias: Bias::Required,
        norm_bias: true,
        ..HUGGING_FACE
    };
    Ok(Plan { spec, layout })
}

fn parallel(field: Option<bool>) -> Residual {
    if field.unwrap_or(true) { Residual::Parallel } else { Residual::Sequential }
}

/// The plan of a GGUF file. llama.cpp computes this architecture's GELU by tanh, whatever the checkpoint had.
fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("gptneox", NormKind::Layer, FeedForward::Plain(Activation::GeluTanh))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    spec.residual = parallel(gguf.optional_bool(&spec, "use_parallel_residual")?);
    Ok(Plan { spec, layout: Layout { qkv: GGUF_QKV, up: Up::Plain("ffn_up"), norm_bias: true, ..GGUF } })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(false)?;
    file.require_biases("attention_bias", file.layout.qkv_bias)?;
    file.use_tanh_gelu();
    file.add_key("use_parallel_residual", file.spec.residual == Residual::Parallel);
    Ok(())
}
