//! A draft model: a small network guesses a chain or a tree, for all sequences together.
//!
//! Under *exact* the drafter races with the noise that the target will race with at the same position, and offers the
//! winner as a point mass; the closer its law to the target's, the oftener they agree. Under *rejection* it draws with
//! noise of its own and offers the draw with its law. Greedy needs no case: its laws are point masses (`propose`).
//!
//! A branch ends after the token whose probability fell below `p_min` (llama.cpp's `p-min`, transformers'
//! `assistant_confidence_threshold`, there stopping likewise after the token) and after an end token. Confidence is the
//! network's raw probability, before temperature and filters: under greedy the law itself would always say 1. Where
//! other tokens have a raw probability above `p_split` (llama.cpp's `p-split`), siblings are drawn, and the tree grows
//! best first, several leaves a pass (`grow`).
//!
//! The draft can be drafted for in turn (Chen et al. 2023, cascade speculative drafting, the vertical cascade; Spector
//! and Re 2023, staged speculative decoding): an inner drafter proposes what the draft model will say, and the pass that
//! it begins with runs all of that ahead. What it then says costs a pass only where the inner drafter was wrong (`ahead`).
//! The inner drafter fills a cache and nothing else: the draft is the same, token by token, with any or without.
//!
//! Its cache goes by what it ran, not by what was accepted: rows run ahead are remembered, compared with what the
//! sequence became, and kept where they agree (`cache`). So another drafter's branch may win without confusing it.
//!
//! Left out: vocabularies other than the target's.

mod ahead;
mod cache;
mod grow;
mod propose;

use std::collections::BTreeMap;
use std::fmt;

use crate::draft::{Ask, DraftSettings, Drafter, News};
use crate::{Chance, DraftTree, Rows, ScoreAsk, Scorer, SequenceId, Tenant, Token};

use ahead::Inner;
use cache::Cached;
use grow::{Growth, Leaf, Logits, Picked};
use propose::{Pen, Place};

/// A [`Drafter`] that asks a [`Scorer`].
pub struct ModelDrafter<S> {
    /// The small network.
    pub scorer: S,
    /// Most tokens of a branch.
    pub n_max: usize,
    /// What requests leave open. (`n_min`: llama.cpp throws shorter drafts away instead of going on, which looks at what
    /// was drawn and so is not lawful under *rejection*.)
    pub settings: DraftSettings,
    /// Most tokens that the inner drafter may have run ahead per sequence and pass.
    pub ahead_max: usize,
    /// Passes of the network so far.
    pub passes: u64,
    inner: Option<Inner>,
    caches: BTreeMap<SequenceId, Cached>,
    /// Logits of the first pass of a draft, which may be wanted late.
    first: Rows,
    /// Logits of its last pass.
    last: Rows,
    pen: Pen,
}

impl<S: fmt::Debug> fmt::Debug for ModelDrafter<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("ModelDrafter");
        shown.field("scorer", &self.scorer).field("n_max", &self.n_max).field("settings", &self.settings);
        shown.field("inner", &self.inner.as_ref().map(Inner::name)).finish_non_exhaustive()
    }
}

impl<S: Scorer> ModelDrafter<S> {
    /// A drafter of chains of up to 5 tokens, without a confidence rule, at the target's temperature.
    pub fn new(scorer: S) -> ModelDrafter<S> {
        ModelDrafter {
            scorer,
            n_max: 5,
            settings: DraftSettings::default(),
            ahead_max: 7,
            passes: 0,
            inner: None,
            caches: BTreeMap::new(),
            first: Rows::new(),
            last: Rows::new(),
            pen: Pen::default(),
        }
    }

    /// The same with a drafter of its own, which may have one in turn.
    ///
    /// # Panics
    ///
    /// Panics if a sequence is open already.
    pub fn with_inner(mut self, drafter: Box<dyn Drafter>) -> ModelDrafter<S> {
        assert!(self.caches.is_empty(), "{} sequences are open", self.caches.len());
        self.inner = Some(Inner::new(drafter));
        self
    }

    /// Keeps of the cache what agrees with the sequence, leaving at least its last token to be run.
    fn catch_up(&mut self, ask: &Ask<'_>) {
        let cached = self.caches.get_mut(&ask.sequence);
        let cached = cached.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        let (before, last) = (cached.len(), ask.tokens.len() - 1);
        let path = cached.path(&ask.tokens[cached.agreed.min(last)..last]);
        let kept = (cached.agreed + path.len()).min(last);
        if path.iter().enumerate().any(|(i, row)| *row as usize != i) {
            self.scorer.keep_path(ask.sequence, cached.agreed, &path);
        } else if kept < before {
            self.scorer.keep(ask.sequence, kept);
        }
        *cached = Cached { agreed: kept, ..Cached::default() };
    }

