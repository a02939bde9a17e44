//! Every mistake in a file is one line that names the file, the field, what was expected and what was found.

use foretoken_text::{ChatTemplate, TextError, Tokenizer};
use foretoken_weights::gguf::{Array, Metadata, Value};

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
    assert!(error.contains("chat_template.jinja: chat template: syntax error"), "{error}");
    let values = [("tokenizer.chat_template".to_owned(), Value::U32(1))];
    let error = message(ChatTemplate::from_gguf("a.gguf", &Metadata::new("a.gguf", values)));
    assert!(error.contains("tokenizer.chat_template"), "{error}");
}
