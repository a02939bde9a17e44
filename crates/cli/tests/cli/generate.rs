//! `generate`: the same bytes with all drafters and inputs, and all forms of input and output.

use serde_json::Value;

use crate::{demo, golden, program, run, run_with, test_data, words};

const STORY: &str = "once upon a time, there was a little";

/// The text of STORY with these options.
fn story(options: &str) -> String {
    let mut all = vec!["generate", STORY];
    all.extend(words(options));
    run(&all).ok()
}

#[test]
fn the_first_command_of_the_readme_works() {
    let found = run(&["generate", STORY, "-n", "24", "--ignore-eos"]);
    assert!(found.err.starts_with("seed: "), "{}", found.err);
    // Statistics are printed on a terminal or with -v.
    assert_eq!(found.err.lines().count(), 1, "{}", found.err);
    let asked = run(&["generate", STORY, "-n", "24", "--ignore-eos", "-v"]).err;
    let line = asked.lines().find(|line| line.contains(" tokens/s, load ")).unwrap_or_default();
    assert!(line.starts_with("24 tokens, ") && line.contains(" ms, first token ") && line.len() <= 100, "{asked}");
    assert!(asked.contains(" passes of the target") && asked.contains("draft accepted"), "{asked}");
    assert!(found.ok().trim().len() > 20);
}

#[test]
fn drafters_budgets_and_thread_counts_change_no_byte() {
    for sampling in [
        "--temp 0",
        "-s 7 -ctk f32 -ctv q8_0",
        "--temp 1 --repeat-penalty 1.2 --typical 0.9 -s 5",
        "--temp 0 --verify rejection",
    ] {
        let plain = story(&format!("{sampling} -n 40 --spec-type none"));
        let variants = [
            "",
            "--spec-type lookup,draft",
            "--spec-type draft,lookup --budget fixed --draft-max 7 --draft-p-min 0.4",
            "--spec-draft-temp 0 -t 1",
            "-ctkd q8_0 -ctvd bf16",
            "--spec-type none -t 1",
            "-t 2 --spec-draft-n-max 0",
            "-t 3 -c 64",
        ];
        for options in variants {
            assert_eq!(story(&format!("{sampling} -n 40 {options}")), plain, "{sampling} {options}");
        }
    }
}

#[test]
fn other_seeds_give_other_texts_and_block_verification_works() {
    assert_ne!(story("-s 7 -n 24"), story("-s 8 -n 24"));
    assert!(story("-s 7 -n 24 --verify block").len() > 20);
}

#[test]
fn a_prompt_comes_from_an_argument_an_option_a_file_or_standard_input() {
    let expected = story("-s 7 -n 12");
    let (_folder, path) = crate::file("prompt.txt", &format!("{STORY}\n"));
    for options in [["-p", STORY], ["-f", path.as_str()]] {
        assert_eq!(run(&[&["generate", "-s", "7", "-n", "12"], options.as_slice()].concat()).ok(), expected);
    }
    for input in [STORY.to_string(), format!("{STORY}\n")] {
        assert_eq!(run_with(&words("generate -s 7 -n 12"), &[], &input).ok(), expected);
    }
    let shown = run(&["generate", STORY, "-s", "7", "-n", "12", "--display-prompt"]).ok();
    assert_eq!(shown, format!("{STORY}{expected}"));
}

#[test]
fn demo_models_as_directories_give_the_same_text() {
    let (target, draft) = (demo("demo-target"), demo("demo-draft"));
    let found = run(&["generate", "-m", &target, "-md", &draft, "-s", "7", "-n", "24", STORY]).ok();
    assert_eq!(found, story("-s 7 -n 24"));
}

#[test]
fn an_empty_prompt_is_the_beginning_token_alone() {
    let of_nothing = run(&words("generate --temp 0 -n 8 --prompt-ids 0")).ok();
    assert_eq!(run(&["generate", "--temp", "0", "-n", "8", ""]).ok(), of_nothing);
}

#[test]
fn a_stop_string_ends_the_text_and_is_left_out() {
    let whole = story("--temp 0 -n 60");
    let (before, _) = whole.split_once("she ").expect("the story has a she");
    let mut all = vec!["generate", STORY, "--temp", "0", "-n", "60", "--stop", "she ", "--stop", "unheard of"];
    for drafter in ["none", "draft"] {
        all.extend(["--spec-type", drafter]);
        assert_eq!(run(&all).ok(), format!("{before}\n"));
        all.truncate(all.len() - 2);
    }
}

