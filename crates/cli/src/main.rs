//! The command line `foretoken`: a door. It reads options, opens models, runs the engine and prints.
//!
//! One file a command (`generate`, `chat`, `serve`, `inspect`, `check`, `logits`, `quantize`, `lookup`, `bench`,
//! `version`), over a few that they share: `options` and `values` say what can be given and turn it into settings,
//! which the library `foretoken` opens and runs; `opening` opens a generator and says what its user should know. Every
//! error is one line on standard error; exit code 2 is for a wrong command line, 1 for everything else.

#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod chat;
mod check;
mod clock;
mod failure;
mod generate;
mod inspect;
mod interrupts;
mod logits;
mod lookup;
mod loudness;
mod names;
mod opening;
mod options;
mod output;
mod printing;
mod progress;
mod prompts;
mod quantize;
mod records;
mod report;
mod serve;
mod sparkline;
mod values;
mod version;
mod vocabulary;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use foretoken_kernels::Isa;

use failure::Failure;

/// Text from large language models several times faster, without changing the text.
#[derive(Parser, Debug)]
#[command(name = "foretoken", disable_help_subcommand = true, disable_version_flag = true, args_override_self = true)]
struct Cli {
    /// Print the version; with -v also what was found on this machine
    #[arg(short = 'V', long, help_heading = "General")]
    version: bool,
    #[command(flatten)]
    loudness: loudness::Loudness,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Go on with a prompt
    Generate(Box<generate::Generate>),
    /// Talk with a model
    Chat(Box<chat::Chat>),
    /// Answer requests over HTTP, as OpenAI's API has them; with a page to look at it
    Serve(Box<serve::Serve>),
    /// Say what a model is and needs
    Inspect(inspect::Inspect),
    /// Compare speculative with plain decoding, byte for byte
    Check(Box<check::Check>),
    /// Write the logits after each of some tokens to a file
    Logits(logits::Logits),
    /// Make a GGUF file of another type, of a GGUF file or a directory
    Quantize(quantize::Quantize),
    /// Keep texts in a file, for drafters to learn from at start
    Lookup(lookup::Lookup),
    /// Measure speed, next to what this machine could do
    Bench(Box<bench::Bench>),
    /// Say what this program is, and what it found on this machine
    Version(version::Version),
}

impl Cli {
    fn run(&self) -> Result<(), Failure> {
        self.loudness.choose();
        choose_instruction_set()?;
        match &self.command {
            _ if self.version => version::Version::print(self.loudness.verbose),
            None => Err(Failure::Usage("expected a command, found none; --help lists them".into())),
            Some(Command::Generate(command)) => command.run(),
            Some(Command::Chat(command)) => command.run(),
            Some(Command::Serve(command)) => command.run(),
            Some(Command::Inspect(command)) => command.run(),
            Some(Command::Check(command)) => command.run(),
            Some(Command::Logits(command)) => command.run(),
            Some(Command::Quantize(command)) => command.run(),
            Some(Command::Lookup(command)) => command.run(),
            Some(Command::Bench(command)) => command.run(),
            Some(Command::Version(_)) => version::Version::print(true),
        }
    }
}

/// Computes with the instruction set that the environment names, if it does.
fn choose_instruction_set() -> Result<(), Failure> {
    const VARIABLE: &str = "FORETOKEN_ISA";
    if let Some(name) = std::env::var_os(VARIABLE) {
        let isa = Isa::named(&name.to_string_lossy());
        isa.map_err(|problem| Failure::Usage(format!("{VARIABLE}: {problem}")))?.choose();
    }
    Ok(())
}

/// Parses the command line and runs its command.
fn run() -> Result<(), Failure> {
    let words = arguments::written_out(std::env::args_os());
    match Cli::try_parse_from(words) {
        Ok(cli) => cli.run(),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => Ok(error.print()?),
        Err(error) => Err(arguments::in_one_line(&error)),
    }
}

fn main() -> ExitCode {
    clock::begin();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                let error = if loudness::coloured_errors() { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
                progress::warn(format_args!("{error} {message}"));
            }
            ExitCode::from(failure.code())
        }
    }
}
