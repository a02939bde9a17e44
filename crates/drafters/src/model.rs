//! A draft model: a small network guesses a chain or a tree, for all sequences together.
//!
//! Under *exact* the drafter races with the noise that the target will race with at the same position, and offers the
//! winner as a point mass; the closer its law to the target's, the oftener they agree. Under *rejection* it draws with
//! noise of its own and offers the draw with its law. Greedy needs no case: its laws are point masses ([`Ask::draw`]).
//!
//! A branch ends after the token whose probability fell below `p_min` (llama.cpp's `p-min`, transformers'
//! `assistant_confidence_threshold`, there stopping likewise after the token) and after an end token. Confidence is the
//! network's raw probability, before temperature and filters: under greedy the law itself would always say 1. Where
//! other tokens have a raw probability above `p_split` (llama.cpp's `p-split`), siblings are drawn, and the tree grows
//! best first, several leaves a pass (`grow`).
//!
//! The draft can be drafted for in turn (Chen et al. 2023, cascade speculative drafting, the vertical cascade; Spector
//! and Re 2023, staged speculative decoding): whenever a pass of the draft model is due, an inner drafter proposes what
//! it will say from there on, and the pass runs all of that ahead. So it costs a pass only where the inner drafter was
//! wrong (`ahead`). The inner drafter fills a cache and nothing else: the draft is the same, token by token, with any
//! or none.
//!
//! Its cache goes by what it ran, not by what was accepted: rows run ahead are remembered, compared with what the
//! sequence became, and kept where they agree (`cache`). So another drafter's branch may win without confusing it.
//!
//! Left out: vocabularies other than the target's.

mod ahead;
pub(crate) mod cache;
pub(crate) mod expand;
pub(crate) mod grow;

use std::collections::BTreeMap;
use std::fmt;

use crate::{LogitRows, ScoreAsk, Scorer};
use foretoken_speculation::{Ask, DraftSettings, Drafter, News, Opening, ReadAsk, Work};
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
    /// Draft length: most tokens of a branch.
    pub depth_max: usize,
    /// What requests leave open. (`n_min`: llama.cpp throws shorter drafts away instead of going on, which looks at
    /// what was drawn and so is not lawful under *rejection*.)
    pub settings: DraftSettings,
    /// Most tokens that the inner drafter may have run ahead, per sequence and pass of the draft model.
    pub ahead_max: usize,
    /// What the network did so far.
    work: Work,
    inner: Option<Inner>,
    caches: BTreeMap<SequenceId, Cached>,
    /// Logits of the passes of one draft. Only what is run ahead is wanted later than in the next moment.
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
            ahead_max: 7,
            work: Work::default(),
            inner: None,
            caches: BTreeMap::new(),
            rows: LogitRows::new(),
            buffers: Buffers::default(),
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

    /// The rows that the picked leaves miss, and what the inner drafter guesses behind them. Who has no room for the
    /// guesses is run without.
    fn pass(&mut self, asks: &[Ask<'_>], growths: &mut [Growth]) {
        self.run(asks, &mut growths.iter_mut().collect::<Vec<_>>());
        let mut cramped: Vec<&mut Growth> = Vec::new();
        for growth in growths.iter_mut().filter(|growth| growth.missing().is_some()) {
            let cached = self.caches.get_mut(&asks[growth.ask].sequence).expect("opened, or nothing was run");
            if cached.tokens.len() > growth.needed {
                cached.truncate(growth.needed);
                cramped.push(growth);
            }
        }
        if !cramped.is_empty() {
            self.run(asks, &mut cramped);
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
            // Without any logits the ask was refused; single rows without them are there and say nothing.
            if rows.clone().any(|row| self.rows.row(row).is_some()) {
                if growth.root.is_none() {
                    growth.root = rows.next();
                    self.work.read += (tokens.len() - cached.ran.len()) as u64;
                    cached.ran.extend_from_slice(&tokens[cached.ran.len()..]);
                }
                growth.rows.extend(rows);
                cached.computed = growth.rows.len();
            }
        }
    }

    /// As [`Buffers::advance`].
    fn advance(&mut self, ask: &mut Ask<'_>, growth: &mut Growth, chance: &mut dyn Chance) -> bool {
        let cached = self.caches.get_mut(&ask.sequence).expect("opened, or catching up had failed");
        let bounds = Bounds { depth_max: self.depth_max, tokens_max: self.scorer.context_max() };
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
        // Of a text that is too long for it nothing would be read.
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
        self.scorer.open(opening.sequence, opening.tenant);
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
            if cached.ran.len() < ask.until {
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
        // What was refused was not run.
        self.work.passes += u64::from((0..reading.len()).any(|row| self.rows.row(row).is_some()));
        for (row, ask) in reading.into_iter().enumerate() {
            let cached = self.caches.get_mut(&ask.sequence).expect("opened, or nothing was run");
            cached.in_pass = false;
            if self.rows.row(row).is_some() {
                self.work.read += (ask.until - cached.ran.len()) as u64;
                cached.ran.extend_from_slice(&ask.tokens[cached.ran.len()..ask.until]);
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
            if self.inner.is_none() || growths.iter().all(Growth::is_fresh) {
                self.rows.clear();
            }
            self.look_ahead(asks, &growths, chance);
            self.pass(asks, &mut growths);
            growths.retain_mut(|growth| self.advance(&mut asks[growth.ask], growth, chance));
        }
    }

    fn observe(&mut self, news: &[News<'_>]) {
        let Some(inner) = &mut self.inner else { return };
        // The tree was not the inner drafter's: to it these were plain passes.
        let tree = DraftTree::new();
        for news in news {
            inner.drafter.observe(&[News { tree: &tree, path: &[], probes: &[], hidden: &[], ..*news }]);
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
