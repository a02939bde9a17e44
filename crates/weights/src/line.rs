//! Untrusted text in messages: it becomes one short line without anything that a terminal interprets.
//!
//! Names in files, values of configurations and answers of servers may hold anything. Every message that quotes one
//! uses this module, so that the message stays one line, does not clear the screen, does not reverse the direction of
//! text, and is short.

use std::fmt::{self, Display, Formatter, Write};

/// Whether a terminal would interpret this character, or reorder other characters because of it, instead of showing it.
pub fn needs_escape(c: char) -> bool {
    let reverses = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    reverses || c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// The text with all characters of [`needs_escape`] as escapes.
pub fn escaped(text: &str) -> String {
    one_line(text, usize::MAX)
}

/// The beginning of a text as a line of at most `chars_max` characters, followed by three dots if the text is longer.
/// Escapes count as they are written.
pub fn one_line(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    // Writing to a string cannot fail.
    write_line(&mut line, text, chars_max).ok();
    line
}

/// A text that is displayed as a line of at most [`OneLine::CHARS_MAX`] characters.
#[derive(Clone, Copy, Debug)]
pub struct OneLine<'a>(pub &'a str);

impl OneLine<'_> {
    /// Maximum number of characters: more than any real tensor name or path has, but few enough for a terminal.
    pub const CHARS_MAX: usize = 240;
}

impl Display for OneLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_line(f, self.0, Self::CHARS_MAX)
    }
}

fn write_line(out: &mut impl Write, text: &str, chars_max: usize) -> fmt::Result {
    let mut room = chars_max;
    for c in text.chars() {
        let chars = if needs_escape(c) { c.escape_default().len() } else { 1 };
        let Some(left) = room.checked_sub(chars) else { return out.write_str("...") };
        room = left;
        match needs_escape(c) {
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
    fn quoted_text_is_one_short_line() {
        assert_eq!(escaped("it's \"ä\\\"\n\x1b[2J"), "it's \"ä\\\"\\n\\u{1b}[2J");
        assert_eq!(escaped("a\u{202e}b\u{9b}\u{2028}\u{61c}"), "a\\u{202e}b\\u{9b}\\u{2028}\\u{61c}");
        assert_eq!(one_line(&"ä".repeat(1 << 20), 80), "ä".repeat(80) + "...");
        assert_eq!(one_line(&"\u{7f}".repeat(1 << 20), 80), "\\u{7f}".repeat(13) + "...");
        assert_eq!(one_line("abc", 3), "abc");
        assert_eq!(OneLine(&"x".repeat(OneLine::CHARS_MAX)).to_string(), "x".repeat(OneLine::CHARS_MAX));
    }
}
