//! Gemma 4 (text): Gemma 3 with two kinds of layers that differ in more than their window.
//!
//! Layers with full attention have wider heads, perhaps fewer key-value heads and keys that also serve as values, and
//! rotate only the first pairs of whole heads ("proportional"). Queries, keys and values are normalized, values without
//! weights, and scores are not scaled; norms multiply by their weight itself; each layer ends with a multiplier. Small
//! models have per-layer embeddings, and their last layers attend to the keys and values of earlier ones, with a
//! feed-forward network that may be twice as wide. One model has experts in parallel with a dense network in every
//! layer, each of the two with norms of its own. Only text is run.

use foretoken_kernels::rope::Pairing;

use super::checks::{check_head_dim, check_heads, count};
use super::experts::{self, Normalized};
use super::gemma::{FIELDS, FOUR_NORMS, FOUR_NORMS_OF_GGUF, GGUF_FEED_FORWARD, cap, embedding_multiplier, pattern};
use super::gguf::{Gguf, NormKind};
use super::layout::{EACH, ExpertNames, ExpertStorage, GGUF_FUSED, Layout, QkNormNames};
use super::write::GgufDescription;
use super::{Family, Plan, gemma, json, rope};
use crate::checkpoint::JsonConfig;
use crate::collected::tensor;
use crate::error::ModelError;
use crate::spec::{Experts, Heads, LayerAttention, LayerInputs, Positions, Rotation, Router, Scaling, SharedKv, Spec};

pub(super) const FAMILIES: &[Family] =
    &[Family::new(Some(("gemma4_text", from_json)), Some(("gemma4", from_gguf))).exported_as("gemma4", keys)];

const LAYOUT: Layout = Layout {
    one_plus: false,
    qk_norms: QkNormNames::SharedByHeads(["self_attn.q_norm", "self_attn.k_norm"]),
    value_norm: true,
    multiplier: Some("layer_scalar"),
    experts: EXPERTS,
    ..FOUR_NORMS
};

/// The names of published checkpoints, and of a tensor for each matrix, as programs that quantize checkpoints write
/// them.
const EXPERTS: &[ExpertNames] = &[
    ExpertNames { storage: ExpertStorage::Fused(["experts.gate_up_proj", "experts.down_proj"]), ..ROUTED },
    ExpertNames { storage: ExpertStorage::Each("experts", ["gate_proj", "up_proj", "down_proj"]), ..ROUTED },
];

const ROUTED: ExpertNames = ExpertNames { router: "router.proj", ..EACH };

const LAYOUT_OF_GGUF: Layout = Layout {
    qk_norms: QkNormNames::SharedByHeads(["attn_q_norm", "attn_k_norm"]),
    value_norm: true,
    experts: GGUF_FUSED,
    ..FOUR_NORMS_OF_GGUF
};

