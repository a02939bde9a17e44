//! The texts that are kept between runs for drafters, and the number of the next request.
//!
//! The file has the texts that drafters learned, not the tries, suffix structures and n-gram models that they built;
//! these are built again at the start ([`Store::warm_up`]). Learning takes at most a few microseconds a token, so a
//! million tokens take seconds. In return all drafters share one format, which does not depend on their data
//! structures, can be checked completely (each token is in the vocabulary or not), and serves later drafters. The
//! number of the next request is kept with the texts, because a drafter that learned a text must not draft for a
//! request with the same number ([`Engine::set_next_request`]).
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
//! 48      each document: tokens (4), of which prompt (4), owner: 0 everybody, 1 a tenant (4), the tenant (8), and the
//!         tokens, 4 each
//! end 8   XXH3-64 of everything before
//! ```
//!
//! Files of version 1 are read as well: they lack the number of the next request, and their documents begin at 40. The
//! header determines the length of the file (48 + 20 documents + 4 tokens + 8), so a wrong header is refused before the
//! documents are read; a text is used only if the whole file is valid. A file is written under a temporary name and
//! renamed when it is complete; several processes that add to one file lock it (`store/shared.rs`).

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

/// The most tokens in a store: 4 GiB.
pub const TOKENS_MAX: usize = 1 << 30;
/// The largest number of the next request in a file. It leaves room for 2^32 requests, so that a damaged or malicious
/// file cannot make the numbers overflow.
pub const NEXT_REQUEST_MAX: u64 = u64::MAX - (1 << 32);

/// The vocabulary that the tokens of a store belong to.
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
    /// The tenant whose drafts may use it; `None` is all tenants.
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

    /// Adds a text as the newest, and drops the oldest if there is no room for all. Returns whether it was added: a
    /// text without tokens, with tokens outside the vocabulary or longer than the whole store is not.
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

    /// The number of the first request after those that generated the texts ([`Engine::set_next_request`]); 0 in a new
    /// store.
    pub fn next_request(&self) -> u64 {
        self.next_request
    }

    /// Sets that number ([`Engine::next_request`]). A file with a number above [`NEXT_REQUEST_MAX`] can be written, but
    /// not read.
    pub fn set_next_request(&mut self, number: u64) {
        self.next_request = number;
    }

    /// Bytes of the file that [`Store::save`] writes.
    pub fn bytes(&self) -> u64 {
        format::file_len(self.documents.len() as u64, self.tokens as u64)
    }

    /// Gives all texts to the drafters of an engine to learn, oldest first.
    pub fn warm_up(&self, engine: &mut Engine) {
        for document in &self.documents {
            engine.warm_up(&document.tokens, document.prompt_len, document.tenant);
        }
    }

    /// Reads a file that was written for this vocabulary. If it has more than `tokens_max` tokens, the oldest texts are
    /// dropped.
    ///
    /// # Errors
    /// The file cannot be read, or one of its fields is invalid.
    pub fn load(path: &Path, vocabulary: Vocabulary, tokens_max: usize) -> Result<Self, KeptFileError> {
        Ok(Self::load_with_checksum(path, vocabulary)?.0.keeping(tokens_max))
    }

    /// Reads all texts of a file; also returns its checksum.
    pub(crate) fn load_with_checksum(path: &Path, vocabulary: Vocabulary) -> Result<(Self, u64), KeptFileError> {
        let (file, len) = kept_file::open(path)?;
        format::read(&path.display().to_string(), file, len, vocabulary)
    }

    /// Writes a file atomically. If the path is a link, its target is written, even if it does not exist yet. On Unix
    /// an old file keeps its permissions (not its owner, if that is another user), and a new one is readable by its
    /// owner alone, since it has users' texts.
    ///
    /// # Errors
    /// The folder or the file cannot be written, or links form a cycle; an old file is then unchanged.
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
