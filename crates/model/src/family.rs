//! The families that can be run: one file each, and one entry of the register here (`FAMILIES`).
//!
//! Everything that is particular to a format stops in a family's file: names, permuted rows, transposed matrices, fused
//! tensors, scaling of frequencies. What comes out is the same for all: a [`Spec`] of the configuration, a network
//! whose matrices are described and not yet read, and, the way back, the keys and tensors of a GGUF file. Left out:
//! packing, which is the backend's.

use foretoken_weights::Weights;
use foretoken_weights::gguf::Metadata;

use crate::checkpoint::{Checkpoint, Config, JsonConfig};
use crate::collected::{Collected, Keys};
use crate::error::ModelError;
use crate::linear::Unpacked;
use crate::network::Network;
use crate::spec::Spec;
use tensors::Tensors;

mod checks;
mod gpt2;
mod llama;
mod rope;
mod tensors;

/// What is known of a family.
struct Family {
    /// Its name in `config.json`, as `model_type` spells it.
    model_type: &'static str,
    /// Its name in GGUF files, as `general.architecture` spells it; also [`Spec::family`].
    architecture: &'static str,
    /// What a `config.json` says.
    spec_of_json: fn(&JsonConfig) -> Result<Spec, ModelError>,
    /// What a GGUF file's metadata says, and its tensors' shapes.
    spec_of_gguf: fn(&Metadata, &Weights) -> Result<Spec, ModelError>,
    /// The network of a configuration that one of the two has read.
    read: fn(Spec, Tensors<'_>, &Config) -> Result<Network<Unpacked>, ModelError>,
    /// Keys of a GGUF file for a Hugging Face checkpoint, whose tensors are added to those collected.
    export: fn(&JsonConfig, &Spec, &mut Collected<'_>) -> Result<Keys, ModelError>,
}

/// An entry of the register: what every family's file has, by these names.
macro_rules! family {
    ($file:ident) => {
        Family {
            model_type: $file::MODEL_TYPE,
            architecture: $file::ARCHITECTURE,
            spec_of_json: $file::spec_of_json,
            spec_of_gguf: $file::spec_of_gguf,
            read: $file::read,
            export: $file::export,
        }
    };
}

/// The register.
const FAMILIES: &[Family] = &[family!(llama), family!(gpt2)];

/// The family of a checkpoint, by the name that its format gives it.
fn family_of(checkpoint: &Checkpoint) -> Result<&'static Family, ModelError> {
    let one_of = |name: fn(&Family) -> &'static str| {
        let names: Vec<_> = FAMILIES.iter().map(name).collect();
        format!("one of {}", names.join(", "))
    };
    match &checkpoint.config {
        Config::Json(config) => {
            const FIELD: &str = "model_type";
            let expected = || one_of(|family| family.model_type);
            let name = config.optional_str(FIELD)?.ok_or_else(|| config.refuse(FIELD, expected(), "nothing"))?;
            let family = FAMILIES.iter().find(|family| family.model_type == name);
            family.ok_or_else(|| config.refuse(FIELD, expected(), format!("{name:?}")))
        }
        Config::Gguf(metadata) => {
            const KEY: &str = "general.architecture";
            let (name, expected) = (metadata.str(KEY)?, one_of(|family| family.architecture));
            let family = FAMILIES.iter().find(|family| family.architecture == name);
            family.ok_or_else(|| ModelError::config(&checkpoint.name, KEY, expected, format!("{name:?}")))
        }
    }
}

/// What a checkpoint's configuration says, without touching its tensors.
///
/// # Errors
/// The family is unknown, or a field is missing, impossible or asks for something that is not implemented.
pub fn spec(checkpoint: &Checkpoint) -> Result<Spec, ModelError> {
    spec_by(family_of(checkpoint)?, checkpoint)
}

fn spec_by(family: &Family, checkpoint: &Checkpoint) -> Result<Spec, ModelError> {
    match &checkpoint.config {
        Config::Json(config) if config.has("quantization_config") => {
            Err(config.refuse("quantization_config", "nothing (unquantized weights)", "a quantization"))
        }
        Config::Json(config) => (family.spec_of_json)(config),
        Config::Gguf(metadata) => (family.spec_of_gguf)(metadata, &checkpoint.weights),
    }
}

/// Describes a whole network; of its tensors only vectors are read.
///
/// # Errors
/// As [`spec`], or a tensor is missing or contradicts the configuration.
pub(crate) fn read(checkpoint: &Checkpoint) -> Result<Network<Unpacked>, ModelError> {
    let family = family_of(checkpoint)?;
    let spec = spec_by(family, checkpoint)?;
    (family.read)(spec, Tensors { weights: &checkpoint.weights }, &checkpoint.config)
}

/// Keys of a GGUF file for a Hugging Face checkpoint, whose tensors are added to those collected.
///
/// # Errors
/// As [`spec`], a tensor is missing or contradicts the configuration, or GGUF has no word for something.
///
/// # Panics
/// If the checkpoint is a GGUF file.
pub(crate) fn export(checkpoint: &Checkpoint, collected: &mut Collected<'_>) -> Result<Keys, ModelError> {
    let Config::Json(config) = &checkpoint.config else { panic!("export: {} is GGUF already", checkpoint.name) };
    let family = family_of(checkpoint)?;
    (family.export)(config, &spec_by(family, checkpoint)?, collected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_comes_twice() {
        for name in [|family: &Family| family.model_type, |family: &Family| family.architecture] {
            let mut names: Vec<_> = FAMILIES.iter().map(name).collect();
            names.sort_unstable();
            assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        }
    }
}