fn from_json(config: &JsonConfig) -> Result<Plan, ModelError> {
    // Bidirectional attention within images does not affect text.
    const BOTH_WAYS: &str = "use_bidirectional_attention";
    if let Some(found) = config.optional_str(BOTH_WAYS)?.filter(|found| *found != "vision") {
        return Err(config.refuse(BOTH_WAYS, "null or vision", format!("{found:?}")));
    }
    let fields = json::Fields {
        vocabulary_default: Some(262_144),
        heads_default: Some(8),
        kv_heads_default: Some(4),
        context_default: 131_072,
        ..FIELDS
    };
    let mut spec = json::spec(config, "gemma4", &fields)?;
    json::check_listed(config, "num_hidden_layers", spec.layers)?;
    spec.attention_scale = 1.0;
    spec.embedding_multiplier = embedding_multiplier(config, spec.width)?;
    spec.logit_soft_cap = cap(config, "final_logit_softcapping", None)?;
    let full = full_layers(config, spec.layers)?;
    let keys_are_values = config.optional_bool("attention_k_eq_v")?.unwrap_or(false);
    let [of_full, of_sliding] = heads(config, &spec, &full, keys_are_values)?;
    spec.positions = Positions::Rope(rotations(config, &mut spec, [of_full, of_sliding])?.to_vec());
    let window = json::window_or(config, "sliding_window", 512)?;
    let of_full =
        LayerAttention { heads: Some(of_full), values_are_keys: keys_are_values, ..LayerAttention::rotated(0, None) };
    let of_sliding = LayerAttention { heads: Some(of_sliding), ..LayerAttention::rotated(1, window) };
    spec.attention = full.iter().map(|full| if *full { of_full } else { of_sliding }).collect();
    let shared = config.optional_usize("num_kv_shared_layers")?.unwrap_or(0);
    let refuse = |expected: String| config.refuse("num_kv_shared_layers", expected, shared);
    let double = config.optional_bool("use_double_wide_mlp")?.unwrap_or(false);
    let ffn_width = if double { 2 * spec.ffn_width } else { spec.ffn_width };
    share(&mut spec, shared, ffn_width).map_err(refuse)?;
    spec.layer_inputs = layer_inputs(config, spec.vocabulary)?;
    spec.experts = experts_from_json(config)?;
    let bias = json::bias(config, "attention_bias", false)?;
    Ok(Plan { spec, layout: Layout { qkv_bias: bias, output_bias: bias, ..LAYOUT } })
}

/// The experts in parallel with the dense networks, if there are any.
fn experts_from_json(config: &JsonConfig) -> Result<Option<Experts>, ModelError> {
    if !config.optional_bool("enable_moe_block")?.unwrap_or(false) {
        return Ok(None);
    }
    // None of these fields has a default.
    for field in [FIELDS_OF_EXPERTS.count[0], FIELDS_OF_EXPERTS.chosen, FIELDS_OF_EXPERTS.ffn_width] {
        config.usize(field)?;
    }
    Ok(Some(Experts { beside_dense: true, ..experts::from_json(config, &FIELDS_OF_EXPERTS)? }))
}

const FIELDS_OF_EXPERTS: experts::Fields = experts::Fields {
    count: &["num_experts"],
    chosen: "top_k_experts",
    normalized: Normalized::Always,
    ..experts::HUGGING_FACE
};

/// Which layers have full attention: those that `layer_types` names or every sixth, and always the last.
fn full_layers(config: &JsonConfig, layers: usize) -> Result<Vec<bool>, ModelError> {
    let [full, sliding] = [None, Some(1)].map(|window| LayerAttention::rotated(0, window));
    let named = json::windows(config, layers, [full, sliding], pattern(6, [full, sliding]))?;
    Ok((0..layers).map(|layer| layer + 1 == layers || named[layer % named.len()] == full).collect())
}

/// The key-value heads of layers with full attention, and of the others: from fields of their own, or layer by layer,
/// as transformers 5 writes them.
fn heads(config: &JsonConfig, spec: &Spec, full: &[bool], keys_are_values: bool) -> Result<[Heads; 2], ModelError> {
    const EACH: &str = "per_layer_config";
    let network = Heads { count: spec.kv_heads, head_dim: spec.head_dim };
    if !config.has_key(EACH) {
        let names = ["num_global_key_value_heads", "global_head_dim"];
        let [count, head_dim] = names.map(|name| config.optional_usize(name));
        let count = count?.filter(|_| keys_are_values).unwrap_or(network.count);
        let of_full = Heads { count, head_dim: head_dim?.unwrap_or(512) };
        return Ok([checked(config, spec, names, of_full)?, network]);
    }
    let mut layers = vec![network; full.len()];
    if let Some(each) = config.optional_object(EACH)? {
        for name in each.fields() {
            let number = name.parse::<usize>().ok().filter(|number| *number < layers.len());
            let expected = || config.refuse(EACH, format!("layers below {}", full.len()), format!("{name:?}"));
            let number = number.ok_or_else(expected)?;
            if let Some(layer) = each.optional_object(name)? {
                layers[number] = heads_of_layer(&layer, spec, network)?;
            }
        }
    }
    let heads_of = |kind: bool| {
        let mut heads = layers.iter().zip(full).filter(|(_, full)| **full == kind).map(|(heads, _)| *heads);
        let first = heads.next().unwrap_or(network);
        let shown = |heads: Heads| format!("{} of {}", heads.count, heads.head_dim);
        match heads.find(|heads| *heads != first) {
            None => Ok(first),
            Some(other) => Err(config.refuse(EACH, format!("{} in all layers of a kind", shown(first)), shown(other))),
        }
    };
    Ok([heads_of(true)?, heads_of(false)?])
}

