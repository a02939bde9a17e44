//! Incremental detokenization: tokens in, pieces of text out, never part of a character.
//!
//! A token stands for bytes, and a character may be spread over several tokens. Bytes that may still become a
//! character are held back; bytes that cannot become one turn into U+FFFD as soon as that is known. So the pieces, put
//! together, are exactly what [`Tokenizer::decode`] makes of all the tokens at once.
//!
//! SentencePiece tokenizers insert a space before the first word (the dummy prefix). It is dropped where the text
//! begins, and only there: a continuation of a prompt keeps its space. So the stream needs the prompt.

use std::sync::Arc;

use crate::Token;
use crate::tokenizer::{Decoding, Tokenizer};

/// Turns generated tokens into text, one at a time.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// Special tokens that are shown although `skip_special` is set.
    shown: Arc<[Token]>,
    now: Decoding,
}

impl TextStream {
    /// Begins a stream that continues `prompt`. Special tokens will not appear in the text.
    pub fn new(tokenizer: Arc<Tokenizer>, prompt: &[Token]) -> Self {
        let mut now = Decoding::START;
        now.at_start =
            prompt.iter().all(|&token| tokenizer.is_special(token) || tokenizer.token_bytes(token).is_empty());
        Self { tokenizer, skip_special: true, shown: Arc::default(), now }
    }

    /// Sets whether special tokens are left out of the text (`true`, the default) or shown.
    #[must_use]
    pub fn skip_special(mut self, skip: bool) -> Self {
        self.skip_special = skip;
        self
    }

    /// Sets special tokens that are shown although others are left out: those that a parser of the text needs, such as
    /// the ones around tool calls ([`crate::ToolFormat::delimiters`]).
    #[must_use]
    pub fn show_special(mut self, shown: Arc<[Token]>) -> Self {
        self.shown = shown;
        self
    }

    /// Adds a token and returns the text that it completes, possibly none.
    pub fn push(&mut self, token: Token) -> String {
        let mut text = String::new();
        let skip_special = self.skip_special && !self.shown.contains(&token);
        self.now.push(self.tokenizer.parts(), token, skip_special, &mut text);
        text
    }

    /// The text still held back when generation ends: U+FFFD if the last character is incomplete.
    pub fn finish(&self) -> &'static str {
        self.now.rest()
    }

    /// The tokenizer that the text is made with.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }
}
