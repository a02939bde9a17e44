//! `tokenizer.model` files, against the tokens that SentencePiece gives, and hostile ones.
//!
//! Two small models and their vectors are part of the repository. Others, with larger tables of characters, are made by
//! `bench/peers/sentencepiece_vectors.py`; their folder is named by `FORETOKEN_SENTENCEPIECE`.

use std::path::{Path, PathBuf};

use foretoken_text::{Token, Tokenizer};
use proptest::prelude::*;

fn committed() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sentencepiece")).to_owned()
}

fn check(model: &Path) -> usize {
    let name = model.display().to_string();
    let tokenizer = Tokenizer::from_sentencepiece(&name, &std::fs::read(model).unwrap()).unwrap();
    let vectors = std::fs::read_to_string(model.with_extension("jsonl")).unwrap();
    let mut failures = Vec::new();
    let cases = vectors.lines().map(|line| serde_json::from_str::<(String, Vec<Token>)>(line).unwrap());
    let count = cases
        .map(|(text, expected)| {
            let found = tokenizer.encode_plain(&text).unwrap();
            if found != expected {
                failures.push(format!("{text:?}: expected {expected:?}, found {found:?}"));
            }
        })
        .count();
    assert!(failures.is_empty(), "{name}, {} of {count} texts:\n{}", failures.len(), failures.join("\n"));
    println!("{name}: {count} texts");
    count
}

fn check_all(folder: &Path) {
    let models = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let models = models.filter(|path| path.extension().is_some_and(|extension| extension == "model"));
    assert!(models.map(|path| check(&path)).sum::<usize>() > 0, "no models in {}", folder.display());
}

#[test]
fn tokens_are_sentencepiece_s() {
    check_all(&committed());
}

#[test]
fn tokens_are_sentencepiece_s_in_another_folder() {
    match std::env::var_os("FORETOKEN_SENTENCEPIECE") {
        Some(folder) => check_all(Path::new(&folder)),
        None => println!("skipped: FORETOKEN_SENTENCEPIECE, which names a folder of models, is not set"),
    }
}

fn folder_with(model: &str, config: &str) -> (tempfile::TempDir, Result<Tokenizer, String>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(committed().join(model), folder.path().join("tokenizer.model")).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    let tokenizer = Tokenizer::from_dir(folder.path()).map_err(|error| error.to_string());
    (folder, tokenizer)
}

#[test]
fn a_folder_with_added_tokens() {
    let config = r#"{"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": {"content": "<|end|>"},
        "added_tokens_decoder": {"400": {"content": "<|end|>", "special": true, "rstrip": true},
          "401": {"content": "<think>", "special": false}}}"#;
    let (folder, tokenizer) = folder_with("bpe.model", config);
    let tokenizer = tokenizer.unwrap();
    assert!(Tokenizer::is_in(folder.path()));
    assert_eq!((tokenizer.bos(), tokenizer.adds_bos(), tokenizer.end_tokens()), (Some(1), true, &[400][..]));
    assert_eq!((tokenizer.vocabulary_len(), tokenizer.token_bytes(400)), (402, &b"<|end|>"[..]));
    let plain = |text: &str| tokenizer.encode_plain(text).unwrap();
    let whole = tokenizer.encode("a<|end|>  a<think>a", true).unwrap();
    // After a special token a dummy prefix is inserted again, and existing spaces are stripped.
    let expected = [&[1][..], &plain("a"), &[400], &plain("a"), &[401], &plain("a")[plain("").len()..]].concat();
    assert_eq!(whole[..3 + 2 * plain("a").len()], expected[..3 + 2 * plain("a").len()]);
    assert_eq!(tokenizer.decode(&whole, true), "a a<think>a");
    assert!(!plain("<|end|> </s>").iter().any(|&token| tokenizer.is_special(token)));
    let (_, tokenizer) = folder_with("bpe.model", r#"{"legacy": false, "add_bos_token": false}"#);
    let tokenizer = tokenizer.unwrap();
    let whole = tokenizer.encode("<s>the", true).unwrap();
    assert_eq!((whole[0], tokenizer.decode(&whole[1..], true)), (1, "the".to_owned()));
    assert_ne!(whole[1..], tokenizer.encode_plain("the").unwrap());
}

