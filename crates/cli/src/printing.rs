//! Prints text on standard output as it comes, in colours if they are asked for.
//!
//! `--show-drafts` gives each token the colour of who produced it: blue for the target itself, others for drafters in
//! order. All are readable on black and on white: their contrast to both is at least 3.95 (WCAG's ratio). Each pass
//! ends with a token of the target, so a pass ends after every blue token. Without colours (`--color`), drafted tokens
//! are in brackets; `--color always | less -R` shows colours in a pager. `--show-drafts=rejected` also shows rejected
//! tokens, struck out, before the token that the target wrote instead; `=table` leaves the text as it is and adds a
//! table after it. What a terminal would interpret in a text is shown escaped ([`foretoken_console::terminal`]).

mod table;

use std::io::{Stdout, Write};
use std::sync::Arc;

use clap::ValueEnum;
use foretoken::line::escaped;
use foretoken::spec_type::DrafterKind;
use foretoken::{Drafted, Emitted, Event, Origin, Tokenizer};
use foretoken_console::failure::Failure;
use foretoken_console::progress::say_coloured;
use foretoken_console::terminal::{Output, standard_output};
use foretoken_console::verbosity::coloured_output;

pub use table::{reliability, table};

/// Blue, by its number among a terminal's 256 colours, which, unlike the first 16, are the same on all terminals.
const TARGET: u8 = 27;
/// Green, orange, magenta, teal, red, violet, olive, pink; then again from the start.
const DRAFTERS: [u8; 8] = [28, 130, 164, 30, 196, 98, 64, 161];
/// Grey.
const FORCED: u8 = 243;
const PLAIN: &str = "\x1b[0m";
const DIM: &str = "\x1b[2m";
/// Struck out.
const STRIKETHROUGH: &str = "\x1b[9m";

/// How `--show-drafts` shows who produced each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShowDrafts {
    /// By colour.
    #[value(alias = "colors")]
    Colours,
    /// By colour, with rejected tokens.
    Rejected,
    /// In a table after the text, a line per token: pass, depth in the draft tree, drafter, p of the target, q of the
    /// drafter.
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
        let marked = matches!(show_drafts, Some(ShowDrafts::Colours | ShowDrafts::Rejected));
        match (marked, coloured_output()) {
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
            (Self::Brackets, Origin::Forced) => format!("<{text}>"),
            (Self::Colours, origin) => format!("{}{text}{PLAIN}", colour(origin)),
        }
    }

    /// The text of a rejected token with its mark. Line breaks in it are escaped.
    fn rejected(self, text: &str, drafter: u8) -> String {
        let text = escaped(text);
        match self {
            _ if text.is_empty() => String::new(),
            Self::None => String::new(),
            Self::Brackets => format!("[-{text}-]"),
            Self::Colours => format!("{STRIKETHROUGH}{}{text}{PLAIN}", colour(Origin::Drafted(drafter))),
        }
    }

    /// Prints the meaning of the marks on standard error. `is_guided`: texts have a form, whose marks are listed too.
    pub fn legend(self, drafters: &[String], is_guided: bool, show_drafts: Option<ShowDrafts>) {
        if self == Self::None {
            return;
        }
        let mut parts = vec![self.marked("the target's own", Origin::Target)];
        let drafted =
            |(number, name): (usize, &String)| self.marked(&format!("{name}, accepted"), Origin::Drafted(number as u8));
        let is_listed = |(_, name): &(usize, &String)| is_guided || *name != DrafterKind::Grammar.name();
        parts.extend(drafters.iter().enumerate().filter(is_listed).map(drafted));
        if is_guided {
            parts.push(self.marked("nothing else was possible", Origin::Forced));
        }
        if let (Some(first), Some(ShowDrafts::Rejected)) = (drafters.first(), show_drafts) {
            parts.push(self.rejected(&format!("{first}, rejected"), 0));
        }
        say_coloured(format_args!("tokens: {}; a pass ends behind each of the target's own", parts.join("  ")));
    }
}

/// The escape code of a producer's colour.
fn colour(origin: Origin) -> String {
    let number = match origin {
        Origin::Target => TARGET,
        Origin::Forced => FORCED,
        Origin::Drafted(number) => DRAFTERS[usize::from(number) % DRAFTERS.len()],
    };
    format!("\x1b[38;5;{number}m")
}

/// Standard output for streamed text.
pub struct Stream {
    out: Output<Stdout>,
    marks: Marks,
    /// For the text of rejected tokens.
    tokenizer: Option<Arc<Tokenizer>>,
    /// The rejected tokens of the pass, until the token that the target wrote instead.
    rejected: String,
}

