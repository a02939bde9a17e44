//! Settings of the single drafters, and of the texts that they learn before a run.
//!
//! Defaults are the drafters' own, except for `gain_min`. In each group `nodes_max` is the most tokens that the drafter
//! proposes in a pass, `depth_max` the most along a branch. Settings that all drafters share are in
//! [`super::DraftingSettings`].

use std::path::PathBuf;

use foretoken_drafters::NgramSource;
use foretoken_drafters::{BRANCH_LENGTH_MAX, BranchSource, Layout, TrieOptions};
use serde::{Deserialize, Serialize};

use super::names;
use crate::error::{Error, between, within};
use crate::spec_type::DrafterKind;

/// Settings of the drafters that need no model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrafterSettings {
    /// lookup, trie, suffix, prediction: a token whose estimated acceptance is less than this is not proposed; `None`:
    /// where it does not pay, and 0.1 with budgets that ignore costs. Lookup with one candidate ignores it.
    pub gain_min: Option<f32>,
    /// Settings of lookup.
    pub lookup: LookupSettings,
    /// Settings of span copying.
    pub llma: LlmaSettings,
    /// Settings of the trie.
    pub trie: TrieSettings,
    /// Settings of suffix matching.
    pub suffix: SuffixSettings,
    /// Settings of n-gram models.
    pub ngram: NgramSettings,
    /// Settings of Jacobi lookahead.
    pub jacobi: JacobiSettings,
    /// The file of phrases, one on each line, the most important first.
    pub phrases: Option<PathBuf>,
}

impl DrafterSettings {
    /// The least estimated acceptance of a proposed token.
    pub(crate) fn gain_min(&self) -> f32 {
        self.gain_min.unwrap_or(0.1)
    }

    /// Whether drafters of this kind learn texts before a run. A draft model does so only through an inner drafter.
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

/// Settings of span copying (LLMA).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LlmaSettings {
    /// How many of the answer's last tokens must occur in the prompt, 1 to 64; n of the paper.
    pub run_min: usize,
    /// The most tokens copied in a pass; k of the paper.
    pub nodes_max: usize,
}

impl Default for LlmaSettings {
    fn default() -> Self {
        Self { run_min: 1, nodes_max: 7 }
    }
}

/// Settings of the trie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrieSettings {
    /// The most tokens proposed in a pass, in all branches together.
    pub nodes_max: usize,
    /// Tokens of a branch.
    pub branch_length: usize,
    /// How branches are laid out.
    #[serde(with = "names")]
    pub layout: Layout,
    /// From which texts branches are retrieved.
    #[serde(with = "names")]
    pub source: BranchSource,
    /// The most nodes kept below each first token when a sequence has ended; `None` is 16 times `nodes_max`.
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

/// Settings of suffix matching.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SuffixSettings {
    /// The most tokens proposed in a pass, in all branches together.
    pub nodes_max: usize,
    /// The most tokens of a branch.
    pub depth_max: usize,
    /// The most tokens of a branch for each token that matched (and 8 more in any case).
    pub depth_factor: f32,
    /// No token that is less probable than this after its parent.
    pub token_min: f32,
    /// The most tokens of other sequences that are kept.
    pub capacity: usize,
}

impl Default for SuffixSettings {
    fn default() -> Self {
        Self { nodes_max: 16, depth_max: 24, depth_factor: 2.0, token_min: 0.0, capacity: 1_000_000 }
    }
}

/// Settings of n-gram models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NgramSettings {
    /// The length of the longest n-gram that is counted, including the proposed token, 1 to 8; 1 proposes the most
    /// frequent tokens in any context.
    pub order: usize,
    /// Which texts are counted.
    #[serde(with = "names")]
    pub source: NgramSource,
    /// The most tokens of a branch.
    pub depth_max: usize,
    /// The most tokens proposed at one position, where [`super::DraftingSettings::p_split`] allows it.
    pub branches_max: usize,
}

impl Default for NgramSettings {
    fn default() -> Self {
        Self { order: 4, source: NgramSource::Both, depth_max: 5, branches_max: 1 }
    }
}

/// Settings of Jacobi lookahead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JacobiSettings {
    /// Columns of the window, W, 1 to 64; a pass has about W (N - 1) rows for it.
    pub window: usize,
    /// Tokens of an n-gram, N, 3 to 16.
    pub level: usize,
    /// The most n-grams verified in a pass, G, 1 to 64.
    pub guesses: usize,
}

impl Default for JacobiSettings {
    fn default() -> Self {
        Self { window: 3, level: 4, guesses: 2 }
    }
}

/// Texts that drafters learn before a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemorySettings {
    /// Texts that drafters learn before the first prompt: a file of a [`Store`](crate::store::Store).
    pub lookup_cache_static: Option<PathBuf>,
    /// The same with the texts of earlier runs, read if it exists, to which those of this run may be added. Under
    /// rejection or block verification each run then generates other texts, also for the same seed.
    pub lookup_cache_dynamic: Option<PathBuf>,
    /// The most tokens kept in that file, those of the newest texts; a file that has more is refused.
    pub lookup_cache_tokens: usize,
    /// Whether texts of earlier runs are used for requests of any tenant, not only of their own.
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
