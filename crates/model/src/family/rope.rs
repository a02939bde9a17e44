//! Frequencies of the rotary embedding, with the scalings that checkpoints ask for.
//!
//! Computed in f32 as transformers does, so that angles at far positions agree. Left out: yarn, dynamic and
//! longrope scaling, which are refused by name.

use crate::checkpoint::JsonConfig;
use crate::error::ModelError;

/// base^(-2i / dim) for i below dim / 2.
pub(super) fn plain(base: f32, dim: usize) -> Vec<f32> {
    (0..dim / 2).map(|i| 1.0 / base.powf((2 * i) as f32 / dim as f32)).collect()
}

/// Frequencies as `rope_parameters`, or `rope_theta` with the older `rope_scaling`, ask for.
pub(super) fn of_json(config: &JsonConfig, dim: usize) -> Result<Vec<f32>, ModelError> {
    let parameters = config.optional_object("rope_parameters")?;
    let scaling = match parameters {
        Some(parameters) => Some(parameters),
        None => config.optional_object("rope_scaling")?,
    };
    let within = scaling.as_ref().filter(|scaling| scaling.has("rope_theta"));
    let theta = match within {
        Some(scaling) => positive(scaling, "rope_theta")?,
        None if config.has("rope_theta") => positive(config, "rope_theta")?,
        None => 10_000.0,
    };
    let frequencies = plain(theta, dim);
    let Some(scaling) = scaling else { return Ok(frequencies) };
    let field = if scaling.has("rope_type") { "rope_type" } else { "type" };
    match scaling.optional_str(field)? {
        None | Some("default") => Ok(frequencies),
        Some("linear") => {
            let factor = positive(&scaling, "factor")?;
            Ok(frequencies.into_iter().map(|frequency| frequency / factor).collect())
        }
        Some("llama3") => llama3(&scaling, frequencies),
        Some(other) => Err(scaling.refuse(field, "one of default, linear, llama3", format!("{other:?}"))),
    }
}

fn positive(scaling: &JsonConfig, field: &str) -> Result<f32, ModelError> {
    let found = scaling.f32(field)?;
    if found > 0.0 { Ok(found) } else { Err(scaling.refuse(field, "a number above 0", found)) }
}

/// Llama 3.1's scaling: long wavelengths are divided by the factor, short ones kept, those between blended.
fn llama3(scaling: &JsonConfig, frequencies: Vec<f32>) -> Result<Vec<f32>, ModelError> {
    let factor = positive(scaling, "factor")?;
    let low = positive(scaling, "low_freq_factor")?;
    let high = positive(scaling, "high_freq_factor")?;
    let trained = positive(scaling, "original_max_position_embeddings")?;
    if high <= low {
        return Err(scaling.refuse("high_freq_factor", format!("a number above low_freq_factor = {low}"), high));
    }
    let scale = |frequency: f32| {
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
    Ok(frequencies.into_iter().map(scale).collect())
}
