//! What is evaluated: a drafter that needs no model, or several that fill one tree.
//!
//! Names are those of `--spec-type`, and two more for prompt lookup as in other programs, for comparison; a + joins
//! names. `auto` is the default of other commands. Drafters with a network cannot be replayed, nor those that read rows
//! of the target or predictions, which records do not have.

use std::str::FromStr;

use foretoken::SpecType;
use foretoken::drafters::{DrafterInputs, DrafterKind, DrafterSettings, DraftsFrom};
use foretoken::settings::SpeculationSettings;
use foretoken::spec_type::DrafterSpec;
use foretoken_console::failure::Failure;
use foretoken_drafters::SuffixDrafter;
use foretoken_engine::Order;
use foretoken_speculation::Drafter;

/// A drafter that can be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateDrafter {
    /// A drafter of this library.
    Own(DrafterKind),
    /// Plain prompt lookup, a chain after the latest match.
    LookupLatest,
    /// Plain prompt lookup, a chain after the earliest match, as in transformers.
    LookupFirst,
    /// The drafters of `auto`.
    Auto,
}

impl CandidateDrafter {
    /// Those that draft from texts, and random tokens; records have no grammar to draft from.
    fn all() -> Vec<Self> {
        let is_listed = |kind: &DrafterKind| matches!(kind.row().drafts_from, DraftsFrom::Texts | DraftsFrom::Nothing);
        let each = |kind| match kind {
            DrafterKind::Lookup => vec![Self::Own(kind), Self::LookupLatest, Self::LookupFirst],
            kind => vec![Self::Own(kind)],
        };
        DrafterKind::all().filter(is_listed).flat_map(each).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Own(kind) => kind.name(),
            Self::LookupLatest => "lookup-latest",
            Self::LookupFirst => "lookup-first",
            Self::Auto => "auto",
        }
    }

    /// Parses a name of `--spec-type`, including llama.cpp's, or one of those that exist only here.
    fn named(word: &str) -> Result<Self, String> {
        let own = [Self::LookupLatest, Self::LookupFirst, Self::Auto]
            .into_iter()
            .find(|drafter_kind| drafter_kind.name() == word.trim());
        if let Some(own) = own {
            return Ok(own);
        }
        let kind = word.parse::<DrafterSpec>().ok().map(|spec| spec.kind);
        match kind.map(|kind| (kind, kind.row().drafts_from)) {
            Some((kind, DraftsFrom::TargetRows)) => {
                let why = "it reads its guesses from rows of the target's passes, which no record holds";
                Err(format!("expected drafters that need no target, not {}: {why}", kind.name()))
            }
            Some((kind, DraftsFrom::Prediction)) => {
                let expected = "expected drafters that need no prediction";
                Err(format!("{expected}, not {}: no record holds one", kind.name()))
            }
            None | Some((_, DraftsFrom::Model | DraftsFrom::FirstLayers)) => {
                let names = Self::all().into_iter().map(Self::name).collect::<Vec<_>>().join(", ");
                Err(format!("expected drafters without a model ({names}), joined by +"))
            }
            Some((kind, _)) => Ok(Self::Own(kind)),
        }
    }
}

/// One drafter, or several in the order in which they draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate(Vec<CandidateDrafter>);

impl Candidate {
    /// Every drafter but random, each alone.
    pub fn all(settings: &DrafterSettings) -> Vec<Self> {
        let is_useful = |drafter_kind: &CandidateDrafter| match drafter_kind {
            CandidateDrafter::Own(kind) => kind.row().drafts_from != DraftsFrom::Nothing && kind.has_its_file(settings),
            _ => true,
        };
        let all = CandidateDrafter::all().into_iter().filter(is_useful);
        all.map(|drafter_kind| Self(vec![drafter_kind])).collect()
    }

    /// The drafters of `auto`.
    pub fn auto() -> Self {
        Self(vec![CandidateDrafter::Auto])
    }

    /// The order in which its drafters draft.
    pub fn order(&self) -> Order {
        if *self == Self::auto() { SpeculationSettings::order(&SpecType::Auto) } else { Order::Given }
    }

    /// Its name on the command line.
    pub fn name(&self) -> String {
        self.0.iter().map(|drafter_kind| drafter_kind.name()).collect::<Vec<_>>().join("+")
    }

    /// New drafters, which have learned nothing. The limits of `inputs.settings` are at least `inputs.nodes_max`.
    ///
    /// # Errors
    /// A file that one of them needs is not given.
    pub fn drafters(&self, inputs: DrafterInputs<'_>) -> Result<Vec<Box<dyn Drafter>>, Failure> {
        let DrafterInputs { settings, nodes_max, .. } = inputs;
        let chain = || SuffixDrafter::lookup_chain(1, settings.lookup.ngram_max, nodes_max);
        let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
        for drafter_kind in &self.0 {
            match drafter_kind {
                CandidateDrafter::Own(kind) => drafters.push(kind.make(&inputs)?),
                CandidateDrafter::LookupLatest => drafters.push(Box::new(chain())),
                CandidateDrafter::LookupFirst => {
                    let mut drafter = chain();
                    drafter.first = true;
                    drafters.push(Box::new(drafter));
                }
                CandidateDrafter::Auto => {
                    let all = SpeculationSettings { drafters: settings.clone(), ..SpeculationSettings::default() };
                    for spec in all.specs(&SpecType::Auto, false)? {
                        drafters.push(spec.kind.make(&inputs)?);
                    }
                }
            }
        }
        Ok(drafters)
    }
}

impl FromStr for Candidate {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let drafters: Vec<CandidateDrafter> = word.split('+').map(CandidateDrafter::named).collect::<Result<_, _>>()?;
        if drafters.len() > 1 && drafters.contains(&CandidateDrafter::Auto) {
            return Err("expected auto alone".to_string());
        }
        match (1..drafters.len()).any(|i| drafters[..i].contains(&drafters[i])) {
            true => Err("expected each drafter once".to_string()),
            false => Ok(Self(drafters)),
        }
    }
}
