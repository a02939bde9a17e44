//! `bench replay`: counts equal those by hand, figures of public records are reached, bad records are named.

use serde_json::Value;

use crate::{demo, file, run, test_data, words};

/// Two records of token ids: the first repeats its prompt, the second nothing.
const RECORDS: &str = "{\"prompt_ids\": [1, 2, 3, 4, 5, 1], \"ids\": [2, 3, 4, 5, 9]}\n\n\
                       {\"prompt\": [7], \"output\": [8, 9]}\n";

/// The object that `bench replay --json` prints, with the demo's vocabulary.
fn replay(path: &str, options: &str) -> Value {
    let vocabulary = demo("demo-target");
    let line = [&["bench", "replay", path, "--vocab", &vocabulary, "--json"], words(options).as_slice()].concat();
    serde_json::from_str(&run(&line).ok()).expect("it is an object")
}

#[test]
fn counts_of_a_lookup_equal_those_by_hand() {
    let (_folder, path) = file("records.jsonl", RECORDS);
    let object = replay(&path, "--spec-type lookup-latest --draft-max 3");
    let lookup = &object["drafters"][0];
    let count = |field: &str| lookup[field].as_u64();
    // 2 3 4 are accepted, and the target adds 5; after 5 nothing can be proposed, since 9 is the last token. 8 and 9
    // are new.
    assert_eq!(lookup["drafter"], "lookup-latest");
    assert_eq!((count("records"), count("tokens"), count("passes")), (Some(2), Some(7), Some(4)), "{object}");
    assert_eq!((count("drafts"), count("drafted"), count("accepted")), (Some(1), Some(3), Some(3)), "{object}");
    assert_eq!((&lookup["accepted_at"], &lookup["tokens_per_pass"]), (&serde_json::json!([1, 1, 1]), &1.75.into()));
    assert_eq!(lookup["mean_accepted_length"], 4.0);
    let one = &replay(&path, "--spec-type lookup-first --draft-max 1 --limit 1")["drafters"][0];
    assert_eq!((one["passes"].as_u64(), one["accepted"].as_u64()), (Some(3), Some(2)), "{one}");
}

#[test]
fn replay_is_deterministic_for_every_drafter_without_a_model() {
    let text = "\"the cat sat on the mat, the cat sat on the hat\"";
    let records =
        format!("[{{\"prompt\": {text}, \"completion\": {text}}}, {{\"prompt\": {text}, \"output\": {text}}}]");
    let (_folder, path) = file("records.json", &records);
    let object_without_times = |options: &str| {
        let mut object = replay(&path, options);
        let drafters = object["drafters"].as_array_mut().expect("a list");
        let strip = |drafter: &mut Value| drafter.as_object_mut().map(|fields| fields.remove("draft_us_per_pass"));
        drafters.iter_mut().for_each(|drafter| assert!(strip(drafter).is_some()));
        object
    };
    for options in ["", "--warm-up half", "--budget heuristic --draft-max 16", "--budget oracle"] {
        let (once, again) = (object_without_times(options), object_without_times(options));
        assert_eq!(once, again, "{options}");
        let drafters = once["drafters"].as_array().expect("a list");
        assert!(drafters.iter().any(|drafter| drafter["drafter"] == "lookup"), "{once}");
        for drafter in drafters {
            let number = |field: &str| drafter[field].as_f64().expect("a number");
            assert_eq!(number("records"), 2.0);
            assert!(number("tokens_per_pass") >= 1.0 && number("tokens") >= number("passes"), "{drafter}");
            assert!((number("tokens") - number("passes") - number("accepted")).abs() < 1e-9, "{drafter}");
        }
    }
    let vocabulary = demo("demo-target");
    let (_folder, phrases) = file("phrases.txt", "the cat sat on the");
    let with = object_without_times(&format!(
        "--spec-type phrases,random,lookup+trie+ngram-mod,ngram-cache --phrases {phrases} --ngram-order 2"
    ));
    let names: Vec<&str> =
        with["drafters"].as_array().expect("a list").iter().filter_map(|one| one["drafter"].as_str()).collect();
    assert_eq!(names, ["phrases", "random", "lookup+trie+suffix", "ngram"]);
    let table = run(&["bench", "replay", &path, "--vocab", &vocabulary]).ok();
    assert!(table.contains("tokens/pass") && table.contains("\nlookup "), "{table}");
}

