//! A file of answers that a run which was stopped goes on with: a line of JSON each, in the order of the prompts.
//!
//! Lines are written when their answers are complete, so what a run leaves behind, however it ended, are the answers to
//! the first prompts and, at worst, half a line, which is taken away. The next run compares the lines with its prompts
//! and model and asks for what is missing. Left out: whether its other settings are the same.

use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use foretoken::{Answer, FinishReason, Record, Request};
use foretoken_console::failure::Failure;
use foretoken_console::output::refuse_stream;
use serde_json::{Value, json};

/// How many answers there are, and the number of the next request, if any has one.
type Answered = (usize, Option<u64>);

/// The file, open for writing behind what is in it.
pub struct ResumedFile {
    path: PathBuf,
    file: File,
    /// Whether an answer was left out, behind which no other may be written.
    is_over: bool,
}

impl ResumedFile {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// It cannot be written, is no regular file, or another process writes it.
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
            _ => Ok(Self { path: path.to_owned(), file, is_over: false }),
        }
    }

    /// How many of the requests' answers are there, and the number of the request behind them, if they say it.
    ///
    /// # Errors
    /// It cannot be read, or a line is not what this run would write there: of another prompt or model, or no answer.
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

    /// Writes the next answer. One that was cancelled is to be asked for again, so it and all behind it are left out.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, answer: &Answer, line: &str) -> Result<(), Failure> {
        self.is_over |= answer.reason == Some(FinishReason::Cancelled);
        if self.is_over {
            return Ok(());
        }
        // In one call, so that a process that ends meanwhile leaves a beginning of it at most.
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|error| unwritable(&self.path, &error))
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::Other(format!("{}: cannot be written: {error}", path.display()))
}