#[test]
fn limits_of_length_are_kept() {
    assert_eq!(story("-n 0"), "\n");
    let ids = run(&words("generate --prompt-ids 5,6,7 --output-ids -n 7 -s 1 --ignore-eos")).ok();
    assert_eq!(ids.trim_end().split(',').count(), 7);
    let ids = run(&words("generate --prompt-ids 5,6,7 --output-ids -c 10 -s 1 --ignore-eos")).ok();
    assert_eq!(ids.trim_end().split(',').count(), 7, "the context is full");
}

#[test]
fn end_tokens_end_the_text_unless_ignored() {
    // Token 0, an end token, is made certain: it ends the text at once, is repeated, or comes after min-tokens.
    let forced = |more: &str| {
        let line = format!("generate --prompt-ids 5 --output-ids --temp 0 -n 6 --logit-bias 0+1000 {more}");
        run(&words(&line)).ok()
    };
    assert_eq!(forced(""), "0\n");
    assert_eq!(forced("--ignore-eos"), "0,0,0,0,0,0\n");
    let delayed = forced("--min-tokens 3");
    assert!(delayed.trim_end().split(',').count() == 4 && delayed.ends_with(",0\n"), "{delayed}");
    assert!(!forced("--ban-token 0").split(',').any(|id| id.trim() == "0"));
}

#[test]
fn json_has_all_facts_about_every_prompt() {
    let (_folder, path) =
        crate::file("prompts.jsonl", "{\"prompt\": \"once upon\"}\n\n{\"turns\": [\"hello\", \"x\"]}\n");
    let all = ["generate", "--json", "--logprobs", "-s", "3", "-n", "12", "--prompts", &path];
    let alone = run(&all).ok();
    let lines: Vec<Value> = alone.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    assert_eq!(lines.len(), 2);
    for (line, prompt) in lines.iter().zip(["once upon", "hello"]) {
        assert_eq!((line["prompt"].as_str(), line["seed"].as_u64()), (Some(prompt), Some(3)));
        let ids = line["ids"].as_array().map_or(0, Vec::len);
        assert_eq!(line["logprobs"].as_array().map(Vec::len), Some(ids));
        assert_eq!(line["timings"]["predicted_n"].as_u64(), Some(ids as u64));
        let ms = |name: &str| line["timings"][name].as_f64().unwrap_or_else(|| panic!("{name}: {}", line["timings"]));
        assert!(ms("load_ms") > 0.0 && ms("prompt_ms") > 0.0 && ms("prompt_ms") <= ms("time_to_first_token_ms"));
        assert!(ms("first_token_ms") > ms("load_ms") + ms("prompt_ms"), "{}", line["timings"]);
        let speculation = &line["speculation"];
        assert_eq!(speculation["drafters"]["draft"]["accepted"], speculation["accepted"]);
        let passes = speculation["passes"].as_f64().expect("passes are counted");
        assert_eq!(speculation["tokens_per_pass"].as_f64(), Some(ids as f64 / passes));
        let text = run(&["generate", "-s", "3", "-n", "12", prompt]).ok();
        assert_eq!(line["text"].as_str(), text.strip_suffix('\n'));
    }
    assert!(run(&[&["generate", "--jsonl"], &all[2..]].concat()).ok().lines().count() == 2);
    let batched: Vec<Value> = run(&[&all[..], &["-np", "2"]].concat())
        .ok()
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect();
    for (alone, batched) in lines.iter().zip(&batched) {
        assert_eq!((&alone["ids"], &alone["logprobs"]), (&batched["ids"], &batched["logprobs"]));
    }
}

#[test]
fn marks_of_drafted_tokens_change_no_text() {
    let plain = story("-s 7 -n 24");
    let words = ["generate", STORY, "-s", "7", "-n", "24", "--budget", "fixed", "--show-drafts"];
    let marked = run(&[&words[..], &["--color", "always"]].concat());
    assert!(marked.err.lines().next().unwrap_or_default().starts_with("tokens: "), "{}", marked.err);
    let coloured = marked.ok();
    assert!(coloured.contains("\x1b[38;5;28m") && coloured.contains("\x1b[38;5;27m"), "{coloured}");
    let stripped = ["\x1b[38;5;28m", "\x1b[38;5;130m", "\x1b[38;5;27m", "\x1b[0m"]
        .iter()
        .fold(coloured, |text, code| text.replace(code, ""));
    assert_eq!(stripped, plain);
    // A pipe has no colours unless they are asked for.
    let bare = run(&words).ok();
    assert!(!bare.contains('\x1b') && bare.contains('['), "{bare}");
    assert_eq!(bare.replace(['[', ']'], ""), plain);
}

