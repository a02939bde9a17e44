//! Trie lookahead: branches of prompts and outputs, retrieved by the last tokens and verified as a tree.
//!
//! Zhao et al. 2024 ("Lookahead: an inference acceleration framework", section 4). Every window of a text is a *branch*;
//! branches that begin with the same token share a trie. Those of a prompt are *inserted* when its sequence begins and
//! *eliminated* when it ends; those of outputs are inserted as they are written, and stay. What stays is *pruned* by
//! frequency, trie by trie. A draft *retrieves* what followed the last tokens, from longer to shorter prefixes, prompts
//! *weighted up*, and lays it out as a tree ([`Layout`]).
//!
//! Here a sequence's own branches, prompt and output, live with the sequence (`live`), in tries that can go back to any
//! length. When it ends, the branches of its output move to its tenant's `store`, behind the last token of the prompt,
//! as the authors' warm-up has them. So nothing that can be set back ever reaches what is shared, eliminating is
//! forgetting, and a set-back sequence leaves no trace. What it costs: sequences that run at the same time learn from
//! each other only when one ends.
//!
//! A tenant sees its own branches and everybody's (those of a warm-up without a tenant), never another tenant's. So many
//! tenants are remembered; then the one that was not heard of for longest is forgotten.
//!
//! Left out: stop words (the authors never match some tokens alone), and drafts longer than a branch.

mod live;
mod nodes;
mod options;
mod retrieve;
mod store;

pub use options::{BRANCH_LENGTH_MAX, BranchSource, Layout, TrieOptions};

use std::collections::BTreeMap;

use crate::draft::{Ask, Drafter, News};
use crate::{Chance, SequenceId, Tenant, Token};
use live::Live;
use retrieve::Retrieval;
use store::Store;

/// A [`Drafter`] that remembers what was written, across sequences. Proposes point masses; needs no model and no chance.
#[derive(Debug)]
pub struct TrieDrafter {
    options: TrieOptions,
    sequences: BTreeMap<SequenceId, (Tenant, Live)>,
    /// By tenant; `None` is everybody's. With each when it was used last.
    stores: BTreeMap<Option<Tenant>, (u64, Store)>,
    /// Counts uses of stores.
    uses: u64,
}

impl Default for TrieDrafter {
    fn default() -> TrieDrafter {
        TrieDrafter::new(TrieOptions::default())
    }
}

impl TrieDrafter {
    /// An empty one.
    ///
    /// # Panics
    ///
    /// Panics if the options have a [`TrieOptions::problem`].
    pub fn new(options: TrieOptions) -> TrieDrafter {
        if let Some(problem) = options.problem() {
            panic!("{problem}");
        }
        TrieDrafter { options, sequences: BTreeMap::new(), stores: BTreeMap::new(), uses: 0 }
    }

    /// Its settings.
    pub fn options(&self) -> &TrieOptions {
        &self.options
    }

    /// Bytes held by all tries.
    pub fn memory_bytes(&self) -> usize {
        let live: usize = self.sequences.values().map(|(_, live)| live.bytes()).sum();
        live + self.stores.values().map(|(_, store)| store.bytes()).sum::<usize>()
    }

    /// Number of nodes of all tries.
    pub fn nodes(&self) -> usize {
        let live: usize = self.sequences.values().map(|(_, live)| live.nodes()).sum();
        live + self.stores.values().map(|(_, store)| store.nodes()).sum::<usize>()
    }

    /// Tokens of a branch, the first included.
    fn window(&self) -> usize {
        self.options.branch_length + 1
    }

    /// Inserts a text into the store of a tenant. A new one takes the place of the one that was not used for longest.
    fn insert(&mut self, tenant: Option<Tenant>, text: &[Token], is_output: bool) {
        if text.is_empty() {
            return;
        }
        if tenant.is_some() && !self.stores.contains_key(&tenant) {
            let tenants = || self.stores.iter().filter(|(tenant, _)| tenant.is_some());
            if tenants().count() >= self.options.tenants_max {
                let oldest = tenants().min_by_key(|(_, (used, _))| *used).map(|(tenant, _)| *tenant);
                oldest.and_then(|oldest| self.stores.remove(&oldest));
            }
        }
        let (window, capacity) = (self.window(), self.options.trie_capacity());
        self.stores.entry(tenant).or_default().1.insert_all(text, window, is_output, capacity);
        self.touch(tenant);
    }

    /// A tenant's store, if there is one, is used.
    fn touch(&mut self, tenant: Option<Tenant>) {
        self.uses += 1;
        if let Some((used, _)) = self.stores.get_mut(&tenant) {
            *used = self.uses;
        }
    }

    fn live(&mut self, sequence: SequenceId) -> &mut Live {
        let (_, live) = self.sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        live
    }
}

impl Drafter for TrieDrafter {
    fn name(&self) -> &str {
        "trie"
    }

    /// Inserts what was written, behind the last token of its prompt; a prompt is no guide to other prompts.
    fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        if !self.options.insert_output {
            return;
        }
        self.insert(tenant, tokens.get(prompt_len.saturating_sub(1)..).unwrap_or(&[]), true);
    }

    fn open(&mut self, sequence: SequenceId, prompt: &[Token], tenant: Tenant) {
        let TrieOptions { insert_prompt, insert_output, .. } = self.options;
        let mut live = Live::new(prompt.len(), self.window(), insert_prompt, insert_output);
        live.extend(prompt);
        let before = self.sequences.insert(sequence, (tenant, live));
        assert!(before.is_none(), "{sequence:?} was opened twice");
        self.touch(Some(tenant));
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            self.live(ask.sequence).extend(ask.tokens);
            let (tenant, live) = &self.sequences[&ask.sequence];
            let mut retrieval = Retrieval::new(&self.options);
            retrieval.find(
                ask.tokens,
                live,
                [Some(*tenant), None].map(|tenant| self.stores.get(&tenant).map(|(_, store)| store)),
            );
            retrieval.offer(ask);
        }
    }

    fn observe(&mut self, news: &[News<'_>]) {
        for news in news {
            self.live(news.sequence).extend(news.tokens);
        }
    }

    fn keep(&mut self, sequence: SequenceId, len: usize) {
        self.live(sequence).truncate(len);
    }

    fn close(&mut self, sequence: SequenceId) {
        let Some((tenant, live)) = self.sequences.remove(&sequence) else { return };
        if self.options.insert_output {
            self.insert(Some(tenant), live.written(), true);
        }
        if self.options.insert_prompt && !self.options.eliminate {
            self.insert(Some(tenant), live.prompt(), false);
        }
    }
}

#[cfg(test)]
mod tests;
