//! Files that are kept between runs, read from memory and written into it, for tests that read many: fuzzers above all.
//!
//! Nobody else needs it, so it is not part of the documented interface. Each function is what a generator does with
//! such a file, without the file. Left out: what is done with what was read.

use serde_json::Value;

use crate::kept_file::KeptFileError;
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

/// The rows of a prompt's beginning, said again as the file that would be written of them.
///
/// # Errors
/// As when a generator is opened with the file.
pub fn prefix(name: &str, bytes: &[u8]) -> Result<Vec<u8>, KeptFileError> {
    prompt_cache::reread(name, bytes)
}

/// What passes cost, said again as the file that would be written of it.
///
/// # Errors
/// What is wrong with it.
pub fn costs(text: &str) -> Result<String, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("expected JSON, found: {error}"))?;
    costs::rewritten(&value)
}

/// The file with right checksums wherever it has a place for them, so that what is behind them is reached.
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
