//! The texts that are kept between runs for drafters, and the number of the next request.
//!
//! Drafters that learn (tries, suffix structures, n-gram models) are not written to disk; the texts that they learned
//! are, and every drafter is built anew from them at start ([`Store::warm_up`]). Learning costs a few microseconds a
//! token at most, so a million tokens take seconds, and in return there is one format for all drafters, which outlives
//! every change of their insides, can be checked completely (a token is in the vocabulary or it is not), and serves
//! drafters that did not exist when it was written. The number of the next request is kept with the texts, because a
//! drafter that learned a text must not draft for a request with the same number ([`Engine::set_next_request`]).
//!
//! All numbers are little-endian:
//!
//! ```text
//! 0   8   the letters "ftktexts"
//! 8   4   version: 2
//! 12  4   tokens of the vocabulary
//! 16  8   fingerprint of the vocabulary
//! 24  8   documents
//! 32  8   tokens of all documents together
//! 40  8   number of the next request, at most 2^64 - 1 - 2^32
//! 48      each document: tokens (4), of which prompt (4), whose: 0 everybody's, 1 a tenant's (4), the tenant (8),
//!         and the tokens, 4 each
//! end 8   XXH3-64 of everything before
//! ```
//!
//! Files of version 1 are read as well: they lack the number of the next request, and their documents begin at 40. The
//! header gives the length of the file (48 + 20 documents + 4 tokens + 8), so a wrong header is refused before anything
//! is read for it; a text is used only if the whole file is valid. A file is written under a temporary name and renamed
//! when it is complete; several processes that add to one file lock it (`store/shared.rs`). Files are not compressed.

pub(crate) mod format;
mod shared;

use std::collections::VecDeque;
use std::path::Path;

use foretoken_engine::Engine;
use foretoken_speculation::{Tenant, Token};
use foretoken_text::Tokenizer;

use crate::error::KeptFileError;
use crate::kept_file;
use crate::{Error, OutputFile};
pub(crate) use shared::SharedStore;

/// The most tokens that a store may hold: 4 GiB of them.
pub const TOKENS_MAX: usize = 1 << 30;
/// The largest number of a next request that a file may have: it leaves room for 2^32 requests, so that a damaged or
/// malicious file cannot make the numbers overflow.
pub const NEXT_REQUEST_MAX: u64 = u64::MAX - (1 << 32);

/// Which vocabulary tokens belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// [`Tokenizer::fingerprint`].
    pub fingerprint: u64,
    /// The number of tokens ([`Tokenizer::vocabulary_len`]).
    pub len: u32,
}

impl From<&Tokenizer> for Vocabulary {
    fn from(tokenizer: &Tokenizer) -> Self {
        let len = u32::try_from(tokenizer.vocabulary_len()).expect("tokens are numbers of 32 bits");
        Self { fingerprint: tokenizer.fingerprint(), len }
    }
}

/// A text as drafters learn it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its tokens, at least one.
    pub tokens: Vec<Token>,
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// Whose drafts it may be used for; `None` is everybody's.
    pub tenant: Option<Tenant>,
}

/// Texts of one vocabulary, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    vocabulary: Vocabulary,
    documents: VecDeque<Document>,
    tokens: usize,
    tokens_max: usize,
    next_request: u64,
}

impl Store {
    /// An empty store of a vocabulary, which keeps up to `tokens_max` tokens (never more than [`TOKENS_MAX`]).
    pub fn new(vocabulary: Vocabulary, tokens_max: usize) -> Self {
        let tokens_max = tokens_max.min(TOKENS_MAX);
        Self { vocabulary, documents: VecDeque::new(), tokens: 0, tokens_max, next_request: 0 }
    }

    /// Adds a text as the newest; where there is no room for all, the oldest are dropped. Returns whether it was added:
    /// a text without tokens, with tokens outside the vocabulary or longer than the whole store is not.
    ///
    /// # Panics
    /// If the prompt is longer than the text.
    pub fn add(&mut self, document: Document) -> bool {
        let len = document.tokens.len();
        assert!(document.prompt_len <= len, "a prompt of {} tokens in a text of {len}", document.prompt_len);
        let known = document.tokens.iter().all(|token| *token < self.vocabulary.len);
        if len == 0 || len > self.tokens_max || !known {
            return false;
        }
        self.tokens += len;
        self.documents.push_back(document);
        self.drop_oldest();
        true
    }

    /// The store with another limit of tokens, as [`Store::new`] sets it.
    pub(crate) fn keeping(mut self, tokens_max: usize) -> Self {
        self.tokens_max = tokens_max.min(TOKENS_MAX);
        self.drop_oldest();
        self
    }

    fn drop_oldest(&mut self) {
        while self.tokens > self.tokens_max {
            let oldest = self.documents.pop_front().expect("an empty store holds no tokens");
            self.tokens -= oldest.tokens.len();
        }
    }

    /// The texts, oldest first.
    pub fn documents(&self) -> impl ExactSizeIterator<Item = &Document> {
        self.documents.iter()
    }

    /// Tokens of all texts.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The number of the first request after these texts ([`Engine::set_next_request`]). 0 in a new store, whose texts
    /// come from no request.
    pub fn next_request(&self) -> u64 {
        self.next_request
    }

    /// Sets the number of the first request after those that generated the texts ([`Engine::next_request`]). A file
    /// with a number above [`NEXT_REQUEST_MAX`] is written and cannot be read again.
    pub fn set_next_request(&mut self, number: u64) {
        self.next_request = number;
    }

    /// Bytes of the file that [`Store::save`] writes.
    pub fn bytes(&self) -> u64 {
        format::file_len(self.documents.len() as u64, self.tokens as u64)
    }

    /// Makes all drafters of an engine learn all texts, oldest first.
    pub fn warm_up(&self, engine: &mut Engine) {
        for document in &self.documents {
            engine.warm_up(&document.tokens, document.prompt_len, document.tenant);
        }
    }

    /// Reads a file that was written for this vocabulary. If it holds more than `tokens_max` tokens, the oldest texts
    /// are left out.
    ///
    /// # Errors
    /// The file cannot be read, or one of its fields is invalid. Nothing of it is used then.
    pub fn load(path: &Path, vocabulary: Vocabulary, tokens_max: usize) -> Result<Self, KeptFileError> {
        Ok(Self::load_with_sum(path, vocabulary)?.0.keeping(tokens_max))
    }

    /// The same with all texts, and with the file's checksum.
    pub(crate) fn load_with_sum(path: &Path, vocabulary: Vocabulary) -> Result<(Self, u64), KeptFileError> {
        let (file, len) = kept_file::open(path)?;
        format::read(&path.display().to_string(), file, len, vocabulary)
    }

    /// Writes the file atomically: a concurrent reader sees the old one. If the path is a link, its target is written,
    /// even if it does not exist yet. On Unix an old file keeps its permissions (not its owner, if that is another
    /// user), and a new one is readable by its owner alone, since it holds what people wrote.
    ///
    /// # Errors
    /// The folder or the file cannot be written, or links form a cycle; an old file is unchanged then.
    pub fn save(&self, path: &Path) -> Result<(), KeptFileError> {
        kept_file::replace(path, |out| format::write(out, self).map(drop))
    }

    /// Writes into a file that the caller created, and finishes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_to(&self, mut out: OutputFile) -> Result<(), Error> {
        out.fill(|out| format::write(out, self).map(drop))?;
        out.finish()
    }
}

#[cfg(test)]
mod tests;
