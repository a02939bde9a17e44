//! Opens the source of a quantization, a GGUF file or a Hugging Face directory, as keys and tensors of a GGUF file.

use std::path::Path;

use foretoken_model::export::{self, Exported};
use foretoken_text::{BoundaryTokens, gguf_vocabulary};
use foretoken_weights::gguf::{self, Metadata};

use crate::Error;
use crate::models::Opened;

/// The content of a source as in a GGUF file.
pub struct Source {
    /// Its keys.
    pub metadata: Metadata,
    /// Its tensors.
    pub tensors: Vec<Exported>,
    /// Notes for users, one line each.
    pub notes: Vec<String>,
}

impl Source {
    /// Opens a directory or a file.
    ///
    /// # Errors
    /// It is neither a GGUF file nor a directory that can be converted, or a tensor's type is not supported.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if path.is_dir() { Self::directory(path) } else { Self::file(path) }
    }

    /// A GGUF file of any architecture: unknown keys are copied too.
    fn file(path: &Path) -> Result<Self, Error> {
        let mut file = gguf::open(path)?;
        // A model in several files is written as one.
        for key in ["split.no", "split.count", "split.tensors.count"] {
            file.metadata.remove(key);
        }
        let tensors = file.weights.names().map(|name| Exported::same(&file.weights, name)).collect::<Result<_, _>>()?;
        Ok(Self { metadata: file.metadata, tensors, notes: Vec::new() })
    }

    fn directory(path: &Path) -> Result<Self, Error> {
        let opened = Opened::at(path)?;
        let network = export::gguf(&opened.checkpoint)?;
        let mut metadata = Metadata::new(&opened.name, network.metadata);
        let mut notes = network.notes;
        if let Some(name) = path.canonicalize().ok().as_deref().and_then(Path::file_name) {
            metadata.set("general.name", name.to_string_lossy().into_owned());
        }
        if let [first, ..] = network.left_out.as_slice() {
            let (name, count) = (&opened.name, network.left_out.len());
            notes.push(format!("{name}: {count} tensors are no part of the network and are not written, as {first}"));
        }
        match opened.tokenizer()? {
            Some(tokenizer) => {
                let boundary = BoundaryTokens {
                    bos: opened.beginning(Some(&tokenizer)),
                    ends: &opened.end_tokens(Some(&tokenizer)),
                };
                let vocabulary = gguf_vocabulary(path, opened.spec.vocabulary, boundary)?;
                vocabulary.entries.into_iter().for_each(|(key, value)| metadata.set(key, value));
                notes.extend(vocabulary.notes);
            }
            None => notes.push(format!("{}; the file will have no vocabulary", opened.missing_tokenizer())),
        }
        Ok(Self { metadata, tensors: network.tensors, notes })
    }
}
