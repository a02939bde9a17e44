//! Prompt lookup: what followed when these tokens were written before.
//!
//! The longest run of last tokens, from `ngram_max` tokens down to `ngram_min`, that was written before is found, and
//! what followed there is proposed (Saxena 2023; transformers' `prompt_lookup_num_tokens`, which takes the earliest
//! occurrence; here the latest leads, or the earliest by choice). Where the copy reaches the end of the text it goes on
//! reading what it just proposed, as LZ77 does, so that a text of period 1 gets a whole chain and not one token.
//!
//! One occurrence gives a chain. More of them, of the longest run and then of shorter ones, are merged into a tree of
//! the likeliest nodes ([`super::continuations`]), which accepts more in as many rows. The index is
//! [`super::history`]; drafting costs the same after ten tokens and after ten thousand.
//!
//! Left out: learning across sequences, which is the suffix drafter's.

use std::collections::BTreeMap;

use crate::draft::continuations::{Bounds, Continuations, Source};
use crate::draft::history::History;
use crate::draft::{Ask, Drafter};
use crate::{Chance, SequenceId, Tenant, Token};

/// A [`Drafter`] that copies from the sequence itself. Proposes point masses; needs no model and no chance.
#[derive(Debug)]
pub struct LookupDrafter {
    /// Longest run of last tokens that is looked up (transformers' `max_matching_ngram_size`).
    ngram_max: usize,
    /// Shortest run that counts as a match.
    ngram_min: usize,
    /// Most tokens proposed per pass, in all branches together (transformers' `prompt_lookup_num_tokens`).
    pub tokens_max: usize,
    /// Most earlier occurrences that are merged into a tree; 1 proposes a chain, as others do.
    pub candidates: usize,
    /// Whether the earliest occurrence of the longest run leads, and not the latest. It matters to a chain.
    pub first: bool,
    /// From how many last tokens the commonest words are taken, for what room matches leave; 0 is off.
    pub window: usize,
    /// A node is not proposed if the estimated probability that it is accepted is below this, 0 to 1.
    pub gain_min: f32,
    histories: BTreeMap<SequenceId, History>,
    continuations: Continuations,
}

impl Default for LookupDrafter {
    /// Runs of 3 tokens down to 1, and 10 tokens proposed. transformers' default is 2 down to 1 and 10, llama.cpp's
    /// n-gram drafter looks for 12: since the longest match wins, a longer maximum costs only its index.
    fn default() -> LookupDrafter {
        LookupDrafter::new(1, 3, 10)
    }
}

impl LookupDrafter {
    /// A drafter that matches runs of `ngram_max` down to `ngram_min` tokens, and proposes up to `tokens_max`, of 32
    /// occurrences and the commonest of the last 256 tokens, with the latest occurrence first, and nothing that is
    /// accepted less than once in a hundred passes.
    ///
    /// # Panics
    ///
    /// Panics if `ngram_min` is 0 or more than `ngram_max`.
    pub fn new(ngram_min: usize, ngram_max: usize, tokens_max: usize) -> LookupDrafter {
        assert!(1 <= ngram_min && ngram_min <= ngram_max, "n-grams of {ngram_min} to {ngram_max} tokens");
        LookupDrafter {
            ngram_min,
            ngram_max,
            tokens_max,
            candidates: 32,
            first: false,
            window: 256,
            gain_min: 0.01,
            histories: BTreeMap::new(),
            continuations: Continuations::default(),
        }
    }

    /// The same, proposing what followed one occurrence and nothing else: prompt lookup as it was published.
    ///
    /// # Panics
    ///
    /// As [`LookupDrafter::new`].
    pub fn chain(ngram_min: usize, ngram_max: usize, tokens_max: usize) -> LookupDrafter {
        let drafter = LookupDrafter::new(ngram_min, ngram_max, tokens_max);
        LookupDrafter { candidates: 1, window: 0, gain_min: 0.0, ..drafter }
    }

    fn propose(&mut self, ask: &mut Ask<'_>) {
        let history = self.histories.get_mut(&ask.sequence);
        let history = history.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        history.extend_to(ask.tokens);
        assert!(history.len() == ask.tokens.len(), "{} tokens indexed of {}", history.len(), ask.tokens.len());
        // How deep a copy goes is left to its gain.
        let depth = (0.0, self.tokens_max as f32);
        let found = &mut self.continuations;
        found.clear();
        found.gather(0, history, ask.tokens, depth, self.candidates, self.first);
        found.gather_empty(ask.tokens, self.window, depth);
        // One occurrence is a chain, of which nothing is left out.
        let gain_min = if self.candidates == 1 { self.gain_min } else { ask.gain_min(self.gain_min) };
        let nodes_max = self.tokens_max;
        let bounds = Bounds { nodes_max, depth_max: nodes_max, token_min: 0.0, gain_min };
        let tokens = ask.tokens;
        found.offer(ask, &[Source { tokens, share: 1.0 }], self.window, bounds);
    }
}

impl Drafter for LookupDrafter {
    fn name(&self) -> &str {
        "lookup"
    }

    fn open(&mut self, sequence: SequenceId, prompt: &[Token], _tenant: Tenant) {
        let mut history = History::new(self.ngram_min..=self.ngram_max);
        history.extend_to(prompt);
        let before = self.histories.insert(sequence, history);
        assert!(before.is_none(), "{sequence:?} was opened twice");
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            self.propose(ask);
        }
    }

    fn keep(&mut self, sequence: SequenceId, len: usize) {
        let history = self.histories.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        history.truncate(len);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.histories.remove(&sequence);
    }
}

#[cfg(test)]
mod tests;
