//! The fields of `config.json` that nearly all families have, by the names that each gives them.
//!
//! A family's file calls [`spec`] with its [`Fields`] and then changes what is particular to it. Every number is
//! checked here, so that no configuration can ask for a shape that overflows. Rotations are read in `rope.rs`.

use super::checks::{check_epsilon, check_head_dim, check_heads, count};
use super::tensors::Bias;
use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{Activation, FeedForward, LayerAttention, Norm, Spec};

/// The names of a family's fields, and the values of missing fields.
#[derive(Clone, Copy)]
pub(super) struct Fields {
    pub(super) vocabulary: &'static str,
    /// The number of tokens if the field is missing; `None` if it is required.
    pub(super) vocabulary_default: Option<usize>,
    pub(super) width: &'static str,
    pub(super) layers: &'static str,
    pub(super) heads: &'static str,
    /// The number of heads if the field is missing; `None` if it is required.
    pub(super) heads_default: Option<usize>,
    pub(super) kv_heads: &'static str,
    /// The number of key-value heads if the field is missing; `None` if it then equals that of heads.
    pub(super) kv_heads_default: Option<usize>,
    pub(super) head_dim: &'static str,
    /// The width of a head if the field is missing; `None` if it is then the width divided by the heads.
    pub(super) head_dim_default: Option<usize>,
    pub(super) ffn_width: &'static str,
    /// If `ffn_width` is missing, it is this many times the width; `None` if it is required.
    pub(super) ffn_factor: Option<usize>,
    pub(super) context: &'static str,
    pub(super) context_default: usize,
    pub(super) epsilon: &'static str,
    pub(super) epsilon_default: f32,
    pub(super) norm: fn(f32) -> Norm,
    pub(super) activation: &'static str,
    pub(super) activation_default: &'static str,
    pub(super) gated: bool,
    /// The value of `tie_word_embeddings` if it is missing.
    pub(super) tied: bool,
}

/// RMSNorm with this epsilon.
pub(super) fn rms(epsilon: f32) -> Norm {
    Norm::Rms { epsilon }
}

/// LayerNorm with this epsilon.
pub(super) fn layer(epsilon: f32) -> Norm {
    Norm::Layer { epsilon }
}

/// Llama's fields.
pub(super) const HUGGING_FACE: Fields = Fields {
    vocabulary: "vocab_size",
    vocabulary_default: None,
    width: "hidden_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    heads_default: None,
    kv_heads: "num_key_value_heads",
    kv_heads_default: None,
    head_dim: "head_dim",
    head_dim_default: None,
    ffn_width: "intermediate_size",
    ffn_factor: None,
    context: "max_position_embeddings",
    context_default: 2048,
    epsilon: "rms_norm_eps",
    epsilon_default: 1e-6,
    norm: rms,
    activation: "hidden_act",
    activation_default: "silu",
    gated: true,
    tied: false,
};

/// The spec of a plain network with these fields and learned positions.
///
/// # Errors
/// A field is missing, of another type, impossible, or contradicts another.
pub(super) fn spec(config: &JsonConfig, family: &'static str, fields: &Fields) -> Result<Spec, ModelError> {
    let file = config.file();
    let field = |name: &str| count(file, name, config.usize(name)?);
    let field_or = |name: &str, default: usize| count(file, name, config.optional_usize(name)?.unwrap_or(default));
    let required = |name: &str, default: Option<usize>| match default {
        None => field(name),
        Some(default) => field_or(name, default),
    };
    let (width, heads) = (field(fields.width)?, required(fields.heads, fields.heads_default)?);
    // If the field is present and null, the family's default does not apply.
    let kv_heads_default = fields.kv_heads_default.filter(|_| !config.has_key(fields.kv_heads)).unwrap_or(heads);
    let kv_heads = field_or(fields.kv_heads, kv_heads_default)?;
    check_heads(file, [fields.heads, fields.kv_heads], heads, kv_heads)?;
    let head_dim = head_dim(config, fields, width, heads)?;
    let activation = activation(config, fields.activation, fields.activation_default)?;
    let epsilon = config.optional_f32(fields.epsilon)?.unwrap_or(fields.epsilon_default);
    Ok(Spec {
        vocabulary: required(fields.vocabulary, fields.vocabulary_default)?,
        width,
        embedding_width: width,
        layers: field(fields.layers)?,
        heads,
        kv_heads,
        head_dim,
        ffn_width: match fields.ffn_factor {
            None => field(fields.ffn_width)?,
            Some(factor) => field_or(fields.ffn_width, factor * width)?,
        },
        context_max: field_or(fields.context, fields.context_default)?,
        norm: (fields.norm)(check_epsilon(file, fields.epsilon, epsilon)?),
        feed_forward: if fields.gated { FeedForward::Gated(activation) } else { FeedForward::Plain(activation) },
        attention_scale: 1.0 / (head_dim as f32).sqrt(),
        tied_head: config.optional_bool("tie_word_embeddings")?.unwrap_or(fields.tied),
        ..Spec::plain(family)
    })
}

fn head_dim(config: &JsonConfig, fields: &Fields, width: usize, heads: usize) -> Result<usize, ModelError> {
    let default = fields.head_dim_default.filter(|_| !config.has_key(fields.head_dim));
    match config.optional_usize(fields.head_dim)?.or(default) {
        Some(head_dim) => check_head_dim(config.file(), fields.head_dim, head_dim),
        None if width.is_multiple_of(heads) => {
            check_head_dim(config.file(), &format!("{} / {}", fields.width, fields.heads), width / heads)
        }
        None => Err(config.refuse(fields.width, format!("a multiple of {} = {heads}", fields.heads), width)),
    }
}

