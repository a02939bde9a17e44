//! A folder's tokenizer exported to GGUF: the same tokens for any text, and notes or errors for the rest.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use foretoken_text::{BoundaryTokens, ExportedVocabulary, TextError, Token, Tokenizer, gguf_vocabulary};
use foretoken_weights::gguf::{Metadata, Value};
use serde_json::{Value as Json, json};

use crate::{gguf, model, test_data};

const NO_BOUNDARY: BoundaryTokens<'static> = BoundaryTokens { bos: None, ends: &[] };

fn read(exported: &ExportedVocabulary) -> Tokenizer {
    Tokenizer::from_gguf("made", &Metadata::new("made", exported.entries.iter().cloned())).unwrap()
}

fn entry<'a>(exported: &'a ExportedVocabulary, key: &str) -> Option<&'a Value> {
    exported.entries.iter().find(|(name, _)| name == &format!("tokenizer.{key}")).map(|(_, value)| value)
}

/// Both give the same tokens for the text, with and without special tokens.
fn assert_alike(folder: &Tokenizer, made: &Tokenizer, text: &str) {
    for special in [false, true] {
        assert_eq!(folder.encode(text, special).unwrap(), made.encode(text, special).unwrap(), "{text:?}");
    }
    let tokens = folder.encode_plain(text).unwrap();
    assert_eq!(tokens, made.encode_plain(text).unwrap(), "{text:?}");
    assert_eq!(folder.decode(&tokens, false), made.decode(&tokens, false), "{text:?}");
}

