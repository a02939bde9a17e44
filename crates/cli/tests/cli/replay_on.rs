//! `bench replay --on MODEL`: real passes change no count, output is labelled, and unusable input is named.

use serde_json::Value;

use crate::bad_input::{change, quantized};
use crate::{Run, demo, file, golden, run, words};

/// Two texts with repetitions, one of token ids, and one without anything to look up.
const RECORDS: &str = r#"[
    {"prompt": "the cat sat on the mat, the cat sat on the", "output": "hat, the cat sat on the mat, the cat sat"},
    {"prompt": "the dog sat on the mat, the cat sat on the hat", "output": "the dog sat on the mat, the cat sat"},
    {"prompt_ids": [1, 2, 3, 4, 5, 1], "ids": [2, 3, 4, 5, 9, 1, 2, 3, 4, 5, 9]},
    {"prompt_ids": [7], "ids": [8, 9]}
]"#;

/// Runs `bench replay` on records.
fn replay(path: &str, more: &[&str], options: &str) -> Run {
    run(&[&["bench", "replay", path], more, words(options).as_slice()].concat())
}

/// The JSON object of records that are replayed on a model.
fn object(path: &str, more: &[&str], options: &str) -> Value {
    serde_json::from_str(&replay(path, &[more, &["--json"]].concat(), options).ok()).expect("it is an object")
}

/// The counts of each drafter, without times.
fn counts(object: &Value) -> Vec<Vec<Value>> {
    let fields =
        ["drafter", "records", "tokens", "passes", "drafts", "drafted", "accepted", "accepted_at", "drafted_at"];
    let drafters = object["drafters"].as_array().expect("a list").iter();
    drafters.map(|drafter| fields.map(|field| drafter[field].clone()).to_vec()).collect()
}

#[test]
fn real_passes_change_no_count() {
    let (_folder, path) = file("records.json", RECORDS);
    let target = demo("demo-target");
    // A network with a smaller vocabulary than the records, and one with the same.
    let small = golden("llama");
    let on_small = ["--on", &small, "--vocab", &target];
    for (on, options) in [
        (&["--on", target.as_str()][..], "--spec-type lookup,lookup-latest,llma,trie,suffix,ngram,auto"),
        (&["--on", &target], "--spec-type suffix,trie,ngram --warm-up half --draft-max 4"),
        (&["--on", &target], "--spec-type suffix,lookup --budget oracle -n 6"),
        (&on_small, "--spec-type lookup,trie,suffix,random --limit 3"),
    ] {
        let budget = if options.contains("--budget") { "" } else { "--budget fixed" };
        let real = object(&path, on, &format!("{options} {budget}"));
        let found = counts(&real);
        assert_eq!(found[1..], counts(&object(&path, &["--vocab", &target], options)), "{options}");
        let plain = &real["drafters"][0];
        assert_eq!((&plain["drafter"], &plain["tokens_per_pass"]), (&"plain".into(), &1.0.into()), "{plain}");
        assert_eq!(plain["drafted"], 0);
        for drafter in real["drafters"].as_array().expect("a list") {
            let number = |field: &str| drafter[field].as_f64().expect("a number");
            assert!(number("tokens_per_second") > 0.0 && number("ms_per_pass") > 0.0, "{drafter}");
            assert!(number("speedup_low") <= number("speedup") && number("speedup") <= number("speedup_high"));
            // All tokens of each prompt but the last, whose row gives the next token.
            assert_eq!(number("prompt_tokens_shared"), number("prompt_tokens") - number("records"), "{drafter}");
        }
        assert!(real["passes_by_rows"]["1"]["passes"].as_u64() >= Some(1), "{real}");
    }
}

#[test]
fn repetitions_share_no_learned_texts() {
    let (_folder, path) = file("records.json", RECORDS);
    let target = demo("demo-target");
    let of = |options: &str| object(&path, &["--on", &target], &format!("--spec-type suffix --budget fixed {options}"));
    for halves in ["", "--warm-up half"] {
        let (once, thrice) = (of(halves), of(&format!("--repeat 3 {halves}")));
        for field in ["tokens", "passes", "drafted", "accepted"] {
            for drafter in [0, 1] {
                let count = |object: &Value| object["drafters"][drafter][field].as_u64().expect("a number");
                assert_eq!(3 * count(&once), count(&thrice), "{field} {halves}");
            }
        }
        let seconds = thrice["drafters"][1]["seconds"].as_array().expect("a list");
        assert!(seconds.len() == 4 && seconds.iter().all(|of| of.as_array().is_some_and(|of| of.len() == 3)));
    }
    // After the time limit no record is started, and only replayed records are counted.
    let late = of("--seconds 0");
    assert_eq!((late["drafters"][0]["records"].as_u64(), late["drafters"][1]["records"].as_u64()), (Some(1), Some(1)));
    let table = replay(&path, &["--on", &target], "--seconds 0 --repeat 2").ok();
    assert!(table.contains("\n1 of 4 records were played\n"), "{table}");
}

