//! GLM-4.5 and 4.6, and their Air variants: Llama with half of each head rotated, dense first layers, and experts with
//! sigmoid scores, corrections, perhaps groups, and a shared expert. The large models have norms of the heads of
//! queries and keys.
//!
//! Checkpoints have one more layer for multi-token prediction (`num_nextn_predict_layers`): it is not run, but reported
//! as left out.

use foretoken_kernels::rope::Pairing;

use super::checks::count;
use super::experts;
use super::gguf::{Gguf, NormKind};
use super::layout::{EACH, ExpertNames, GGUF, HUGGING_FACE, IN_MEMORY, Layout, QkNormNames, Up};
use super::rope::Rope;
use super::{Family, Plan, json};
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, Experts, FeedForward, GroupScore, Router, Scoring, SharedExpert};

pub(super) const FAMILIES: &[Family] = &[Family::new(Some(("glm4_moe", from_json)), Some(("glm4moe", from_gguf)))];

const ROUTER: Router = Router { scoring: Scoring::Sigmoid, ..Router::SOFTMAX };

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    let fields = json::Fields {
        kv_heads_default: Some(8),
        context_default: 131_072,
        epsilon_default: 1e-5,
        ..json::HUGGING_FACE
    };
    let mut spec = json::spec(config, "glm4_moe", &fields)?;
    let rope = Rope { pairing: Pairing::Halves, theta: 10_000.0, partial: Some(0.5) };
    rope.set(config, &mut spec)?;
    let experts = experts::from_json(config, &EXPERTS)?;
    let number = |field: &str| Ok::<_, ModelError>(config.optional_usize(field)?.unwrap_or(1));
    let file = config.file();
    let shared = match number("n_shared_experts")?.saturating_mul(experts.ffn_width) {
        0 => None,
        width => Some(count(file, "n_shared_experts * moe_intermediate_size", width)?),
    };
    let of_groups = ["n_group", "topk_group", EXPERTS.count[0]];
    let groups = [number("n_group")?, number("topk_group")?];
    let router = Router {
        corrected: true,
        groups: experts::groups(file, of_groups, groups, &experts, GroupScore::BestTwo)?,
        divided: config.optional_bool("norm_topk_prob")?.unwrap_or(true).then_some(experts::ADDED),
        factor: config.optional_f32("routed_scaling_factor")?.unwrap_or(1.0),
        ..ROUTER
    };
    spec.experts = Some(Experts {
        router,
        shared: shared.map(|ffn_width| SharedExpert { ffn_width, gated: false }),
        layers: experts::from_layer(config, number("first_k_dense_replace")?, spec.layers)?,
        ..experts
    });
    let normed = config.optional_bool("use_qk_norm")?.unwrap_or(false);
    let names = ["self_attn.q_norm", "self_attn.k_norm"];
    let layout = Layout {
        qk_norms: if normed { QkNormNames::SharedByHeads(names) } else { QkNormNames::None },
        qkv_bias: json::bias(config, "attention_bias", false)?,
        experts: NAMES,
        ..HUGGING_FACE
    };
    Ok(Plan { spec, layout })
}

const EXPERTS: experts::Fields = experts::Fields {
    count: &["n_routed_experts", "num_local_experts"],
    ffn_width_default: 1408,
    ..experts::HUGGING_FACE
};

const PUBLISHED: ExpertNames = ExpertNames {
    shared: (Up::Gated(["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"]), "mlp.shared_experts.down_proj"),
    ..EACH
};

/// The names of published checkpoints, and those of transformers 5 in memory.
const NAMES: &[ExpertNames] = &[PUBLISHED, ExpertNames { storage: IN_MEMORY.storage, ..PUBLISHED }];

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec("glm4moe", NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Halves)?;
    spec.experts = Some(gguf.experts(&spec, ROUTER)?);
    let normed = gguf.has("blk.0.attn_q_norm.weight");
    let qk_norms = if normed { QkNormNames::SharedByHeads(["attn_q_norm", "attn_k_norm"]) } else { QkNormNames::None };
    Ok(Plan { spec, layout: Layout { ffn_norm: Some("post_attention_norm"), qk_norms, ..GGUF } })
}
