//! Unit tests of merges and of bad files; `tests/text/tiktoken.rs` compares with tiktoken.

use super::*;

/// A folder with these lines of a token and its rank, as `qwen.tiktoken`.
fn read(lines: &str) -> Result<GgufVocabulary, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("qwen.tiktoken"), lines).unwrap();
    let place = folder.path().join("qwen.tiktoken").display().to_string();
    vocabulary(folder.path())
        .map(|(vocabulary, _)| vocabulary)
        .map_err(|error| error.to_string().replace(&place, "file"))
}

fn line(token: &[u8], rank: usize) -> String {
    format!("{} {rank}\n", BASE64.encode(token))
}

#[test]
fn a_token_is_merged_of_what_earlier_merges_leave_of_it() {
    let tokens: [&[u8]; 8] = [b"a", b"b", b" ", b"ab", b"ba", b"aba", b"abab", b"bab "];
    let lines: String = tokens.iter().enumerate().map(|(rank, token)| line(token, rank)).collect();
    let found = read(&lines).unwrap();
    // "aba" is "ab" and "a", since "ab" comes before "ba"; and "bab " would be "b", "ab" and " ", three parts.
    assert_eq!(found.merges, ["a b", "b a", "ab a", "ab ab"]);
    assert_eq!(
        (found.tokens[2].as_str(), found.tokens[7].as_str(), found.tokens[8].as_str()),
        ("Ġ", "babĠ", "<|endoftext|>")
    );
    assert_eq!((found.tokens.len(), found.eos, found.pre.as_deref()), (8 + 3 + 205, Some(8), Some("qwen2")));
}

#[test]
fn bad_files_are_refused_by_line_or_rank() {
    for (lines, message) in [
        ("YQ==\n", "file: line 1: expected the bytes of a token in base64, and its rank, found \"YQ==\""),
        ("YQ== 0\nYg== x\n", "file: line 2: expected the bytes of a token in base64, and its rank, found \"Yg== x\""),
        ("Y? 0\n", "file: line 1: expected the bytes of a token in base64, and its rank, found \"Y? 0\""),
        ("YQ== -1\n", "file: line 1: expected the bytes of a token in base64, and its rank, found \"YQ== -1\""),
        (" 0\n", "file: line 1: expected the bytes of a token in base64, and its rank, found \" 0\""),
        ("YQ== 0\nYg== 0\n", "file: ranks: expected 1, after those before it, found 0"),
        ("YQ== 0\nYg== 4000000000\n", "file: ranks: expected 1, after those before it, found 4000000000"),
        ("YQ== 0\nYQ== 1\n", "file: tokens: expected each with one rank, found \"a\" with 0 and 1"),
    ] {
        let error = read(lines).unwrap_err();
        assert!(error.starts_with(message), "{error}");
    }
    let error = read(&(line(&[b'a'; 10_000], 0) + &line(b"b", 1))).unwrap_err();
    assert_eq!(
        error,
        "file: tokens: expected as many and as long ones as vocabularies have, found 2 with up to 10000 bytes"
    );
}
