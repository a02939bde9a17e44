//! What a person says, turn by turn: lines of a terminal, which are edited, or of standard input.
//!
//! A line that ends with a backslash goes on in the next one, and three quotation marks begin and end a text of several
//! lines. Nothing but the terminal ever sees a prompt. Left out: what a turn means.

use std::io::{IsTerminal, Lines, StdinLock};

use foretoken_console::failure::Failure;
use foretoken_console::progress::say;
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};

/// Begins and ends a text of several lines.
const QUOTES: &str = "\"\"\"";

/// What came of asking for a line.
enum Line {
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
    Plain(Lines<StdinLock<'static>>),
}

impl Turns {
    /// Standard input's. Who sits at a terminal is told what can be said, if anything will be asked for.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn new(asks: bool) -> Result<Self, Failure> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Plain(std::io::stdin().lines()));
        }
        if asks {
            say("/help lists what can be said besides; Ctrl-D leaves, Ctrl-C stops an answer");
        }
        // Where standard output is a file, prompts are still for the terminal.
        let config = Config::builder().behavior(Behavior::PreferTerm).build();
        DefaultEditor::with_config(config).map(|editor| Self::Edited(Box::new(editor))).map_err(terminal)
    }

    /// Whether a person is there to be asked.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Edited(_))
    }

    /// The next turn, whole; `None` when there is no more.
    ///
    /// # Errors
    /// Standard input or the terminal fails.
    pub fn next(&mut self) -> Result<Option<String>, Failure> {
        let first = loop {
            match self.line("> ")? {
                Line::Read(line) => break line,
                Line::End => return Ok(None),
                Line::Interrupted => say("Ctrl-D leaves"),
            }
        };
        let turn = self.whole(first)?;
        if let Self::Edited(editor) = self {
            // A history that cannot be kept is no reason to end a conversation.
            let _ = editor.add_history_entry(&turn);
        }
        Ok(Some(turn))
    }

    /// Asks a question that is answered by y or n; nobody there means no.
    ///
    /// # Errors
    /// As [`Turns::next`].
    pub fn agrees(&mut self, question: &str) -> Result<bool, Failure> {
        if !self.is_terminal() {
            return Ok(false);
        }
        let line = self.line(&format!("{question} [y/N] "))?;
        Ok(matches!(line, Line::Read(line) if line.trim().starts_with(['y', 'Y'])))
    }

    /// A turn that begins with this line, with the lines that belong to it. Ctrl-C takes it back.
    fn whole(&mut self, first: String) -> Result<String, Failure> {
        let mut more = || self.line(". ");
        if let Some(begun) = first.trim_start().strip_prefix(QUOTES) {
            let mut text = begun.to_string();
            while !text.trim_end().ends_with(QUOTES) {
                let line = match more()? {
                    Line::Read(line) => line,
                    Line::End => return Ok(text),
                    Line::Interrupted => return Ok(String::new()),
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
        while let Some(begun) = text.strip_suffix('\\') {
            text = begun.to_string();
            match more()? {
                Line::Read(line) => text = format!("{text}\n{line}"),
                Line::End => break,
                Line::Interrupted => return Ok(String::new()),
            }
        }
        Ok(text)
    }

    /// The next line.
    fn line(&mut self, prompt: &str) -> Result<Line, Failure> {
        let editor = match self {
            Self::Plain(lines) => {
                let wrong = |error| Failure::Other(format!("standard input: cannot be read: {error}"));
                return Ok(lines.next().transpose().map_err(wrong)?.map_or(Line::End, Line::Read));
            }
            Self::Edited(editor) => editor,
        };
        match editor.readline(prompt) {
            Ok(line) => Ok(Line::Read(line)),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(error) => Err(terminal(error)),
        }
    }
}

fn terminal(error: ReadlineError) -> Failure {
    Failure::Other(format!("terminal: {error}"))
}
