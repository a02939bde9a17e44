//! The frequencies of the rotary embedding, with the scalings that checkpoints ask for.
//!
//! They are computed in f32 as in transformers, so that angles at far positions agree. Both formats are read:
//! `rope_parameters` (transformers 5), and `rope_theta` with `rope_scaling`.
//!
//! Scalings that have other frequencies for long sequences than for short ones (dynamic, longrope) are read for both,
//! and one is chosen when the longest sequence that will be run is known ([`set_context`]). transformers chooses by the
//! current length in each pass, so that a row's logits depend on tokens after it. Both make the same choice if sequence
//! and requested context lie on the same side of the threshold. Two kinds are not supported here and refused by name:
//! mrope, and "proportional" rotation of the first pairs of whole heads (which `gemma4.rs` reads).

use foretoken_kernels::rope::Pairing;

use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::spec::{ByLength, LayerAttention, Positions, Rotation, Scaling, Spec};

/// base^(-2i / dim) for i below dim / 2.
pub(super) fn plain(base: f32, dim: usize) -> Vec<f32> {
    (0..dim / 2).map(|i| 1.0 / power(base, i, dim)).collect()
}

/// base^(2i / dim).
fn power(base: f32, i: usize, dim: usize) -> f32 {
    base.powf((2 * i) as f32 / dim as f32)
}

/// The frequencies of [`plain`] for the first pairs of a head, of which this fraction is rotated; those of the others
/// are 0.
pub(super) fn proportional(base: f32, head_dim: usize, part: f32) -> Vec<f32> {
    let rotated = (f64::from(part) * head_dim as f64 / 2.0 + 1e-6) as usize;
    plain(base, head_dim)
        .into_iter()
        .enumerate()
        .map(|(i, frequency)| if i < rotated { frequency } else { 0.0 })
        .collect()
}

/// The properties that a family's rotations have in common.
#[derive(Clone, Copy)]
pub(super) struct Rope {
    pub(super) pairing: Pairing,
    /// The base if the configuration has none.
    pub(super) theta: f32,
    /// The fraction of a head that is rotated if `partial_rotary_factor` is missing; `None` if all of it is always
    /// rotated.
    pub(super) partial: Option<f32>,
}

/// The rotation of whole heads, whose halves form pairs.
pub(super) const HALVES: Rope = Rope { pairing: Pairing::Halves, theta: 10_000.0, partial: None };

impl Rope {
    /// Sets one rotation for all layers, as the configuration asks for.
    ///
    /// # Errors
    /// A parameter is missing or impossible, or the kind of scaling is not known.
    pub(super) fn set(&self, config: &JsonConfig, spec: &mut Spec) -> Result<(), ModelError> {
        let rotation = self.rotation_of_config(config, parameters(config)?.as_ref(), spec)?;
        spec.positions = Positions::Rope(vec![rotation]);
        spec.attention = vec![LayerAttention::rotated(0, None)];
        Ok(())
    }

