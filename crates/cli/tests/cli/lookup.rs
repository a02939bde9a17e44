//! `lookup build`: turns a corpus into a store that `bench replay` learns from, and names what it cannot use.

use serde_json::Value;

use crate::{demo, file, run};

const TEXT: &str = "The Golden Gate is a strait on the west coast of North America.";

/// Builds a store of a corpus with the demo's vocabulary.
fn build(corpus: &str, store: &str, more: &[&str]) -> crate::Run {
    run(&[&["lookup", "build", corpus, "-o", store, "-m", &demo("demo-target")], more].concat())
}

#[test]
fn a_folder_becomes_a_store_that_drafters_learn_from() {
    let (folder, _) = file("a.txt", TEXT);
    let inside = folder.path().join("b");
    std::fs::create_dir(&inside).expect("a folder can be made");
    let lines =
        format!("{{\"text\": \"{TEXT}\"}}\n\n{{\"prompt\": \"Where?\", \"output\": \"{TEXT}\"}}\n{{\"text\": \"\"}}\n");
    std::fs::write(inside.join("c.jsonl"), lines).expect("a file can be written");
    std::fs::write(inside.join("read.me"), "not a text").expect("a file can be written");
    let (elsewhere, records) = file("records.json", &format!("[{{\"prompt\": \"Where?\", \"output\": \"{TEXT}\"}}]"));
    let store = elsewhere.path().join("store").display().to_string();
    let out = build(&folder.path().display().to_string(), &store, &[]).ok();
    let bytes = std::fs::metadata(&store).expect("it was written").len();
    assert!(out.starts_with(&format!("{store}: 3 documents, ")), "{out}");
    assert!(out.ends_with(&format!(" tokens, {bytes} bytes\n")), "{out}");

    let tokens_per_pass = |warm_up: &str| {
        let vocabulary = demo("demo-target");
        let line = [
            "bench",
            "replay",
            &records,
            "--vocab",
            &vocabulary,
            "--spec-type",
            "ngram",
            "--json",
            "--warm-up",
            warm_up,
        ];
        let object: Value = serde_json::from_str(&run(&line).ok()).expect("it is an object");
        object["drafters"][0]["tokens_per_pass"].as_f64().expect("a number")
    };
    let (cold, warm) = (tokens_per_pass("none"), tokens_per_pass(&store));
    assert!(cold < 2.0 && warm > 3.0, "{cold} and {warm}");
}

#[test]
fn a_capacity_keeps_the_last_texts() {
    let (folder, path) = file("a.json", r#"[{"prompt": [1], "output": [2, 3]}, {"prompt": [4], "completion": [5]}]"#);
    let store = folder.path().join("store").display().to_string();
    let found = build(&path, &store, &["--capacity", "4"]);
    assert_eq!(found.err, "note: --capacity 4: 1 of 2 texts left out\n");
    assert_eq!(found.ok(), format!("{store}: 1 documents, 2 tokens, 84 bytes\n"));
    let found = build(&path, &store, &["--capacity", "2", "--force"]);
    assert_eq!(found.err, "note: --capacity 2: 1 of 2 texts left out (1 longer than the capacity)\n");
    let error = build(&path, &store, &["--capacity", "1", "--force"]).error(1);
    assert_eq!(error, format!("{path}: expected texts, found 2 longer than the capacity"));
}

#[test]
fn an_unusable_corpus_is_named_and_nothing_is_written() {
    for (name, text, expected) in [
        ("a.txt.xz", "", "expected a file that is not packed (unpack it first), found a packed one"),
        ("a.pdf", "", "expected a .txt, .jsonl or .json file, or a folder, found another kind"),
        ("a.txt", "", "expected texts, found none"),
        ("a.jsonl", "{\"text\": \"a\"}\nb", "record 2: expected JSON, found: expected value at line 1 column 1"),
        ("a.jsonl", "{\"title\": \"a\"}", "record 1: prompt or question: expected a text or token ids, found none"),
        (
            "a.jsonl",
            "{\"prompt\": \"a\"}",
            "record 1: output, completion or answer: expected a text or token ids, found none",
        ),
    ] {
        let (folder, path) = file(name, text);
        let store = folder.path().join("store");
        assert_eq!(build(&path, &store.display().to_string(), &[]).error(1), format!("{path}: {expected}"));
        assert!(!store.exists());
    }
    let (folder, path) = file("a.txt", TEXT);
    let error = build(&path, &folder.path().display().to_string(), &[]).error(1);
    assert!(error.starts_with(&format!("{}: cannot be written: ", folder.path().display())), "{error}");
    // A text is never overwritten, neither by its own name nor through its folder.
    for (corpus, output) in [(path.clone(), path.clone()), (folder.path().display().to_string(), path.clone())] {
        let error = build(&corpus, &output, &["--force"]).error(1);
        assert_eq!(error, format!("{output}: expected another file than what is read, found {path}"));
    }
    assert_eq!(std::fs::read_to_string(&path).expect("the text is there"), TEXT);
    assert!(build("nowhere", "x", &[]).error(1).starts_with("nowhere: cannot be read: "));
    assert_eq!(run(&["lookup"]).error(2), "lookup: expected what to do (build), found none");
    for line in [&["lookup", "build", "x", "-o", "y"][..], &["lookup", "build", "x", "-m", "y"], &["lookup", "find"]] {
        run(line).error(2);
    }
}

#[test]
fn a_store_of_another_vocabulary_or_a_damaged_one_is_refused() {
    let (folder, path) = file("a.json", r#"[{"prompt": [1], "output": [2, 3]}]"#);
    let store = folder.path().join("store").display().to_string();
    build(&path, &store, &[]).ok();
    let (_folder, vocabulary) = file(
        "tokenizer.json",
        r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": null, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3}, "merges": []}}"#,
    );
    let vocabulary = vocabulary.trim_end_matches("/tokenizer.json");
    let replay = |vocabulary: &str| run(&["bench", "replay", &path, "--vocab", vocabulary, "--warm-up", &store]);
    let error = replay(vocabulary).error(1);
    assert_eq!(error, format!("{store}: vocabulary: expected 4 tokens (those of the model), found 8192"));
    let mut bytes = std::fs::read(&store).expect("it was written");
    bytes.truncate(50);
    std::fs::write(&store, bytes).expect("a file can be written");
    let error = replay(&demo("demo-target")).error(1);
    assert_eq!(error, format!("{store}: length: expected 88 bytes (1 documents with 3 tokens), found 50"));
}