/// Random runs of a few characters that vocabularies tokenize differently.
fn random_text(seed: u64) -> String {
    const ALPHABET: [&str; 24] = [
        "a", "b", "the", "ing", " ", " ", "  ", "\n", "\t", "1", "23", ".", ",", "'s", "é", "ß", "我", "🙂", "\u{301}",
        "X", "_", "<|end|>", "<|user|>", "-",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let len = next() % 40;
    (0..len).map(|_| ALPHABET[(next() % 24) as usize]).collect()
}

#[test]
fn exported_demo_models_tokenize_like_their_folders() {
    for (name, rows, kind) in
        [("demo-target", 8192, "gpt2"), ("demo-draft", 8192, "gpt2"), ("demo-other-tokenizer", 4096, "t5")]
    {
        let folder = Tokenizer::from_dir(&model(name)).unwrap();
        let exported = gguf_vocabulary(&model(name), rows, BoundaryTokens { bos: Some(0), ends: &[0] }).unwrap();
        let made = read(&exported);
        assert_eq!(entry(&exported, "ggml.model"), Some(&Value::String(kind.into())));
        assert_eq!((made.vocabulary_len(), made.bos(), made.adds_bos()), (rows, Some(0), false), "{name}");
        assert!(made.end_tokens().contains(&0), "{name}");
        assert!(entry(&exported, "chat_template").is_some());
        (0..400).for_each(|seed| assert_alike(&folder, &made, &random_text(seed)));
        for token in (0..rows as Token).filter(|token| !folder.token_bytes(*token).is_empty()) {
            assert_eq!(folder.token_bytes(token), made.token_bytes(token), "{name}: token {token}");
            assert_eq!(folder.is_special(token), made.is_special(token), "{name}: token {token}");
        }
    }
}

#[test]
fn duplicate_token_texts_are_replaced() {
    // llama.cpp refuses duplicates; this vocabulary has `<|end|>` as a piece and as an added token.
    let exported = gguf_vocabulary(&model("demo-other-tokenizer"), 4096, NO_BOUNDARY).unwrap();
    let Some(Value::Array(foretoken_weights::gguf::Array::String(tokens))) = entry(&exported, "ggml.tokens") else {
        panic!("tokens are strings")
    };
    let distinct: std::collections::HashSet<&String> = tokens.iter().collect();
    assert_eq!((distinct.len(), tokens[6].as_str(), tokens[249].as_str()), (4096, "[PAD6]", "<|end|>"));
}

#[test]
fn missing_tokens_are_filled_and_too_many_refused() {
    let exported = gguf_vocabulary(&model("demo-target"), 8200, NO_BOUNDARY).unwrap();
    let made = read(&exported);
    assert_eq!(made.token_bytes(8199), b"[PAD8199]");
    assert_alike(&Tokenizer::from_dir(&model("demo-target")).unwrap(), &made, "[PAD8199] is text");
    let error = gguf_vocabulary(&model("demo-target"), 8000, NO_BOUNDARY).unwrap_err().to_string();
    assert!(error.ends_with("tokenizer.json: tokens: expected at most 8000 (the network's), found 8192"), "{error}");
}

#[test]
fn end_tokens_have_keys_unless_they_are_well_known() {
    // 0 is the folder's eos, 6 is `<|end|>`, which every reader knows; the others are not known by their text.
    let boundary = BoundaryTokens { bos: Some(1), ends: &[6, 5, 0, 4] };
    let exported = gguf_vocabulary(&model("demo-target"), 8192, boundary).unwrap();
    let token = |key: &str| entry(&exported, &format!("ggml.{key}_token_id")).cloned();
    assert_eq!([token("bos"), token("eos")], [Some(Value::U32(1)), Some(Value::U32(0))]);
    assert_eq!([token("eot"), token("eom")], [Some(Value::U32(5)), Some(Value::U32(4))]);
    assert_eq!(read(&exported).end_tokens(), [0, 4, 5, 6]);
    let exported = gguf_vocabulary(&model("demo-target"), 8192, NO_BOUNDARY).unwrap();
    assert_eq!(entry(&exported, "ggml.bos_token_id"), None);
    assert_eq!(entry(&exported, "ggml.eos_token_id"), Some(&Value::U32(0)));
}

/// A folder with a changed demo tokenizer.
fn changed(change: impl FnOnce(&mut Json)) -> tempfile::TempDir {
    let text = std::fs::read_to_string(model("demo-target").join("tokenizer.json")).unwrap();
    let mut tokenizer: Json = serde_json::from_str(&text).unwrap();
    change(&mut tokenizer);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

fn export(folder: &Path) -> Result<ExportedVocabulary, TextError> {
    gguf_vocabulary(folder, 8192, NO_BOUNDARY)
}

const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn split(expression: &str, behavior: &str, invert: bool) -> Json {
    let split = json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    json!({"type": "Sequence", "pretokenizers": [split, bytes]})
}

#[test]
fn pre_tokenizers_are_recognized_by_their_expressions() {
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]});
    let falcon = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Punctuation", "behavior": "Contiguous"},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": false}]});
    for (pre_tokenizer, name) in [
        (split(QWEN, "Isolated", false), "qwen2"),
        (split(QWEN, "Removed", true), "qwen2"),
        (split(&QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|"), "Isolated", false), "dbrx"),
        (digits, "starcoder"),
        (falcon, "falcon"),
        (split(r" ?[^(\s|[.,!?…。，、।۔،])]+", "Isolated", false), "bloom"),
    ] {
        let folder = changed(|tokenizer| tokenizer["pre_tokenizer"] = pre_tokenizer);
        let exported = export(folder.path()).unwrap();
        assert_eq!(entry(&exported, "ggml.pre"), Some(&Value::String(name.into())));
        let original = Tokenizer::from_dir(folder.path()).unwrap();
        (0..50).for_each(|seed| assert_alike(&original, &read(&exported), &random_text(seed)));
    }
    let folder = changed(|tokenizer| {
        tokenizer["pre_tokenizer"] = split(&QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|"), "Isolated", false);
        tokenizer["model"]["ignore_merges"] = true.into();
    });
    assert_eq!(entry(&export(folder.path()).unwrap(), "ggml.pre"), Some(&Value::String("llama-bpe".into())));
}

#[test]
fn a_unicode_normalizer_is_noted() {
    let folder = changed(|tokenizer| tokenizer["normalizer"] = json!({"type": "NFC"}));
    let exported = export(folder.path()).unwrap();
    assert!(exported.notes.len() == 1 && exported.notes[0].contains("normalizer NFC"), "{:?}", exported.notes);
}

#[test]
fn unsupported_components_are_refused_by_name() {
    let refused = |change: &dyn Fn(&mut Json)| {
        let folder = changed(change);
        let error = export(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with(&folder.path().join("tokenizer.json").display().to_string()), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    let error = refused(&|tokenizer| tokenizer["pre_tokenizer"] = split(r"\d+|\D+", "Isolated", false));
    assert!(error.contains("pre_tokenizer: expected expressions that GGUF has a name for"), "{error}");
    assert!(error.ends_with(r#"found ["\\d+|\\D+"]"#), "{error}");
    let error = refused(&|tokenizer| tokenizer["pre_tokenizer"] = split(QWEN, "MergedWithNext", false));
    assert!(error.contains("MergedWithNext"), "{error}");
    let error = refused(&|tokenizer| tokenizer["pre_tokenizer"]["add_prefix_space"] = true.into());
    assert!(error.contains("add_prefix_space"), "{error}");
    let error = refused(&|tokenizer| tokenizer["normalizer"] = json!({"type": "Lowercase"}));
    assert!(error.contains("normalizer: expected none or NFC, found {\"type\":\"Lowercase\"}"), "{error}");
    let error = refused(&|tokenizer| {
        tokenizer["model"] = json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"});
        tokenizer["added_tokens"] = json!([]);
    });
    assert!(error.contains("model.type: expected BPE or Unigram, found \"WordLevel\""), "{error}");
}

#[test]
fn a_vocabulary_that_would_tokenize_differently_is_refused() {
    // GGUF cannot express tokens that are matched only as single words.
    let folder = changed(|tokenizer| {
        tokenizer["added_tokens"].as_array_mut().unwrap().push(json!({"id": 8192, "content": "ell",
            "single_word": true, "lstrip": false, "rstrip": false, "normalized": false, "special": false}));
    });
    let error = gguf_vocabulary(folder.path(), 8193, NO_BOUNDARY).unwrap_err().to_string();
    assert!(error.contains("tokenizer: expected one that GGUF can say, where \"Hello, world!\" is ["), "{error}");
}

/// A tokenizer like Llama 2's, of these pieces in the order of their scores.
fn llama_2_like(pieces: &[(String, i64)], controls: &[(usize, &str)], scheme: Json) -> Json {
    let ids: std::collections::HashMap<&str, usize> =
        pieces.iter().enumerate().map(|(id, (piece, _))| (piece.as_str(), id)).collect();
    let mut merges = Vec::new();
    for (piece, score) in pieces {
        for at in piece.char_indices().map(|(at, _)| at).skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(first), Some(second)) = (ids.get(left), ids.get(right)) {
                merges.push((-score, *first, *second, json!([left, right])));
            }
        }
    }
    merges.sort_by_key(|(score, first, second, _)| (*score, *first, *second));
    let added = controls.iter().map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": scheme, "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
          {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
          {"Sequence": {"id": "B", "type_id": 1}}],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
          {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
          {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
          "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": ids,
          "merges": merges.into_iter().map(|(_, _, _, pair)| pair).collect::<Vec<_>>()}})
}

fn prepend() -> Json {
    json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})
}

fn written(tokenizer: &Json) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true});
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let path = folder.path().to_path_buf();
    (folder, path)
}

