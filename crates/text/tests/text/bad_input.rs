//! Every error in a file gives one line with the file, the field, what was expected and what was found.

use foretoken_text::{ChatInput, ChatTemplate, GgufVocabulary, Message, TextError, Tokenizer};
use foretoken_weights::gguf::{Array, Metadata, Value};
use proptest::prelude::*;
use serde_json::json;

use crate::chat::{CHATML, LLAMA_3};
use crate::model;

fn message<T: std::fmt::Debug>(result: Result<T, TextError>) -> String {
    let message = result.unwrap_err().to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn a_missing_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let error = message(Tokenizer::from_dir(folder.path()));
    assert!(error.contains("tokenizer.json: cannot be read: "), "{error}");
}

#[test]
fn truncated_and_foreign_json() {
    let whole = std::fs::read(model("demo-target").join("tokenizer.json")).unwrap();
    for len in [0, 1, 1000, whole.len() / 2, whole.len() - 2] {
        let error = message(Tokenizer::from_json("demo", &whole[..len], None));
        assert!(error.starts_with("demo/tokenizer.json: expected a tokenizer, found: "), "{error}");
    }
    let error = message(Tokenizer::from_json("demo", b"{\"model\": 3}", None));
    assert!(error.starts_with("demo/tokenizer.json: expected a tokenizer, found: "), "{error}");
    let error = message(Tokenizer::from_json("demo", &whole, Some(b"{")));
    assert!(error.starts_with("demo/tokenizer_config.json: expected json, found: "), "{error}");
}

/// The metadata of a small vocabulary, with one key changed or left out.
fn metadata(key: &str, value: Option<Value>) -> Metadata {
    let strings = |list: &[&str]| Value::Array(Array::String(list.iter().map(|text| text.to_string()).collect()));
    let mut values = vec![
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String("gpt-2".into())),
        ("tokens", strings(&["a", "b", "ab"])),
        ("scores", Value::Array(Array::F32(vec![0.0; 3]))),
        ("merges", strings(&["a b"])),
        ("eos_token_id", Value::U32(2)),
    ];
    values.retain(|(name, _)| *name != key);
    values.extend(value.map(|value| (key, value)));
    Metadata::new("a.gguf", values.into_iter().map(|(name, value)| (format!("tokenizer.ggml.{name}"), value)))
}

#[test]
fn gguf_fields() {
    let load = |key: &str, value| Tokenizer::from_gguf("a.gguf", &metadata(key, value));
    let text = |text: &str| Some(Value::String(text.into()));
    assert!(load("", None).is_ok());
    let merges = Some(Value::Array(Array::String(vec!["a c".into()])));
    for (key, value, parts) in [
        ("model", text("bert"), ["a.gguf: tokenizer.ggml.model: expected ", "bert (WordPiece, of encoders)"]),
        ("model", None, ["a.gguf", "tokenizer.ggml.model"]),
        ("tokens", None, ["a.gguf", "tokenizer.ggml.tokens"]),
        ("tokens", text("a"), ["a.gguf", "tokenizer.ggml.tokens"]),
        ("merges", None, ["a.gguf", "tokenizer.ggml.merges"]),
        ("merges", merges, ["a.gguf: tokenizer.ggml.merges[0]: expected two tokens", "found \"a c\""]),
        ("pre", text("of-tomorrow"), ["tokenizer.ggml.pre: expected one of default, ", "found of-tomorrow"]),
        ("eos_token_id", Some(Value::U32(3)), ["tokenizer.ggml.eos_token_id: expected a token below 3", "found 3"]),
    ] {
        let error = message(load(key, value));
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    let none = load("eos_token_id", Some(Value::U32(u32::MAX))).unwrap();
    assert!(none.end_tokens().is_empty());
}

#[test]
fn scores_and_tokens_of_different_length() {
    let mut values: Vec<(String, Value)> = metadata("model", Some(Value::String("llama".into())))
        .iter()
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    values.retain(|(key, _)| !key.ends_with("scores"));
    let error = message(Tokenizer::from_gguf("a.gguf", &Metadata::new("a.gguf", values.clone())));
    assert!(error.contains("tokenizer.ggml.scores"), "{error}");
    values.push(("tokenizer.ggml.scores".into(), Value::Array(Array::F32(vec![0.0; 2]))));
    let error = message(Tokenizer::from_gguf("a.gguf", &Metadata::new("a.gguf", values)));
    assert_eq!(error, "a.gguf: tokenizer.ggml.scores: expected 3 scores, one for each token, found 2");
}

#[test]
fn templates() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), "{% for %}").unwrap();
    let error = message(ChatTemplate::from_dir(folder.path()));
    assert!(error.contains("chat_template.jinja: chat template: line 1: syntax error"), "{error}");
    let values = [("tokenizer.chat_template".to_owned(), Value::U32(1))];
    let error = message(ChatTemplate::from_gguf("a.gguf", &Metadata::new("a.gguf", values)));
    assert!(error.contains("tokenizer.chat_template"), "{error}");
}

