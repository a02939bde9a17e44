//! What do tokens mean as bytes? Tokenizers, incremental text, chat templates and stop strings.
//!
//! The heavy text dependencies enter the workspace here and nowhere else: `tokenizers`, which encodes as the checkpoints
//! were trained, and `minijinja`, which runs the templates they bring along. Everything that a sequence drags along
//! ([`TextStream`], [`StopMatcher`]) can go back to any earlier length, and is then as if it had never gone further.

#![forbid(unsafe_code)]

mod chat;
mod error;
mod stop;
mod stream;
mod tokenizer;

pub use chat::{ChatTemplate, Message};
pub use error::TextError;
pub use stop::{Pushed, StopMatcher};
pub use stream::TextStream;
pub use tokenizer::{GgufVocabulary, Tokenizer};

/// The number of a token in its vocabulary.
pub type Token = u32;
