//! A head: a small network that continues the target's own hidden states (Li et al. 2024, EAGLE; 2025, EAGLE-3).
//!
//! A row of the head reads a token and the hidden state of the position before it, from which the token was chosen: for
//! a written token the target's hidden states there, for a drafted token the head's own. The first token of a sequence
//! has no position before it and therefore no row, so row `i` of the head reads token `i + 1` of the sequence and the
//! target's hidden states of token `i`; the row of the pending token gives the logits of the first drafted token.
//!
//! The target's hidden states come with each pass ([`StepOutput::hidden`]), the prompt's too ([`Needs::prompt_rows`]),
//! and are kept here until the head has read them. If the beginning of a prompt was taken from the prefix cache, only
//! the hidden states of its last rows are available: the head's tokens then begin with the first of these, and it
//! drafts with this shorter context. Its committed rows are made of the target's hidden states alone. Rows of drafted
//! tokens are made of its own hidden states, so when drafted tokens are accepted their rows are dropped, and the tokens
//! are read again with the target's hidden states. If hidden states are missing, or would have to be read again after
//! they were dropped, the head drafts nothing for that sequence from then on, and never uses other rows instead of
//! them.
//!
//! Drafts grow as a draft model's do (`model/expand.rs`, `model/grow.rs`). A head cannot have an inner drafter that is
//! run ahead: the hidden states of its drafted tokens are not known before they are computed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use crate::model::cache::{Cached, TreeSpan};
use crate::model::expand::{Bounds, Buffers};
use crate::model::grow::Growth;
use crate::{HiddenInput, LogitRows, ScoreAsk, Scorer};
use foretoken_speculation::{Ask, Chance, DraftSettings, Drafter, Needs, Opening, ReadAsk, StepOutput};
use foretoken_speculation::{SequenceId, Token, Work};

/// A [`Drafter`] that asks a [`Scorer`] which reads hidden states of the target.
pub struct HeadDrafter<S> {
    /// The head.
    pub scorer: S,
    /// Draft length: maximum number of tokens of a branch.
    pub depth_max: usize,
    /// Settings that requests leave open.
    pub settings: DraftSettings,
    /// Maximum number of tokens of a sequence whose hidden states wait to be read. If more wait, because drafting has
    /// not paid for long, the head stops drafting for the sequence and frees its memory.
    pub unread_max: usize,
    /// Maximum number of bytes of waiting hidden states, of all sequences together: beyond it the head stops drafting
    /// for the sequence that comes next.
    unread_bytes_max: usize,
    work: Work,
    sequences: BTreeMap<SequenceId, HeadSequence>,
    /// Logits and own hidden states of the passes of one draft.
    rows: LogitRows,
    buffers: Buffers,
}

/// The state of one sequence.
#[derive(Debug, Default)]
struct HeadSequence {
    /// The head's rows: committed ones of tokens from the second on, and drafted ones after them.
    cached: Cached,
    states: TargetStates,
    /// The number of leading tokens of the sequence without hidden states here. The head's tokens are those after them,
    /// and all other positions here count from there.
    skipped: usize,
    /// Whether drafting has stopped because hidden states that the head would have to read are missing.
    is_stopped: bool,
}

/// The target's hidden states of consecutive tokens of a sequence: those that the head has not read yet, and the last
/// that it has read, since a sequence can be drafted for twice.
#[derive(Debug, Default)]
struct TargetStates {
    /// `[tokens, width]`.
    values: Vec<f32>,
    width: usize,
    /// The position of the first.
    first: usize,
}

impl TargetStates {
    /// Their size in bytes.
    fn bytes(&self) -> usize {
        size_of_val(&self.values[..])
    }

    /// The position after the last.
    fn len(&self) -> usize {
        self.first + self.values.len() / self.width.max(1)
    }

    /// Appends the hidden states of the next token, one for each layer.
    fn push(&mut self, layers: &[&[f32]]) {
        let width = layers.iter().map(|layer| layer.len()).sum();
        assert!(self.width == 0 || self.width == width, "hidden states of {width} elements, before of {}", self.width);
        self.width = width;
        layers.iter().for_each(|layer| self.values.extend_from_slice(layer));
    }

    /// The hidden states of the tokens in a range.
    fn of(&self, tokens: std::ops::Range<usize>) -> &[f32] {
        &self.values[(tokens.start - self.first) * self.width..(tokens.end - self.first) * self.width]
    }

    /// Drops the hidden states before this token.
    fn forget_before(&mut self, first: usize) {
        self.values.drain(..(first - self.first) * self.width);
        self.first = first;
    }
}

