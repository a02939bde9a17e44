//! `bench generate`: rows of every method, promise, temperature and number of concurrent texts, with consistent
//! figures.

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
    let rows =
        rows(&path, &format!("-n 12 --temp 0,1 --verify exact,rejection --repeat 1 --spec-type {}", methods.join(",")));
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
        assert!((0.0..0.5).contains(&number("bookkeeping_share")), "{row}");
        let drafters: Vec<&str> = row["drafters"].as_object().expect("drafters").keys().map(String::as_str).collect();
        assert_eq!(row["method"], if drafters.is_empty() { "none".to_string() } else { drafters.join("+") });
    }
}

#[test]
fn beam_searches_are_measured_by_their_steps() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    let options = "--num-beams 3 -n 8 --repeat 1 --ignore-eos --spec-type draft,lookup --budget fixed";
    let rows = rows(&path, options);
    let names: Vec<&str> = rows.iter().filter_map(|row| row["method"].as_str()).collect();
    assert_eq!(names, ["plain", "draft", "lookup"]);
    for row in &rows {
        let number = |object: &Value, field: &str| object[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        let (beams, is_drafted) = (&row["beams"], row["method"] == "draft");
        assert_eq!((&row["equal"], &beams["steps"]), (&(row["method"] != "plain").then_some(true).into(), &16.into()));
        assert_eq!(beams["inclusion_rate"].is_f64(), is_drafted, "{row}");
        assert!((number(row, "tokens_per_pass") - 16.0 / number(row, "passes")).abs() < 1e-9, "{row}");
        let passes = number(beams, "included") + number(row, "passes");
        assert!(number(row, "step_over_pass") >= 1.0 && number(beams, "steps").to_bits() == passes.to_bits(), "{row}");
    }
    let table = run(&words(&format!("bench generate --prompts {path} -s 5 {options}"))).ok();
    assert!(table.contains("plain: a step takes ") && table.contains("equal"), "{table}");
    let refused = |more: &str| run(&words(&format!("bench generate --prompts {path} --num-beams 3 {more}"))).error(2);
    assert_eq!(refused("--temp 0,1"), "--temp: expected 0 beside --num-beams 3, found 1");
    assert_eq!(refused("--budget oracle --temp 0"), "--budget: expected no oracle beside --num-beams 3, found one");
}

#[test]
fn alpha_is_measured_if_asked_for() {
    let (_folder, path) = file("prompts.txt", "once upon a time there was\n");
    for (options, measured) in [("--measure", true), ("", false)] {
        // A fixed budget, here and in other tests that need drafts, since `auto` decides by measured times whether it
        // drafts at all.
        let fixed = "-n 8 --temp 1 --verify rejection --repeat 1 --budget fixed --spec-type draft,lookup";
        let rows = rows(&path, &format!("{fixed} {options}"));
        let alpha = |row: &Value, name: &str| row["drafters"][name]["alpha"].clone();
        assert_eq!(alpha(&rows[1], "draft").is_f64(), measured, "{}", rows[1]);
        assert_eq!(alpha(&rows[2], "lookup"), Value::Null);
        assert_eq!((rows[1]["predicted"].is_f64(), &rows[2]["predicted"]), (measured, &Value::Null), "{}", rows[1]);
    }
    let line = format!("bench generate --prompts {path} --measure");
    assert!(run(&words(&line)).error(2).contains("--json"));
}

#[test]
fn the_table_has_lines_for_kinds_and_the_default_drafters() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    let line = format!("bench generate --prompts {path} -n 8 --temp 0 --by-kind --repeat 2 --budget fixed");
    let out = run(&words(&line)).ok();
    let lines: Vec<Vec<&str>> = out.lines().skip(2).map(words).collect();
    assert_eq!(lines[0], ["temperature", "0,", "repetitions:", "2"]);
    let found: Vec<(&str, &str)> = lines[2..].iter().map(|line| (line[0], line[3])).collect();
    let kinds = ["all", "story", "sum"];
    let expected: Vec<(&str, &str)> =
        kinds.iter().flat_map(|kind| [(*kind, "plain"), (*kind, "draft+suffix")]).collect();
    assert_eq!(found, expected, "{out}");
    assert!(
        lines[2..].iter().all(|line| line.last() == Some(if line[3] == "plain" { &"-" } else { &"equal" })),
        "{out}"
    );
}

/// The interval of a row's speed-up, which holds the speed-up itself.
fn interval(row: &Value, name: &str) -> (f64, f64) {
    let number = |end: &str| row[format!("{name}{end}")].as_f64().unwrap_or_else(|| panic!("{name}{end}: {row}"));
    let (low, value, high) = (number("_low"), number(""), number("_high"));
    assert!(0.0 < low && low <= value && value <= high, "{row}");
    (low, high)
}

