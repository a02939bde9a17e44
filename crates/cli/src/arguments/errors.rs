//! Errors of a command line, each in one line: the option, what was expected, what was found.
//!
//! All unknown options are named at once, each with the nearest name, or with our name for it if it is an option of
//! another program. Errors of clap are rewritten in this program's form.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use foretoken_console::failure::Failure;

use super::line::{Line, UnknownOption, group_by_reason, is_named, options};
use super::other_programs::COMMANDS;

/// The Jaro-Winkler similarity from which a name is suggested.
const SIMILARITY_MIN: f64 = 0.8;

/// The name that is most similar to an unknown one, if any is similar enough.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let similarities = names.map(|other| (strsim::jaro_winkler(name, other), other));
    let best = similarities.max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(similarity, _)| *similarity >= SIMILARITY_MIN).map(|(_, name)| name)
}

/// Refuses options that the command does not have.
///
/// # Errors
/// The line has such options. The message names all of them, and what may have been meant.
pub fn check(line: &Line, program: &Command) -> Result<(), Failure> {
    let problems = line.unknown.iter().map(|unknown| (unknown.name.clone(), expected(unknown, line, program)));
    let problems: Vec<String> = group_by_reason(problems)
        .into_iter()
        .map(|(names, expected)| format!("{}: {expected}", names.join(", ")))
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(Failure::Usage(problems.join("; "))) }
}

/// What was expected instead of an option that the command does not have.
fn expected(UnknownOption { name, hint, .. }: &UnknownOption, line: &Line, program: &Command) -> String {
    if let Some(hint) = hint {
        return hint.clone();
    }
    let command = line.command(program);
    let command_name = [&["foretoken".to_string()], line.path.as_slice()].concat().join(" ");
    let bare = name.trim_start_matches('-');
    let others = commands_with(program, &|option| match bare.len() {
        1 => option.get_short().is_some_and(|short| bare.starts_with(short)),
        _ => is_named(option, bare),
    });
    if !others.is_empty() {
        let others = others.join(", ");
        return format!("expected an option of {command_name}, found one of {others}");
    }
    let longs: Vec<&str> = options(program, command).filter_map(Arg::get_long).collect();
    let suggestion = match nearest(bare, longs.into_iter()) {
        Some(long) if bare.len() > 1 => format!("did you mean --{long}?"),
        _ => format!("{command_name} --help shows them"),
    };
    format!("expected an option of {command_name}; {suggestion}")
}

/// The names of the commands that have such an option.
fn commands_with(program: &Command, predicate: &dyn Fn(&Arg) -> bool) -> Vec<String> {
    let mut names = Vec::new();
    for command in program.get_subcommands() {
        if command.get_arguments().any(predicate) {
            names.push(command.get_name().to_string());
        }
        let name = |subcommand: &String| format!("{} {subcommand}", command.get_name());
        names.extend(commands_with(command, predicate).iter().map(name));
    }
    names
}

/// The error for an unknown word in the place of a command.
pub fn unknown_command(word: &str, program: &Command) -> Failure {
    if let Some((_, ours)) = COMMANDS.iter().find(|(name, _)| *name == word) {
        return Failure::Usage(format!("{word}: expected {ours}"));
    }
    let suggestion = match nearest(word, program.get_subcommands().map(Command::get_name)) {
        Some(name) => format!("did you mean {name}?"),
        None => "foretoken -h shows the commands".to_string(),
    };
    Failure::Usage(format!(
        "{word}: expected a command or a model (a directory, a .gguf file or org/name), found neither; {suggestion}"
    ))
}

/// An error of clap, in one line.
pub fn in_one_line(error: &clap::Error, line: &Line) -> Failure {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let option = context(ContextKind::InvalidArg).unwrap_or_default();
    let command_name = line.path.join(" ");
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
            let found = if command_name.is_empty() {
                String::new()
            } else {
                format!("; foretoken {command_name} -h shows how")
            };
            format!("{command_name}: expected {option}, found none{found}")
        }
        ErrorKind::InvalidSubcommand => {
            let found = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("{command_name}: expected what to do (foretoken {command_name} -h shows it), found {found:?}")
        }
        ErrorKind::UnknownArgument => {
            let hint = match line.path.first().map(String::as_str) {
                Some("generate" | "chat") => "; a prompt of several words stands in quotes",
                Some("serve") => "; foretoken generate goes on with a prompt",
                _ => "",
            };
            format!("{command_name}: expected no further word, found {option:?}{hint}")
        }
        _ => first_paragraph(&error.to_string()),
    })
}

/// What was expected as the value of an option, and what was found.
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

/// The name in clap's "--temp <T>", as the user wrote it, or in "<CORPUS>...", which is no option.
fn name_in(option: &str) -> &str {
    option.trim_start_matches('<').split([' ', '=', '[', '>']).next().unwrap_or_default()
}

/// clap's message without the usage and the hint at the help.
fn first_paragraph(text: &str) -> String {
    let end = text.find("\n\nUsage:").or_else(|| text.find("\n\nFor more")).unwrap_or(text.len());
    text[..end].trim_start_matches("error: ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_values() {
        assert_eq!(
            ["--temp <T>", "--limit=<N>", "<CORPUS>...", "-n"].map(name_in),
            ["--temp", "--limit", "CORPUS", "-n"]
        );
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let names = ["temp", "top-p", "threads"];
        assert_eq!(nearest("tmep", names.into_iter()), Some("temp"));
        assert_eq!(nearest("thread", names.into_iter()), Some("threads"));
        assert_eq!(nearest("frobnicate", names.into_iter()), None);
    }
}
