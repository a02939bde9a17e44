//! Defaults of options from a file and the environment, under the names of the options.
//!
//! A default becomes words such as `--name=value`, which are parsed as if they stood on the command line before its own
//! options, so it means what the option means. The command line overrides the environment, which overrides the file. A
//! default that excludes an option of the command line is dropped silently. What the model's `generation_config.json`
//! says, and what the program chooses, is applied by the library.

mod environment;
mod file;

use std::any::TypeId;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command};
use foretoken_console::failure::Failure;

use super::errors::value_problem;
use super::line::{Line, is_named, options, takes_value};
pub use file::user_file;

/// Variables that belong to no option and are read elsewhere.
pub const OTHER_VARIABLES: [&str; 2] = ["FORETOKEN_ISA", "FORETOKEN_API_KEY"];

/// Options that say what to do and not how: they cannot have defaults.
pub const NOT_SETTINGS: [&str; 4] = ["help", "help_all", "version", "config"];

/// Options whose values are secret.
pub const SECRETS: [&str; 1] = ["api_key"];

/// What is shown instead of a secret.
pub const HIDDEN: &str = "(not shown)";

/// Where a default comes from.
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

/// A default that applies to a command line.
#[derive(Clone, Debug)]
pub struct DefaultValue {
    /// The option's name in clap.
    pub id: String,
    /// The option's long name.
    pub name: String,
    /// Its values; "true" or "false" for a flag.
    pub values: Vec<String>,
    /// The default as words of a command line; none for a flag that is off.
    pub words: Vec<OsString>,
    /// Where it comes from.
    pub source: Source,
}

/// The line that `-v` prints: where the default comes from, the option and its values.
impl fmt::Display for DefaultValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = if SECRETS.contains(&self.id.as_str()) { HIDDEN.to_string() } else { self.values.join(",") };
        write!(f, "{}: {} {values}", self.source, self.name)
    }
}

/// A value as the file or the environment has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawValue {
    /// True or false.
    Switch(bool),
    /// A number or a text.
    One(String),
    /// A list of numbers or texts.
    Several(Vec<String>),
}

impl fmt::Display for RawValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(on) => write!(f, "{on}"),
            Self::One(text) => write!(f, "{text:?}"),
            Self::Several(texts) => write!(f, "{texts:?}"),
        }
    }
}

/// The defaults of a command line.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// The defaults that apply.
    pub values: Vec<DefaultValue>,
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// Variables that begin with `FORETOKEN_` and name no option.
    pub unknown_variables: Vec<String>,
}

impl Defaults {
    /// Reads the file and the environment.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is no option's name or not a value of its option.
    pub fn read(line: &Line, program: &Command) -> Result<Self, Failure> {
        let file = file::locate(line)?;
        let (from_environment, unknown_variables) = environment::read(line, program)?;
        let from_file = file.as_deref().map_or(Ok(Vec::new()), |path| file::read(path, line, program))?;
        let command = line.command(program);
        let mut values: Vec<DefaultValue> = Vec::new();
        for default in from_environment.into_iter().chain(from_file) {
            let stronger = values.iter().map(|default| default.id.as_str());
            let stronger = stronger.chain(line.given.iter().map(|given| given.id.as_str()));
            let stronger: Vec<&str> = stronger.chain(positionals(line, command)).collect();
            if !stronger.iter().any(|other| *other == default.id || exclude(command, other, &default.id)) {
                values.push(default);
            }
        }
        Ok(Self { values, file, unknown_variables })
    }
}

/// The names of positional arguments that a line gives.
fn positionals<'a>(line: &Line, command: &'a Command) -> impl Iterator<Item = &'a str> {
    command.get_positionals().take(line.positionals.len()).map(|arg| arg.get_id().as_str())
}

/// Pairs of options of which the later one counts: either one on the command line drops a default of the other.
const OVERRIDING: [(&str, &str); 2] = [("quiet", "verbose"), ("display_prompt", "no_display_prompt")];

/// Whether two arguments of a command cannot be given together.
fn exclude(command: &Command, one: &str, other: &str) -> bool {
    let conflict = |one: &str, other: &str| {
        let arg = command.get_arguments().find(|arg| arg.get_id() == one);
        arg.is_some_and(|arg| command.get_arg_conflicts_with(arg).iter().any(|arg| arg.get_id() == other))
    };
    let in_one_group = command.get_groups().any(|group| {
        let has = |id: &str| group.get_args().any(|arg| arg == id);
        has(one) && has(other) && !group.clone().is_multiple()
    });
    let overriding = OVERRIDING.contains(&(one, other)) || OVERRIDING.contains(&(other, one));
    in_one_group || overriding || conflict(one, other) || conflict(other, one)
}

/// The option of a command that has this name, with dashes or underlines.
fn option<'a>(program: &'a Command, command: &'a Command, name: &str) -> Option<&'a Arg> {
    let dashed = name.replace('_', "-");
    options(program, command)
        .find(|option| is_named(option, &dashed) && !NOT_SETTINGS.contains(&option.get_id().as_str()))
}

