//! Suffix matching: what followed the longest match, in the running sequence or in an earlier one.
//!
//! SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975) keeps suffix trees of the running request and of earlier
//! outputs, follows the longest match, drafts at most `alpha` times as many tokens as matched, and takes the most
//! probable nodes greedily, by frequency. SAM decoding (Hu et al. 2024, arXiv 2411.10666) does the same for one chain
//! with suffix automata. This drafter has an index of a few lengths of n-grams ([`super::history`]): the latest ends of
//! the longest n-gram that matches are compared backwards, so a match has its true length, and what followed a few
//! dozen of them votes, as in a tree of counts that is made for one pass ([`super::continuations`]). That takes a sixth
//! of the memory of an automaton, and its work is bounded whatever the texts are.
//!
//! *Prompt lookup* (Saxena 2023) is the same without other texts ([`SuffixDrafter::lookup`]); with a single occurrence
//! it is the chain that transformers and others propose ([`SuffixDrafter::lookup_chain`]). If a copy reaches the end of
//! the sequence it continues in the tokens that it just proposed, as LZ77 does, so that a repeated token gets a whole
//! chain.
//!
//! A sequence that ends becomes history of its tenant, and is never shown to another tenant; texts of `warm_up` without
//! a tenant are public. An occurrence in another text counts less than one in the running sequence ([`SHARE`]); an
//! occurrence in the request's prediction counts as much, and so does one in the source of an encoder. Prompts and
//! outputs count alike, and equal texts are stored twice.

use std::collections::BTreeMap;

use crate::continuations::{Bounds, Continuations, Source};
use crate::history::History;
use crate::tenants::{TENANTS_MAX, Tenants};
use crate::texts::Texts;
use foretoken_speculation::{Ask, Drafter, Opening, StepOutput};
use foretoken_speculation::{Chance, Law, Offer, SequenceId, Tenant, Token};

/// Lengths of n-grams of running sequences and of histories. Single tokens matter if nothing else matches, and long
/// n-grams find the long matches among many short ones; a fourth length found nothing more.
const LENGTHS: [usize; 3] = [1, 2, 5];
/// Weight of an occurrence in another text, relative to one of the same match in the running sequence.
const SHARE: f32 = 0.15;

/// A [`Drafter`] that copies what followed the last tokens before, in this sequence or another. Proposes point masses;
/// needs no model and no chance.
#[derive(Debug)]
pub struct SuffixDrafter {
    /// Maximum number of tokens proposed per pass, in all branches together.
    pub nodes_max: usize,
    /// Maximum number of occurrences that vote, of the running sequence and of each other text; 1 proposes a chain.
    pub candidates: usize,
    /// Whether the earliest occurrence of the longest match comes first, and not the latest. This matters only for a
    /// chain.
    pub first: bool,
    /// Maximum number of tokens of a branch.
    pub depth_max: usize,
    /// Maximum number of tokens copied from one occurrence: this times its match, and `depth_offset` more. `alpha` of
    /// SuffixDecoding.
    pub depth_factor: f32,
    /// Tokens that may be copied beyond [`SuffixDrafter::depth_factor`] times the match.
    depth_offset: f32,
    /// A token is not proposed if its estimated probability after its parent is below this, 0 to 1.
    pub token_min: f32,
    /// A node is not proposed if the estimated probability that it is accepted is below this, 0 to 1.
    pub gain_min: f32,
    /// The most frequent of this many last tokens fill the room that matches leave; 0 is off.
    pub window: usize,
    name: &'static str,
    lengths: Vec<usize>,
    /// Maximum number of tokens of other texts that are kept: of public ones, and as many of all tenants' together; 0
    /// for none.
    capacity_tokens: usize,
    texts: Tenants<Texts>,
    running: BTreeMap<SequenceId, Running>,
    continuations: Continuations,
}

#[derive(Debug)]
struct Running {
    history: History,
    prediction: History,
    /// What the target's encoder has read, which outputs often repeat.
    source: History,
    tenant: Tenant,
}

impl Default for SuffixDrafter {
    /// A million tokens of history, which take up to 60 MB when it is full.
    fn default() -> SuffixDrafter {
        SuffixDrafter::new(1_000_000)
    }
}

impl SuffixDrafter {
    /// A drafter that keeps up to `capacity_tokens` tokens of tenants' sequences that ended or were learned, and as
    /// many of public texts, and forgets the oldest.
    pub fn new(capacity_tokens: usize) -> SuffixDrafter {
        SuffixDrafter {
            nodes_max: 16,
            candidates: 32,
            first: false,
            depth_max: 24,
            depth_factor: 2.0,
            depth_offset: 8.0,
            token_min: 0.0,
            gain_min: 0.01,
            window: 256,
            name: "suffix",
            lengths: LENGTHS.to_vec(),
            capacity_tokens,
            texts: Tenants::new(TENANTS_MAX, Texts::default()),
            running: BTreeMap::new(),
            continuations: Continuations::default(),
        }
    }

