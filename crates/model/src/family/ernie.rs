//! Ernie 4.5: Llama with interleaved pairs rotated, also in transformers. Its networks with experts have dense layers
//! before and between those, and corrections of scores.

use foretoken_kernels::rope::Pairing;

use super::checks::count;
use super::experts;
use super::gguf::{Gguf, NormKind};
use super::layout::{EACH, ExpertNames, GGUF, HUGGING_FACE, IN_MEMORY, Layout, Up};
use super::rope::Rope;
use super::write::GgufDescription;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, Experts, FeedForward, Router, SharedExpert, Spec, Sum};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("ernie4_5", dense)), Some(("ernie4_5", dense_from_gguf))).exported_as("ernie4_5", keys),
    Family::new(Some(("ernie4_5_moe", moe)), Some(("ernie4_5-moe", moe_from_gguf))),
];

fn spec(config: &JsonConfig, family: &'static str, fields: json::Fields) -> Result<Spec, ModelError> {
    let fields = json::Fields { context_default: 131_072, epsilon_default: 1e-5, tied: true, ..fields };
    // The code that comes with older checkpoints divides positions by it; transformers ignores it.
    const COMPRESSION: &str = "compression_ratio";
    if let Some(ratio) = config.optional_f32(COMPRESSION)?.filter(|ratio| *ratio != 1.0) {
        return Err(config.refuse(COMPRESSION, 1, ratio));
    }
    let mut spec = json::spec(config, family, &fields)?;
    let rope = Rope { pairing: Pairing::Interleaved, theta: 500_000.0, partial: None };
    rope.set(config, &mut spec)?;
    Ok(spec)
}

fn dense(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields { kv_heads_default: Some(2), head_dim_default: Some(128), ..json::HUGGING_FACE };
    let bias = json::bias(config, "use_bias", false)?;
    let layout = Layout { qkv_bias: bias, output_bias: bias, ffn_bias: bias, ..HUGGING_FACE };
    Ok(Plan { spec: spec(config, "ernie4_5", fields)?, layout })
}

fn moe(config: &JsonConfig) -> Result<Plan, ModelError> {
    json::refuse_true(config, &["use_bias"])?;
    let mut spec = spec(config, "ernie4_5_moe", json::Fields { kv_heads_default: Some(4), ..json::HUGGING_FACE })?;
    let experts = experts::from_json(config, &EXPERTS)?;
    let shared = config.optional_usize("moe_num_shared_experts")?.unwrap_or(2);
    let shared = match shared.saturating_mul(experts.ffn_width) {
        0 => None,
        width => Some(count(config.file(), "moe_num_shared_experts * moe_intermediate_size", width)?),
    };
    let least = config.optional_f32("moe_norm_min")?.unwrap_or(LEAST.least);
    if least < 0.0 {
        return Err(config.refuse("moe_norm_min", "a number of at least 0", least));
    }
    let divided = Some(Sum { least, ..LEAST });
    spec.experts = Some(Experts {
        router: Router { corrected: true, divided, ..Router::SOFTMAX },
        shared: shared.map(|ffn_width| SharedExpert { ffn_width, gated: false }),
        layers: sparse_layers(config, spec.layers)?,
        ..experts
    });
    Ok(Plan { spec, layout: Layout { experts: NAMES, ..HUGGING_FACE } })
}

const EXPERTS: experts::Fields = experts::Fields {
    count: &["moe_num_experts", "num_experts"],
    count_default: 64,
    chosen: "moe_k",
    chosen_default: 6,
    ffn_width: "moe_intermediate_size",
    ffn_width_default: 1536,
    ..experts::HUGGING_FACE
};

/// The default lower bound of the sum of the chosen scores.
const LEAST: Sum = Sum { added: 0.0, least: 1e-12 };

const PUBLISHED: ExpertNames = ExpertNames {
    corrections: "mlp.moe_statics.e_score_correction_bias",
    shared: (Up::Gated(["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"]), "mlp.shared_experts.down_proj"),
    ..EACH
};

/// The names of published checkpoints, and those of transformers 5 in memory.
const NAMES: &[ExpertNames] = &[
    PUBLISHED,
    ExpertNames {
        corrections: "mlp.gate.moe_statics.e_score_correction_bias",
        storage: IN_MEMORY.storage,
        ..PUBLISHED
    },
];

/// Which layers have experts: every `moe_layer_interval`th from the start index to the end index, of which -1 means the
/// last layer.
fn sparse_layers(config: &JsonConfig, layers: usize) -> Result<Vec<bool>, ModelError> {
    let [of_first, of_last, of_interval] = ["moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"];
    let interval = count(config.file(), of_interval, config.optional_usize(of_interval)?.unwrap_or(1))?;
    let first = config.optional_usize(of_first)?.unwrap_or(1);
    let last = match config.optional_f32(of_last)? {
        None | Some(-1.0) => layers - 1,
        Some(_) => config.usize(of_last)?,
    };
    json::check_listed(config, "num_hidden_layers", layers)?;
    Ok((0..layers).map(|layer| (layer + 1).is_multiple_of(interval) && (first..=last).contains(&layer)).collect())
}

fn from_gguf(gguf: Gguf<'_>, family: &'static str) -> Result<Spec, ModelError> {
    let mut spec = gguf.spec(family, NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Interleaved)?;
    Ok(spec)
}

fn dense_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    Ok(Plan { spec: from_gguf(gguf, "ernie4_5")?, layout: GGUF })
}

fn moe_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = from_gguf(gguf, "ernie4_5-moe")?;
    spec.experts = Some(gguf.experts(&spec, Router { divided: Some(LEAST), ..Router::SOFTMAX })?);
    Ok(Plan { spec, layout: GGUF })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.refuse_biases("use_bias", &[file.layout.ffn_bias])
}
