//! `generate --num-beams`: the best hypotheses of one search, and what it cannot be combined with.

use serde_json::Value;

use crate::{demo, file, golden, run, words};

const PROMPT: &str = "once upon a time, there was a little";

fn objects(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn line(more: &str) -> Vec<&str> {
    [vec!["generate", PROMPT], words("--num-beams 4 -n 10 --spec-type suffix"), words(more)].concat()
}

#[test]
fn the_best_hypotheses_are_printed_and_told_as_json() {
    let best = objects(&run(&line("--n-best 3 --json")).ok());
    assert_eq!(best.len(), 3);
    let number = |object: &Value, field: &str| object[field].as_f64().expect("a number");
    for (index, object) in best.iter().enumerate() {
        assert_eq!(object["index"], index, "{object}");
        let ids = object["ids"].as_array().expect("a list");
        let by_length = number(object, "log_probability") / ids.len() as f64;
        assert!((by_length - number(object, "score")).abs() < 1e-4, "{object}");
        assert!(["stop", "length"].contains(&object["finish_reason"].as_str().expect("a text")), "{object}");
        assert_eq!(object["speculation"]["beams"], best[0]["speculation"]["beams"]);
    }
    assert!(best.is_sorted_by(|a, b| number(a, "score") >= number(b, "score")), "{best:?}");
    let beams = &best[0]["speculation"]["beams"];
    assert!(beams["steps"].as_u64().is_some_and(|steps| (1..=10).contains(&steps)), "{beams}");
    let (settings, decided_by) = (&best[0]["record"]["settings"]["sampling"], &best[0]["record"]["decided_by"]);
    assert_eq!((&settings["num_beams"], &settings["temperature"]), (&4.into(), &0.0.into()));
    assert_eq!((&settings["length_penalty"], &settings["early_stopping"]), (&1.0.into(), &"false".into()));
    assert_eq!(decided_by["sampling.num_beams"], "user");
    // One answer is printed as without beams, several with their scores.
    let text = |object: &Value| object["text"].as_str().expect("a text").to_string();
    assert_eq!(run(&line("")).ok(), format!("{}\n", text(&best[0])));
    let several = run(&line("--n-best 2")).ok();
    let scores = [&best[0], &best[1]].map(|object| format!("{:.4}", number(object, "score")));
    let expected = format!(
        "answer 1 of 2, score {}:\n{}\n\nanswer 2 of 2, score {}:\n{}\n",
        scores[0],
        text(&best[0]),
        scores[1],
        text(&best[1])
    );
    assert_eq!(several, expected);
    // Nothing that is drafted changes what is found.
    let plain = objects(&run(&[&line("--n-best 3 --json")[..], &["--spec-type", "none"]].concat()).ok());
    let found = |all: &[Value]| all.iter().map(|object| object["ids"].clone()).collect::<Vec<_>>();
    assert_eq!(found(&plain), found(&best));
    // The demo model's own file has a temperature, which gives way; --temp 0 is no contradiction.
    assert_eq!(run(&line("--temp 0")).ok(), run(&line("")).ok());
}

#[test]
fn one_beam_is_no_search() {
    let greedy = ["generate", PROMPT, "-n", "10", "--temp", "0"];
    let one = run(&[&greedy[..], &["--num-beams", "1"]].concat()).ok();
    assert_eq!(one, run(&greedy).ok());
}

#[test]
fn penalties_and_ends_change_what_is_found() {
    let ids = |more: &str| run(&line(&format!("--n-best 4 --output-ids {more}"))).ok();
    let (long, short) = (ids("--length-penalty 2 --early-stopping never"), ids("--length-penalty -2 --min-tokens 0"));
    assert_eq!((long.lines().count(), short.lines().count()), (4, 4));
    assert_ne!(ids("--ban-token 5 --repeat-penalty 1.5"), ids(""));
    for when in ["true", "false", "never"] {
        assert_eq!(ids(&format!("--early-stopping {when}")).lines().count(), 4);
    }
}

#[test]
fn a_form_holds_for_each_hypothesis() {
    let choices = ["red", "blue", "a green one"];
    let options: Vec<&str> = choices.iter().flat_map(|choice| ["--choice", choice]).collect();
    let found = objects(&run(&[&line("--n-best 4 --json"), &options[..]].concat()).ok());
    let texts: Vec<&str> = found.iter().map(|object| object["text"].as_str().expect("a text")).collect();
    assert!(!texts.is_empty() && texts.iter().all(|text| choices.contains(text)), "{texts:?}");
    let best = run(&[&line(""), &options[..]].concat()).ok();
    assert_eq!(best, format!("{}\n", texts[0]));
}

#[test]
fn files_of_prompts_have_searches_that_a_later_run_continues() {
    let (folder, prompts) = file("prompts.jsonl", "{\"prompt\": [7, 5, 3]}\n{\"prompt\": [2, 9]}\n{\"prompt\": [4]}\n");
    let path = folder.path().join("answers.jsonl").display().to_string();
    let line = ["generate", "-m", &golden("llama"), "--prompts", &prompts, "--json", "--resume", &path];
    let line = [&line[..], &words("--num-beams 3 --n-best 2 -n 6 --spec-type none")].concat();
    run(&line).ok();
    let complete = std::fs::read_to_string(&path).expect("the file is there");
    let fields = |text: &str| -> Vec<[Value; 4]> {
        let fields = ["index", "prompt_ids", "ids", "score"];
        objects(text).into_iter().map(|object| fields.map(|field| object[field].clone())).collect()
    };
    assert_eq!(fields(&complete).len(), 6);
    for lines in [0, 1, 2, 3, 5, 6] {
        let part: String = complete.split_inclusive('\n').take(lines).collect();
        std::fs::write(&path, part).expect("it can be written");
        let ended = run(&line);
        let note = format!("note: --resume: {lines} of 6 answers are there");
        assert_eq!(ended.err.contains(&note), lines > 0, "{}", ended.err);
        ended.ok();
        let found = std::fs::read_to_string(&path).expect("the file is there");
        assert_eq!(fields(&found), fields(&complete), "from {lines} lines");
    }
}

#[test]
fn contradictions_are_one_line() {
    for (more, code, expected) in [
        ("--temp 0.7", 2, "--temp: expected 0 beside --num-beams 4, found 0.7"),
        ("--n-best 5", 2, "--n-best: expected no more answers than --num-beams 4, found 5"),
        ("--logprobs --json", 2, "--logprobs: expected without --num-beams, found --num-beams 4"),
        ("--show-drafts", 2, "--show-drafts: expected without --num-beams, found --num-beams 4"),
        ("--num-beams 1 --length-penalty 2", 2, "--length-penalty: expected --num-beams above 1 beside it, found 1"),
        ("--num-beams 257", 2, "--num-beams: expected a whole number from 1 to 256, found \"257\""),
        ("--length-penalty long", 2, "--length-penalty: expected a finite number, found \"long\""),
        ("-n 0", 1, "--n-predict: expected at least 1 with beams, found 0"),
        ("--early-stopping soon", 2, "--early-stopping: expected one of true, false, never, found \"soon\""),
    ] {
        assert_eq!(run(&line(more)).error(code), expected, "{more}");
    }
    let chat = run(&["chat", "hello", "--num-beams", "4"]).error(2);
    assert_eq!(chat, "--num-beams: expected an option of foretoken chat, found one of generate, bench generate");
}

#[test]
fn the_models_file_decides_penalty_and_end_and_config_says_so() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for entry in std::fs::read_dir(demo("demo-target")).expect("it is there") {
        let entry = entry.expect("it can be listed");
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("it can be copied");
    }
    let own = folder.path().join("generation_config.json");
    std::fs::write(&own, r#"{"temperature": 0.6, "num_beams": 5, "length_penalty": 2.0, "early_stopping": true}"#)
        .expect("it can be written");
    let model = folder.path().display().to_string();
    let line = ["generate", "-m", &model, PROMPT, "-n", "4", "--num-beams", "2", "--json"];
    let object = &objects(&run(&line).ok())[0];
    let (settings, by) = (&object["record"]["settings"]["sampling"], &object["record"]["decided_by"]);
    assert_eq!((&settings["length_penalty"], &settings["early_stopping"]), (&2.0.into(), &"true".into()));
    assert_eq!((&by["sampling.length_penalty"], &by["sampling.early_stopping"]), (&"model".into(), &"model".into()));
    assert_eq!((&settings["num_beams"], &settings["temperature"]), (&2.into(), &0.0.into()));
    let shown = run(&["config", "generate", "-m", &model, "--num-beams", "2", "--early-stopping", "never"]).ok();
    let row = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_string();
    let (penalty, when) = (row("length-penalty"), row("early-stopping"));
    assert!(penalty.contains("  2 ") && penalty.ends_with("generation_config.json"), "{shown}");
    assert!(when.contains("  never ") && when.ends_with("command line"), "{shown}");
    // Without beams nothing is searched for, whatever the file says.
    let drawn = run(&["generate", "-m", &model, PROMPT, "-n", "4", "-s", "7", "--json"]).ok();
    let record = &objects(&drawn)[0]["record"]["settings"]["sampling"];
    assert_eq!((&record["num_beams"], &record["length_penalty"]), (&1.into(), &Value::Null));
}
