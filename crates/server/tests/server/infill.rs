//! Gaps in texts: what is sent to a model that has marks for them, behind each door.
//!
//! The demo model with three of its special tokens called as Qwen's marks are. What it writes is the same as behind the
//! tokens that the marks and the texts are.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::bodies::with;
use crate::house::{House, shared};

const MARKS: [(&str, &str); 3] =
    [("<|call|>", "<|fim_prefix|>"), ("<|result|>", "<|fim_suffix|>"), ("<|system|>", "<|fim_middle|>")];

/// The demo model with other names of special tokens.
fn model(folder: &Path) -> PathBuf {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo-target");
    for name in
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    {
        let bytes = std::fs::read(demo.join(name)).expect("a file of the demo model");
        let bytes = match name {
            "tokenizer.json" => {
                let text = String::from_utf8(bytes).expect("JSON");
                MARKS.iter().fold(text, |text, (from, to)| text.replace(from, to)).into_bytes()
            }
            _ => bytes,
        };
        std::fs::write(folder.join(name), bytes).expect("room on the disk");
    }
    folder.to_owned()
}

fn ids(house: &House, text: &str) -> Vec<u64> {
    let found = house.post("/tokenize", &json!({ "content": text })).good();
    found["tokens"].as_array().expect("a list").iter().map(|token| token.as_u64().expect("a number")).collect()
}

#[test]
fn a_gap_is_filled_behind_the_marks_of_the_model_at_every_door() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = model(folder.path());
    let house = House::open(|settings, _| settings.model.path = Some(path));
    let (before, behind) = ("I want to book ", " in Paris.");
    let tokens = [
        ids(&house, "<|fim_prefix|>"),
        ids(&house, before),
        ids(&house, "<|fim_suffix|>"),
        ids(&house, behind),
        ids(&house, "<|fim_middle|>"),
    ];
    assert_eq!([tokens[0].len(), tokens[2].len(), tokens[4].len()], [1; 3], "each mark is a token");
    let asked = |more: Value| with(json!({ "temperature": 0, "max_tokens": 12, "seed": 1 }), more);
    let text = |path: &str, more: Value, field: &str| {
        let answer = house.post(path, &asked(more)).good();
        answer.pointer(field).and_then(Value::as_str).unwrap_or_else(|| panic!("{path}: {answer}")).to_string()
    };
    let expected = text("/completion", json!({ "prompt": tokens.concat() }), "/content");
    assert!(!expected.is_empty());
    let of_infill = json!({ "input_prefix": before, "input_suffix": behind });
    assert_eq!(text("/infill", of_infill, "/content"), expected);
    let of_suffix = json!({ "prompt": before, "suffix": behind });
    assert_eq!(text("/v1/completions", of_suffix.clone(), "/choices/0/text"), expected);
    let options = json!({ "options": { "temperature": 0, "num_predict": 12, "seed": 1 }, "stream": false });
    let answer = house.post("/api/generate", &with(of_suffix, options)).good();
    assert_eq!(answer["response"], expected, "{answer}");
    // What stands in the gap already is the beginning of what is written there; other files come first.
    let begun = json!({ "input_prefix": before, "input_suffix": behind, "prompt": "a table" });
    let tokens_begun = [tokens.concat(), ids(&house, "a table")].concat();
    let expected = text("/completion", json!({ "prompt": tokens_begun }), "/content");
    assert_eq!(text("/infill", begun.clone(), "/content"), expected);
    let extra = json!({ "input_extra": [{ "filename": "a.txt", "text": "Paris is a city." }] });
    let tokens_extra = [ids(&house, "Paris is a city."), tokens_begun].concat();
    let expected = text("/completion", json!({ "prompt": tokens_extra }), "/content");
    assert_eq!(text("/infill", with(begun, extra), "/content"), expected);
    let echoed = asked(json!({ "prompt": before, "suffix": behind, "echo": true }));
    assert_eq!(house.post("/v1/completions", &echoed).error(400).0.as_deref(), Some("echo"));
    let number = asked(json!({ "prompt": before, "suffix": 5 }));
    assert_eq!(house.post("/v1/completions", &number).error(400).0.as_deref(), Some("suffix"));
    let many = asked(json!({ "prompt": [before, before], "suffix": behind }));
    assert_eq!(house.post("/v1/completions", &many).error(400).0.as_deref(), Some("prompt"));
    house.end();
}

#[test]
fn what_a_model_can_do_says_whether_it_fills_gaps() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = model(folder.path());
    let house = House::open(|settings, _| settings.model.path = Some(path));
    let capabilities = |house: &House| {
        let name = house.get("/api/tags").good()["models"][0]["name"].clone();
        house.post("/api/show", &json!({ "model": name })).good()["capabilities"].clone()
    };
    let has = |house: &House| capabilities(house).as_array().expect("a list").contains(&json!("insert"));
    assert_eq!([has(&house), has(shared())], [true, false]);
    house.end();
}
