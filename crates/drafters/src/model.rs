//! A draft model: a small network proposes chains or trees, for all sequences of a pass together.
//!
//! Under *exact* the drafter races with the noise that the target will race with at the same position, and offers the
//! winner as a point mass; the closer its law is to the target's, the more often they agree. Under *rejection* it draws
//! with noise of its own and offers the draw with its law. Greedy needs no case: its laws are point masses
//! ([`Ask::draw`]).
//!
//! A branch ends after the token whose probability fell below `p_min` (llama.cpp's `p-min`, transformers'
//! `assistant_confidence_threshold`, which also stops after the token) and after an end token. Confidence is the
//! network's raw probability, before temperature and filters: under greedy the law's own probability is always 1. If
//! other tokens have a raw probability above `p_split` (llama.cpp's `p-split`), siblings are drawn, and the tree grows
//! best first, several leaves per pass (`grow`).
//!
//! The draft model can have a drafter of its own (Chen et al. 2023, cascade speculative drafting, the vertical cascade;
//! Spector and Re 2023, staged speculative decoding): whenever a pass of the draft model is due, an inner drafter
//! proposes the draft model's next tokens, and the pass computes their rows ahead. So the draft model needs another
//! pass only if the inner drafter was wrong (`ahead`). The inner drafter only fills the cache: the draft is the same,
//! token by token, with any inner drafter or none.
//!
//! The cache records the rows that were run, whatever was accepted: they are compared with the sequence's tokens and
//! kept as far as they agree (`cache`). So another drafter's branch may be accepted without harm.
//!
//! The draft model has the target's vocabulary; others are handled by [`crate::TranslatedDrafter`] and
//! [`crate::SharedScorer`].

mod ahead;
mod beams;
pub(crate) mod cache;
pub(crate) mod expand;
pub(crate) mod grow;

use std::collections::BTreeMap;
use std::fmt;

use crate::{LogitRows, ScoreAsk, Scorer};
use foretoken_speculation::{Ask, BeamAsk, DraftSettings, Drafter, Opening, ReadAsk, StepOutput, Work};
use foretoken_speculation::{Chance, DraftTree, SequenceId, Tenant, Token};

use ahead::Inner;
use cache::{Cached, TreeSpan};
use expand::{Bounds, Buffers};
use grow::Growth;

pub(super) use ahead::SEED_FLIP;

/// A [`Drafter`] that asks a [`Scorer`].
pub struct ModelDrafter<S> {
    /// The small network.
    pub scorer: S,
    /// Draft length: maximum number of tokens of a branch.
    pub depth_max: usize,
    /// Settings that requests leave open. (`n_min`: llama.cpp discards shorter drafts instead of continuing them; that
    /// depends on what was drawn, so under *rejection* the output would not follow the target's law.)
    pub settings: DraftSettings,
    /// Where the request does not say when to branch and costs decide: the least gain of a further branch, for targets
    /// whose rows are nearly free; `None` never branches. Elsewhere branches take rows from the best branch.
    pub branch_gain_min: Option<f64>,
    /// Counters of the network.
    work: Work,
    inner: Option<Inner>,
    caches: BTreeMap<SequenceId, Cached>,
    /// Logits of the passes of one draft; those of rows that were run ahead are used in later rounds.
    rows: LogitRows,
    buffers: Buffers,
}

impl<S: fmt::Debug> fmt::Debug for ModelDrafter<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("ModelDrafter");
        shown.field("scorer", &self.scorer).field("depth_max", &self.depth_max).field("settings", &self.settings);
        shown.field("inner", &self.inner.as_ref().map(|inner| &inner.name)).finish_non_exhaustive()
    }
}

impl<S: Scorer> ModelDrafter<S> {
    /// A drafter of chains of up to 5 tokens, without a confidence rule, at the target's temperature.
    pub fn new(scorer: S) -> ModelDrafter<S> {
        ModelDrafter {
            scorer,
            depth_max: 5,
            settings: DraftSettings::default(),
            branch_gain_min: None,
            work: Work::default(),
            inner: None,
            caches: BTreeMap::new(),
            rows: LogitRows::new(),
            buffers: Buffers::default(),
        }
    }

