//! The usual tokens for bytes that are known to come next, for example because a grammar allows no others.
//!
//! They are the tokens that encoding the whole text would give, as far as those agree with the tokens written so far.
//! Models usually write these tokens, but need not.

use std::sync::Arc;

use super::reencoder::ReEncoder;
use crate::{Token, Tokenizer};

/// Number of tokens before the bytes that are encoded again.
const LOOKBEHIND: usize = 10;

/// Longest beginning that is considered, in bytes.
const BEGINNING_MAX: usize = 8;

/// Encodes known bytes after written tokens. Creating it indexes the vocabulary; it can be shared between threads.
#[derive(Debug)]
pub struct Spelling(ReEncoder);

impl Spelling {
    /// For the vocabulary of a tokenizer.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Spelling {
        Spelling(ReEncoder::new(tokenizer, LOOKBEHIND))
    }

    /// The usual tokens for these bytes after the tokens `written`, which do not change. They end before bytes that no
    /// token has.
    pub fn after(&self, written: &[Token], bytes: &[u8]) -> Vec<Token> {
        let mut tokens = Vec::new();
        if written.is_empty() && self.0.tokenizer.drops_first_space() {
            // Encoding would insert a dummy prefix, which only the beginning of a prompt has.
            self.0.encode_greedily(bytes, &mut tokens);
        } else {
            self.0.continue_with(written, bytes, &mut tokens);
        }
        tokens
    }

    /// The tokens that these bytes may begin with, the shortest first.
    pub fn beginnings(&self, bytes: &[u8]) -> impl Iterator<Item = Token> {
        (1..=bytes.len().min(BEGINNING_MAX)).filter_map(|len| self.0.tokens_by_bytes.get(&bytes[..len]).copied())
    }
}
