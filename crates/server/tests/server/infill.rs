//! Fill-in-the-middle (FIM): the prompts that each API makes for a model with FIM tokens.
//!
//! Three special tokens of the demo model are renamed to Qwen's FIM tokens. Its text must equal that after the same
//! tokens as an ordinary prompt.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::bodies::with;
use crate::test_server::{TestServer, shared};

const FIM_TOKENS: [(&str, &str); 3] =
    [("<|call|>", "<|fim_prefix|>"), ("<|result|>", "<|fim_suffix|>"), ("<|system|>", "<|fim_middle|>")];

/// The demo model with renamed special tokens.
fn model(folder: &Path) -> PathBuf {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo-target");
    for name in
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    {
        let bytes = std::fs::read(demo.join(name)).expect("a file of the demo model");
        let bytes = match name {
            "tokenizer.json" => {
                let text = String::from_utf8(bytes).expect("JSON");
                FIM_TOKENS.iter().fold(text, |text, (from, to)| text.replace(from, to)).into_bytes()
            }
            _ => bytes,
        };
        std::fs::write(folder.join(name), bytes).expect("room on the disk");
    }
    folder.to_owned()
}

fn ids(server: &TestServer, text: &str) -> Vec<u64> {
    let found = server.post("/tokenize", &json!({ "content": text })).success();
    found["tokens"].as_array().expect("a list").iter().map(|token| token.as_u64().expect("a number")).collect()
}

#[test]
fn every_api_prompts_with_the_fim_tokens_of_the_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = model(folder.path());
    let server = TestServer::open(|settings, _| settings.model.path = Some(path));
    let (prefix, suffix) = ("I want to book ", " in Paris.");
    let tokens = [
        ids(&server, "<|fim_prefix|>"),
        ids(&server, prefix),
        ids(&server, "<|fim_suffix|>"),
        ids(&server, suffix),
        ids(&server, "<|fim_middle|>"),
    ];
    assert_eq!([tokens[0].len(), tokens[2].len(), tokens[4].len()], [1; 3], "each FIM token is one token");
    let body = |more: Value| with(json!({ "temperature": 0, "max_tokens": 12, "seed": 1 }), more);
    let text = |path: &str, more: Value, field: &str| {
        let answer = server.post(path, &body(more)).success();
        answer.pointer(field).and_then(Value::as_str).unwrap_or_else(|| panic!("{path}: {answer}")).to_string()
    };
    let expected = text("/completion", json!({ "prompt": tokens.concat() }), "/content");
    assert!(!expected.is_empty());
    let of_infill = json!({ "input_prefix": prefix, "input_suffix": suffix });
    assert_eq!(text("/infill", of_infill, "/content"), expected);
    let of_suffix = json!({ "prompt": prefix, "suffix": suffix });
    assert_eq!(text("/v1/completions", of_suffix.clone(), "/choices/0/text"), expected);
    let options = json!({ "options": { "temperature": 0, "num_predict": 12, "seed": 1 }, "stream": false });
    let answer = server.post("/api/generate", &with(of_suffix, options)).success();
    assert_eq!(answer["response"], expected, "{answer}");
    // Text that is already in the gap is the beginning of the answer. Other files come first.
    let unfinished = json!({ "input_prefix": prefix, "input_suffix": suffix, "prompt": "a table" });
    let tokens_begun = [tokens.concat(), ids(&server, "a table")].concat();
    let expected = text("/completion", json!({ "prompt": tokens_begun }), "/content");
    assert_eq!(text("/infill", unfinished.clone(), "/content"), expected);
    let extra = json!({ "input_extra": [{ "filename": "a.txt", "text": "Paris is a city." }] });
    let tokens_extra = [ids(&server, "Paris is a city."), tokens_begun].concat();
    let expected = text("/completion", json!({ "prompt": tokens_extra }), "/content");
    assert_eq!(text("/infill", with(unfinished, extra), "/content"), expected);
    let echoed = body(json!({ "prompt": prefix, "suffix": suffix, "echo": true }));
    assert_eq!(server.post("/v1/completions", &echoed).error(400).0.as_deref(), Some("echo"));
    let number = body(json!({ "prompt": prefix, "suffix": 5 }));
    assert_eq!(server.post("/v1/completions", &number).error(400).0.as_deref(), Some("suffix"));
    let many = body(json!({ "prompt": [prefix, prefix], "suffix": suffix }));
    assert_eq!(server.post("/v1/completions", &many).error(400).0.as_deref(), Some("prompt"));
    server.shut_down();
}

#[test]
fn capabilities_say_whether_a_model_supports_infill() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = model(folder.path());
    let server = TestServer::open(|settings, _| settings.model.path = Some(path));
    let capabilities = |server: &TestServer| {
        let name = server.get("/api/tags").success()["models"][0]["name"].clone();
        server.post("/api/show", &json!({ "model": name })).success()["capabilities"].clone()
    };
    let has = |server: &TestServer| capabilities(server).as_array().expect("a list").contains(&json!("insert"));
    assert_eq!([has(&server), has(shared())], [true, false]);
    server.shut_down();
}
