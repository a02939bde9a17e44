//! Llama: RMSNorm, rotary positions, grouped heads, SiLU-gated feed-forward, a head of its own or tied.
//!
//! Two spellings: Hugging Face names (with or without the `model.` prefix) whose rotary pairs are halves of a
//! head, and GGUF names whose q and k rows were permuted so that pairs are neighbours. Biases are
//! there if the configuration says so. Yi and the dense models of DeepSeek are this family in all but their tokenizers,
//! and say so in their configurations.

use foretoken_kernels::rope::Pairing;
use foretoken_weights::gguf::Value;

use super::gguf::{Gguf, NormKind};
use super::layout::{GGUF, HUGGING, Layout};
use super::{Asked, Family, Plan, json, rope};
use crate::checkpoint::JsonConfig;
use crate::collected::{Collected, Keys, Order, common, number};
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, Spec};

pub(super) const FAMILIES: &[Family] =
    &[Family { json: Some((NAME, of_json)), gguf: Some((NAME, of_gguf)), export: Some(export) }];

const NAME: &str = "llama";

fn of_json(config: &JsonConfig, asked: Asked) -> Result<Plan, ModelError> {
    let mut spec = json::spec(config, NAME, &json::HUGGING)?;
    rope::HALVES.set(config, asked, &mut spec)?;
    let attention = json::bias(config, "attention_bias", false)?;
    let ffn_bias = json::bias(config, "mlp_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: attention, output_bias: attention, ffn_bias, ..HUGGING } })
}

fn of_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let mut spec = gguf.spec(NAME, NormKind::Rms, FeedForward::Gated(Activation::Silu))?;
    gguf.rotate(&mut spec, Pairing::Neighbours)?;
    Ok(Plan { spec, layout: GGUF })
}

/// The checkpoint in GGUF's words. Rows of q and k are interleaved, head by head, because GGUF rotates neighbours where
/// transformers rotates halves.
fn export(config: &JsonConfig, spec: &Spec, all: &mut Collected<'_>) -> Result<Keys, ModelError> {
    let mut metadata = common(spec);
    let mut say = |field: &str, value: Value| metadata.push((format!("{NAME}.{field}"), value));
    say("attention.head_count_kv", number(spec.kv_heads));
    say("vocab_size", number(spec.vocabulary));
    say("rope.dimension_count", number(spec.head_dim));
    say("attention.key_length", number(spec.head_dim));
    say("attention.value_length", number(spec.head_dim));
    export_rotation(config, spec, &mut say, all)?;

    let prefix = if all.has("model.embed_tokens.weight") { "model." } else { "" };
    let bias = |field: &str| Ok::<bool, ModelError>(config.optional_bool(field)?.unwrap_or(false));
    let (attention, ffn) = (bias("attention_bias")?, bias("mlp_bias")?);
    let Spec { vocabulary, width, ffn_width, head_dim, .. } = *spec;
    let (queries, keys) = (spec.heads * head_dim, spec.kv_heads * head_dim);
    let (same, rotated) = (Order::Same, Order::Interleaved(head_dim));
    all.add(&format!("{prefix}embed_tokens.weight"), "token_embd.weight".into(), &[vocabulary, width], same)?;
    all.add(&format!("{prefix}norm.weight"), "output_norm.weight".into(), &[width], same)?;
    all.head("lm_head", spec)?;
    for i in 0..spec.layers {
        let names = |from: &str, to: &str| (format!("{prefix}layers.{i}.{from}"), format!("blk.{i}.{to}"));
        for (from, to) in [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")] {
            let (from, to) = names(from, to);
            all.add(&format!("{from}.weight"), format!("{to}.weight"), &[width], same)?;
        }
        all.linear(names("self_attn.q_proj", "attn_q"), [queries, width], attention, rotated)?;
        all.linear(names("self_attn.k_proj", "attn_k"), [keys, width], attention, rotated)?;
        all.linear(names("self_attn.v_proj", "attn_v"), [keys, width], attention, same)?;
        all.linear(names("self_attn.o_proj", "attn_output"), [width, queries], attention, same)?;
        all.linear(names("mlp.gate_proj", "ffn_gate"), [ffn_width, width], ffn, same)?;
        all.linear(names("mlp.up_proj", "ffn_up"), [ffn_width, width], ffn, same)?;
        all.linear(names("mlp.down_proj", "ffn_down"), [width, ffn_width], ffn, same)?;
        // Old checkpoints store the frequencies of every layer; they follow from the configuration.
        all.used.push(format!("{prefix}layers.{i}.self_attn.rotary_emb.inv_freq"));
    }
    Ok(metadata)
}

/// Base and scaling of the rotation: keys for a linear one, a tensor of divisors for any other.
fn export_rotation(
    config: &JsonConfig,
    spec: &Spec,
    say: &mut impl FnMut(&str, Value),
    all: &mut Collected<'_>,
) -> Result<(), ModelError> {
    let parameters = rope::parameters(config)?;
    let within = parameters.as_ref().filter(|parameters| parameters.has("rope_theta")).unwrap_or(config);
    let base = within.optional_f32("rope_theta")?.unwrap_or(10_000.0);
    say("rope.freq_base", base.into());
    let kind = match &parameters {
        Some(parameters) => parameters
            .optional_str(if parameters.has("rope_type") { "rope_type" } else { "type" })?
            .unwrap_or("default"),
        None => "default",
    };
    match (kind, &parameters) {
        ("default", _) => {}
        ("linear", Some(parameters)) => {
            say("rope.scaling.type", "linear".into());
            say("rope.scaling.factor", parameters.f32("factor")?.into());
        }
        ("llama3", _) => {
            let plain = rope::plain(base, spec.head_dim);
            let scaled = &spec.positions.rotations()[0].frequencies;
            let divisors: Vec<f32> = plain.iter().zip(scaled).map(|(plain, scaled)| plain / scaled).collect();
            all.add_floats("rope_freqs.weight", &divisors);
        }
        (other, _) => {
            let expected = "default, linear or llama3 (others cannot be written as GGUF yet)";
            return Err(config.refuse("rope_type", expected, format!("{other:?}")));
        }
    }
    Ok(())
}
