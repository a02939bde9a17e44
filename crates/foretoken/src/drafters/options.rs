//! Options of drafters: the setting of each, its range, and its description in help.
//!
//! Each drafter has a table of options beside its settings. The check of settings and the parsers of front ends read
//! the ranges of these tables.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use foretoken_drafters::{BranchSource, Layout, NgramSource, RetrievalRule};

use super::DrafterSettings;
use crate::error::Error;
use crate::names::Named;

/// The largest whole number; messages about a range that ends here do not name its end.
const COUNT_MAX: usize = 1 << 30;
/// Any whole number from 1 up.
pub(super) const ONE_UP: RangeInclusive<usize> = 1..=COUNT_MAX;
/// Any whole number from 0 up.
pub(super) const ANY: RangeInclusive<usize> = 0..=COUNT_MAX;
/// The length of a run of tokens that is looked up. It is limited since each length has its own index.
pub(super) const RUN: RangeInclusive<usize> = 1..=64;
/// The largest factor; messages do not name it.
pub(super) const FACTOR_MAX: f32 = 1e6;

/// A setting of a drafter as an option of a command line.
#[derive(Clone, Copy, Debug)]
pub struct DrafterOption {
    /// The setting's path in [`DrafterSettings`], for messages.
    pub setting: &'static str,
    /// The option's name, which a paper, transformers or llama.cpp gave it.
    pub long: &'static str,
    /// Its description in help, which begins with the drafter's name.
    pub help: &'static str,
    /// The setting's field.
    pub field: fn(&mut DrafterSettings) -> Field<'_>,
}

/// An option without its description in help.
pub(super) const fn option(
    setting: &'static str,
    long: &'static str,
    field: fn(&mut DrafterSettings) -> Field<'_>,
) -> DrafterOption {
    DrafterOption { setting, long, help: "", field }
}

impl DrafterOption {
    /// The option with its description in help.
    pub(super) const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }

    /// Checks that the setting is in the option's range.
    pub(super) fn check(&self, settings: &mut DrafterSettings) -> Result<(), Error> {
        let Some(found) = (self.field)(settings).word() else { return Ok(()) };
        let wrong = |expected: String| Error::setting(self.setting, format!(": {expected}, found {found}"));
        (self.field)(settings).set(&found).map_err(wrong)
    }
}