#[test]
fn sentencepiece_bpe_gets_scores() {
    let mut pieces: Vec<(String, i64)> = ["<unk>", "<s>", "</s>"].map(|piece| (piece.to_string(), 0)).to_vec();
    pieces.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 0)));
    let words = ["or", "he", "ll", "▁w", "lo", "▁wor", "ld", "▁he", "llo", "▁world"];
    pieces.extend(words.iter().enumerate().map(|(place, piece)| (piece.to_string(), -(place as i64) - 1)));
    pieces.extend(["▁", "h", "e", "l", "o", "w", "r", "d"].map(|piece| (piece.to_string(), -1000)));
    let rows = pieces.len();
    let (_folder, path) = written(&llama_2_like(&pieces, &[(0, "<unk>"), (1, "<s>"), (2, "</s>")], prepend()));
    let exported = gguf_vocabulary(&path, rows, BoundaryTokens { bos: Some(1), ends: &[2] }).unwrap();
    let (folder, made) = (Tokenizer::from_dir(&path).unwrap(), read(&exported));
    assert_eq!(entry(&exported, "ggml.model"), Some(&Value::String("llama".into())));
    assert_eq!(entry(&exported, "ggml.add_space_prefix"), Some(&Value::Bool(true)));
    assert_eq!((made.bos(), made.adds_bos(), made.end_tokens()), (Some(1), true, &[2][..]));
    for text in ["hello world", " world  hello", "lllooow é", "</s>hello"] {
        assert_alike(&folder, &made, text);
    }
}

/// Gemma's tokenizer replaces all spaces first, so its split at spaces does nothing.
#[test]
fn gemma_escapes_spaces_and_inserts_none() {
    let mut pieces: Vec<(String, i64)> = ["<unk>", "<bos>", "<eos>"].map(|piece| (piece.to_string(), 0)).to_vec();
    pieces.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 0)));
    let words = ["▁▁", "or", "he", "ll", "▁w", "lo", "▁wor", "ld", "llo", "▁world"];
    pieces.extend(words.iter().enumerate().map(|(place, piece)| (piece.to_string(), -(place as i64) - 1)));
    pieces.extend(["▁", "h", "e", "l", "o", "w", "r", "d"].map(|piece| (piece.to_string(), -1000)));
    let rows = pieces.len();
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let mut tokenizer = llama_2_like(&pieces, &[(0, "<unk>"), (1, "<bos>"), (2, "<eos>")], spaces);
    let text = tokenizer.to_string().replace("\"<s>\"", "\"<bos>\"");
    tokenizer = serde_json::from_str(&text).unwrap();
    tokenizer["pre_tokenizer"] =
        json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    tokenizer["decoder"] = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]});
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let exported = gguf_vocabulary(folder.path(), rows, BoundaryTokens { bos: Some(1), ends: &[2] }).unwrap();
    let (original, made) = (Tokenizer::from_dir(folder.path()).unwrap(), read(&exported));
    assert_eq!(entry(&exported, "ggml.add_space_prefix"), Some(&Value::Bool(false)));
    for text in ["hello world", " world  hello", "lllooow é", "<eos>hello"] {
        assert_alike(&original, &made, text);
    }
}

