//! What is evaluated: a drafter that needs no model, or several that fill one tree.
//!
//! Names are those of `--spec-type`, and two more for prompt lookup as in other programs, for comparison; a + joins
//! names. `auto` is the default of other commands. Drafters with a network cannot be replayed, nor Jacobi lookahead,
//! which needs extra rows of the target, nor predictions, which records do not have.

use std::str::FromStr;

use foretoken::SpecType;
use foretoken::generator::without_model;
use foretoken::settings::{DrafterSettings, SpeculationSettings};
use foretoken::spec_type::{DrafterKind, DrafterSpec};
use foretoken_console::failure::Failure;
use foretoken_drafters::SuffixDrafter;
use foretoken_engine::Order;
use foretoken_speculation::Drafter;
use foretoken_text::Tokenizer;

/// A drafter that can be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateDrafter {
    /// A drafter of this library.
    Own(DrafterKind),
    /// Plain prompt lookup, a chain after the latest match.
    LookupLatest,
    /// The same after the earliest match, as in transformers.
    LookupFirst,
    /// The drafters of `auto`.
    Auto,
}

const ALL: [CandidateDrafter; 9] = [
    CandidateDrafter::Own(DrafterKind::Lookup),
    CandidateDrafter::LookupLatest,
    CandidateDrafter::LookupFirst,
    CandidateDrafter::Own(DrafterKind::Llma),
    CandidateDrafter::Own(DrafterKind::Trie),
    CandidateDrafter::Own(DrafterKind::Suffix),
    CandidateDrafter::Own(DrafterKind::Ngram),
    CandidateDrafter::Own(DrafterKind::Phrases),
    CandidateDrafter::Own(DrafterKind::Random),
];

impl CandidateDrafter {
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
        match own.map_or_else(|| word.parse::<DrafterSpec>().map(|spec| Self::Own(spec.kind)), Ok) {
            Ok(Self::Own(DrafterKind::Jacobi)) => {
                let why = "it reads its guesses from rows of the target's passes, which no record holds";
                Err(format!("expected drafters that need no target, not jacobi: {why}"))
            }
            Ok(Self::Own(DrafterKind::Prediction)) => {
                Err("expected drafters that need no prediction, not prediction: no record holds one".to_string())
            }
            Ok(drafter_kind) if drafter_kind != Self::Own(DrafterKind::Draft) => Ok(drafter_kind),
            _ => {
                let names = ALL.map(Self::name).join(", ");
                Err(format!("expected drafters without a model ({names}), joined by +"))
            }
        }
    }
}

/// One drafter, or several in the order in which they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate(Vec<CandidateDrafter>);

/// What drafters are made from.
#[derive(Clone, Copy, Debug)]
pub struct DrafterInputs<'a> {
    /// Their settings, whose limits are at least `nodes_max`.
    pub settings: &'a DrafterSettings,
    /// The most nodes of a pass.
    pub nodes_max: usize,
    /// The tokenizer of the records.
    pub tokenizer: &'a Tokenizer,
}

impl Candidate {
    /// Every drafter but random, each alone.
    pub fn all(settings: &DrafterSettings) -> Vec<Self> {
        let knows = |drafter_kind: &CandidateDrafter| match drafter_kind {
            CandidateDrafter::Own(DrafterKind::Phrases) => settings.phrases.is_some(),
            drafter_kind => *drafter_kind != CandidateDrafter::Own(DrafterKind::Random),
        };
        ALL.into_iter().filter(knows).map(|drafter_kind| Self(vec![drafter_kind])).collect()
    }

    /// The drafters of `auto`.
    pub fn auto() -> Self {
        Self(vec![CandidateDrafter::Auto])
    }

    /// The order in which its drafters are asked.
    pub fn order(&self) -> Order {
        if *self == Self::auto() { SpeculationSettings::order(&SpecType::Auto) } else { Order::Given }
    }

    /// Its name on the command line.
    pub fn name(&self) -> String {
        self.0.iter().map(|drafter_kind| drafter_kind.name()).collect::<Vec<_>>().join("+")
    }

    /// New drafters, which have learned nothing.
    ///
    /// # Errors
    /// A file that one of them needs is not given.
    pub fn drafters(&self, with: DrafterInputs<'_>) -> Result<Vec<Box<dyn Drafter>>, Failure> {
        let DrafterInputs { settings, nodes_max, tokenizer } = with;
        let chain = || SuffixDrafter::lookup_chain(1, settings.lookup.ngram_max, nodes_max);
        let own = |kind| without_model(kind, settings, nodes_max, tokenizer.vocabulary_len(), Some(tokenizer));
        let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
        for drafter_kind in &self.0 {
            match drafter_kind {
                CandidateDrafter::Own(kind) => drafters.push(own(*kind)?),
                CandidateDrafter::LookupLatest => drafters.push(Box::new(chain())),
                CandidateDrafter::LookupFirst => {
                    let mut drafter = chain();
                    drafter.first = true;
                    drafters.push(Box::new(drafter));
                }
                CandidateDrafter::Auto => {
                    let all = SpeculationSettings { drafters: settings.clone(), ..SpeculationSettings::default() };
                    for spec in all.specs(&SpecType::Auto, false)? {
                        drafters.push(own(spec.kind)?);
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
