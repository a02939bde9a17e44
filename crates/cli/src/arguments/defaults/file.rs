//! The file of defaults: `config.toml`, whose names are those of options.
//!
//! What stands at its top holds for every command that has the option; what stands in a section, `[generate]` or
//! `[bench.pass]`, for that command alone, and counts more. A name that no command knows is an error with its line,
//! since a default that is silently not there is worse than none. Left out: what values mean, which options know.

use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use foretoken::whole;
use foretoken::whole::SETTINGS_BYTES_MAX;
use foretoken_console::failure::Failure;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::environment::variable;
use super::{DefaultValue, Found, Source, all_names, is_known, option, words};
use crate::arguments::line::{Line, command_of, options};
use crate::arguments::wrong::nearest;

/// The file that holds for a line: the one that it or the environment names, else the user's own, if it is there.
///
/// # Errors
/// A file is named that is not there.
pub fn place(line: &Line) -> Result<Option<PathBuf>, Failure> {
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
        None => Ok(users_own().filter(|path| path.exists())),
    }
}

/// Where a user's own file is looked for: below `XDG_CONFIG_HOME`, else `~/.config`.
pub fn users_own() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".config")))?;
    Some(folder.join("foretoken").join("config.toml"))
}

/// The defaults of a file for a line, those of its command's own sections first.
///
/// # Errors
/// The file cannot be read, or something in it is no option's name or not its value: its line, and what is wrong.
pub fn read(path: &Path, line: &Line, program: &Command) -> Result<Vec<DefaultValue>, Failure> {
    let text = whole::read_text(path, SETTINGS_BYTES_MAX).map_err(|error| Failure::file(path, &error))?;
    let file = File { path, text: &text, program, line };
    let table = DeTable::parse(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        file.wrong(at, &format!("expected TOML, found: {}", error.message()))
    })?;
    let mut defaults = Vec::new();
    file.section(table.get_ref(), &[], &mut defaults)?;
    // What stands in a section of the command itself is nearer than what stands above it.
    defaults.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
    Ok(defaults.into_iter().map(|(_, default)| default).collect())
}

/// A file that is being read.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
    program: &'a Command,
    line: &'a Line,
}

impl File<'_> {
    /// Reads what stands in the section of a command, or above all of them. Each default is put beside the depth of its
    /// section.
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
                    return Err(self.wrong(at, &format!("{name}: {expected}{}", meant(name, &names))));
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
        let found = found(value.get_ref()).map_err(|found| {
            self.wrong(at, &format!("{name}: expected true, false, a number, a text or a list of these, found {found}"))
        })?;
        let (values, words) = words(option, &found).map_err(|problem| self.wrong(at, &format!("{name}: {problem}")))?;
        let id = option.get_id().to_string();
        let name = option.get_long().unwrap_or_default().to_string();
        let source = Source::File(self.path.to_owned(), self.line_of(at));
        defaults.push((section.len(), DefaultValue { id, name, values, words, source }));
        Ok(())
    }

    /// Refuses names that are no option's of the section's command, or of any at all.
    fn check_name(&self, name: &str, at: usize, section: &[String]) -> Result<(), Failure> {
        let command = self.command(section);
        let here = option(self.program, command, name).is_some() || is_known(command, name);
        let anywhere = here || is_known(self.program, name);
        let called = section.join(" ");
        let (expected, names): (String, Vec<&str>) = match (here, anywhere) {
            (true, _) => return Ok(()),
            (false, true) => {
                let message = format!("{name}: expected an option of {called}, found one of other commands");
                return Err(self.wrong(at, &message));
            }
            (false, false) if section.is_empty() => ("an option's name".to_string(), all_names(self.program)),
            (false, false) => {
                let own = options(self.program, command).filter_map(Arg::get_long);
                (format!("an option of {called}"), own.chain(all_names(command)).collect())
            }
        };
        Err(self.wrong(at, &format!("{name}: expected {expected}, found no such{}", meant(name, &names))))
    }

    fn command(&self, section: &[String]) -> &Command {
        command_of(self.program, section).unwrap_or(self.program)
    }

    fn wrong(&self, at: usize, problem: &str) -> Failure {
        Failure::Other(format!("{}: line {}: {problem}", self.path.display(), self.line_of(at)))
    }

    /// The line of a place in the text, from 1.
    fn line_of(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }
}

/// The question that helps where a name is not there.
fn meant(name: &str, names: &[&str]) -> String {
    let dashed = name.replace('_', "-");
    nearest(&dashed, names.iter().copied()).map_or(String::new(), |name| format!("; did you mean {name}?"))
}

/// A value of the file; what it is instead if it can be none of an option's.
fn found(value: &DeValue<'_>) -> Result<Found, &'static str> {
    Ok(match value {
        DeValue::Boolean(on) => Found::Switch(*on),
        DeValue::Array(items) => {
            Found::Several(items.iter().map(|item| one(item.get_ref())).collect::<Result<_, _>>()?)
        }
        other => Found::One(one(other)?),
    })
}

fn one(value: &DeValue<'_>) -> Result<String, &'static str> {
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
