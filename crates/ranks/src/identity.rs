//! What tells one model's files from another's, wherever they lie.
//!
//! Ranks open files of their own, and must have the same ones. Reading all weights to compare them would take longer
//! than loading a rank's part, so of every tensor a few bytes are compared, beside its name, type and shape and the
//! model's configuration: a model that was trained a step longer differs in nearly all of them. Files that are damaged
//! elsewhere are not noticed.

use foretoken_model::Checkpoint;
use foretoken_model::checkpoint::Config;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Hashes of the parts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    configuration: u64,
    tensors: u64,
    weights: u64,
}

/// Places of a tensor at which bytes are compared, and how many at each.
const PLACES: usize = 4;
const BYTES: usize = 64;

impl Identity {
    /// The identity of a model whose files are open.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        let (mut configuration, mut tensors, mut weights) = (Xxh3::new(), Xxh3::new(), Xxh3::new());
        match &checkpoint.config {
            Config::Json(config) => configuration.update(config.text().as_bytes()),
            // The network does not depend on the tokenizer, which only rank 0 uses.
            Config::Gguf(metadata) => metadata
                .iter()
                .filter(|(key, _)| !key.starts_with("tokenizer."))
                .for_each(|(key, value)| configuration.update(format!("{key}: {value:?}\n").as_bytes())),
        }
        for tensor in checkpoint.weights.iter() {
            let (len, bytes) = (tensor.bytes.len(), &tensor.bytes[..]);
            let line = format!("{}: {:?} {:?} {len}\n", tensor.name, tensor.dtype, tensor.shape);
            tensors.update(line.as_bytes());
            for place in 0..PLACES {
                // From the first bytes to the last ones.
                let start = len.saturating_sub(BYTES) * place / (PLACES - 1);
                weights.update(&bytes[start..len.min(start + BYTES)]);
            }
        }
        Self { configuration: configuration.digest(), tensors: tensors.digest(), weights: weights.digest() }
    }

    /// The first part that differs from another model's, in words.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let parts = |one: &Self| [one.configuration, one.tensors, one.weights];
        let names = ["configuration", "tensors (names, types or shapes)", "weights"];
        let at = parts(self).iter().zip(parts(other)).position(|(own, other)| *own != other)?;
        Some(names[at])
    }
}
