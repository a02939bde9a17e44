//! Prompt lookup: settings, options and constructor of the drafter.
//!
//! It is suffix matching in the sequence alone; suffix matching with earlier texts is in `suffix.rs`.

use foretoken_drafters::SuffixDrafter;
use serde::{Deserialize, Serialize};

use super::options::{ONE_UP, RUN, option};
use super::{Created, DrafterInputs, DrafterOption, Field};

/// Settings of lookup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LookupSettings {
    /// The longest suffix of the text that is searched for, 1 to 64.
    pub ngram_max: usize,
    /// The most tokens proposed in a pass.
    pub nodes_max: usize,
    /// The most matches whose continuations form the tree; 1 proposes a chain, as other programs do.
    pub candidates: usize,
}

impl Default for LookupSettings {
    fn default() -> Self {
        Self { ngram_max: 3, nodes_max: 10, candidates: 32 }
    }
}

pub(super) const OPTIONS: &[DrafterOption] = &[
    option("lookup.ngram_max", "max-matching-ngram-size", |all| Field::Whole(&mut all.lookup.ngram_max, RUN))
        .help("lookup: longest suffix of the text that is searched for"),
    option("lookup.nodes_max", "prompt-lookup-num-tokens", |all| Field::Nodes(&mut all.lookup.nodes_max))
        .help("lookup: most tokens proposed in a pass"),
    option("lookup.candidates", "prompt-lookup-candidates", |all| Field::Whole(&mut all.lookup.candidates, ONE_UP))
        .help("lookup: most matches whose continuations form the tree; 1 proposes a chain, as other programs do"),
];

pub(super) fn make(inputs: &DrafterInputs<'_>) -> Created {
    let LookupSettings { ngram_max, nodes_max, candidates } = inputs.settings.lookup;
    let mut drafter = match candidates {
        1 => SuffixDrafter::lookup_chain(1, ngram_max, nodes_max),
        _ => SuffixDrafter::lookup(1, ngram_max, nodes_max),
    };
    drafter.candidates = candidates;
    // Prompt lookup in other programs proposes whatever it finds.
    drafter.gain_min = if candidates == 1 { 0.0 } else { inputs.settings.gain_min() };
    Ok(Box::new(drafter))
}
