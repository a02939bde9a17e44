//! `batch`: files of requests, and the files of their answers, which a later run continues.
//!
//! That bodies are answered as over HTTP is tested in the crate `server`; kills at random moments are in `faults`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{file, run, run_with, words};

/// Twelve lines in all forms, and the path of a file for their answers.
fn twelve_lines() -> (tempfile::TempDir, String, String) {
    let line = |i: usize| match i % 3 {
        0 => format!("{{\"prompt\": [{}, 5, 17, 3]}}\n", i + 2),
        1 => {
            let messages = format!("[{{\"role\": \"user\", \"content\": \"hi {i}\"}}]");
            format!("{{\"custom_id\": \"chat {i}\", \"messages\": {messages}}}\n")
        }
        _ => {
            let body = format!("{{\"prompt\": \"the {i} dogs\", \"n\": 2}}");
            request(&format!("text {i}"), "/v1/completions", &body)
        }
    };
    let (folder, requests) = file("requests.jsonl", &(0..12).map(line).collect::<String>());
    let answers = folder.path().join("answers.jsonl").display().to_string();
    (folder, requests, answers)
}

/// A line in OpenAI's form.
fn request(id: &str, url: &str, body: &str) -> String {
    format!("{{\"custom_id\": \"{id}\", \"method\": \"POST\", \"url\": \"{url}\", \"body\": {body}}}\n")
}

fn line<'a>(requests: &'a str, answers: &'a str, more: &'a str) -> Vec<&'a str> {
    let mut line = words("batch -n 6 -s 1 -c 256 --parallel 3 --spec-type lookup");
    line.extend([requests, "--output", answers]);
    line.extend(words(more));
    line
}

/// The answers of a file by their ids, of which each occurs once.
fn answers(path: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for line in std::fs::read_to_string(path).expect("the file is there").lines() {
        let answer: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let id = answer["custom_id"].as_str().expect("an id").to_string();
        assert!(all.insert(id, answer).is_none(), "twice: {line}");
    }
    all
}

/// The choices of each answer, which do not depend on time.
fn choices(path: &str) -> BTreeMap<String, Value> {
    let choices = |answer: &Value| answer["response"]["body"]["choices"].clone();
    answers(path).iter().map(|(id, answer)| (id.clone(), choices(answer))).collect()
}

#[test]
fn answers_equal_those_of_generate() {
    let text = r#"{"prompt": "once upon a time"}
{"prompt": [2, 5, 17, 3]}
{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "no"}]}
"#;
    let body = "{\"prompt\": \"once upon a time\", \"max_tokens\": 12, \"seed\": 7, \"model\": \"gpt-4o-mini\"}";
    let bare = body.replace('{', "{\"custom_id\": \"bare\", \"category\": \"story\", ");
    let whole = format!("{text}{}{bare}", request("own", "/completions", body));
    let (folder, prompts) = file("prompts.jsonl", text);
    let requests = folder.path().join("requests.jsonl").display().to_string();
    std::fs::write(&requests, whole).expect("a file can be written");
    let path = folder.path().join("answers.jsonl").display().to_string();
    let ended = run(&["batch", &requests, "-o", &path, "-n", "16", "-s", "3", "--alias", "*"]);
    assert_eq!(ended.ok(), "");
    let found = choices(&path);
    let generated = |line: &[&str]| -> Vec<String> {
        let out = run(line).ok();
        let text = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["text"].as_str().map(str::to_string);
        out.lines().map(|line| text(line).expect("a text")).collect()
    };
    let expected = generated(&["generate", "--prompts", &prompts, "-n", "16", "-s", "3", "--json"]);
    for (id, expected) in ["line-1", "line-2", "line-3"].into_iter().zip(expected) {
        let choice = &found[id][0];
        let text = choice.get("text").unwrap_or(&choice["message"]["content"]);
        assert_eq!(text.as_str(), Some(expected.as_str()), "{id}");
    }
    let expected = generated(&["generate", "once upon a time", "-n", "12", "-s", "7", "--json"]);
    for id in ["own", "bare"] {
        assert_eq!(found[id][0]["text"].as_str(), Some(expected[0].as_str()), "{id}");
    }
    let answer = &answers(&path)["own"]["response"];
    assert_eq!((&answer["status_code"], &answer["body"]["model"]), (&200.into(), &"demo-target".into()));
}

