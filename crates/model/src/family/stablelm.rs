//! StableLM: Llama with LayerNorms, a quarter of each head rotated, and, in the 12B, a parallel block and norms of q
//! and k, one per head.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING_FACE, Layout, QkNormNames};
use super::rope::{HALVES, Rope};
use super::write::GgufDescription;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Residual};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("stablelm", from_json)), Some(("stablelm", from_gguf))).exported_as("stablelm", keys)];

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        kv_heads_default: Some(32),
        context_default: 4096,
        epsilon: "layer_norm_eps",
        epsilon_default: 1e-5,
        norm: json::layer,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "stablelm", &fields)?;
    Rope { partial: Some(0.25), ..HALVES }.set(config, &mut spec)?;
    let parallel = config.optional_bool("use_parallel_residual")?.unwrap_or(false);
    if parallel {
        spec.residual = Residual::Parallel;
    }
    let normed = config.optional_bool("qk_layernorm")?.unwrap_or(false);
    let norms = QkNormNames::PerHeadTensors(["self_attn.q_layernorm.norms", "self_attn.k_layernorm.norms"]);
    let layout = Layout {
        qk_norms: if normed { norms } else { QkNormNames::None },
        ffn_norm: if parallel { None } else { HUGGING_FACE.ffn_norm },
        qkv_bias: json::bias(config, "use_qkv_bias", false)?,
        norm_bias: true,
        ..HUGGING_FACE
    };
    Ok(Plan { spec, layout })
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("stablelm", NormKind::Layer, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    let parallel = !gguf.has("blk.0.ffn_norm.weight");
    if parallel {
        spec.residual = Residual::Parallel;
    }
    let normed = gguf.has("blk.0.attn_q_norm.weight");
    let layout = Layout {
        qk_norms: if normed { QkNormNames::PerHead(["attn_q_norm", "attn_k_norm"]) } else { QkNormNames::None },
        ffn_norm: if parallel { None } else { GGUF.ffn_norm },
        norm_bias: true,
        ..GGUF
    };
    Ok(Plan { spec, layout })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.require_tied(false)?;
    file.add_key("use_parallel_residual", file.spec.residual == Residual::Parallel);
    Ok(())
}