    /// The first pass of a draft: everything of the sequences that was not run yet, and the guesses of the inner drafter
    /// behind it. Who has no room for the guesses is run without.
    fn first_pass(&mut self, asks: &[Ask<'_>], growths: &mut [Growth]) {
        let mut rows = std::mem::take(&mut self.first);
        self.run_first(asks, &mut growths.iter_mut().collect::<Vec<_>>(), &mut rows, Logits::First);
        self.first = rows;
        let cramped = |growth: &Growth| !growth.ahead.0.is_empty() && growth.computed == 0;
        let mut again: Vec<&mut Growth> = growths.iter_mut().filter(|growth| cramped(growth)).collect();
        if !again.is_empty() {
            again.iter_mut().for_each(|growth| growth.ahead = Default::default());
            let mut rows = std::mem::take(&mut self.last);
            self.run_first(asks, &mut again, &mut rows, Logits::Last);
            self.last = rows;
        }
    }

    fn run_first(
        &mut self,
        asks: &[Ask<'_>],
        growths: &mut [&mut Growth],
        rows: &mut Rows,
        place: fn(usize) -> Logits,
    ) {
        let spans: Vec<_> = growths
            .iter()
            .map(|growth| growth.first_span(&asks[growth.ask].tokens[self.caches[&asks[growth.ask].sequence].agreed..]))
            .collect();
        let score_asks: Vec<ScoreAsk<'_>> = growths
            .iter()
            .zip(&spans)
            .map(|(growth, (tokens, parents, wanted))| {
                let sequence = asks[growth.ask].sequence;
                ScoreAsk { sequence, start: self.caches[&sequence].agreed, tokens, parents, computed: 0, wanted }
            })
            .collect();
        score(&mut self.scorer, &score_asks, rows);
        self.passes += 1;
        let mut row = 0;
        for (growth, (_, _, wanted)) in growths.iter_mut().zip(&spans) {
            growth.picked[0].logits = place(row);
            growth.ahead_from = row + 1;
            if rows.row(row).is_some() {
                let cached = self.caches.get_mut(&asks[growth.ask].sequence).expect("opened, or nothing was run");
                let (tokens, parents) = growth.ahead.clone();
                growth.computed = tokens.len();
                *cached = Cached { agreed: asks[growth.ask].tokens.len(), tokens, parents };
            }
            row += wanted.len();
        }
    }

    /// A later pass: the rows of all picked leaves that are missing.
    fn next_pass(&mut self, asks: &[Ask<'_>], growths: &mut [Growth]) {
        let mut rows = std::mem::take(&mut self.last);
        let wanted: Vec<Vec<u32>> = growths
            .iter()
            .map(|growth| growth.computed as u32..self.caches[&asks[growth.ask].sequence].tokens.len() as u32)
            .map(Iterator::collect)
            .collect();
        let score_asks: Vec<ScoreAsk<'_>> = growths
            .iter()
            .zip(&wanted)
            .map(|(growth, wanted)| {
                let sequence = asks[growth.ask].sequence;
                let Cached { agreed, tokens, parents } = &self.caches[&sequence];
                ScoreAsk { sequence, start: *agreed, tokens, parents, computed: growth.computed, wanted }
            })
            .collect();
        score(&mut self.scorer, &score_asks, &mut rows);
        self.passes += 1;
        let mut row = 0;
        for (growth, wanted) in growths.iter_mut().zip(&wanted) {
            let cached = self.caches.get_mut(&asks[growth.ask].sequence).expect("opened, or nothing was run");
            match rows.row(row) {
                Some(_) => growth.computed = cached.tokens.len(),
                None => cached.truncate_rows(growth.computed),
            }
            let missing = growth.picked.iter_mut().filter(|picked| matches!(picked.logits, Logits::Missing));
            missing.zip(row..).for_each(|(picked, row)| picked.logits = Logits::Last(row));
            row += wanted.len();
        }
        self.last = rows;
    }

    /// Continues the picked leaves, and picks the next, until one of them is missing. Whether there is any.
    fn advance(&mut self, ask: &mut Ask<'_>, growth: &mut Growth, chance: &mut dyn Chance) -> bool {
        loop {
            for picked in std::mem::take(&mut growth.picked) {
                if ask.has_room() && !self.expand(ask, growth, picked, chance) {
                    return false;
                }
            }
            let room = ask.limits.nodes_max.saturating_sub(ask.tree.len());
            let cached = self.caches.get_mut(&ask.sequence).expect("opened, or nothing was run");
            let mut complete = true;
            for leaf in growth.take(room, self.n_max) {
                let row = cached.child(leaf.parent_row, leaf.token);
                let logits = row.map_or(Logits::Missing, |row| Logits::First(growth.ahead_from + row as usize));
                complete &= row.is_some();
                let row = row.unwrap_or_else(|| cached.push(leaf.parent_row, leaf.token));
                growth.picked.push(Picked { leaf, row: Some(row), logits });
            }
            if growth.picked.is_empty() || !complete {
                return !growth.picked.is_empty();
            }
        }
    }

    /// Draws and offers the tokens after a leaf; false if its logits could not be had.
    fn expand(&mut self, ask: &mut Ask<'_>, growth: &mut Growth, picked: Picked, chance: &mut dyn Chance) -> bool {
        let logits = match picked.logits {
            Logits::First(row) => self.first.row(row),
            Logits::Last(row) => self.last.row(row),
            Logits::Missing => panic!("row {:?} of {:?} was not run", picked.row, ask.sequence),
        };
        let Some(logits) = logits else { return false };
        let (parent, depth) = (picked.leaf.node, picked.leaf.depth + 1);
        let settings = ask.settings.or(self.settings);
        self.pen.write(ask, Place { parent, logits, settings }, chance);
        growth.learn(self.pen.children.first().map_or(0.0, |child| child.confidence));
        let token_min = settings.p_min.unwrap_or(0.0).max(ask.limits.token_min);
        for child in &self.pen.children {
            let gain = picked.leaf.gain * child.confidence;
            let confident = child.confidence >= token_min && gain >= ask.limits.path_min;
            let goes_on = confident || depth < settings.n_min.unwrap_or(0);
            if goes_on && !ask.sampling.end_tokens.contains(&child.token) && self.may_grow(ask, depth) {
                let (node, token, parent_row) = (Some(child.node), child.token, picked.row);
                growth.leaves.push(Leaf { node, token, parent_row, depth, gain });
            }
        }
        true
    }

    /// Whether a branch of this length may be longer, as far as depth and context go.
    fn may_grow(&self, ask: &Ask<'_>, depth: usize) -> bool {
        depth < self.n_max && ask.tokens.len() + depth <= self.scorer.context_max()
    }
}

fn score(scorer: &mut impl Scorer, asks: &[ScoreAsk<'_>], rows: &mut Rows) {
    rows.clear();
    scorer.score(asks, rows);
    let wanted: usize = asks.iter().map(|ask| ask.wanted.len()).sum();
    assert!(rows.len() == wanted, "{} rows for {wanted} wanted", rows.len());
}

impl<S: Scorer> Drafter for ModelDrafter<S> {
    fn name(&self) -> &str {
        self.inner.as_ref().map_or("draft", Inner::name)
    }

    fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        if let Some(inner) = &mut self.inner {
            inner.drafter.warm_up(tokens, prompt_len, tenant);
        }
    }

    fn open(&mut self, sequence: SequenceId, prompt: &[Token], tenant: Tenant) {
        let before = self.caches.insert(sequence, Cached::default());
        assert!(before.is_none(), "{sequence:?} was opened twice");
        self.scorer.open(sequence);
        if let Some(inner) = &mut self.inner {
            inner.drafter.open(sequence, prompt, tenant);
        }
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        let may_begin = |(_, ask): &(usize, &Ask<'_>)| ask.has_room() && self.may_grow(ask, 0);
        let mut growths: Vec<Growth> = asks.iter().enumerate().filter(may_begin).map(|(i, _)| Growth::new(i)).collect();
        if growths.is_empty() {
            return;
        }
        growths.iter().for_each(|growth| self.catch_up(&asks[growth.ask]));
        self.look_ahead(asks, &mut growths, chance);
        self.first_pass(asks, &mut growths);
        loop {
            growths.retain_mut(|growth| self.advance(&mut asks[growth.ask], growth, chance));
            if growths.is_empty() {
                break;
            }
            self.next_pass(asks, &mut growths);
        }
    }

    fn observe(&mut self, news: &[News<'_>]) {
        let Some(inner) = &mut self.inner else { return };
        // The tree was not the inner drafter's: to it these were plain passes.
        let tree = DraftTree::new();
        let plain: Vec<News<'_>> =
            news.iter().map(|news| News { tree: &tree, path: &[], probes: &[], ..*news }).collect();
        inner.drafter.observe(&plain);
    }

    fn keep(&mut self, sequence: SequenceId, len: usize) {
        let cached = self.caches.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if cached.truncate(len) {
            self.scorer.keep(sequence, cached.len());
        }
        if let Some(inner) = &mut self.inner {
            inner.drafter.keep(sequence, len);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.caches.remove(&sequence).is_some() {
            self.scorer.close(sequence);
            if let Some(inner) = &mut self.inner {
                inner.drafter.close(sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests;
