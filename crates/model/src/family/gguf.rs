//! The metadata of GGUF files that nearly all families have: keys that begin with the architecture's name.
//!
//! A family's file calls [`Gguf::spec`] and then changes what is particular to it. Which tensors there are (biases, an
//! output head, fused projections) is taken from the file. [`Gguf::counts`] reads counts that differ from layer to
//! layer; `experts.rs` reads experts.

use foretoken_kernels::rope::Pairing;
use foretoken_weights::Weights;
use foretoken_weights::gguf::{Array, Metadata, Value};

use super::checks::{check_epsilon, check_head_dim, check_heads, count, gguf_vocabulary};
use super::rope;
use super::tensors::optional_vector;
use crate::error::ModelError;
use crate::spec::{ByLength, FeedForward, LayerAttention, Norm, Positions, Rotation, Scaling, Spec};

/// A GGUF file as families read it.
#[derive(Clone, Copy)]
pub(super) struct Gguf<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) weights: &'a Weights,
}

/// The normalization that a file's epsilon belongs to.
#[derive(Clone, Copy)]
pub(super) enum NormKind {
    Rms,
    Layer,
}

impl Gguf<'_> {
    /// The name of a key of the architecture.
    pub(super) fn key(&self, spec: &Spec, field: &str) -> String {
        format!("{}.{field}", spec.family)
    }

    /// Whether the file has a tensor.
    pub(super) fn has(&self, tensor: &str) -> bool {
        self.weights.get(tensor).is_some()
    }

    /// A number of the architecture, if it is there.
    pub(super) fn optional_f32(&self, spec: &Spec, field: &str) -> Result<Option<f32>, ModelError> {
        let key = self.key(spec, field);
        match self.metadata.optional_f32(&key)? {
            Some(found) if !found.is_finite() => Err(self.refuse(&key, "a finite number", found)),
            found => Ok(found),
        }
    }

    /// A count of the architecture, if it is there and not 0.
    pub(super) fn optional_count(&self, spec: &Spec, field: &str) -> Result<Option<usize>, ModelError> {
        let key = self.key(spec, field);
        let found = self.metadata.optional_usize(&key)?.filter(|found| *found > 0);
        found.map(|found| count(self.metadata.source(), &key, found)).transpose()
    }

    /// The numbers of a key, one for all layers or a list with one for each, if it is there.
    pub(super) fn listed(&self, key: &str) -> Result<Option<Vec<usize>>, ModelError> {
        match self.metadata.get(key) {
            Some(Value::Array(_)) => Ok(self.metadata.optional_usizes(key)?),
            _ => Ok(self.metadata.optional_usize(key)?.map(|one| vec![one])),
        }
    }

    /// A count of the architecture for each layer, or one for all, if it is there.
    pub(super) fn counts(&self, spec: &Spec, field: &str) -> Result<Option<Vec<usize>>, ModelError> {
        let key = self.key(spec, field);
        let Some(all) = self.listed(&key)? else { return Ok(None) };
        if all.len() != 1 && all.len() != spec.layers {
            return Err(self.refuse(&key, format!("one number, or one a layer, {}", spec.layers), all.len()));
        }
        all.iter().map(|found| count(self.metadata.source(), &key, *found)).collect::<Result<_, _>>().map(Some)
    }

    /// A boolean of the architecture, if it is there.
    pub(super) fn optional_bool(&self, spec: &Spec, field: &str) -> Result<Option<bool>, ModelError> {
        Ok(self.metadata.optional_bool(&self.key(spec, field))?)
    }

    /// An error about a key.
    pub(super) fn refuse(
        &self,
        key: &str,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> ModelError {
        ModelError::config(self.metadata.source(), key, expected, found)
    }

    /// The spec of a plain network with an architecture's keys, without rotations.
    ///
    /// # Errors
    /// A key is missing, of another type, impossible, or contradicts another.
    pub(super) fn spec(
        &self,
        family: &'static str,
        norm: NormKind,
        feed_forward: FeedForward,
    ) -> Result<Spec, ModelError> {
        self.spec_by(family, norm, feed_forward, |key| Ok(self.metadata.optional_usize(key)?))
    }

    /// [`Gguf::spec`] for an architecture whose key-value heads and feed-forward widths may differ from layer to layer:
    /// `of_layers` reads the network's value of such a key.
    pub(super) fn spec_by(
        &self,
        family: &'static str,
        norm: NormKind,
        feed_forward: FeedForward,
        of_layers: impl Fn(&str) -> Result<Option<usize>, ModelError>,
    ) -> Result<Spec, ModelError> {
        let Self { metadata, weights, .. } = *self;
        let file = metadata.source();
        let key = |name: &str| format!("{family}.{name}");
        let field = |name: &str| count(file, &key(name), metadata.usize(&key(name))?);
        let (width, heads) = (field("embedding_length")?, field("attention.head_count")?);
        let of_keys = key("attention.head_count_kv");
        let kv_heads = count(file, &of_keys, of_layers(&of_keys)?.unwrap_or(heads))?;
        check_heads(file, [&key("attention.head_count"), &of_keys], heads, kv_heads)?;
        let head_dim = self.head_dim(family, width, heads)?;
        let epsilon = key(match norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        });
        let value = check_epsilon(file, &epsilon, metadata.f32(&epsilon)?)?;
        let of_width = key("feed_forward_length");
        let ffn_width = match of_layers(&of_width)? {
            Some(width) => count(file, &of_width, width)?,
            None => field("feed_forward_length")?,
        };
        Ok(Spec {
            vocabulary: gguf_vocabulary(metadata, weights, family)?,
            width,
            embedding_width: width,
            layers: self.layers(family)?,
            heads,
            kv_heads,
            head_dim,
            ffn_width,
            context_max: field("context_length")?,
            norm: match norm {
                NormKind::Rms => Norm::Rms { epsilon: value },
                NormKind::Layer => Norm::Layer { epsilon: value },
            },
            feed_forward,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            tied_head: weights.get("output.weight").is_none(),
            ..Spec::plain(family)
        })
    }

    /// Number of the network's layers. The file also counts multi-token prediction layers, which come last.
    fn layers(&self, family: &str) -> Result<usize, ModelError> {
        let (metadata, nextn_key) = (self.metadata, format!("{family}.nextn_predict_layers"));
        let key = format!("{family}.block_count");
        let all = count(metadata.source(), &key, metadata.usize(&key)?)?;
        let nextn = metadata.optional_usize(&nextn_key)?.unwrap_or(0);
        match all.checked_sub(nextn).filter(|layers| *layers > 0) {
            Some(layers) => Ok(layers),
            None => Err(self.refuse(&nextn_key, format!("fewer than {key}, {all}"), nextn)),
        }
    }

    fn head_dim(&self, family: &str, width: usize, heads: usize) -> Result<usize, ModelError> {
        let (metadata, file) = (self.metadata, self.metadata.source());
        let key = |name: &str| format!("{family}.{name}");
        let of_keys = key("attention.key_length");
        let head_dim = match metadata.optional_usize(&of_keys)? {
            Some(head_dim) => check_head_dim(file, &of_keys, head_dim)?,
            None if width.is_multiple_of(heads) => {
                let fields = format!("{} / {}", key("embedding_length"), key("attention.head_count"));
                check_head_dim(file, &fields, width / heads)?
            }
            None => {
                let expected = format!("a multiple of {} = {heads}", key("attention.head_count"));
                return Err(self.refuse(&key("embedding_length"), expected, width));
            }
        };
        let of_values = key("attention.value_length");
        let value_dim = metadata.optional_usize(&of_values)?.unwrap_or(head_dim);
        if value_dim != head_dim {
            return Err(self.refuse(&of_values, format!("the key length, {head_dim}"), value_dim));
        }
        Ok(head_dim)
    }

    /// The layers with and without a window as the file lists them, or the pattern `default`.
    ///
    /// # Errors
    /// If the list does not have one entry per layer.
    pub(super) fn windows(
        &self,
        spec: &Spec,
        [full, sliding]: [LayerAttention; 2],
        default: Vec<LayerAttention>,
    ) -> Result<Vec<LayerAttention>, ModelError> {
        let key = self.key(spec, "attention.sliding_window_pattern");
        match self.metadata.get(&key) {
            None => Ok(default),
            Some(Value::Array(Array::Bool(layers))) if layers.len() == spec.layers => {
                Ok(layers.iter().map(|windowed| if *windowed { sliding } else { full }).collect())
            }
            Some(other) => match other.as_integer() {
                Some(period @ 1..=64) => {
                    Ok((1..=period).map(|layer| if layer == period { full } else { sliding }).collect())
                }
                _ => Err(self.refuse(&key, "a truth value for each layer, or how often one sees all", "others")),
            },
        }
    }

    /// Sets one rotation for all layers.
    ///
    /// # Errors
    /// A key is impossible, or the kind of scaling is not known.
    pub(super) fn rotate(&self, spec: &mut Spec, pairing: Pairing) -> Result<(), ModelError> {
        let rotation = self.rotation(spec, pairing)?;
        spec.positions = Positions::Rope(vec![rotation]);
        spec.attention = vec![LayerAttention::rotated(0, None)];
        Ok(())
    }

    /// The rotation of a file: linear scaling and yarn by its keys, llama3 and longrope by tensors of divisors that the
    /// converter has computed.
    pub(super) fn rotation(&self, spec: &Spec, pairing: Pairing) -> Result<Rotation, ModelError> {
        let positive = |field: &str, found: f32| {
            let fits = found > 0.0 && found.is_finite();
            if fits { Ok(found) } else { Err(self.refuse(&self.key(spec, field), "a finite number above 0", found)) }
        };
        let dim = self.rotated(spec, "rope.dimension_count")?;
        let base = self.metadata.optional_f32(&self.key(spec, "rope.freq_base"))?.unwrap_or(10_000.0);
        let base = positive("rope.freq_base", base)?;
        let of_kind = self.key(spec, "rope.scaling.type");
        let kind = self.metadata.optional_str(&of_kind)?.unwrap_or("none");
        let of_factor = self.key(spec, "rope.scaling.factor");
        let factor = match kind {
            "none" | "longrope" => self.metadata.optional_f32(&self.key(spec, "rope.scale_linear"))?.unwrap_or(1.0),
            "linear" | "yarn" => self.metadata.f32(&of_factor)?,
            other => return Err(self.refuse(&of_kind, "none, linear, yarn or longrope", format!("{other:?}"))),
        };
        let factor = positive("rope.scaling.factor", factor)?;
        let mut magnitude = match kind {
            "linear" => 1.0,
            _ => self.optional_f32(spec, "rope.scaling.attn_factor")?.unwrap_or(1.0),
        };
        let (mut frequencies, mut scaling) = if kind == "yarn" {
            let (frequencies, original, further) = self.yarn(spec, (base, dim), factor)?;
            magnitude *= further;
            (frequencies, Scaling::Yarn { factor, original })
        } else {
            let frequencies = rope::plain(base, dim).into_iter().map(|frequency| frequency / factor).collect();
            (frequencies, if factor == 1.0 { Scaling::None } else { Scaling::Linear { factor } })
        };
        let divided = |divisors: &Vec<f32>| -> Vec<f32> {
            frequencies.iter().zip(divisors).map(|(frequency, divisor)| frequency / divisor).collect()
        };
        let read = |name: &str| self.divisors(name, dim / 2);
        let original = self.optional_count(spec, "rope.scaling.original_context_length")?;
        let mut by_length = None;
        match (read("rope_freqs.weight")?, read("rope_factors_short.weight")?, read("rope_factors_long.weight")?) {
            (None, None, None) => {}
            (Some(divisors), ..) => (frequencies, scaling) = (divided(&divisors), Scaling::Divided),
            (None, short, long) => {
                // If a list is missing, its frequencies are not divided.
                let both = [short, long].map(|divisors| divisors.as_ref().map_or(frequencies.clone(), divided));
                // If the file does not say which sequences are long, all are short.
                by_length = Some(ByLength { short_max: original.unwrap_or(usize::MAX), frequencies: both });
                scaling = Scaling::Divided;
            }
        }
        Ok(Rotation { frequencies, pairing, magnitude, base, scaling, by_length }.for_context(spec.context_max))
    }

    /// The frequencies of YaRN, the context that the network was trained with, and the magnitude without `attn_factor`.
    /// The turns between which pairs are blended (beta_fast, beta_slow) are read for every family, as in transformers;
    /// llama.cpp assumes 32 and 1 in all but `mistral3`.
    fn yarn(&self, spec: &Spec, base_dim: (f32, usize), factor: f32) -> Result<(Vec<f32>, f32, f32), ModelError> {
        let number = |field: &str| match self.optional_f32(spec, field)?.filter(|found| *found != 0.0) {
            Some(found) if found < 0.0 => Err(self.refuse(&self.key(spec, field), "a number of at least 0", found)),
            found => Ok(found),
        };
        let original = self.optional_count(spec, "rope.scaling.original_context_length")?;
        let original = original.unwrap_or(spec.context_max) as f32;
        let fast = number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0);
        let slow = number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0);
        // This is `mscale_all_dim` of the checkpoint; its `mscale` is assumed to be 1.
        let all = number(rope::YARN_LOG_MULTIPLIER)?.map_or(1.0, |all| rope::yarn_magnitude(factor, all));
        let frequencies = rope::yarn_frequencies(base_dim, factor, original, [fast, slow], true);
        Ok((frequencies, original, rope::yarn_magnitude(factor, 1.0) / all))
    }

    /// Number of a head's elements that are rotated; all of them if the key is missing.
    pub(super) fn rotated(&self, spec: &Spec, field: &str) -> Result<usize, ModelError> {
        let key = self.key(spec, field);
        let dim = self.metadata.optional_usize(&key)?.unwrap_or(spec.head_dim);
        if dim == 0 || dim > spec.head_dim || !dim.is_multiple_of(2) {
            return Err(self.refuse(&key, format!("an even number up to the head's width, {}", spec.head_dim), dim));
        }
        Ok(dim)
    }

    /// The base of the rotation in layers with a window, for networks in which it differs from the others'.
    pub(super) fn base_of_windows(&self, spec: &Spec) -> Result<f32, ModelError> {
        let base = self.optional_f32(spec, "rope.freq_base_swa")?;
        Ok(base.filter(|base| *base > 0.0).unwrap_or(10_000.0))
    }

    /// A list of divisors of frequencies, if it is there.
    fn divisors(&self, name: &str, pairs: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(divisors) = optional_vector(self.weights, name, pairs)? else { return Ok(None) };
        match divisors.iter().find(|divisor| !(divisor.is_finite() && **divisor > 0.0)) {
            Some(found) => Err(self.refuse(&format!("tensor {name}"), "finite numbers above 0", found)),
            None => Ok(Some(divisors)),
        }
    }
}
