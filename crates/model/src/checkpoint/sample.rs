//! Hashes that tell one model from another without reading its weights.
//!
//! Of every tensor a few bytes are hashed, beside its name, type and shape and the model's configuration: a model that
//! was trained a step longer differs in nearly all of them. Files that are damaged elsewhere are not noticed.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{Checkpoint, Config};

/// Hashes of the parts of a model, wherever its files lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Of `config.json` as it is, or of all that a GGUF file says but its tokenizer.
    pub configuration: u64,
    /// Of the tensors' names, types and shapes.
    pub tensors: u64,
    /// Of some bytes of every tensor.
    pub weights: u64,
}

/// Places of a tensor at which bytes are hashed, and how many at each.
const PLACES: usize = 4;
const BYTES: usize = 64;

impl Sample {
    /// The first part that differs from another model's, in words.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let parts = |one: &Self| [one.configuration, one.tensors, one.weights];
        let names = ["configuration", "tensors (names, types or shapes)", "weights"];
        let at = parts(self).iter().zip(parts(other)).position(|(own, other)| *own != other)?;
        Some(names[at])
    }
}

impl Checkpoint {
    /// The sample of this model.
    pub fn sample(&self) -> Sample {
        let (mut configuration, mut tensors, mut weights) = (Xxh3::new(), Xxh3::new(), Xxh3::new());
        match &self.config {
            Config::Json(config) => configuration.update(config.text().as_bytes()),
            // The network does not depend on the tokenizer.
            Config::Gguf(metadata) => metadata
                .iter()
                .filter(|(key, _)| !key.starts_with("tokenizer."))
                .for_each(|(key, value)| configuration.update(format!("{key}: {value:?}\n").as_bytes())),
        }
        for tensor in self.weights.iter() {
            let (len, bytes) = (tensor.bytes.len(), &tensor.bytes[..]);
            let line = format!("{}: {:?} {:?} {len}\n", tensor.name, tensor.dtype, tensor.shape);
            tensors.update(line.as_bytes());
            for place in 0..PLACES {
                // From the first bytes to the last ones.
                let start = len.saturating_sub(BYTES) * place / (PLACES - 1);
                weights.update(&bytes[start..len.min(start + BYTES)]);
            }
        }
        Sample { configuration: configuration.digest(), tensors: tensors.digest(), weights: weights.digest() }
    }
}
