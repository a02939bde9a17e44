//! Trie lookahead: branches of prompts and outputs, retrieved by the last tokens and verified as a tree.
//!
//! Zhao et al. 2024 ("Lookahead: an inference acceleration framework", section 4). Every window of a text is a
//! *branch*; branches that begin with the same token share a trie. Those of a prompt are *inserted* when its sequence
//! begins and *eliminated* when it ends; those of outputs are inserted as they are written, and stay. The tries that
//! stay are each *pruned* by frequency. A draft *retrieves* what followed the last tokens, from longer to shorter
//! prefixes, prompts *weighted up*, and lays it out as a tree ([`Layout`]).
//!
//! Here a sequence's own branches, prompt and output, are kept with the sequence (`live`). When it ends, the branches
//! of its output move to its tenant's tries, after the last token of the prompt, as in the authors' warm-up; those of
//! the prompt are dropped with the sequence. What an encoder reads is inserted as a prompt is. So sequences that run at
//! the same time learn from each other only when one ends. A tenant sees its own branches and public ones (those of a
//! warm-up without a tenant), never another tenant's.
//!
//! Branches are chosen by estimated probability (`retrieve`), or by the authors' own rule (`frequency`), which is there
//! to be compared and accepts less.
//!
//! Not implemented: stop words (tokens that the authors never match alone), and drafts longer than a branch.

mod frequency;
mod live;
mod nodes;
mod options;
mod retrieve;
mod tries;

pub use options::{BRANCH_LENGTH_MAX, BranchSource, Layout, RetrievalRule, TrieOptions};

use std::collections::BTreeMap;

use crate::tenants::Tenants;
use foretoken_speculation::{Ask, Drafter, Opening, StepOutput};
use foretoken_speculation::{Chance, SequenceId, Tenant, Token};
use live::Live;
use retrieve::Retrieval;
use tries::Tries;

/// Maximum number of nodes of all tenants together, 20 bytes each; beyond them whole tenants are forgotten.
const NODES_MAX: usize = 4_000_000;

/// A [`Drafter`] of branches of prompts and outputs, across sequences. Proposes point masses; needs no model and no
/// chance.
#[derive(Debug)]
pub struct TrieDrafter {
    options: TrieOptions,
    sequences: BTreeMap<SequenceId, (Tenant, Live)>,
    memories: Tenants<Tries>,
}

impl Default for TrieDrafter {
    fn default() -> TrieDrafter {
        TrieDrafter::new(TrieOptions::default())
    }
}

impl TrieDrafter {
    /// A drafter that has learned nothing yet.
    ///
    /// # Panics
    ///
    /// Panics if the options have a [`TrieOptions::problem`].
    pub fn new(options: TrieOptions) -> TrieDrafter {
        if let Some(problem) = options.problem() {
            panic!("{problem}");
        }
        let memories = Tenants::new(options.tenants_max, Tries::default());
        TrieDrafter { options, sequences: BTreeMap::new(), memories }
    }

    /// Its settings.
    pub fn options(&self) -> &TrieOptions {
        &self.options
    }

    /// Bytes held by all tries.
    pub fn memory_bytes(&self) -> usize {
        self.tries().map(Tries::bytes).sum()
    }

    /// Number of nodes of all tries.
    pub fn nodes(&self) -> usize {
        self.tries().map(Tries::nodes).sum()
    }

    fn tries(&self) -> impl Iterator<Item = &Tries> {
        self.sequences.values().map(|(_, live)| live.tries()).chain(self.memories.all())
    }

    /// Inserts a text into the tries of a tenant, or the public ones.
    fn insert(&mut self, tenant: Option<Tenant>, text: &[Token], is_output: bool) {
        if !text.is_empty() {
            let TrieOptions { rule, .. } = self.options;
            let pruning = (self.options.trie_capacity(), rule == RetrievalRule::Frequency);
            let memory = self.memories.memory_mut(tenant, Tries::default);
            memory.insert_all(text, self.options.window(), is_output, pruning);
            tenant.into_iter().for_each(|tenant| self.memories.shrink(tenant, NODES_MAX, Tries::nodes));
        }
    }
}

impl Drafter for TrieDrafter {
    fn name(&self) -> &str {
        "trie"
    }

    /// Inserts the output, after the last token of its prompt; the prompt itself is not inserted.
    fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        if self.options.insert_output {
            self.insert(tenant, tokens.get(prompt_len.saturating_sub(1)..).unwrap_or(&[]), true);
        }
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let TrieOptions { insert_prompt, insert_output, .. } = self.options;
        let mut live = Live::new(opening.prompt.len(), self.options.window(), insert_prompt, insert_output);
        live.read(opening.source);
        live.extend(opening.prompt);
        let before = self.sequences.insert(opening.sequence, (opening.tenant, live));
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
        self.memories.touch(opening.tenant);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let sequence = self.sequences.get_mut(&ask.sequence);
            let (tenant, live) = sequence.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
            live.extend(ask.written());
            let shared = self.memories.seen_by(*tenant);
            match self.options.rule {
                RetrievalRule::Interpolated => {
                    let mut retrieval = Retrieval::new(&self.options);
                    retrieval.find(ask.tokens, live.tries(), shared);
                    retrieval.offer(ask);
                }
                RetrievalRule::Frequency => frequency::offer(&self.options, ask, live.tries(), shared),
            }
        }
    }

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        for output in outputs {
            if let Some((_, live)) = self.sequences.get_mut(&output.sequence) {
                live.extend(output.tokens);
            }
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        let Some((tenant, live)) = self.sequences.remove(&sequence) else { return };
        if self.options.insert_output {
            self.insert(Some(tenant), live.written(), true);
        }
        if self.options.insert_prompt && !self.options.eliminate {
            self.insert(Some(tenant), live.source(), false);
            self.insert(Some(tenant), live.prompt(), false);
        }
    }
}

#[cfg(test)]
mod tests;
