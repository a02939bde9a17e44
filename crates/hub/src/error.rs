//! Why something cannot be found or fetched: one line each, and the kind, since some have a way out.

use std::fmt;
use std::path::Path;

use foretoken_weights::line::{line, plain};

/// Characters that are shown of what a server said.
const SHOWN_MAX: usize = 200;

/// Why the hub or the cache could not give what was asked for. Each is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubError {
    /// A name, or a variable of the environment, cannot be understood.
    Usage(String),
    /// The hub cannot be reached, or must not be (`HF_HUB_OFFLINE`).
    NoNetwork(String),
    /// There is no such repository, revision or file; or one must ask for access first.
    Refused(String),
    /// What was sent is not what it should be, or something that is not accepted.
    Content(String),
    /// Files cannot be written or read here.
    Disk(String),
    /// Another file could not be fetched, which says why.
    Stopped,
}

impl HubError {
    /// A file or folder that cannot be used.
    pub(crate) fn disk(path: &Path, what: &str, error: &std::io::Error) -> Self {
        Self::Disk(format!("{}: cannot be {what}: {error}", path.display()))
    }

    /// The same error with a place in front.
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
            | Self::Disk(line) => f.write_str(&plain(line)),
            Self::Stopped => f.write_str("stopped, because another file could not be fetched"),
        }
    }
}

impl std::error::Error for HubError {}

/// The beginning of what a server said, on one line, without anything that a terminal would obey.
pub(crate) fn shown(text: &str) -> String {
    line(text, SHOWN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_said_is_short_and_obeyed_by_no_terminal() {
        assert_eq!(shown("it's \"here\"\n\x1b[2J"), "it's \"here\"\\n\\u{1b}[2J");
        assert_eq!(shown(&"ä".repeat(300)), format!("{}...", "ä".repeat(200)));
        let name = "ä \"b\"\u{9b}2J\u{202e}";
        assert_eq!(HubError::Disk(name.into()).to_string(), "ä \"b\"\\u{9b}2J\\u{202e}");
    }
}