#[test]
fn the_configuration_overrides_added_tokens() {
    let whole = std::fs::read(model("demo-target").join("tokenizer.json")).unwrap();
    let with = |config: serde_json::Value| Tokenizer::from_json("demo", &whole, Some(config.to_string().as_bytes()));
    let config = |flags: &str| {
        let mut token = json!({"content": "<|end|>", "special": true, "normalized": false});
        token[flags] = true.into();
        json!({"added_tokens_decoder": {"6": token, "8192": {"content": "<new>", "special": true},
            "9000": {"content": "<none>", "special": true}}})
    };
    let tokenizer = with(config("lstrip")).unwrap();
    assert_eq!(tokenizer.encode("  <|end|>", false).unwrap(), [6]);
    assert_eq!((tokenizer.token_bytes(8192), tokenizer.is_special(8192)), (&b"<new>"[..], true));
    assert_eq!(tokenizer.vocabulary_len(), 8193);
    assert_eq!(with(config("rstrip")).unwrap().encode("<|end|> \n", false).unwrap(), [6]);
    let error = message(with(json!({"added_tokens_decoder": {"x": {"content": "a"}}})));
    assert!(
        error.ends_with("added_tokens_decoder.x: expected the number of a token, and its content, found x"),
        "{error}"
    );
}

/// Replaces the value at `index` of a JSON document, counted in document order.
fn replace(value: &mut serde_json::Value, index: &mut usize, by: &serde_json::Value) {
    if *index == 0 {
        *value = by.clone();
    }
    *index = index.wrapping_sub(1);
    match value {
        serde_json::Value::Array(items) => items.iter_mut().for_each(|item| replace(item, index, by)),
        serde_json::Value::Object(items) => items.values_mut().for_each(|item| replace(item, index, by)),
        _ => {}
    }
}

fn other_value() -> impl Strategy<Value = serde_json::Value> {
    prop::sample::select(vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(4_000_000_000_u64),
        json!(1e300),
        json!(""),
        json!("▁"),
        json!("a"),
        json!("<s>"),
        json!([]),
        json!([[]]),
        json!({}),
        json!({"type": "Sequence"}),
        json!("\u{0}"),
    ])
}

/// A small tokenizer with components of many kinds.
fn small() -> serde_json::Value {
    let token = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": true, "normalized": false,
            "special": true})
    };
    json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [token(0, "<s>"), token(5, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": false},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
            {"type": "Digits", "individual_digits": true}]},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace",
            "replacement": "▁", "prepend_scheme": "first", "split": true}, {"type": "Strip", "content": " ", "start": 1,
            "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<s>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": {"<s>": 0, "<0xC3>": 1, "▁": 2, "a": 3, "▁a": 4}, "merges": [["▁", "a"]]}})
}