impl HeadSequence {
    /// The tokens that the head reads, of all tokens of the sequence.
    fn own<'a>(&self, tokens: &'a [Token]) -> &'a [Token] {
        &tokens[self.skipped..]
    }

    /// The rows to run; `tokens` are the head's tokens from the second on. In the first pass of a draft, or without
    /// one, these are the tokens that are not cached, with the target's hidden states; later the drafted tokens that
    /// are not computed, with the head's own hidden states.
    fn span<'a>(&'a self, sequence: SequenceId, tokens: &'a [Token], draft: Option<&Draft>) -> HeadSpan<'a> {
        let Self { cached, states, .. } = self;
        let certain = tokens.len();
        match draft.filter(|draft| draft.growth.root.is_some()) {
            None => {
                let target = states.of(cached.committed.len()..tokens.len());
                let (rows, hidden) = (cached.span(tokens, true), Cow::Borrowed(target));
                HeadSpan { sequence, rows, certain, hidden, is_drafted: false }
            }
            Some(draft) => {
                let own = draft.parent_states(&cached.parents[cached.computed..]);
                let (rows, hidden) = (cached.span(tokens, false), Cow::Owned(own));
                HeadSpan { sequence, rows, certain, hidden, is_drafted: true }
            }
        }
    }
}

/// The data that a [`ScoreAsk`] borrows.
struct HeadSpan<'a> {
    sequence: SequenceId,
    rows: TreeSpan<'a>,
    certain: usize,
    hidden: Cow<'a, [f32]>,
    /// Whether its tokens are drafted ones.
    is_drafted: bool,
}

impl HeadSpan<'_> {
    fn ask(&self) -> ScoreAsk<'_> {
        let kind = if self.is_drafted { HiddenInput::Own } else { HiddenInput::Target };
        ScoreAsk { hidden_in: kind(&self.hidden), ..self.rows.ask(self.sequence, self.certain) }
    }
}

/// A draft that is being made.
struct Draft {
    growth: Growth,
    /// The head's own hidden states, `[1 + rows, width]`: that of the pending token's row, then of each drafted token
    /// that was run, zeros where it could not be run.
    own_states: Vec<f32>,
    width: usize,
}

impl Draft {
    /// Appends the head's own hidden state of its next row.
    fn push(&mut self, hidden: &[f32]) {
        if self.width == 0 {
            self.width = hidden.len();
        }
        self.own_states.extend_from_slice(hidden);
        if hidden.is_empty() {
            self.own_states.resize(self.own_states.len() + self.width, 0.0);
        }
    }

    /// The head's own hidden state of each row's parent.
    fn parent_states(&self, parents: &[Option<u32>]) -> Vec<f32> {
        let state_of = |parent: &Option<u32>| {
            let row = parent.map_or(0, |parent| 1 + parent as usize);
            &self.own_states[row * self.width..][..self.width]
        };
        parents.iter().flat_map(state_of).copied().collect()
    }
}

impl<S: fmt::Debug> fmt::Debug for HeadDrafter<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("HeadDrafter");
        shown.field("scorer", &self.scorer).field("depth_max", &self.depth_max).field("settings", &self.settings);
        shown.finish_non_exhaustive()
    }
}

impl<S: Scorer> HeadDrafter<S> {
    /// A drafter of chains of up to 5 tokens, without a confidence rule, at the target's temperature.
    ///
    /// # Panics
    ///
    /// Panics if the scorer reads no layers of a target.
    pub fn new(scorer: S) -> HeadDrafter<S> {
        assert!(!scorer.target_layers().is_empty(), "a head that reads no layers of a target");
        HeadDrafter {
            scorer,
            depth_max: 5,
            settings: DraftSettings::default(),
            unread_max: 8192,
            unread_bytes_max: 512 << 20,
            work: Work::default(),
            sequences: BTreeMap::new(),
            rows: LogitRows::new(),
            buffers: Buffers::default(),
        }
    }

    /// The longest sequence that the head can draft for, in its own tokens: the first of them has no row.
    fn tokens_max(&self) -> usize {
        self.scorer.context_max().saturating_add(1)
    }

    /// Forgets drafted rows, and committed rows beyond the first `rows`. Returns whether the rows up to the token `end`
    /// can then be run, because all their hidden states are here.
    fn roll_back(&mut self, sequence: SequenceId, tokens: &[Token], rows: usize, end: usize) -> bool {
        let state = self.sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if state.is_stopped || state.states.len() < end {
            return false;
        }
        let HeadSequence { cached, states, .. } = state;
        assert!(tokens[1..].starts_with(&cached.committed), "{sequence:?}: written tokens were taken back");
        let kept = rows.min(cached.committed.len());
        let in_pass = std::mem::take(&mut cached.in_pass);
        if in_pass || kept < cached.len() {
            cached.truncate(0);
            let left = self.scorer.truncate(sequence, kept);
            cached.committed.truncate(left);
            state.is_stopped = left < states.first;
            if state.is_stopped {
                self.stop(sequence);
                return false;
            }
        }
        true
    }

