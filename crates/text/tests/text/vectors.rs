//! Third-party vocabularies, compared with the tokens of the original tokenizers.

use std::path::Path;

use foretoken_text::{Token, Tokenizer};

use crate::{gguf, test_data};

/// Checks every case of a vocabulary's vectors: the text, its tokens, and decoding them.
fn check(path: &Path) {
    let tokenizer = gguf(path);
    let read = |extension: &str| std::fs::read_to_string(format!("{}.{extension}", path.display())).unwrap();
    let (texts, expected) = (read("inp"), read("out"));
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let expected: Vec<&str> = expected.lines().collect();
    assert!(
        !expected.is_empty() && texts.len().abs_diff(expected.len()) <= 1,
        "{} texts, {} lines",
        texts.len(),
        expected.len()
    );
    let mut failures = Vec::new();
    for (case, (text, line)) in texts.iter().zip(&expected).enumerate() {
        let expected: Vec<Token> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let found = tokenizer.encode_plain(text).unwrap();
        if found != expected {
            failures.push(format!("case {case} {text:?}: expected {expected:?}, found {found:?}"));
        }
        if tokenizer.decode(&found, false) != *text {
            failures.push(format!("case {case} {text:?}: {found:?} is {:?}", tokenizer.decode(&found, false)));
        }
    }
    assert!(failures.is_empty(), "{}, {} texts:\n{}", path.display(), expected.len(), failures.join("\n"));
    println!("{}: {} texts", path.display(), expected.len());
}

/// Checks all vocabularies of a folder that have vectors, save WordPiece's, which must be refused by name.
fn check_all(folder: &Path) -> usize {
    let mut checked = 0;
    for entry in std::fs::read_dir(folder).expect("this folder is there") {
        let path = entry.unwrap().path();
        let has_vectors = Path::new(&format!("{}.inp", path.display())).exists();
        if path.extension().is_none_or(|extension| extension != "gguf") || !has_vectors {
            continue;
        }
        if path.to_string_lossy().contains("bert") {
            let file = foretoken_weights::gguf::open(&path).unwrap();
            let error = Tokenizer::from_gguf("v.gguf", &file.metadata).unwrap_err().to_string();
            assert!(error.contains("tokenizer.ggml.model: expected ") && error.contains("found bert"), "{error}");
            continue;
        }
        check(&path);
        checked += 1;
    }
    checked
}

#[test]
fn all_vectors() {
    let Some(folder) = test_data("data/vocab") else { return };
    let checked = check_all(&folder);
    assert!(checked >= 3, "{checked} vocabularies with vectors in {}", folder.display());
}

/// Another folder of vocabularies with vectors, such as llama.cpp's `models`: `FORETOKEN_VOCABULARIES`.
#[test]
fn all_vectors_of_another_folder() {
    let Some(folder) = std::env::var_os("FORETOKEN_VOCABULARIES") else {
        return println!("skipped: FORETOKEN_VOCABULARIES, which names a folder of vocabularies, is not set");
    };
    assert!(check_all(Path::new(&folder)) > 0, "no vocabularies with vectors in {}", folder.display());
}

#[test]
fn a_vocabulary_without_a_pre_tokenizer_loads() {
    let Some(path) = test_data("data/vocab/ggml-vocab-gpt-neox.gguf") else { return };
    let tokenizer = gguf(&path);
    let text = "def f(x):\n    return x + 1234  # ünï";
    assert_eq!(tokenizer.decode(&tokenizer.encode(text, true).unwrap(), true), text);
    assert_eq!((tokenizer.vocabulary_len(), tokenizer.adds_bos()), (50432, false));
}

#[test]
fn a_real_small_vocabulary() {
    let Some(path) = test_data("models/stories260K/stories260K.gguf") else { return };
    let tokenizer = gguf(&path);
    assert_eq!((tokenizer.vocabulary_len(), tokenizer.bos(), tokenizer.end_tokens()), (512, Some(1), &[2][..]));
    assert_eq!(tokenizer.encode("", true).unwrap(), [1]);
    let tokens = tokenizer.encode("Once upon a time", true).unwrap();
    assert_eq!(tokens[0], 1);
    assert_eq!(tokenizer.decode(&tokens, true), "Once upon a time");
    assert_eq!(tokenizer.token_bytes(13), b"\n");
    assert!(tokenizer.is_special(0) && tokenizer.is_special(2) && !tokenizer.is_special(13));
    assert_eq!(tokenizer.encode("</s>", false).unwrap(), [2]);
    assert!(!tokenizer.encode_plain("</s>").unwrap().contains(&2));
}

#[test]
fn the_whole_vocabulary_decodes_to_its_bytes() {
    for name in ["gpt-2", "starcoder", "llama-spm", "gpt-neox"] {
        let Some(path) = test_data(&format!("data/vocab/ggml-vocab-{name}.gguf")) else { return };
        let tokenizer: Tokenizer = gguf(&path);
        let lone_bytes: std::collections::BTreeSet<u8> = (0..tokenizer.vocabulary_len() as Token)
            .filter_map(|token| <[u8; 1]>::try_from(tokenizer.token_bytes(token)).ok())
            .map(|[byte]| byte)
            .collect();
        // Some vocabularies have no token for bytes that UTF-8 never or hardly ever uses.
        let missing: Vec<u8> = (0..=255).filter(|byte| !lone_bytes.contains(byte)).collect();
        assert!(missing.iter().all(|byte| matches!(byte, 0xc0 | 0xc1 | 0xf1..=0xff)), "{name}: {missing:x?}");
    }
}
