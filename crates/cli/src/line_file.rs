//! A file of JSON, one object a line, that a run appends to and a later run continues.
//!
//! A line is written in one call when it is complete, so however a run ended, the file has whole lines and at worst
//! half a line at its end, which the next run removes. A lock keeps other processes from writing at the same time. The
//! meaning of lines is up to the caller.

use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use foretoken_console::failure::Failure;
use foretoken_console::output::refuse_stream;
use serde_json::Value;

/// The file, open for appending.
pub struct LineFile {
    path: PathBuf,
    file: File,
}

impl LineFile {
    /// Opens or creates the file that an option names.
    ///
    /// # Errors
    /// The file cannot be written, is not a regular file, or another process writes it.
    pub fn open(option: &str, path: &Path) -> Result<Self, Failure> {
        refuse_stream(option, path)?;
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
            _ => Ok(Self { path: path.to_owned(), file }),
        }
    }

    /// Calls `take` with the index of each line, from 0, and its object; `take` returns what is wrong with a line. Then
    /// removes an incomplete last line; a file with a wrong line is not changed.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not JSON or wrong.
    pub fn read(&self, mut take: impl FnMut(usize, &Value) -> Result<(), String>) -> Result<(), Failure> {
        let (mut lines, mut line, mut end) = (BufReader::new(&self.file), Vec::new(), 0);
        for index in 0.. {
            line.clear();
            let len = lines.read_until(b'\n', &mut line).map_err(|error| Failure::file(&self.path, &error))?;
            if !line.ends_with(b"\n") {
                if len > 0 {
                    self.file.set_len(end).map_err(|error| unwritable(&self.path, &error))?;
                }
                break;
            }
            let object: Result<Value, String> =
                serde_json::from_slice(&line).map_err(|error| format!("expected JSON, found {error}"));
            if let Err(why) = object.and_then(|object| take(index, &object)) {
                return Err(Failure::Other(format!("{}: line {}: {why}", self.path.display(), index + 1)));
            }
            end += len as u64;
        }
        Ok(())
    }

    /// Appends a line, which has its line end.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, line: &str) -> Result<(), Failure> {
        self.file.write_all(line.as_bytes()).map_err(|error| unwritable(&self.path, &error))
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::Other(format!("{}: cannot be written: {error}", path.display()))
}