    /// Drafts nothing for a sequence from now on, and frees its memory.
    fn stop(&mut self, sequence: SequenceId) {
        let state = self.sequences.get_mut(&sequence).expect("an open sequence");
        *state = HeadSequence { is_stopped: true, ..HeadSequence::default() };
        self.scorer.close(sequence);
    }

    /// Runs one pass over the rows that the drafts need.
    fn run(&mut self, asks: &[Ask<'_>], drafts: &mut [Draft]) {
        for draft in drafts.iter() {
            let state = self.sequences.get_mut(&asks[draft.growth.ask].sequence);
            state.expect("opened, or the rollback had failed").cached.in_pass = true;
        }
        let mut spans: Vec<HeadSpan<'_>> = Vec::with_capacity(drafts.len());
        for draft in drafts.iter() {
            let ask = &asks[draft.growth.ask];
            let state = &self.sequences[&ask.sequence];
            spans.push(state.span(ask.sequence, &state.own(ask.tokens)[1..], Some(draft)));
        }
        let score_asks: Vec<ScoreAsk<'_>> = spans.iter().map(HeadSpan::ask).collect();
        let mut row = self.rows.len();
        self.scorer.score(&score_asks, &mut self.rows);
        self.work.passes += 1;
        let wanted: Vec<usize> = spans.iter().map(|span| span.rows.wanted.len()).collect();
        let (found, all) = (self.rows.len() - row, wanted.iter().sum::<usize>());
        assert!(found == all, "{found} rows for {all} wanted");
        for (draft, wanted) in drafts.iter_mut().zip(wanted) {
            let rows = row..row + wanted;
            row = rows.end;
            let Ask { sequence, tokens, .. } = &asks[draft.growth.ask];
            let state = self.sequences.get_mut(sequence).expect("opened, or nothing was run");
            let own = state.own(tokens);
            let HeadSequence { cached, states, .. } = state;
            cached.in_pass = false;
            // An ask without any logits was refused and not run; single rows without logits were run.
            if rows.clone().all(|row| self.rows.row(row).is_none()) {
                continue;
            }
            rows.clone().for_each(|row| draft.push(self.rows.hidden(row)));
            if draft.growth.root.is_none() {
                draft.growth.root = Some(rows.start);
                self.work.read += commit(cached, states, &own[1..]);
            } else {
                draft.growth.rows.extend(rows);
                cached.computed = draft.growth.rows.len();
            }
        }
    }
}

/// Commits the rows of tokens that the head has read, and frees their hidden states but the last. `tokens`: all that it
/// has read, from the second on. Returns how many were new.
fn commit(cached: &mut Cached, states: &mut TargetStates, tokens: &[Token]) -> u64 {
    let new = &tokens[cached.committed.len()..];
    cached.committed.extend_from_slice(new);
    states.forget_before(tokens.len() - 1);
    new.len() as u64
}

impl<S: Scorer> Drafter for HeadDrafter<S> {
    fn name(&self) -> &str {
        "head"
    }

    fn needs(&self) -> Needs {
        Needs { hidden_layers: self.scorer.target_layers().to_vec(), prompt_rows: true, ..Needs::default() }
    }

    fn work(&self) -> Option<Work> {
        Some(Work { not_numbers: self.scorer.not_numbers(), ..self.work })
    }

    fn unread(&self, sequence: SequenceId, len: usize) -> usize {
        // Nothing is read of a sequence that is too long, or for which drafting has stopped.
        let state = self.sequences.get(&sequence).filter(|state| !state.is_stopped);
        let own = state.map(|state| (state, len.saturating_sub(state.skipped)));
        own.filter(|(_, len)| *len <= self.tokens_max())
            .map_or(0, |(state, len)| len.saturating_sub(1 + state.cached.committed.len()))
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let before = self.sequences.insert(opening.sequence, HeadSequence::default());
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
        self.scorer.open(opening);
    }

