//! Errors of finding and fetching models: one line each, with a kind, since some can be recovered from.

use std::fmt;
use std::path::Path;

use foretoken_weights::line::{escaped, one_line};

/// Characters of a server's text that errors quote.
const EXCERPT_CHARS_MAX: usize = 200;

/// Why a model could not be found or fetched. Each is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubError {
    /// A name or an environment variable is invalid.
    Usage(String),
    /// The hub cannot be reached, or must not be (`HF_HUB_OFFLINE`).
    NoNetwork(String),
    /// There is no such repository, revision or file; or access has to be requested first.
    Refused(String),
    /// A response is invalid or not accepted.
    Content(String),
    /// A local file cannot be written or read.
    Disk(String),
    /// Stopped because another file could not be fetched.
    Stopped,
}

impl HubError {
    /// A file or folder that cannot be used.
    pub(crate) fn disk(path: &Path, what: &str, error: &std::io::Error) -> Self {
        Self::Disk(format!("{}: cannot be {what}: {error}", path.display()))
    }

    /// The same error with a prefix.
    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        let placed = |line| format!("{place}: {line}");
        match self {
            Self::Usage(line) => Self::Usage(placed(line)),
            Self::NoNetwork(line) => Self::NoNetwork(placed(line)),
            Self::Refused(line) => Self::Refused(placed(line)),
            Self::Content(line) => Self::Content(placed(line)),
            Self::Disk(line) => Self::Disk(placed(line)),
            Self::Stopped => Self::Stopped,
        }
    }
}

impl fmt::Display for HubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(line)
            | Self::NoNetwork(line)
            | Self::Refused(line)
            | Self::Content(line)
            | Self::Disk(line) => f.write_str(&escaped(line)),
            Self::Stopped => f.write_str("stopped, because another file could not be fetched"),
        }
    }
}

impl std::error::Error for HubError {}

/// The beginning of a server's text, on one line, without terminal control sequences.
pub(crate) fn excerpt(text: &str) -> String {
    one_line(text, EXCERPT_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_of_servers_are_short_and_without_control_sequences() {
        assert_eq!(excerpt("it's \"here\"\n\x1b[2J"), "it's \"here\"\\n\\u{1b}[2J");
        assert_eq!(excerpt(&"ä".repeat(300)), format!("{}...", "ä".repeat(200)));
        let name = "ä \"b\"\u{9b}2J\u{202e}";
        assert_eq!(HubError::Disk(name.into()).to_string(), "ä \"b\"\\u{9b}2J\\u{202e}");
    }
}