/// A folder with only a SentencePiece model is exported to GGUF with the same tokens.
#[test]
fn models_are_exported_to_gguf() {
    let config = r#"{"bos_token": "<s>", "eos_token": "</s>",
        "added_tokens_decoder": {"400": {"content": "<|end|>", "special": true}}}"#;
    let (folder, tokenizer) = folder_with("bpe.model", config);
    let boundary = foretoken_text::BoundaryTokens { bos: Some(1), ends: &[2] };
    let exported = foretoken_text::gguf_vocabulary(folder.path(), 404, boundary).unwrap();
    let metadata = foretoken_weights::gguf::Metadata::new("made", exported.entries);
    let (original, made) = (tokenizer.unwrap(), Tokenizer::from_gguf("made", &metadata).unwrap());
    assert_eq!((made.vocabulary_len(), made.bos(), made.adds_bos()), (404, Some(1), true));
    for text in ["hello world", "  the  end\n", "naïve 我", "a<|end|>b"] {
        assert_eq!(original.encode(text, true).unwrap(), made.encode(text, true).unwrap(), "{text}");
        assert_eq!(original.encode_plain(text).unwrap(), made.encode_plain(text).unwrap(), "{text}");
    }
    // A Unigram model with its table of characters: all of SentencePiece's vectors.
    let config = r#"{"tokenizer_class": "T5Tokenizer", "eos_token": "</s>",
        "added_tokens_decoder": {"400": {"content": "<extra_id_0>", "special": true}}}"#;
    let (folder, tokenizer) = folder_with("unigram.model", config);
    let exported = foretoken_text::gguf_vocabulary(folder.path(), 404, boundary).unwrap();
    let metadata = foretoken_weights::gguf::Metadata::new("made", exported.entries);
    assert!(metadata.optional_bytes("tokenizer.ggml.precompiled_charsmap").unwrap().is_some());
    let (original, made) = (tokenizer.unwrap(), Tokenizer::from_gguf("made", &metadata).unwrap());
    let vectors = std::fs::read_to_string(committed().join("unigram.jsonl")).unwrap();
    for line in vectors.lines() {
        let (text, tokens): (String, Vec<Token>) = serde_json::from_str(line).unwrap();
        assert_eq!(made.encode_plain(&text).unwrap(), tokens, "{text:?}");
        assert_eq!(made.encode(&text, true).unwrap(), original.encode(&text, true).unwrap(), "{text:?}");
    }
}

/// The special tokens of ChatGLM follow the pieces; its tokenizer files do not list them, or not as special ones.
#[test]
fn the_special_tokens_of_chatglm() {
    let config = r#"{"tokenizer_class": "ChatGLMTokenizer",
        "added_tokens_decoder": {"PIECES": {"content": "[MASK]", "special": false}}}"#;
    let pieces = folder_with("bpe.model", "{}").1.unwrap().vocabulary_len() as Token;
    let (folder, third) = folder_with("bpe.model", &config.replace("PIECES", &pieces.to_string()));
    let third = third.unwrap();
    let plain = third.encode_plain("a").unwrap();
    assert_eq!(third.vocabulary_len(), pieces as usize + 9);
    assert_eq!(third.encode("a", true).unwrap(), [&[pieces + 1, pieces + 3], plain.as_slice()].concat());
    assert_eq!(third.encode("<|user|>a", false).unwrap(), [&[pieces + 6], plain.as_slice()].concat());
    assert!((pieces..pieces + 9).all(|token| third.is_special(token)) && !third.adds_bos());
    // The model writes what begins the next turn, which ends its own.
    assert_eq!(third.turn_end_tokens(), [pieces + 6, pieces + 8]);
    let (_, second) =
        folder_with("bpe.model", r#"{"tokenizer_class": "ChatGLMTokenizer", "name_or_path": "THUDM/chatglm2-6b"}"#);
    let second = second.unwrap();
    assert_eq!((second.vocabulary_len(), second.turn_end_tokens().len()), (pieces as usize + 5, 0));
    drop(folder);
}

