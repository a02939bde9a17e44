//! A Hugging Face checkpoint said in GGUF's words: names of tensors, order of rows, keys of the network.
//!
//! The way back of what families read, and said by them, in their files. Nothing is converted here: an [`Exported`]
//! tensor knows its name and shape in the new file and hands out its rows as floats, in the new order, from where they
//! lie. Left out: vocabularies, and what type the new file stores.

use foretoken_weights::gguf::Value;

use crate::checkpoint::Checkpoint;
use crate::collected::Collected;
use crate::error::ModelError;
use crate::family::{self, Told};

pub use crate::collected::{Exported, Rows};

/// A checkpoint as a GGUF file would hold it.
pub struct Export {
    /// The keys that describe the network.
    pub metadata: Vec<(String, Value)>,
    /// The tensors.
    pub tensors: Vec<Exported>,
    /// Tensors of the checkpoint that the network does not use.
    pub left_out: Vec<String>,
    /// In what the file says something else than the checkpoint, one line each.
    pub notes: Vec<String>,
}

/// Says a Hugging Face checkpoint in GGUF's words.
///
/// # Errors
/// The configuration is not one that can be run, asks for something that GGUF has no word for, or a tensor is missing,
/// of a type that cannot be computed with, of another shape than the configuration says, or would be left out although
/// the network is not that of the file without it.
///
/// # Panics
/// If the checkpoint is a GGUF file.
pub fn gguf(checkpoint: &Checkpoint) -> Result<Export, ModelError> {
    let mut collected = Collected::new(&checkpoint.weights);
    let Told { keys: metadata, notes, left_out } = family::export(checkpoint, &mut collected)?;
    Ok(Export { metadata, tensors: collected.tensors, left_out, notes })
}
