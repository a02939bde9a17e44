//! What tells one model's files from another's, wherever they lie.
//!
//! Ranks open files of their own, and must have the same ones. Reading all weights to compare them would take longer
//! than loading a rank's part, so samples are compared (`Checkpoint::sample`).

use foretoken_model::Checkpoint;
use foretoken_model::checkpoint::Sample;
use serde::{Deserialize, Serialize};

/// Hashes of the parts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    configuration: u64,
    tensors: u64,
    weights: u64,
}

impl Identity {
    /// The identity of a model whose files are open.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        let Sample { configuration, tensors, weights } = checkpoint.sample();
        Self { configuration, tensors, weights }
    }

    /// The first part that differs from another model's, in words.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let parts = |one: &Self| [one.configuration, one.tensors, one.weights];
        let names = ["configuration", "tensors (names, types or shapes)", "weights"];
        let at = parts(self).iter().zip(parts(other)).position(|(own, other)| *own != other)?;
        Some(names[at])
    }
}