/// The heads of a layer with its own configuration, which lists differences.
fn heads_of_layer(layer: &JsonConfig, spec: &Spec, network: Heads) -> Result<Heads, ModelError> {
    const FIELDS: [&str; 2] = ["num_key_value_heads", "head_dim"];
    if let Some(other) = layer.fields().find(|field| !FIELDS.contains(field)) {
        return Err(layer.refuse(other, format!("nothing but {}", FIELDS.join(" and ")), "it"));
    }
    let [count, head_dim] = FIELDS.map(|field| layer.optional_usize(field));
    let heads = Heads { count: count?.unwrap_or(network.count), head_dim: head_dim?.unwrap_or(network.head_dim) };
    checked(layer, spec, FIELDS, heads)
}

/// Checks key-value heads; `names` are the fields of their number and width.
fn checked(config: &JsonConfig, spec: &Spec, names: [&str; 2], heads: Heads) -> Result<Heads, ModelError> {
    let file = config.file();
    count(file, names[0], heads.count)?;
    check_heads(file, ["num_attention_heads", names[0]], spec.heads, heads.count)?;
    check_head_dim(file, names[1], heads.head_dim)?;
    Ok(heads)
}

/// The rotations of layers with full attention and of the others, each with parameters of its own.
fn rotations(config: &JsonConfig, spec: &mut Spec, heads: [Heads; 2]) -> Result<[Rotation; 2], ModelError> {
    let [full, sliding] = heads.map(|heads| heads.head_dim);
    for head_dim in [full, sliding] {
        rope::even(config, "head_dim", head_dim)?;
    }
    let Some(all) = config.optional_object("rope_parameters")? else {
        const BASE: f32 = 1_000_000.0;
        let full = of_pairs(BASE, rope::proportional(BASE, full, 0.25));
        return Ok([full, rope::HALVES.rotation(10_000.0, sliding)]);
    };
    let network = spec.head_dim;
    let mut rotation_of = |kind: &str, head_dim: usize| {
        let parameters = all.optional_object(kind)?.ok_or_else(|| all.refuse(kind, "an object", "nothing"))?;
        if parameters.optional_str("rope_type")? == Some("proportional") {
            return proportional(&parameters, head_dim);
        }
        spec.head_dim = head_dim;
        rope::HALVES.rotation_of_config(config, Some(&parameters), spec)
    };
    let both = [rotation_of("full_attention", full)?, rotation_of("sliding_attention", sliding)?];
    spec.head_dim = network;
    Ok(both)
}

/// A rotation with these frequencies.
fn of_pairs(base: f32, frequencies: Vec<f32>) -> Rotation {
    Rotation { frequencies, pairing: Pairing::Halves, magnitude: 1.0, base, scaling: Scaling::Divided, by_length: None }
}

/// A rotation of the first pairs of whole heads.
fn proportional(parameters: &JsonConfig, head_dim: usize) -> Result<Rotation, ModelError> {
    const PART: &str = "partial_rotary_factor";
    let theta = json::positive(parameters, "rope_theta", 10_000.0)?;
    let (part, factor) = (json::positive(parameters, PART, 1.0)?, json::positive(parameters, "factor", 1.0)?);
    if part > 1.0 {
        return Err(parameters.refuse(PART, "a number above 0 and up to 1", part));
    }
    let frequencies = rope::proportional(theta, head_dim, part).into_iter().map(|frequency| frequency / factor);
    Ok(of_pairs(theta, frequencies.collect()))
}