#[test]
fn lines_of_text_are_prompts_or_messages() {
    let text = "once upon\n\na robe takes\n";
    let (folder, prompts) = file("prompts.txt", text);
    let path = folder.path().join("answers.jsonl").display().to_string();
    let objects = |more: &str| -> Vec<(String, String)> {
        run(&line(&prompts, &path, more)).ok();
        let object = |(id, answer): (String, Value)| {
            (id, answer["response"]["body"]["object"].as_str().expect("an object").to_string())
        };
        let objects = answers(&path).into_iter().map(object).collect();
        std::fs::remove_file(&path).expect("it is there");
        objects
    };
    let expected = |object: &str| ["line-1", "line-3"].map(|id| (id.to_string(), object.to_string()));
    assert_eq!(objects(""), expected("text_completion"));
    assert_eq!(objects("--chat"), expected("chat.completion"));
    run_with(&line("-", &path, ""), &[], request("x", "/v1/completions", "{\"prompt\": \"once\"}")).ok();
    assert_eq!(answers(&path).into_keys().collect::<Vec<_>>(), ["x"]);
}

#[test]
fn a_partial_file_is_completed_to_the_same_answers() {
    let (_folder, requests, path) = twelve_lines();
    let first = run(&line(&requests, &path, ""));
    assert_eq!(first.ok(), "");
    let complete = choices(&path);
    assert_eq!(complete.len(), 12);
    assert_eq!(complete["text 2"].as_array().map(Vec::len), Some(2));
    let text = std::fs::read_to_string(&path).expect("it is there");
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
    // Nothing, some lines, some lines and half of the next, all but the last line break, and all.
    for end in [0, ends[0], ends[4], ends[4] + 100, text.len() - 1, text.len()] {
        std::fs::write(&path, &text[..end]).expect("it can be written");
        let ended = run(&line(&requests, &path, "--parallel 5"));
        let found = ends.iter().filter(|line| **line <= end).count();
        let note = format!("note: --output: {found} of 12 answers are there");
        assert_eq!(ended.err.contains(&note), found > 0, "{}", ended.err);
        ended.ok();
        assert_eq!(choices(&path), complete, "from {end} bytes of {}", text.len());
    }
}

