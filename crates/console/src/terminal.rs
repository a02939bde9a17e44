//! Escapes control characters in texts of models, files and servers that are written to a terminal.
//!
//! Text may contain escape sequences, which clear the screen, set its title or answer for the user, carriage returns,
//! which write over a line, and marks that reverse the direction of text. On a terminal all control characters but line
//! breaks and tabs are written as `\u{1b}`. Files and pipes get the bytes unchanged. The program's own colours are
//! written around text that is already escaped.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Stderr, Stdout, Write};

use foretoken::line::needs_escape;

/// Standard output or standard error, which escapes text if it is a terminal.
#[derive(Debug)]
pub struct Output<W> {
    out: W,
    is_terminal: bool,
}

/// Standard output.
pub fn standard_output() -> Output<Stdout> {
    let out = io::stdout();
    Output { is_terminal: out.is_terminal(), out }
}

/// Standard error.
pub fn standard_error() -> Output<Stderr> {
    let out = io::stderr();
    Output { is_terminal: out.is_terminal(), out }
}

impl<W: Write> Output<W> {
    /// The text, escaped if this is a terminal.
    pub fn shown<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let is_control = |c: char| needs_escape(c) && !matches!(c, '\n' | '\t');
        if !self.is_terminal || !text.contains(is_control) {
            return text.into();
        }
        let mut shown = String::new();
        for c in text.chars() {
            match is_control(c) {
                true => shown.extend(c.escape_default()),
                false => shown.push(c),
            }
        }
        shown.into()
    }

    /// Writes text with colours without escaping it; text of others in it must be [escaped](Self::shown) already.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn write_coloured(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())
    }
}

/// Each write must have whole characters, as with `write!`.
impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return self.out.write(bytes);
        }
        let text = String::from_utf8_lossy(bytes);
        let shown = self.shown(&text);
        self.out.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text with every kind of control character.
    const HOSTILE: &str = "a\x1b]0;title\x07\u{9b}2J\r\x7f\u{202e}b\u{e9}\n\tc";

    fn written(is_terminal: bool) -> String {
        let mut output = Output { out: Vec::new(), is_terminal };
        write!(output, "{HOSTILE}").expect("a vector takes all");
        String::from_utf8(output.out).expect("it is text")
    }

    #[test]
    fn a_terminal_gets_escapes_and_a_file_the_bytes() {
        assert_eq!(written(false), HOSTILE);
        let expected = "a\\u{1b}]0;title\\u{7}\\u{9b}2J\\r\\u{7f}\\u{202e}b\u{e9}\n\tc";
        assert_eq!(written(true), expected);
        let mut output = Output { out: Vec::new(), is_terminal: true };
        let coloured = format!("\x1b[1m{}\x1b[0m", output.shown("\x1b"));
        output.write_coloured(&coloured).expect("a vector takes all");
        assert_eq!(output.out, b"\x1b[1m\\u{1b}\x1b[0m");
    }
}
