//! `foretoken version` and `--version`: the version of the program, and what it found on this machine.

use std::io::Write;

use clap::Args;
use foretoken::Isa;
use foretoken::models::built_in;
use foretoken_console::failure::Failure;

use crate::inspect::instruction_sets;

/// Options of `foretoken version`: none yet.
#[derive(Args, Debug)]
pub struct Version {}

impl Version {
    /// Prints the version and, if `verbose`, instruction sets, cores and built-in models.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn print(verbose: bool) -> Result<(), Failure> {
        let mut out = std::io::stdout();
        writeln!(out, "foretoken {}", env!("CARGO_PKG_VERSION"))?;
        if verbose {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let built_in = match built_in().as_slice() {
                [] => "none".to_string(),
                names => names.join(", "),
            };
            writeln!(out, "instruction set  {} (of {})", Isa::chosen().name(), instruction_sets())?;
            writeln!(out, "cores            {cores}")?;
            writeln!(out, "built-in models  {built_in}")?;
            writeln!(out, "platform         {} {}", std::env::consts::ARCH, std::env::consts::OS)?;
        }
        Ok(out.flush()?)
    }
}
