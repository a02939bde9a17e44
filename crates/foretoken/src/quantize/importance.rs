//! The importance matrix of a file, checked against the model.
//!
//! Every entry of the file has to match a tensor of the model by name and columns. A tensor without an entry is
//! quantized without importances: embeddings have never one, output heads rarely.

use std::path::{Path, PathBuf};

use foretoken_model::export::Exported;
use foretoken_weights::gguf::Metadata;
use foretoken_weights::imatrix::{self, ImportanceMatrix};

use super::kinds::TypeChoice;
use crate::Error;

/// An importance matrix and its file.
pub struct Importance {
    path: PathBuf,
    matrix: ImportanceMatrix,
}

impl Importance {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is malformed.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { path: path.to_path_buf(), matrix: imatrix::open(path)? })
    }

    /// Checks every entry against the tensor of its name.
    ///
    /// # Errors
    /// There is no such tensor, or it has another number of columns or of matrices.
    pub fn check(&self, input: &Path, tensors: &[Exported]) -> Result<(), Error> {
        let wrong = |name: &str, expected: String, found: String| {
            let file = self.path.display();
            Error::input(format!("{file}: tensor {}: expected {expected}, found {found}", name.escape_debug()))
        };
        for (name, entry) in &self.matrix.entries {
            let Some(tensor) = tensors.iter().find(|tensor| tensor.name == *name) else {
                return Err(wrong(name, format!("the name of one of {}", input.display()), "no such".to_string()));
            };
            let (columns, matrices) = (tensor.columns(), matrices(tensor));
            let numbers = entry.values.len();
            if numbers != columns * matrices || entry.matrices.is_some_and(|found| found != matrices) {
                let each = |count| if count == 1 { String::new() } else { format!(" for each of {count} matrices") };
                let found = match entry.matrices {
                    Some(count) => format!("{}{}", numbers / count, each(count)),
                    None => format!("{numbers} in all"),
                };
                return Err(wrong(name, format!("{columns} importances{}", each(matrices)), found));
            }
        }
        Ok(())
    }

    /// The importance of each column, for all matrices of a tensor in order.
    pub fn of(&self, tensor: &Exported) -> Option<&[f32]> {
        self.matrix.entries.get(&tensor.name).map(|entry| entry.values.as_slice())
    }

    /// Sets the keys that record which importance matrix was used.
    pub fn set_keys(&self, metadata: &mut Metadata) {
        metadata.set("quantize.imatrix.file", self.path.display().to_string());
        metadata.set("quantize.imatrix.entries_count", u32::try_from(self.matrix.entries.len()).unwrap_or(u32::MAX));
        // The source's keys describe the importance matrix that the source was quantized with.
        metadata.remove("quantize.imatrix.dataset");
        metadata.remove("quantize.imatrix.chunks_count");
        if let Some(dataset) = &self.matrix.dataset {
            metadata.set("quantize.imatrix.dataset", dataset.as_str());
        }
        if let Some(chunks) = self.matrix.chunks.filter(|chunks| *chunks > 0) {
            metadata.set("quantize.imatrix.chunks_count", chunks);
        }
    }

    /// A note for users about matrices of layers that lack importances, if there are any.
    pub fn note(&self, tensors: &[Exported], plan: &[TypeChoice]) -> Option<String> {
        let mut without = tensors.iter().zip(plan).filter(|(tensor, choice)| {
            tensor.name.starts_with("blk.") && choice.is_searched() && self.of(tensor).is_none()
        });
        let (first, _) = without.next()?;
        let (file, count) = (self.path.display(), 1 + without.count());
        Some(format!("note: {file}: no importances for {count} tensors, as {}", first.name))
    }
}

/// The number of matrices in a tensor.
pub fn matrices(tensor: &Exported) -> usize {
    tensor.shape.iter().rev().skip(2).product()
}
