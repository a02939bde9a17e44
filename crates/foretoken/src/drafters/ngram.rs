//! N-gram models: settings, options and constructor of the drafter.
//!
//! `MemorySettings` name the texts that they count before a run.

use foretoken_drafters::{NgramDrafter, NgramSource};
use serde::{Deserialize, Serialize};

use super::options::{ONE_UP, option};
use super::{Created, DrafterInputs, DrafterOption, Field};
use crate::names;

/// Settings of n-gram models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NgramSettings {
    /// The length of the longest n-gram that is counted, including the proposed token, 1 to 8; 1 proposes the most
    /// frequent tokens in any context.
    pub order: usize,
    /// The texts that are counted.
    #[serde(with = "names")]
    pub source: NgramSource,
    /// The most tokens of a branch.
    pub depth_max: usize,
    /// The most tokens proposed at one position, where
    /// [`DraftingSettings::p_split`](crate::settings::DraftingSettings::p_split) allows it.
    pub branches_max: usize,
}

impl Default for NgramSettings {
    fn default() -> Self {
        Self { order: 4, source: NgramSource::Both, depth_max: 5, branches_max: 1 }
    }
}

pub(super) const OPTIONS: &[DrafterOption] = &[
    option("ngram.order", "ngram-order", |all| Field::Whole(&mut all.ngram.order, 1..=8)).help(
        "ngram: length of the longest n-gram that is counted, including the proposed token; 1 proposes the most \
               frequent tokens in any context",
    ),
    option("ngram.source", "ngram-source", |all| Field::Texts(&mut all.ngram.source))
        .help("ngram: what is counted: corpus, text or both"),
    option("ngram.depth_max", "ngram-num-tokens", |all| Field::Nodes(&mut all.ngram.depth_max))
        .help("ngram: most tokens of a branch"),
    option("ngram.branches_max", "ngram-branches", |all| Field::Whole(&mut all.ngram.branches_max, ONE_UP))
        .help("ngram: most tokens proposed at one position, where --spec-draft-p-split allows it"),
];

pub(super) fn make(inputs: &DrafterInputs<'_>) -> Created {
    let NgramSettings { order, source, depth_max, branches_max } = inputs.settings.ngram;
    let mut drafter = NgramDrafter::new(order, source);
    (drafter.depth_max, drafter.branches_max) = (depth_max, branches_max);
    Ok(Box::new(drafter))
}
