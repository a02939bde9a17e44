//! Who is judged: a drafter that needs no model, or several that share a pass.
//!
//! Names are those of `--spec-type`, and two more for prompt lookup as others do it, so that it can be compared; a +
//! joins names. `auto` is what a user gets who names nothing. Left out: drafters with a network, Jacobi lookahead,
//! which asks the target for what no record holds, and predictions, which no record holds either.

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

/// A drafter that can be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    /// As everywhere.
    Own(DrafterKind),
    /// Plain prompt lookup, a chain behind the latest match.
    LookupLatest,
    /// The same behind the earliest, as transformers has it.
    LookupFirst,
    /// All that drafts where nothing is named.
    Auto,
}

const ALL: [Judged; 9] = [
    Judged::Own(DrafterKind::Lookup),
    Judged::LookupLatest,
    Judged::LookupFirst,
    Judged::Own(DrafterKind::Llma),
    Judged::Own(DrafterKind::Trie),
    Judged::Own(DrafterKind::Suffix),
    Judged::Own(DrafterKind::Ngram),
    Judged::Own(DrafterKind::Phrases),
    Judged::Own(DrafterKind::Random),
];

impl Judged {
    fn name(self) -> &'static str {
        match self {
            Self::Own(kind) => kind.name(),
            Self::LookupLatest => "lookup-latest",
            Self::LookupFirst => "lookup-first",
            Self::Auto => "auto",
        }
    }

    /// As `--spec-type` names it everywhere, llama.cpp's names included, or one of the two that are only here.
    fn named(word: &str) -> Result<Self, String> {
        let own =
            [Self::LookupLatest, Self::LookupFirst, Self::Auto].into_iter().find(|judged| judged.name() == word.trim());
        match own.map_or_else(|| word.parse::<DrafterSpec>().map(|spec| Self::Own(spec.kind)), Ok) {
            Ok(Self::Own(DrafterKind::Jacobi)) => {
                let why = "it reads its guesses from rows of the target's passes, which no record holds";
                Err(format!("expected drafters that need no target, not jacobi: {why}"))
            }
            Ok(Self::Own(DrafterKind::Prediction)) => {
                Err("expected drafters that need no prediction, not prediction: no record holds one".to_string())
            }
            Ok(judged) if judged != Self::Own(DrafterKind::Draft) => Ok(judged),
            _ => {
                let names = ALL.map(Self::name).join(", ");
                Err(format!("expected drafters without a model ({names}), joined by +"))
            }
        }
    }
}

/// One drafter, or several in the order in which they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contestant(Vec<Judged>);

/// What drafters are made from.
#[derive(Clone, Copy, Debug)]
pub struct Equipment<'a> {
    /// Their settings, with their own maxima as high as `nodes_max`.
    pub settings: &'a DrafterSettings,
    /// Most nodes a pass.
    pub nodes_max: usize,
    /// Whose tokens they propose.
    pub tokenizer: &'a Tokenizer,
}

impl Contestant {
    /// Every drafter that knows something, each alone.
    pub fn all(settings: &DrafterSettings) -> Vec<Self> {
        let knows = |judged: &Judged| match judged {
            Judged::Own(DrafterKind::Phrases) => settings.phrases.is_some(),
            judged => *judged != Judged::Own(DrafterKind::Random),
        };
        ALL.into_iter().filter(knows).map(|judged| Self(vec![judged])).collect()
    }

    /// What a user gets who names no drafter.
    pub fn auto() -> Self {
        Self(vec![Judged::Auto])
    }

    /// In which order its drafters are asked.
    pub fn order(&self) -> Order {
        if *self == Self::auto() { SpeculationSettings::order(&SpecType::Auto) } else { Order::Given }
    }

    /// As on the command line.
    pub fn name(&self) -> String {
        self.0.iter().map(|judged| judged.name()).collect::<Vec<_>>().join("+")
    }

    /// New drafters that know nothing yet.
    ///
    /// # Errors
    /// What one of them needs is not given.
    pub fn drafters(&self, with: Equipment<'_>) -> Result<Vec<Box<dyn Drafter>>, Failure> {
        let Equipment { settings, nodes_max, tokenizer } = with;
        let chain = || SuffixDrafter::lookup_chain(1, settings.lookup.ngram_max, nodes_max);
        let own = |kind| without_model(kind, settings, nodes_max, tokenizer.vocabulary_len(), Some(tokenizer));
        let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
        for judged in &self.0 {
            match judged {
                Judged::Own(kind) => drafters.push(own(*kind)?),
                Judged::LookupLatest => drafters.push(Box::new(chain())),
                Judged::LookupFirst => {
                    let mut drafter = chain();
                    drafter.first = true;
                    drafters.push(Box::new(drafter));
                }
                Judged::Auto => {
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

impl FromStr for Contestant {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let judged: Vec<Judged> = word.split('+').map(Judged::named).collect::<Result<_, _>>()?;
        if judged.len() > 1 && judged.contains(&Judged::Auto) {
            return Err("expected auto alone".to_string());
        }
        match (1..judged.len()).any(|i| judged[..i].contains(&judged[i])) {
            true => Err("expected each drafter once".to_string()),
            false => Ok(Self(judged)),
        }
    }
}
