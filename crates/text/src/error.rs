//! What can be wrong with a tokenizer, a template or a text.
//!
//! One enum for the crate, written by hand. Every message is one line in lower case that names the file (or the
//! model that the bytes came from) and the field, and says what was expected and what was found. Messages of the
//! libraries underneath are quoted on that line. What to do about an error is left to the program's interfaces.

use std::fmt;
use std::path::{Path, PathBuf};

use foretoken_weights::WeightsError;
use foretoken_weights::line::{OneLine, escaped};

/// Bad input to this crate: a file, a vocabulary, a template or a text that cannot be used.
#[derive(Debug)]
pub enum TextError {
    /// A file could not be read.
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file is not what its name promises, for example truncated JSON.
    Format {
        /// The file, or the name of the model.
        place: String,
        /// What the parser expected.
        expected: &'static str,
        /// What the parser said.
        found: String,
    },
    /// One field holds a value that cannot be used.
    Field {
        /// The file, or the name of the model.
        place: String,
        /// The field, as it is called in the file.
        field: String,
        /// What could have been used.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A model file is malformed, or lacks a key.
    Weights(WeightsError),
    /// The tokenizer refused a text.
    Encode {
        /// The name of the model.
        place: String,
        /// What the tokenizer said.
        found: String,
    },
    /// A chat template does not parse, raised an exception, or did not come to an end.
    Template {
        /// The file, or the name of the model.
        place: String,
        /// What the template engine said.
        found: String,
    },
    /// A grammar or a schema is invalid, or cannot be enforced.
    Grammar {
        /// The name of its setting.
        place: String,
        /// What was expected, and what is wrong with it.
        found: String,
    },
    /// Two vocabularies have too little in common for one model to draft for the other.
    Overlap {
        /// The assistant's name.
        assistant: String,
        /// The target's name.
        target: String,
        /// Tokens of the assistant that the target has too.
        shared: usize,
        /// Tokens of the assistant.
        count: usize,
    },
}

impl TextError {
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }

    pub(crate) fn format(place: &str, expected: &'static str, found: impl fmt::Display) -> Self {
        Self::Format { place: place.to_owned(), expected, found: one_line(found) }
    }

    pub(crate) fn field(
        place: &str,
        field: impl fmt::Display,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self::Field {
            place: place.to_owned(),
            field: one_line(field),
            expected: one_line(expected),
            found: one_line(found),
        }
    }

    pub(crate) fn encode(place: &str, found: impl fmt::Display) -> Self {
        Self::Encode { place: place.to_owned(), found: one_line(found) }
    }

    pub(crate) fn grammar(place: &str, found: impl fmt::Display) -> Self {
        Self::Grammar { place: place.to_owned(), found: one_line(found) }
    }

    pub(crate) fn template(place: &str, found: impl fmt::Display) -> Self {
        Self::Template { place: place.to_owned(), found: one_line(found) }
    }
}

/// Errors are printed after a prompt or into a log, where a second line would be taken for another event.
fn one_line(text: impl fmt::Display) -> String {
    let text = text.to_string();
    // Quoted text may come from a file, so it is truncated before it is processed.
    let begin = &text[..text.floor_char_boundary(4 * FOUND_MAX_BYTES)];
    let words = begin.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut line = escaped(&words);
    if line.len() > FOUND_MAX_BYTES || begin.len() < text.len() {
        line.truncate(line.floor_char_boundary(FOUND_MAX_BYTES));
        line.push_str(" ...");
    }
    line
}

/// Longest quotation in a message, since an untrusted file may hold long values.
const FOUND_MAX_BYTES: usize = 1000;

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => {
                write!(f, "{}: cannot be read: {}", OneLine(&path.to_string_lossy()), OneLine(&source.to_string()))
            }
            Self::Format { place, expected, found } => {
                write!(f, "{}: expected {expected}, found: {found}", OneLine(place))
            }
            Self::Field { place, field, expected, found } => {
                write!(f, "{}: {field}: expected {expected}, found {found}", OneLine(place))
            }
            Self::Weights(error) => error.fmt(f),
            Self::Encode { place, found } => write!(f, "{}: the text could not be tokenized: {found}", OneLine(place)),
            Self::Template { place, found } => write!(f, "{}: chat template: {found}", OneLine(place)),
            Self::Grammar { place, found } => write!(f, "{}: {found}", OneLine(place)),
            Self::Overlap { assistant, target, shared, count } => write!(
                f,
                "assistant {assistant}: expected a vocabulary that shares tokens with {target}, \
                 found {shared} of {count} in common",
                assistant = OneLine(assistant),
                target = OneLine(target),
            ),
        }
    }
}

impl std::error::Error for TextError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Weights(error) => error.source(),
            _ => None,
        }
    }
}

impl From<WeightsError> for TextError {
    fn from(error: WeightsError) -> Self {
        Self::Weights(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_one_line() {
        let error = TextError::field("a.gguf", "tokenizer.ggml.model", "one of:\nllama", "t5\n");
        assert_eq!(error.to_string(), "a.gguf: tokenizer.ggml.model: expected one of: llama, found t5");
        let error = TextError::template("t", format!("\u{1b}[31m\r\n{}", "a\u{202e}".repeat(1 << 20))).to_string();
        assert!(error.starts_with("t: chat template: \\u{1b}[31m a\\u{202e}a") && error.len() < 1100, "{error}");
        let error = TextError::format("tokenizer.json", "a tokenizer", "EOF\n at line 3");
        assert_eq!(error.to_string(), "tokenizer.json: expected a tokenizer, found: EOF at line 3");
    }
}
