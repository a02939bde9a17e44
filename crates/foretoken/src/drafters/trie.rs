//! Trie lookahead: settings, options and constructor of the drafter.
//!
//! Options have the names that its authors gave them. Other parameters of the drafter, which users do not set, are in
//! `foretoken_drafters::TrieOptions`.

use foretoken_drafters::{BRANCH_LENGTH_MAX, BranchSource, Layout, RetrievalRule, TrieDrafter, TrieOptions};
use serde::{Deserialize, Serialize};

use super::options::{ONE_UP, option};
use super::{Created, DrafterInputs, DrafterOption, Field};
use crate::names;

/// Settings of the trie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrieSettings {
    /// The most tokens proposed in a pass, in all branches together.
    pub nodes_max: usize,
    /// Tokens of a branch.
    pub branch_length: usize,
    /// The layout of branches.
    #[serde(with = "names")]
    pub layout: Layout,
    /// The texts from which branches are retrieved.
    #[serde(with = "names")]
    pub source: BranchSource,
    /// How branches are chosen.
    #[serde(with = "names")]
    pub rule: RetrievalRule,
    /// The most nodes kept below each first token when a sequence has ended; `None` is 16 times `nodes_max`.
    pub capacity: Option<usize>,
}

impl Default for TrieSettings {
    fn default() -> Self {
        let TrieOptions { nodes_max, branch_length, layout, source, rule, capacity, .. } = TrieOptions::default();
        Self { nodes_max, branch_length, layout, source, rule, capacity }
    }
}

impl TrieSettings {
    /// The drafter's settings.
    pub(super) fn options(&self) -> TrieOptions {
        let options = TrieOptions::of_rule(self.rule);
        TrieOptions {
            nodes_max: self.nodes_max,
            branch_length: self.branch_length,
            layout: self.layout,
            source: self.source,
            prefix_max: options.prefix_max.min(self.branch_length),
            capacity: self.capacity,
            ..options
        }
    }
}

pub(super) const OPTIONS: &[DrafterOption] = &[
    option("trie.nodes_max", "decoding-length", |all| Field::Nodes(&mut all.trie.nodes_max))
        .help("trie: most tokens proposed in a pass, in all branches together"),
    option("trie.branch_length", "branch-length", |all| {
        Field::Whole(&mut all.trie.branch_length, 1..=BRANCH_LENGTH_MAX)
    })
    .help("trie: tokens of a branch"),
    option("trie.layout", "decoding-mode", |all| Field::Mode(&mut all.trie.layout, &mut all.trie.source)).help(
        "trie: branches merged by common prefixes, in parallel, or a single one (hier, par, one), from prompts, \
               outputs or both (input, output, mix)",
    ),
    option("trie.rule", "trie-retrieval", |all| Field::Retrieval(&mut all.trie.rule)).help(
        "trie: branches by estimated acceptance (interpolated), or by frequency as its authors choose them (frequency)",
    ),
    option("trie.capacity", "trie-capacity", |all| Field::OptionalWhole(&mut all.trie.capacity, ONE_UP)).help(
        "trie: most nodes kept below each first token when a text has ended [default: 16 times the decoding \
               length]",
    ),
];

pub(super) fn make(inputs: &DrafterInputs<'_>) -> Created {
    let options = TrieOptions { gain_min: inputs.settings.gain_min(), ..inputs.settings.trie.options() };
    Ok(Box::new(TrieDrafter::new(options)))
}
