//! The front of the command line: from its words to a command with its options, or to one line that says what is wrong.
//!
//! What was asked for is found before clap sees the words ([`line`]): help and the version, wherever they stand; a
//! model in a command's place; names of other programs ([`foreign`]); models and prompts in a row ([`places`]). Then
//! defaults from elsewhere are put before the
//! line's own options, and clap parses all of it. What clap says is turned into this program's form: the option, what
//! was expected, what was found. Left out: what options mean.

pub mod defaults;
mod foreign;
pub mod line;
mod places;
mod wrong;

use std::ffi::OsString;
use std::path::Path;

use clap::{Command, CommandFactory, FromArgMatches, ValueEnum};
use foretoken_console::failure::Failure;
use foretoken_console::loudness::{Color, Loudness};

use crate::Cli;
use defaults::{DefaultValue, Defaults};
use line::{Line, command_of};
pub use wrong::unknown_command;

/// What a command line asks for.
pub enum Asked {
    /// To run a command, with the defaults from elsewhere that hold for it, and a note of what was passed over.
    Run(Box<Cli>, Vec<DefaultValue>, Option<String>),
    /// To show how a command is used: all of it, or what most people need.
    Help {
        /// All commands.
        program: Box<Command>,
        /// The command's path.
        path: Vec<String>,
        /// All of it.
        all: bool,
    },
    /// The version, or also what was found on this machine.
    Version {
        /// Also what was found.
        verbose: bool,
    },
    /// The settings of another command line.
    Config(Line, Defaults),
}

/// Commands that have no settings, and work whatever the file of defaults says.
const WITHOUT_DEFAULTS: [&str; 3] = ["version", "completions", "man"];

/// What the words ask for. The first is the program.
///
/// # Errors
/// They cannot be understood: one line that says why.
pub fn read(words: Vec<OsString>) -> Result<Asked, Failure> {
    let program = Cli::command();
    let words = with_command(words, &program)?;
    let line = Line::read(words.clone(), &program);
    // Of help and of errors, before defaults are known.
    let color = line.value("color").and_then(|when| Color::from_str(when, false).ok());
    Loudness { color: color.unwrap_or_default(), ..Loudness::default() }.choose();
    if line.path.first().is_some_and(|name| name == "config") {
        return settings_of_line(words, program);
    }
    if let Some(all) = asks_for_help(&line) {
        return Ok(Asked::Help { program: Box::new(program), path: line.path, all });
    }
    if line.gives("version") {
        return Ok(Asked::Version { verbose: line.gives("verbose") });
    }
    wrong::check(&line, &program)?;
    let line = places::told_apart(line, &program)?;
    if line.path.is_empty() {
        return Err(Failure::Usage("expected a command or a model, found none; foretoken -h shows them".into()));
    }
    let defaults = match WITHOUT_DEFAULTS.contains(&line.path[0].as_str()) {
        true => Defaults::default(),
        false => Defaults::read(&line, &program)?,
    };
    let cli = parsed(&line, &defaults.of_line, program)?;
    Ok(Asked::Run(Box::new(cli), defaults.of_line, line.note()))
}

/// Whether a line asks for help, which is given whatever else it says, and then for all of it.
fn asks_for_help(line: &Line) -> Option<bool> {
    let all = line.gives("help_all");
    (all || line.gives("help")).then_some(all)
}

/// clap's reading of a line with these defaults before its own options.
fn parsed(line: &Line, defaults: &[DefaultValue], mut program: Command) -> Result<Cli, Failure> {
    let mut words = line.words.clone();
    words.splice(line.own..line.own, defaults.iter().flat_map(|default| default.words.iter().cloned()));
    let matches = program.try_get_matches_from_mut(words);
    match matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches)) {
        Ok(cli) => Ok(cli),
        Err(error) => Err(blamed(line, defaults).unwrap_or_else(|| wrong::in_one_line(&error, line))),
    }
}

/// The first default without which the line would be right: what it says about it.
fn blamed(line: &Line, defaults: &[DefaultValue]) -> Option<Failure> {
    let problem = |kept: &[DefaultValue]| {
        let mut words = line.words.clone();
        words.splice(line.own..line.own, kept.iter().flat_map(|default| default.words.iter().cloned()));
        Cli::command().try_get_matches_from(words).err()
    };
    problem(&[]).map_or(Some(()), |_| None)?;
    let first = (1..=defaults.len()).find_map(|count| Some((count, problem(&defaults[..count])?)));
    let (count, error) = first?;
    let (default, message) = (&defaults[count - 1], wrong::in_one_line(&error, line));
    Some(Failure::Other(format!("{}: {}: {}", default.source, default.name, message.message()?)))
}

/// The line that `foretoken config` asks about, and its defaults.
fn settings_of_line(words: Vec<OsString>, program: Command) -> Result<Asked, Failure> {
    // What is left is the line that is asked about.
    let line = Line::read(words, &program);
    let mut words = line.words;
    words.remove(line.own - 1);
    let json = |word: &OsString| word == "--json";
    let as_json = words.iter().any(json);
    words.retain(|word| !json(word));
    let mut asked = Line::read(words, &program);
    if let Some(all) = asks_for_help(&asked) {
        return Ok(Asked::Help { program: Box::new(program), path: vec!["config".to_string()], all });
    }
    if asked.path.is_empty() {
        if let Some(at) = asked.positionals.first().filter(|at| **at == 1) {
            return Err(unknown_command(&asked.words[*at].to_string_lossy(), &program));
        }
        asked.words.insert(1, "generate".into());
        asked = Line::read(asked.words, &program);
    }
    wrong::check(&asked, &program)?;
    let mut asked = places::told_apart(asked, &program)?;
    let defaults = Defaults::read(&asked, &program)?;
    asked.as_json = as_json;
    Ok(Asked::Config(asked, defaults))
}

