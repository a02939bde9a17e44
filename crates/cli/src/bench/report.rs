//! What `bench generate` has measured, as a folder to be read and kept: a page, its charts, and a record.
//!
//! The page needs no network: its charts are inside. Each chart is a file of its own too, as SVG and as pixels. The
//! record has the rows that `--json` prints, with all kinds of prompts, beside machine, command and date. The folder is
//! made before anything is measured, so that what cannot be written is found then. Left out: how charts are drawn
//! ([`chart`]).

mod chart;
mod page;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::failure::Failure;
pub use chart::{Chart, Line, Mark};

/// The folder of a report, which is there and can be written.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes the folder, or takes the one that is there, if `force` says so.
    ///
    /// # Errors
    /// It is there and not to be written over, or cannot be written.
    pub fn begin(path: &Path, force: bool) -> Result<Self, Failure> {
        if path.exists() && !force {
            let message = "is there already; --force writes over the report in it";
            return Err(Failure::Other(format!("{}: {message}", path.display())));
        }
        let folder = Self(path.to_owned());
        fs::create_dir_all(path).map_err(|error| folder.unwritable("", &error))?;
        // The record comes last; an empty one until then shows that the folder takes files.
        folder.write("record.json", b"")?;
        Ok(folder)
    }

    /// Writes charts, page and record. `facts`: what the record has besides rows; `rows`: as `--json` prints them.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn finish(&self, facts: Value, rows: &[Value], charts: &[Result<Chart, String>]) -> Result<(), Failure> {
        for chart in charts.iter().flatten() {
            self.write(&format!("{}.svg", chart.name), chart.svg(chart::WIDE)?.as_bytes())?;
            self.write(&format!("{}.png", chart.name), &chart.png(chart::WIDE)?)?;
        }
        let mut record = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "command": std::env::args().collect::<Vec<_>>(),
            "seconds_since_1970": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        });
        if let (Value::Object(record), Value::Object(facts)) = (&mut record, facts) {
            record.extend(facts);
            record.insert("rows".to_string(), rows.into());
        }
        self.write("index.html", page::html(&record, rows, charts)?.as_bytes())?;
        self.write("record.json", format!("{record:#}\n").as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        fs::write(self.0.join(name), bytes).map_err(|error| self.unwritable(name, &error))
    }

    fn unwritable(&self, name: &str, error: &std::io::Error) -> Failure {
        Failure::Other(format!("{}: cannot be written: {error}", self.0.join(name).display()))
    }
}