/// All activations, by their names in transformers.
const ACTIVATIONS: [(&str, Activation); 11] = [
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu", Activation::GeluErf),
    ("gelu_python", Activation::GeluErf),
    ("gelu_erf", Activation::GeluErf),
    ("relu", Activation::Relu),
    ("relu2", Activation::ReluSquared),
];

/// The first name of an activation.
pub(super) fn name_of(feed_forward: FeedForward) -> &'static str {
    let (FeedForward::Gated(activation) | FeedForward::Plain(activation)) = feed_forward;
    ACTIVATIONS.iter().find(|(_, known)| *known == activation).map_or("", |(name, _)| name)
}

/// The activation that a field names.
pub(super) fn activation(config: &JsonConfig, field: &str, default: &str) -> Result<Activation, ModelError> {
    activation_of(config, field, config.optional_str(field)?.unwrap_or(default))
}

/// The activation of this name, which is in this field.
pub(super) fn activation_of(config: &JsonConfig, field: &str, name: &str) -> Result<Activation, ModelError> {
    let known = ACTIVATIONS.iter().find(|(known, _)| *known == name);
    known.map(|(_, activation)| *activation).ok_or_else(|| {
        let names: Vec<&str> = ACTIVATIONS.iter().map(|(known, _)| *known).collect();
        config.refuse(field, format!("one of {}", names.join(", ")), format!("{name:?}"))
    })
}

/// Whether a field says that there are biases.
pub(super) fn bias(config: &JsonConfig, field: &str, default: bool) -> Result<Bias, ModelError> {
    Ok(if config.optional_bool(field)?.unwrap_or(default) { Bias::Required } else { Bias::None })
}

/// Refuses fields that are true, which ask for something that is not implemented.
pub(super) fn refuse_true(config: &JsonConfig, fields: &[&str]) -> Result<(), ModelError> {
    for field in fields {
        if config.optional_bool(field)?.unwrap_or(false) {
            return Err(config.refuse(field, "false", "true"));
        }
    }
    Ok(())
}

/// Refuses a string that is present and differs from this one.
pub(super) fn refuse_text(config: &JsonConfig, field: &str, only: &str) -> Result<(), ModelError> {
    match config.optional_str(field)?.filter(|found| *found != only) {
        None => Ok(()),
        Some(found) => Err(config.refuse(field, only, format!("{found:?}"))),
    }
}

/// A number above 0, or the default.
pub(super) fn positive(config: &JsonConfig, field: &str, default: f32) -> Result<f32, ModelError> {
    let found = config.optional_f32(field)?.unwrap_or(default);
    if found > 0.0 { Ok(found) } else { Err(config.refuse(field, "a number above 0", found)) }
}

/// A window of the latest positions.
pub(super) fn window(config: &JsonConfig, field: &str) -> Result<Option<usize>, ModelError> {
    config.optional_usize(field)?.map(|window| count(config.file(), field, window)).transpose()
}

/// A window, with a default if the field is missing; null means none.
pub(super) fn window_or(config: &JsonConfig, field: &str, default: usize) -> Result<Option<usize>, ModelError> {
    if config.has_key(field) { window(config, field) } else { Ok(Some(default)) }
}

/// The period of a pattern of layers, or the default.
pub(super) fn period(config: &JsonConfig, field: &str, default: usize) -> Result<usize, ModelError> {
    let found = config.optional_usize(field)?.unwrap_or(default);
    let fits = (1..=LISTED_MAX).contains(&found);
    if fits { Ok(found) } else { Err(config.refuse(field, format!("a number from 1 to {LISTED_MAX}"), found)) }
}

/// Maximum number of layers that are described one by one.
pub(super) const LISTED_MAX: usize = 1 << 16;

/// Checks that the layers are few enough to be described one by one: a configuration may contain any number.
pub(super) fn check_listed(config: &JsonConfig, field: &str, layers: usize) -> Result<(), ModelError> {
    if layers <= LISTED_MAX {
        return Ok(());
    }
    Err(config.refuse(field, format!("at most {LISTED_MAX} layers that differ"), layers))
}

/// The attention of each layer, by its name in `layer_types`; `None` if the field is missing.
///
/// # Errors
/// The field is not a list with one name for each layer, or a name is unknown to `kind`.
pub(super) fn layer_types(
    config: &JsonConfig,
    layers: usize,
    kind: impl Fn(&str) -> Option<LayerAttention>,
) -> Result<Option<Vec<LayerAttention>>, ModelError> {
    const FIELD: &str = "layer_types";
    let Some(names) = config.optional_strings(FIELD)? else { return Ok(None) };
    if names.len() != layers {
        return Err(config.refuse(FIELD, format!("one a layer, {layers}"), names.len()));
    }
    let known = |name: &String| kind(name).ok_or_else(|| config.refuse(FIELD, EXPECTED, format!("{name:?}")));
    names.iter().map(known).collect::<Result<Vec<_>, _>>().map(Some)
}

const EXPECTED: &str = "full_attention or sliding_attention, as the family has them";

/// The attention of the layers as `layer_types` lists them (full or sliding), or the pattern `default` if the field is
/// missing.
pub(super) fn windows(
    config: &JsonConfig,
    layers: usize,
    kinds: [LayerAttention; 2],
    default: Vec<LayerAttention>,
) -> Result<Vec<LayerAttention>, ModelError> {
    let [full, sliding] = kinds;
    let kind = |name: &str| match name {
        "full_attention" => Some(full),
        "sliding_attention" if sliding.window.is_some() => Some(sliding),
        _ => None,
    };
    Ok(layer_types(config, layers, kind)?.unwrap_or(default))
}