/// The field of a setting, with its range.
#[derive(Debug)]
pub enum Field<'a> {
    /// The most tokens that the drafter proposes in a pass, from 1.
    Nodes(&'a mut usize),
    /// A whole number in a range.
    Whole(&'a mut usize, RangeInclusive<usize>),
    /// A whole number in a range, or none.
    OptionalWhole(&'a mut Option<usize>, RangeInclusive<usize>),
    /// A number from 0 to this one.
    Number(&'a mut f32, f32),
    /// A number from 0 to this one, or none.
    OptionalNumber(&'a mut Option<f32>, f32),
    /// The texts that an n-gram model counts, by name.
    Texts(&'a mut NgramSource),
    /// The mode of trie lookahead: a layout and a source of texts, joined by a dash or, as its authors write it, an
    /// underscore.
    Mode(&'a mut Layout, &'a mut BranchSource),
    /// A rule of the trie by its name.
    Retrieval(&'a mut RetrievalRule),
    /// A file, or none.
    Path(&'a mut Option<PathBuf>),
}

impl Field<'_> {
    /// Parses a word and sets the field.
    ///
    /// # Errors
    /// The word is invalid; the message says what was expected.
    pub fn set(self, word: &str) -> Result<(), String> {
        match self {
            Self::Nodes(value) => *value = whole(word, &ONE_UP)?,
            Self::Whole(value, range) => *value = whole(word, &range)?,
            Self::OptionalWhole(value, range) => *value = Some(whole(word, &range)?),
            Self::Number(value, most) => *value = number(word, most)?,
            Self::OptionalNumber(value, most) => *value = Some(number(word, most)?),
            Self::Texts(value) => *value = NgramSource::named(word).ok_or("expected one of corpus, text, both")?,
            Self::Mode(layout, source) => (*layout, *source) = mode(word)?,
            Self::Retrieval(value) => {
                *value = RetrievalRule::named(word).ok_or("expected one of interpolated, frequency")?;
            }
            Self::Path(value) => *value = Some(word.into()),
        }
        Ok(())
    }

    /// The field's value as a word, if there is one.
    pub fn word(&self) -> Option<String> {
        Some(match self {
            Self::Nodes(value) | Self::Whole(value, _) => value.to_string(),
            Self::OptionalWhole(value, _) => value.as_ref()?.to_string(),
            Self::Number(value, _) => value.to_string(),
            Self::OptionalNumber(value, _) => value.as_ref()?.to_string(),
            Self::Texts(value) => value.name(),
            Self::Mode(layout, source) => format!("{}-{}", layout.name(), source.name()),
            Self::Retrieval(value) => value.name(),
            Self::Path(value) => value.as_ref()?.display().to_string(),
        })
    }

    /// The placeholder of the value in help.
    pub fn value_name(&self) -> &'static str {
        match self {
            Self::Nodes(_) | Self::Whole(..) | Self::OptionalWhole(..) => "N",
            Self::Number(_, most) | Self::OptionalNumber(_, most) if *most == 1.0 => "P",
            Self::Number(..) | Self::OptionalNumber(..) => "X",
            Self::Texts(_) => "TEXTS",
            Self::Mode(..) => "LAYOUT-TEXTS",
            Self::Retrieval(_) => "RULE",
            Self::Path(_) => "FILE",
        }
    }
}

fn whole(word: &str, range: &RangeInclusive<usize>) -> Result<usize, String> {
    word.parse().ok().filter(|found| range.contains(found)).ok_or_else(|| match (range.start(), range.end()) {
        (least, &COUNT_MAX) => format!("expected a whole number from {least} up"),
        (least, most) => format!("expected a whole number from {least} to {most}"),
    })
}

fn number(word: &str, most: f32) -> Result<f32, String> {
    word.parse().ok().filter(|found| (0.0..=most).contains(found)).ok_or_else(|| match most == FACTOR_MAX {
        true => "expected a number from 0 up".to_string(),
        false => format!("expected a number from 0 to {most}"),
    })
}

fn mode(word: &str) -> Result<(Layout, BranchSource), String> {
    let (layout, source) = word.split_once(['-', '_']).unwrap_or((word, "mix"));
    let wrong = || "expected hier, par or one, with -input, -output or -mix behind it".to_string();
    Layout::from_name(layout).zip(BranchSource::from_name(source)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_of_the_trie_is_a_layout_and_texts() {
        assert_eq!(mode("hier-mix"), Ok((Layout::Hier, BranchSource::Mix)));
        assert_eq!(mode("par_output"), Ok((Layout::Par, BranchSource::Output)));
        assert_eq!(mode("one"), Ok((Layout::One, BranchSource::Mix)));
        for wrong in ["", "mix", "hier-", "tree-mix", "hier-mix-x"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_name_settings_and_take_their_defaults() {
        let settings = serde_json::to_value(DrafterSettings::default()).expect("settings are plain values");
        for option in DrafterSettings::options() {
            assert!(settings.pointer(&format!("/{}", option.setting.replace('.', "/"))).is_some(), "{option:?}");
            assert!(!option.help.is_empty(), "{option:?}");
        }
        assert_eq!(DrafterSettings::default().check(), Ok(()));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        assert_eq!(whole("0", &ONE_UP), Err("expected a whole number from 1 up".to_string()));
        assert_eq!(whole("65", &RUN), Err("expected a whole number from 1 to 64".to_string()));
        for wrong in ["-1", "nan", "inf", "warm", ""] {
            assert_eq!(number(wrong, 1.0), Err("expected a number from 0 to 1".to_string()), "{wrong}");
        }
        let mut settings = DrafterSettings::default();
        settings.suffix.token_min = f32::NAN;
        let error = settings.check().expect_err("it is no number");
        assert_eq!(error.to_string(), "suffix.token_min: expected a number from 0 to 1, found NaN");
    }
}