    /// This draft model with an inner drafter, which may have an inner drafter in turn.
    ///
    /// # Panics
    ///
    /// Panics if a sequence is open already.
    pub fn with_inner(mut self, drafter: Box<dyn Drafter>) -> ModelDrafter<S> {
        assert!(self.caches.is_empty(), "{} sequences are open", self.caches.len());
        self.inner = Some(Inner::new(drafter));
        self
    }

    /// Runs the rows that the picked leaves need, and those that the inner drafter proposed after them. A draft without
    /// room for the latter is run again without them.
    fn pass(&mut self, asks: &[Ask<'_>], growths: &mut [Growth]) {
        self.run(asks, &mut growths.iter_mut().collect::<Vec<_>>());
        let mut without_room: Vec<&mut Growth> = Vec::new();
        for growth in growths.iter_mut().filter(|growth| growth.missing().is_some()) {
            let cached = self.caches.get_mut(&asks[growth.ask].sequence).expect("opened, or nothing was run");
            if cached.tokens.len() > growth.needed {
                cached.truncate(growth.needed);
                without_room.push(growth);
            }
        }
        if !without_room.is_empty() {
            self.run(asks, &mut without_room);
        }
    }

    fn run(&mut self, asks: &[Ask<'_>], growths: &mut [&mut Growth]) {
        for growth in growths.iter() {
            self.caches.get_mut(&asks[growth.ask].sequence).expect("opened, or catching up had failed").in_pass = true;
        }
        let span = |growth: &&mut Growth| {
            let Ask { sequence, tokens, .. } = &asks[growth.ask];
            self.caches[sequence].span(tokens, growth.root.is_none())
        };
        let spans: Vec<TreeSpan<'_>> = growths.iter().map(span).collect();
        let score_asks: Vec<ScoreAsk<'_>> =
            growths.iter().zip(&spans).map(|(growth, span)| span.ask_of(&asks[growth.ask])).collect();
        let mut row = self.rows.len();
        self.scorer.score(&score_asks, &mut self.rows);
        self.work.passes += 1;
        let wanted: Vec<usize> = spans.iter().map(|span| span.wanted.len()).collect();
        let (found, all) = (self.rows.len() - row, wanted.iter().sum::<usize>());
        assert!(found == all, "{found} rows for {all} wanted");
        for (growth, wanted) in growths.iter_mut().zip(wanted) {
            let Ask { sequence, tokens, .. } = &asks[growth.ask];
            let cached = self.caches.get_mut(sequence).expect("opened, or nothing was run");
            cached.in_pass = false;
            let mut rows = row..row + wanted;
            row += wanted;
            // An ask without any logits was refused and not run; single rows without logits were run.
            if rows.clone().any(|row| self.rows.row(row).is_some()) {
                if growth.root.is_none() {
                    growth.root = rows.next();
                    self.work.read += (tokens.len() - cached.committed.len()) as u64;
                    cached.committed.extend_from_slice(&tokens[cached.committed.len()..]);
                }
                growth.rows.extend(rows);
                cached.computed = growth.rows.len();
            }
        }
    }

    /// As [`Buffers::advance`].
    fn advance(&mut self, ask: &mut Ask<'_>, growth: &mut Growth, chance: &mut dyn Chance) -> bool {
        let cached = self.caches.get_mut(&ask.sequence).expect("opened, or catching up had failed");
        let (depth_max, tokens_max) = (self.depth_max, self.scorer.context_max());
        let bounds = Bounds { depth_max, tokens_max, branch_gain_min: self.branch_gain_min };
        self.buffers.advance(cached, growth, &self.rows, bounds, ask, chance)
    }
}

impl<S: Scorer> Drafter for ModelDrafter<S> {
    fn name(&self) -> &str {
        self.inner.as_ref().map_or("draft", |inner| &inner.name)
    }

    fn work(&self) -> Option<Work> {
        let inner = self.inner.as_ref().and_then(|inner| inner.drafter.work()).unwrap_or_default();
        Some(Work { not_numbers: self.scorer.not_numbers() + inner.not_numbers, ..self.work })
    }

    fn unread(&self, sequence: SequenceId, len: usize) -> usize {
        // Nothing is read of a sequence that is too long.
        let own = if len > self.scorer.context_max() { len } else { 0 };
        let read = self.caches.get(&sequence).map_or(0, |cached| cached.len().min(len)).max(own);
        self.inner.as_ref().map_or(0, |inner| inner.drafter.unread(sequence, len)).max(len - read)
    }

    fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        if let Some(inner) = &mut self.inner {
            inner.drafter.warm_up(tokens, prompt_len, tenant);
        }
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let before = self.caches.insert(opening.sequence, Cached::default());
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
        self.scorer.open(opening);
        if let Some(inner) = &mut self.inner {
            inner.drafter.open(opening);
        }
    }

    fn read(&mut self, asks: &[ReadAsk<'_>]) {
        let context_max = self.scorer.context_max();
        let mut reading: Vec<&ReadAsk<'_>> = Vec::with_capacity(asks.len());
        for ask in asks.iter().filter(|ask| ask.tokens.len() <= context_max) {
            let cached = self.caches.get_mut(&ask.sequence);
            let cached = cached.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
            cached.adopt(ask.sequence, ask.tokens, &mut self.scorer);
            if cached.committed.len() < ask.until {
                cached.catch_up(ask.sequence, &ask.tokens[..ask.until], &mut self.scorer);
                cached.in_pass = true;
                reading.push(ask);
            }
        }
        if let Some(inner) = &mut self.inner {
            inner.drafter.read(asks);
        }
        if reading.is_empty() {
            return;
        }
        let spans: Vec<TreeSpan<'_>> =
            reading.iter().map(|ask| self.caches[&ask.sequence].span(&ask.tokens[..ask.until], true)).collect();
        let score_asks: Vec<ScoreAsk<'_>> =
            reading.iter().zip(&spans).map(|(ask, span)| span.ask(ask.sequence, ask.until)).collect();
        self.rows.clear();
        self.scorer.score(&score_asks, &mut self.rows);
        // Asks that were refused were not run.
        self.work.passes += u64::from((0..reading.len()).any(|row| self.rows.row(row).is_some()));
        for (row, ask) in reading.into_iter().enumerate() {
            let cached = self.caches.get_mut(&ask.sequence).expect("opened, or nothing was run");
            cached.in_pass = false;
            if self.rows.row(row).is_some() {
                self.work.read += (ask.until - cached.committed.len()) as u64;
                cached.committed.extend_from_slice(&ask.tokens[cached.committed.len()..ask.until]);
            }
        }
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        let mut growths: Vec<Growth> = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter_mut().enumerate() {
            ask.settings = ask.settings.or(self.settings);
            if ask.has_room() && self.depth_max > 0 && ask.tokens.len() <= self.scorer.context_max() {
                let cached = self.caches.get_mut(&ask.sequence);
                let cached = cached.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
                cached.catch_up(ask.sequence, ask.tokens, &mut self.scorer);
                cached.adopt(ask.sequence, ask.tokens, &mut self.scorer);
                let settings = ask.settings;
                let sampling = settings.has_filters().then(|| settings.sampling(ask.sampling));
                growths.push(Growth::new(i, sampling));
            }
        }
        while !growths.is_empty() {
            if self.inner.is_none() || growths.iter().all(Growth::needs_no_old_rows) {
                self.rows.clear();
            }
            self.look_ahead(asks, &growths, chance);
            self.pass(asks, &mut growths);
            growths.retain_mut(|growth| self.advance(&mut asks[growth.ask], growth, chance));
        }
    }

    fn drafts_beams(&self) -> bool {
        true
    }

    fn draft_beams(&mut self, ask: &mut BeamAsk<'_>) {
        self.draft_for_beams(ask);
    }

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        let Some(inner) = &mut self.inner else { return };
        // The tree was not the inner drafter's, so it observes plain passes.
        let tree = DraftTree::new();
        for output in outputs {
            inner.drafter.observe(&[StepOutput { tree: &tree, path: &[], probes: &[], hidden: &[], ..*output }]);
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
