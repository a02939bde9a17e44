//! `check`: succeeds for every drafter and batch size. A unit test of the command tests that it finds differences.

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
fn promises_of_the_distribution_are_refused() {
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

/// Chooses options by numbers from a seed (SplitMix64).
struct Rng(u64);

impl Rng {
    fn choose<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        choices[((mixed ^ (mixed >> 31)) % choices.len() as u64) as usize]
    }
}

/// A random set of options that can be given together. Most are only given in half of the cases.
fn random_options(rng: &mut Rng) -> String {
    let temperature = rng.choose(&["0", "0", "0.3", "0.8", "1", "1.5"]);
    let promises: &[&str] = if temperature == "0" { &["exact", "rejection", "block"] } else { &["exact"] };
    let mut options = format!("--temp {temperature} --verify {}", rng.choose(promises));
    for (name, choices) in [
        ("-s", &["0", "1", "77", "18446744073709551615"][..]),
        ("-n", &["1", "7", "24", "40"]),
        ("-np", &["1", "2", "3", "6"]),
        ("-t", &["1", "2", "3"]),
        ("-c", &["48", "64", "300"]),
        ("--cache-type-k", &["f32", "f16", "bf16", "q8_0"]),
        ("--cache-type-v", &["f32", "f16", "bf16", "q8_0"]),
        ("--cache-type-k-draft", &["f32", "bf16", "q8_0"]),
        ("--dtype", &["f32", "q8_0"]),
        ("--dtype-draft", &["f32", "q8_0"]),
    ] {
        options += &format!(" {name} {}", rng.choose(choices));
    }
    let drafters =
        ["draft", "lookup", "llma", "suffix", "ngram", "trie", "jacobi", "random", "draft:lookup", "draft:suffix"];
    let (first, second) = (rng.choose(&drafters), rng.choose(&drafters));
    let join = rng.choose(&["+", ","]);
    // Two drafters with draft models would each need a model of their own.
    let is_one = first == second || first.starts_with("draft") && second.starts_with("draft");
    let both = if is_one { first.to_string() } else { format!("{first}{join}{second}") };
    options += &format!(" --spec-type {both} --budget {}", rng.choose(&["auto", "fixed", "heuristic", "threshold"]));
    if !first.contains(':') && !second.contains(':') && both.contains("draft") {
        options += rng.choose(&["", "", " --other-draft"]);
    }
    for (name, choices) in [
        ("--top-k", &["0", "1", "5", "40"][..]),
        ("--top-p", &["0.3", "0.9", "1"]),
        ("--min-p", &["0", "0.05", "0.3"]),
        ("--typical", &["0.5", "1"]),
        ("--repeat-penalty", &["1.1", "1.5", "0.8"]),
        ("--repeat-last-n", &["0", "3", "64", "-1"]),
        ("--presence-penalty", &["0.5", "-0.5"]),
        ("--frequency-penalty", &["0.3", "-0.2"]),
        ("--logit-bias", &["10+3", "300-5"]),
        ("--ban-token", &["5,6,7", "0"]),
        ("--min-tokens", &["5", "30"]),
        ("--spec-draft-n-max", &["1", "3", "8", "16"]),
        ("--spec-draft-p-min", &["0.3", "0.9"]),
        ("--spec-draft-p-split", &["0.05", "0.4"]),
        ("--spec-draft-temp", &["0.5", "1.4"]),
        ("--stop", &[".", "the"]),
    ] {
        if rng.choose(&["yes", "no"]) == "yes" {
            options += &format!(" {name} {}", rng.choose(choices));
        }
    }
    options + rng.choose(&["", " --ignore-eos"])
}

/// Random sets of options, 300 or as many as `FORETOKEN_SETS` says, from the seed `FORETOKEN_SEED` on:
/// `cargo test -p foretoken-cli --test cli -- --ignored random_sets`.
#[test]
#[ignore = "minutes"]
fn speculative_equals_plain_under_random_sets_of_options() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let prompts: String = PROMPTS.lines().step_by(2).map(|line| format!("{line}\n")).collect();
    let (_folder, path) = file("prompts.jsonl", &prompts);
    let (first, count) = (number("FORETOKEN_SEED", 0), number("FORETOKEN_SETS", 300));
    let mut tokens = 0;
    for seed in first..first + count {
        let options = random_options(&mut Rng(seed));
        let options = options.replace("--other-draft", &format!("-md {}", demo("demo-other-tokenizer")));
        let ended = run(&[&["check", "--prompts", &path], words(&options).as_slice()].concat());
        assert_eq!(ended.code, 0, "{seed}: {options}: {}{}", ended.out, ended.err);
        let ok = ended.out.lines().filter(|line| line.contains(": ok, ")).count();
        assert_eq!(ok, 3, "{seed}: {options}: {}", ended.out);
        tokens += ended
            .out
            .lines()
            .filter_map(|line| line.split(": ok, ").nth(1)?.split(' ').next()?.parse::<usize>().ok())
            .sum::<usize>();
    }
    println!("{count} sets of options from {first} on, {tokens} tokens, no difference");
}
