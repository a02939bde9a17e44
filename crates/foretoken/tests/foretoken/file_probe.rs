//! What must hold for any bytes in place of a file of an earlier run: reading them does not panic, takes memory in
//! proportion to them, and an error is one line that names the file and the field. What is accepted is written again as
//! the same file.
//!
//! The first byte of an input says which file the rest is, and whether its checksums are corrected before it is read,
//! since no fuzzer guesses a checksum. The fuzz target calls the same function.

use foretoken::probe;
use foretoken::store::{Store, Vocabulary};

/// The name of the file in messages.
const NAME: &str = "probe";
/// The vocabulary whose files are read.
pub const VOCABULARY: Vocabulary = Vocabulary { fingerprint: 0x0123_4567_89ab_cdef, len: 100 };
/// A small limit of tokens, so that texts are dropped.
const FEW: usize = 5;

/// Reads bytes as a file of an earlier run. True if it is accepted.
pub fn file(data: &[u8]) -> bool {
    let Some((kind, bytes)) = data.split_first() else { return false };
    let bytes = if kind & 4 == 0 { bytes.to_vec() } else { probe::sealed(bytes) };
    match kind % 3 {
        0 => store(&bytes),
        1 => prefix(&bytes),
        _ => std::str::from_utf8(&bytes).is_ok_and(costs),
    }
}

fn store(bytes: &[u8]) -> bool {
    let read = |bytes: &[u8], tokens_max| probe::store(NAME, bytes, VOCABULARY, tokens_max);
    let all = match read(bytes, usize::MAX) {
        Ok(store) => store,
        Err(error) => return refuse(&error.to_string()),
    };
    check(&all);
    let written = probe::store_file(&all);
    assert_eq!(written.len() as u64, all.bytes());
    if bytes[8] == 1 {
        assert_eq!(read(&written, usize::MAX).as_ref(), Ok(&all), "a store of version 1 changes when it is written");
    } else {
        assert!(written == bytes, "a store changes when it is written");
    }
    let few = read(bytes, FEW).expect("the same file");
    check(&few);
    let left_out = all.documents().len() - few.documents().len();
    assert!(few.tokens() <= FEW && few.documents().eq(all.documents().skip(left_out)), "not the newest texts");
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
    match probe::prefix(NAME, bytes) {
        // The parts of the key may come in another order, in which they are not written again.
        Ok(written) => {
            assert_eq!(written.len(), bytes.len());
            assert_eq!(probe::prefix(NAME, &written).as_ref(), Ok(&written), "rows change when they are written");
            true
        }
        Err(error) => refuse(&error.to_string()),
    }
}

fn costs(text: &str) -> bool {
    match probe::costs(text) {
        Ok(written) => {
            let again = probe::costs(&written).unwrap_or_else(|why| panic!("refused as it was written: {why}: {text}"));
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