/// Uses a tokenizer that was read; an error must be one line.
fn try_out(read: Result<Tokenizer, TextError>) {
    let Ok(tokenizer) = read else { return drop(message(read)) };
    for text in ["", "a aä  12 </s> <s>", "naïve 我 👍\0\r\n"] {
        if let Ok(tokens) = tokenizer.encode(text, true) {
            tokenizer.decode(&tokens, false);
        }
        let _ = tokenizer.encode_plain(text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn tokenizers_with_other_values(changes in prop::collection::vec((0_usize..120, other_value()), 1..3)) {
        let mut json = small();
        changes.into_iter().for_each(|(mut index, by)| replace(&mut json, &mut index, &by));
        try_out(Tokenizer::from_json("small", json.to_string().as_bytes(), None));
    }

    #[test]
    fn configurations_with_other_values(index in 0_usize..24, by in other_value()) {
        let mut config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true,
            "add_eos_token": true, "added_tokens_decoder": {"5": {"content": "</s>", "lstrip": true, "special": true},
            "6": {"content": "x"}}, "chat_template": [{"name": "default", "template": "{{ messages }}"}]});
        replace(&mut config, &mut { index }, &by);
        try_out(Tokenizer::from_json("small", small().to_string().as_bytes(), Some(config.to_string().as_bytes())));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let _ = ChatTemplate::from_dir(folder.path()).map_err(|error| error.to_string());
    }

    #[test]
    fn truncated_and_flipped_json(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(), is_cut in any::<bool>()) {
        let mut bytes = small().to_string().into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(if is_cut { cut.index(bytes.len()) } else { bytes.len() });
        try_out(Tokenizer::from_json("small", &bytes, None));
    }

    #[test]
    fn vocabularies_of_any_kind(
        model in prop::sample::select(vec!["llama", "gpt2", "gemma4", "t5", "bert"]),
        pre in prop::sample::select(vec!["default", "gpt-2", "sarvam-moe", "kimi-k2", "none"]),
        tokens in prop::collection::vec("[ab▁Ġé]{0,3}|<0x[0-9A-F]{2}>|</?s>", 0..12),
        types in prop::collection::vec(-1_i32..8, 0..12),
        scores in prop::collection::vec(prop::num::f32::ANY, 0..12),
        merges in prop::collection::vec("[ab▁]{0,2} ?[ab▁]{0,2}", 0..4),
        unknown in prop::option::of(0_u32..12),
        fitting in any::<bool>(),
    ) {
        let fit = |len: usize| if fitting { tokens.len() } else { len };
        let mut types = types;
        types.resize(fit(types.len()), 1);
        let mut scores = scores;
        scores.resize(fit(scores.len()), 0.0);
        let unknown = unknown.filter(|&id| (id as usize) < tokens.len());
        let (model, pre) = (model.into(), Some(pre.into()));
        let vocabulary = GgufVocabulary { model, pre, tokens, scores, token_types: types,
            merges, unknown, ..GgufVocabulary::default() };
        try_out(Tokenizer::from_gguf_vocabulary("any", &vocabulary));
    }

    #[test]
    fn damaged_templates(is_chatml in any::<bool>(), at in any::<prop::sample::Index>(), len in 0_usize..9,
        by in "[{}%#'a| .()-]{0,4}") {
        let source = if is_chatml { CHATML } else { LLAMA_3 };
        let boundary = |at: usize| (at..=source.len()).find(|&at| source.is_char_boundary(at)).unwrap();
        let start = boundary(at.index(source.len()));
        let source = format!("{}{by}{}", &source[..start], &source[boundary((start + len).min(source.len()))..]);
        match ChatTemplate::from_source("damaged", &source, "<s>", "</s>") {
            Ok(template) => {
                let messages = [Message::new("user", "a <|im_end|>"), Message::new("assistant", "b")];
                let input = ChatInput::new(&messages, true);
                let _ = template.render(&input).map_err(|error| error.to_string());
                let _ = template.encode(&crate::TARGET, &input).map_err(|error| error.to_string());
            }
            Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
        }
    }
}
