//! Who is judged: a drafter that needs no model, or several that share a pass.
//!
//! Names are those of `--spec-type`; a + joins names. Left out: drafters with a network, which a record cannot feed.

use std::str::FromStr;

use clap::ValueEnum;
use foretoken_speculation::{Drafter, LookupDrafter};

use crate::options::SpecType;

/// One drafter, or several in the order in which they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contestant(Vec<SpecType>);

/// What drafters are told.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most nodes a pass.
    pub nodes_max: usize,
    /// Longest run of last tokens that is searched for.
    pub run_len: usize,
}

/// The drafter of a kind; `None` if it needs a model, or is none.
fn drafter(kind: SpecType, settings: &Settings) -> Option<Box<dyn Drafter>> {
    match kind {
        SpecType::Lookup => Some(Box::new(LookupDrafter::new(1, settings.run_len, settings.nodes_max))),
        _ => None,
    }
}

/// Whether a record can play the target of this kind of drafter.
fn is_model_free(kind: SpecType) -> bool {
    drafter(kind, &Settings { nodes_max: 1, run_len: 1 }).is_some()
}

fn name(kind: SpecType) -> String {
    kind.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
}

impl Contestant {
    /// Every drafter that needs no model, each alone.
    pub fn all() -> Vec<Self> {
        let kinds = SpecType::value_variants().iter().copied();
        kinds.filter(|kind| is_model_free(*kind)).map(|kind| Self(vec![kind])).collect()
    }

    /// As on the command line.
    pub fn name(&self) -> String {
        self.0.iter().map(|kind| name(*kind)).collect::<Vec<_>>().join("+")
    }

    /// New drafters that know nothing yet.
    pub fn drafters(&self, settings: &Settings) -> Vec<Box<dyn Drafter>> {
        self.0.iter().filter_map(|kind| drafter(*kind, settings)).collect()
    }
}

impl FromStr for Contestant {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let kinds: Option<Vec<SpecType>> = word.split('+').map(|name| SpecType::from_str(name, false).ok()).collect();
        let all = || Self::all().iter().map(Self::name).collect::<Vec<_>>().join(", ");
        let kinds = kinds.filter(|kinds| kinds.iter().all(|kind| is_model_free(*kind)));
        let kinds = kinds.ok_or_else(|| format!("expected drafters without a model ({}), joined by +", all()))?;
        match (1..kinds.len()).any(|i| kinds[..i].contains(&kinds[i])) {
            true => Err("expected each drafter once".to_string()),
            false => Ok(Self(kinds)),
        }
    }
}
