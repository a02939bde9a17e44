//! What is wrong with a command line, in one line: the option, what was expected, what was found.
//!
//! An option that is not there is told its nearest name, or what it is called here if another program has it; all of
//! them at once. What clap refuses is said in this program's form. Left out: errors of the commands themselves.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use foretoken_console::failure::Failure;

use super::foreign::COMMANDS;
use super::line::{Line, Unknown, by_reason, is_named, options};

/// Names that are less alike than this are not meant.
const ALIKE_MIN: f64 = 0.8;

/// The name that is most like one that is not there, if any is.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let alike = names.map(|other| (strsim::jaro_winkler(name, other), other));
    let best = alike.max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(alike, _)| *alike >= ALIKE_MIN).map(|(_, name)| name)
}

/// Refuses options that the command does not have.
///
/// # Errors
/// It names all of them, and what may have been meant.
pub fn check(line: &Line, program: &Command) -> Result<(), Failure> {
    let told = line.unknown.iter().map(|unknown| (unknown.name.clone(), expected(unknown, line, program)));
    let told: Vec<String> =
        by_reason(told).into_iter().map(|(names, expected)| format!("{}: {expected}", names.join(", "))).collect();
    if told.is_empty() { Ok(()) } else { Err(Failure::Usage(told.join("; "))) }
}

/// What was expected where an option stands that the command does not have.
fn expected(Unknown { name, hint, .. }: &Unknown, line: &Line, program: &Command) -> String {
    if let Some(hint) = hint {
        return hint.clone();
    }
    let command = line.command(program);
    let called = [&["foretoken".to_string()], line.path.as_slice()].concat().join(" ");
    let bare = name.trim_start_matches('-');
    let others = having(program, &|option| match bare.len() {
        1 => option.get_short().is_some_and(|short| bare.starts_with(short)),
        _ => is_named(option, bare),
    });
    if !others.is_empty() {
        let others = others.join(", ");
        return format!("expected an option of {called}, found one of {others}");
    }
    let longs: Vec<&str> = options(program, command).filter_map(Arg::get_long).collect();
    let meant = match nearest(bare, longs.into_iter()) {
        Some(long) if bare.len() > 1 => format!("did you mean --{long}?"),
        _ => format!("{called} --help shows them"),
    };
    format!("expected an option of {called}; {meant}")
}

/// Names of the commands that have such an option.
fn having(program: &Command, wanted: &dyn Fn(&Arg) -> bool) -> Vec<String> {
    let mut names = Vec::new();
    for command in program.get_subcommands() {
        if command.get_arguments().any(wanted) {
            names.push(command.get_name().to_string());
        }
        let name = |below: &String| format!("{} {below}", command.get_name());
        names.extend(having(command, wanted).iter().map(name));
    }
    names
}

/// A word in a command's place that is none.
pub fn unknown_command(word: &str, program: &Command) -> Failure {
    if let Some((_, ours)) = COMMANDS.iter().find(|(name, _)| *name == word) {
        return Failure::Usage(format!("{word}: expected {ours}"));
    }
    let meant = match nearest(word, program.get_subcommands().map(Command::get_name)) {
        Some(name) => format!("did you mean {name}?"),
        None => "foretoken -h shows the commands".to_string(),
    };
    Failure::Usage(format!(
        "{word}: expected a command or a model (a directory, a .gguf file or org/name), found neither; {meant}"
    ))
}

/// What clap refuses, in one line.
pub fn in_one_line(error: &clap::Error, line: &Line) -> Failure {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let option = context(ContextKind::InvalidArg).unwrap_or_default();
    let called = line.path.join(" ");
    Failure::Usage(match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let (expected, found) = value_problem(error);
            format!("{}: {expected}, found {found}", name_in(&option))
        }
        ErrorKind::ArgumentConflict => match context(ContextKind::PriorArg) {
            Some(prior) => format!("{option}: expected without {prior}, found both"),
            None => first_paragraph(&error.to_string()),
        },
        ErrorKind::MissingRequiredArgument => {
            let found = if called.is_empty() { String::new() } else { format!("; foretoken {called} -h shows how") };
            format!("{called}: expected {option}, found none{found}")
        }
        ErrorKind::InvalidSubcommand => {
            let found = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("{called}: expected what to do (foretoken {called} -h shows it), found {found:?}")
        }
        ErrorKind::UnknownArgument => {
            let hint = match line.path.first().map(String::as_str) {
                Some("generate" | "chat") => "; a prompt of several words stands in quotes",
                Some("serve") => "; foretoken generate goes on with a prompt",
                _ => "",
            };
            format!("{called}: expected no further word, found {option:?}{hint}")
        }
        _ => first_paragraph(&error.to_string()),
    })
}

/// What a value of an option was expected to be, and what it was.
pub fn value_problem(error: &clap::Error) -> (String, String) {
    let found = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) if !value.is_empty() => Some(format!("{value:?}")),
        _ => None,
    };
    if error.kind() == ErrorKind::ValueValidation {
        let expected = error.source().map_or("expected another value".to_string(), ToString::to_string);
        return (expected, found.unwrap_or("nothing".to_string()));
    }
    match (error.get(ContextKind::ValidValue), found) {
        (Some(ContextValue::Strings(valid)), Some(found)) => (format!("expected one of {}", valid.join(", ")), found),
        _ => ("expected a value".to_string(), "none".to_string()),
    }
}

/// "--temp <T>" names the option and its value; the option is what the user wrote. "<CORPUS>..." is no option.
fn name_in(option: &str) -> &str {
    option.trim_start_matches('<').split([' ', '=', '[', '>']).next().unwrap_or_default()
}

/// clap's own words without usage and the hint at the help.
fn first_paragraph(text: &str) -> String {
    let end = text.find("\n\nUsage:").or_else(|| text.find("\n\nFor more")).unwrap_or(text.len());
    text[..end].trim_start_matches("error: ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_named_without_their_values() {
        assert_eq!(
            ["--temp <T>", "--limit=<N>", "<CORPUS>...", "-n"].map(name_in),
            ["--temp", "--limit", "CORPUS", "-n"]
        );
    }

    #[test]
    fn names_that_are_unlike_are_not_meant() {
        let names = ["temp", "top-p", "threads"];
        assert_eq!(nearest("tmep", names.into_iter()), Some("temp"));
        assert_eq!(nearest("thread", names.into_iter()), Some("threads"));
        assert_eq!(nearest("frobnicate", names.into_iter()), None);
    }
}
