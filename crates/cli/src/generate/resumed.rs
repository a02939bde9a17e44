//! The file of `--resume`: a JSON line per answer, in the order of the prompts, which a later run continues.
//!
//! Lines are written in order when their answers are complete, so however a run ended, the file has the answers to the
//! first prompts and at worst half a line, which is removed. The next run compares the lines with its prompts and model
//! and requests what is missing. It does not compare other settings.

use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use foretoken::{Answer, FinishReason, Record, Request};
use foretoken_console::failure::Failure;
use foretoken_console::output::refuse_stream;
use serde_json::{Value, json};

/// The count of answers, and the number of the next request, if any answer has one.
type Answered = (usize, Option<u64>);

/// The file, open for appending.
pub struct ResumedFile {
    path: PathBuf,
    file: File,
    /// Whether an answer was left out; no later one may be written then.
    is_closed: bool,
}

impl ResumedFile {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// The file cannot be written, is not a regular file, or another process writes it.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        refuse_stream("--resume", path)?;
        let unwritable = |error: io::Error| unwritable(path, &error);
        let file = File::options().read(true).append(true).create(true).open(path).map_err(unwritable)?;
        let wrong = |expected: &str, found: &str| {
            Err(Failure::Other(format!("{}: expected {expected}, found {found}", path.display())))
        };
        if !file.metadata().map_err(unwritable)?.is_file() {
            return wrong("a regular file, which is read again", "another kind");
        }
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => wrong("a file that nobody else writes", "another process that does"),
            // Not all file systems have locks.
            _ => Ok(Self { path: path.to_owned(), file, is_closed: false }),
        }
    }

    /// The count of the requests' answers in the file, and the number of the next request, if the answers have numbers.
    ///
    /// # Errors
    /// The file cannot be read, or a line is no answer, or one to another prompt or of another model.
    pub fn answered(&self, requests: &[Request], n_best: usize, record: &Record) -> Result<Answered, Failure> {
        let (mut lines, mut line) = (BufReader::new(&self.file), Vec::new());
        let (mut answered, mut next_request, mut end) = (0, None, 0);
        loop {
            line.clear();
            let len = lines.read_until(b'\n', &mut line).map_err(|error| Failure::file(&self.path, &error))?;
            if !line.ends_with(b"\n") {
                if len > 0 {
                    self.file.set_len(end).map_err(|error| unwritable(&self.path, &error))?;
                }
                return Ok((answered, next_request));
            }
            let place = format!("{}: line {}", self.path.display(), answered + 1);
            let wrong = |field: &str, expected: String, found: &str| {
                Err(Failure::Other(format!("{place}: {field}expected {expected}, found {found}")))
            };
            let Some(request) = requests.get(answered) else {
                return wrong("", format!("the {} answers to the prompts", requests.len()), "more lines");
            };
            let object: Value = match serde_json::from_slice(&line) {
                Ok(object) => object,
                Err(error) => return wrong("", "JSON".to_string(), &error.to_string()),
            };
            if object.get("prompt_ids") != Some(&json!(request.prompt)) {
                let prompt = format!("those of prompt {}", answered / n_best + 1);
                return wrong("prompt_ids: ", prompt, "others or none");
            }
            let fields = [
                ("index", object.get("index"), json!(answered % n_best)),
                ("model", object.pointer("/record/settings/model/path"), json!(record.settings.model.path)),
            ];
            for (field, found, expected) in fields {
                if found != Some(&expected) {
                    let found = found.map_or("none".to_string(), Value::to_string);
                    return wrong(&format!("{field}: "), expected.to_string(), &found);
                }
            }
            // A request that was refused has no number.
            next_request = object.get("request").and_then(Value::as_u64).map(|number| number + 1).or(next_request);
            (answered, end) = (answered + 1, end + len as u64);
        }
    }

    /// Writes the next answer. A cancelled one must be requested again, so it and all later ones are left out.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, answer: &Answer, line: &str) -> Result<(), Failure> {
        self.is_closed |= answer.reason == Some(FinishReason::Cancelled);
        if self.is_closed {
            return Ok(());
        }
        // In one call, so that a process that is killed leaves at most the beginning of a line.
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|error| unwritable(&self.path, &error))
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::Other(format!("{}: cannot be written: {error}", path.display()))
}
