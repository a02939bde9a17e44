//! The failure of a command: one line for standard error, and an exit code.
//!
//! The errors of lower crates already name file and field, what was expected and what was found; this module adds exit
//! codes and the names of options. A closed pipe on standard output is no error.

use std::io;

use foretoken::line::one_line;
use foretoken::{ExecutorError, KeptFileError, ModelError, TextError, WeightsError};
use foretoken_hub::HubError;

use crate::names::option_of_error;

/// The exit code after Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// The reason why a command ends before it has succeeded.
#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong: exit code 2.
    Usage(String),
    /// Any other error: exit code 1.
    Other(String),
    /// The user pressed Ctrl-C, and everything was printed: exit code 130.
    Interrupted,
    /// Standard output was closed: nothing is printed, exit code 0.
    Closed,
}

impl Failure {
    /// The process's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Other(_) => 1,
            Self::Interrupted => INTERRUPTED,
            Self::Closed => 0,
        }
    }

    /// The line to print, if there is one.
    pub fn message(&self) -> Option<String> {
        match self {
            Self::Usage(message) | Self::Other(message) => {
                Some(message.split_whitespace().collect::<Vec<_>>().join(" "))
            }
            Self::Interrupted | Self::Closed => None,
        }
    }

    /// A file that cannot be read.
    pub fn file(path: &std::path::Path, error: &io::Error) -> Self {
        Self::Other(format!("{}: cannot be read: {error}", path.display()))
    }
}

/// Errors of writing; reading names its file with [`Failure::file`].
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Other(format!("standard output: {error}")),
        }
    }
}

macro_rules! other {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::Other(error.to_string())
            }
        })*
    };
}

other!(TextError, WeightsError, ExecutorError, KeptFileError);

/// The library's error has the names of settings, which become those of options.
impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        foretoken::Error::from(error).into()
    }
}

/// Only an invalid name is an error of usage.
impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Usage(line) => Self::Usage(line),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Errors name options instead of settings.
impl From<foretoken::Error> for Failure {
    fn from(error: foretoken::Error) -> Self {
        let line = error.with_names(option_of_error);
        match error {
            foretoken::Error::Setting(_) => Self::Usage(line),
            _ => Self::Other(line),
        }
    }
}

/// The most characters of an error.
const CHARACTERS_MAX: usize = 2000;

/// The message on one line, with escaped control characters, including those that reverse text: a message may quote
/// files and command lines.
pub fn on_one_line(message: &str) -> String {
    one_line(message, CHARACTERS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_without_control_characters() {
        assert_eq!(on_one_line("a\u{1b}[31m\nb\u{202e}\u{e9}"), "a\\u{1b}[31m\\nb\\u{202e}\u{e9}");
        assert_eq!(on_one_line(&"x".repeat(9000)).len(), CHARACTERS_MAX + 3);
    }
}
