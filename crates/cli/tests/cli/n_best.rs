//! `generate --n-best`: several answers to a prompt, each equal to the answer of its seed alone.

use serde_json::Value;

use crate::{file, run, words};

/// A prompt of more than one page of the KV cache, so that answers share pages.
const STORY: &str = "once upon a time, there was a little girl who lived in a small house near the forest. she had a \
                     red ball and a brown dog. every day she went out to play with the dog, and one day they found";

fn objects(line: &[&str]) -> Vec<Value> {
    let out = run(line).ok();
    out.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn every_answer_equals_that_of_its_seed_alone_and_the_first_that_without_the_option() {
    let line = ["generate", STORY, "-s", "7", "-n", "16"];
    let plain = run(&line).ok();
    let answers = objects(&[&line[..], &["--json", "--n-best", "3"]].concat());
    assert_eq!(answers.len(), 3);
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!(answer["index"].as_u64(), Some(index as u64));
        let seed = answer["seed"].to_string();
        let alone = run(&["generate", STORY, "-n", "16", "-s", &seed]).ok();
        assert_eq!(answer["text"].as_str(), alone.strip_suffix('\n'), "answer {index}");
        // The later answers reuse the prompt's pages.
        let shared = answer["timings"]["cache_n"].as_u64();
        assert!(shared.is_some_and(|shared| (shared >= 32) == (index > 0)), "{}", answer["timings"]);
        assert_eq!(answer["timings"]["preemptions"].as_u64(), Some(0));
    }
    assert_eq!(answers[0]["text"].as_str(), plain.strip_suffix('\n'));
    assert!(answers[0]["text"] != answers[1]["text"] && answers[1]["text"] != answers[2]["text"]);
    let settings = &answers[2]["record"]["settings"];
    assert_eq!((&settings["sampling"]["n_best"], &settings["sampling"]["seed"]), (&3.into(), &7.into()));
    let decided_by = &answers[2]["record"]["decided_by"];
    assert_eq!((&decided_by["sampling.n_best"], &decided_by["parallel"]), (&"user".into(), &"program".into()));
}

#[test]
fn headers_number_the_answers() {
    let (_folder, path) = file("prompts.txt", "once upon a time\nthe little dog\n");
    let line = ["generate", "--prompts", &path, "-s", "7", "-n", "6"];
    let blocks = |out: &str| -> Vec<(String, String)> {
        let blocks = out.trim_end().split("\n\n").filter_map(|block| block.split_once(":\n"));
        blocks.map(|(head, text)| (head.to_string(), text.to_string())).collect()
    };
    let alone = blocks(&run(&line).ok());
    assert_eq!([&alone[0].0, &alone[1].0], ["prompt 1 of 2", "prompt 2 of 2"]);
    let found = run(&[&line[..], &["--n-best", "2", "-np", "3", "-v"]].concat());
    assert!(found.err.contains("4 texts, 24 tokens, ") && found.err.contains(" tokens/s, load "), "{}", found.err);
    let out = found.ok();
    let blocks = blocks(&out);
    let heads: Vec<&str> = blocks.iter().map(|(head, _)| head.split(", seed").next().unwrap_or_default()).collect();
    assert_eq!(
        heads,
        [
            "prompt 1 of 2, answer 1 of 2",
            "prompt 1 of 2, answer 2 of 2",
            "prompt 2 of 2, answer 1 of 2",
            "prompt 2 of 2, answer 2 of 2"
        ]
    );
    assert!(blocks[0].0.ends_with(", seed 7") && !blocks[1].0.ends_with(", seed 7"), "{out}");
    assert_eq!([&blocks[0].1, &blocks[2].1], [&alone[0].1, &alone[1].1]);
    let ids = run(&[&line[..], &["--n-best", "2", "--output-ids"]].concat()).ok();
    assert_eq!(ids.lines().count(), 4, "{ids}");
}

#[test]
fn greedy_answers_are_equal_and_noted() {
    let found = run(&["generate", STORY, "--temp", "0", "-n", "6", "--n-best", "2", "--output-ids"]);
    assert!(
        found.err.contains("note: --n-best: at temperature 0 all answers to a prompt are equal\n"),
        "{}",
        found.err
    );
    let out = found.ok();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{out}");
}

#[test]
fn answers_differ_under_rejection_and_impossible_ones_are_refused() {
    let line = ["generate", STORY, "-s", "7", "-n", "12", "--verify", "rejection", "--n-best", "4", "--output-ids"];
    let out = run(&line).ok();
    let mut lines: Vec<&str> = out.lines().collect();
    lines.dedup();
    assert_eq!(lines.len(), 4, "{out}");
    let refused = run(&["generate", STORY, "-c", "16", "--n-best", "3", "-s", "1"]).error(1);
    assert!(refused.contains("context"), "{refused}");
    for wrong in ["0", "257", "many"] {
        let error = run(&words(&format!("generate x --n-best {wrong}"))).error(2);
        assert!(error.starts_with("--n-best: expected a whole number from 1 to 256, found "), "{error}");
    }
}
