//! Hunyuan, dense: Llama with norms of the heads of q and k after the rotation, and a rotary base that `alpha` scales.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING_FACE, Layout, QkNormNames};
use super::write::GgufDescription;
use super::{Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Positions, Spec};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("hunyuan_v1_dense", from_json)), Some(("hunyuan-dense", from_gguf)))
        .exported_as("hunyuan-dense", keys)];

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    // These fields belong to the code that comes with older checkpoints; transformers ignores them.
    json::refuse_true(config, &["use_cla", "mlp_bias"])?;
    if !config.optional_bool("use_qk_norm")?.unwrap_or(true) {
        return Err(config.refuse("use_qk_norm", true, false));
    }
    let fields = json::Fields { epsilon_default: 1e-5, ..json::HUGGING_FACE };
    let mut spec = json::spec(config, "hunyuan-dense", &fields)?;
    set_rotation(config, &mut spec)?;
    spec.norms_after_rotation = true;
    let bias = json::bias(config, "attention_bias", false)?;
    let qk_norms = QkNormNames::SharedByHeads(["self_attn.query_layernorm", "self_attn.key_layernorm"]);
    Ok(Plan { spec, layout: Layout { qkv_bias: bias, output_bias: bias, qk_norms, ..HUGGING_FACE } })
}

/// Sets the rotation. With `alpha` a scaling named dynamic applies to sequences of every length, with a base that is
/// alpha^(d / (d - 2)) times as large, for heads of d elements.
fn set_rotation(config: &JsonConfig, spec: &mut Spec) -> Result<(), ModelError> {
    let parameters = rope::parameters(config)?;
    let dynamic = |scaling: &JsonConfig, field| Ok::<_, ModelError>(scaling.optional_str(field)? == Some("dynamic"));
    let alpha = match &parameters {
        Some(scaling) if dynamic(scaling, "rope_type")? || dynamic(scaling, "type")? => {
            scaling.optional_f32("alpha")?.filter(|alpha| *alpha != 0.0).map(|alpha| (scaling, alpha))
        }
        _ => None,
    };
    let Some((scaling, alpha)) = alpha else { return rope::HALVES.set(config, spec) };
    if alpha < 0.0 {
        return Err(scaling.refuse("alpha", "a number above 0", alpha));
    }
    let unscaled = rope::HALVES.rotation_of_config(config, None, spec)?;
    let (theta, dim) = (json::positive(scaling, "rope_theta", unscaled.base)?, spec.head_dim);
    let base = f64::from(theta) * f64::from(alpha).powf(dim as f64 / (dim as f64 - 2.0));
    let base = base as f32;
    if dim <= 2 || !base.is_finite() {
        return Err(scaling.refuse("alpha", "a finite base, and heads wider than 2", alpha));
    }
    spec.positions = Positions::Rope(vec![rope::HALVES.rotation(base, dim)]);
    spec.attention = vec![LayerAttention::rotated(0, None)];
    Ok(())
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("hunyuan-dense", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    spec.norms_after_rotation = true;
    Ok(Plan { spec, layout: Layout { qk_norms: QkNormNames::SharedByHeads(["attn_q_norm", "attn_k_norm"]), ..GGUF } })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.refuse_biases("attention_bias", &[file.layout.output_bias])
}
