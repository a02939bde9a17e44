//! `analyze`: alpha and speed-ups of every drafter at every temperature, with consistent figures, and its errors.

use serde_json::Value;

use crate::{file, golden, run, words};

const PROMPTS: &str = "once upon a time there was\nthe little dog went to the park with\n";

fn object(path: &str, options: &str) -> Value {
    let out = run(&words(&format!("analyze --prompts {path} -s 5 -c 256 --repeat 1 --json {options}"))).ok();
    serde_json::from_str(&out).expect("it is one object")
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("{field}: {value}"))
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field}: {value}"))
}

#[test]
fn every_drafter_has_an_alpha_and_every_draft_length_a_prediction() {
    let (_folder, path) = file("prompts.txt", PROMPTS);
    let found = object(&path, "-n 24 --ignore-eos --gamma 3,1,3");
    let expected: Vec<(&str, f64)> = [0.0, 1.0]
        .into_iter()
        .flat_map(|temperature| ["draft", "unigram", "bigram", "random"].map(|drafter| (drafter, temperature)))
        .collect();
    let of = |value: &Value| (value["drafter"].as_str().map(str::to_string), number(value, "temperature"));
    let drafters = list(&found, "drafters");
    let names: Vec<_> = drafters.iter().map(of).collect();
    assert_eq!(
        names,
        expected.iter().map(|(name, temperature)| (Some(name.to_string()), *temperature)).collect::<Vec<_>>()
    );
    for drafter in drafters {
        let (alpha, c) = (number(drafter, "alpha"), number(drafter, "c"));
        assert!((0.0..=1.0).contains(&alpha) && (0.0..=1.0).contains(&number(drafter, "with_law")), "{drafter}");
        assert_eq!(c > 0.0, drafter["drafter"] == "draft", "{drafter}");
        assert_eq!(drafter["speedup_reached"].is_f64(), alpha > c, "{drafter}");
        assert!(list(drafter, "acceptance_by_depth").iter().all(|part| part.as_f64() <= Some(1.0)), "{drafter}");
        // The oracle is better than every draft length.
        let best = &drafter["best_predicted"];
        assert!(alpha <= c || number(best, "speedup") <= number(drafter, "oracle_speedup") + 1e-9, "{drafter}");
        assert!([1.0, 3.0].contains(&number(best, "gamma")), "{drafter}");
    }
    for four in drafters.chunks(4) {
        assert!(number(&four[0], "alpha") > number(&four[3], "alpha"), "{four:?}");
    }
    let rows = list(&found, "rows");
    assert_eq!(rows.len(), 2 * expected.len(), "each draft length once");
    for row in rows {
        let (alpha, c, gamma) = (number(row, "alpha"), number(row, "c"), number(row, "gamma"));
        let tokens: f64 = (0..=gamma as i32).map(|accepted| alpha.powi(accepted)).sum();
        assert!((number(row, "expected_tokens") - tokens).abs() < 1e-9, "{row}");
        assert!((number(row, "predicted") - tokens / (gamma * c + 1.0)).abs() < 1e-9, "{row}");
        assert!((1.0..=gamma + 1.0).contains(&number(row, "tokens_per_pass")), "{row}");
        assert!(number(row, "predicted_with_widths") > 0.0, "{row}");
        let causes: Vec<f64> =
            row["causes"].as_object().expect("an object").values().filter_map(Value::as_f64).collect();
        let product: f64 = causes.iter().product();
        assert_eq!(causes.len(), 5, "{row}");
        assert!((product - number(row, "speedup") / number(row, "predicted")).abs() < 1e-9, "{row}");
        let off = number(row, "off");
        assert!((off - (product - 1.0)).abs() < 1e-9, "{row}");
        assert_eq!(row["explanation"].is_string(), off.abs() > 0.1, "{row}");
    }
}

#[test]
fn the_tables_have_a_line_for_each_drafter_and_draft_length() {
    let (_folder, path) = file("prompts.txt", PROMPTS);
    let line =
        format!("analyze --prompts {path} -s 5 -c 256 -n 12 --temp 0 --gamma 2,4 --repeat 1 --spec-type draft,bigram");
    let out = run(&words(&line)).ok();
    let lines_of = |title: &str| {
        let below = out.lines().skip_while(|line| *line != title).skip(2);
        below.take_while(|line| !line.is_empty()).map(words).collect::<Vec<_>>()
    };
    assert!(out.lines().next().is_some_and(|title| title.contains("2 prompts, ")), "{out}");
    let names = |lines: Vec<Vec<&str>>| lines.iter().map(|line| line[0].to_string()).collect::<Vec<_>>();
    assert_eq!(names(lines_of("Acceptance")), ["draft", "bigram"], "{out}");
    assert_eq!(names(lines_of("Best gamma")), ["draft", "bigram"], "{out}");
    let speedups: Vec<String> = lines_of("Speed-ups").iter().map(|line| line[..3].join(" ")).collect();
    assert_eq!(speedups, ["draft 0 2", "draft 0 4", "bigram 0 2", "bigram 0 4"], "{out}");
}

