//! Settings of the single drafters, and of what they know from before.
//!
//! Defaults are the drafters' own, but for the least gain, which is a choice of each door. In each group `nodes_max` is
//! the most tokens that the drafter proposes a pass, `depth_max` the most along a branch. Left out: settings that all
//! drafters share ([`super::DraftingSettings`]).

use std::path::PathBuf;

use foretoken_drafters::NgramSource;
use foretoken_drafters::{BRANCH_LENGTH_MAX, BranchSource, Layout, TrieOptions};
use serde::{Deserialize, Serialize};

use super::names;
use crate::error::{Error, between, within};
use crate::spec_type::DrafterKind;

/// Of all drafters that need no model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrafterSettings {
    /// lookup, trie, suffix, prediction: a guess that is accepted more rarely than this, by estimate, is not proposed;
    /// `None`: where it does not pay, and of budgets that do not weigh costs 0.1. Not of lookup with one candidate.
    pub gain_min: Option<f32>,
    /// Of lookup.
    pub lookup: LookupSettings,
    /// Of span copying.
    pub llma: LlmaSettings,
    /// Of the trie.
    pub trie: TrieSettings,
    /// Of suffix matching.
    pub suffix: SuffixSettings,
    /// Of n-gram models.
    pub ngram: NgramSettings,
    /// Of Jacobi lookahead.
    pub jacobi: JacobiSettings,
    /// The file of phrases, one a line, the most wanted first.
    pub phrases: Option<PathBuf>,
}

impl DrafterSettings {
    /// The least estimated acceptance that is worth a row.
    pub(crate) fn gain_min(&self) -> f32 {
        self.gain_min.unwrap_or(0.1)
    }

    /// Whether drafters of this kind learn from texts of before. A draft model does only by an inner drafter.
    pub fn learns(&self, kind: DrafterKind) -> bool {
        match kind {
            DrafterKind::Trie => true,
            DrafterKind::Suffix => self.suffix.capacity > 0,
            DrafterKind::Ngram => self.ngram.source != NgramSource::Text,
            DrafterKind::Draft
            | DrafterKind::Exit
            | DrafterKind::Lookup
            | DrafterKind::Llma
            | DrafterKind::Prediction
            | DrafterKind::Grammar
            | DrafterKind::Jacobi
            | DrafterKind::Phrases
            | DrafterKind::Random => false,
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        within("lookup.ngram_max", self.lookup.ngram_max, 1, 64)?;
        within("lookup.candidates", self.lookup.candidates, 1, 1 << 30)?;
        within("llma.run_min", self.llma.run_min, 1, 64)?;
        within("llma.nodes_max", self.llma.nodes_max, 1, 1 << 30)?;
        within("trie.branch_length", self.trie.branch_length, 1, BRANCH_LENGTH_MAX)?;
        within("trie.nodes_max", self.trie.nodes_max, 1, 1 << 30)?;
        within("trie.capacity", self.trie.capacity.unwrap_or(1), 1, 1 << 31)?;
        between("suffix.token_min", self.suffix.token_min, 0.0, 1.0)?;
        between("suffix.depth_factor", self.suffix.depth_factor, 0.0, 1e6)?;
        between("gain_min", self.gain_min.unwrap_or(0.0), 0.0, 1.0)?;
        within("ngram.order", self.ngram.order, 1, 8)?;
        within("ngram.branches_max", self.ngram.branches_max, 1, 1 << 30)?;
        within("jacobi.window", self.jacobi.window, 1, 64)?;
        within("jacobi.level", self.jacobi.level, 3, 16)?;
        within("jacobi.guesses", self.jacobi.guesses, 1, 64)
    }
}

/// Of lookup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LookupSettings {
    /// Longest run of last tokens that is searched for, 1 to 64.
    pub ngram_max: usize,
    /// Most tokens proposed a pass.
    pub nodes_max: usize,
    /// Most places in the text whose continuations make up the tree; 1 proposes a chain, as others do.
    pub candidates: usize,
}

impl Default for LookupSettings {
    fn default() -> Self {
        Self { ngram_max: 3, nodes_max: 10, candidates: 32 }
    }
}

/// Of span copying (LLMA).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LlmaSettings {
    /// Fewest last tokens of the answer that must stand in the prompt, 1 to 64; n of its paper.
    pub run_min: usize,
    /// Most tokens copied a pass; k of its paper.
    pub nodes_max: usize,
}

impl Default for LlmaSettings {
    fn default() -> Self {
        Self { run_min: 1, nodes_max: 7 }
    }
}

