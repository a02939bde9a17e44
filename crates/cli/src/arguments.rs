//! Reads a command line: turns its words (arguments, as the shell passes them) into a command with its options, or into
//! one line that says what is wrong.
//!
//! Before clap sees the words, [`line`] finds help and version options at any place, a model in the place of a command,
//! and options of other programs ([`other_programs`]); [`positionals`] tells models from prompts. Then defaults from
//! the file and the environment ([`defaults`]) are put before the line's own options, and clap parses the result and
//! checks which options conflict or need each other. Errors of clap are rewritten in this program's form: the option,
//! what was expected, what was found ([`errors`]).

pub mod defaults;
mod errors;
pub mod line;
mod other_programs;
mod positionals;

use std::ffi::OsString;
use std::path::Path;

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, ValueEnum};
use foretoken_console::failure::Failure;
use foretoken_console::verbosity::{Color, Verbosity};

use crate::Cli;
use defaults::{DefaultValue, Defaults};
pub use errors::unknown_command;
use line::Line;

/// What a command line asks for.
pub enum Invocation {
    /// To run a command, with its defaults from file and environment, and a note about ignored options.
    Run(Box<Cli>, Vec<DefaultValue>, Option<String>),
    /// To print the help of a command.
    Help {
        /// All commands.
        program: Box<Command>,
        /// The command's path.
        path: Vec<String>,
        /// The whole help (`--help`), not the short one (`-h`).
        all: bool,
    },
    /// To print the version.
    Version {
        /// With the machine's features.
        verbose: bool,
    },
    /// To show the settings of another command line (`foretoken config`).
    Config(Box<Line>, Defaults),
}

/// Commands without settings; an error in the configuration file does not stop them.
const WITHOUT_DEFAULTS: [&str; 3] = ["version", "completions", "man"];

/// Reads the words of a command line, of which the first is the program.
///
/// # Errors
/// The words cannot be understood: one line says why.
pub fn read(words: Vec<OsString>) -> Result<Invocation, Failure> {
    let mut program = Cli::command();
    let words = with_command(words, &program)?;
    let line = Line::read(&words, &program);
    // Help and errors may be printed before defaults are known, so the colours are chosen here.
    let color = line.value("color").and_then(|when| Color::from_str(&when.to_string_lossy(), false).ok());
    Verbosity { color: color.unwrap_or_default(), ..Verbosity::default() }.choose();
    if line.path.first().is_some_and(|name| name == "config") {
        return read_config_line(words, line.args_start - 1, program);
    }
    if let Some(all) = help_requested(&line) {
        return Ok(Invocation::Help { program: Box::new(program), path: line.path, all });
    }
    if line.gives("version") {
        return Ok(Invocation::Version { verbose: line.gives("verbose") });
    }
    errors::check(&line, &program)?;
    let line = positionals::assign(line, &program)?;
    if line.path.is_empty() {
        return Err(Failure::Usage("expected a command or a model, found none; foretoken -h shows them".into()));
    }
    let defaults = match WITHOUT_DEFAULTS.contains(&line.path[0].as_str()) {
        true => Defaults::default(),
        false => Defaults::read(&line, &program)?,
    };
    let cli = parse(&line, &defaults.values, &mut program)?;
    Ok(Invocation::Run(Box::new(cli), defaults.values, line.note()))
}

/// Whether a line asks for help, and then whether for the long form. Help is printed whatever else the line has.
fn help_requested(line: &Line) -> Option<bool> {
    let all = line.gives("help_all");
    (all || line.gives("help")).then_some(all)
}

/// What clap finds in a line, with these defaults before its own options.
fn matches(line: &Line, defaults: &[DefaultValue], program: &mut Command) -> Result<ArgMatches, clap::Error> {
    let defaults = defaults.iter().flat_map(|default| default.words.iter().cloned());
    program.try_get_matches_from_mut(line.words(defaults))
}

/// Parses a line by clap, with these defaults.
fn parse(line: &Line, defaults: &[DefaultValue], program: &mut Command) -> Result<Cli, Failure> {
    let parsed = matches(line, defaults, program).and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    parsed.map_err(|error| {
        failure_of_default(line, defaults, program).unwrap_or_else(|| errors::in_one_line(&error, line))
    })
}

/// The error of the first default that makes a valid line invalid, if there is such a default.
fn failure_of_default(line: &Line, defaults: &[DefaultValue], program: &mut Command) -> Option<Failure> {
    let mut problem = |count: usize| matches(line, &defaults[..count], program).err();
    if problem(0).is_some() {
        return None;
    }
    let (default, error) = defaults.iter().zip(1..).find_map(|(default, count)| Some((default, problem(count)?)))?;
    let message = errors::in_one_line(&error, line).message()?;
    Some(Failure::Other(format!("{}: {}: {message}", default.source, default.name)))
}

/// Reads the command line whose settings `foretoken config` shows: all words except `--json` and `config`, which is the
/// word at `config_at`.
fn read_config_line(mut words: Vec<OsString>, config_at: usize, program: Command) -> Result<Invocation, Failure> {
    words.remove(config_at);
    let count = words.len();
    words.retain(|word| word != "--json");
    let as_json = words.len() < count;
    let mut line = Line::read(&words, &program);
    if let Some(all) = help_requested(&line) {
        return Ok(Invocation::Help { program: Box::new(program), path: vec!["config".to_string()], all });
    }
    if line.path.is_empty() {
        if let Some((_, word)) = line.positionals.first().filter(|(at, _)| *at == 1) {
            return Err(unknown_command(&word.to_string_lossy(), &program));
        }
        words.insert(1, "generate".into());
        line = Line::read(&words, &program);
    }
    errors::check(&line, &program)?;
    let mut line = positionals::assign(line, &program)?;
    let defaults = Defaults::read(&line, &program)?;
    line.as_json = as_json;
    Ok(Invocation::Config(Box::new(line), defaults))
}

