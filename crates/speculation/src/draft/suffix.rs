//! Suffix matching: what followed the longest match, in the running text or in any text from before.
//!
//! SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975) keeps suffix trees of the running request and of earlier
//! outputs, follows the longest match, drafts at most `alpha` times as many tokens as matched, and takes the likeliest
//! nodes greedily, by frequency. SAM decoding (Hu et al. 2024, arXiv 2411.10666) does the same for one chain with suffix
//! automata. Here it is an index of three lengths of n-grams ([`super::history`]): the latest ends of the longest n-gram
//! that matches are compared backwards, so a match has its true length, and what followed a few dozen of them votes, as
//! in a tree of counts that is made for one pass ([`super::continuations`]). That takes a sixth of the memory of an
//! automaton, forgets by dropping a table, and its work is bounded whatever the texts are.
//!
//! A sequence that ends becomes history of its tenant, and is never shown to another; texts of `warm_up` without a
//! tenant are everybody's. An occurrence in another text counts less than one in the running text ([`SHARE`]).
//!
//! Left out: telling prompts from outputs in a history, and keeping an equal text once.

mod texts;

use std::collections::BTreeMap;

use crate::draft::continuations::{Bounds, Continuations, Source};
use crate::draft::history::History;
use crate::draft::suffix::texts::Texts;
use crate::draft::{Ask, Drafter, News};
use crate::{Chance, SequenceId, Tenant, Token};

/// Lengths of n-grams of running texts and of histories. Single tokens matter where nothing else matches, and long
/// n-grams find the long matches among many short ones; a fourth length found nothing more.
const LENGTHS: [usize; 3] = [1, 2, 5];
/// Weight of an occurrence in another text, next to one in the running text of the same match.
const SHARE: f32 = 0.15;

/// A [`Drafter`] that continues what it has read before, in this text or another. Proposes point masses; needs no model
/// and no chance.
#[derive(Debug)]
pub struct SuffixDrafter {
    /// Most tokens proposed per pass, in all branches together.
    pub tokens_max: usize,
    /// Most occurrences that vote, of the running text and of the histories each.
    pub candidates: usize,
    /// Most tokens below each other.
    pub depth_max: usize,
    /// Most tokens copied from one occurrence: this times its match, and [`SuffixDrafter::depth_offset`] more. alpha of
    /// the paper.
    pub depth_factor: f32,
    /// Tokens that may be copied beyond [`SuffixDrafter::depth_factor`] times the match.
    pub depth_offset: f32,
    /// A token of less estimated probability after its parent is not proposed, 0 to 1.
    pub token_min: f32,
    /// A node is not proposed if the estimated probability that it is accepted is below this, 0 to 1.
    pub gain_min: f32,
    /// From how many last tokens the commonest words are taken, for what room matches leave; 0 is off.
    pub window: usize,
    texts: Texts,
    running: BTreeMap<SequenceId, Running>,
    continuations: Continuations,
}

#[derive(Debug)]
struct Running {
    history: History,
    tenant: Tenant,
}

impl Default for SuffixDrafter {
    /// A million tokens of history, which take up to 60 MB when it is full.
    fn default() -> SuffixDrafter {
        SuffixDrafter::new(1_000_000)
    }
}

impl SuffixDrafter {
    /// A drafter that remembers up to `capacity_tokens` tokens of ended and learned texts, and forgets the oldest.
    pub fn new(capacity_tokens: usize) -> SuffixDrafter {
        SuffixDrafter {
            tokens_max: 16,
            candidates: 32,
            depth_max: 24,
            depth_factor: 2.0,
            depth_offset: 8.0,
            token_min: 0.0,
            gain_min: 0.01,
            window: 256,
            texts: Texts::new(capacity_tokens),
            running: BTreeMap::new(),
            continuations: Continuations::default(),
        }
    }

    /// Tokens of history that are remembered.
    pub fn history_tokens(&self) -> usize {
        self.texts.len()
    }

    /// Bytes that histories take.
    pub fn history_bytes(&self) -> usize {
        self.texts.bytes()
    }

    fn propose(&mut self, ask: &mut Ask<'_>) {
        let running = self.running.get_mut(&ask.sequence);
        let running = running.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        running.history.extend_to(ask.tokens);
        let len = running.history.len();
        assert!(len == ask.tokens.len(), "{len} tokens indexed of {}", ask.tokens.len());
        let depth = (self.depth_factor, self.depth_offset);
        let found = &mut self.continuations;
        found.clear();
        found.gather(0, &running.history, ask.tokens, depth, self.candidates, false);
        let mut sources = vec![Source { tokens: ask.tokens, share: 1.0 }];
        for history in self.texts.of(running.tenant) {
            found.gather(sources.len(), history, ask.tokens, depth, self.candidates, false);
            sources.push(Source { tokens: history.tokens(), share: SHARE });
        }
        found.gather_empty(ask.tokens, self.window, depth);
        let bounds = Bounds {
            nodes_max: self.tokens_max,
            depth_max: self.depth_max,
            token_min: self.token_min,
            gain_min: ask.gain_min(self.gain_min),
        };
        found.offer(ask, &sources, self.window, bounds);
    }
}

impl Drafter for SuffixDrafter {
    fn name(&self) -> &str {
        "suffix"
    }

    fn warm_up(&mut self, tokens: &[Token], _prompt_len: usize, tenant: Option<Tenant>) {
        self.texts.add(tokens, tenant);
    }

    fn open(&mut self, sequence: SequenceId, prompt: &[Token], tenant: Tenant) {
        let mut history = History::new(LENGTHS);
        history.extend_to(prompt);
        let before = self.running.insert(sequence, Running { history, tenant });
        assert!(before.is_none(), "{sequence:?} was opened twice");
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            self.propose(ask);
        }
    }

    fn observe(&mut self, news: &[News<'_>]) {
        for news in news {
            if let Some(running) = self.running.get_mut(&news.sequence) {
                running.history.extend_to(news.tokens);
            }
        }
    }

    fn keep(&mut self, sequence: SequenceId, len: usize) {
        let running = self.running.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        running.history.truncate(len);
    }

    fn close(&mut self, sequence: SequenceId) {
        if let Some(Running { history, tenant }) = self.running.remove(&sequence) {
            self.texts.add(history.tokens(), Some(tenant));
        }
    }
}

#[cfg(test)]
mod tests;
