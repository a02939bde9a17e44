//! The case of `batch`: a file that runs append to, so that what a run leaves is the beginning of what the next one
//! completes. However runs end, the file has one answer to each line once a run succeeds.

use std::path::Path;

use serde_json::Value;

/// The requests of a batch.
pub const REQUESTS: &str = r#"
{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", "n": 2}}
{"custom_id": "b", "messages": [{"role": "user", "content": "hi"}]}
{"prompt": "the little dog"}
{"prompt": [1, 2]}
"#;

/// The file of the answers.
pub const NAME: &str = "answers.jsonl";

/// The command that answers the requests, and the same without the file's name.
pub const LINE: &str = "batch {}/requests.jsonl -n 4 -s 1 -t 1 -c 128 --output {}/answers.jsonl";
pub const READER: &str = "batch {}/requests.jsonl -n 4 -s 1 -t 1 -c 128 --output";

/// Checks that each line has one answer, without an error.
#[track_caller]
pub fn check(path: &Path) {
    let text = std::fs::read_to_string(path).expect("the answers are there");
    let answer = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let id = |answer: Value| {
        assert_eq!(answer["response"]["status_code"], 200, "{answer}");
        answer["custom_id"].as_str().expect("an id").to_string()
    };
    let mut ids: Vec<String> = text.lines().map(answer).map(id).collect();
    ids.sort();
    assert_eq!(ids, ["a", "b", "line-4", "line-5"]);
}
