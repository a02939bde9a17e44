//! The user's turns: lines that are edited on a terminal, or lines of standard input.
//!
//! A line that ends with a backslash continues in the next one, and three quotation marks begin and end a text of
//! several lines. Prompts are only written to a terminal. Bytes that are not UTF-8 do not end the conversation: on a
//! terminal the line is read again, and in a file or a pipe, where each turn gets an answer, the bytes are replaced.

use std::io::{BufRead, ErrorKind, IsTerminal, StdinLock};

use foretoken_console::failure::Failure;
use foretoken_console::progress::{say, warn};
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};

/// Begins and ends a text of several lines.
const QUOTES: &str = "\"\"\"";

/// The result of reading a line.
enum Input {
    Read(String),
    End,
    /// Ctrl-C.
    Interrupted,
}

/// Where lines come from.
pub enum Turns {
    /// A person at a terminal.
    Edited(Box<DefaultEditor>),
    /// A file or a pipe.
    Plain(StdinLock<'static>),
}

impl Turns {
    /// The turns of standard input. On a terminal a hint about the commands is printed, if turns are typed after a
    /// prompt (`has_prompts`).
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn new(has_prompts: bool) -> Result<Self, Failure> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Plain(std::io::stdin().lock()));
        }
        if has_prompts {
            say("/help lists what can be said besides; Ctrl-D leaves, Ctrl-C stops an answer");
        }
        // Where standard output is a file, prompts are still for the terminal.
        let config = Config::builder().behavior(Behavior::PreferTerm).build();
        DefaultEditor::with_config(config).map(|editor| Self::Edited(Box::new(editor))).map_err(terminal)
    }

    /// Whether turns come from a terminal.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Edited(_))
    }

    /// The next turn; `None` at the end.
    ///
    /// # Errors
    /// Standard input or the terminal fails.
    pub fn next(&mut self) -> Result<Option<String>, Failure> {
        let first = loop {
            match self.line("> ")? {
                Input::Read(line) => break line,
                Input::End => return Ok(None),
                Input::Interrupted => say("Ctrl-D leaves"),
            }
        };
        let turn = self.read_turn(first)?;
        if let Self::Edited(editor) = self {
            // A failing history does not end the conversation.
            let _ = editor.add_history_entry(&turn);
        }
        Ok(Some(turn))
    }

    /// Asks a question that is answered by y or n; the answer without a terminal is no.
    ///
    /// # Errors
    /// As [`Turns::next`].
    pub fn confirms(&mut self, question: &str) -> Result<bool, Failure> {
        if !self.is_terminal() {
            return Ok(false);
        }
        let line = self.line(&format!("{question} [y/N] "))?;
        Ok(matches!(line, Input::Read(line) if line.trim().starts_with(['y', 'Y'])))
    }

    /// Reads the further lines of the turn that begins with this line. Ctrl-C discards the turn.
    fn read_turn(&mut self, first: String) -> Result<String, Failure> {
        let mut next_line = || self.line(". ");
        if let Some(start) = first.trim_start().strip_prefix(QUOTES) {
            let mut text = start.to_string();
            while !text.trim_end().ends_with(QUOTES) {
                let line = match next_line()? {
                    Input::Read(line) => line,
                    Input::End => return Ok(text),
                    Input::Interrupted => return Ok(String::new()),
                };
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(&line);
            }
            let text = text.trim_end();
            return Ok(text[..text.len() - QUOTES.len()].trim_end_matches('\n').to_string());
        }
        let mut text = first;
        while let Some(start) = text.strip_suffix('\\') {
            text = start.to_string();
            match next_line()? {
                Input::Read(line) => text = format!("{text}\n{line}"),
                Input::End => break,
                Input::Interrupted => return Ok(String::new()),
            }
        }
        Ok(text)
    }

    /// Reads a line.
    fn line(&mut self, prompt: &str) -> Result<Input, Failure> {
        let editor = match self {
            Self::Plain(lines) => {
                let mut bytes = Vec::new();
                let read = lines.read_until(b'\n', &mut bytes);
                let read = read.map_err(|error| Failure::Other(format!("standard input: cannot be read: {error}")))?;
                return Ok(if read == 0 { Input::End } else { Input::Read(plain_line(bytes)) });
            }
            Self::Edited(editor) => editor,
        };
        loop {
            return match editor.readline(prompt) {
                Ok(line) => Ok(Input::Read(line)),
                Err(ReadlineError::Eof) => Ok(Input::End),
                Err(ReadlineError::Interrupted) => Ok(Input::Interrupted),
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    warn("terminal: expected UTF-8, found other bytes: the line is dropped, please type it again");
                    continue;
                }
                Err(error) => Err(terminal(error)),
            };
        }
    }
}

/// The text of a line without its end.
fn plain_line(bytes: Vec<u8>) -> String {
    let mut text = String::from_utf8(bytes).unwrap_or_else(|error| {
        warn("standard input: expected UTF-8, found other bytes: each is replaced by U+FFFD");
        String::from_utf8_lossy(error.as_bytes()).into_owned()
    });
    let len = text.strip_suffix('\n').map_or(text.len(), |line| line.strip_suffix('\r').unwrap_or(line).len());
    text.truncate(len);
    text
}

fn terminal(error: ReadlineError) -> Failure {
    Failure::Other(format!("terminal: {error}"))
}
