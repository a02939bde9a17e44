//! Errors and notes for users: one line that names file, field or setting.
//!
//! Each front end has its own names of settings (`--spec-draft-n-max` on a command line). So a [`Message`] keeps the
//! names of settings apart from its words, and a front end replaces them ([`Message::with_names`]). Exit codes and
//! status codes are decided by the front ends.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::Path;

use foretoken_engine::RequestError;
use foretoken_model::{ExecutorError, ModelError, Setting};
use foretoken_text::TextError;
use foretoken_weights::WeightsError;
use foretoken_weights::line::{OneLine, escaped};

/// One line, in which settings are named as the library names them: `draft.n_min: expected at most draft.n_max (4),
/// found 5`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Words(String),
    Setting(&'static str),
}

/// The settings that the message of a failed request may begin with: grammars, and what contradicts one.
const FAILURE_SETTINGS: [&str; 6] = ["json_schema", "regex", "grammar", "choices", "tools", "tokens_min"];

impl Message {
    /// A message that begins with the name of a setting.
    pub fn setting(name: &'static str) -> Self {
        Self::default().and_setting(name)
    }

    /// A message that begins with words.
    pub fn words(words: impl Into<String>) -> Self {
        Self::default().and(words)
    }

    /// The message of a failed request ([`FinishReason::Failed`](foretoken_engine::FinishReason::Failed)), in which the
    /// setting that it begins with, if any, can be renamed.
    pub fn of_failure(why: &str) -> Self {
        let setting =
            why.split_once(": ").and_then(|(name, _)| FAILURE_SETTINGS.into_iter().find(|setting| *setting == name));
        match setting {
            Some(setting) => Self::setting(setting).and(&why[setting.len()..]),
            None => Self::words(why),
        }
    }

    /// The setting that the message begins with.
    pub fn begins_with(&self) -> Option<&'static str> {
        if let Some(Part::Setting(setting)) = self.0.first() { Some(setting) } else { None }
    }

    /// The message followed by words.
    pub fn and(mut self, words: impl Into<String>) -> Self {
        self.0.push(Part::Words(words.into()));
        self
    }

    /// The message followed by the name of a setting.
    pub fn and_setting(mut self, name: &'static str) -> Self {
        self.0.push(Part::Setting(name));
        self
    }

    /// The message followed by another.
    pub fn followed_by(mut self, other: Message) -> Self {
        self.0.extend(other.0);
        self
    }

    /// The message as text, with each setting's name replaced by `name`.
    pub fn with_names(&self, name: impl Fn(&str) -> String) -> String {
        let part = |part: &Part| match part {
            Part::Words(words) => words.clone(),
            Part::Setting(setting) => name(setting),
        };
        self.0.iter().map(part).collect()
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_names(str::to_string))
    }
}

/// An error of the library: one line that names the file, field or setting, what was expected and what was found.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// A setting is invalid, alone or together with others.
    Setting(Message),
    /// A file or model cannot be used.
    Input(Message),
    /// More memory is needed than is free or allowed. The number is how many bytes are missing.
    Memory(Message, usize),
    /// The engine refuses a request.
    Request(RequestError),
    /// The engine's thread has ended: it panicked, with this message, or was stopped.
    Stopped(String),
    /// The system refuses to start a thread for the engine, for this reason.
    Thread(String),
}

impl Error {
    /// An invalid setting; `words` follow its name.
    pub(crate) fn setting(name: &'static str, words: impl Into<String>) -> Self {
        Self::Setting(Message::setting(name).and(words))
    }

    /// A setting that needs a tokenizer, for a model without one.
    pub(crate) fn needs_tokenizer(setting: &'static str) -> Self {
        Self::setting(setting, ": expected a model with a tokenizer, found one without")
    }

    /// A file or model that cannot be used.
    pub(crate) fn input(line: impl Into<String>) -> Self {
        Self::Input(Message::words(line))
    }