/// Lets the last layers share the keys and values of earlier ones; `Err` has what was expected of their number.
fn share(spec: &mut Spec, layers: usize, ffn_width: usize) -> Result<(), String> {
    if layers == 0 {
        return Ok(());
    }
    if layers >= spec.layers {
        return Err(format!("fewer than there are layers, {}", spec.layers));
    }
    let (own, shared) = spec.attention.split_at(spec.layers - layers);
    if shared.iter().any(|layer| !own.contains(layer)) {
        return Err("a layer of each kind before those that share".to_string());
    }
    spec.shared_kv = Some(SharedKv { layers, ffn_width });
    Ok(())
}

/// The per-layer embeddings, if there are any.
fn layer_inputs(config: &JsonConfig, tokens: usize) -> Result<Option<LayerInputs>, ModelError> {
    const WIDTH: &str = "hidden_size_per_layer_input";
    const VOCABULARY: &str = "vocab_size_per_layer_input";
    let width = if config.has_key(WIDTH) { config.optional_usize(WIDTH)?.unwrap_or(0) } else { 256 };
    if width == 0 {
        return Ok(None);
    }
    let vocabulary = config.optional_usize(VOCABULARY)?.unwrap_or(262_144);
    if vocabulary < tokens {
        return Err(config.refuse(VOCABULARY, format!("at least vocab_size, {tokens}"), vocabulary));
    }
    let (file, multiplier) = (config.file(), embedding_multiplier(config, width)?);
    let (width, vocabulary) = (count(file, WIDTH, width)?, count(file, VOCABULARY, vocabulary)?);
    Ok(Some(LayerInputs { width, vocabulary, multiplier }))
}

fn from_gguf(gguf: Gguf<'_>) -> Result<Plan, ModelError> {
    let first = |key: &str| Ok(gguf.listed(key)?.and_then(|all| all.first().copied()));
    let mut spec = gguf.spec_by("gemma4", NormKind::Rms, GGUF_FEED_FORWARD, first)?;
    spec.attention_scale = 1.0;
    spec.embedding_multiplier = (spec.width as f32).sqrt();
    spec.logit_soft_cap = gguf.optional_f32(&spec, "final_logit_softcapping")?.filter(|cap| *cap > 0.0);
    let window = gguf.optional_count(&spec, "attention.sliding_window")?;
    let both = [LayerAttention::rotated(0, None), LayerAttention::rotated(1, window)];
    spec.attention = gguf.windows(&spec, both, Vec::new())?;
    if spec.attention.len() != spec.layers {
        let key = gguf.key(&spec, "attention.sliding_window_pattern");
        return Err(gguf.refuse(&key, format!("a truth value for each of {} layers", spec.layers), "others"));
    }
    gguf.weights.require("rope_freqs.weight")?;
    // The file's keys of heads describe layers with full attention.
    let global = gguf.rotation(&spec, Pairing::Halves)?;
    let of_full = spec.head_dim;
    spec.head_dim = head_dim_of_windows(gguf, &spec)?;
    let rotated = gguf.rotated(&spec, "rope.dimension_count_swa")?;
    let local = rope::HALVES.rotation(gguf.base_of_windows(&spec)?, rotated);
    spec.positions = Positions::Rope(vec![global, local]);
    heads_from_gguf(gguf, &mut spec, of_full)?;
    share_from_gguf(gguf, &mut spec)?;
    let inputs = gguf.optional_count(&spec, "embedding_length_per_layer_input")?;
    let inputs = inputs.map(|width| (width, (width as f32).sqrt()));
    let vocabulary = spec.vocabulary;
    spec.layer_inputs = inputs.map(|(width, multiplier)| LayerInputs { width, vocabulary, multiplier });
    if gguf.optional_count(&spec, "expert_count")?.is_some() {
        spec.experts = Some(Experts { beside_dense: true, ..gguf.experts(&spec, Router::SOFTMAX_OF_CHOSEN)? });
    }
    let multiplier = Some("layer_output_scale.weight").filter(|name| gguf.has(&format!("blk.0.{name}")));
    Ok(Plan { spec, layout: Layout { multiplier, ..LAYOUT_OF_GGUF } })
}

