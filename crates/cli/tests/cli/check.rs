//! `check`: passes for every drafter and batch size; that it finds differences is a unit test of the command.

use crate::{demo, file, golden, run, test_data, words};

const PROMPTS: &str = r#"{"prompt": "once upon a time"}
{"prompt": "<|user|>i want to book a table for two.<|end|><|assistant|>"}
{"text": "a robe takes 2 bolts of blue fiber and half that much white fiber."}
{"turns": ["the cat and the dog and the cat and", "x"]}
{"prompt": ""}
{"prompt": [5, 6, 7]}
"#;

#[test]
fn speculative_equals_plain_under_every_law_drafter_and_batch() {
    let (_folder, path) = file("prompts.jsonl", PROMPTS);
    for options in [
        "--temp 0 -n 24",
        "-s 5 -n 24 -np 3 --spec-type draft,lookup --draft-p-min 0.5",
        "--temp 1 --top-k 0 --top-p 1 --min-p 0 -s 6 -n 24 -np 2 --spec-type lookup",
        "--temp 1.2 --presence-penalty 0.5 --frequency-penalty 0.2 --repeat-penalty 1.1 -s 7 -n 16 -np 6 \
         --budget fixed",
        "--temp 0 --verify block -n 16 --stop .",
    ] {
        let out = run(&[&["check", "--prompts", &path], words(options).as_slice()].concat()).ok();
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[..6].iter().all(|line| line.contains(": ok, ")), "{options}: {out}");
        assert!(lines[6].starts_with("6 prompts, "), "{options}: {out}");
    }
}

#[test]
fn lines_of_a_plain_file_are_prompts_and_a_directory_is_a_model() {
    let (_folder, path) = file("prompts.txt", "hello there\n\nonce upon a time\n");
    let (target, draft) = (demo("demo-target"), demo("demo-draft"));
    let out = run(&["check", "-m", &target, "-md", &draft, "--prompts", &path, "-n", "8", "-s", "1"]).ok();
    assert!(out.contains("\n2 prompts, "), "{out}");
}

#[test]
fn a_model_without_a_tokenizer_is_checked_by_ids() {
    let (_folder, path) = file("prompts.jsonl", "{\"prompt\": [1, 2, 3]}\n{\"prompt\": [4]}\n");
    for name in ["llama", "gpt2"] {
        let folder = golden(name);
        let out = run(&["check", "-m", &folder, "--prompts", &path, "-n", "32", "-s", "1", "-np", "2"]).ok();
        assert!(out.contains("\n2 prompts, "), "{out}");
    }
}

#[test]
fn promises_of_the_distribution_alone_are_not_compared() {
    let (_folder, path) = file("prompts.txt", "hello\n");
    for verify in ["rejection", "block"] {
        let error = run(&["check", "--prompts", &path, "--verify", verify, "-s", "1"]).error(2);
        assert!(error.starts_with("--verify: expected exact, or --temp 0, found"), "{error}");
    }
}

#[test]
fn the_prompts_of_the_demo_data_pass() {
    let Some(path) = test_data("data/demo-prompts.jsonl") else { return println!("skipped: no FORETOKEN_TEST_DATA") };
    let text = std::fs::read_to_string(path).expect("the prompts are there");
    let some: String = text.lines().step_by(23).map(|line| format!("{line}\n")).collect();
    let (_folder, path) = file("prompts.jsonl", &some);
    let all =
        ["check", "--prompts", &path, "-n", "12", "--temp", "1", "-s", "5", "-np", "3", "--spec-type", "lookup,draft"];
    assert!(run(&all).ok().contains("speculative equals plain"));
}
