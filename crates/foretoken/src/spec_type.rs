//! The syntax of `spec_type`: which drafters a request has.
//!
//! ```text
//! none | auto | DRAFTER,DRAFTER,..         several draft one tree in this order; `+` is a comma too
//! DRAFTER = NAME | NAME:DRAFTER            the second drafts for the model of the first, up to 8 nested drafters
//!         | exit:LAYERS                    the target's own first layers
//! ```
//!
//! Which drafters are available depends on the settings' models and files (`settings/speculation.rs`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use crate::drafters::DrafterKind;
use crate::drafters::DraftsFrom;

/// The most nested drafters, including the outermost.
const DEPTH_MAX: usize = 8;

/// A kind of drafter, and the inner drafter that drafts for its model, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrafterSpec {
    /// Its kind.
    pub kind: DrafterKind,
    /// The drafter that drafts for its model.
    pub inner: Option<Box<DrafterSpec>>,
    /// For an early exit: how many of the target's layers are run. Otherwise 0.
    pub layers: usize,
}

impl DrafterSpec {
    /// A drafter without an inner one.
    pub fn new(kind: DrafterKind) -> Self {
        Self { kind, inner: None, layers: 0 }
    }

    /// Whether it or an inner drafter is of this kind.
    pub fn has(&self, kind: DrafterKind) -> bool {
        self.any(&|other| other == kind)
    }

    /// Whether its kind, or that of an inner drafter, matches.
    pub fn any(&self, matches: &dyn Fn(DrafterKind) -> bool) -> bool {
        matches(self.kind) || self.inner.as_ref().is_some_and(|inner| inner.any(matches))
    }

    /// The number of its draft models, including those of inner drafters.
    pub fn models(&self) -> usize {
        usize::from(self.kind.has_model()) + self.inner.as_ref().map_or(0, |inner| inner.models())
    }
}

impl fmt::Display for DrafterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind.name())?;
        if self.kind == DrafterKind::Exit {
            write!(f, ":{}", self.layers)?;
        }
        self.inner.as_ref().map_or(Ok(()), |inner| write!(f, ":{inner}"))
    }
}

impl FromStr for DrafterSpec {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let depth = word.split(':').count();
        if depth > DEPTH_MAX {
            return Err(format!("expected at most {DEPTH_MAX} drafters inside one another (not {depth})"));
        }
        let (name, inner) = word.split_once(':').map_or((word, None), |(name, inner)| (name, Some(inner)));
        let names: Vec<&str> = DrafterKind::all().map(DrafterKind::name).collect();
        let Some(kind) = DrafterKind::named(name.trim()) else {
            return Err(match name.trim() {
                alone @ ("none" | "auto") => format!("expected {alone} alone"),
                _ => format!("expected one of none, auto, {}", names.join(", ")),
            });
        };
        if kind == DrafterKind::Exit {
            let layers = inner.and_then(|layers| layers.trim().parse().ok()).filter(|layers| *layers > 0);
            let layers = layers.ok_or("expected exit:LAYERS, a number of the model's first layers")?;
            return Ok(Self { layers, ..Self::new(kind) });
        }
        let inner = inner.map(|inner| inner.parse::<Self>()).transpose()?.map(Box::new);
        if inner.is_some() && !kind.has_model() {
            return Err(format!("expected a drafter with a model before the colon (not {})", kind.name()));
        }
        if inner.as_ref().is_some_and(|inner| inner.kind == DrafterKind::Exit) {
            return Err("expected no exit behind a colon: its layers are the target's".to_string());
        }
        let reads_rows = |inner: &&Self| inner.kind.row().drafts_from == DraftsFrom::TargetRows;
        if let Some(inner) = inner.as_deref().filter(reads_rows) {
            let why = "it reads guesses from rows of the target's passes, and passes of a draft model have none for it";
            return Err(format!("expected no {} behind a colon: {why}", inner.kind.name()));
        }
        Ok(Self { inner, ..Self::new(kind) })
    }
}

/// The drafters of a request, such as `draft:lookup+suffix`. Serialized as that string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SpecType {
    /// Plain decoding.
    None,
    /// The available drafters that complement each other, in an order that is learned.
    #[default]
    Auto,
    /// These, in this order.
    Drafters(Vec<DrafterSpec>),
}

impl fmt::Display for SpecType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "none"),
            Self::Auto => write!(f, "auto"),
            Self::Drafters(all) => {
                write!(f, "{}", all.iter().map(ToString::to_string).collect::<Vec<_>>().join("+"))
            }
        }
    }
}

impl FromStr for SpecType {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word.trim() {
            "none" => return Ok(Self::None),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let all: Vec<DrafterSpec> = word.split([',', '+']).map(str::parse).collect::<Result<_, _>>()?;
        // Two `draft`s have different models; any other drafter would only repeat the first of its kind.
        match all.iter().enumerate().find(|(i, spec)| spec.models() == 0 && all[..*i].contains(spec)) {
            Some((_, spec)) => Err(format!("expected {spec} once")),
            None => Ok(Self::Drafters(all)),
        }
    }
}

impl Serialize for SpecType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'a> Deserialize<'a> for SpecType {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        word.parse().map_err(|why| de::Error::custom(format!("{why}, found {word:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(word: &str) -> Result<String, String> {
        word.parse::<SpecType>().map(|found| found.to_string())
    }

    #[test]
    fn parsed_drafters_are_written_by_their_own_names() {
        for (word, expected) in [
            ("none", "none"),
            ("auto", "auto"),
            ("draft", "draft"),
            ("draft-simple,ngram-simple", "draft+lookup"),
            ("draft + lookup", "draft+lookup"),
            ("draft:lookup", "draft:lookup"),
            ("draft:draft:lookup,lookup", "draft:draft:lookup+lookup"),
            ("draft,draft", "draft+draft"),
            ("exit:4,exit: 12,lookup", "exit:4+exit:12+lookup"),
        ] {
            assert_eq!(parsed(word).as_deref(), Ok(expected), "{word}");
        }
        let Ok(SpecType::Drafters(all)) = "draft:draft:lookup,draft".parse::<SpecType>() else {
            panic!("it is a list")
        };
        assert_eq!(all.iter().map(DrafterSpec::models).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn errors_name_what_was_expected() {
        for (word, expected) in [
            ("", "expected one of none, auto, draft"),
            ("magic", "expected one of none, auto, draft"),
            ("draft:magic", "expected one of none, auto, draft"),
            ("draft,none", "expected none alone"),
            ("auto,draft", "expected auto alone"),
            ("draft:auto", "expected auto alone"),
            ("lookup:draft", "expected a drafter with a model before the colon (not lookup)"),
            ("lookup,lookup", "expected lookup once"),
            ("exit", "expected exit:LAYERS, a number of the model's first layers"),
            ("exit:0", "expected exit:LAYERS"),
            ("exit:4:lookup", "expected exit:LAYERS"),
            ("draft:exit:4", "expected no exit behind a colon"),
            ("draft:", "expected one of none, auto, draft"),
            ("draft:jacobi", "expected no jacobi behind a colon: it reads guesses from rows of the target's passes"),
            ("draft:draft:lookahead", "expected no jacobi behind a colon"),
            ("draft:".repeat(8).as_str(), "expected at most 8 drafters inside one another (not 9)"),
        ] {
            let found = parsed(word).expect_err(word);
            assert!(found.starts_with(expected), "{word}: {found}");
        }
    }
}