#[test]
fn lines_that_cannot_be_answered_have_errors_and_the_others_go_on() {
    let body = "{\"prompt\": \"once\", \"max_tokens\": 2, \"unheard_of\": 1}";
    let url = "/v1/completions";
    let lines = [
        request("good", url, body),
        "nonsense\n".to_string(),
        "{\"custom_id\": \"title\", \"title\": 1}\n".to_string(),
        request("embeddings", "/v1/embeddings", body),
        request("hot", url, "{\"prompt\": \"once\", \"temperature\": -1}"),
        request("stream", url, "{\"prompt\": \"once\", \"stream\": true}"),
        request("unknown", url, "{\"prompt\": [99999]}"),
        request("other", url, "{\"prompt\": \"once\", \"model\": \"gpt-4o-mini\"}"),
        "{\"prompt\": \"twice\"}\n".to_string(),
    ];
    let (folder, requests) = file("requests.jsonl", &lines.concat());
    let path = folder.path().join("answers.jsonl").display().to_string();
    let ended = run(&line(&requests, &path, ""));
    assert_eq!(ended.code, 1, "{}", ended.err);
    let found = answers(&path);
    assert_eq!(found.len(), 9);
    for (id, number, expected) in [
        ("line-2", 2, "expected JSON, found: "),
        ("title", 3, "prompt: expected a text or token ids, found none"),
        ("embeddings", 4, "url: expected /v1/chat/completions or /v1/completions, found \"/v1/embeddings\""),
    ] {
        let answer = &found[id];
        assert_eq!(answer["response"], Value::Null, "{answer}");
        let expected = format!("{requests}: line {number}: {expected}");
        assert!(answer["error"]["message"].as_str().is_some_and(|message| message.starts_with(&expected)), "{answer}");
        assert!(ended.err.contains(&format!("error: {expected}")), "{}", ended.err);
    }
    for (id, number, status, expected) in [
        ("hot", 5, 400, "temperature: expected "),
        ("stream", 6, 400, "stream: expected false in a batch file, found true"),
        ("unknown", 7, 400, "prompt: token 0: expected a number below "),
        ("other", 8, 404, "model: expected demo-target, found gpt-4o-mini"),
    ] {
        let response = &found[id]["response"];
        assert_eq!((&response["status_code"], &found[id]["error"]), (&status.into(), &Value::Null), "{response}");
        let message = response["body"]["error"]["message"].as_str();
        assert!(message.is_some_and(|message| message.starts_with(expected)), "{response}");
        assert!(ended.err.contains(&format!("error: {requests}: line {number}: {expected}")), "{}", ended.err);
    }
    for id in ["good", "line-9"] {
        assert_eq!(found[id]["response"]["status_code"], 200, "{}", found[id]);
    }
    assert!(ended.err.contains("note: unheard_of: an unknown field is ignored"), "{}", ended.err);
    let expected = "expected an answer to every line, found errors for 7 of 9 lines";
    assert!(ended.err.ends_with(&format!("error: {requests}: {expected}\n")), "{}", ended.err);
    // Lines that were answered by errors are not run again.
    let again = run(&line(&requests, &path, ""));
    assert_eq!((again.code, again.err.as_str()), (0, "note: --output: 9 of 9 answers are there\n"));
}

#[test]
fn files_that_cannot_be_meant_are_refused_and_kept() {
    let (folder, requests, path) = twelve_lines();
    let twice = folder.path().join("twice.jsonl").display().to_string();
    let one = |id: &str| request(id, "/v1/completions", "{\"prompt\": \"once\"}");
    std::fs::write(&twice, [one("a"), one("b"), "\n".to_string(), one("a")].concat()).expect("it can be written");
    let error = run(&line(&twice, &path, "")).error(1);
    assert_eq!(error, format!("{twice}: custom_id: expected another in each line, found \"a\" in lines 1 and 4"));
    assert!(!std::path::Path::new(&path).exists(), "nothing was begun");

    run(&line(&requests, &path, "")).ok();
    let text = std::fs::read_to_string(&path).expect("it is there");
    let refused = |text: &str, requests: &str| {
        std::fs::write(&path, text).expect("it can be written");
        let error = run(&line(requests, &path, "")).error(1);
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), text);
        error.strip_prefix(&format!("{path}: line ")).map_or(error.clone(), str::to_string)
    };
    let error = refused(&text.replacen("\"chat 4\"", "\"chat 5\"", 1), &requests);
    let expected = format!("custom_id: expected that of a line of {requests}, found \"chat 5\"");
    assert!(error.ends_with(&expected), "{error}");
    assert!(refused("nonsense\n", &requests).starts_with("1: expected JSON, found "));
    // The requests are no answers.
    let own = std::fs::read_to_string(&requests).expect("it is there");
    assert_eq!(refused(&own, &path), "1: response: expected that of an answer, found none");

    std::fs::write(&path, &text).expect("it can be written");
    let locked = std::fs::File::open(&path).expect("it is there");
    locked.lock().expect("it can be locked");
    let error = run(&line(&requests, &path, "")).error(1);
    assert_eq!(error, format!("{path}: expected a file that nobody else writes, found another process that does"));
    let error = run(&line(&requests, "-", "")).error(2);
    assert_eq!(error, "--output: expected a file (./- for one of this name), found -");
    let (_folder, empty) = file("empty.jsonl", "\n");
    let expected = format!("{empty}: expected requests or prompts, found none");
    assert_eq!(run(&line(&empty, &path, "")).error(1), expected);
    let (_folder, document) = file("prompts.json", "[{\"prompt\": \"once\"}]");
    let expected = format!("{document}: expected an object on each line, found another document");
    assert_eq!(run(&line(&document, &path, "")).error(1), expected);
}

