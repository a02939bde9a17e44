//! Parses files that are kept between runs from memory and writes them to memory, for fuzz targets and tests.
//!
//! This module exists only with the feature `fuzzing`, which no program enables. Each function does what a generator
//! does with such a file, without the file system.

use foretoken_model::SavedBytes;
use serde_json::Value;

use crate::costs;
use crate::error::KeptFileError;
use crate::prompt_cache::format::{self, Expected};
use crate::store::{self, Store, Vocabulary};

/// Parses a file of texts, keeping at most `tokens_max` tokens.
///
/// # Errors
/// As [`Store::load`].
pub fn store(name: &str, bytes: &[u8], vocabulary: Vocabulary, tokens_max: usize) -> Result<Store, KeptFileError> {
    let (store, _) = store::format::read(name, bytes, bytes.len() as u64, vocabulary)?;
    Ok(store.keeping(tokens_max))
}

/// Writes a file of texts.
pub fn store_file(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    store::format::write(&mut bytes, store).expect("memory takes everything");
    bytes
}

/// Parses a prompt cache with a certain key and writes it again.
///
/// # Errors
/// As when a generator is opened with the file.
pub fn prefix(name: &str, bytes: &[u8]) -> Result<Vec<u8>, KeptFileError> {
    let key = |len: usize| vec![("model", "00ff".to_string()), ("rope", format!("{len:04x}"))];
    let sizes = [SavedBytes { state: 0, row: 6 }, SavedBytes { state: 3, row: 4 }];
    let expected = Expected { key: &key, vocabulary: 100, sizes: &sizes };
    let saved = format::read(name, bytes, bytes.len() as u64, &expected)?;
    let mut written = Vec::new();
    format::write(&mut written, &key(saved.tokens.len()), &sizes, &saved).expect("memory takes everything");
    Ok(written)
}

/// Parses a file of costs and writes it again.
///
/// # Errors
/// The file is damaged.
pub fn costs(text: &str) -> Result<String, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("expected JSON, found: {error}"))?;
    Ok(format!("{:#}\n", costs::parse(&value)?.json()))
}
