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
//! and Re 2023, staged speculative decoding): whenever a pass of the draft model is due, an inner drafter proposes what it
//! will say from there on, and the pass runs all of that ahead. So it costs a pass only where the inner drafter was wrong
//! (`ahead`). The inner drafter fills a cache and nothing else: the draft is the same, token by token, with any or none.
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

use crate::choose::{Branch, Outlook};
use crate::draft::{Ask, DraftSettings, Drafter, News, Work};
use crate::{Chance, DraftTree, Rows, ScoreAsk, Scorer, SequenceId, Tenant, Token};

use ahead::Inner;
use cache::{Cached, TreeSpan};
use grow::{Growth, Leaf, Location, Picked};
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
    /// Most tokens that the inner drafter may have run ahead, per sequence and pass of the draft model.
    pub ahead_max: usize,
    /// What the network did so far.
    work: Work,
    inner: Option<Inner>,
    caches: BTreeMap<SequenceId, Cached>,
    /// Logits of the passes of one draft. Only what is run ahead is wanted later than in the next moment, so there is
    /// more than one block only with an inner drafter.
    blocks: Vec<Rows>,
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
            work: Work::default(),
            inner: None,
            caches: BTreeMap::new(),
            blocks: Vec::new(),
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
        // A draft that ended in a panic, of whichever sequence, left rows that were never run, or perhaps.
        cached.truncate_rows(cached.computed);
        if std::mem::take(&mut cached.in_pass) {
            self.scorer.keep(ask.sequence, cached.len());
        }
        if let Some(inner) = &mut self.inner {
            inner.forget_guesses(ask.sequence);
        }
        let (before, last) = (cached.len(), ask.tokens.len() - 1);
        let path = cached.path(&ask.tokens[cached.agreed.min(last)..last]);
        let kept = (cached.agreed + path.len()).min(last);
        if path.iter().enumerate().any(|(i, row)| *row as usize != i) {
            self.scorer.keep_path(ask.sequence, cached.agreed, &path);
        } else if kept < before {
            self.scorer.keep(ask.sequence, kept);
        }
        cached.agreed = kept;
        cached.truncate_rows(0);
    }

    /// The rows that the picked leaves miss, and what the inner drafter guesses behind them. Who has no room for the
    /// guesses is run without.
    fn pass(&mut self, asks: &[Ask<'_>], growths: &mut [Growth], block: usize) {
        self.run(asks, &mut growths.iter_mut().collect::<Vec<_>>(), block);
        let mut cramped: Vec<&mut Growth> = Vec::new();
        for growth in growths.iter_mut().filter(|growth| growth.missing().is_some()) {
            let cached = self.caches.get_mut(&asks[growth.ask].sequence).expect("opened, or nothing was run");
            if cached.tokens.len() > growth.needed {
                cached.truncate_rows(growth.needed);
                cramped.push(growth);
            }
        }
        if !cramped.is_empty() {
            self.run(asks, &mut cramped, block + 1);
        }
    }

    fn run(&mut self, asks: &[Ask<'_>], growths: &mut [&mut Growth], block: usize) {
        let Self { caches, scorer, blocks, .. } = self;
        blocks.resize_with(blocks.len().max(block + 1), Rows::new);
        for growth in growths.iter() {
            caches.get_mut(&asks[growth.ask].sequence).expect("opened, or catching up had failed").in_pass = true;
        }
        let spans: Vec<TreeSpan<'_>> = growths
            .iter()
            .map(|growth| {
                let Ask { sequence, tokens, .. } = &asks[growth.ask];
                caches[sequence].span(tokens, growth.root.is_none(), growth.rows.len())
            })
            .collect();
        let score_asks: Vec<ScoreAsk<'_>> =
            growths.iter().zip(&spans).map(|(growth, span)| span.ask(asks[growth.ask].sequence)).collect();
        blocks[block].clear();
        scorer.score(&score_asks, &mut blocks[block]);
        self.work.passes += 1;
        let wanted: Vec<usize> = spans.iter().map(|span| span.wanted.len()).collect();
        let (found, all) = (blocks[block].len(), wanted.iter().sum::<usize>());
        assert!(found == all, "{found} rows for {all} wanted");
        let mut row = 0;
        for (growth, wanted) in growths.iter_mut().zip(wanted) {
            let Ask { sequence, tokens, .. } = &asks[growth.ask];
            let cached = self.caches.get_mut(sequence).expect("opened, or nothing was run");
            cached.in_pass = false;
            let mut rows = (row..row + wanted).map(|row| Location { block, row });
            // Without any logits the ask was refused; single rows without them are there and say nothing.
            if rows.clone().any(|at| self.blocks[block].row(at.row).is_some()) {
                if growth.root.is_none() {
                    growth.root = rows.next();
                    self.work.read += (tokens.len() - cached.agreed) as u64;
                    cached.agreed = tokens.len();
                }
                growth.rows.extend(rows);
                cached.computed = growth.rows.len();
            }
            row += wanted;
        }
    }

    /// Continues the picked leaves, and picks the next, until one of them is missing. Whether there is any. A leaf whose
    /// row has no logits, or was refused, ends its branch; others go on.
    fn advance(&mut self, ask: &mut Ask<'_>, growth: &mut Growth, chance: &mut dyn Chance) -> bool {
        let cached = self.caches.get_mut(&ask.sequence).expect("opened, or catching up had failed");
        if growth.missing().is_some() {
            cached.truncate_rows(growth.rows.len());
            growth.drop_missing();
        }
        while growth.missing().is_none() {
            for i in 0..growth.picked.len() {
                if ask.has_room() {
                    self.expand(ask, growth, growth.picked[i], chance);
                }
            }
            growth.picked.clear();
            let room = ask.limits.nodes_max.saturating_sub(ask.tree.len());
            let cached = self.caches.get_mut(&ask.sequence).expect("opened before");
            growth.take(room, self.n_max);
            for &leaf in &growth.taken {
                let row = cached.child(leaf.parent_row, leaf.token);
                let row = row.unwrap_or_else(|| cached.push(leaf.parent_row, leaf.token));
                growth.picked.push(Picked { leaf, row: Some(row) });
            }
            growth.needed = cached.tokens.len();
            if growth.picked.is_empty() {
                return false;
            }
        }
        true
    }

    /// Draws and offers the tokens after a leaf.
    fn expand(&mut self, ask: &mut Ask<'_>, growth: &mut Growth, picked: Picked, chance: &mut dyn Chance) {
        let at =
            growth.logits(&picked).unwrap_or_else(|| panic!("row {:?} of {:?} was not run", picked.row, ask.sequence));
        let Some(logits) = self.blocks[at.block].row(at.row) else { return };
        let (parent, depth) = (picked.leaf.node, picked.leaf.depth + 1);
        let settings = ask.settings.or(self.settings);
        self.pen.write(ask, Place { parent, logits, settings }, chance);
        growth.nodes += self.pen.children.len();
        growth.learn(self.pen.children.first().map_or(0.0, |child| child.confidence));
        let token_min = settings.p_min.unwrap_or(0.0).max(ask.limits.token_min);
        for child in &self.pen.children {
            let gain = picked.leaf.gain * child.confidence;
            let acceptance = |outlook: Outlook<'_>| outlook.acceptance(ask.source, child.evidence(), depth);
            let worth = picked.leaf.worth * ask.outlook.map_or(1.0, acceptance);
            let room = (self.n_max - depth).min(ask.limits.nodes_max - ask.tree.len());
            let branch = Branch { gain: worth, depth, nodes: growth.nodes, room };
            let confident = child.confidence >= token_min && gain >= ask.limits.path_min && ask.pays(branch);
            let goes_on = confident || depth < settings.n_min.unwrap_or(0);
            if goes_on && !ask.sampling.end_tokens.contains(&child.token) && self.may_grow(ask, depth) {
                let (node, token, parent_row) = (Some(child.node), child.token, picked.row);
                growth.leaves.push(Leaf { node, token, parent_row, depth, gain, worth });
            }
        }
    }

    /// Whether a branch of this length may be longer, as far as depth and context go.
    fn may_grow(&self, ask: &Ask<'_>, depth: usize) -> bool {
        depth < self.n_max && ask.tokens.len() + depth <= self.scorer.context_max()
    }
}

impl<S: Scorer> Drafter for ModelDrafter<S> {
    fn name(&self) -> &str {
        self.inner.as_ref().map_or("draft", Inner::name)
    }

    fn work(&self) -> Option<Work> {
        Some(self.work)
    }

    fn unread(&self, sequence: SequenceId, len: usize) -> usize {
        len - self.caches.get(&sequence).map_or(0, |cached| cached.len().min(len))
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
            inner.open(sequence, prompt, tenant);
        }
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        let may_begin = |(_, ask): &(usize, &Ask<'_>)| ask.has_room() && self.may_grow(ask, 0);
        let mut growths: Vec<Growth> = asks.iter().enumerate().filter(may_begin).map(|(i, _)| Growth::new(i)).collect();
        if growths.is_empty() {
            return;
        }
        growths.iter().for_each(|growth| self.catch_up(&asks[growth.ask]));
        let (sequences, mut block): (Vec<usize>, _) = (growths.iter().map(|growth| growth.ask).collect(), 0);
        while !growths.is_empty() {
            self.look_ahead(asks, &mut growths, chance);
            self.pass(asks, &mut growths, block);
            growths.retain_mut(|growth| self.advance(&mut asks[growth.ask], growth, chance));
            // Two blocks a pass: the second is for those who had to be run again.
            block = if self.inner.is_none() || growths.iter().all(Growth::is_fresh) { 0 } else { block + 2 };
        }
        if let Some(inner) = &mut self.inner {
            sequences.into_iter().for_each(|i| inner.keep(asks[i].sequence, asks[i].tokens.len()));
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
            inner.keep(sequence, len);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.caches.remove(&sequence).is_some() {
            self.scorer.close(sequence);
            if let Some(inner) = &mut self.inner {
                inner.close(sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests;