    fn read(&mut self, asks: &[ReadAsk<'_>]) {
        // Each ask with the number of the head's tokens that are read up to now and in this pass.
        let mut reading: Vec<(&ReadAsk<'_>, usize)> = Vec::with_capacity(asks.len());
        let tokens_max = self.tokens_max();
        for ask in asks {
            let state = self.sequences.get(&ask.sequence);
            let state = state.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
            let (own, until) = (state.own(ask.tokens), ask.until.saturating_sub(state.skipped));
            let (read, until) = (state.cached.committed.len(), until.min(state.states.len() + 1));
            let fits = own.len() <= tokens_max && read + 1 < until;
            if fits && self.roll_back(ask.sequence, own, read, until - 1) {
                self.sequences.get_mut(&ask.sequence).expect("an open sequence").cached.in_pass = true;
                reading.push((ask, until));
            }
        }
        if reading.is_empty() {
            return;
        }
        let mut spans: Vec<HeadSpan<'_>> = Vec::with_capacity(reading.len());
        for (ask, until) in &reading {
            let state = &self.sequences[&ask.sequence];
            spans.push(state.span(ask.sequence, &state.own(ask.tokens)[1..*until], None));
        }
        let score_asks: Vec<ScoreAsk<'_>> = spans.iter().map(HeadSpan::ask).collect();
        self.rows.clear();
        self.scorer.score(&score_asks, &mut self.rows);
        // Asks that were refused were not run.
        self.work.passes += u64::from((0..reading.len()).any(|row| self.rows.row(row).is_some()));
        for (row, (ask, until)) in reading.into_iter().enumerate() {
            let state = self.sequences.get_mut(&ask.sequence).expect("opened, or nothing was run");
            let own = state.own(ask.tokens);
            let HeadSequence { cached, states, .. } = state;
            cached.in_pass = false;
            if self.rows.row(row).is_some() {
                self.work.read += commit(cached, states, &own[1..until]);
            }
        }
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        let mut drafts: Vec<Draft> = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter_mut().enumerate() {
            ask.settings = ask.settings.or(self.settings);
            // Before the target's first pass there are no hidden states, and a sequence of one token has no row.
            let own = self.sequences.get(&ask.sequence).map_or(ask.tokens, |state| state.own(ask.tokens));
            let Some(rows) = own.len().checked_sub(2) else { continue };
            let fits = ask.has_room() && self.depth_max > 0 && own.len() <= self.tokens_max();
            // The last token's row gives the first drafted token: if it was run before, it is run again.
            if fits && self.roll_back(ask.sequence, own, rows, rows + 1) {
                let sampling = ask.settings.has_filters().then(|| ask.settings.sampling(ask.sampling));
                drafts.push(Draft { growth: Growth::new(i, sampling), own_states: Vec::new(), width: 0 });
            }
        }
        let (depth_max, tokens_max) = (self.depth_max, self.tokens_max());
        let bounds = Bounds { depth_max, tokens_max, branch_gain_min: None };
        while !drafts.is_empty() {
            if drafts.iter().all(|draft| draft.growth.needs_no_old_rows()) {
                self.rows.clear();
            }
            self.run(asks, &mut drafts);
            drafts.retain_mut(|Draft { growth, .. }| {
                let ask = &mut asks[growth.ask];
                let state = self.sequences.get_mut(&ask.sequence).expect("opened, or nothing was run");
                self.buffers.advance(&mut state.cached, growth, &self.rows, bounds, ask, chance)
            });
        }
    }

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        let layers = self.scorer.target_layers().len();
        for output in outputs {
            let others = self.sequences.iter().filter(|(sequence, _)| **sequence != output.sequence);
            let waiting: usize = others.map(|(_, other)| other.states.bytes()).sum();
            let state = self.sequences.get_mut(&output.sequence).filter(|state| !state.is_stopped);
            let Some(state) = state else { continue };
            // The last token has no hidden states yet, and accepted tokens after an end token do not belong to the
            // sequence.
            if state.states.len() == 0 && state.cached.committed.is_empty() && !output.hidden.is_empty() {
                state.skipped = output.hidden_from;
            }
            let positions = output.hidden_from..output.tokens.len() - 1;
            for (position, layer_states) in positions.zip(output.hidden.chunks(layers)) {
                // The hidden states of rows that are computed again are here already, or were skipped.
                let Some(position) = position.checked_sub(state.skipped) else { continue };
                match position.cmp(&state.states.len()) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => state.states.push(layer_states),
                    std::cmp::Ordering::Greater => state.is_stopped = true,
                }
            }
            state.is_stopped |= state.states.len() - state.cached.committed.len() > self.unread_max;
            state.is_stopped |= waiting + state.states.bytes() > self.unread_bytes_max;
            if state.is_stopped {
                self.stop(output.sequence);
            }
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.sequences.remove(&sequence).is_some_and(|state| !state.is_stopped) {
            self.scorer.close(sequence);
        }
    }
}

#[cfg(test)]
mod tests;
