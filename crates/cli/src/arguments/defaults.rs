//! Defaults from elsewhere: a file and the environment, by the names of the options.
//!
//! They become words that stand before the command line's own options, so they mean what they mean there and nothing
//! else. Where two places speak of one option the nearer one counts: the command line, then the environment, then the
//! file. A default that cannot stand beside an option of the command line gives way to it without a word. Left out:
//! what the model's `generation_config.json` says and what the program chooses, which the library decides.

mod environment;
mod file;

use std::any::TypeId;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command};
use foretoken_console::failure::Failure;

use super::line::{Line, is_named, options, takes_value};
use super::wrong::value_problem;
pub use file::users_own;

/// Variables that are no option's, and have a use of their own.
pub const OWN_VARIABLES: [&str; 2] = ["FORETOKEN_ISA", "FORETOKEN_API_KEY"];

/// Options that say what to do and not how, so that no file and no variable gives them.
pub const NEVER: [&str; 4] = ["help", "help_all", "version", "config"];

/// Options whose values are nobody's to see.
pub const SECRETS: [&str; 1] = ["api_key"];

/// What is shown of them.
pub const HIDDEN: &str = "(not shown)";

/// Where a default was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a file: its path, and the line, from 1.
    File(PathBuf, usize),
    /// In this variable.
    Environment(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}: line {line}", path.display()),
            Self::Environment(variable) => f.write_str(variable),
        }
    }
}

/// A default that holds for a command line.
#[derive(Clone, Debug)]
pub struct DefaultValue {
    /// The option's name in clap.
    pub id: String,
    /// The option's long name, as it is written there.
    pub name: String,
    /// Its values; of a flag "true" or "false".
    pub values: Vec<String>,
    /// What it is on a command line; nothing for a flag that is off.
    pub words: Vec<OsString>,
    /// Where it was found.
    pub source: Source,
}

/// As `-v` tells it.
impl fmt::Display for DefaultValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = if SECRETS.contains(&self.id.as_str()) { HIDDEN.to_string() } else { self.values.join(",") };
        write!(f, "{}: {} {values}", self.source, self.name)
    }
}

/// A value as it was found: of a flag, of an option, or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// True or false.
    Switch(bool),
    /// A number or a text.
    One(String),
    /// Several of these.
    Several(Vec<String>),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(on) => write!(f, "{on}"),
            Self::One(text) => write!(f, "{text:?}"),
            Self::Several(texts) => write!(f, "{texts:?}"),
        }
    }
}

/// All defaults that matter to a command line.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// Those that hold for it.
    pub of_line: Vec<DefaultValue>,
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// Variables that begin like ours and name no option.
    pub unknown_variables: Vec<String>,
}

impl Defaults {
    /// Reads file and environment.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is no option's name or not its value.
    pub fn read(line: &Line, program: &Command) -> Result<Self, Failure> {
        let file = file::place(line)?;
        let (of_environment, unknown_variables) = environment::read(line, program)?;
        let of_file = file.as_deref().map_or(Ok(Vec::new()), |path| file::read(path, line, program))?;
        let command = line.command(program);
        let mut of_line: Vec<DefaultValue> = Vec::new();
        for default in of_environment.into_iter().chain(of_file) {
            let nearer = of_line.iter().map(|nearer| nearer.id.as_str());
            let nearer = nearer.chain(line.given.iter().map(|given| given.id.as_str()));
            let nearer: Vec<&str> = nearer.chain(positionals(line, command)).collect();
            if !nearer.iter().any(|other| *other == default.id || exclude(command, other, &default.id)) {
                of_line.push(default);
            }
        }
        Ok(Self { of_line, file, unknown_variables })
    }
}

/// The names of positional arguments that a line gives.
fn positionals<'a>(line: &Line, command: &'a Command) -> impl Iterator<Item = &'a str> {
    command.get_positionals().take(line.positionals.len()).map(|arg| arg.get_id().as_str())
}

/// Options of which the later one counts, so that one in a default gives way to the other.
const INSTEAD: [(&str, &str); 2] = [("quiet", "verbose"), ("display_prompt", "no_display_prompt")];

/// Whether two arguments of a command cannot be given together.
fn exclude(command: &Command, one: &str, other: &str) -> bool {
    let arg = |id: &str| command.get_arguments().find(|arg| arg.get_id() == id);
    let conflict = |one: &str, other: &str| {
        let conflicts = arg(one).filter(|arg| !arg.is_global_set()).map(|arg| command.get_arg_conflicts_with(arg));
        conflicts.unwrap_or_default().iter().any(|arg| arg.get_id() == other)
    };
    let in_one_choice = command.get_groups().any(|group| {
        let has = |id: &str| group.get_args().any(|arg| arg == id);
        has(one) && has(other) && !group.clone().is_multiple()
    });
    let instead = INSTEAD.contains(&(one, other)) || INSTEAD.contains(&(other, one));
    in_one_choice || instead || conflict(one, other) || conflict(other, one)
}

/// The option of a command that has this name, as files and variables may have it: with dashes or underlines.
fn option<'a>(program: &'a Command, command: &'a Command, name: &str) -> Option<&'a Arg> {
    let dashed = name.replace('_', "-");
    options(program, command).find(|option| is_named(option, &dashed) && !NEVER.contains(&option.get_id().as_str()))
}

