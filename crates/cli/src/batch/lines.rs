//! The lines of a batch file, each with an id and a request.
//!
//! A line is a request in OpenAI's form, or a prompt as in the files of `generate --prompts`, an object or a text. All
//! ids are read before anything is generated, a request only when it is to run.

use std::collections::HashMap;
use std::path::Path;

use foretoken::Prompt;
use foretoken_console::failure::Failure;
use foretoken_console::prompts::{as_user_message, ending, listed, text_of};
use foretoken_server::batch::BatchRequest;
use serde_json::Value;

/// Fields of a prompt's object that say nothing about its answer: what files of prompts have beside the prompt, and
/// `model`, which in data sets is one that answered before.
const OF_DATA_SETS: [&str; 9] =
    ["custom_id", "model", "text", "question", "turns", "category", "kind", "id", "question_id"];

/// A line that is not empty.
pub struct Line {
    /// Its number in the file, from 1.
    pub number: usize,
    /// The id of its answer: its own `custom_id`, or one made of its number.
    pub custom_id: String,
    text: String,
}

/// A batch file.
pub struct BatchFile {
    /// The file's name in messages.
    pub place: String,
    /// The lines in their order; no two have the same id.
    pub lines: Vec<Line>,
    /// How lines are read.
    pub format: LineFormat,
}

/// How the lines of a file are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineFormat {
    /// Whether lines are objects, and not texts.
    is_objects: bool,
    /// Whether texts are a user's messages.
    is_chat: bool,
}

impl BatchFile {
    /// Reads a file; `-` is standard input. Its lines are objects if its name says so or it begins with a brace.
    /// `is_chat`: whether texts are a user's messages.
    ///
    /// # Errors
    /// The file cannot be read or has no lines, or two lines have the same id.
    pub fn read(path: &Path, is_chat: bool) -> Result<Self, Failure> {
        let (place, text) = text_of(path)?;
        let ending = ending(path).unwrap_or_default();
        let is_objects = ["jsonl", "ndjson"].contains(&ending) || text.trim_start().starts_with('{');
        if ending == "json" && !is_objects {
            let expected = "expected an object on each line, found another document";
            return Err(Failure::Other(format!("{place}: {expected}")));
        }
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let line = |(index, text): (usize, &str)| {
            let own_id = if is_objects { custom_id(text) } else { None };
            let custom_id = own_id.unwrap_or_else(|| format!("line-{}", index + 1));
            Line { number: index + 1, custom_id, text: text.to_string() }
        };
        let lines: Vec<Line> = lines.map(line).collect();
        if lines.is_empty() {
            return Err(Failure::Other(format!("{place}: expected requests or prompts, found none")));
        }
        if let Some((first, Line { number, custom_id, .. })) = duplicate(&lines) {
            let found = format!("found {custom_id:?} in lines {first} and {number}");
            return Err(Failure::Other(format!("{place}: custom_id: expected another in each line, {found}")));
        }
        Ok(Self { place, lines, format: LineFormat { is_objects, is_chat } })
    }
}

/// The first line that has the id of an earlier one, and the number of that one.
fn duplicate(lines: &[Line]) -> Option<(usize, &Line)> {
    let mut seen = HashMap::new();
    lines.iter().find_map(|line| seen.insert(&line.custom_id, line.number).map(|first| (first, line)))
}

/// The `custom_id` of a line of JSON, if it has one.
fn custom_id(line: &str) -> Option<String> {
    serde_json::from_str::<Value>(line).ok()?.get("custom_id")?.as_str().map(str::to_string)
}

