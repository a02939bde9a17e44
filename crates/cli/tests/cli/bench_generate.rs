//! `bench generate`: rows of every method, promise and temperature, with figures that fit together.

use serde_json::Value;

use crate::{file, run, words};

const PROMPTS: &str = r#"{"category": "story", "prompt": "once upon a time there was"}
{"category": "sum", "prompt": "a robe takes 2 bolts of blue fiber and half that much"}
"#;

fn rows(path: &str, options: &str) -> Vec<Value> {
    let line = format!("bench generate --prompts {path} -s 5 --json {options}");
    let out = run(&words(&line)).ok();
    out.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn every_method_has_a_row_under_every_promise_and_temperature() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    let methods = ["none", "draft", "lookup", "draft+lookup"];
    let rows = rows(&path, &format!("-n 12 --temp 0,1 --verify exact,rejection --spec-type {}", methods.join(",")));
    assert_eq!(rows.len(), 2 * (1 + 2 * methods.len()));
    let mut plain_tokens = 0;
    for row in &rows {
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        let (greedy, exact) = (number("temperature") == 0.0, row["verify"] == "exact");
        if row["method"] == "plain" {
            plain_tokens = row["tokens"].as_u64().expect("tokens are counted");
            assert_eq!((number("speedup"), number("speedup_with_prompt"), number("tokens_per_pass")), (1.0, 1.0, 1.0));
            assert_eq!((&row["equal"], &row["verify"]), (&Value::Null, &Value::Null));
            continue;
        }
        assert_eq!(row["equal"], if greedy || exact { Value::Bool(true) } else { Value::Null }, "{row}");
        assert!(!(greedy || exact) || row["tokens"] == plain_tokens, "{row}");
        let speed = number("tokens") / number("seconds");
        assert!((speed / number("tokens_per_second_with_prompt") - 1.0).abs() < 1e-6, "{row}");
        assert!((number("tokens_per_pass") - number("tokens") / number("passes")).abs() < 1e-9, "{row}");
        let drafting: f64 = row["drafters"]
            .as_object()
            .expect("drafters")
            .values()
            .filter_map(|drafter| drafter["drafting_ms"].as_f64())
            .sum();
        assert!((drafting / 1e3 / number("seconds") - number("drafting_share")).abs() < 1e-6, "{row}");
        let drafters: Vec<&str> = row["drafters"].as_object().expect("drafters").keys().map(String::as_str).collect();
        assert_eq!(row["method"], if drafters.is_empty() { "none".to_string() } else { drafters.join("+") });
    }
}

#[test]
fn alpha_is_measured_if_asked_for() {
    let (_folder, path) = file("prompts.txt", "once upon a time there was\n");
    for (options, measured) in [("--measure", true), ("", false)] {
        let rows = rows(&path, &format!("-n 8 --temp 1 --verify rejection --spec-type draft,lookup {options}"));
        let alpha = |row: &Value, name: &str| row["drafters"][name]["alpha"].clone();
        assert_eq!(alpha(&rows[1], "draft").is_f64(), measured, "{}", rows[1]);
        assert_eq!(alpha(&rows[2], "lookup"), Value::Null);
    }
    let line = format!("bench generate --prompts {path} --measure");
    assert!(run(&words(&line)).error(2).contains("--json"));
}

#[test]
fn a_table_has_lines_for_kinds_and_what_is_best_is_found_without_a_name() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    let line = format!("bench generate --prompts {path} -n 8 --temp 0 --by-kind --repeat 2 --budget fixed");
    let out = run(&words(&line)).ok();
    let lines: Vec<Vec<&str>> = out.lines().skip(2).map(words).collect();
    assert_eq!(lines[0], ["temperature", "0"]);
    let found: Vec<(&str, &str)> = lines[2..].iter().map(|line| (line[0], line[3])).collect();
    let kinds = ["all", "story", "sum"];
    let expected: Vec<(&str, &str)> = kinds.iter().flat_map(|kind| [(*kind, "plain"), (*kind, "draft")]).collect();
    assert_eq!(found, expected, "{out}");
    assert!(
        lines[2..].iter().all(|line| line.last() == Some(if line[3] == "plain" { &"-" } else { &"equal" })),
        "{out}"
    );
}

#[test]
fn an_oracle_drafts_what_is_accepted_and_no_budget_does_better() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    let rows = rows(&path, "-n 24 --temp 0.5 --budget heuristic,fixed,confidence,threshold,oracle");
    assert_eq!(rows.len(), 6);
    let passes = |row: &Value| row["passes"].as_u64().expect("passes are counted");
    let oracle = &rows[5];
    assert_eq!((&oracle["budget"], oracle["acceptance_rate"].as_f64()), (&Value::from("oracle"), Some(1.0)));
    for row in &rows {
        assert!(passes(oracle) <= passes(row) && row["equal"] != false, "{row}");
    }
    let line = format!("bench generate --prompts {path} --budget oracle --temp 0,1 --verify exact,rejection");
    let expected = "--budget oracle: expected --verify exact alone, or --temp 0 alone";
    assert_eq!(run(&words(&line)).error(2), expected);
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_line() {
    let (_folder, path) = file("prompts.txt", "hello\n");
    let refused = |options: &str| run(&words(&format!("bench generate --prompts {path} {options}"))).error(2);
    assert!(refused("--spec-type draft,magic").ends_with("found \"magic\""));
    assert!(refused("--temp 0,warm").starts_with("--temp: expected a number from 0 up"));
    assert!(refused("--verify exact,maybe").starts_with("--verify: expected one of exact"));
    assert!(refused("--budget fixed,magic").starts_with("--budget: expected one of heuristic, fixed"));
    assert!(refused("--repeat 0").starts_with("--repeat: expected a whole number from 1 up"));
    let long = "word ".repeat(50);
    let (_folder, path) = file("prompts.txt", &long);
    let error = run(&words(&format!("bench generate --prompts {path} -c 16 --temp 0 -s 1"))).error(1);
    assert!(error.starts_with("prompt 1: prompt: expected at most 15 tokens"), "{error}");
}
