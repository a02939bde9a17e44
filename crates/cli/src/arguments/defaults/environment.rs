//! Defaults of options in environment variables: `FORETOKEN_TOP_P=0.9` is `--top-p 0.9`.
//!
//! Only variables of the command's own options are read. Others may be for another command or for a test of the
//! program, so they are no error; `foretoken config` alone reports those that name no option.

use clap::Command;
use foretoken_console::failure::Failure;

use super::{DefaultValue, OTHER_VARIABLES, RawValue, Source, all_names, option, takes_value, words};
use crate::arguments::line::Line;

const PREFIX: &str = "FORETOKEN_";

/// The variable of an option.
pub fn variable(long: &str) -> String {
    format!("{PREFIX}{}", long.replace('-', "_").to_uppercase())
}

/// Reads the defaults of a line, and the variables that name no option of any command.
///
/// # Errors
/// A variable has a value that its option does not take.
pub fn read(line: &Line, program: &Command) -> Result<(Vec<DefaultValue>, Vec<String>), Failure> {
    let (mut defaults, mut unknown) = (Vec::new(), Vec::new());
    let ours = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let mut ours: Vec<_> = ours.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    ours.sort();
    let names = all_names(program);
    for (variable_name, value) in ours {
        if OTHER_VARIABLES.contains(&variable_name.as_str()) || variable_name == variable("config") {
            continue;
        }
        let name = variable_name[PREFIX.len()..].to_lowercase().replace('_', "-");
        let Some(option) = option(program, line.command(program), &name) else {
            if !names.contains(&name.as_str()) {
                unknown.push(variable_name);
            }
            continue;
        };
        let wrong = |problem: String| Failure::Usage(format!("{variable_name}: {problem}"));
        let value = value.into_string().map_err(|_| wrong("expected text, found other bytes".into()))?;
        // An empty value counts as unset, so that a script can clear a variable.
        if value.is_empty() {
            continue;
        }
        let found = match value.as_str() {
            "1" | "true" if !takes_value(option) => RawValue::Switch(true),
            "0" | "false" if !takes_value(option) => RawValue::Switch(false),
            _ => RawValue::One(value),
        };
        let (values, words) = words(option, &found).map_err(wrong)?;
        let id = option.get_id().to_string();
        let name = option.get_long().unwrap_or_default().to_string();
        defaults.push(DefaultValue { id, name, values, words, source: Source::Environment(variable_name) });
    }
    Ok((defaults, unknown))
}