#[test]
fn malformed_and_unsupported_models_are_refused() {
    let refused = |bytes: &[u8]| Tokenizer::from_sentencepiece("m", bytes).unwrap_err().to_string();
    assert_eq!(refused(b""), "m: expected a SentencePiece model, found: no pieces");
    assert_eq!(
        refused(&[0x0a, 0xff, 0xff, 0xff, 0x7f]),
        "m: expected a SentencePiece model, found: a field of 268435455 bytes where 0 are left"
    );
    assert_eq!(refused(&[0xff; 12]), "m: expected a SentencePiece model, found: a number of more than ten bytes");
    let whole = std::fs::read(committed().join("bpe.model")).unwrap();
    let words = [&whole[..], &[0x12, 0x02, 0x18, 0x03]].concat();
    assert_eq!(
        refused(&words),
        "m: trainer_spec.model_type: expected 1 (UNIGRAM) or 2 (BPE), found 3 (3 is WORD, 4 is CHAR)"
    );
    let table = [&whole[..], &[0x1a, 0x06, 0x12, 0x04, 0xff, 0xff, 0xff, 0x7f]].concat();
    assert_eq!(
        refused(&table),
        "m: expected a compiled table of characters, found: a length of 2147483647 where 0 bytes are left"
    );
    let config = r#"{"added_tokens_decoder": {"999999999": {"content": "x"}}}"#;
    let error = folder_with("bpe.model", config).1.unwrap_err();
    assert!(error.ends_with("the highest id: expected less than 16777216, found 999999999"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Damaged files are refused or read otherwise; nothing panics.
    #[test]
    fn damaged_models(
        is_unigram in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let name = if is_unigram { "unigram.model" } else { "bpe.model" };
        let mut bytes = std::fs::read(committed().join(name)).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        match Tokenizer::from_sentencepiece("damaged", &bytes) {
            Ok(tokenizer) => {
                let tokens = tokenizer.encode("the cat ﬁ \u{3000}[user] 👍 aaaaa</s>", true).unwrap();
                tokenizer.decode(&tokens, false);
            }
            Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
        }
    }
}

#[test]
fn vocabulary_and_merges_in_two_files() {
    let json = std::fs::read(crate::model("demo-target").join("tokenizer.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("vocab.json"), json["model"]["vocab"].to_string()).unwrap();
    let merge = |merge: &serde_json::Value| match merge.as_array() {
        Some(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        None => merge.as_str().unwrap().to_owned(),
    };
    let merges: Vec<String> = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let with_merges = |text: &str| std::fs::write(folder.path().join("merges.txt"), text).unwrap();
    with_merges(&format!("#version: 0.2\n{}\n", merges.join("\n")));
    let tokenizer = Tokenizer::from_dir(folder.path()).unwrap();
    for text in ["Once upon a time, it's  12345\n", "naïve 我 👍"] {
        let tokens = tokenizer.encode(text, true).unwrap();
        assert_eq!(tokenizer.decode(&tokens, true), text);
    }
    with_merges("a b c\n");
    let error = Tokenizer::from_dir(folder.path()).unwrap_err().to_string();
    assert!(error.contains("merges.txt: line 1: expected two tokens"), "{error}");
    std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"tokenizer_class": "CLIPTokenizer"}"#).unwrap();
    with_merges("");
    let error = Tokenizer::from_dir(folder.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer_class: expected ") && error.ends_with("found CLIPTokenizer"), "{error}");
}
