//! `foretoken rm`: removes a model of the hub from the cache, and prints what that freed.

use std::io::{BufRead, IsTerminal, Write};

use clap::Args;
use foretoken_console::failure::Failure;
use foretoken_console::hub::{self, hub};
use foretoken_console::progress::say;
use foretoken_console::terminal::standard_output;
use foretoken_hub::{Name, Removal, readable};

/// Options of `foretoken rm`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Hub")]
pub struct Remove {
    /// What to remove: org/name all of it in the cache, org/name@REVISION one revision, org/name:QUANT the .gguf files
    /// of one quantization. Files that other revisions share stay
    #[arg(value_name = "NAME", value_parser = hub::name)]
    name: Name,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

impl Remove {
    /// Runs the command.
    ///
    /// # Errors
    /// There is no such model, a file cannot be removed, or there is no terminal to confirm on.
    pub fn run(&self) -> Result<(), Failure> {
        let removal = Removal::plan(hub()?.cache(), &self.name)?;
        if !self.yes && !self.confirmed(removal.bytes)? {
            say("nothing was removed");
            return Ok(());
        }
        let freed = removal.carry_out()?;
        let mut out = standard_output();
        writeln!(out, "{}: {} freed", self.name, readable(freed))?;
        Ok(out.flush()?)
    }

    fn confirmed(&self, bytes: u64) -> Result<bool, Failure> {
        if !std::io::stdin().is_terminal() {
            let expected = "expected it where nobody can be asked, found none";
            return Err(Failure::Usage(format!("--yes: {expected} ({}: {})", self.name, readable(bytes))));
        }
        let mut err = std::io::stderr();
        let _ = write!(err, "Remove {} ({})? [y/N] ", self.name, readable(bytes)).and_then(|()| err.flush());
        let mut answer = Vec::new();
        let read = std::io::stdin().lock().read_until(b'\n', &mut answer);
        read.map_err(|error| Failure::Other(format!("standard input: cannot be read: {error}")))?;
        Ok(matches!(answer.trim_ascii().to_ascii_lowercase().as_slice(), b"y" | b"yes"))
    }
}