    /// Prompt lookup: copies up to `nodes_max` tokens from the sequence itself alone, after an earlier occurrence of
    /// its last `ngram_max` down to `ngram_min` tokens. The depth of a copy is bounded by its gain.
    ///
    /// transformers' defaults are n-grams of 2 tokens down to 1 and 10 tokens proposed, llama.cpp's n-gram drafter
    /// looks for 12: since the longest match is taken, a longer maximum costs only its index.
    ///
    /// # Panics
    ///
    /// Panics if `ngram_min` is 0 or more than `ngram_max`.
    pub fn lookup(ngram_min: usize, ngram_max: usize, nodes_max: usize) -> SuffixDrafter {
        assert!(1 <= ngram_min && ngram_min <= ngram_max, "n-grams of {ngram_min} to {ngram_max} tokens");
        SuffixDrafter {
            nodes_max,
            depth_max: nodes_max,
            depth_factor: 0.0,
            depth_offset: nodes_max as f32,
            name: "lookup",
            lengths: (ngram_min..=ngram_max).collect(),
            ..SuffixDrafter::new(0)
        }
    }

    /// Like [`SuffixDrafter::lookup`], but proposes what followed a single occurrence: prompt lookup as it was
    /// published.
    ///
    /// # Panics
    ///
    /// As [`SuffixDrafter::lookup`].
    pub fn lookup_chain(ngram_min: usize, ngram_max: usize, nodes_max: usize) -> SuffixDrafter {
        let drafter = SuffixDrafter::lookup(ngram_min, ngram_max, nodes_max);
        SuffixDrafter { candidates: 1, window: 0, gain_min: 0.0, ..drafter }
    }

    /// Number of tokens of other texts that are kept.
    pub fn history_tokens(&self) -> usize {
        self.texts.all().map(Texts::len).sum()
    }

    /// Bytes that other texts take.
    pub fn history_bytes(&self) -> usize {
        self.texts.all().map(Texts::bytes).sum()
    }

    fn learn(&mut self, tokens: &[Token], owner: Option<Tenant>) {
        if self.capacity_tokens > 0 {
            self.texts.learn(tokens, owner, self.capacity_tokens, &self.lengths);
        }
    }

    fn propose(&mut self, ask: &mut Ask<'_>) {
        let running = self.running.get_mut(&ask.sequence);
        let Running { history, prediction, source, tenant } =
            running.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        history.extend_to(ask.written());
        assert!(history.len() == ask.written_len, "{} tokens indexed of {}", history.len(), ask.written_len);
        let depth = (self.depth_factor, self.depth_offset);
        let found = &mut self.continuations;
        found.clear();
        found.gather(0, history, ask.tokens, depth, self.candidates, self.first);
        let mut sources = vec![Source { tokens: ask.tokens, share: 1.0 }];
        let others = self.texts.seen_by(*tenant).flat_map(Texts::newest_first).map(|history| (history, SHARE));
        let given = [(&*prediction, 1.0), (&*source, 1.0)];
        for (history, share) in given.into_iter().chain(others).filter(|(history, _)| history.len() > 1) {
            found.gather(sources.len(), history, ask.tokens, depth, self.candidates, self.first);
            sources.push(Source { tokens: history.tokens(), share });
        }
        found.gather_empty(ask.tokens, self.window, depth);
        let bounds = Bounds {
            nodes_max: self.nodes_max,
            depth_max: self.depth_max,
            token_min: self.token_min,
            // One occurrence is a chain, which is proposed whole.
            gain_min: if self.candidates == 1 { self.gain_min } else { ask.gain_min(self.gain_min) },
        };
        let offered = ask.tree.offers().len();
        found.offer(ask, &sources, self.window, bounds);
        if self.candidates == 1 {
            keep_points(ask, offered);
        }
    }
}

/// Keeps the law of each token of a chain that was offered from this offer on, a point mass, to be compared with the
/// target's. The alternatives of a tree have no such law.
fn keep_points(ask: &mut Ask<'_>, from: usize) {
    for at in from..ask.tree.offers().len() {
        let Offer { node, parent, .. } = ask.tree.offers()[at];
        let point = Law::point(ask.tree.token(node));
        ask.tree.keep_law(parent, point, ask.source);
    }
}

impl Drafter for SuffixDrafter {
    fn name(&self) -> &str {
        self.name
    }

    fn warm_up(&mut self, tokens: &[Token], _prompt_len: usize, tenant: Option<Tenant>) {
        self.learn(tokens, tenant);
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let [history, prediction, source] = [opening.prompt, opening.prediction, opening.source].map(|tokens| {
            let mut history = History::new(self.lengths.iter().copied());
            history.extend_to(tokens);
            history
        });
        self.texts.touch(opening.tenant);
        let running = Running { history, prediction, source, tenant: opening.tenant };
        let before = self.running.insert(opening.sequence, running);
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        asks.iter_mut().for_each(|ask| self.propose(ask));
    }

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        for output in outputs {
            if let Some(running) = self.running.get_mut(&output.sequence) {
                running.history.extend_to(output.tokens);
            }
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if let Some(Running { history, tenant, .. }) = self.running.remove(&sequence) {
            self.learn(history.tokens(), Some(tenant));
        }
    }
}

#[cfg(test)]
mod tests;
