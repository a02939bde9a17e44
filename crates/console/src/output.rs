//! Creates output files that a user names, before the work, so that an error comes at once.
//!
//! The library writes them atomically ([`OutputFile`]); this module adds the option `--force`, and removes temporary
//! files when a signal ends the program.

use std::path::{Path, PathBuf};

use clap::Args;
use foretoken::OutputFile;
use foretoken::output_file::Existing;

use crate::failure::Failure;
use crate::interrupts::Interrupts;

/// The option that allows replacing an existing file.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutputOptions {
    /// Write over a file that is where an output goes
    #[arg(long)]
    force: bool,
}

impl OutputOptions {
    /// Begins an output. `read`: the files and folders that the command reads, which are never overwritten.
    ///
    /// # Errors
    /// As [`OutputFile::create`].
    pub fn begin(self, path: &Path, read: &[PathBuf]) -> Result<OutputFile, Failure> {
        // `-` is standard output, as for other options; a file of that name is ./-
        let path = if path == Path::new("-") { Path::new("/dev/stdout") } else { path };
        let existing = if self.force { Existing::Replaced } else { Existing::Kept };
        // If signals cannot be handled, a temporary file may be left, which the next run removes.
        Interrupts::listen();
        Ok(OutputFile::create(path, existing, read)?)
    }
}

/// Refuses `-`, which means standard output, for a command that prints something else there.
pub fn refuse_stream(option: &str, path: &Path) -> Result<(), Failure> {
    match path == Path::new("-") {
        true => Err(Failure::Usage(format!("{option}: expected a file (./- for one of this name), found -"))),
        false => Ok(()),
    }
}
