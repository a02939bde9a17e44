//! The report of `bench generate`, `bench trie` and `analyze`: a folder with a page, its charts, and a record.
//!
//! The page has its charts inside, so it needs no network. Each chart is also a file of its own, as SVG and as PNG. The
//! record has the rows that `--json` prints, for all kinds of prompts, with machine, command and date. That the folder
//! can be written is checked before anything is measured; its files are replaced when all has been measured, and a run
//! that fails leaves nothing. Charts are drawn in [`chart`].

mod chart;
mod page;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use foretoken::OutputFile;
use foretoken::output_file::Existing;
use foretoken_console::failure::Failure;
use foretoken_console::records::read_text;
use serde_json::{Value, json};

pub use chart::{Chart, Mark, Series};

/// The charts that a report can have.
const CHARTS: [&str; 9] = ["speedup", "timeline", "depth", "cost", "first", "alpha", "lengths", "procedures", "memory"];
/// The file that is written last: a folder that has it has a complete report.
const RECORD: &str = "record.json";

/// Options of the commands that can write a report.
#[derive(Args, Debug)]
pub struct ReportOptions {
    /// Also write a folder with a page of charts, a file of each chart, and a record of all rows
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Replace an existing report in the folder
    #[arg(long, requires = "report")]
    force: bool,
}

impl ReportOptions {
    /// The folder for the report, if the option is given.
    ///
    /// # Errors
    /// As [`Folder::begin`].
    pub fn begin(&self) -> Result<Option<Folder>, Failure> {
        self.report.as_ref().map(|path| Folder::begin(path, self.force)).transpose()
    }
}

/// The folder of a report.
pub struct Folder {
    path: PathBuf,
    /// Whether an existing report may be replaced.
    force: bool,
}

impl Folder {
    /// A folder for a report: it does not exist, or is empty, or has a report, if `force` allows replacing that.
    ///
    /// # Errors
    /// The folder has other files, or cannot be written.
    fn begin(path: &Path, force: bool) -> Result<Self, Failure> {
        let folder = Self { path: path.to_owned(), force };
        folder.accept()?;
        let created = folder.create()?;
        // The file and the folders are removed again, so that nothing exists until the end.
        let writable = folder.file(RECORD).map(drop);
        created.iter().for_each(|folder| _ = fs::remove_dir(folder));
        writable.map(|()| folder)
    }

    /// Checks that the folder may be used for the report.
    fn accept(&self) -> Result<(), Failure> {
        let refused = |message: &str| Err(Failure::Other(format!("{}: {message}", self.path.display())));
        if self.path.exists() && !self.path.is_dir() {
            return refused("expected a folder, found a file");
        }
        if fs::read_dir(&self.path).is_ok_and(|mut entries| entries.next().is_none()) || !self.path.exists() {
            return Ok(());
        }
        for path in names().map(|name| self.path.join(name)) {
            // A link could lead to a file that is not a report's.
            if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
                let message = format!("{}: expected a file of a report, found a link or a folder", path.display());
                return Err(Failure::Other(message));
            }
        }
        let record = read_text(&self.path.join(RECORD)).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
        match record.is_some_and(|record| record["rows"].is_array() && record["command"].is_array()) {
            true if self.force => Ok(()),
            true => refused("is there already; --force writes over the report in it"),
            false => refused("expected an empty folder, or a report's, found files without a report's record.json"),
        }
    }

    /// Creates the folder and its parents. Returns those that did not exist, the inner ones first.
    fn create(&self) -> Result<Vec<PathBuf>, Failure> {
        let missing = self.path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        let missing = missing.map(Path::to_owned).collect();
        match fs::create_dir_all(&self.path) {
            Ok(()) => Ok(missing),
            Err(error) => Err(Failure::Other(format!("{}: cannot be written: {error}", self.path.display()))),
        }
    }

    /// Writes charts, page and record. `facts`: fields of the record besides rows; `rows`: as `--json` prints them,
    /// with the columns of the page's table, headings and fields.
    ///
    /// # Errors
    /// A file cannot be written, or the folder has other files by now.
    pub fn finish(
        &self,
        facts: Value,
        (columns, rows): (&[(&str, &str)], &[Value]),
        charts: &[Result<Chart, String>],
    ) -> Result<(), Failure> {
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        for chart in charts.iter().flatten() {
            files.push((format!("{}.svg", chart.name), chart.svg(chart::WIDE)?.into_bytes()));
            files.push((format!("{}.png", chart.name), chart.png(chart::WIDE)?));
        }
        let mut record = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "command": std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>(),
            "seconds_since_1970": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        });
        if let (Value::Object(record), Value::Object(facts)) = (&mut record, facts) {
            record.extend(facts);
            record.insert("rows".to_string(), rows.into());
        }
        files.push(("index.html".to_string(), page::html(&record, (columns, rows), charts)?.into_bytes()));
        files.push((RECORD.to_string(), format!("{record:#}\n").into_bytes()));
        // Another program may have written files there meanwhile.
        self.accept()?;
        let created = self.create()?;
        let was_there = self.path.join(RECORD).exists();
        let written = files.iter().try_for_each(|(name, bytes)| self.write(name, bytes));
        // Charts that only the previous report had are removed; so are the files of an incomplete new report.
        let is_kept = |name: &str| match written {
            Ok(()) => files.iter().any(|(written, _)| written == name),
            Err(_) => was_there,
        };
        names().filter(|name| !is_kept(name)).for_each(|name| _ = fs::remove_file(self.path.join(name)));
        if written.is_err() {
            created.iter().for_each(|folder| _ = fs::remove_dir(folder));
        }
        written
    }

    /// A file that gets its name when it is complete.
    fn file(&self, name: &str) -> Result<OutputFile, Failure> {
        Ok(OutputFile::create(&self.path.join(name), Existing::Replaced, &[])?)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let mut file = self.file(name)?;
        let unwritable =
            |error| Failure::Other(format!("{}: cannot be written: {error}", self.path.join(name).display()));
        file.write_all(bytes).map_err(unwritable)?;
        Ok(file.finish()?)
    }
}

/// Every file that a report can have.
fn names() -> impl Iterator<Item = String> {
    let charts = CHARTS.iter().flat_map(|chart| [format!("{chart}.svg"), format!("{chart}.png")]);
    charts.chain(["index.html", RECORD].map(str::to_string))
}