/// Of the trie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrieSettings {
    /// Most tokens proposed a pass, in all branches together.
    pub nodes_max: usize,
    /// Tokens that a branch goes on for.
    pub branch_length: usize,
    /// How branches are laid out.
    #[serde(with = "names")]
    pub layout: Layout,
    /// Of which texts branches are retrieved.
    #[serde(with = "names")]
    pub source: BranchSource,
    /// Most nodes kept behind each first token when a text has ended; `None` is 16 times `nodes_max`.
    pub capacity: Option<usize>,
}

impl Default for TrieSettings {
    fn default() -> Self {
        let TrieOptions { nodes_max, branch_length, layout, source, capacity, .. } = TrieOptions::default();
        Self { nodes_max, branch_length, layout, source, capacity }
    }
}

impl TrieSettings {
    /// The drafter's settings.
    pub(crate) fn options(&self) -> TrieOptions {
        let options = TrieOptions::default();
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

/// Of suffix matching.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SuffixSettings {
    /// Most tokens proposed a pass, in all branches together.
    pub nodes_max: usize,
    /// Most tokens of a branch.
    pub depth_max: usize,
    /// Most tokens of a branch for each token that matched (besides 8 in any case).
    pub depth_factor: f32,
    /// No token that is less probable than this behind its parent.
    pub token_min: f32,
    /// Most tokens of other texts that are remembered.
    pub capacity: usize,
}

impl Default for SuffixSettings {
    fn default() -> Self {
        Self { nodes_max: 16, depth_max: 24, depth_factor: 2.0, token_min: 0.0, capacity: 1_000_000 }
    }
}

/// Of n-gram models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NgramSettings {
    /// Length of the longest n-gram that is counted, the proposed token included, 1 to 8; 1 proposes the most frequent
    /// tokens whatever came before.
    pub order: usize,
    /// What is counted.
    #[serde(with = "names")]
    pub source: NgramSource,
    /// Most tokens of a branch.
    pub depth_max: usize,
    /// Most tokens proposed at one place, where [`super::DraftingSettings::p_split`] allows it.
    pub branches_max: usize,
}

impl Default for NgramSettings {
    fn default() -> Self {
        Self { order: 4, source: NgramSource::Both, depth_max: 5, branches_max: 1 }
    }
}

/// Of Jacobi lookahead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JacobiSettings {
    /// Columns of the window, W, 1 to 64; a pass has about W (N - 1) rows for it.
    pub window: usize,
    /// Tokens of an n-gram, N, 3 to 16.
    pub level: usize,
    /// Most n-grams verified a pass, G, 1 to 64.
    pub guesses: usize,
}

impl Default for JacobiSettings {
    fn default() -> Self {
        Self { window: 3, level: 4, guesses: 2 }
    }
}

/// What drafters know from before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemorySettings {
    /// Texts that drafters learn before the first prompt: a file of a [`Store`](crate::store::Store).
    pub lookup_cache_static: Option<PathBuf>,
    /// The same with the texts of earlier runs, read if it is there, to which those of this run may be added. Under
    /// rejection or block verification each run then writes other texts, also for the same seed.
    pub lookup_cache_dynamic: Option<PathBuf>,
    /// Most tokens kept in that file, those of the last texts; a file that holds more is refused.
    pub lookup_cache_tokens: usize,
    /// Whether the texts of earlier runs are for requests of any tenant, and not only of the one that wrote them.
    pub shared: bool,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self { lookup_cache_static: None, lookup_cache_dynamic: None, lookup_cache_tokens: 1 << 20, shared: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_drafters::{JacobiDrafter, LlmaDrafter, NgramDrafter, SuffixDrafter};

    #[test]
    fn defaults_are_the_drafters_own() {
        let DrafterSettings { lookup, llma, trie, suffix, ngram, jacobi, .. } = DrafterSettings::default();
        let own = SuffixDrafter::lookup(1, 3, 10);
        assert_eq!((lookup.nodes_max, lookup.candidates), (own.nodes_max, own.candidates));
        assert_eq!((llma.run_min, llma.nodes_max), (1, LlmaDrafter::default().copied_max));
        assert_eq!(trie.options(), TrieOptions::default());
        let own = SuffixDrafter::default();
        assert_eq!((suffix.nodes_max, suffix.depth_max), (own.nodes_max, own.depth_max));
        assert_eq!((suffix.depth_factor, suffix.token_min), (own.depth_factor, own.token_min));
        let own = NgramDrafter::default();
        assert_eq!((ngram.depth_max, ngram.branches_max), (own.depth_max, own.branches_max));
        let window = JacobiDrafter::new(jacobi.window, jacobi.level, jacobi.guesses);
        assert_eq!(window.probes(), JacobiDrafter::default().probes());
    }
}