/// The width of heads in layers with a window.
fn head_dim_of_windows(gguf: Gguf<'_>, spec: &Spec) -> Result<usize, ModelError> {
    const KEYS: &str = "attention.key_length_swa";
    const VALUES: &str = "attention.value_length_swa";
    let head_dim = gguf.optional_count(spec, KEYS)?.unwrap_or(spec.head_dim);
    check_head_dim(gguf.metadata.source(), &gguf.key(spec, KEYS), head_dim)?;
    match gguf.optional_count(spec, VALUES)?.filter(|found| *found != head_dim) {
        None => Ok(head_dim),
        Some(found) => Err(gguf.refuse(&gguf.key(spec, VALUES), format!("the key length, {head_dim}"), found)),
    }
}

/// Sets the key-value heads of each kind of layer, and whether it has matrices of values.
fn heads_from_gguf(gguf: Gguf<'_>, spec: &mut Spec, of_full: usize) -> Result<(), ModelError> {
    let counts = gguf.counts(spec, "attention.head_count_kv")?.unwrap_or_else(|| vec![spec.heads]);
    let key = gguf.key(spec, "attention.head_count_kv");
    let own = spec.layers - gguf.optional_count(spec, SHARED)?.unwrap_or(0).min(spec.layers);
    for kind in [0, 1] {
        let of_kind = |layer: &usize| spec.attention[*layer].rotation == Some(kind);
        let layers: Vec<usize> = (0..spec.layers).filter(of_kind).collect();
        let Some(first) = layers.first() else { continue };
        let count_of = |layer: &usize| counts[layer % counts.len()];
        let count = count_of(first);
        if let Some(other) = layers.iter().find(|layer| count_of(layer) != count) {
            return Err(gguf.refuse(&key, format!("{count} in all layers of a kind"), count_of(other)));
        }
        check_heads(gguf.metadata.source(), [&gguf.key(spec, "attention.head_count"), &key], spec.heads, count)?;
        let has_values = |layer: &usize| gguf.has(&format!("blk.{layer}.attn_v.weight"));
        let values_are_keys = !layers.iter().filter(|layer| **layer < own).any(has_values);
        let heads = Some(Heads { count, head_dim: if kind == 0 { of_full } else { spec.head_dim } });
        layers.iter().for_each(|layer| {
            spec.attention[*layer] = LayerAttention { heads, values_are_keys, ..spec.attention[*layer] };
        });
    }
    Ok(())
}

const SHARED: &str = "attention.shared_kv_layers";

/// Sets the last layers, which share keys and values, and the width of their feed-forward networks.
fn share_from_gguf(gguf: Gguf<'_>, spec: &mut Spec) -> Result<(), ModelError> {
    const WIDTHS: &str = "feed_forward_length";
    let shared = gguf.optional_count(spec, SHARED)?.unwrap_or(0);
    let widths = gguf.counts(spec, WIDTHS)?.unwrap_or_else(|| vec![spec.ffn_width]);
    let last = widths[(spec.layers - 1) % widths.len()];
    share(spec, shared, last).map_err(|expected| gguf.refuse(&gguf.key(spec, SHARED), expected, shared))?;
    let width_of = |layer: &usize| widths[layer % widths.len()];
    if let Some(layer) = (0..spec.layers).find(|layer| width_of(layer) != spec.ffn_width_of(*layer)) {
        let expected = format!("{} in layer {layer}, as in others of its kind", spec.ffn_width_of(layer));
        return Err(gguf.refuse(&gguf.key(spec, WIDTHS), expected, width_of(&layer)));
    }
    Ok(())
}

