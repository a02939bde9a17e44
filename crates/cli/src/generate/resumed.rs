//! The file of `--resume`: a JSON line per answer, in the order of the prompts, which a later run continues.
//!
//! Lines are written in order when their answers are complete, so the file has the answers to the first prompts. The
//! next run compares the lines with its prompts, sources and model and requests what is missing. It does not compare
//! other settings. A beam search may find fewer hypotheses than were asked for, so its lines are told apart by their
//! `index`.

use std::path::Path;

use foretoken::{Answer, FinishReason, Record, Request};
use foretoken_console::failure::Failure;
use serde_json::{Value, json};

use crate::line_file::LineFile;

/// What the file has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answered {
    /// Lines.
    pub lines: usize,
    /// Requests that are not made again.
    pub requests: usize,
    /// Lines of the next request, which is a beam search whose hypotheses may not all have been written.
    pub hypotheses: usize,
    /// The number of the next request, if answers have numbers.
    pub next_request: Option<u64>,
}

/// The file, open for appending.
pub struct ResumedFile {
    file: LineFile,
    /// Whether an answer was left out; no later one may be written then.
    is_closed: bool,
}

impl ResumedFile {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// As [`LineFile::open`].
    pub fn open(path: &Path) -> Result<Self, Failure> {
        Ok(Self { file: LineFile::open("--resume", path)?, is_closed: false })
    }

    /// What the file has of the requests' answers, of which there are `n_best` to a prompt.
    ///
    /// # Errors
    /// The file cannot be read, or a line is no answer, or one to another prompt or of another model.
    pub fn answered(&self, requests: &[Request], n_best: usize, record: &Record) -> Result<Answered, Failure> {
        let is_search = requests.first().is_some_and(|request| request.beams.is_some());
        let per_prompt = if is_search { 1 } else { n_best };
        // The prompt and the answer of the next line.
        let (mut prompt, mut index, mut lines, mut next_request) = (0, 0, 0, None);
        self.file.read(|line, object| {
            if is_search && index > 0 && object.get("index") == Some(&json!(0)) {
                (prompt, index) = (prompt + 1, 0);
            }
            let Some(request) = requests.get(prompt * per_prompt) else {
                let most = requests.len() / per_prompt * n_best;
                return Err(format!("expected the {most} answers to the prompts, found more lines"));
            };
            if object.get("prompt_ids") != Some(&json!(request.prompt)) {
                let number = prompt + 1;
                return Err(format!("prompt_ids: expected those of prompt {number}, found others or none"));
            }
            let source = request.source.as_ref().map(|source| json!(source[..]));
            if object.get("source_ids") != source.as_ref() {
                let expected = format!("expected those that prompt {} is written for", prompt + 1);
                return Err(format!("source_ids: {expected}, found others or none"));
            }
            let fields = [
                ("index", object.get("index"), json!(index)),
                ("model", object.pointer("/record/settings/model/path"), json!(record.settings.model.path)),
            ];
            for (field, found, expected) in fields {
                if found != Some(&expected) {
                    let found = found.map_or("none".to_string(), Value::to_string);
                    return Err(format!("{field}: expected {expected}, found {found}"));
                }
            }
            // A request that was refused has no number.
            next_request = object.get("request").and_then(Value::as_u64).map(|number| number + 1).or(next_request);
            lines = line + 1;
            (prompt, index) = if index + 1 == n_best { (prompt + 1, 0) } else { (prompt, index + 1) };
            Ok(())
        })?;
        if !is_search {
            return Ok(Answered { lines, requests: lines, hypotheses: 0, next_request });
        }
        // The search of these hypotheses is made again, under its number.
        let next_request = next_request.map(|number: u64| if index > 0 { number - 1 } else { number });
        Ok(Answered { lines, requests: prompt, hypotheses: index, next_request })
    }

    /// Writes the line of the next answer. A cancelled one must be requested again, so it and all later ones are left
    /// out.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, answer: &Answer, line: &str) -> Result<(), Failure> {
        self.is_closed |= answer.reason == Some(FinishReason::Cancelled);
        if self.is_closed { Ok(()) } else { self.file.append(line) }
    }
}
