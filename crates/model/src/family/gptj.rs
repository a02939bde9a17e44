//! GPT-J and CodeGen: a parallel block with one LayerNorm, interleaved pairs rotated in the first part of each head,
//! biases only in the feed-forward network and the output head. GGUF has neither family.

use foretoken_kernels::rope::Pairing;

use super::checks::count;
use super::layout::{Fusion, HUGGING_FACE, Layout, Qkv, Up};
use super::rope::{HALVES, Rope, even};
use super::tensors::Bias;
use super::{Family, Plan, gpt2, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{LayerAttention, Positions, Residual};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("gptj", gptj)), None), Family::new(Some(("codegen", codegen)), None)];

fn gptj(config: &JsonConfig) -> Result<Plan, ModelError> {
    from_json(config, "gptj", Qkv::Three(["attn.q_proj", "attn.k_proj", "attn.v_proj"]))
}

fn codegen(config: &JsonConfig) -> Result<Plan, ModelError> {
    let plan = from_json(config, "codegen", Qkv::Fused("attn.qkv_proj", Fusion::InFourParts))?;
    if !plan.spec.heads.is_multiple_of(4) {
        return Err(config.refuse("n_head", "a multiple of 4", plan.spec.heads));
    }
    Ok(plan)
}

fn from_json(config: &JsonConfig, name: &'static str, qkv: Qkv) -> Result<Plan, ModelError> {
    let fields = json::Fields { context_default: 2048, tied: false, ..gpt2::FIELDS };
    let mut spec = json::spec(config, name, &fields)?;
    const FIELD: &str = "rotary_dim";
    let dim = if config.has_key(FIELD) { count(config.file(), FIELD, config.usize(FIELD)?)? } else { 64 };
    if dim > spec.head_dim {
        return Err(config.refuse(FIELD, format!("at most the width of a head, {}", spec.head_dim), dim));
    }
    let interleaved = Rope { pairing: Pairing::Interleaved, ..HALVES };
    spec.positions = Positions::Rope(vec![interleaved.rotation(10_000.0, even(config, FIELD, dim)?)]);
    spec.attention = vec![LayerAttention::rotated(0, None)];
    spec.residual = Residual::Parallel;
    let layout = Layout {
        prefixes: &["transformer."],
        embedding: "wte",
        layers: "h",
        attention_norm: Some("ln_1"),
        qkv,
        attention_output: "attn.out_proj",
        ffn_norm: None,
        up: Up::Plain("mlp.fc_in"),
        down: "mlp.fc_out",
        output_norm: Some("ln_f"),
        ffn_bias: Bias::Required,
        head_bias: Bias::Required,
        norm_bias: true,
        ..HUGGING_FACE
    };
    Ok(Plan { spec, layout })
}