#[test]
fn plain_lookup_reaches_the_published_figures() {
    let (Some(cnn), Some(hagrid), Some(vocabulary)) = (
        test_data("data/replay/cnn_dm_outputs.json"),
        test_data("data/replay/hagrid_outputs.json"),
        test_data("data/vocab/ggml-vocab-llama-spm.gguf"),
    ) else {
        println!("skipped: FORETOKEN_TEST_DATA is not set");
        return;
    };
    for (path, most, latest, first) in
        [(&cnn, "7", 2.27, 2.31), (&hagrid, "7", 2.03, 2.03), (&cnn, "10", 2.36, 2.40), (&hagrid, "10", 2.09, 2.10)]
    {
        let options = ["--json", "--spec-type", "lookup-latest,lookup-first", "--draft-max", most];
        let line = [&["bench", "replay", path, "--vocab", &vocabulary], options.as_slice()].concat();
        let object: Value = serde_json::from_str(&run(&line).ok()).expect("it is an object");
        for (i, expected) in [latest, first].into_iter().enumerate() {
            let found = object["drafters"][i]["tokens_per_pass"].as_f64().expect("a number");
            assert!((found - expected).abs() <= 0.00501, "{path}, {most}: {found}, not {expected}");
        }
    }
}

#[test]
fn bad_records_and_options_are_named() {
    let vocabulary = demo("demo-target");
    let none: [(&str, &str); 9] = [
        ("", "expected records, found none"),
        ("[1", "expected a list of records, found: EOF while parsing a list at line 1 column 2"),
        ("{\"prompt\": \"a\"}", "record 1: output, completion or answer: expected a text or token ids, found none"),
        ("{\"prompt\": [1], \"output\": [2]}\n3", "record 2: record: expected an object, found a number"),
        ("{\"prompt\": [], \"output\": [2]}", "record 1: prompt: expected at least one token, found none"),
        ("{\"prompt\": [1], \"output\": []}", "record 1: output: expected at least one token, found none"),
        (
            "{\"prompt\": [1], \"output\": [4000000]}",
            "record 1: token: expected a number below 8192 (the vocabulary), found 4000000",
        ),
        (
            "{\"prompt\": \"a\", \"response_mistral7b\": [{\"gen_func\": \"pld\"}]}",
            "record 1: response_mistral7b: expected a greedy answer, found none",
        ),
        (
            "{\"docs\": [1], \"query\": \"a\"}",
            "record 1: docs: expected a list of texts, found a list of something else",
        ),
    ];
    for (text, expected) in none {
        let (_folder, path) = file("records.jsonl", text);
        let error = run(&["bench", "replay", &path, "--vocab", &vocabulary]).error(1);
        assert_eq!(error, format!("{path}: {expected}"));
    }
    let error = run(&["bench", "replay", "nowhere.json", "--vocab", &vocabulary]).error(1);
    assert!(error.starts_with("nowhere.json: cannot be read: "), "{error}");
    let error = run(&["bench", "replay", "x", "--vocab", "nowhere.gguf"]).error(1);
    assert!(error.starts_with("nowhere.gguf: "), "{error}");
    for (options, expected) in [
        ("--spec-type draft", "--spec-type: expected drafters without a model ("),
        (
            "--spec-type lookup+lookahead",
            "--spec-type: expected drafters that need no target, not jacobi: it reads its guesses from rows of",
        ),
        ("--spec-type prediction", "--spec-type: expected drafters that need no prediction, not prediction: no record"),
        ("--spec-type lookup+ngram-simple", "--spec-type: expected each drafter once, found"),
        ("--spec-type lookup+lookup", "--spec-type: expected each drafter once, found \"lookup+lookup\""),
        ("--spec-type lookup+", "--spec-type: expected drafters without a model ("),
        ("--draft-max 0", "--spec-draft-n-max: expected a whole number from 1 up, found \"0\""),
        ("--warm-up=", "--warm-up: expected none, half or a file, found nothing"),
    ] {
        let line = [&["bench", "replay", "x", "--vocab", &vocabulary], words(options).as_slice()].concat();
        let error = run(&line).error(2);
        assert!(error.starts_with(expected), "{options}: {error}");
    }
    let (_folder, path) = file("records.jsonl", RECORDS);
    let error = run(&["bench", "replay", &path, "--vocab", &vocabulary, "--spec-type", "lookup,phrases"]).error(2);
    assert_eq!(error, "--phrases: expected a file of phrases, found none");
    run(&["bench", "replay", "x"]).error(2);
    run(&["bench", "replay", "x", "--vocab", "a", "-m", "b"]).error(2);
}
