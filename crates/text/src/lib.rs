//! What do tokens mean as bytes? Tokenizers, incremental text, chat templates, stop strings and grammars.
//!
//! The limits on regular expressions of tokenizers (Oniguruma) hold for the whole process, also for a program's own
//! expressions.
//!
//! This is the only crate of the workspace that uses the large text libraries: `tokenizers` encodes as the checkpoints
//! were trained, `minijinja` renders their chat templates, and `llguidance` computes which tokens a grammar allows. The
//! text state of a sequence ([`TextStream`], [`StopMatcher`]) can be cloned, so a sequence can be rolled back.
//!
//! ```
//! use std::{path::Path, sync::Arc};
//! use foretoken_text::{ChatInput, ChatTemplate, Message, TextStream, Tokenizer};
//!
//! let folder = Path::new("../../models/demo-target");
//! let tokenizer = Arc::new(Tokenizer::from_dir(folder)?);
//! let template = ChatTemplate::from_dir(folder)?.expect("this model can chat");
//! let tokens = template.encode(&tokenizer, &ChatInput::new(&[Message::new("user", "Hello! <|end|>")], true))?;
//! assert_eq!(tokenizer.decode(&tokens, true), "Hello! <|end|>");
//!
//! let mut stream = TextStream::new(Arc::clone(&tokenizer), &tokens);
//! let answer = tokenizer.encode("Good day \u{1F60A}", false)?;
//! let pieces: Vec<String> = answer.iter().map(|&token| stream.push(token)).collect();
//! assert_eq!(pieces.concat(), "Good day \u{1F60A}");
//! # Ok::<(), foretoken_text::TextError>(())
//! ```

#![deny(unsafe_code)]

mod caught;
mod chat;
mod error;
mod export;
mod grammar;
mod stop;
mod stream;
mod tokenizer;
mod translate;

#[doc(hidden)] // for the server, whose runtime panics, too
pub use caught::caught;
#[doc(hidden)] // for the server, whose answers have dates
pub use chat::strftime;
pub use chat::{
    AnswerPiece, CallsWanted, ChatInput, ChatTemplate, Json, Message, Thinking, ThinkingPieces, ThinkingReader,
    ThinkingTags, ToolCall, ToolCallReader, ToolFormat, ToolFunction, Transcript,
};
pub use error::TextError;
pub use export::{BoundaryTokens, ExportedVocabulary, gguf_vocabulary};
pub use grammar::{Allowed, Grammar, GrammarSource, Matcher};
pub use stop::{StopMatcher, StopOutput};
pub use stream::TextStream;
pub use tokenizer::{GgufVocabulary, Tokenizer};
pub use translate::{Counterpart, Piece, Spelling, Translation, Vocabularies};

/// The number of a token in its vocabulary.
pub type Token = u32;