    /// A file that cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self::input(format!("{}: cannot be read: {error}", path.display()))
    }

    /// The message, with each setting's name replaced by `name`.
    pub fn with_names(&self, name: impl Fn(&str) -> String) -> String {
        match self {
            Self::Setting(message) | Self::Input(message) | Self::Memory(message, _) => message.with_names(name),
            // The engine's messages begin with the field of the request.
            Self::Request(error) => {
                let line = error.to_string();
                match line.split_once(": ") {
                    Some((field @ ("logit_bias" | "banned_tokens" | "lossy_lenience"), rest)) => {
                        format!("{}: {rest}", name(field))
                    }
                    Some((field, rest)) if matches!(error, RequestError::Beams { .. }) => {
                        format!("{}: {rest}", name(setting_of_search(field)))
                    }
                    _ => line,
                }
            }
            Self::Stopped(why) => format!("engine: expected one that runs, found it stopped: {why}"),
            Self::Thread(why) => format!("engine: expected a thread of its own, found none: {why}"),
        }
    }
}

/// The setting that decides this field of a request for a beam search.
fn setting_of_search(field: &str) -> &str {
    match field {
        "beams" => "num_beams",
        "returned" => "n_best",
        other => other,
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_names(str::to_string))
    }
}

impl std::error::Error for Error {}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

macro_rules! input {
    ($($error:ty),*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::input(error.to_string())
            }
        })*
    };
}

input!(TextError, WeightsError, ExecutorError, KeptFileError);

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Self {
        let ModelError::Setting { place, setting, value, expected, found } = error else {
            return Self::input(error.to_string());
        };
        let setting = match setting {
            Setting::KeyType => "cache_type_k",
            Setting::ValueType => "cache_type_v",
            Setting::WeightType => "dtype",
            Setting::ExpertBytes => "expert_memory",
            Setting::LayerBytes => "offload",
        };
        let found = format!(" {value}: expected {expected}, found {found}");
        Self::Input(Message::words(format!("{place}: ")).and_setting(setting).and(found))
    }
}

/// An error of a file that is kept between runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptFileError {
    /// The operating system returned an error.
    Io {
        /// The file.
        file: String,
        /// The operation: "read" or "written".
        tried: &'static str,
        /// The system's error.
        found: String,
    },
    /// A field is invalid.
    Field {
        /// The file.
        file: String,
        /// The field, with the number (from 1) of the document or group that it belongs to, if any.
        field: String,
        /// The valid values.
        expected: String,
        /// The value in the file.
        found: String,
    },
}

impl KeptFileError {
    pub(crate) fn io(path: &Path, tried: &'static str, error: &io::Error) -> Self {
        Self::Io { file: path.display().to_string(), tried, found: error.to_string() }
    }
}

impl Display for KeptFileError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, tried, found } => write!(f, "{}: cannot be {tried}: {}", OneLine(file), OneLine(found)),
            Self::Field { file, field, expected, found } => {
                let (file, field, expected, found) = (OneLine(file), OneLine(field), escaped(expected), escaped(found));
                write!(f, "{file}: {field}: expected {expected}, found {found}")
            }
        }
    }
}

impl std::error::Error for KeptFileError {}

/// Refuses a whole number outside a range.
pub(crate) fn within(setting: &'static str, found: usize, least: usize, most: usize) -> Result<(), Error> {
    let error = || Error::setting(setting, format!(": expected a whole number from {least} to {most}, found {found}"));
    (least..=most).contains(&found).then_some(()).ok_or_else(error)
}

/// Refuses a number outside a range, or NaN.
pub(crate) fn between(setting: &'static str, found: f32, least: f32, most: f32) -> Result<(), Error> {
    let error = || Error::setting(setting, format!(": expected a number from {least} to {most}, found {found}"));
    (least..=most).contains(&found).then_some(()).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_end_uses_its_own_names_of_settings() {
        let message = Message::setting("draft.n_min").and(": expected at most ").and_setting("draft.n_max").and(" (4)");
        assert_eq!(message.to_string(), "draft.n_min: expected at most draft.n_max (4)");
        let shouted = Error::Setting(message).with_names(|name| name.to_uppercase());
        assert_eq!(shouted, "DRAFT.N_MIN: expected at most DRAFT.N_MAX (4)");
        let refused = RequestError::SamplingToken { field: "banned_tokens", found: 9, vocabulary: 8 };
        let line = Error::from(refused).with_names(|_| "--ban-token".to_string());
        assert_eq!(line, "--ban-token: expected tokens below 8 (the vocabulary), found 9");
        let (expected, found) = ("at most 4".to_string(), "5".to_string());
        let refused = Error::from(RequestError::Beams { field: "beams", expected, found });
        assert_eq!(refused.to_string(), "num_beams: expected at most 4 with beams, found 5");
    }
}
