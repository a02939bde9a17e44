//! Phi: the parallel block of Phi-1 to Phi-2, and the fused Llama of Phi-3 to Phi-4-mini.
//!
//! Phi-3's long-context models choose between two lists of divisors of their frequencies by the requested context
//! (`rope.rs`). Phi-3-small and Phi with experts, which are other architectures, are not supported.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{Fusion, GGUF, GGUF_QKV, HUGGING_FACE, Layout, QkNormNames, Qkv, Up};
use super::rope::{HALVES, Rope};
use super::tensors::Bias;
use super::write::GgufDescription;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Residual};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("phi3", phi3)), Some(("phi3", phi3_from_gguf))).exported_as("phi3", phi3_keys),
    Family::new(Some(("phi", phi)), Some(("phi2", phi2_from_gguf))).exported_as("phi2", phi2_keys),
];

fn phi3(config: &JsonConfig) -> Result<Plan, ModelError> {
    json::refuse_true(config, &["attention_bias"])?;
    let fields = json::Fields { context_default: 4096, epsilon_default: 1e-5, ..json::HUGGING_FACE };
    let mut spec = json::spec(config, "phi3", &fields)?;
    Rope { partial: Some(1.0), ..HALVES }.set(config, &mut spec)?;
    spec.attention[0].window = json::window(config, "sliding_window")?;
    let layout = Layout {
        qkv: Qkv::Fused("self_attn.qkv_proj", Fusion::Stacked),
        up: Up::Fused("mlp.gate_up_proj"),
        ..HUGGING_FACE
    };
    Ok(Plan { spec, layout })
}

/// The plan of a GGUF file of Phi-3. Windows are ignored, as in llama.cpp.
fn phi3_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("phi3", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    Ok(Plan { spec, layout: Layout { qkv: GGUF_QKV, up: Up::Fused("ffn_up"), ..GGUF } })
}

fn phi(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        ffn_factor: Some(4),
        epsilon: "layer_norm_eps",
        epsilon_default: 1e-5,
        norm: json::layer,
        activation_default: "gelu_new",
        gated: false,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "phi", &fields)?;
    Rope { partial: Some(0.5), ..HALVES }.set(config, &mut spec)?;
    spec.residual = Residual::Parallel;
    let normed = config.optional_bool("qk_layernorm")?.unwrap_or(false);
    let norms = QkNormNames::SharedByHeads(["self_attn.q_layernorm", "self_attn.k_layernorm"]);
    let layout = Layout {
        qk_norms: if normed { norms } else { QkNormNames::None },
        attention_output: "self_attn.dense",
        ffn_norm: None,
        up: Up::Plain("mlp.fc1"),
        down: "mlp.fc2",
        output_norm: Some("final_layernorm"),
        head_bias: Bias::Required,
        ..HUGGING_FACE.with_bias(Bias::Required)
    };
    Ok(Plan { spec, layout })
}

fn phi2_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("phi2", NormKind::Layer, FeedForward::Plain(Activation::GeluTanh))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    spec.residual = Residual::Parallel;
    let qkv = if gguf.has("blk.0.attn_qkv.weight") { GGUF_QKV } else { GGUF.qkv };
    let layout = Layout { qkv, ffn_norm: None, up: Up::Plain("ffn_up"), norm_bias: true, ..GGUF };
    Ok(Plan { spec, layout })
}

/// The keys of a file of Phi-3. The window is written, although programs ignore it.
fn phi3_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.add_divisors();
    let window = file.spec.attention[0].window.take();
    file.add_count("attention.sliding_window", window.unwrap_or(0));
    if let Some(window) = window.filter(|window| *window < file.spec.context_max) {
        file.note(format!("the file says that rows see {window} positions; programs let them see all"));
    }
    Ok(())
}

fn phi2_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(false)
}