/// The median of each group's repetitions, all together.
fn median_seconds(row: &Value, name: &str) -> f64 {
    let median = |repetitions: &Value| {
        let repetitions = repetitions.as_array().expect("seconds of each repetition").iter();
        let mut seconds: Vec<f64> = repetitions.map(|seconds| seconds.as_f64().expect("seconds")).collect();
        assert_eq!(Some(seconds.len() as u64), row["repetitions"].as_u64(), "{row}");
        seconds.sort_by(f64::total_cmp);
        let (len, middle) = (seconds.len(), seconds.len() / 2);
        if len.is_multiple_of(2) { (seconds[middle - 1] + seconds[middle]) / 2.0 } else { seconds[middle] }
    };
    row[name].as_array().expect("groups").iter().map(median).sum()
}

#[test]
fn speed_ups_have_intervals_and_a_verdict() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    let rows = rows(&path, "-n 12 --temp 0 --repeat 3 --spec-type none,lookup");
    let plain = &rows[0];
    assert_eq!((&plain["speedup_low"], &plain["no_difference"]), (&Value::Null, &Value::Null));
    for row in &rows {
        assert_eq!((&row["repeat"], &row["repetitions"], &row["parallel"]), (&3.into(), &3.into(), &1.into()));
        for (seconds, groups) in
            [("seconds", "seconds_by_group"), ("seconds_behind_first_token", "seconds_behind_first_token_by_group")]
        {
            let found = row[seconds].as_f64().expect("seconds");
            assert!((found / median_seconds(row, groups) - 1.0).abs() < 1e-9, "{row}");
        }
        if row["method"] == "plain" {
            continue;
        }
        let (low, high) = interval(row, "speedup");
        interval(row, "speedup_with_prompt");
        assert_eq!(row["no_difference"], Value::Bool(low <= 1.0 && 1.0 <= high), "{row}");
        let number = |row: &Value, field: &str| row[field].as_f64().expect("a number");
        let ratio = number(row, "tokens_per_second") / number(plain, "tokens_per_second");
        assert!((ratio / number(row, "speedup") - 1.0).abs() < 1e-9, "{row}");
    }
}

#[test]
fn repetitions_end_at_the_time_limit_and_one_sample_has_no_interval() {
    let (_folder, path) = file("prompts.txt", "once upon a time there was\n");
    let rows = rows(&path, "-n 6 --temp 0 --repeat 50 --seconds 0 --spec-type lookup");
    for row in &rows {
        assert_eq!((&row["repeat"], &row["repetitions"]), (&50.into(), &1.into()));
        assert!(row["speedup"].is_f64() && row["speedup_low"].is_null() && row["no_difference"].is_null(), "{row}");
    }
}

#[test]
fn answers_of_one_token_are_compared_with_their_prompts() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    let options = "-n 1 --temp 0 --repeat 2 --spec-type lookup";
    let rows = rows(&path, options);
    let row = &rows[1];
    assert!(row["tokens_per_second"].is_null() && row["speedup"].is_null() && row["speedup_low"].is_null(), "{row}");
    let (low, high) = interval(row, "speedup_with_prompt");
    assert_eq!(row["no_difference"], Value::Bool(low <= 1.0 && 1.0 <= high), "{row}");
    let out = run(&words(&format!("bench generate --prompts {path} -s 5 {options}"))).ok();
    let line = words(out.lines().last().expect("a line"));
    assert_eq!((line[3], line[4]), ("-", "-"), "{out}");
    // Shares of zero are not printed as negative zero.
    assert!(!out.contains("-0%"), "{out}");
}