/// Llama 2's own vocabulary, converted to a `tokenizer.json` as transformers does, and back.
#[test]
fn llama_2_round_trip() {
    let Some(path) = test_data("data/vocab/ggml-vocab-llama-spm.gguf") else { return };
    let file = foretoken_weights::gguf::open(&path).unwrap();
    let tokens = file.metadata.strings("tokenizer.ggml.tokens").unwrap();
    let scores = file.metadata.f32s("tokenizer.ggml.scores").unwrap();
    let pieces: Vec<(String, i64)> =
        tokens.iter().zip(scores).map(|(token, score)| (token.clone(), *score as i64)).collect();
    let (_folder, folder) = written(&llama_2_like(&pieces, &[(0, "<unk>"), (1, "<s>"), (2, "</s>")], prepend()));
    let exported = gguf_vocabulary(&folder, tokens.len(), BoundaryTokens { bos: Some(1), ends: &[2] }).unwrap();
    let (theirs, made) = (gguf(&path), read(&exported));
    let folder = Tokenizer::from_dir(&folder).unwrap();
    for seed in 0..300 {
        assert_alike(&folder, &made, &random_text(seed));
        assert_eq!(theirs.encode(&random_text(seed), true).unwrap(), made.encode(&random_text(seed), true).unwrap());
    }
}

/// T5's `tokenizer.json`: a table of characters, then words between white space.
#[test]
fn the_normalization_of_unigram_models_is_exported() {
    // As SentencePiece's own table, it makes "ﬁ" two letters, and a space of other white space.
    let spaces = ["\t", "\n", "\r", "\u{a0}", "\u{3000}"].map(|space| (space, " "));
    let characters = characters_of(&[&[("ﬁ", "fi")], &spaces[..]].concat());
    let pieces = ["<pad>", "</s>", "<unk>", "▁", "f", "i", "▁fi", "a", "é", "aa"];
    let vocabulary: Vec<Json> = pieces.iter().enumerate().map(|(id, piece)| json!([piece, -0.1 * id as f64])).collect();
    let special = |(id, content): (usize, &str)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let table = json!({"type": "Precompiled", "precompiled_charsmap": characters});
    let spaces = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let words = json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]});
    let replaced = json!({"type": "Sequence", "normalizers": [table, {"type": "Strip", "strip_left": false,
        "strip_right": true}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]});
    for (normalizer, pre_tokenizer, removes) in [
        (table.clone(), words.clone(), true),
        (Json::Null, words, true),
        (replaced, spaces.clone(), true),
        (table, spaces.clone(), false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": spaces,
            "added_tokens": pieces[..3].iter().copied().enumerate().map(special).collect::<Vec<_>>(),
            "model": {"type": "Unigram", "unk_id": 2, "vocab": vocabulary, "byte_fallback": false}});
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let exported = gguf_vocabulary(folder.path(), pieces.len(), NO_BOUNDARY).unwrap();
        assert_eq!(entry(&exported, "ggml.remove_extra_whitespaces"), Some(&Value::Bool(removes)));
        let (original, made) = (Tokenizer::from_dir(folder.path()).unwrap(), read(&exported));
        if normalizer.is_object() {
            assert_eq!(made.encode_plain("ﬁ").unwrap(), [6], "{normalizer}");
        }
        for text in ["ﬁ  aa é ", "  ﬁ\tﬁ", "a</s>  a", "aaaaa"] {
            assert_alike(&original, &made, text);
        }
    }
}

/// A table of characters as SentencePiece compiles it, in base64: a double-array trie, then the replacements. No two
/// entries begin with the same byte.
fn characters_of(entries: &[(&str, &str)]) -> String {
    // A node's children are at its offset, each XORed with its byte; an offset is stored from bit 10 on.
    const ROOT: usize = 256;
    let (mut units, mut texts) = (vec![0_u32; 2 * ROOT], Vec::new());
    units[0] = (ROOT as u32) << 10;
    for (from, to) in entries {
        let mut children = ROOT;
        for (depth, byte) in from.bytes().enumerate() {
            let (node, next) = (children ^ usize::from(byte), units.len());
            let is_end = depth + 1 == from.len();
            units[node] = ((node ^ next) as u32) << 10 | u32::from(is_end) << 8 | u32::from(byte);
            units.resize(next + ROOT, 0);
            children = next;
        }
        // Behind the last byte is where the replacement begins.
        units[children] = 1 << 31 | texts.len() as u32;
        texts.extend(to.bytes().chain([0]));
    }
    let mut table = (4 * units.len() as u32).to_le_bytes().to_vec();
    table.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    base64::engine::general_purpose::STANDARD.encode([table, texts].concat())
}
