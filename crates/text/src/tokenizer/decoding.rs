//! The state of incremental decoding: the bytes of an incomplete character, and whether the text has begun.

use super::parts::Parts;
use crate::Token;

/// The state between two tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoding {
    /// The first bytes of an incomplete character: at most three.
    held: [u8; 4],
    held_len: u8,
    /// Whether there were only special tokens so far, so that a dummy prefix space of the next token is dropped.
    pub at_start: bool,
}

impl Decoding {
    pub(crate) const START: Self = Self { held: [0; 4], held_len: 0, at_start: true };

    /// Appends a token's bytes to `text`, as far as they are complete characters.
    pub(crate) fn push(&mut self, parts: &Parts, token: Token, skip_special: bool, text: &mut String) {
        let special = parts.spellings.is_special(token);
        if special && skip_special {
            return;
        }
        let mut bytes = parts.spellings.bytes(token);
        if !special && !bytes.is_empty() {
            if self.at_start && parts.drops_first_space {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
            self.at_start = false;
        }
        if self.held_len == 0 {
            self.append(bytes, text);
        } else {
            let joined = [&self.held[..usize::from(self.held_len)], bytes].concat();
            self.append(&joined, text);
        }
    }

    /// The remaining text at the end: U+FFFD if a character is incomplete.
    pub(crate) fn rest(&self) -> &'static str {
        if self.held_len == 0 { "" } else { "\u{fffd}" }
    }

    fn append(&mut self, mut bytes: &[u8], text: &mut String) {
        self.held_len = 0;
        loop {
            match std::str::from_utf8(bytes) {
                Ok(rest) => return text.push_str(rest),
                Err(error) => {
                    let (valid, rest) = bytes.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).expect("this part was just found valid"));
                    let Some(invalid) = error.error_len() else {
                        self.held[..rest.len()].copy_from_slice(rest);
                        self.held_len = rest.len() as u8;
                        return;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    bytes = &rest[invalid..];
                }
            }
        }
    }
}
