//! Files of prompts as in published data sets: compressed, with many kinds of fields, with unusable lines.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{file, run, words};

const BAD: &str = "{\"prompt\": \"once upon\"}\nnonsense\n{\"title\": 1}\n{\"prompt\": \"a robe takes\"}\n";

/// The JSON objects that `generate` prints for these options.
fn objects(options: &[&str]) -> Vec<Value> {
    let common = ["generate", "-n", "1", "--temp", "0", "--jsonl", "--spec-type", "none"];
    let out = run(&[&common[..], options].concat()).ok();
    out.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn unusable_lines_are_named_and_skipped_on_request() {
    let (_folder, path) = file("prompts.jsonl", BAD);
    for command in ["generate", "check", "bench generate"] {
        let line = format!("{command} --prompts {path} -n 2 --temp 0");
        let error = run(&words(&line)).error(1);
        assert!(error.starts_with(&format!("{path}: line 2: expected JSON, found: ")), "{error}");
        let repeat = if command.starts_with("bench") { "--repeat 1 --json" } else { "" };
        let done = run(&words(&format!("{line} --skip-bad {repeat}")));
        for problem in ["line 2: expected JSON", "line 3: prompt: expected a text or token ids, found none"] {
            assert!(done.err.contains(&format!("skipped: {path}: {problem}")), "{command}: {}", done.err);
        }
        assert_eq!(done.err.matches("skipped: ").count(), 2, "{command}: {}", done.err);
        done.ok();
    }
    assert_eq!(objects(&["--prompts", &path, "--skip-bad"]).len(), 2);
}

#[test]
fn a_file_without_usable_lines_is_refused_and_bad_lines_are_counted() {
    let (_folder, path) = file("prompts.jsonl", &"nonsense\n".repeat(12));
    let done = run(&words(&format!("check --prompts {path} --skip-bad")));
    let lines: Vec<&str> = done.err.lines().collect();
    assert_eq!((done.code, lines.len()), (1, 12), "{}", done.err);
    assert_eq!(lines[10], format!("{path}: 12 prompts were skipped, of which 10 are told above"));
    assert_eq!(lines[11], format!("error: {path}: expected prompts, found 12 that cannot be used"));
}

#[test]
fn too_long_prompts_name_their_line_and_are_skipped_on_request() {
    let (_folder, path) = file("prompts.txt", &format!("once upon\n\n{}\n", "once upon a time ".repeat(40)));
    let line = format!("bench generate --prompts {path} -c 64 -n 2 --temp 0 --repeat 1 --json");
    let done = run(&words(&line));
    assert!(done.err.contains(&format!("error: {path}: line 3: ")), "{}", done.err);
    let done = run(&words(&format!("{line} --skip-bad")));
    assert!(done.err.contains(&format!("skipped: {path}: line 3: ")), "{}", done.err);
    assert!(done.ok().lines().all(|line| line.contains("\"prompts\":1,")));
    let done = run(&words(&format!("{line} --skip-bad --parallel 2")));
    assert!(done.err.contains("--parallel: expected at most 1 (the number of prompts), found 2"), "{}", done.err);
}

#[test]
fn prompts_that_the_model_refuses_are_skipped_by_every_command() {
    let long = "once upon a time ".repeat(40);
    let text = format!("{{\"prompt\": \"once upon\"}}\n{{\"prompt\": \"{long}\"}}\n{{\"prompt\": [1, 99999]}}\n");
    let (_folder, path) = file("prompts.jsonl", &text);
    for (command, options) in [("generate", "--jsonl"), ("check", ""), ("bench generate", "--repeat 1 --json")] {
        let done = run(&words(&format!("{command} --prompts {path} -c 64 -n 2 --temp 0 --skip-bad {options}")));
        for problem in ["line 2: ", "line 3: prompt: token 1: expected a number below 8192"] {
            assert!(done.err.contains(&format!("skipped: {path}: {problem}")), "{command}: {}", done.err);
        }
        done.ok();
    }
    // So is a conversation that the template refuses.
    let chat_line = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
    let (_folder, path) = file("prompts.jsonl", &format!("{{\"prompt\": \"once\"}}\n{chat_line}\n"));
    let line = ["generate", "--prompts", &path, "-n", "2", "--chat-template", "{{ raise_exception('no') }}"];
    let error = run(&line).error(1);
    assert!(error.starts_with(&format!("{path}: line 2: ")), "{error}");
    let done = run(&[&line[..], &["--skip-bad"]].concat());
    assert!(done.err.contains(&format!("skipped: {path}: line 2: ")), "{}", done.err);
    done.ok();
}

#[test]
fn skip_bad_and_chat_need_a_file_of_prompts() {
    for option in ["--skip-bad", "--chat"] {
        let expected = format!("{option}: expected --prompts, which it belongs to, found none");
        assert_eq!(run(&["generate", "hello", option]).error(2), expected);
    }
}

#[test]
fn texts_become_user_messages_with_chat() {
    let text = r#"{"prompt": "hi"}
{"turns": ["hi", "and then"]}
{"messages": [{"role": "user", "content": "hi"}]}
"#;
    let (_folder, path) = file("prompts.jsonl", text);
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let with = objects(&["--prompts", &path, "--chat", "--chat-template", template]);
    let prompts: Vec<&Value> = with.iter().map(|object| &object["prompt_ids"]).collect();
    assert_eq!((prompts[0], prompts[1]), (prompts[2], prompts[2]));
    let without = objects(&["--prompts", &path, "--chat-template", template]);
    assert_ne!(without[0]["prompt_ids"], without[2]["prompt_ids"]);
}

#[test]
fn gzip_files_are_unpacked_and_truncated_ones_refused() {
    let (folder, path) = file("prompts.jsonl", "{\"prompt\": \"once upon\"}\n{\"question\": \"a robe takes\"}\n");
    let plain = objects(&["--prompts", &path]);
    let compressed = format!("{path}.gz");
    if !gzip(Path::new(&path), Path::new(&compressed)) {
        println!("skipped: no gzip");
        return;
    }
    let ids = |objects: &[Value]| objects.iter().map(|object| object["prompt_ids"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&objects(&["--prompts", &compressed])), ids(&plain));
    let bytes = std::fs::read(&compressed).expect("a compressed file");
    let half = folder.path().join("half.jsonl.gz").display().to_string();
    std::fs::write(&half, &bytes[..bytes.len() / 2]).expect("a file can be written");
    let error = run(&["check", "--prompts", &half]).error(1);
    assert!(
        error.starts_with(&format!("{half}: expected gzip's format behind its first two bytes, found: ")),
        "{error}"
    );
}

fn gzip(from: &Path, to: &Path) -> bool {
    let output = Command::new("gzip").arg("-c").arg(from).output();
    output.is_ok_and(|output| output.status.success() && std::fs::write(to, output.stdout).is_ok())
}

#[test]
fn bytes_that_are_not_utf_8_name_their_line() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("prompts.jsonl");
    std::fs::write(&path, b"{\"prompt\": \"a\"}\n{\"prompt\": \"\xff\"}\n").expect("a file can be written");
    let error = run(&["check", "--prompts", &path.display().to_string()]).error(1);
    assert!(error.ends_with("expected UTF-8, found another byte at 28 (line 2)"), "{error}");
}
