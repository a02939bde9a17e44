//! Commands to the chat itself: lines that begin with a slash.
//!
//! A single unknown word with a slash is reported as an error, since it was hardly meant for the model; a longer line
//! that begins with one ("/usr/bin is what?") is for the model.

use std::path::PathBuf;

/// All commands with what they do, as printed by /help.
pub const HELP: &str = "\
/help                this list
/regen               another answer to what you said last
/system [TEXT]       tell the model something before the conversation (-: nothing); without TEXT, say what it is told
/save [--force] FILE keep the conversation in a file, as JSON with OpenAI's messages
/load FILE           go on with a conversation from a file
/stats               what the last answer took, and how full the context is
/clear               begin a new conversation
/exit                leave; so does Ctrl-D
A line that ends with \\ goes on in the next one; \"\"\" begins and ends a text of several lines.
Ctrl-C stops an answer.";

/// A command of a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Print the commands.
    Help,
    /// End the chat.
    Exit,
    /// Begin a new conversation.
    Clear,
    /// Answer the last turn again.
    Regen,
    /// Print the statistics of the last answer.
    Stats,
    /// Set the system message; without a text, print it.
    System(Option<String>),
    /// Write the conversation to a file; the flag allows overwriting.
    Save(PathBuf, bool),
    /// Read a conversation from a file.
    Load(PathBuf),
    /// An incomplete or unknown command, with its error.
    Wrong(String),
}

impl Command {
    /// The command of a line, if it is one.
    pub fn of(line: &str) -> Option<Self> {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let file = |command: fn(PathBuf) -> Self| match rest {
            "" => Self::Wrong(format!("{word}: expected a file, found none")),
            path => command(path.into()),
        };
        Some(match (word, rest) {
            ("/help" | "/?", "") => Self::Help,
            ("/exit" | "/quit" | "/bye", "") => Self::Exit,
            ("/clear", "") => Self::Clear,
            ("/regen", "") => Self::Regen,
            ("/stats", "") => Self::Stats,
            ("/system", "") => Self::System(None),
            ("/system", text) => Self::System(Some(text.to_string())),
            ("/save", rest) => match rest.strip_prefix("--force").map(str::trim) {
                Some("") => Self::Wrong(format!("{word}: expected a file, found none")),
                Some(path) => Self::Save(path.into(), true),
                None => file(|path| Self::Save(path, false)),
            },
            ("/load", _) => file(Self::Load),
            (word, "") if word.starts_with('/') => {
                Self::Wrong(format!("{word}: expected one of the commands that /help lists"))
            }
            ("/help" | "/exit" | "/quit" | "/clear" | "/regen" | "/stats", rest) => {
                Self::Wrong(format!("{word}: expected nothing behind it, found {rest:?}"))
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_turns() {
        let of = |line: &str| Command::of(line);
        assert_eq!(of(" /help "), Some(Command::Help));
        assert_eq!(of("/save a b.json"), Some(Command::Save("a b.json".into(), false)));
        assert_eq!(of("/save --force b"), Some(Command::Save("b".into(), true)));
        assert_eq!(of("/load  x"), Some(Command::Load("x".into())));
        assert_eq!(
            (of("/system"), of("/system be brief")),
            (Some(Command::System(None)), Some(Command::System(Some("be brief".to_string()))))
        );
        for wrong in ["/again", "/", "/save", "/load", "/save --force", "/regen twice"] {
            assert!(matches!(of(wrong), Some(Command::Wrong(_))), "{wrong}");
        }
        for said in ["", "hello /help", "/usr/bin is what?", "what is /help"] {
            assert_eq!(of(said), None, "{said}");
        }
    }
}
