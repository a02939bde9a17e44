//! Export of a Hugging Face checkpoint to GGUF: names of tensors, order of rows, keys of the network.
//!
//! The families describe the export, in the files in which they describe reading. Nothing is converted here: an
//! [`Exported`] tensor has its name and shape in the new file and yields its rows as floats, in the new order, from the
//! checkpoint's files. The caller exports the vocabulary (`text/src/export.rs`) and chooses the types of the new file.

use foretoken_weights::gguf::Value;

use crate::checkpoint::Checkpoint;
use crate::collected::Collected;
use crate::error::ModelError;
use crate::family::{self, ExportNotes};

pub use crate::collected::{Exported, Rows};

/// The keys and tensors of a GGUF file with a checkpoint's network.
pub struct Export {
    /// The keys that describe the network.
    pub metadata: Vec<(String, Value)>,
    /// The tensors.
    pub tensors: Vec<Exported>,
    /// Tensors of the checkpoint that the network does not use.
    pub left_out: Vec<String>,
    /// Differences between the file and the checkpoint, one line each.
    pub notes: Vec<String>,
}

/// Describes a Hugging Face checkpoint as a GGUF file.
///
/// # Errors
/// The configuration cannot be run or cannot be expressed in GGUF, or a tensor is missing, of a type that cannot be
/// computed with, of another shape than the configuration says, or not used although without it the network would be a
/// different one.
///
/// # Panics
/// If the checkpoint is a GGUF file.
pub fn gguf(checkpoint: &Checkpoint) -> Result<Export, ModelError> {
    let mut collected = Collected::new(&checkpoint.weights);
    let ExportNotes { keys: metadata, notes, left_out } = family::export(checkpoint, &mut collected)?;
    Ok(Export { metadata, tensors: collected.tensors, left_out, notes })
}