/// The long names of the options of all commands.
fn all_names(program: &Command) -> Vec<&str> {
    let own = program.get_arguments().filter(|arg| !NOT_SETTINGS.contains(&arg.get_id().as_str()));
    let subcommands = program.get_subcommands().flat_map(all_names);
    own.filter_map(Arg::get_long).chain(subcommands).collect()
}

/// Whether some command has an option of this name.
fn is_known(program: &Command, name: &str) -> bool {
    let commands = || program.get_subcommands();
    option(program, program, name).is_some() || commands().any(|command| is_known(command, name))
}

/// The values of an option, and the words that give them on a command line.
///
/// # Errors
/// The option has no such value; the message says what was expected and what was found.
pub fn words(option: &Arg, found: &RawValue) -> Result<(Vec<String>, Vec<OsString>), String> {
    let long = option.get_long().unwrap_or_default();
    let bare = || Ok((vec!["true".to_string()], vec![format!("--{long}").into()]));
    let many = matches!(option.get_action(), ArgAction::Append) || option.get_value_delimiter().is_some();
    let optional = option.get_num_args().is_some_and(|range| range.min_values() == 0);
    let values = match found {
        RawValue::Switch(true) if !takes_value(option) || optional => return bare(),
        RawValue::Switch(false) if !takes_value(option) || optional => {
            return Ok((vec!["false".to_string()], Vec::new()));
        }
        _ if !takes_value(option) => return Err(format!("expected true or false, found {found}")),
        RawValue::Several(_) if !many => return Err(format!("expected one value, found {found}")),
        // A server without keys answers everybody, which must not happen because a list is empty.
        RawValue::Several(texts) if texts.is_empty() && SECRETS.contains(&option.get_id().as_str()) => {
            return Err("expected at least one, found []".to_string());
        }
        RawValue::Switch(on) => vec![on.to_string()],
        RawValue::One(text) => vec![text.clone()],
        RawValue::Several(texts) => texts.clone(),
    };
    let values: Vec<String> = values.into_iter().map(|value| expand_home(option, value)).collect();
    for value in &values {
        check(option, value).map_err(|(expected, found)| format!("{expected}, found {found}"))?;
    }
    let words = values.iter().map(|value| format!("--{long}={value}").into()).collect();
    Ok((values, words))
}

/// Replaces a leading `~/` of a path, which no shell has expanded.
fn expand_home(option: &Arg, value: String) -> String {
    let is_path = option.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    match (value.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) if is_path => home.join(rest).display().to_string(),
        _ => value,
    }
}

/// Checks a value by the option's own parser. The error has what was expected and what was found.
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

    fn words_of(command: &str, name: &str, found: RawValue) -> Result<Vec<OsString>, String> {
        let program = Cli::command();
        let command = program.find_subcommand(command).expect("it is a command");
        words(option(&program, command, name).expect("it has the option"), &found).map(|(_, words)| words)
    }

    fn one(text: &str) -> RawValue {
        RawValue::One(text.to_string())
    }

    #[test]
    fn values_become_words() {
        assert_eq!(words_of("generate", "temp", one("0.5")), Ok(vec!["--temp=0.5".into()]));
        assert_eq!(words_of("generate", "n_predict", one("-1")), Ok(vec!["--n-predict=-1".into()]));
        let stops = RawValue::Several(vec!["a".into(), "-b".into()]);
        assert_eq!(words_of("generate", "stop", stops.clone()), Ok(vec!["--stop=a".into(), "--stop=-b".into()]));
        assert_eq!(words_of("generate", "ignore-eos", RawValue::Switch(true)), Ok(vec!["--ignore-eos".into()]));
        assert_eq!(words_of("generate", "ignore-eos", RawValue::Switch(false)), Ok(vec![]));
        assert_eq!(words_of("generate", "show-drafts", RawValue::Switch(true)), Ok(vec!["--show-drafts".into()]));
        assert_eq!(words_of("generate", "quiet", RawValue::Switch(true)), Ok(vec!["--quiet".into()]));
        let wrong = |text: &str| Err(text.to_string());
        assert_eq!(words_of("generate", "temp", stops), wrong("expected one value, found [\"a\", \"-b\"]"));
        assert_eq!(words_of("generate", "temp", one("hot")), wrong("expected a number from 0 up, found \"hot\""));
        assert_eq!(words_of("generate", "ignore-eos", one("yes")), wrong("expected true or false, found \"yes\""));
        let verify = "expected one of exact, rejection, block, found \"maybe\"";
        assert_eq!(words_of("generate", "verify", one("maybe")), wrong(verify));
    }

    #[test]
    fn exclusions_are_found() {
        let program = Cli::command();
        let generate = program.find_subcommand("generate").expect("it is a command");
        assert!(exclude(generate, "json", "output_ids") && exclude(generate, "output_ids", "json"));
        assert!(exclude(generate, "prompt", "file") && !exclude(generate, "temp", "top_p"));
        let inspect = program.find_subcommand("inspect").expect("it is a command");
        assert!(exclude(inspect, "place", "model"));
    }
}
