//! `inspect`: its page and its JSON.

use serde_json::Value;

use crate::{demo, golden, run};

#[test]
fn the_page_and_the_json_describe_the_demo_model() {
    let page = run(&["inspect"]).ok();
    for fact in ["llama", "12 882 816", "BF16", "8 192 tokens", "2 048 tokens", "<|endoftext|>", "chat template"] {
        assert!(page.contains(fact), "{fact}: {page}");
    }
    assert!(page.lines().count() <= 40, "{page}");
    let object: Value = serde_json::from_str(&run(&["inspect", "--json"]).ok()).expect("it is JSON");
    assert_eq!(object["family"], "llama");
    assert_eq!((object["parameters"].as_u64(), object["layers"].as_u64()), (Some(12_882_816), Some(6)));
    let sets = ["portable", "avx2", "avxvnni", "avx512"];
    assert!(sets.contains(&object["instruction_set"].as_str().unwrap_or_default()), "{object}");
    assert_eq!(object["memory"]["weights_bytes"].as_u64(), Some(2 * 12_882_816));
    // Keys and values have two bytes; then keys have blocks of 34 bytes for 32 elements, and values four bytes.
    let (spec, cache) = (|name: &str| object[name].as_u64().expect("a number"), "cache_bytes_per_1000_positions");
    let elements = 1000 * spec("layers") * spec("kv_heads") * spec("head_dim");
    assert_eq!(object["memory"][cache].as_u64(), Some(4 * elements));
    let narrow = run(&["inspect", "--json", "-ctk", "q8_0", "-ctv", "f32"]).ok();
    let narrow: Value = serde_json::from_str(&narrow).expect("it is JSON");
    assert_eq!(narrow["memory"][cache].as_u64(), Some(elements * 34 / 32 + 4 * elements));
    assert!(object["chat_template"].as_str().is_some_and(|template| template.contains("<|assistant|>")));
}

#[test]
fn a_model_without_a_tokenizer_also_has_a_page() {
    let page = run(&["inspect", &golden("gpt2")]).ok();
    assert!(page.contains("LayerNorm") && page.contains("no tokenizer") && page.contains("none"), "{page}");
}

#[test]
fn the_beginning_token_is_the_one_that_the_tokenizer_adds() {
    let beginning_of = |path: &str| {
        let page = run(&["inspect", path]).ok();
        let line = page.lines().find(|line| line.starts_with("begins with")).expect("a line").to_string();
        let object: Value = serde_json::from_str(&run(&["inspect", "--json", path]).ok()).expect("it is JSON");
        (line["begins with".len()..].trim().to_string(), object["adds_beginning_token"].as_bool())
    };
    let nothing = ("nothing (an empty prompt becomes 0 <|endoftext|>)".to_string(), Some(false));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let gguf = folder.path().join("m.gguf").display().to_string();
    run(&["quantize", &demo("demo-draft"), &gguf, "--type", "q8_0"]).ok();
    assert_eq!((beginning_of(&demo("demo-draft")), beginning_of(&gguf)), (nothing.clone(), nothing));
    for entry in std::fs::read_dir(demo("demo-draft")).expect("it is a folder") {
        let path = entry.expect("it can be read").path();
        std::fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("it can be copied");
    }
    let config = r#"{"bos_token": "<|endoftext|>", "add_bos_token": true}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), config).expect("it can be written");
    std::fs::remove_file(&gguf).expect("it is there");
    let path = folder.path().display().to_string();
    assert_eq!(beginning_of(&path), ("0 <|endoftext|>".to_string(), Some(true)));
    let prompt = |text: &str| {
        let object = run(&["generate", "-m", &path, "-n", "1", "-s", "1", "--json", "--prompt", text]).ok();
        serde_json::from_str::<Value>(&object).expect("it is JSON")["prompt_ids"].clone()
    };
    assert_eq!((&prompt("hello")[0], &prompt("")[0]), (&0.into(), &0.into()));
}

/// A token reads the experts that it chooses: 2 of 6, of 3 * 32 * 16 weights each, in two of three layers.
#[test]
fn a_mixture_of_experts_shows_its_active_parameters() {
    let path = golden("qwen2_moe");
    let object: Value = serde_json::from_str(&run(&["inspect", "--json", &path]).ok()).expect("it is JSON");
    let number = |value: &Value| value.as_u64().expect("a number");
    let not_chosen = 2 * 4 * 3 * 32 * 16;
    assert_eq!(number(&object["parameters"]) - number(&object["parameters_active"]), not_chosen);
    // Only matrices count, without the embedding, 64 * 32, and vectors.
    let [all, token] = ["weights_bytes", "token_bytes"].map(|name| number(&object["memory"][name]));
    let vectors = all - token - 4 * (not_chosen + 64 * 32);
    assert!(vectors > 0 && vectors < 4 * 1000, "{vectors} bytes of vectors: {object}");
    assert_eq!((&object["experts"]["count"], &object["experts"]["chosen"]), (&6.into(), &2.into()));
    let page = run(&["inspect", &path]).ok();
    let experts = "6 of width 16 in each of 2 layers, of which a token chooses 2, and one of 24 that all tokens share";
    for fact in [experts, "of which a token is computed with 28 768", "of which a token alone reads 0.1 MB"] {
        assert!(page.contains(fact), "{fact}: {page}");
    }
    let dense: Value = serde_json::from_str(&run(&["inspect", "--json"]).ok()).expect("it is JSON");
    assert_eq!((&dense["parameters_active"], &dense["memory"]["token_bytes"]), (&dense["parameters"], &Value::Null));
}