/// Inserts the command into words that begin with a model or options, and turns the command `help` into an option.
fn with_command(mut words: Vec<OsString>, program: &Command) -> Result<Vec<OsString>, Failure> {
    let line = Line::read(&words, program);
    if !line.path.is_empty() {
        return Ok(words);
    }
    let option = line.unknown.first().map(|unknown| unknown.at);
    let positional = line.positionals.first().map(|(at, _)| *at).filter(|at| option.is_none_or(|option| *at < option));
    let Some(at) = positional.or(option) else { return Ok(words) };
    let word = words[at].to_string_lossy().into_owned();
    if positional.is_none() || positionals::looks_like_prompt(&word) {
        words.insert(1, if is_for_generate(&words, program) { "generate".into() } else { "chat".into() });
    } else if word == "help" {
        words.remove(at);
        words.push("--help".into());
        if let Some((_, word)) = Line::read(&words, program).positionals.first() {
            return Err(unknown_command(&word.to_string_lossy(), program));
        }
    } else if is_model(&word) {
        let before: &[&str] = if is_for_generate(&words, program) { &["generate", "-m"] } else { &["chat"] };
        words.splice(at..at, before.iter().map(OsString::from));
    } else if !line.gives("help") && !line.gives("help_all") && !line.gives("version") {
        return Err(unknown_command(&word, program));
    }
    Ok(words)
}

/// Whether words without a command are for `generate` and not for `chat`: by an option of another program that says so,
/// or by an option that only `generate` has.
fn is_for_generate(words: &[OsString], program: &Command) -> bool {
    let with_name = [&words[..1], &["generate".into()], &words[1..]].concat();
    let line = Line::read(&with_name, program);
    if let Some(named) = line.implied_command {
        return named == "generate";
    }
    ["prompt", "file", "prompt_ids", "prompts", "json", "output_ids"].iter().any(|id| line.gives(id))
}

/// Whether a word is a model and not a mistyped command: such a file or folder exists, or it is written as one.
fn is_model(word: &str) -> bool {
    word.contains(['/', '\\']) || word.ends_with(".gguf") || Path::new(word).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use line::{is_named, options};
    use other_programs::{COMMANDS, Meaning, OPTIONS, name_of};

    fn rewritten(words: &str) -> String {
        let words = with_command(words.split(' ').map(OsString::from).collect(), &Cli::command());
        match words {
            Ok(words) => words.join(std::ffi::OsStr::new(" ")).into_string().expect("the words are text"),
            Err(failure) => failure.message().unwrap_or_default(),
        }
    }

    #[test]
    fn a_model_without_a_command_means_chat() {
        assert_eq!(rewritten("x a/b"), "x chat a/b");
        assert_eq!(rewritten("x -q model.gguf -n 5"), "x -q chat model.gguf -n 5");
        assert_eq!(rewritten("x model.gguf -p hello"), "x generate -m model.gguf -p hello");
        assert_eq!(rewritten("x -m model.gguf --temp 0"), "x chat -m model.gguf --temp 0");
        assert_eq!(rewritten("x -m model.gguf -p hello"), "x generate -m model.gguf -p hello");
        assert_eq!(rewritten("x ./chat"), "x chat ./chat");
        assert_eq!(rewritten("x -m model.gguf -cnv -p hello"), "x chat -m model.gguf -cnv -p hello");
        assert_eq!(rewritten("x -m model.gguf -no-cnv"), "x generate -m model.gguf -no-cnv");
        for whole in ["x", "x chat", "x -q", "x --version", "x generate a/b", "x -v bench pass"] {
            assert_eq!(rewritten(whole), whole);
        }
    }

    #[test]
    fn help_is_also_a_command() {
        assert_eq!(rewritten("x help"), "x --help");
        assert_eq!(rewritten("x help bench pass"), "x bench pass --help");
        assert!(rewritten("x help nothing").starts_with("nothing: expected a command"));
    }

    #[test]
    fn a_mistyped_command_gets_the_nearest_name() {
        assert!(rewritten("x genrate hello").ends_with("did you mean generate?"), "{}", rewritten("x genrate"));
        assert!(rewritten("x download m").starts_with("download: expected foretoken pull"));
        assert_eq!(rewritten("x run m"), "x run m");
    }

    fn commands(command: &Command) -> Vec<&Command> {
        command.get_subcommands().flat_map(|command| [vec![command], commands(command)].concat()).collect()
    }

    #[test]
    fn names_of_other_programs_are_unique_and_not_our_own() {
        let program = Cli::command();
        let mut seen = std::collections::BTreeSet::new();
        for (names, meaning) in OPTIONS {
            for name in names.iter().map(|entry| name_of(entry)) {
                assert!(seen.insert(name), "{name} is in the table twice");
                let bare = name.trim_start_matches('-');
                let ours = |command: &&Command| {
                    let short = (name.len() == 2).then(|| bare.chars().next()).flatten();
                    options(&program, command).any(|option| {
                        is_named(option, bare) && name.starts_with("--")
                            || short.is_some_and(|s| option.get_short() == Some(s))
                    })
                };
                let found = commands(&program).into_iter().find(ours);
                assert!(found.is_none(), "{name} is an option of {}", found.map_or("", Command::get_name));
            }
            if let Meaning::Same(ours) = meaning {
                let is_known = commands(&program)
                    .into_iter()
                    .any(|command| options(&program, command).any(|option| option.get_long() == Some(*ours)));
                assert!(is_known, "--{ours} is no option");
            }
        }
        for (name, _) in COMMANDS {
            assert!(program.find_subcommand(name).is_none(), "{name} is a command");
        }
    }
}
