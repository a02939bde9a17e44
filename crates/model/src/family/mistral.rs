//! Mistral, Mixtral and Ministral: Llama with a sliding window, in all layers or in some. Ministral 3 has no windows;
//! its queries are scaled with their position. Mixtral has experts.
//!
//! GGUF files of Mistral have the architecture `llama`, which has no key for the window: they are run without it, as in
//! llama.cpp, and are written for contexts within the window. Files of Ministral 3, and newer ones of Mistral Small 3,
//! have the architecture `mistral3`.

use foretoken_kernels::rope::Pairing;

use super::experts::{self, Normalized};
use super::gguf::{Gguf, NormKind};
use super::layout::{EACH, ExpertNames, ExpertStorage, GGUF, HUGGING_FACE, IN_MEMORY, Layout};
use super::rope::Rope;
use super::write::GgufDescription;
use super::{Family, Plan, json, llama, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, QueryGrowth};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("mistral", mistral)), None).exported_as("llama", keys),
    Family::new(Some(("ministral", ministral)), None).exported_as("llama", keys),
    Family::new(Some(("mixtral", mixtral)), None).exported_as("llama", keys),
    Family::new(Some(("ministral3", ministral3)), Some(("mistral3", ministral3_from_gguf)))
        .exported_as("mistral3", ministral3_keys),
];

fn mistral(config: &JsonConfig) -> Result<Plan, ModelError> {
    from_json(config, "mistral")
}

/// The plan of Mixtral: two experts are chosen, with weights by a softmax over the two.
fn mixtral(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        kv_heads_default: Some(8),
        context_default: 131_072,
        epsilon_default: 1e-5,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "mixtral", &fields)?;
    Rope { theta: 1_000_000.0, ..rope::HALVES }.set(config, &mut spec)?;
    let window = json::window(config, "sliding_window")?;
    spec.attention = vec![LayerAttention { window, ..spec.attention[0] }];
    spec.experts = Some(experts::from_json(config, &EXPERTS)?);
    Ok(Plan { spec, layout: Layout { experts: NAMES, ..HUGGING_FACE } })
}

/// The names of published checkpoints, and those of transformers 5 in memory.
const NAMES: &[ExpertNames] = &[
    ExpertNames {
        router: "block_sparse_moe.gate",
        storage: ExpertStorage::Each("block_sparse_moe.experts", ["w1", "w3", "w2"]),
        ..EACH
    },
    IN_MEMORY,
];

const EXPERTS: experts::Fields = experts::Fields {
    count: &["num_local_experts"],
    count_default: 8,
    chosen_default: 2,
    ffn_width: "intermediate_size",
    ffn_width_default: 14_336,
    normalized: Normalized::Always,
    ..experts::HUGGING_FACE
};

fn ministral(config: &JsonConfig) -> Result<Plan, ModelError> {
    from_json(config, "ministral")
}

fn ministral3(config: &JsonConfig) -> Result<Plan, ModelError> {
    let Plan { mut spec, layout } = from_json(config, "ministral3")?;
    if let Some(parameters) = rope::parameters(config)?.filter(|all| all.has("llama_4_scaling_beta")) {
        let period = json::positive(&parameters, "original_max_position_embeddings", 16_384.0)?;
        spec.query_growth = Some(QueryGrowth::Steps { rate: parameters.f32("llama_4_scaling_beta")?, period });
    }
    Ok(Plan { spec, layout })
}

/// The plan of a configuration. In a `mistral` all layers have the window, in a `ministral` those that `layer_types`
/// names.
fn from_json(config: &JsonConfig, name: &'static str) -> Result<Plan, ModelError> {
    let fields = json::Fields { kv_heads_default: Some(8), context_default: 131_072, ..json::HUGGING_FACE };
    let mut spec = json::spec(config, name, &fields)?;
    rope::HALVES.set(config, &mut spec)?;
    let full = spec.attention[0];
    let sliding = LayerAttention { window: json::window_or(config, "sliding_window", 4096)?, ..full };
    spec.attention = match name {
        "mistral" => vec![sliding],
        "ministral3" => vec![LayerAttention { window: json::window(config, "sliding_window")?, ..full }],
        _ => json::windows(config, spec.layers, [full, sliding], vec![sliding])?,
    };
    Ok(Plan { spec, layout: HUGGING_FACE })
}

fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    file.limit_context_to_window();
    llama::keys(file)
}

/// The key of the rate at which queries grow with their position.
const GROWTH: &str = "attention.temperature_scale";

/// The plan of a GGUF file. Queries grow if the file has a rate, with a step for each length of the trained context.
fn ministral3_from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("mistral3", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Interleaved)?;
    if let Some(rate) = gguf.optional_f32(&spec, GROWTH)?.filter(|rate| *rate != 0.0) {
        let period = gguf.optional_count(&spec, "rope.scaling.original_context_length")?.unwrap_or(spec.context_max);
        spec.query_growth = Some(QueryGrowth::Steps { rate, period: period as f32 });
    }
    Ok(Plan { spec, layout: GGUF })
}

fn ministral3_keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    if let Some(all) = rope::parameters(file.config)? {
        if all.has("mscale_all_dim") {
            file.add_yarn_log_multiplier(all.f32("mscale_all_dim")?);
        }
        // llama.cpp reads these turns in this architecture alone.
        for field in ["beta_fast", "beta_slow"] {
            let turns = all.optional_f32(field)?;
            turns.into_iter().for_each(|turns| file.add_key(&format!("rope.scaling.yarn_{field}"), turns));
        }
    }
    if let Some(QueryGrowth::Steps { rate, .. }) = file.spec.query_growth {
        file.add_key(GROWTH, rate);
    }
    Ok(())
}
