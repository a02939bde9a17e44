//! The file of `--resume`: a JSON line per answer, in the order of the prompts, which a later run continues.
//!
//! Lines are written in order when their answers are complete, so the file has the answers to the first prompts. The
//! next run compares the lines with its prompts and model and requests what is missing. It does not compare other
//! settings.

use std::path::Path;

use foretoken::{Answer, FinishReason, Record, Request};
use foretoken_console::failure::Failure;
use serde_json::{Value, json};

use crate::line_file::LineFile;

/// The count of answers, and the number of the next request, if any answer has one.
type Answered = (usize, Option<u64>);

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

    /// The count of the requests' answers in the file, and the number of the next request, if the answers have numbers.
    ///
    /// # Errors
    /// The file cannot be read, or a line is no answer, or one to another prompt or of another model.
    pub fn answered(&self, requests: &[Request], n_best: usize, record: &Record) -> Result<Answered, Failure> {
        let (mut answered, mut next_request) = (0, None);
        self.file.read(|index, object| {
            let Some(request) = requests.get(index) else {
                return Err(format!("expected the {} answers to the prompts, found more lines", requests.len()));
            };
            if object.get("prompt_ids") != Some(&json!(request.prompt)) {
                let number = index / n_best + 1;
                return Err(format!("prompt_ids: expected those of prompt {number}, found others or none"));
            }
            let fields = [
                ("index", object.get("index"), json!(index % n_best)),
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
            answered = index + 1;
            Ok(())
        })?;
        Ok((answered, next_request))
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
