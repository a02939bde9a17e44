//! Why something cannot be done, and what a user should know: one line that names file, field or setting.
//!
//! The idea: whoever speaks to the library has names of their own for settings (`--spec-draft-n-max` on a command
//! line). So a [`Message`] keeps the names of settings apart from its words, and a door puts its own in their place
//! ([`Message::with_names`]). Left out: exit codes and status codes, which are the door's.

use std::fmt;
use std::path::Path;

use foretoken_engine::RequestError;
use foretoken_model::{ExecutorError, ModelError, Setting};
use foretoken_text::TextError;
use foretoken_weights::WeightsError;

use crate::kept_file::KeptFileError;

/// One line, in which settings are named as the library names them: `draft.n_min: expected at most draft.n_max (4),
/// found 5`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Words(String),
    Setting(&'static str),
}

/// The settings that a text may fail by: those of its form, and what contradicts one.
const FAILING: [&str; 6] = ["json_schema", "regex", "grammar", "choices", "tools", "tokens_min"];

impl Message {
    /// A message that begins with the name of a setting.
    pub fn setting(name: &'static str) -> Self {
        Self::default().and_setting(name)
    }

    /// A message that begins with words.
    pub fn words(words: impl Into<String>) -> Self {
        Self::default().and(words)
    }

    /// Why a text could not go on ([`FinishReason::Failed`](foretoken_engine::FinishReason::Failed)), where the reason
    /// is a setting with its name.
    pub fn of_failure(why: &str) -> Self {
        let setting = why.split_once(": ").and_then(|(name, _)| FAILING.into_iter().find(|setting| *setting == name));
        match setting {
            Some(setting) => Self::setting(setting).and(&why[setting.len()..]),
            None => Self::words(why),
        }
    }

    /// The setting that the message begins with.
    pub fn begins_with(&self) -> Option<&'static str> {
        match self.0.first() {
            Some(Part::Setting(setting)) => Some(setting),
            _ => None,
        }
    }

    /// The message with more words.
    pub fn and(mut self, words: impl Into<String>) -> Self {
        self.0.push(Part::Words(words.into()));
        self
    }

    /// The message with the name of a setting.
    pub fn and_setting(mut self, name: &'static str) -> Self {
        self.0.push(Part::Setting(name));
        self
    }

    /// The message with another behind it.
    pub fn followed_by(mut self, other: Message) -> Self {
        self.0.extend(other.0);
        self
    }

    /// The message with other names of settings.
    pub fn with_names(&self, name: impl Fn(&str) -> String) -> String {
        let part = |part: &Part| match part {
            Part::Words(words) => words.clone(),
            Part::Setting(setting) => name(setting),
        };
        self.0.iter().map(part).collect()
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_names(str::to_string))
    }
}

/// Why the library could not do what was asked. Each is one line that names file, field or setting, what was expected
/// and what was found.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// A setting cannot be, alone or beside the others.
    Setting(Message),
    /// A file or model cannot be used.
    Input(Message),
    /// There is not the memory that is needed, or it may not be taken: so many bytes are missing.
    Memory(Message, usize),
    /// The engine refuses a request.
    Request(RequestError),
    /// The engine's thread is gone: it panicked, with this message, or was stopped.
    Stopped(String),
    /// The system refuses the engine a thread of its own, for this reason.
    Thread(String),
}

impl Error {
    /// A file or model that cannot be used.
    pub(crate) fn input(line: impl Into<String>) -> Self {
        Self::Input(Message::words(line))
    }

    /// A file that cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        Self::input(format!("{}: cannot be read: {error}", path.display()))
    }

    /// The line, in which settings have these names.
    pub fn with_names(&self, name: impl Fn(&str) -> String) -> String {
        match self {
            Self::Setting(message) | Self::Input(message) | Self::Memory(message, _) => message.with_names(name),
            // The engine's messages begin with the field of the request.
            Self::Request(error) => {
                let line = error.to_string();
                match line.split_once(": ") {
                    Some((field @ ("logit_bias" | "banned_tokens"), rest)) => format!("{}: {rest}", name(field)),
                    _ => line,
                }
            }
            Self::Stopped(why) => format!("engine: expected one that runs, found it stopped: {why}"),
            Self::Thread(why) => format!("engine: expected a thread of its own, found none: {why}"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        };
        let found = format!(" {value}: expected {expected}, found {found}");
        Self::Input(Message::words(format!("{place}: ")).and_setting(setting).and(found))
    }
}

/// Refuses a setting whose number does not lie in a range.
pub(crate) fn within(setting: &'static str, found: usize, least: usize, most: usize) -> Result<(), Error> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    let expected = format!(": expected a whole number from {least} to {most}, found {found}");
    Err(Error::Setting(Message::setting(setting).and(expected)))
}

/// Refuses a setting whose number does not lie in a range, or is none.
pub(crate) fn between(setting: &'static str, found: f32, least: f32, most: f32) -> Result<(), Error> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    let expected = format!(": expected a number from {least} to {most}, found {found}");
    Err(Error::Setting(Message::setting(setting).and(expected)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_puts_its_own_names_in() {
        let message = Message::setting("draft.n_min").and(": expected at most ").and_setting("draft.n_max").and(" (4)");
        assert_eq!(message.to_string(), "draft.n_min: expected at most draft.n_max (4)");
        let shouted = Error::Setting(message).with_names(|name| name.to_uppercase());
        assert_eq!(shouted, "DRAFT.N_MIN: expected at most DRAFT.N_MAX (4)");
        let refused = RequestError::SamplingToken { field: "banned_tokens", found: 9, vocabulary: 8 };
        let line = Error::from(refused).with_names(|_| "--ban-token".to_string());
        assert_eq!(line, "--ban-token: expected tokens below 8 (the vocabulary), found 9");
    }
}