impl Stream {
    /// A stream with these marks.
    pub fn new(marks: Marks, tokenizer: Option<Arc<Tokenizer>>) -> Self {
        Self { out: standard_output(), marks, tokenizer, rejected: String::new() }
    }

    /// Writes the text of an event, with marks.
    ///
    /// # Errors
    /// Standard output is closed or cannot be written.
    pub fn event(&mut self, event: &Event) -> Result<(), Failure> {
        match event {
            Event::Prompt { .. } | Event::PromptScored { .. } | Event::DrafterFailed { .. } => Ok(()),
            Event::Drafts { drafted, .. } => {
                self.drafts(drafted);
                Ok(())
            }
            Event::Tokens { emitted, .. } => self.tokens(emitted),
            Event::Beams { beams, .. } => self.text(beams.first().map_or("", |best| &best.text)),
            Event::Finished { text, .. } => self.text(text),
        }
    }

    /// Keeps the rejected tokens of a pass, whose accepted ones follow by [`Stream::tokens`]. A bar separates branches
    /// of the tree.
    fn drafts(&mut self, drafted: &[Drafted]) {
        let Some(tokenizer) = &self.tokenizer else { return };
        let mut before = None;
        for Drafted { drafter, depth, token, .. } in drafted.iter().filter(|drafted| !drafted.accepted) {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(*token)).into_owned();
            let bar = if before.is_some_and(|before| *depth <= before) { "|" } else { "" };
            self.rejected += &self.marks.rejected(&format!("{bar}{text}"), *drafter);
            before = Some(*depth);
        }
    }

    /// Writes the text of tokens and flushes it.
    fn tokens(&mut self, emitted: &[Emitted]) -> Result<(), Failure> {
        let mut text = String::new();
        for token in emitted {
            if token.origin == Origin::Target {
                text += &std::mem::take(&mut self.rejected);
            }
            text += &self.marks.marked(&self.out.shown(&token.text), token.origin);
        }
        // The text may have ended with a drafted token.
        text += &std::mem::take(&mut self.rejected);
        self.coloured(&text)
    }

    /// Writes text without marks and flushes it.
    ///
    /// # Errors
    /// As [`Stream::event`].
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_all(text.as_bytes())?;
        Ok(self.out.flush()?)
    }

    /// Writes text in a dim colour and flushes it.
    ///
    /// # Errors
    /// As [`Stream::event`].
    pub fn dim(&mut self, text: &str) -> Result<(), Failure> {
        let text = format!("{DIM}{}{PLAIN}", self.out.shown(text));
        self.coloured(&text)
    }

    /// Writes text that is already shown, with colours.
    fn coloured(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_coloured(text)?;
        Ok(self.out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_marked_by_colours_or_brackets() {
        assert_eq!(Marks::Colours.marked("a", Origin::Target), "\x1b[38;5;27ma\x1b[0m");
        assert_eq!(Marks::Colours.marked("a", Origin::Drafted(0)), "\x1b[38;5;28ma\x1b[0m");
        assert_eq!(Marks::Brackets.marked(" a", Origin::Drafted(1)), "[ a]");
        assert_eq!(Marks::Brackets.marked("a", Origin::Target), "a");
        assert_eq!(Marks::None.marked("a", Origin::Drafted(0)), "a");
        assert_eq!(Marks::Colours.marked("", Origin::Target), "");
    }

    #[test]
    fn rejected_tokens_are_struck_out_on_one_line() {
        assert_eq!(Marks::Colours.rejected("a\nb", 0), "\x1b[9m\x1b[38;5;28ma\\nb\x1b[0m");
        assert_eq!(Marks::Brackets.rejected(" a", 3), "[- a-]");
        assert_eq!(Marks::None.rejected("a", 0), "");
    }

    /// WCAG's contrast of a colour of a terminal's cube to black and to white.
    fn contrasts(number: u8) -> [f64; 2] {
        let level = |step: u8| if step == 0 { 0.0 } else { f64::from(55 + 40 * u32::from(step)) / 255.0 };
        let linear = |x: f64| if x <= 0.03928 { x / 12.92 } else { ((x + 0.055) / 1.055).powf(2.4) };
        let step = number - 16;
        let [red, green, blue] = match number {
            232.. => [linear(f64::from(8 + 10 * (number - 232)) / 255.0); 3],
            _ => [step / 36, step / 6 % 6, step % 6].map(|step| linear(level(step))),
        };
        let luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
        [(luminance + 0.05) / 0.05, 1.05 / (luminance + 0.05)]
    }

    #[test]
    fn colours_can_be_read_on_black_and_on_white() {
        for number in DRAFTERS.into_iter().chain([TARGET, FORCED]) {
            assert!(
                contrasts(number).into_iter().all(|contrast| contrast >= 3.95),
                "{number}: {:?}",
                contrasts(number)
            );
        }
    }
}
