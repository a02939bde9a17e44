//! Options of commands that need only a tokenizer: of a model, of a GGUF file with a vocabulary, or of a folder.
//!
//! Commands about texts for drafters and about recorded answers tokenize texts without running a model, so the weights
//! of a model are neither read nor checked.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use foretoken::Tokenizer;
use foretoken::models::tokenizer_at;

use crate::failure::Failure;
use crate::hub;

/// The vocabulary that tokenizes texts.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
#[command(next_help_heading = "Vocabulary")]
pub struct VocabularyOptions {
    /// The model whose vocabulary is used: a directory, a .gguf file or a name of the hub
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The same for files without a network: a .gguf file with a vocabulary, or a folder with a tokenizer
    #[arg(long, value_name = "FILE")]
    vocab: Option<PathBuf>,
}

impl VocabularyOptions {
    /// Whether a vocabulary is named.
    pub fn is_named(&self) -> bool {
        self.vocab.is_some() || self.model.is_some()
    }

    /// The path that is read.
    ///
    /// # Errors
    /// It is a name of the hub, not in the cache, and cannot be fetched.
    pub fn path(&self) -> Result<Option<PathBuf>, Failure> {
        match (&self.vocab, &self.model) {
            (None, Some(model)) => hub::resolve(model).map(Some),
            (vocabulary, _) => Ok(vocabulary.clone()),
        }
    }

    /// Reads the tokenizer.
    ///
    /// # Errors
    /// The file or folder has none, or one that cannot be parsed; or no vocabulary is named.
    pub fn open(&self) -> Result<Arc<Tokenizer>, Failure> {
        match &self.path()? {
            Some(path) => Ok(tokenizer_at(path)?),
            None => {
                let expected = "expected a model, a .gguf file or a folder whose vocabulary is used, found none";
                Err(Failure::Usage(format!("--model or --vocab: {expected}")))
            }
        }
    }
}
