//! Defaults of options in a file, `config.toml`, whose keys are the names of options.
//!
//! Keys at the top apply to every command that has the option. Keys in a section, as `[generate]` or `[bench.pass]`,
//! apply to that command alone and override those at the top. A key that no command knows is an error with its line
//! number, so that a misspelt default is not silently ignored.

use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use foretoken::whole;
use foretoken::whole::SETTINGS_BYTES_MAX;
use foretoken_console::failure::Failure;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::environment::variable;
use super::{DefaultValue, RawValue, Source, all_names, is_known, option, words};
use crate::arguments::errors::nearest;
use crate::arguments::line::{Line, command_of, options};

/// The file for a line: the one that the line or the environment names, else the user's own if it exists.
///
/// # Errors
/// A file is named that does not exist.
pub fn locate(line: &Line) -> Result<Option<PathBuf>, Failure> {
    let named = match line.value("config") {
        Some(path) => Some(PathBuf::from(path)),
        None => std::env::var_os(variable("config")).filter(|path| !path.is_empty()).map(PathBuf::from),
    };
    match named {
        Some(path) if path.as_os_str().is_empty() => {
            Err(Failure::Usage("--config: expected a value, found none".to_string()))
        }
        Some(path) => match std::fs::metadata(&path) {
            Ok(_) => Ok(Some(path)),
            Err(error) => Err(Failure::file(&path, &error)),
        },
        None => Ok(user_file().filter(|path| path.exists())),
    }
}

/// The path of the user's own file: below `XDG_CONFIG_HOME`, else below `~/.config`.
pub fn user_file() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".config")))?;
    Some(folder.join("foretoken").join("config.toml"))
}

/// Reads the defaults of a file for a line; those of the command's own sections come first.
///
/// # Errors
/// The file cannot be read, or something in it is no option's name or not a value of its option. The message has the
/// line.
pub fn read(path: &Path, line: &Line, program: &Command) -> Result<Vec<DefaultValue>, Failure> {
    let text = whole::read_text(path, SETTINGS_BYTES_MAX).map_err(|error| Failure::file(path, &error))?;
    let file = File { path, text: &text, program, line };
    let table = DeTable::parse(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        file.error_at(at, &format!("expected TOML, found: {}", error.message()))
    })?;
    let mut defaults = Vec::new();
    file.section(table.get_ref(), &[], &mut defaults)?;
    // A section overrides what is above it.
    defaults.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
    Ok(defaults.into_iter().map(|(_, default)| default).collect())
}

/// The file that is being read.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
    program: &'a Command,
    line: &'a Line,
}

impl File<'_> {
    /// Reads the keys of a section, or those at the top. Each default is added with the depth of its section.
    fn section(
        &self,
        table: &DeTable<'_>,
        section: &[String],
        defaults: &mut Vec<(usize, DefaultValue)>,
    ) -> Result<(), Failure> {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            let below = [section, &[name.to_string()]].concat();
            match value.get_ref() {
                DeValue::Table(table) if command_of(self.program, &below).is_some() => {
                    self.section(table, &below, defaults)?;
                }
                DeValue::Table(_) => {
                    let names: Vec<&str> = self.command(section).get_subcommands().map(Command::get_name).collect();
                    let expected = "expected a command's name or an option's, found neither";
                    return Err(self.error_at(at, &format!("{name}: {expected}{}", suggestion(name, &names))));
                }
                _ => self.entry((name, at), value, section, defaults)?,
            }
        }
        Ok(())
    }

    /// Reads one option's default.
    fn entry(
        &self,
        (name, at): (&str, usize),
        value: &Spanned<DeValue<'_>>,
        section: &[String],
        defaults: &mut Vec<(usize, DefaultValue)>,
    ) -> Result<(), Failure> {
        self.check_name(name, at, section)?;
        let command = self.line.command(self.program);
        let Some(option) = option(self.program, command, name).filter(|_| self.line.path.starts_with(section)) else {
            return Ok(());
        };
        let raw_value = raw_value(value.get_ref()).map_err(|found| {
            self.error_at(
                at,
                &format!("{name}: expected true, false, a number, a text or a list of these, found {found}"),
            )
        })?;
        let (values, words) =
            words(option, &raw_value).map_err(|problem| self.error_at(at, &format!("{name}: {problem}")))?;
        let id = option.get_id().to_string();
        let name = option.get_long().unwrap_or_default().to_string();
        let source = Source::File(self.path.to_owned(), self.line_of(at));
        defaults.push((section.len(), DefaultValue { id, name, values, words, source }));
        Ok(())
    }

    /// Refuses a name that is no option of the section's command, or of any command at the top.
    fn check_name(&self, name: &str, at: usize, section: &[String]) -> Result<(), Failure> {
        let command = self.command(section);
        let here = option(self.program, command, name).is_some() || is_known(command, name);
        let anywhere = here || is_known(self.program, name);
        let called = section.join(" ");
        let (expected, names): (String, Vec<&str>) = match (here, anywhere) {
            (true, _) => return Ok(()),
            (false, true) => {
                let message = format!("{name}: expected an option of {called}, found one of other commands");
                return Err(self.error_at(at, &message));
            }
            (false, false) if section.is_empty() => ("an option's name".to_string(), all_names(self.program)),
            (false, false) => {
                let own = options(self.program, command).filter_map(Arg::get_long);
                (format!("an option of {called}"), own.chain(all_names(command)).collect())
            }
        };
        Err(self.error_at(at, &format!("{name}: expected {expected}, found no such{}", suggestion(name, &names))))
    }

    fn command(&self, section: &[String]) -> &Command {
        command_of(self.program, section).unwrap_or(self.program)
    }

    fn error_at(&self, at: usize, problem: &str) -> Failure {
        Failure::Other(format!("{}: line {}: {problem}", self.path.display(), self.line_of(at)))
    }

    /// The number of the line at this byte, from 1.
    fn line_of(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }
}

/// The question whether a similar name was meant, if there is one.
fn suggestion(name: &str, names: &[&str]) -> String {
    let dashed = name.replace('_', "-");
    nearest(&dashed, names.iter().copied()).map_or(String::new(), |name| format!("; did you mean {name}?"))
}

/// A value of the file. The error says what it is, if no option can have it.
fn raw_value(value: &DeValue<'_>) -> Result<RawValue, &'static str> {
    Ok(match value {
        DeValue::Boolean(on) => RawValue::Switch(*on),
        DeValue::Array(items) => {
            RawValue::Several(items.iter().map(|item| scalar(item.get_ref())).collect::<Result<_, _>>()?)
        }
        other => RawValue::One(scalar(other)?),
    })
}

fn scalar(value: &DeValue<'_>) -> Result<String, &'static str> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_string()),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Ok(number.to_string()),
            Err(_) => Err("a number that is too large"),
        },
        DeValue::Boolean(on) => Ok(on.to_string()),
        DeValue::Datetime(_) => Err("a date"),
        DeValue::Array(_) => Err("a list in a list"),
        DeValue::Table(_) => Err("a table"),
    }
}