#[test]
fn output_and_help_have_the_label() {
    let (_folder, path) = file("records.json", RECORDS);
    let target = demo("demo-target");
    let label = format!("recorded text, real passes of {target}: the speed of a hypothetical target, not its texts");
    let table = replay(&path, &["--on", &target], "").ok();
    assert!(table.starts_with(&format!("{label}\n")), "{table}");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].contains("4 records") && lines[1].contains("budget auto, up to 32 drafted a pass"), "{table}");
    assert!(lines[4].starts_with("plain ") && lines[5].starts_with("auto "), "{table}");
    assert!(lines[6].starts_with("a pass of 8 rows takes "), "{table}");
    let object = object(&path, &["--on", &target], "--limit 1");
    assert_eq!((&object["measured"], &object["on"]), (&label.into(), &target.into()));
    assert_eq!((&object["budget"], &object["draft_max"]), (&"auto".into(), &32.into()));
    let help = run(&words("bench replay --help")).ok();
    assert!(help.contains("recorded text, real passes of MODEL") && help.contains("hypothetical target"), "{help}");
}

#[test]
fn too_long_records_are_named_and_left_out() {
    let (_folder, path) = file("records.json", RECORDS);
    let target = demo("demo-target");
    let on = ["--on", target.as_str()];
    let short = replay(&path, &on, "-c 17 --budget fixed --json");
    let notes: Vec<&str> = short.err.lines().collect();
    let note = |number: usize| format!("note: record {number}: expected at most 17 tokens (the context), found ");
    assert!(notes.len() == 2 && (1..3).all(|number| notes[number - 1].starts_with(&note(number))), "{}", short.err);
    let short: Value = serde_json::from_str(&short.ok()).expect("it is an object");
    assert_eq!(short["left_out"], serde_json::json!([1, 2]));
    assert_eq!(short["drafters"][0]["tokens"], 13);
    let table = replay(&path, &on, "-c 17 --quiet").ok();
    assert!(table.contains(": 2 records, 13 tokens, 2 too long and left out; budget auto"), "{table}");
    // At the end of a full context there is no room for a draft tree.
    let filled = object(&path, &on, "-c 17 --spec-type lookup --budget fixed --limit 3");
    assert_eq!((&filled["drafters"][0]["tokens"], &filled["drafters"][1]["tokens"]), (&11.into(), &11.into()));
    let none = replay(&path, &on, "-c 2 -q");
    assert_eq!(none.error(1), format!("{path}: expected records of at most 2 tokens (the context), found none"));
}

#[test]
fn unusable_models_and_options_are_named() {
    let (_folder, path) = file("records.json", RECORDS);
    let target = demo("demo-target");
    let small = golden("llama");
    let error = replay(&path, &["--on", &small], "").error(1);
    assert!(
        error.contains("tokenizer.json: expected a tokenizer") && error.contains("--vocab names another"),
        "{error}"
    );
    assert!(replay(&path, &["--on", "nowhere.gguf"], "").error(1).starts_with("nowhere.gguf: "));
    assert!(replay("nowhere.json", &["--on", &target], "").error(1).starts_with("nowhere.json: cannot be read: "));
    let error = replay(&path, &[], "").error(2);
    assert_eq!(
        error,
        "--model or --vocab: expected a model, a .gguf file or a folder whose vocabulary is used, found none"
    );
    for (options, expected) in [
        ("--budget auto", "--budget auto: expected --on MODEL beside it, found none"),
        ("-n 0", "--n-predict: expected a whole number from 1 up, found \"0\""),
        ("--spec-type auto+lookup", "--spec-type: expected auto alone, found \"auto+lookup\""),
    ] {
        assert_eq!(replay(&path, &["--vocab", &target], options).error(2), expected, "{options}");
    }
    // Without --on these options are ignored, since a configuration file may have them.
    replay(&path, &["--vocab", &target], "-c 64 -t 2 --dtype q8_0 --repeat 2 --seconds 3 --spec-type lookup").ok();
    for (options, expected) in [
        ("--repeat 0", "--repeat: expected a whole number from 1 up, found \"0\""),
        ("--seconds -1", "--seconds: expected a number from 0 up, found \"-1\""),
        ("--ctx-size -1", "--ctx-size: expected a whole number from 1 up, or 0 for the model's own, found \"-1\""),
        ("--spec-type phrases", "--phrases: expected a file of phrases, found none"),
    ] {
        assert_eq!(replay(&path, &["--on", &target], options).error(2), expected, "{options}");
    }
}

#[test]
fn logits_that_are_nan_name_the_record() {
    let (_folder, model) = quantized("q8_0");
    change(&model, "output.weight", |bytes| bytes[..2].copy_from_slice(&0x7e00_u16.to_le_bytes()));
    let (_folder, path) = file(
        "records.jsonl",
        "{\"prompt\": [1, 2, 3], \"output\": [2, 3]}\n{\"prompt\": [1, 2], \"output\": [2, 3]}\n",
    );
    let target = demo("demo-target");
    let error = replay(&path, &["--on", &model, "--vocab", &target], "-c 4 --json -q").error(1);
    assert!(error.starts_with("record 2: token 2: expected logits that are numbers, found NaN"), "{error}");
}
