//! Text while it is being generated: tokens in, pieces of text out, never half a character.
//!
//! A token stands for bytes, and a character may be spread over several tokens. Bytes that may still become a
//! character are held back; bytes that cannot become one turn into U+FFFD as soon as that is known. So the pieces, put
//! together, are exactly what [`Tokenizer::decode`] makes of all the tokens at once.
//!
//! Tokenizers of the SentencePiece kind write an invented space before the first word. It is dropped where the text
//! begins, and only there: a continuation of a prompt keeps its space. That is why the stream is told the prompt.
//!
//! Whoever feeds it guesses can take steps back: the state before every token is kept (a few bytes each).

use std::sync::Arc;

use crate::{Token, Tokenizer};

/// The part of the state that a token changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoding {
    /// The first bytes of a character whose end has not come yet: at most three.
    held: [u8; 4],
    held_len: u8,
    /// Only special tokens so far: an invented space at the front of the next token is dropped.
    at_start: bool,
}

impl Decoding {
    pub(crate) const START: Self = Self { held: [0; 4], held_len: 0, at_start: true };

    /// Adds what one token stands for to `text`, as far as it is whole characters.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: Token, skip_special: bool, text: &mut String) {
        let special = tokenizer.is_special(token);
        if special && skip_special {
            return;
        }
        let mut bytes = tokenizer.token_bytes(token);
        if !special && !bytes.is_empty() {
            if self.at_start && tokenizer.drops_first_space() {
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

    /// What is left at the end: a character that never became whole is one U+FFFD.
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

/// Turns generated tokens into text, one at a time, and can go back to any earlier token.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    now: Decoding,
    /// The state before each token.
    before: Vec<Decoding>,
}

impl TextStream {
    /// Begins a stream that continues `prompt`. Special tokens will not appear in the text.
    pub fn new(tokenizer: Arc<Tokenizer>, prompt: &[Token]) -> Self {
        let mut now = Decoding::START;
        now.at_start =
            prompt.iter().all(|&token| tokenizer.is_special(token) || tokenizer.token_bytes(token).is_empty());
        Self { tokenizer, skip_special: true, now, before: Vec::new() }
    }

    /// Says whether special tokens are left out of the text (`true`, as a new stream does) or spelt out.
    ///
    /// # Panics
    /// If tokens have been pushed already.
    #[must_use]
    pub fn skip_special(mut self, skip: bool) -> Self {
        assert!(self.before.is_empty(), "skip_special after {} tokens", self.before.len());
        self.skip_special = skip;
        self
    }

    /// Adds a token and returns the text that it completes, possibly none.
    pub fn push(&mut self, token: Token) -> String {
        let mut text = String::new();
        self.before.push(self.now);
        self.now.push(&self.tokenizer, token, self.skip_special, &mut text);
        text
    }

    /// The text still held back, for when generation has ended: U+FFFD if a character was left unfinished.
    pub fn finish(&self) -> &'static str {
        self.now.rest()
    }

    /// Number of tokens pushed.
    pub fn len(&self) -> usize {
        self.before.len()
    }

    /// Whether nothing has been pushed.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty()
    }

    /// Goes back to the state after the first `len` tokens, as if the others had never come.
    ///
    /// # Panics
    /// If fewer than `len` tokens have been pushed.
    pub fn keep(&mut self, len: usize) {
        assert!(len <= self.before.len(), "cannot keep {len} tokens of {}", self.before.len());
        if let Some(&state) = self.before.get(len) {
            self.now = state;
            self.before.truncate(len);
        }
    }

    /// The tokenizer that the text is made with.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }
}
