//! Texts of others in messages: one line, nothing that a terminal obeys, and not longer than a line.
//!
//! The idea: names in files, values of configurations and what servers answer are whatever somebody wrote there. Every
//! message that quotes one quotes it through here, so that it stays one line, clears no screen, turns no letters
//! around and ends. Left out: where a message is printed, and what may be said at all.

use std::fmt::{self, Display, Formatter, Write};

/// Whether a terminal would do something for this character, or put others in another order, and show nothing.
pub fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// A text with what would be obeyed as escapes.
pub fn plain(text: &str) -> String {
    line(text, usize::MAX)
}

/// The beginning of a text as a line of at most `chars_max` characters, escapes counted as they are written, and three
/// dots behind it if it goes on.
pub fn line(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    // A string takes whatever is written to it.
    write_line(&mut line, text, chars_max).ok();
    line
}

/// A text that is displayed as a line of at most [`Line::MAX`] characters.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a>(pub &'a str);

impl Line<'_> {
    /// Longer than any tensor name or path that means well, short enough for a terminal.
    pub const MAX: usize = 240;
}

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_line(f, self.0, Self::MAX)
    }
}

fn write_line(out: &mut impl Write, text: &str, chars_max: usize) -> fmt::Result {
    let mut room = chars_max;
    for c in text.chars() {
        let chars = if is_obeyed(c) { c.escape_default().len() } else { 1 };
        let Some(left) = room.checked_sub(chars) else { return out.write_str("...") };
        room = left;
        match is_obeyed(c) {
            true => write!(out, "{}", c.escape_default())?,
            false => out.write_char(c)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_one_short_line() {
        assert_eq!(plain("it's \"ä\\\"\n\x1b[2J"), "it's \"ä\\\"\\n\\u{1b}[2J");
        assert_eq!(plain("a\u{202e}b\u{9b}\u{2028}\u{61c}"), "a\\u{202e}b\\u{9b}\\u{2028}\\u{61c}");
        assert_eq!(line(&"ä".repeat(1 << 20), 80), "ä".repeat(80) + "...");
        assert_eq!(line(&"\u{7f}".repeat(1 << 20), 80), "\\u{7f}".repeat(13) + "...");
        assert_eq!(line("abc", 3), "abc");
        assert_eq!(Line(&"x".repeat(Line::MAX)).to_string(), "x".repeat(Line::MAX));
    }
}
