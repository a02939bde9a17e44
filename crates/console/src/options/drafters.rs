//! Options of each kind of drafter, from the library's tables, and of the texts that drafters learn before a run.
//!
//! Options that all drafters share are in `speculation.rs`.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};
use foretoken::drafters::{DrafterOption, DrafterSettings, Field};
use foretoken::settings::{MemorySettings, NgramSource};

use crate::values;

/// Options of the drafters that need no model.
#[derive(Clone, Debug)]
pub struct DrafterOptions {
    settings: DrafterSettings,
}

impl DrafterOptions {
    /// The library's settings.
    pub fn settings(&self) -> DrafterSettings {
        self.settings.clone()
    }
}

impl Args for DrafterOptions {
    fn augment_args(command: Command) -> Command {
        command.args(DrafterSettings::options().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for DrafterOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut options = Self { settings: DrafterSettings::default() };
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for option in DrafterSettings::options() {
            match (option.field)(&mut self.settings) {
                Field::Path(path) => *path = matches.get_one::<PathBuf>(&id(option)).cloned(),
                field => {
                    let word = matches.get_one::<String>(&id(option));
                    let set = word.map_or(Ok(()), |word| field.set(word));
                    set.map_err(|why| Error::raw(ErrorKind::ValueValidation, why))?;
                }
            }
        }
        Ok(())
    }
}

/// The name in clap, with underscores instead of dashes.
fn id(option: &DrafterOption) -> String {
    option.long.replace('-', "_")
}

/// The clap argument of an option.
fn arg(option: &'static DrafterOption) -> Arg {
    let mut defaults = DrafterSettings::default();
    let field = (option.field)(&mut defaults);
    let checked = move |word: &str| -> Result<String, String> {
        (option.field)(&mut DrafterSettings::default()).set(word)?;
        Ok(word.to_string())
    };
    let arg = Arg::new(id(option)).long(option.long).help(option.help).help_heading("Drafters");
    let arg = arg.action(ArgAction::Set).value_name(field.value_name()).default_values(field.word());
    match field {
        Field::Path(_) => arg.value_parser(value_parser!(PathBuf)),
        Field::Texts(_) => arg.value_parser(values::names_of::<NgramSource>()).hide_possible_values(true),
        Field::Mode(..) => arg.value_parser(checked),
        _ => arg.value_parser(checked).allow_negative_numbers(true),
    }
}

/// Texts that drafters learn before a run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Texts for drafters")]
pub struct MemoryOptions {
    /// Texts that drafters learn before the first prompt: a file that `foretoken lookup build` wrote
    #[arg(long, value_name = "FILE")]
    pub lookup_cache_static: Option<PathBuf>,
    /// The same with the texts of earlier runs, read if it exists; generate and chat add theirs, check and bench only
    /// read it. Under --verify rejection or block each run then generates other texts, also for the same seed
    #[arg(long, value_name = "FILE")]
    pub lookup_cache_dynamic: Option<PathBuf>,
    /// Most tokens kept in that file, those of the newest texts; a file that has more is refused
    #[arg(long, value_name = "N", default_value = "1048576",
        value_parser = values::one_up, allow_negative_numbers = true)]
    pub lookup_cache_tokens: usize,
}

impl MemoryOptions {
    /// The library's settings. Texts of earlier runs are used only for requests of their own tenant.
    pub fn settings(&self) -> MemorySettings {
        MemorySettings {
            lookup_cache_static: self.lookup_cache_static.clone(),
            lookup_cache_dynamic: self.lookup_cache_dynamic.clone(),
            lookup_cache_tokens: self.lookup_cache_tokens,
            shared: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        own: DrafterOptions,
        #[command(flatten)]
        memory: MemoryOptions,
    }

    #[test]
    fn defaults_are_the_librarys() {
        let Line { own, memory } = Line::parse_from(["line"]);
        assert_eq!(own.settings(), DrafterSettings::default());
        assert_eq!(memory.settings(), MemorySettings::default());
    }
}
