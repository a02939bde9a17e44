//! The command line `foretoken`: reads options, opens models, runs the engine and prints.
//!
//! Each command has a file (`generate`, `batch`, `chat`, `serve`, `inspect`, `check`, `logits`, `hidden`, `quantize`,
//! `lookup`, `config`, `completions`, `version`; `pull`, `list` and `rm` are in `hub`, `bench` and `analyze` in a crate
//! of their own). `arguments` reads the command line and the `defaults` of the configuration file and the environment.
//! What commands share, options above all, is in `foretoken_console`. Every error is one line on standard error; exit
//! code 2 is for a wrong command line, 1 for everything else.

#![forbid(unsafe_code)]

mod arguments;
mod backend;
mod batch;
mod chat;
mod check;
mod completions;
mod config;
mod generate;
mod help;
mod hidden;
mod hub;
mod inspect;
mod line_file;
mod logits;
mod lookup;
mod panics;
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
use foretoken_console::{clock, progress, verbosity};

use arguments::Invocation;
use arguments::defaults::DefaultValue;

/// Prints one line when the system refuses memory.
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
    verbosity: verbosity::Verbosity,
    /// Defaults of options [default: ~/.config/foretoken/config.toml]
    #[arg(long, value_name = "FILE", global = true, hide_short_help = true)]
    config: Option<PathBuf>,
    /// Most memory that is taken: 6GB or 512MiB; free, what the machine has; or none
    ///
    /// Weights, cache and draft models that need more are refused before they are loaded, with their parts and what
    /// would make them smaller. What a container and `ulimit` allow counts as what the machine has. With none a
    /// shortage is only reported.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "free",
        global = true,
        hide_short_help = true,
        allow_hyphen_values = true
    )]
    memory_limit: MemoryLimit,
    #[command(flatten)]
    backend: backend::BackendOptions,
    /// Print the version; with -v also what was found on this machine
    #[arg(short = 'V', long, global = true)]
    version: bool,
    /// Show the help of a command
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
    /// Continue a prompt
    Generate(Box<generate::Generate>),
    /// Answer a file of requests, many at a time, into another file
    Batch(Box<batch::Batch>),
    /// Chat with a model
    #[command(alias = "run")]
    Chat(Box<chat::Chat>),
    /// Serve OpenAI's API over HTTP, with a web page
    #[command(alias = "server")]
    Serve(Box<serve::Serve>),
    /// Show what a model is and needs
    #[command(alias = "show")]
    Inspect(inspect::Inspect),
    /// Compare speculative with plain decoding, byte for byte
    Check(Box<check::Check>),
    /// Write the logits after each token to a file
    Logits(logits::LogitsCommand),
    /// Write the hidden states of texts to files, for training heads
    Hidden(hidden::Hidden),
    /// Convert a GGUF file or a directory to a GGUF file of another type
    Quantize(quantize::Quantize),
    /// Build a file of texts that drafters learn from at start
    Lookup(lookup::Lookup),
    /// Fetch a model of the Hugging Face hub, and propose a draft model for it
    Pull(hub::Pull),
    /// List the models in the hub's cache
    #[command(alias = "ls")]
    List(hub::List),
    /// Remove a model of the hub from the cache
    Rm(hub::Remove),
    /// Measure speed, compared with what this machine could do
    Bench(Box<foretoken_bench::Bench>),
    /// Compare the speed-ups that the theory predicts for draft lengths with measured ones
    Analyze(Box<foretoken_bench::Analyze>),
    /// Show each setting, and where it comes from
    Config(config::Config),
    /// Write the completion script of a shell
    Completions(completions::Completions),
    /// Write the manual page of a command
    Man(completions::Man),
    /// Show the version, and what was found on this machine
    Version(version::Version),
}

impl Cli {
    fn run(&self, defaults: &[DefaultValue], note: Option<String>) -> Result<(), Failure> {
        self.verbosity.choose();
        note.into_iter().for_each(|note| progress::say(failure::on_one_line(&note)));
        self.memory_limit.choose();
        defaults.iter().for_each(progress::detail);
        choose_instruction_set()?;
        self.backend.run(defaults, || self.run_command())
    }

    fn run_command(&self) -> Result<(), Failure> {
        match &self.command {
            // A line without a command was refused earlier, and `config` is not parsed as a command.
            None | Some(Command::Config(_)) => Ok(()),
            Some(Command::Generate(command)) => command.run(),
            Some(Command::Batch(command)) => command.run(),
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
            Some(Command::Analyze(command)) => command.run(),
            Some(Command::Completions(command)) => command.run(),
            Some(Command::Man(command)) => command.run(),
            Some(Command::Version(_)) => version::Version::print(true),
        }
    }
}

/// Uses the instruction set that the environment names, if it names one.
fn choose_instruction_set() -> Result<(), Failure> {
    const VARIABLE: &str = "FORETOKEN_ISA";
    if let Some(name) = std::env::var_os(VARIABLE) {
        let isa = Isa::named(&name.to_string_lossy());
        isa.map_err(|problem| Failure::Usage(format!("{VARIABLE}: {problem}")))?.choose();
    }
    Ok(())
}

/// Reads the command line and runs it.
fn run() -> Result<(), Failure> {
    match arguments::read(std::env::args_os().collect())? {
        Invocation::Run(cli, defaults, note) => cli.run(&defaults, note),
        Invocation::Help { program, path, all } => help::print(&program, &path, all),
        Invocation::Version { verbose } => {
            choose_instruction_set()?;
            version::Version::print(verbose)
        }
        Invocation::Config(line, defaults) => {
            line.note().into_iter().for_each(|note| progress::say(failure::on_one_line(&note)));
            config::print(&line, &defaults)
        }
    }
}

fn main() -> ExitCode {
    clock::begin();
    panics::report_in_one_line();
    // If the system does not allow the handler, a truncated file ends the program without a message, as by default.
    let _ = foretoken::exit_if_a_mapped_file_is_truncated();
    foretoken::fail_where_a_file_may_not_grow();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                progress::error(&failure::on_one_line(&message));
            }
            ExitCode::from(failure.code())
        }
    }
}
