//! The assistant's law over the tokens that both vocabularies have (token-level intersection, Timor et al. 2025,
//! Algorithm 4): a [`Scorer`] of the target's vocabulary over one of another.
//!
//! The target's tokens are translated, the assistant runs them, and its logits are assigned to the target's tokens of
//! the same bytes or role; all others get minus infinity, so that any law made of the row is the assistant's,
//! restricted and normalized again. That is a law over target tokens like any other: a drafter draws from it and offers
//! with q, and under *exact* races with the target's own noise. If several assistant tokens correspond to one of the
//! target's, the most probable counts.
//!
//! A drafted token can merge with the text before it in the assistant's vocabulary; the cache is then rolled back to
//! the tokens that agree with those that were run. In the middle of a character there is no row. A tree is run branch
//! by branch, since its branches may be split into different tokens: the assistant has one chain of tokens at a time,
//! and each row of a sequence takes a pass.

use std::collections::BTreeMap;

use crate::scorer::common_prefix;
use crate::translate::{Reading, Translator};
use crate::{HiddenInput, LogitRows, ScoreAsk, Scorer};
use foretoken_speculation::{Opening, SequenceId, Token};

/// How many of the assistant's last tokens, of those for final target tokens, are assumed to change with the text that
/// follows.
const OPEN_TOKENS: usize = 4;

/// A [`Scorer`] in the target's vocabulary, over an assistant with another one.
#[derive(Debug)]
pub struct SharedScorer<S, T> {
    /// The assistant, in its own vocabulary.
    pub scorer: S,
    /// Translates between the target and the assistant.
    pub translator: T,
    sequences: BTreeMap<SequenceId, SequenceState>,
    rows: LogitRows,
}

/// The state of one sequence.
#[derive(Clone, Debug, Default)]
struct SequenceState {
    /// The committed target tokens.
    kept: Vec<Token>,
    /// How many leading target tokens are final.
    final_len: usize,
    /// The last span after the committed tokens.
    tokens: Vec<Token>,
    parents: Vec<Option<u32>>,
    /// What the translator has read.
    reading: Reading,
    /// The assistant's tokens that were run.
    ran: Vec<Token>,
    /// How many leading tokens of the assistant are taken to be final: those for the last row of final target tokens,
    /// except the last few.
    certain: usize,
}

impl SequenceState {
    fn parent(&self, row: u32) -> Option<u32> {
        if self.parents.is_empty() { row.checked_sub(1) } else { self.parents[row as usize] }
    }

    /// Tokens of the span up to a row, itself included.
    fn path(&self, row: u32) -> Vec<Token> {
        let rows = std::iter::successors(Some(row), |row| self.parent(*row));
        let mut path: Vec<Token> = rows.map(|row| self.tokens[row as usize]).collect();
        path.reverse();
        path
    }

    /// Commits a row of the span and its ancestors, and drops the others.
    fn keep_row(&mut self, row: Option<u32>) {
        let path = row.map_or(Vec::new(), |row| self.path(row));
        self.kept.extend(path);
        self.tokens.clear();
        self.parents.clear();
    }
}

impl<S: Scorer, T: Translator> SharedScorer<S, T> {
    /// A scorer of the target's vocabulary.
    pub fn new(scorer: S, translator: T) -> SharedScorer<S, T> {
        SharedScorer { scorer, translator, sequences: BTreeMap::new(), rows: LogitRows::new() }
    }

    fn state(&mut self, sequence: SequenceId) -> &mut SequenceState {
        self.sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"))
    }

    /// Begins an ask: commits the rows of the last span that it starts after, and stores its span.
    fn begin(&mut self, ask: &ScoreAsk<'_>) {
        let state = self.state(ask.sequence);
        let (kept, start) = (state.kept.len(), ask.start);
        assert!(start >= kept, "{kept} tokens are committed, asked from {start}");
        state.keep_row((start - kept).checked_sub(1).map(|last| last as u32));
        assert!(state.kept.len() == start, "rows up to {start} after {kept} are no chain");
        state.final_len = ask.certain;
        state.tokens.extend_from_slice(ask.tokens);
        state.parents.extend_from_slice(ask.parents);
    }

    /// Reads up to a row and rolls the assistant's cache back to the tokens that agree, leaving at least one to be run.
    /// Returns whether there is one, and its row has logits.
    fn catch_up(&mut self, sequence: SequenceId, row: u32) -> bool {
        let state = self.sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        let path = state.path(row);
        state.reading.read(&mut self.translator, sequence, [&state.kept, &path]);
        let assistant = self.translator.assistant_tokens(sequence);
        // A split into tokens usually stays as it is, except at its end. If it changes, the assistant runs the changed
        // tokens again.
        if state.kept.len() + path.len() <= state.final_len {
            state.certain = assistant.len().saturating_sub(OPEN_TOKENS);
        }
        if state.ran.is_empty() && !assistant.is_empty() {
            let adopted = self.scorer.adopt(sequence, &assistant[..assistant.len() - 1]);
            state.ran.extend_from_slice(&assistant[..adopted]);
        }
        let same = common_prefix(&state.ran, &assistant[..assistant.len().saturating_sub(1)]);
        if same < state.ran.len() {
            let left = self.scorer.truncate(sequence, same);
            state.ran.truncate(left);
        }
        let has_row = !self.translator.shared(sequence).is_empty();
        has_row && !assistant.is_empty() && assistant.len() <= self.scorer.context_max()
    }