/// The divisor of frequencies of pairs that are not rotated, as converters write it.
const UNROTATED_DIVISOR: f32 = 1e30;

/// The keys of heads and rotations describe layers with full attention; the others have keys of their own.
fn keys(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    gemma::keys(file)?;
    inputs(file)?;
    file.add_expert_width();
    let spec = file.spec.clone();
    let layers = 0..spec.layers;
    let sliding = |layer: usize| spec.attention_of(layer).rotation == Some(1);
    let shared = spec.layers - spec.kv_layers();
    if shared > 0 && !(spec.kv_layers() > 1 && sliding(spec.kv_layers() - 2) && !sliding(spec.kv_layers() - 1)) {
        // In llama.cpp all layers that share use the keys and values of these two.
        let expected = "a layer with a window and one without as the last two before those that share";
        return Err(file.refuse(&["num_kv_shared_layers"], expected, shared));
    }
    let head_dim_of = |kind: bool| {
        let layer = layers.clone().find(|layer| sliding(*layer) == kind);
        layer.map_or(spec.head_dim, |layer| spec.kv_heads_of(layer).head_dim)
    };
    let each = |count_of: &dyn Fn(usize) -> usize| layers.clone().map(count_of).collect::<Vec<usize>>();
    file.add_counts("feed_forward_length", &each(&|layer| spec.ffn_width_of(layer)));
    file.add_counts("attention.head_count_kv", &each(&|layer| spec.kv_heads_of(layer).count));
    for (field, kind) in [("length", false), ("length_swa", true)] {
        for part in ["attention.key", "attention.value"] {
            file.add_counts(&format!("{part}_{field}"), &[head_dim_of(kind)]);
        }
    }
    file.add_count("attention.shared_kv_layers", shared);
    file.add_flags("attention.sliding_window_pattern", layers.clone().map(sliding).collect());
    if let Some(window) = layers.clone().find_map(|layer| spec.attention_of(layer).window) {
        file.add_count("attention.sliding_window", window);
    }
    let values = layers.filter(|layer| *layer < spec.kv_layers() && !spec.attention_of(*layer).values_are_keys);
    values.for_each(|layer| file.add_marker_tensor(format!("blk.{layer}.attn_v.weight")));
    file.add_marker_tensor("blk.0.layer_output_scale.weight");
    if let [full, local] = spec.positions.rotations() {
        file.add_count("rope.dimension_count_swa", 2 * local.frequencies.len());
        file.add_key("rope.freq_base_swa", local.base);
        let plain = rope::plain(full.base, 2 * full.frequencies.len());
        let divisor = |(plain, turned): (&f32, &f32)| match full.scaling {
            Scaling::Divided if *turned == 0.0 => UNROTATED_DIVISOR,
            Scaling::Divided => plain / turned,
            _ => 1.0,
        };
        let divisors: Vec<f32> = plain.iter().zip(&full.frequencies).map(divisor).collect();
        file.tensors.push(tensor("rope_freqs.weight", vec![divisors.len()], &divisors));
    }
    Ok(())
}

/// Adds the keys of per-layer embeddings.
fn inputs(file: &mut GgufDescription<'_>) -> Result<(), ModelError> {
    let vocabulary = file.spec.vocabulary;
    file.add_count("embedding_length_per_layer_input", file.spec.layer_inputs.map_or(0, |inputs| inputs.width));
    let Some(inputs) = &mut file.spec.layer_inputs else { return Ok(()) };
    // The checkpoint's type would round it, as it rounds the embedding's multiplier, about which a note is added.
    inputs.multiplier = (inputs.width as f32).sqrt();
    match inputs.vocabulary {
        found if found != vocabulary => Err(file.refuse(&["vocab_size_per_layer_input"], vocabulary, found)),
        _ => Ok(()),
    }
}