#[test]
fn marks_of_rejected_tokens_change_no_text() {
    let plain = story("-s 7 -n 24");
    let words = ["generate", STORY, "-s", "7", "-n", "24", "--budget", "fixed", "--show-drafts=rejected"];
    let found = run(&words);
    assert!(found.err.contains("[-draft, rejected-]"), "{}", found.err);
    let marked = found.ok();
    let (mut text, mut rejected) = (String::new(), 0);
    let mut rest = marked.as_str();
    while let Some((before, tail)) = rest.split_once("[-") {
        let (struck, tail) = tail.split_once("-]").expect("the mark is closed");
        assert!(!struck.contains('\n'), "{struck:?}");
        text += before;
        rest = tail;
        rejected += 1;
    }
    text += rest;
    assert_eq!(text.replace(['[', ']'], ""), plain);
    assert!(rejected > 0, "{marked}");
    let coloured = run(&[&words[..], &["--color", "always"]].concat()).ok();
    assert_eq!(coloured.matches("\x1b[9m").count(), rejected, "{coloured}");
    // In a conversation, too.
    let line = ["chat", "-s", "7", "-n", "24", "--budget", "fixed", "--show-drafts=rejected"];
    assert!(run_with(&line, &[], "Once upon a time\n").ok().contains("[-"));
    let note = run(&[&words[..], &["--n-best", "2"]].concat()).err;
    assert!(note.contains("note: --show-drafts=rejected: of several answers"), "{note}");
}

#[test]
fn a_model_without_a_tokenizer_continues_ids_as_transformers_does() {
    for name in ["llama", "llama-tied", "llama3-rope", "linear-rope", "gpt2"] {
        let folder = golden(name);
        let weights = foretoken_weights::safetensors::open(format!("{folder}/golden.safetensors"));
        let weights = weights.expect("the fixture is well-formed");
        let numbers = |tensor: &str| -> Vec<String> {
            let bytes = &weights.get(tensor).expect("the fixture is complete").bytes;
            let number = |four: &[u8]| i32::from_le_bytes(four.try_into().expect("four bytes")).to_string();
            bytes.chunks_exact(4).map(number).collect()
        };
        let (prompt, greedy) = (numbers("tokens")[..16].join(","), numbers("greedy"));
        // The fixture's continuation begins with its prompt.
        let expected = greedy[16..].join(",");
        let count = (greedy.len() - 16).to_string();
        let line = ["generate", "-m", &folder, "--prompt-ids", &prompt, "--output-ids", "--temp", "0"];
        for options in [vec![], vec!["--spec-type", "none"], vec!["-md", &folder], vec!["-t", "1"]] {
            let found = run(&[&line[..], &["--ignore-eos", "-n", &count], &options].concat()).ok();
            assert_eq!(found, format!("{expected}\n"), "{name} {options:?}");
        }
    }
}

#[test]
fn the_story_model_writes_the_published_story() {
    let Some(folder) = test_data("models/stories260K") else { return println!("skipped: no FORETOKEN_TEST_DATA") };
    let model = format!("{folder}/stories260K.gguf");
    let expected =
        std::fs::read_to_string(format!("{folder}/expected_greedy_200steps.txt")).expect("the story is there");
    let line = ["generate", "-m", &model, "--temp", "0", "-n", "220"];
    for options in [
        vec![],
        vec!["--spec-type", "none"],
        vec!["--spec-type", "lookup"],
        vec!["--spec-type", "draft", "-md", &model],
    ] {
        let found = run(&[&line[..], &options, &[""]].concat()).ok();
        assert!(found.starts_with(&expected), "{options:?}: {found}");
    }
}

#[test]
fn a_closed_standard_output_is_no_error() {
    use std::process::Stdio;
    let cache = tempfile::tempdir().expect("a folder can be made");
    let mut command = program(cache.path());
    command.args(["generate", STORY, "-s", "7", "-n", "64"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn the_last_of_repeated_options_counts_and_lists_are_joined() {
    let ids = |line: &str| run(&words(&format!("generate --prompt-ids 5,6 --output-ids --temp 0 {line}"))).ok();
    assert_eq!(ids("-n 3 -n 5"), ids("-n 5"));
    let banned = ids("-n 5 --ban-token 1,2").trim_end().split(',').next().map(str::to_string).expect("a token");
    assert_eq!(ids(&format!("-n 5 --ban-token {banned} --ban-token 0")), ids(&format!("-n 5 --ban-token {banned},0")));
}