#[cfg(unix)]
mod stopped {
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;
    use crate::program;

    const LONG: &str = "-n 150 --ignore-eos";

    /// How many lines a file has.
    fn lines(path: &str) -> usize {
        std::fs::read_to_string(path).map_or(0, |text| text.matches('\n').count())
    }

    /// Starts a run, and waits until it has written another line or has ended.
    fn start(folder: &tempfile::TempDir, requests: &str, path: &str) -> Child {
        let before = lines(path);
        let mut command = program(folder.path());
        command.args(line(requests, path, LONG));
        let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
        for _ in 0..3000 {
            if lines(path) > before || child.try_wait().expect("it can be waited for").is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    }

    /// The file of layers that are read for every pass is cut while a run reads it: what it was answering then, and the
    /// lines after that, are left to the next run.
    #[test]
    fn lines_that_could_not_be_computed_are_tried_again() {
        let (folder, requests, path) = twelve_lines();
        let options = "-n 16 --ignore-eos --parallel 1 --offload 9MB";
        let start = || {
            let mut command = program(folder.path());
            command.args(line(&requests, &path, options)).stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let whole = start().wait_with_output().expect("it ends");
        let all = lines(&path);
        assert_eq!(whole.status.code(), Some(0), "{}", String::from_utf8_lossy(&whole.stderr));
        let complete = choices(&path);
        std::fs::remove_file(&path).expect("it can be removed");
        let child = start();
        while lines(&path) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        for file in std::fs::read_dir(folder.path().join("foretoken/layers")).expect("it is there").flatten() {
            std::fs::File::options().write(true).open(file.path()).and_then(|file| file.set_len(5000)).expect("cut");
        }
        let failed = child.wait_with_output().expect("it ends");
        let (said, written) = (String::from_utf8_lossy(&failed.stderr), lines(&path));
        assert!(failed.status.code() == Some(1) && written < all, "{said}");
        let missing = all - written;
        assert!(said.contains(&format!("found none for {missing} and errors for 0 of {all} lines")), "{said}");
        assert!(choices(&path).iter().all(|(id, choices)| complete[id] == *choices));
        assert!(start().wait().expect("it ends").success());
        assert_eq!(choices(&path), complete);
    }

    #[test]
    fn killed_and_interrupted_runs_lose_no_line_and_answer_none_twice() {
        let (folder, requests, path) = twelve_lines();
        run(&line(&requests, &path, LONG)).ok();
        let complete = choices(&path);
        std::fs::remove_file(&path).expect("it can be removed");
        let mut whole = String::new();
        for round in 0..3 {
            let mut child = start(&folder, &requests, &path);
            if round == 1 && child.try_wait().expect("it can be waited for").is_none() {
                let id = child.id().to_string();
                assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill runs").success());
                let code = child.wait().expect("it ends").code();
                // A fast machine has all answers before the signal.
                assert!(code == Some(130) || code == Some(0) && lines(&path) == 12, "{code:?}");
                assert_eq!(choices(&path).len(), lines(&path), "all lines are whole");
            } else {
                let _ = child.kill();
                child.wait().expect("it ends");
            }
            let text = std::fs::read_to_string(&path).expect("it was begun");
            assert!(text.starts_with(&whole), "earlier lines are kept");
            whole = text[..text.rfind('\n').map_or(0, |at| at + 1)].to_string();
        }
        run(&line(&requests, &path, LONG)).ok();
        assert_eq!(choices(&path), complete);
    }
}
