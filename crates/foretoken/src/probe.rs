//! Files that are kept between runs, parsed from memory and written to memory, for fuzzers.
//!
//! It is not part of the documented interface. Each function does what a generator does with such a file, without the
//! file system.

use serde_json::Value;

use crate::error::KeptFileError;
use crate::store::{Store, Vocabulary};
use crate::{costs, prompt_cache};

/// Texts, with room for `tokens_max` tokens.
///
/// # Errors
/// As [`Store::load`].
pub fn store(name: &str, bytes: &[u8], vocabulary: Vocabulary, tokens_max: usize) -> Result<Store, KeptFileError> {
    Ok(Store::read(name, bytes, bytes.len() as u64, vocabulary, tokens_max)?.0)
}

/// The file of texts.
pub fn store_file(store: &Store) -> Vec<u8> {
    store.file()
}

/// Parses the cached rows of a prompt's prefix and writes them as a file again.
///
/// # Errors
/// As when a generator is opened with the file.
pub fn prefix(name: &str, bytes: &[u8]) -> Result<Vec<u8>, KeptFileError> {
    prompt_cache::reserialize(name, bytes)
}

/// Parses a file of costs and writes it again.
///
/// # Errors
/// The file is damaged.
pub fn costs(text: &str) -> Result<String, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("expected JSON, found: {error}"))?;
    costs::reserialize(&value)
}

/// The file with correct checksums wherever it has a place for them, so that parsing gets past them.
pub fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let seal = |bytes: &mut Vec<u8>, end: usize| {
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..end]);
        bytes[end..end + 8].copy_from_slice(&sum.to_le_bytes());
    };
    if let Some(end) = prompt_cache::head_end(&bytes) {
        seal(&mut bytes, end);
    }
    if let Some(end) = bytes.len().checked_sub(8) {
        seal(&mut bytes, end);
    }
    bytes
}
