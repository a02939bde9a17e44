//! How a vocabulary usually spells what comes next.
//!
//! The bytes that a text goes on with are known, the tokens are not: those that encoding the whole text would give, as
//! far as they agree with what is written. That is how models write mostly, and nobody is bound to it. Left out: where
//! such bytes come from (grammars).

use std::sync::Arc;

use super::side::Side;
use crate::{Token, Tokenizer};

/// Tokens that are looked at before what is to be spelt.
const LOOKBEHIND: usize = 10;

/// Longest beginning that is looked at, in bytes.
const BEGINNING_MAX: usize = 8;

/// Spells bytes in the tokens of a vocabulary. Making it walks through all of them; it can be shared between threads.
#[derive(Debug)]
pub struct Spelling(Side);

impl Spelling {
    /// For the vocabulary of a tokenizer.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Spelling {
        Spelling(Side::new(tokenizer, LOOKBEHIND))
    }

    /// The tokens that usually spell these bytes behind the tokens `written`, of which none changes. They end before
    /// bytes that no token can spell.
    pub fn behind(&self, written: &[Token], bytes: &[u8]) -> Vec<Token> {
        let mut tokens = Vec::new();
        if written.is_empty() && self.0.tokenizer.drops_first_space() {
            // Encoding would invent a space, which only the beginning of a prompt has.
            self.0.spell(bytes, &mut tokens);
        } else {
            self.0.continue_with(written, bytes, &mut tokens);
        }
        tokens
    }

    /// The tokens that these bytes may begin with, the shortest first.
    pub fn beginnings(&self, bytes: &[u8]) -> impl Iterator<Item = Token> {
        (1..=bytes.len().min(BEGINNING_MAX)).filter_map(|len| self.0.words.get(&bytes[..len]).copied())
    }
}