    /// The rotation of these parameters. A scaling that extends the context raises `spec.context_max`.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub(super) fn rotation_of_config(
        &self,
        config: &JsonConfig,
        scaling: Option<&JsonConfig>,
        spec: &mut Spec,
    ) -> Result<Rotation, ModelError> {
        let within = |field: &str| scaling.filter(|scaling| scaling.has(field));
        let theta = match within("rope_theta") {
            Some(scaling) => positive(scaling, "rope_theta")?,
            None if config.has("rope_theta") => positive(config, "rope_theta")?,
            None => self.theta,
        };
        let dim = self.dim(within("partial_rotary_factor").unwrap_or(config), spec.head_dim)?;
        let unscaled = self.rotation(theta, dim);
        let Some(scaling) = scaling else { return Ok(unscaled) };
        let field = if scaling.has("rope_type") { "rope_type" } else { "type" };
        match scaling.optional_str(field)? {
            None | Some("default") => Ok(unscaled),
            Some("linear") => {
                let factor = positive(scaling, "factor")?;
                let frequencies = unscaled.frequencies.iter().map(|frequency| frequency / factor).collect();
                Ok(Rotation { frequencies, scaling: Scaling::Linear { factor }, ..unscaled })
            }
            Some("llama3") => {
                let frequencies = llama3(scaling, &unscaled.frequencies)?;
                Ok(Rotation { frequencies, scaling: Scaling::Divided, ..unscaled })
            }
            Some("dynamic") => dynamic(scaling, unscaled, spec),
            Some("yarn") => yarn(config, scaling, dim, unscaled, spec),
            Some("longrope" | "su") => longrope(config, scaling, dim, unscaled, spec),
            Some(other) => Err(scaling.refuse(
                field,
                "one of default, linear, llama3, dynamic, yarn, longrope",
                format!("{other:?}"),
            )),
        }
    }

    /// The unscaled rotation of `dim` elements with a base.
    pub(super) fn rotation(&self, base: f32, dim: usize) -> Rotation {
        let frequencies = plain(base, dim);
        Rotation { frequencies, pairing: self.pairing, magnitude: 1.0, base, scaling: Scaling::None, by_length: None }
    }

    /// Number of a head's elements that are rotated.
    fn dim(&self, config: &JsonConfig, head_dim: usize) -> Result<usize, ModelError> {
        const FIELD: &str = "partial_rotary_factor";
        let factor = config.optional_f32(FIELD)?.unwrap_or(self.partial.unwrap_or(1.0));
        if self.partial.is_none() && factor != 1.0 {
            return Err(config.refuse(FIELD, "1 (whole heads are rotated)", factor));
        }
        if !(factor > 0.0 && factor <= 1.0) {
            return Err(config.refuse(FIELD, "a number above 0 and up to 1", factor));
        }
        let dim = (head_dim as f64 * f64::from(factor) + 1e-6) as usize;
        even(config, if factor == 1.0 { "head_dim" } else { FIELD }, dim)
    }
}

/// The rotations of the layers with full attention and of those with a window. Each has parameters of its own under the
/// name of its kind, or, in the older format of Gemma 3, the scaling applies only to the former. `thetas` are the
/// default bases.
///
/// # Errors
/// As [`Rope::set`].
pub(super) fn of_layer_types(
    config: &JsonConfig,
    spec: &mut Spec,
    thetas: [f32; 2],
) -> Result<[Rotation; 2], ModelError> {
    let [full, sliding] = thetas.map(|theta| Rope { theta, ..HALVES });
    let nested = match config.optional_object("rope_parameters")? {
        Some(all) => {
            let parameters_of = |kind: &str| all.optional_object(kind);
            let both = (parameters_of("full_attention")?, parameters_of("sliding_attention")?);
            (both.0.is_some() || both.1.is_some()).then_some(both)
        }
        None => None,
    };
    if let Some((of_full, of_sliding)) = nested {
        let full = full.rotation_of_config(config, of_full.as_ref(), spec)?;
        return Ok([full, sliding.rotation_of_config(config, of_sliding.as_ref(), spec)?]);
    }
    let full = full.rotation_of_config(config, parameters(config)?.as_ref(), spec)?;
    let base = match config.has("rope_local_base_freq") {
        true => positive(config, "rope_local_base_freq")?,
        false => sliding.theta,
    };
    let local = sliding.rotation(base, 2 * full.frequencies.len());
    Ok([full, local])
}

/// Checks a number of rotated elements, which form pairs.
pub(super) fn even(config: &JsonConfig, field: &str, dim: usize) -> Result<usize, ModelError> {
    if dim > 0 && dim.is_multiple_of(2) {
        return Ok(dim);
    }
    let expected = if field == "head_dim" { "an even number" } else { "an even number of rotated elements" };
    Err(config.refuse(field, expected, dim))
}

/// The parameters of the rotation, in either format.
pub(super) fn parameters(config: &JsonConfig) -> Result<Option<JsonConfig>, ModelError> {
    match config.optional_object("rope_parameters")? {
        Some(parameters) => Ok(Some(parameters)),
        None => config.optional_object("rope_scaling"),
    }
}

fn positive(scaling: &JsonConfig, field: &str) -> Result<f32, ModelError> {
    let found = scaling.f32(field)?;
    if found > 0.0 { Ok(found) } else { Err(scaling.refuse(field, "a number above 0", found)) }
}

fn optional_positive(scaling: &JsonConfig, field: &str) -> Result<Option<f32>, ModelError> {
    if scaling.has(field) { positive(scaling, field).map(Some) } else { Ok(None) }
}

