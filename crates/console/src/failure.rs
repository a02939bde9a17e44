//! Why a command ends early: one line for standard error, and an exit code.
//!
//! The errors of the crates below already name file and field, expected and found; here they only get their exit
//! code. A reader who closed the pipe has seen enough: that is no failure at all.

use std::io;

use foretoken::line::line;
use foretoken::{ExecutorError, KeptFileError, ModelError, TextError, WeightsError};
use foretoken_hub::HubError;

use crate::interrupts::INTERRUPTED;
use crate::names::option_of_error;

/// The end of a command that could not do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong: exit code 2.
    Usage(String),
    /// Something else is: exit code 1.
    Other(String),
    /// Somebody pressed Ctrl-C, and what there was to say has been said: exit code 130.
    Interrupted,
    /// Nobody reads standard output any more: quiet, exit code 0.
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

    /// The line to print, if there is something to say.
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

/// The library knows how settings are named in these.
impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        foretoken::Error::from(error).into()
    }
}

/// A name that is none is a wrong command line; all else is not.
impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Usage(line) => Self::Usage(line),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Settings are options here, so errors name these.
impl From<foretoken::Error> for Failure {
    fn from(error: foretoken::Error) -> Self {
        let line = error.with_names(option_of_error);
        match error {
            foretoken::Error::Setting(_) => Self::Usage(line),
            _ => Self::Other(line),
        }
    }
}

/// Most characters of an error.
const CHARACTERS_MAX: usize = 2000;

/// A message as a terminal may be shown it, on one line: names and values of files and command lines are in it, and
/// control characters (also those that turn text around) could make it say something else.
pub fn on_one_line(message: &str) -> String {
    line(message, CHARACTERS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_that_commands_no_terminal() {
        assert_eq!(on_one_line("a\u{1b}[31m\nb\u{202e}\u{e9}"), "a\\u{1b}[31m\\nb\\u{202e}\u{e9}");
        assert_eq!(on_one_line(&"x".repeat(9000)).len(), CHARACTERS_MAX + 3);
    }
}