    /// One pass over rows of different sequences.
    fn run(&mut self, wanted: &[(SequenceId, u32)], rows: &mut LogitRows) {
        let can_run: Vec<bool> = wanted.iter().map(|&(sequence, row)| self.catch_up(sequence, row)).collect();
        let running =
            || wanted.iter().zip(&can_run).filter(|(_, can_run)| **can_run).map(|((sequence, _), _)| *sequence);
        let lasts: Vec<[u32; 1]> = running()
            .map(|sequence| self.translator.assistant_tokens(sequence).len() - self.sequences[&sequence].ran.len())
            .map(|len| [len as u32 - 1])
            .collect();
        let score_ask = |(sequence, last)| {
            let start = self.sequences[&sequence].ran.len();
            let tokens = &self.translator.assistant_tokens(sequence)[start..];
            let certain = self.sequences[&sequence].certain.min(start + tokens.len());
            let (parents, hidden_in) = (&[][..], HiddenInput::None);
            ScoreAsk { sequence, start, tokens, parents, computed: 0, wanted: last, certain, hidden_in }
        };
        let asks: Vec<ScoreAsk<'_>> = running().zip(lasts.iter().map(|last| last.as_slice())).map(score_ask).collect();
        self.rows.clear();
        if !asks.is_empty() {
            self.scorer.score(&asks, &mut self.rows);
            assert!(self.rows.len() == asks.len(), "{} rows for {} asks", self.rows.len(), asks.len());
        }
        let mut next = 0;
        for (&(sequence, _), can_run) in wanted.iter().zip(can_run) {
            let logits = if can_run { self.rows.row(next) } else { None };
            next += usize::from(can_run);
            let Some(logits) = logits else {
                rows.push(None);
                continue;
            };
            let state = self.sequences.get_mut(&sequence).expect("opened, or there was nothing to run");
            let assistant = self.translator.assistant_tokens(sequence);
            state.ran.extend_from_slice(&assistant[state.ran.len()..]);
            let row = rows.push_zeros(self.translator.target_vocabulary());
            assign_logits(logits, self.translator.shared(sequence), row);
        }
    }
}

impl<S: Scorer, T: Translator> Scorer for SharedScorer<S, T> {
    fn open(&mut self, opening: &Opening<'_>) {
        self.sequences.insert(opening.sequence, SequenceState::default());
        self.translator.open(opening.sequence);
        // A source is in the target's vocabulary.
        self.scorer.open(&Opening { prompt: &[], prediction: &[], source: &[], ..*opening });
    }

    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        asks.iter().for_each(|ask| self.begin(ask));
        let mut pass: Vec<(SequenceId, u32)> = Vec::with_capacity(asks.len());
        for (ask, row) in asks.iter().flat_map(|ask| ask.wanted.iter().map(move |row| (ask, *row))) {
            if pass.iter().any(|(sequence, _)| *sequence == ask.sequence) {
                self.run(&pass, rows);
                pass.clear();
            }
            pass.push((ask.sequence, row));
        }
        if !pass.is_empty() {
            self.run(&pass, rows);
        }
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize {
        let state = self.state(sequence);
        let rows = len.saturating_sub(state.kept.len());
        state.tokens.truncate(rows);
        state.parents.truncate(rows);
        state.kept.truncate(len);
        len
    }

    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        let state = self.state(sequence);
        let kept = state.kept.len();
        assert!(start >= kept, "{kept} tokens are committed, kept from {start}");
        // Rows count from `start`, before which there may be rows of the span that are not committed here yet.
        let skipped = (start - kept) as u32;
        state.keep_row(rows.last().map(|row| row + skipped).or(skipped.checked_sub(1)));
        assert!(state.kept.len() == start + rows.len(), "rows {rows:?} after {start} are no path");
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.sequences.remove(&sequence).is_some() {
            self.translator.close(sequence);
            self.scorer.close(sequence);
        }
    }

    /// There is no bound in target tokens: the assistant's bound counts its own tokens, and rows beyond it are empty.
    fn context_max(&self) -> usize {
        usize::MAX
    }

    fn not_numbers(&self) -> u64 {
        self.scorer.not_numbers()
    }
}

/// Gives the target's tokens the logits of the assistant's.
fn assign_logits(logits: &[f32], shared: &[(Token, Token)], row: &mut [f32]) {
    row.fill(f32::NEG_INFINITY);
    for &(assistant, target) in shared {
        if let (Some(&logit), Some(to)) = (logits.get(assistant as usize), row.get_mut(target as usize)) {
            *to = to.max(logit);
        }
    }
}