/// Number of positions that the network was trained with before its context was extended.
fn original(config: &JsonConfig, scaling: &JsonConfig, spec: &Spec) -> Result<f32, ModelError> {
    const FIELD: &str = "original_max_position_embeddings";
    let found = match optional_positive(config, FIELD)? {
        Some(found) => found,
        None => optional_positive(scaling, FIELD)?.unwrap_or(spec.context_max as f32),
    };
    if found >= 2.0 { Ok(found) } else { Err(scaling.refuse(FIELD, "a number of positions", found)) }
}

/// Raises the context to the length to which a scaling extends it.
fn extend_context(spec: &mut Spec, positions: f32) {
    const CONTEXT_MAX: usize = 1 << 24;
    spec.context_max = spec.context_max.max((positions as usize).min(CONTEXT_MAX));
}

/// Llama 3.1's scaling: frequencies with long wavelengths are divided by the factor, those with short ones are kept,
/// and those between are blended.
fn llama3(scaling: &JsonConfig, frequencies: &[f32]) -> Result<Vec<f32>, ModelError> {
    let factor = positive(scaling, "factor")?;
    let low = positive(scaling, "low_freq_factor")?;
    let high = positive(scaling, "high_freq_factor")?;
    let trained = positive(scaling, "original_max_position_embeddings")?;
    if high <= low {
        return Err(scaling.refuse("high_freq_factor", format!("a number above low_freq_factor = {low}"), high));
    }
    let scale = |&frequency: &f32| {
        let wavelength = 2.0 * std::f32::consts::PI / frequency;
        if wavelength > trained / low {
            frequency / factor
        } else if wavelength < trained / high {
            frequency
        } else {
            let smooth = (trained / wavelength - low) / (high - low);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    };
    Ok(frequencies.iter().map(scale).collect())
}

/// Dynamic scaling: a larger base, which depends on the longest sequence.
fn dynamic(scaling: &JsonConfig, unscaled: Rotation, spec: &mut Spec) -> Result<Rotation, ModelError> {
    let factor = positive(scaling, "factor")?;
    let trained = spec.context_max;
    extend_context(spec, trained as f32 * factor);
    Ok(Rotation { scaling: Scaling::Dynamic { trained, factor }, ..unscaled }.for_context(trained))
}

impl Rotation {
    /// Sets the frequencies for sequences of up to `context` tokens.
    pub(super) fn for_context(self, context: usize) -> Self {
        let dim = 2 * self.frequencies.len();
        let with_growth = |grown: f64| {
            let base = f64::from(self.base) * grown.powf(dim as f64 / (dim as f64 - 2.0));
            plain(base as f32, dim)
        };
        let frequencies = match (&self.scaling, &self.by_length) {
            (Scaling::Dynamic { trained, factor }, _) if dim > 2 => {
                let (longest, factor) = (context.max(*trained), f64::from(*factor));
                with_growth(factor * longest as f64 / *trained as f64 - (factor - 1.0))
            }
            (Scaling::DynamicByDoubling { trained }, _) if dim > 2 => {
                let times = context.max(*trained).div_ceil(*trained).checked_next_power_of_two().unwrap_or(usize::MAX);
                with_growth(2.0 * times as f64 - 1.0)
            }
            (_, Some(ByLength { short_max, frequencies })) => frequencies[usize::from(context > *short_max)].clone(),
            _ => return self,
        };
        Self { frequencies, ..self }
    }
}

/// Sets the frequencies of a network for the longest sequence that will be run, if they depend on it.
pub(super) fn set_context(spec: &mut Spec, context: usize) {
    if let Positions::Rope(rotations) = &mut spec.positions {
        rotations.iter_mut().for_each(|rotation| *rotation = rotation.clone().for_context(context));
    }
}

/// YaRN: frequencies with many turns within the trained context stay, those with less than one are divided by the
/// factor, those between are blended; and the rotated elements are multiplied by a number slightly above 1.
fn yarn(
    config: &JsonConfig,
    scaling: &JsonConfig,
    dim: usize,
    unscaled: Rotation,
    spec: &mut Spec,
) -> Result<Rotation, ModelError> {
    let original = original(config, scaling, spec)?;
    let factor = optional_positive(scaling, "factor")?.unwrap_or(spec.context_max as f32 / original);
    let scale = |by: f32| yarn_magnitude(factor, by);
    let number = |field: &str| Ok::<_, ModelError>(scaling.optional_f32(field)?.filter(|found| *found != 0.0));
    let magnitude = match (scaling.optional_f32("attention_factor")?, number("mscale")?, number("mscale_all_dim")?) {
        (Some(magnitude), _, _) => magnitude,
        (None, Some(one), Some(all)) => scale(one) / scale(all),
        (None, _, _) => scale(1.0),
    };
    let betas = [number("beta_fast")?.unwrap_or(32.0), number("beta_slow")?.unwrap_or(1.0)];
    let truncate = scaling.optional_bool("truncate")?.unwrap_or(true);
    extend_context(spec, original * factor);
    let frequencies = yarn_frequencies((unscaled.base, dim), factor, original, betas, truncate);
    Ok(Rotation { frequencies, magnitude, scaling: Scaling::Yarn { factor, original }, ..unscaled })
}

/// YaRN's multiplier of rotated elements for a factor, with a multiplier of its logarithm.
pub(super) fn yarn_magnitude(factor: f32, multiplier: f32) -> f32 {
    0.1 * multiplier * factor.max(1.0).ln() + 1.0
}

/// The GGUF key of the logarithm multiplier (`mscale_all_dim`) whose [`yarn_magnitude`] divides the other.
pub(super) const YARN_LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

/// The frequencies of [`yarn`]; `betas` are the turns within the trained context of the fastest pair that is blended
/// and of the slowest.
pub(super) fn yarn_frequencies(
    (theta, dim): (f32, usize),
    factor: f32,
    original: f32,
    betas: [f32; 2],
    truncate: bool,
) -> Vec<f32> {
    let pair_of = |turns: f32| {
        let wide = f64::from(original) / (f64::from(turns) * 2.0 * std::f64::consts::PI);
        dim as f64 * wide.ln() / (2.0 * f64::from(theta).ln())
    };
    let [low, high] = betas.map(pair_of);
    let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
    let (low, mut high) = (low.max(0.0) as f32, high.min(dim as f64 - 1.0) as f32);
    if low == high {
        high += 0.001;
    }
    let blended = |i: usize| {
        let kept = 1.0 - ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
        let power = power(theta, i, dim);
        1.0 / (factor * power) * (1.0 - kept) + 1.0 / power * kept
    };
    (0..dim / 2).map(blended).collect()
}

/// LongRoPE: a divisor for each pair, from one list for sequences within the trained context and from another for
/// longer ones.
fn longrope(
    config: &JsonConfig,
    scaling: &JsonConfig,
    dim: usize,
    unscaled: Rotation,
    spec: &Spec,
) -> Result<Rotation, ModelError> {
    let original = original(config, scaling, spec)?;
    let factor = optional_positive(scaling, "factor")?.unwrap_or(spec.context_max as f32 / original);
    let magnitude = match scaling.optional_f32("attention_factor")? {
        Some(magnitude) => magnitude,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + f64::from(factor).ln() / f64::from(original).ln()).sqrt() as f32,
    };
    let divisors = [divisors(scaling, "short_factor", dim)?, divisors(scaling, "long_factor", dim)?];
    let frequency = |(i, divisor): (usize, &f32)| 1.0 / (divisor * power(unscaled.base, i, dim));
    let frequencies = [0, 1].map(|list: usize| divisors[list].iter().enumerate().map(frequency).collect());
    let by_length = Some(ByLength { short_max: original as usize, frequencies });
    let scaling = Scaling::LongRope { original, divisors };
    Ok(Rotation { magnitude, scaling, by_length, ..unscaled }.for_context(spec.context_max))
}

/// A list of divisors, one for each pair.
fn divisors(scaling: &JsonConfig, field: &str, dim: usize) -> Result<Vec<f32>, ModelError> {
    let divisors = scaling.f32s(field)?;
    let positive = divisors.iter().all(|divisor| *divisor > 0.0);
    if divisors.len() != dim / 2 || !positive {
        let expected = format!("{} numbers above 0", dim / 2);
        return Err(scaling.refuse(field, expected, format!("{} numbers", divisors.len())));
    }
    Ok(divisors)
}