#[test]
fn batches_are_compared_with_plain_batches() {
    let prompts = format!("{PROMPTS}{}", r#"{"category": "story", "prompt": "the dog and the cat"}"#);
    let (_folder, path) = file("prompts.jsonl", &prompts);
    let rows = rows(&path, "-n 10 --temp 0.7 --repeat 2 --parallel 1,2,3,2 --spec-type none,lookup --by-kind");
    let all: Vec<&Value> = rows.iter().filter(|row| row["kind"].is_null()).collect();
    let found: Vec<(u64, &str)> = all
        .iter()
        .map(|row| (row["parallel"].as_u64().expect("a number"), row["method"].as_str().expect("a name")))
        .collect();
    let names = ["plain", "none", "lookup"];
    let expected: Vec<(u64, &str)> = [1, 2, 3].into_iter().flat_map(|texts| names.map(|name| (texts, name))).collect();
    assert_eq!(found, expected);
    assert!(rows.iter().all(|row| row["kind"].is_null() || row["parallel"] == 1));
    for three in all.chunks(3) {
        let number = |row: &Value, field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        let plain = three[0];
        let groups = 3usize.div_ceil(number(plain, "parallel") as usize);
        assert_eq!((number(plain, "speedup"), number(plain, "prompts")), (1.0, 3.0));
        for row in three {
            assert_eq!(row["seconds_by_group"].as_array().map(Vec::len), Some(groups), "{row}");
            assert_eq!(row["tokens"], all[0]["tokens"], "{row}");
            assert!(number(row, "seconds_behind_first_token") < number(row, "seconds"), "{row}");
        }
        for row in &three[1..] {
            assert_eq!(row["equal"], Value::Bool(true), "{row}");
            interval(row, "speedup");
            interval(row, "speedup_with_prompt");
            let speed = "tokens_per_second_with_prompt";
            let ratio = number(row, speed) / number(plain, speed);
            assert!((ratio / number(row, "speedup_with_prompt") - 1.0).abs() < 1e-9, "{row}");
        }
    }
}

#[test]
fn the_table_has_a_column_of_concurrent_texts_if_they_differ() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    let line = |texts: &str| format!("bench generate --prompts {path} -n 4 -s 1 --temp 0 --repeat 1 -np {texts}");
    let out = run(&words(&line("2,1"))).ok();
    let lines: Vec<Vec<&str>> = out.lines().skip(2).map(words).collect();
    assert!(out.lines().next().is_some_and(|title| title.ends_with(", 2 or 1 texts at a time")), "{out}");
    assert_eq!(lines[0], ["temperature", "0,", "repetitions:", "1,", "1"]);
    assert_eq!(lines[1..].iter().map(|line| line[0]).collect::<Vec<_>>(), ["texts", "2", "2", "1", "1"], "{out}");
    let out = run(&words(&line("2"))).ok();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].ends_with(", 2 texts at a time") && lines[3].starts_with("promise "), "{out}");
}

#[test]
fn the_oracle_budget_needs_the_fewest_passes() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    let rows = rows(&path, "-n 24 --temp 0.5 --repeat 2 --budget heuristic,fixed,confidence,threshold,oracle");
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
    assert!(refused("--budget fixed,magic").starts_with("--budget: expected one of auto, heuristic, fixed"));
    assert!(refused("--repeat 0").starts_with("--repeat: expected a whole number from 1 up"));
    assert!(refused("--seconds -1").starts_with("--seconds: expected a number from 0 up"));
    for wrong in ["0", "x", "1,0", "-2"] {
        let error = refused(&format!("--parallel {wrong}"));
        assert!(error.starts_with("--parallel: expected a whole number from 1 to 256, found "), "{error}");
    }
    assert_eq!(refused("-np 1,2"), "--parallel: expected at most 1 (the number of prompts), found 2");
    let by_kind = "--by-kind: expected 1 among the numbers of --parallel";
    let (_two_folder, two) = file("prompts.txt", "hello\nbye\n");
    assert!(run(&words(&format!("bench generate --prompts {two} -np 2 --by-kind"))).error(2).starts_with(by_kind));
    let long = "word ".repeat(50);
    let (_folder, path) = file("prompts.txt", &long);
    let error = run(&words(&format!("bench generate --prompts {path} -c 16 --temp 0 -s 1"))).error(1);
    assert!(error.starts_with(&format!("{path}: line 1: prompt: expected at most 15 tokens")), "{error}");
}

#[test]
fn plain_texts_repeat_under_any_promise() {
    let (_folder, path) = file("prompts.txt", "once upon a time there was\n");
    let rows = rows(&path, "-n 8 --temp 1 --verify rejection --repeat 2 --budget fixed --spec-type lookup");
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1]["repetitions"], 2, "{}", rows[1]);
}

#[test]
fn n_best_fills_larger_groups() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    let options = "-n 6 --temp 1 --repeat 1 --kind story --n-best 5 -np 1,4 --spec-type lookup";
    let rows = rows(&path, options);
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let number = |field: &str| row[field].as_u64().expect("a number");
        assert_eq!((number("n_best"), number("prompts")), (5, 5), "{row}");
        let groups = row["seconds_by_group"].as_array().map_or(0, Vec::len);
        assert_eq!(groups, if number("parallel") == 1 { 5 } else { 2 }, "{row}");
        assert!(row["method"] == "plain" || row["equal"] == true, "{row}");
        assert!(row["tokens_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{row}");
    }
    let line = format!("bench generate --prompts {path} --n-best 2 -n 4 --temp 0 --repeat 1");
    assert!(
        run(&words(&line))
            .ok()
            .lines()
            .next()
            .is_some_and(|title| title.contains("2 prompts, ") && title.contains(", 2 answers each;"))
    );
    let error = run(&words(&format!("{line} --kind story,poem"))).error(2);
    assert_eq!(error, "--kind: expected kinds of the prompts (story, sum), found \"poem\"");
    let error = run(&words(&format!("{line} -np 5"))).error(2);
    assert_eq!(error, "--parallel: expected at most 4 (the number of prompts times --n-best), found 5");
}
