//! Who is judged: a drafter that needs no model, or several that share a pass.
//!
//! Names are those of `--spec-type`, and two more for prompt lookup as others do it, so that it can be compared; a + joins
//! names. Left out: drafters with a network, which a record cannot feed, and fixed phrases, of which there are none.

use std::str::FromStr;

use foretoken_speculation::{Drafter, LookupDrafter, NgramDrafter, RandomDrafter, TrieDrafter, TrieOptions};

/// What drafters are told.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most nodes a pass.
    pub nodes_max: usize,
    /// Longest run of last tokens that lookup searches for.
    pub run_len: usize,
    /// Tokens there are.
    pub vocabulary: usize,
}

type Make = fn(&Settings) -> Box<dyn Drafter>;

/// Every drafter that needs no model.
const KINDS: [(&str, Make); 6] = [
    ("lookup", |settings| Box::new(LookupDrafter::new(1, settings.run_len, settings.nodes_max))),
    ("lookup-latest", |settings| Box::new(LookupDrafter::chain(1, settings.run_len, settings.nodes_max))),
    ("lookup-first", |settings| {
        let mut drafter = LookupDrafter::chain(1, settings.run_len, settings.nodes_max);
        drafter.first = true;
        Box::new(drafter)
    }),
    ("ngram", |settings| {
        let mut drafter = NgramDrafter::default();
        drafter.n_max = settings.nodes_max;
        Box::new(drafter)
    }),
    ("trie", |settings| {
        Box::new(TrieDrafter::new(TrieOptions { decoding_length: settings.nodes_max, ..TrieOptions::default() }))
    }),
    ("random", |settings| {
        let mut drafter = RandomDrafter::new(settings.vocabulary);
        drafter.nodes_max = settings.nodes_max;
        Box::new(drafter)
    }),
];

/// One drafter, or several in the order in which they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contestant(Vec<usize>);

impl Contestant {
    /// Every drafter that needs no model and knows something, each alone.
    pub fn all() -> Vec<Self> {
        (0..KINDS.len()).filter(|kind| KINDS[*kind].0 != "random").map(|kind| Self(vec![kind])).collect()
    }

    /// As on the command line.
    pub fn name(&self) -> String {
        self.0.iter().map(|kind| KINDS[*kind].0).collect::<Vec<_>>().join("+")
    }

    /// New drafters that know nothing yet.
    pub fn drafters(&self, settings: &Settings) -> Vec<Box<dyn Drafter>> {
        self.0.iter().map(|kind| KINDS[*kind].1(settings)).collect()
    }
}

impl FromStr for Contestant {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let kind = |word: &str| KINDS.iter().position(|(name, _)| *name == word);
        let kinds: Option<Vec<usize>> = word.split('+').map(kind).collect();
        let names = KINDS.map(|(name, _)| name).join(", ");
        let kinds = kinds.ok_or_else(|| format!("expected drafters without a model ({names}), joined by +"))?;
        match (1..kinds.len()).any(|i| kinds[..i].contains(&kinds[i])) {
            true => Err("expected each drafter once".to_string()),
            false => Ok(Self(kinds)),
        }
    }
}
