//! Text on standard output as it comes, in colours if they are asked for.
//!
//! `--show-drafts` gives each token the colour of who produced it: blue for the target itself, green, yellow, magenta,
//! cyan and their bright relatives for drafters in order. Passes need no marks of their own: each ends with a token of
//! the target's, so a pass ends behind every blue token. Where there are no colours (`--color`), drafted tokens stand
//! in brackets instead; `--color always | less -R` shows them in a pager. `--show-drafts=table` leaves the text as it is
//! and has a table behind it. Left out: colours of anything else.

mod table;

use std::io::{self, Stdout, Write};

use clap::ValueEnum;
use foretoken_engine::{Emitted, Origin};

use crate::failure::Failure;
use crate::loudness::coloured_output;
use crate::progress::say;
pub use table::{reliability, table};

/// Blue.
const TARGET: &str = "\x1b[34m";
/// Green, yellow, magenta, cyan, then bright ones; then again from the start.
const DRAFTERS: [&str; 8] =
    ["\x1b[32m", "\x1b[33m", "\x1b[35m", "\x1b[36m", "\x1b[92m", "\x1b[93m", "\x1b[95m", "\x1b[96m"];
const PLAIN: &str = "\x1b[0m";

/// How `--show-drafts` shows who produced each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShowDrafts {
    /// By colour.
    #[value(alias = "colors")]
    Colours,
    /// In a line a token behind the text: pass, depth in the draft tree, drafter, p of the target, q of the drafter.
    Table,
}

/// How tokens are marked by who produced them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// Not at all.
    None,
    /// By colour.
    Colours,
    /// Drafted ones in brackets.
    Brackets,
}

impl Marks {
    /// The marks for `--show-drafts` in this environment.
    pub fn new(show_drafts: Option<ShowDrafts>) -> Self {
        let coloured = show_drafts == Some(ShowDrafts::Colours);
        match (coloured, coloured_output()) {
            (false, _) => Self::None,
            (true, true) => Self::Colours,
            (true, false) => Self::Brackets,
        }
    }

    /// A piece of text with its mark.
    pub fn marked(self, text: &str, origin: Origin) -> String {
        match (self, origin) {
            _ if text.is_empty() => String::new(),
            (Self::None, _) | (Self::Brackets, Origin::Target) => text.to_string(),
            (Self::Brackets, Origin::Drafted(_)) => format!("[{text}]"),
            (Self::Colours, Origin::Target) => format!("{TARGET}{text}{PLAIN}"),
            (Self::Colours, Origin::Drafted(number)) => {
                format!("{}{text}{PLAIN}", DRAFTERS[usize::from(number) % DRAFTERS.len()])
            }
        }
    }

    /// Says on standard error what the marks mean.
    pub fn legend(self, drafters: &[String]) {
        if self == Self::None {
            return;
        }
        let mut parts = vec![self.marked("the target's own", Origin::Target)];
        let drafted =
            |(number, name): (usize, &String)| self.marked(&format!("{name}, accepted"), Origin::Drafted(number as u8));
        parts.extend(drafters.iter().enumerate().map(drafted));
        say(format_args!("tokens: {}; a pass ends behind each of the target's own", parts.join("  ")));
    }
}

/// Standard output for streamed text.
pub struct Stream {
    out: Stdout,
    marks: Marks,
}

impl Stream {
    /// A stream with these marks.
    pub fn new(marks: Marks) -> Self {
        Self { out: io::stdout(), marks }
    }

    /// Writes what tokens completed, at once.
    ///
    /// # Errors
    /// Standard output is closed or cannot be written.
    pub fn tokens(&mut self, emitted: &[Emitted]) -> Result<(), Failure> {
        let text: String = emitted.iter().map(|token| self.marks.marked(&token.text, token.origin)).collect();
        self.text(&text)
    }

    /// Writes text as it is, at once.
    ///
    /// # Errors
    /// As [`Stream::tokens`].
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_all(text.as_bytes())?;
        Ok(self.out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_produced_a_token_is_its_colour_or_its_brackets() {
        assert_eq!(Marks::Colours.marked("a", Origin::Target), "\x1b[34ma\x1b[0m");
        assert_eq!(Marks::Colours.marked("a", Origin::Drafted(0)), "\x1b[32ma\x1b[0m");
        assert_eq!(Marks::Brackets.marked(" a", Origin::Drafted(1)), "[ a]");
        assert_eq!(Marks::Brackets.marked("a", Origin::Target), "a");
        assert_eq!(Marks::None.marked("a", Origin::Drafted(0)), "a");
        assert_eq!(Marks::Colours.marked("", Origin::Target), "");
    }
}