/// The words with a command where they have a model or options in its place, and `help` as an option.
fn with_command(mut words: Vec<OsString>, program: &Command) -> Result<Vec<OsString>, Failure> {
    let line = Line::read(words.clone(), program);
    if !line.path.is_empty() {
        return Ok(words);
    }
    let option = line.unknown.first().map(|unknown| unknown.at);
    let positional = line.positionals.first().copied().filter(|at| option.is_none_or(|option| *at < option));
    let Some(at) = positional.or(option).filter(|at| *at < words.len()) else { return Ok(words) };
    let word = words[at].to_string_lossy().into_owned();
    if positional.is_none() || places::is_sentence(&word) {
        words.insert(1, if asks_for_text(&words, program) { "generate".into() } else { "chat".into() });
    } else if word == "help" {
        words.remove(at);
        words.push("--help".into());
        let asked = Line::read(words.clone(), program);
        if let (Some(at), true) = (asked.positionals.first(), command_of(program, &asked.path).is_some()) {
            return Err(unknown_command(&asked.words[*at].to_string_lossy(), program));
        }
    } else if is_model(&word) {
        let text = asks_for_text(&words, program);
        let model = std::mem::replace(&mut words[at], if text { "-m".into() } else { "chat".into() });
        words.insert(at + 1, model);
        if text {
            words.insert(at, "generate".into());
        }
    } else if !line.gives("help") && !line.gives("help_all") && !line.gives("version") {
        return Err(unknown_command(&word, program));
    }
    Ok(words)
}

/// Whether words without a command are for `generate` rather than for `chat`: they say so as other programs do, or have
/// what it takes.
fn asks_for_text(words: &[OsString], program: &Command) -> bool {
    let with_name = [&words[..1], &["generate".into()], &words[1..]].concat();
    let line = Line::read(with_name, program);
    if let Some(named) = line.names_command {
        return named == "generate";
    }
    ["prompt", "file", "prompt_ids", "prompts", "json", "output_ids"].iter().any(|id| line.gives(id))
}

/// Whether a word is a model rather than a mistyped command: there is such a file or folder, or it is written as one.
fn is_model(word: &str) -> bool {
    word.contains(['/', '\\']) || word.ends_with(".gguf") || Path::new(word).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreign::{COMMANDS, Meaning, OPTIONS, name_of};
    use line::{is_named, options};

    fn named(words: &str) -> String {
        let words = with_command(words.split(' ').map(OsString::from).collect(), &Cli::command());
        match words {
            Ok(words) => words.join(std::ffi::OsStr::new(" ")).into_string().expect("the words are text"),
            Err(failure) => failure.message().unwrap_or_default(),
        }
    }

    #[test]
    fn a_model_alone_is_talked_with() {
        assert_eq!(named("x a/b"), "x chat a/b");
        assert_eq!(named("x -q model.gguf -n 5"), "x -q chat model.gguf -n 5");
        assert_eq!(named("x model.gguf -p hello"), "x generate -m model.gguf -p hello");
        assert_eq!(named("x -m model.gguf --temp 0"), "x chat -m model.gguf --temp 0");
        assert_eq!(named("x -m model.gguf -p hello"), "x generate -m model.gguf -p hello");
        assert_eq!(named("x ./chat"), "x chat ./chat");
        assert_eq!(named("x -m model.gguf -cnv -p hello"), "x chat -m model.gguf -cnv -p hello");
        assert_eq!(named("x -m model.gguf -no-cnv"), "x generate -m model.gguf -no-cnv");
        for whole in ["x", "x chat", "x -q", "x --version", "x generate a/b", "x -v bench pass"] {
            assert_eq!(named(whole), whole);
        }
    }

    #[test]
    fn help_is_a_command_too() {
        assert_eq!(named("x help"), "x --help");
        assert_eq!(named("x help bench pass"), "x bench pass --help");
        assert!(named("x help nothing").starts_with("nothing: expected a command"));
    }

    #[test]
    fn a_mistyped_command_is_told_the_nearest() {
        assert!(named("x genrate hello").ends_with("did you mean generate?"), "{}", named("x genrate"));
        assert!(named("x download m").starts_with("download: expected foretoken pull"));
        assert_eq!(named("x run m"), "x run m");
    }

    fn commands(command: &Command) -> Vec<&Command> {
        command.get_subcommands().flat_map(|command| [vec![command], commands(command)].concat()).collect()
    }

    #[test]
    fn every_name_is_another_programs_and_stands_once() {
        let program = Cli::command();
        let mut seen = std::collections::BTreeSet::new();
        for (names, meaning) in OPTIONS {
            for name in names.iter().map(|entry| name_of(entry)) {
                assert!(seen.insert(name), "{name} stands twice");
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
                let known = commands(&program)
                    .into_iter()
                    .any(|command| options(&program, command).any(|option| option.get_long() == Some(*ours)));
                assert!(known, "--{ours} is no option");
            }
        }
        for (name, _) in COMMANDS {
            assert!(program.find_subcommand(name).is_none(), "{name} is a command");
        }
    }
}