/// All names of options, of whatever command.
fn all_names(program: &Command) -> Vec<&str> {
    let own = program.get_arguments().filter(|arg| !NEVER.contains(&arg.get_id().as_str()));
    let below = program.get_subcommands().flat_map(all_names);
    own.filter_map(Arg::get_long).chain(below).collect()
}

/// Whether some command has an option of this name.
fn is_known(program: &Command, name: &str) -> bool {
    let commands = || program.get_subcommands();
    option(program, program, name).is_some() || commands().any(|command| is_known(command, name))
}

/// What an option is on a command line if it has this value.
///
/// # Errors
/// The option has no such values: what was expected, and what was found.
pub fn words(option: &Arg, found: &Found) -> Result<(Vec<String>, Vec<OsString>), String> {
    let long = option.get_long().unwrap_or_default();
    let bare = || Ok((vec!["true".to_string()], vec![format!("--{long}").into()]));
    let many = matches!(option.get_action(), ArgAction::Append) || option.get_value_delimiter().is_some();
    let optional = option.get_num_args().is_some_and(|range| range.min_values() == 0);
    let values = match found {
        Found::Switch(true) if !takes_value(option) || optional => return bare(),
        Found::Switch(false) if !takes_value(option) || optional => return Ok((vec!["false".to_string()], Vec::new())),
        _ if !takes_value(option) => return Err(format!("expected true or false, found {found}")),
        Found::Several(_) if !many => return Err(format!("expected one value, found {found}")),
        Found::Switch(on) => vec![on.to_string()],
        Found::One(text) => vec![text.clone()],
        Found::Several(texts) => texts.clone(),
    };
    let values: Vec<String> = values.into_iter().map(|value| at_home(option, value)).collect();
    for value in &values {
        check(option, value).map_err(|(expected, found)| format!("{expected}, found {found}"))?;
    }
    let words = values.iter().map(|value| format!("--{long}={value}").into()).collect();
    Ok((values, words))
}

/// A path below `~`, which no shell has written out.
fn at_home(option: &Arg, value: String) -> String {
    let is_path = option.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    match (value.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) if is_path => home.join(rest).display().to_string(),
        _ => value,
    }
}

/// Asks the option itself whether it takes a value: what it expected, and what it found.
fn check(option: &Arg, value: &str) -> Result<(), (String, String)> {
    let mut alone = Arg::new("option").long("option").action(option.get_action().clone());
    alone = alone.value_parser(option.get_value_parser().clone()).value_delimiter(option.get_value_delimiter());
    if let Some(count) = option.get_num_args() {
        alone = alone.num_args(count);
    }
    let alone = Command::new("alone").no_binary_name(true).arg(alone);
    let found = alone.try_get_matches_from([format!("--option={value}")]);
    found.map(drop).map_err(|error| value_problem(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    fn of(command: &str, name: &str, found: Found) -> Result<Vec<OsString>, String> {
        let program = Cli::command();
        let command = program.find_subcommand(command).expect("it is a command");
        words(option(&program, command, name).expect("it has the option"), &found).map(|(_, words)| words)
    }

    fn one(text: &str) -> Found {
        Found::One(text.to_string())
    }

    #[test]
    fn values_become_words() {
        assert_eq!(of("generate", "temp", one("0.5")), Ok(vec!["--temp=0.5".into()]));
        assert_eq!(of("generate", "n_predict", one("-1")), Ok(vec!["--n-predict=-1".into()]));
        let stops = Found::Several(vec!["a".into(), "-b".into()]);
        assert_eq!(of("generate", "stop", stops.clone()), Ok(vec!["--stop=a".into(), "--stop=-b".into()]));
        assert_eq!(of("generate", "ignore-eos", Found::Switch(true)), Ok(vec!["--ignore-eos".into()]));
        assert_eq!(of("generate", "ignore-eos", Found::Switch(false)), Ok(vec![]));
        assert_eq!(of("generate", "show-drafts", Found::Switch(true)), Ok(vec!["--show-drafts".into()]));
        assert_eq!(of("generate", "quiet", Found::Switch(true)), Ok(vec!["--quiet".into()]));
        let wrong = |text: &str| Err(text.to_string());
        assert_eq!(of("generate", "temp", stops), wrong("expected one value, found [\"a\", \"-b\"]"));
        assert_eq!(of("generate", "temp", one("hot")), wrong("expected a number from 0 up, found \"hot\""));
        assert_eq!(of("generate", "ignore-eos", one("yes")), wrong("expected true or false, found \"yes\""));
        let verify = "expected one of exact, rejection, block, found \"maybe\"";
        assert_eq!(of("generate", "verify", one("maybe")), wrong(verify));
    }

    #[test]
    fn options_that_exclude_each_other_are_known() {
        let program = Cli::command();
        let generate = program.find_subcommand("generate").expect("it is a command");
        assert!(exclude(generate, "json", "output_ids") && exclude(generate, "output_ids", "json"));
        assert!(exclude(generate, "prompt", "file") && !exclude(generate, "temp", "top_p"));
        let inspect = program.find_subcommand("inspect").expect("it is a command");
        assert!(exclude(inspect, "place", "model"));
    }
}
