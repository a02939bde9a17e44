//! Files that a user names as outputs: begun before the work, so that what cannot be written is said at once.
//!
//! The rules, and the file that is whole or not there, are the library's ([`OutputFile`]); here they get the option
//! `--force`, and a signal that ends the program takes what is half written with it.

use std::path::{Path, PathBuf};

use clap::Args;
use foretoken::OutputFile;
use foretoken::output_file::Existing;

use crate::failure::Failure;
use crate::interrupts::Interrupts;

/// What may happen to a file that is where an output goes.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutputOptions {
    /// Write over a file that is where an output goes
    #[arg(long)]
    force: bool,
}

impl OutputOptions {
    /// Begins an output. `read`: the files and folders that the command reads, which it never writes over.
    ///
    /// # Errors
    /// As [`OutputFile::create`].
    pub fn begin(self, path: &Path, read: &[PathBuf]) -> Result<OutputFile, Failure> {
        // As everywhere where a file is expected; a file of that name is ./-
        let path = if path == Path::new("-") { Path::new("/dev/stdout") } else { path };
        let existing = if self.force { Existing::Replaced } else { Existing::Kept };
        // Where the system does not let us listen a half file stays behind, under a name that says so.
        Interrupts::listen();
        Ok(OutputFile::create(path, existing, read)?)
    }
}

/// Refuses `-`, which stands for standard output, where that has other things to say.
pub fn refuse_stream(option: &str, path: &Path) -> Result<(), Failure> {
    match path == Path::new("-") {
        true => Err(Failure::Usage(format!("{option}: expected a file (./- for one of this name), found -"))),
        false => Ok(()),
    }
}
