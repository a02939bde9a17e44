//! Mistral, Mixtral and Ministral: Llama whose rows see a window of the latest positions, in all layers or in some.
//! Ministral 3 has no windows; its queries grow with their position. Mixtral has experts.
//!
//! GGUF files of Mistral are of the architecture `llama`, and those with a window do not say so: they are run without,
//! as llama.cpp does, and are written for texts within the window. Those of Ministral 3 are of `mistral3`, and so are
//! newer ones of Mistral Small 3.

use foretoken_kernels::rope::Pairing;

use super::experts::{self, Normalized};
use super::gguf::{Gguf, NormKind};
use super::layout::{EACH, ExpertNames, GGUF, HUGGING, IN_MEMORY, Layout, Stored};
use super::rope::Rope;
use super::write::Writing;
use super::{Family, Plan, json, llama, rope};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, QueryGrowth};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(Some(("mistral", mistral)), None).written("llama", keys),
    Family::new(Some(("ministral", ministral)), None).written("llama", keys),
    Family::new(Some(("mixtral", mixtral)), None).written("llama", keys),
    Family::new(Some(("ministral3", ministral3)), Some(("mistral3", ministral3_of_gguf)))
        .written("mistral3", ministral3_keys),
];

fn mistral(config: &JsonConfig) -> Result<Plan, ModelError> {
    of_json(config, "mistral")
}

/// Experts of which two are chosen, by a softmax over the two.
fn mixtral(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields =
        json::Fields { kv_heads_default: Some(8), context_default: 131_072, epsilon_default: 1e-5, ..json::HUGGING };
    let mut spec = json::spec(config, "mixtral", &fields)?;
    Rope { theta: 1_000_000.0, ..rope::HALVES }.set(config, &mut spec)?;
    let window = json::window(config, "sliding_window")?;
    spec.attention = vec![LayerAttention { window, ..spec.attention[0] }];
    spec.experts = Some(experts::of_json(config, &EXPERTS)?);
    Ok(Plan { spec, layout: Layout { experts: NAMES, ..HUGGING } })
}

/// As published, and as transformers 5 holds them.
const NAMES: &[ExpertNames] = &[
    ExpertNames {
        router: "block_sparse_moe.gate",
        stored: Stored::Each("block_sparse_moe.experts", ["w1", "w3", "w2"]),
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
    ..experts::HUGGING
};

fn ministral(config: &JsonConfig) -> Result<Plan, ModelError> {
    of_json(config, "ministral")
}

fn ministral3(config: &JsonConfig) -> Result<Plan, ModelError> {
    let Plan { mut spec, layout } = of_json(config, "ministral3")?;
    if let Some(parameters) = rope::parameters(config)?.filter(|all| all.has("llama_4_scaling_beta")) {
        let period = json::positive(&parameters, "original_max_position_embeddings", 16_384.0)?;
        spec.query_growth = Some(QueryGrowth { rate: parameters.f32("llama_4_scaling_beta")?, period });
    }
    Ok(Plan { spec, layout })
}

/// Of a `mistral` all layers have the window, of a `ministral` those that `layer_types` names.
fn of_json(config: &JsonConfig, name: &'static str) -> Result<Plan, ModelError> {
    let fields = json::Fields { kv_heads_default: Some(8), context_default: 131_072, ..json::HUGGING };
    let mut spec = json::spec(config, name, &fields)?;
    rope::HALVES.set(config, &mut spec)?;
    let full = spec.attention[0];
    let sliding = LayerAttention { window: json::window_or(config, "sliding_window", 4096)?, ..full };
    spec.attention = match name {
        "mistral" => vec![sliding],
        "ministral3" => vec![LayerAttention { window: json::window(config, "sliding_window")?, ..full }],
        _ => json::windows(config, spec.layers, [full, sliding], vec![sliding])?,
    };
    Ok(Plan { spec, layout: HUGGING })
}

fn keys(file: &mut Writing<'_>) -> Result<(), ModelError> {
    file.within_windows();
    llama::keys(file)
}

/// How fast queries grow.
const GROWTH: &str = "attention.temperature_scale";

/// Queries grow where the file says how fast, and a step every trained context.
fn ministral3_of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("mistral3", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Neighbours)?;
    if let Some(rate) = gguf.optional_f32(&spec, GROWTH)?.filter(|rate| *rate != 0.0) {
        let period = gguf.optional_count(&spec, "rope.scaling.original_context_length")?.unwrap_or(spec.context_max);
        spec.query_growth = Some(QueryGrowth { rate, period: period as f32 });
    }
    Ok(Plan { spec, layout: GGUF })
}

fn ministral3_keys(file: &mut Writing<'_>) -> Result<(), ModelError> {
    if let Some(all) = rope::parameters(file.config)? {
        if all.has("mscale_all_dim") {
            file.say_yarn_logarithm(all.f32("mscale_all_dim")?);
        }
        // Of the architectures with YaRN, llama.cpp reads these turns in this one.
        for field in ["beta_fast", "beta_slow"] {
            let turns = all.optional_f32(field)?;
            turns.into_iter().for_each(|turns| file.say(&format!("rope.scaling.yarn_{field}"), turns));
        }
    }
    file.spec.query_growth.into_iter().for_each(|growth| file.say(GROWTH, growth.rate));
    Ok(())
}