#[test]
fn drafters_without_a_network_need_no_draft_model_and_no_tokenizer() {
    let (_folder, path) = file("prompts.jsonl", "{\"prompt\": [1, 2, 3, 1, 2]}\n");
    let found = object(&path, &format!("-m {} -n 12 --gamma 1 --spec-type random,unigram,random", golden("llama")));
    let names: Vec<&Value> = list(&found, "drafters").iter().map(|drafter| &drafter["drafter"]).collect();
    assert_eq!(names, ["random", "unigram", "random", "unigram"]);
}

#[test]
fn copies_of_a_source_have_an_alpha_where_something_matches() {
    // The second source is the beginning of what the network writes of the first, so its copies are partly right.
    let model = golden("t5-v1_1");
    let ids = run(&words(&format!("generate -m {model} --source-ids 9,44,3,17,60,1 --temp 0 -n 24 --output-ids"))).ok();
    let prompts = format!("{{\"prompt\": [9, 44, 3, 17, 60, 1]}}\n{{\"prompt\": [{}, 1]}}\n", ids.trim());
    let (_folder, path) = file("sources.jsonl", &prompts);
    let found = object(&path, &format!("-m {model} -n 24 --ignore-eos --temp 0 --gamma 2 --spec-type lookup"));
    let [drafter] = list(&found, "drafters") else { panic!("{found}") };
    let (alpha, with_law) = (number(drafter, "alpha"), number(drafter, "with_law"));
    assert!(0.0 < alpha && alpha <= with_law && with_law <= 1.0 && number(drafter, "c") == 0.0, "{drafter}");
    let [row] = list(&found, "rows") else { panic!("{found}") };
    assert!((number(row, "expected_tokens") - (1.0 + alpha + alpha * alpha)).abs() < 1e-9, "{row}");
}

#[test]
fn a_report_has_charts_and_all_rows() {
    let (folder, path) = file("prompts.txt", PROMPTS);
    let report = folder.path().join("report");
    let line = format!(
        "analyze --prompts {path} -s 5 -c 256 -n 16 --temp 0 --gamma 1,2 --repeat 1 --report {}",
        report.display()
    );
    run(&words(&line)).ok();
    let read =
        |name: &str| std::fs::read_to_string(report.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let page = read("index.html");
    for name in ["alpha", "speedup", "depth", "cost"] {
        assert!(read(&format!("{name}.svg")).contains("<text") && page.contains(&format!("{name}.png")), "{name}");
    }
    assert!(page.contains("<th>Theorem 3.8"), "{page}");
    let record: Value = serde_json::from_str(&read("record.json")).expect("the record is JSON");
    assert_eq!((list(&record, "rows").len(), list(&record, "drafters").len()), (8, 4));
    assert!(run(&words(&line)).error(1).contains("--force"));
}

#[test]
fn what_cannot_be_analyzed_is_refused_in_one_line() {
    let (folder, path) = file("prompts.txt", PROMPTS);
    let refused = |options: &str| run(&words(&format!("analyze {options}"))).error(2);
    for wrong in ["0", "65", "x", "1,0", "-2"] {
        let error = refused(&format!("--prompts {path} --gamma {wrong}"));
        assert!(error.starts_with("--gamma: expected a whole number from 1 to 64, found "), "{error}");
    }
    let expected = "--spec-type: expected one of draft, unigram, bigram, lookup, random, found \"magic\"";
    assert_eq!(refused(&format!("--prompts {path} --spec-type draft,magic")), expected);
    let expected = "--spec-type draft: expected a draft model (-md, --model-draft), found none";
    assert_eq!(refused(&format!("--prompts {path} -m {}", golden("llama"))), expected);
    assert!(refused("").contains("--prompts"));
    let missing = folder.path().join("none.txt").display().to_string();
    let error = run(&words(&format!("analyze --prompts {missing}"))).error(1);
    assert!(error.starts_with(&format!("{missing}: cannot be read")), "{error}");
}