impl Line {
    /// The request of a line. `place`: the line, for messages.
    ///
    /// # Errors
    /// It is no request: why, beginning with `place`.
    pub fn request(&self, format: LineFormat, place: &str) -> Result<BatchRequest, String> {
        let wrong = |why: String| format!("{place}: {why}");
        let (mut prompt, object) = match format.is_objects {
            false => (Prompt::Text(self.text.clone()), None),
            true => {
                let object: Value = serde_json::from_str(&self.text)
                    .map_err(|error| wrong(format!("expected JSON, found: {error}")))?;
                let is_request = ["method", "url", "body"].iter().any(|field| object.get(field).is_some());
                match object.get("custom_id") {
                    Some(Value::String(_)) => {}
                    None if !is_request => {}
                    found => {
                        let found = found.map_or("none".to_string(), Value::to_string);
                        return Err(wrong(format!("custom_id: expected a string, found {found}")));
                    }
                }
                if is_request {
                    return BatchRequest::of_line(&self.text).map_err(wrong);
                }
                let listed = listed::of_object(place, &object);
                let prompt = listed.map_err(|failure| failure.message().unwrap_or_default())?.prompt;
                (prompt, Some(&self.text))
            }
        };
        if format.is_chat {
            as_user_message(&mut prompt);
        }
        let request = BatchRequest::of_prompt(&prompt);
        match object {
            Some(object) => request.with_fields_of(object, &OF_DATA_SETS).map_err(wrong),
            None => Ok(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTS: LineFormat = LineFormat { is_objects: true, is_chat: false };

    fn read(name: &str, text: &str) -> Result<BatchFile, String> {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file can be written");
        BatchFile::read(&path, false).map_err(|failure| failure.message().unwrap_or_default())
    }

    #[test]
    fn ids_are_the_lines_own_or_their_numbers() {
        let ids = |name: &str, text: &str| -> Vec<String> {
            let file = read(name, text).unwrap_or_else(|why| panic!("{why}"));
            file.lines.into_iter().map(|line| line.custom_id).collect()
        };
        assert_eq!(ids("a.txt", "once\n\nupon\r\n"), ["line-1", "line-3"]);
        assert_eq!(ids("b.jsonl", "{\"custom_id\": \"x\"}\nno\n{\"custom_id\": 5}\n"), ["x", "line-2", "line-3"]);
        assert_eq!(ids("c", "{\"custom_id\": \"x\"}"), ["x"]);
        assert_eq!(ids("d.txt", "a {\"custom_id\": \"x\"}"), ["line-1"]);
        assert_eq!(ids("e.json", "{\"custom_id\": \"x\"}"), ["x"]);
        assert!(read("f.json", "[1]").is_err_and(|why| why.ends_with("found another document")));
        let twice = "{\"custom_id\": \"line-3\"}\n\nno\n";
        let expected = "custom_id: expected another in each line, found \"line-3\" in lines 1 and 3";
        assert!(read("h.jsonl", twice).is_err_and(|why| why.ends_with(expected)));
        assert!(read("g.jsonl", " \n").is_err_and(|why| why.ends_with("expected requests or prompts, found none")));
    }

    #[test]
    fn requests_and_prompts_are_told_apart() {
        let request = |text: &str| {
            let line = Line { number: 3, custom_id: String::new(), text: text.to_string() };
            line.request(OBJECTS, "x: line 3")
        };
        let of = |text: &str| Ok(BatchRequest::of_prompt(&Prompt::Text(text.to_string())));
        assert_eq!(request(r#"{"prompt": "a"}"#), of("a"));
        assert_eq!(request(r#"{"custom_id": "y", "question": "a", "category": "b", "model": "c"}"#), of("a"));
        let body = r#"{"prompt":"a","max_tokens":3,"stop":["\""]}"#;
        let line = format!(r#"{{"method": "POST", "url": "/v1/completions", "body": {body}}}"#);
        let expected = BatchRequest::of_line(&line).expect("it is a request");
        assert_eq!(request(body), Ok(expected), "its fields hold as in a body");
        let whole = r#"{"custom_id": "y", "method": "POST", "url": "/v1/completions", "body": {"prompt":"a"}}"#;
        assert_eq!(request(whole), of("a"));
        assert_ne!(request(&whole.replace("/v1/completions", "/v1/chat/completions")), of("a"));
        let wrong = |from: &str, to: &str| request(&whole.replace(from, to)).expect_err("it is no request");
        for (from, to, expected) in [
            ("\"custom_id\": \"y\", ", "", "custom_id: expected a string, found none"),
            ("\"y\"", "7", "custom_id: expected a string, found 7"),
            ("POST", "GET", "method: expected \"POST\", found \"GET\""),
            ("\"method\": \"POST\", ", "", "method: expected a string, found none"),
            (", \"body\": {\"prompt\":\"a\"}", "", "body: expected an object, found none"),
            (
                "/v1/completions",
                "/v1/embeddings",
                "url: expected /v1/chat/completions or /v1/completions, found \"/v1/embeddings\"",
            ),
        ] {
            assert_eq!(wrong(from, to), format!("x: line 3: {expected}"));
        }
        let twice = request(r#"{"prompt": "a", "seed": 1, "seed": 2}"#);
        assert_eq!(twice, Err("x: line 3: seed: expected once, found twice".to_string()));
        assert_eq!(request("5"), Err("x: line 3: prompt: expected a text or token ids, found none".to_string()));
        assert!(request("{").is_err_and(|why| why.starts_with("x: line 3: expected JSON, found: ")));
    }
}
