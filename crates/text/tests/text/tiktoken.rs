//! Folders whose vocabulary is a file of tiktoken, against tiktoken's tokens (`bench/peers/tiktoken_vectors.py`).

use std::path::{Path, PathBuf};

use foretoken_text::{BoundaryTokens, Token, Tokenizer, gguf_vocabulary};
use foretoken_weights::gguf::Metadata;

fn committed(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiktoken")).join(name)
}

/// A copy of a committed folder with another `tokenizer_config.json`.
fn folder_with(name: &str, config: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["qwen.tiktoken", "tokenizer.model"].map(|file| committed(name).join(file)) {
        if file.exists() {
            std::fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
        }
    }
    std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    folder
}

/// Compares a folder with the vectors in it; returns their number.
fn check(folder: &Path) -> usize {
    let tokenizer = Tokenizer::from_dir(folder).unwrap();
    let vectors = std::fs::read_to_string(folder.join("vectors.jsonl")).unwrap();
    let name = folder.display();
    let checked = vectors.lines().map(|line| {
        let (text, special, plain): (String, Vec<Token>, Vec<Token>) = serde_json::from_str(line).unwrap();
        assert_eq!(tokenizer.encode(&text, false).unwrap(), special, "{name}, {text:?} with special tokens");
        assert_eq!(tokenizer.encode_plain(&text).unwrap(), plain, "{name}, {text:?}");
        // What is not in the normal form NFC is read in that by Qwen, and not given back.
        let is_normal = folder.ends_with("glm4") || !text.contains(['\u{301}', '\u{308}']);
        assert!(!is_normal || tokenizer.decode(&plain, false) == text, "{name}, {text:?}");
    });
    checked.count()
}

#[test]
fn tokens_are_tiktoken_s() {
    for name in ["qwen", "glm4"] {
        let count = check(&committed(name));
        assert!(count > 70, "{name}: {count} texts");
    }
}

#[test]
fn tokens_are_tiktoken_s_in_another_folder() {
    match std::env::var_os("FORETOKEN_TIKTOKEN") {
        Some(folder) => println!("{} texts", check(Path::new(&folder))),
        None => println!("skipped: FORETOKEN_TIKTOKEN, which names a folder with vectors, is not set"),
    }
}

#[test]
fn what_the_code_of_the_checkpoints_says_of_special_tokens() {
    let qwen = Tokenizer::from_dir(&committed("qwen")).unwrap();
    assert_eq!((qwen.vocabulary_len(), qwen.bos(), qwen.adds_bos()), (356 + 3 + 205, None, false));
    assert_eq!((qwen.end_tokens(), qwen.turn_end_tokens()), (&[356][..], &[358][..]));
    assert_eq!((qwen.token_bytes(32), qwen.token_bytes(563)), (&b" "[..], &b"<|extra_204|>"[..]));
    let glm = Tokenizer::from_dir(&committed("glm4")).unwrap();
    assert_eq!((glm.vocabulary_len(), glm.encode("", true).unwrap()), (356 + 14, vec![358, 360]));
    // What begins the next turn ends this one.
    assert_eq!((glm.end_tokens(), glm.turn_end_tokens()), (&[356][..], &[363, 365][..]));
    let config = r#"{"tokenizer_class": "ChatGLM4Tokenizer", "added_tokens_decoder": {
        "356": {"content": "<|endoftext|>", "special": true}, "371": {"content": "<|code|>", "special": false}}}"#;
    let tokenizer = Tokenizer::from_dir(folder_with("glm4", config).path()).unwrap();
    assert_eq!((tokenizer.vocabulary_len(), tokenizer.is_special(371)), (372, false));
    assert_eq!(tokenizer.encode("<|code|>", false).unwrap(), [371]);
    let far = folder_with("glm4", &config.replace("371", "999999999"));
    let error = Tokenizer::from_dir(far.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("added_tokens_decoder.999999999: expected a number below 65906, found 999999999"),
        "{error}"
    );
}

#[test]
fn other_classes_are_refused_by_name() {
    let error = |name: &str, config: &str| {
        let folder = folder_with(name, config);
        assert!(Tokenizer::is_in(folder.path()));
        Tokenizer::from_dir(folder.path()).unwrap_err().to_string()
    };
    let expected = "tokenizer_class: expected QWenTokenizer or ChatGLM4Tokenizer (or a tokenizer.json), found ";
    assert!(
        error("glm4", r#"{"tokenizer_class": "TikTokenTokenizer"}"#).ends_with(&format!("{expected}TikTokenTokenizer"))
    );
    assert!(error("glm4", "{}").ends_with(&format!("{expected}none")));
    // The name of Qwen's file says enough.
    assert!(Tokenizer::from_dir(folder_with("qwen", "{}").path()).is_ok());
}

#[test]
fn the_vocabulary_of_qwen_1_is_exported_to_gguf() {
    let folder = committed("qwen");
    let boundary = BoundaryTokens { bos: None, ends: &[356] };
    let exported = gguf_vocabulary(&folder, 600, boundary).unwrap();
    assert!(exported.notes.len() == 1 && exported.notes[0].contains("normalizer NFC"), "{:?}", exported.notes);
    let made = Tokenizer::from_gguf("made", &Metadata::new("made", exported.entries)).unwrap();
    let original = Tokenizer::from_dir(&folder).unwrap();
    assert_eq!((made.vocabulary_len(), made.end_tokens(), made.adds_bos()), (600, &[356, 358][..], false));
    for text in ["the cat runs", "  a\n\nbananananas 1234", "<|im_start|>user\nnaïve<|im_end|>"] {
        assert_eq!(original.encode(text, true).unwrap(), made.encode(text, true).unwrap(), "{text}");
        assert_eq!(original.encode_plain(text).unwrap(), made.encode_plain(text).unwrap(), "{text}");
    }
}
