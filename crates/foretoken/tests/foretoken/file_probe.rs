//! Checks that hold for any bytes in place of a file of an earlier run: reading them does not panic and takes memory in
//! proportion to them, and an error is one line that names the file and the field. An accepted file is written again as
//! the same file.
//!
//! The first byte of an input selects the kind of file, and whether checksums are corrected before it is read, since no
//! fuzzer guesses a checksum. The fuzz target calls the same function.

use foretoken::fuzzing;
use foretoken::store::{Store, Vocabulary};
use xxhash_rust::xxh3::xxh3_64;

/// The name of the file in messages.
const NAME: &str = "probe";
/// The vocabulary whose files are read.
pub const VOCABULARY: Vocabulary = Vocabulary { fingerprint: 0x0123_4567_89ab_cdef, len: 100 };
/// A small limit of tokens, so that texts are dropped.
const FEW: usize = 5;

/// Reads bytes as a file of an earlier run. True if it is accepted.
pub fn file(data: &[u8]) -> bool {
    let Some((kind, bytes)) = data.split_first() else { return false };
    let bytes = if kind & 4 == 0 { bytes.to_vec() } else { sealed(bytes) };
    match kind % 3 {
        0 => store(&bytes),
        1 => prefix(&bytes),
        _ => std::str::from_utf8(&bytes).is_ok_and(costs),
    }
}

/// The file with corrected checksums, if it is long enough to have them.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for end in [head_end(&bytes), bytes.len().checked_sub(8)].into_iter().flatten() {
        let sum = xxh3_64(&bytes[..end]);
        bytes[end..end + 8].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

/// The position of the checksum of a prompt cache's head, if the file is long enough for its head.
fn head_end(bytes: &[u8]) -> Option<usize> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    // The header has 32 bytes, each group 16, and two checksums follow the head.
    let (key, tokens, groups) = (number(8)? >> 32, number(16)?, number(24)?);
    let end = tokens.checked_mul(4)?.checked_add(groups.checked_mul(16)?)?.checked_add(32 + key)?;
    let end = usize::try_from(end).ok()?;
    (bytes.starts_with(b"ftkprefx") && bytes.len().checked_sub(end)? >= 16).then_some(end)
}

fn store(bytes: &[u8]) -> bool {
    let read = |bytes: &[u8], tokens_max| fuzzing::store(NAME, bytes, VOCABULARY, tokens_max);
    let all = match read(bytes, usize::MAX) {
        Ok(store) => store,
        Err(error) => return refuse(&error.to_string()),
    };
    check(&all);
    let written = fuzzing::store_file(&all);
    assert_eq!(written.len() as u64, all.bytes());
    if bytes[8] == 1 {
        assert_eq!(read(&written, usize::MAX).as_ref(), Ok(&all), "a store of version 1 changes when it is written");
    } else {
        assert!(written == bytes, "a store changes when it is written");
    }
    let few = read(bytes, FEW).expect("the same file");
    check(&few);
    let dropped = all.documents().len() - few.documents().len();
    assert!(few.tokens() <= FEW && few.documents().eq(all.documents().skip(dropped)), "not the newest texts");
    assert_eq!(few.next_request(), all.next_request());
    true
}

fn check(store: &Store) {
    let mut tokens = 0;
    for document in store.documents() {
        assert!(!document.tokens.is_empty() && document.prompt_len <= document.tokens.len(), "{document:?}");
        assert!(document.tokens.iter().all(|token| *token < VOCABULARY.len), "{document:?}");
        tokens += document.tokens.len();
    }
    assert_eq!(tokens, store.tokens());
}

fn prefix(bytes: &[u8]) -> bool {
    match fuzzing::prefix(NAME, bytes) {
        // The parts of the key may have another order in the file than when they are written.
        Ok(written) => {
            assert_eq!(written.len(), bytes.len());
            assert_eq!(fuzzing::prefix(NAME, &written).as_ref(), Ok(&written), "rows change when they are written");
            true
        }
        Err(error) => refuse(&error.to_string()),
    }
}

fn costs(text: &str) -> bool {
    match fuzzing::costs(text) {
        Ok(written) => {
            let again =
                fuzzing::costs(&written).unwrap_or_else(|why| panic!("refused as it was written: {why}: {text}"));
            assert_eq!(again, written, "costs change when they are written");
            true
        }
        Err(why) => refuse(&format!("{NAME}: {why}")),
    }
}

fn refuse(message: &str) -> bool {
    assert!(message.starts_with(NAME), "does not name the file: {message}");
    assert!(message.contains("expected") && message.contains("found"), "does not say what was expected: {message}");
    assert!(!message.contains(char::is_control), "not one line: {message:?}");
    assert!(message.len() < 8192, "too long: {} bytes", message.len());
    false
}
