//! The command line `foretoken`: a door. It reads options, opens models, runs the engine and prints.
//!
//! One file a command (`generate`, `chat`, `serve`, `inspect`, `check`, `logits`, `hidden`, `quantize`, `lookup`,
//! `config`, `completions`, `version`; `pull`, `list` and `rm` in `hub`; `bench` is a crate of its own). `arguments`
//! reads the command line, with the `defaults` of file and environment; what commands share, options above all, is in
//! `foretoken_console`. Every error is one line on standard error; exit code 2 is for a wrong command line,
//! 1 for everything else.

#![forbid(unsafe_code)]

mod arguments;
mod chat;
mod check;
mod completions;
mod config;
mod defects;
mod generate;
mod help;
mod hidden;
mod hub;
mod inspect;
mod logits;
mod lookup;
mod printing;
mod quantize;
mod serve;
mod sparkline;
mod version;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use foretoken::{Allocator, Isa, MemoryLimit};
use foretoken_console::failure::{self, Failure};
use foretoken_console::{clock, loudness, progress};

use arguments::Asked;
use arguments::defaults::DefaultValue;

/// Where the system refuses memory, a line says so.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Text from large language models several times faster, without changing the text.
#[derive(Parser, Debug)]
#[command(
    name = "foretoken",
    disable_help_subcommand = true,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    next_help_heading = "General"
)]
struct Cli {
    #[command(flatten)]
    loudness: loudness::Loudness,
    /// Defaults of options [default: ~/.config/foretoken/config.toml]
    #[arg(long, value_name = "FILE", global = true, hide_short_help = true)]
    config: Option<PathBuf>,
    /// Most memory that is taken: 6GB or 512MiB; free, what the machine has; or none
    ///
    /// Weights, cache and draft models that need more are refused before they are loaded, with their parts and what
    /// would make them smaller. What a container and `ulimit` allow counts as what the machine has. With none a
    /// shortage is told and nothing more.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "free",
        global = true,
        hide_short_help = true,
        allow_hyphen_values = true
    )]
    memory_limit: MemoryLimit,
    /// Print the version; with -v also what was found on this machine
    #[arg(short = 'V', long, global = true)]
    version: bool,
    /// Show how a command is used
    #[arg(short, global = true, hide = true)]
    help: bool,
    /// Show all options and what they mean; -h shows those that most people need
    #[arg(long = "help", global = true)]
    help_all: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Go on with a prompt
    Generate(Box<generate::Generate>),
    /// Talk with a model
    #[command(alias = "run")]
    Chat(Box<chat::Chat>),
    /// Answer requests over HTTP, as OpenAI's API does; with a page
    #[command(alias = "server")]
    Serve(Box<serve::Serve>),
    /// Say what a model is and needs
    #[command(alias = "show")]
    Inspect(inspect::Inspect),
    /// Compare speculative with plain decoding, byte for byte
    Check(Box<check::Check>),
    /// Write the logits after each of some tokens to a file
    Logits(logits::LogitsCommand),
    /// Write the hidden states of texts to files, for training heads
    Hidden(hidden::Hidden),
    /// Make a GGUF file of another type, of a GGUF file or a directory
    Quantize(quantize::Quantize),
    /// Keep texts in a file, for drafters to learn from at start
    Lookup(lookup::Lookup),
    /// Fetch a model of the Hugging Face hub, and say which draft model suits it
    Pull(hub::Pull),
    /// Say which models of the hub lie in the cache
    #[command(alias = "ls")]
    List(hub::List),
    /// Remove a model of the hub from the cache
    Rm(hub::Remove),
    /// Measure speed, next to what this machine could do
    Bench(Box<foretoken_bench::Bench>),
    /// Say what each setting is, and where it comes from
    Config(config::Config),
    /// Write what a shell needs to complete command lines
    Completions(completions::Completions),
    /// Write the manual page of a command
    Man(completions::Man),
    /// Say what this program is, and what it found on this machine
    Version(version::Version),
}

impl Cli {
    fn run(&self, defaults: &[DefaultValue], note: Option<String>) -> Result<(), Failure> {
        self.loudness.choose();
        note.into_iter().for_each(|note| progress::say(failure::on_one_line(&note)));
        self.memory_limit.choose();
        defaults.iter().for_each(progress::detail);
        choose_instruction_set()?;
        match &self.command {
            // A line without a command is refused before it comes here, and `config` is not parsed as a command.
            None | Some(Command::Config(_)) => Ok(()),
            Some(Command::Generate(command)) => command.run(),
            Some(Command::Chat(command)) => command.run(),
            Some(Command::Serve(command)) => command.run(),
            Some(Command::Inspect(command)) => command.run(),
            Some(Command::Check(command)) => command.run(),
            Some(Command::Logits(command)) => command.run(),
            Some(Command::Hidden(command)) => command.run(),
            Some(Command::Quantize(command)) => command.run(),
            Some(Command::Lookup(command)) => command.run(),
            Some(Command::Pull(command)) => command.run(),
            Some(Command::List(command)) => command.run(),
            Some(Command::Rm(command)) => command.run(),
            Some(Command::Bench(command)) => command.run(),
            Some(Command::Completions(command)) => command.run(),
            Some(Command::Man(command)) => command.run(),
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

/// Reads the command line and does what it asks for.
fn run() -> Result<(), Failure> {
    match arguments::read(std::env::args_os().collect())? {
        Asked::Run(cli, defaults, note) => cli.run(&defaults, note),
        Asked::Help { program, path, all } => help::print(&program, &path, all),
        Asked::Version { verbose } => {
            choose_instruction_set()?;
            version::Version::print(verbose)
        }
        Asked::Config(line, defaults) => {
            line.note().into_iter().for_each(|note| progress::say(failure::on_one_line(&note)));
            config::print(&line, &defaults)
        }
    }
}

fn main() -> ExitCode {
    clock::begin();
    defects::tell_in_one_line();
    // Where the system refuses, a file that is shortened ends the program without a word, as it would have before.
    let _ = foretoken::exit_if_a_mapped_file_is_truncated();
    foretoken::fail_where_a_file_may_not_grow();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                let error = if loudness::coloured_errors() { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
                progress::warn(format_args!("{error} {}", failure::on_one_line(&message)));
            }
            ExitCode::from(failure.code())
        }
    }
}
