//! Ernie 4.5, dense: Llama whose rotations turn neighbours, in transformers too.

use foretoken_kernels::rope::Pairing;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING, Layout};
use super::rope::Rope;
use super::write::Writing;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("ernie4_5", of_json)), Some(("ernie4_5", of_gguf))).written("ernie4_5", keys)];

fn of_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        kv_heads_default: Some(2),
        head_dim_default: Some(128),
        context_default: 131_072,
        epsilon_default: 1e-5,
        tied: true,
        ..json::HUGGING
    };
    // Positions are divided by it in the code that older checkpoints bring; transformers does not know it.
    const COMPRESSION: &str = "compression_ratio";
    if let Some(ratio) = config.optional_f32(COMPRESSION)?.filter(|ratio| *ratio != 1.0) {
        return Err(config.refuse(COMPRESSION, 1, ratio));
    }
    let mut spec = json::spec(config, "ernie4_5", &fields)?;
    let rope = Rope { pairing: Pairing::Neighbours, theta: 500_000.0, partial: None };
    rope.set(config, &mut spec)?;
    let bias = json::bias(config, "use_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: bias, output_bias: bias, ffn_bias: bias, ..HUGGING } })
}

fn of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("ernie4_5", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Neighbours)?;
    Ok(Plan { spec, layout: GGUF })
}

fn keys(file: &mut Writing<'_>) -> Result<(), ModelError> {
    file.refuse_biases("use_bias", &[file.layout.ffn_bias])
}
