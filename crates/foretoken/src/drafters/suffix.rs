//! Suffix matching: settings, options and constructor of the drafter.
//!
//! Prompt lookup is suffix matching in the sequence alone (`lookup.rs`).

use foretoken_drafters::SuffixDrafter;
use serde::{Deserialize, Serialize};

use super::options::{ANY, FACTOR_MAX, ONE_UP, option};
use super::{Created, DrafterInputs, DrafterOption, Field};

/// Settings of suffix matching.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SuffixSettings {
    /// The most tokens proposed in a pass, in all branches together.
    pub nodes_max: usize,
    /// The most tokens of a branch.
    pub depth_max: usize,
    /// The most tokens of a branch for each token that matched, besides 8 in any case.
    pub depth_factor: f32,
    /// A token that is less probable than this after its parent is not proposed.
    pub token_min: f32,
    /// The most tokens of other sequences that are kept.
    pub capacity: usize,
}

impl Default for SuffixSettings {
    fn default() -> Self {
        Self { nodes_max: 16, depth_max: 24, depth_factor: 2.0, token_min: 0.0, capacity: 1_000_000 }
    }
}

pub(super) const OPTIONS: &[DrafterOption] = &[
    option("suffix.nodes_max", "suffix-num-tokens", |all| Field::Nodes(&mut all.suffix.nodes_max))
        .help("suffix: most tokens proposed in a pass, in all branches together"),
    option("suffix.depth_max", "suffix-max-tree-depth", |all| Field::Whole(&mut all.suffix.depth_max, ONE_UP))
        .help("suffix: most tokens of a branch"),
    option("suffix.depth_factor", "suffix-max-spec-factor", |all| {
        Field::Number(&mut all.suffix.depth_factor, FACTOR_MAX)
    })
    .help("suffix: most tokens of a branch for each token that matched (and 8 more in any case)"),
    option("suffix.token_min", "suffix-min-token-prob", |all| Field::Number(&mut all.suffix.token_min, 1.0))
        .help("suffix: no token that is less probable than this after its parent"),
    option("suffix.capacity", "suffix-capacity", |all| Field::Whole(&mut all.suffix.capacity, ANY))
        .help("suffix: most tokens of other texts that are kept"),
];

pub(super) fn make(inputs: &DrafterInputs<'_>) -> Created {
    let SuffixSettings { nodes_max, depth_max, depth_factor, token_min, capacity } = inputs.settings.suffix;
    let mut drafter = SuffixDrafter::new(capacity);
    (drafter.nodes_max, drafter.depth_max) = (nodes_max, depth_max);
    (drafter.depth_factor, drafter.token_min) = (depth_factor, token_min);
    drafter.gain_min = inputs.settings.gain_min();
    Ok(Box::new(drafter))
}
