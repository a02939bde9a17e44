//! `generate --resume`: a file of answers to many prompts, which a later run continues.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::{demo, file, golden, program, run, words};

/// Twelve prompts of about equal length, and the path of a file for answers.
fn prompts_and_answers() -> (tempfile::TempDir, String, String) {
    let prompts: String = (0..12).map(|i| format!("{{\"prompt\": [{}, 5, 17, 3]}}\n", i + 2)).collect();
    let (folder, prompts) = file("prompts.jsonl", &prompts);
    let answers = folder.path().join("answers.jsonl").display().to_string();
    (folder, prompts, answers)
}

fn line<'a>(prompts: &'a str, answers: &'a str, more: &'a str) -> Vec<&'a str> {
    let mut line = words("generate --json -n 6 -s 1 --parallel 3 --spec-type lookup");
    line.extend(["--prompts", prompts, "--resume", answers]);
    line.extend(words(more));
    line
}

/// The fields of the answers that do not depend on time and drafts.
fn answers(path: &str) -> Vec<[Value; 5]> {
    let text = std::fs::read_to_string(path).expect("the file is there");
    let object = |line: &str| serde_json::from_str::<Value>(line).expect("each line is JSON");
    let fields = ["index", "prompt_ids", "ids", "seed", "request"];
    text.lines().map(object).map(|object| fields.map(|field| object[field].clone())).collect()
}

#[test]
fn a_partial_file_is_completed_to_the_same_answers() {
    let (_folder, prompts, path) = prompts_and_answers();
    let first = run(&line(&prompts, &path, ""));
    assert_eq!(first.out, "", "{}", first.err);
    first.ok();
    let complete = answers(&path);
    assert_eq!(complete.len(), 12);
    assert!(complete.iter().enumerate().all(|(i, fields)| fields[4] == i), "{complete:?}");
    let text = std::fs::read_to_string(&path).expect("it is there");
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    // Nothing, some lines, some lines and half of the next, all but the last line break, and all.
    for end in [0, ends[0], ends[4], ends[4] + 100, text.len() - 1, text.len()] {
        std::fs::write(&path, &text[..end]).expect("it can be written");
        let ended = run(&line(&prompts, &path, ""));
        let found = ends.iter().filter(|line| **line <= end).count();
        let note = format!("note: --resume: {found} of 12 answers are there");
        assert_eq!(ended.err.contains(&note), found > 0, "{}", ended.err);
        ended.ok();
        assert_eq!(answers(&path), complete, "from {end} bytes of {}", text.len());
    }
    // Several answers to each prompt.
    std::fs::remove_file(&path).expect("it can be removed");
    run(&line(&prompts, &path, "--n-best 2")).ok();
    let several = answers(&path);
    let half: String = std::fs::read_to_string(&path).expect("it is there").split_inclusive('\n').take(7).collect();
    std::fs::write(&path, half).expect("it can be written");
    run(&line(&prompts, &path, "--n-best 2")).ok();
    assert_eq!((answers(&path), several.len()), (several, 24));
}

#[cfg(unix)]
#[test]
fn interrupted_answers_are_computed_again() {
    let (folder, prompts, path) = prompts_and_answers();
    run(&line(&prompts, &path, "-n 200 --ignore-eos -c 512")).ok();
    let complete = answers(&path);
    std::fs::remove_file(&path).expect("it can be removed");
    let mut command = program(folder.path());
    command.args(line(&prompts, &path, "-n 200 --ignore-eos -c 512"));
    let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
    let has_line = || std::fs::read_to_string(&path).is_ok_and(|text| text.contains('\n'));
    (0..1200).take_while(|_| !has_line()).for_each(|_| std::thread::sleep(Duration::from_millis(10)));
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill runs").success());
    let code = child.wait().expect("it ends").code();
    let found = answers(&path).len();
    // A fast machine has all answers before the signal.
    assert!(code == Some(130) && (1..12).contains(&found) || code == Some(0) && found == 12, "{code:?}, {found}");
    assert_eq!(answers(&path), complete[..found]);
    run(&line(&prompts, &path, "-n 200 --ignore-eos -c 512")).ok();
    assert_eq!(answers(&path), complete);
}

#[test]
fn other_files_are_refused_and_kept() {
    let (folder, prompts, path) = prompts_and_answers();
    run(&line(&prompts, &path, "")).ok();
    let text = std::fs::read_to_string(&path).expect("it is there");
    let refused = |text: &str, more: &str| {
        std::fs::write(&path, text).expect("it can be written");
        let error = run(&line(&prompts, &path, more)).error(1);
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), text);
        error.strip_prefix(&format!("{path}: ")).map_or(error.clone(), str::to_string)
    };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let swapped = [lines[0], lines[2], lines[1]].concat();
    assert_eq!(refused(&swapped, ""), "line 2: prompt_ids: expected those of prompt 2, found others or none");
    let more = [&text, lines[0]].concat();
    assert_eq!(refused(&more, ""), "line 13: expected the 12 answers to the prompts, found more lines");
    assert_eq!(refused(&text, "--n-best 2"), "line 2: prompt_ids: expected those of prompt 1, found others or none");
    let twice = [lines[0], lines[0]].concat();
    assert_eq!(refused(&twice, "--n-best 2"), "line 2: index: expected 1, found 0");
    let error = refused("nonsense\n", "");
    assert!(error.starts_with("line 1: expected JSON, found "), "{error}");
    let target = demo("demo-target");
    let error = refused(&text, &format!("-m {target}"));
    assert!(error.starts_with("line 1: model: expected \"/") && error.ends_with(", found null"), "{error}");

    let at = |name: &str| folder.path().join(name).display().to_string();
    let error = run(&line(&prompts, &at("no/such"), "")).error(1);
    assert!(error.starts_with(&format!("{}: cannot be written: ", at("no/such"))), "{error}");
    let error = run(&line(&prompts, "/dev/null", "")).error(1);
    assert_eq!(error, "/dev/null: expected a regular file, which is read again, found another kind");
    let error = run(&line(&prompts, "-", "")).error(2);
    assert_eq!(error, "--resume: expected a file (./- for one of this name), found -");
    let locked = std::fs::File::open(&path).expect("it is there");
    locked.lock().expect("it can be locked");
    let error = run(&line(&prompts, &path, "")).error(1);
    assert_eq!(error, format!("{path}: expected a file that nobody else writes, found another process that does"));
    let error = run(&["generate", "x", "--resume", &path]).error(2);
    assert!(error.contains("--json"), "{error}");
    // A model without a tokenizer is enough.
    let model = golden("llama");
    run(&line(&prompts, &at("others.jsonl"), &format!("-m {model}"))).ok();
    assert_eq!(answers(&at("others.jsonl")).len(), 12);
}
