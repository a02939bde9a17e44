//! The assistant's law over the tokens that both vocabularies have (token-level intersection, Timor et al. 2025,
//! Algorithm 4): a [`Scorer`] of the target's vocabulary over one of another.
//!
//! The target's tokens are translated, the assistant runs them, and its logits are dealt out to the target's tokens of
//! the same bytes or role; all others get minus infinity, so that any law made of the row is the assistant's,
//! restricted and renormalised. That is a law over target tokens like any other: whatever drafts with it draws and
//! offers with q, and under *exact* races with the target's own noise. Where several assistant tokens stand for one of
//! the target's, the most probable counts.
//!
//! A drafted token can merge with the text before it in the assistant's vocabulary; the cache goes by what it ran, and
//! is then set back to what agrees. In the middle of a character there is no row. A tree is run branch by branch, since
//! its branches may be cut into different tokens: the assistant has one text at a time, and rows of one sequence cost a
//! pass each.

use std::collections::BTreeMap;

use crate::scorer::common_prefix;
use crate::translate::{Reading, Translator};
use crate::{HiddenInput, LogitRows, ScoreAsk, Scorer};
use foretoken_speculation::{SequenceId, Tenant, Token};

/// So many last tokens of what the assistant reads of a final text are thought to change yet with what follows.
const OPEN_TOKENS: usize = 4;

/// A [`Scorer`] in the target's vocabulary, over an assistant with another one.
#[derive(Debug)]
pub struct SharedScorer<S, T> {
    /// The assistant, in its own vocabulary.
    pub scorer: S,
    /// Translates between the target and the assistant.
    pub translator: T,
    texts: BTreeMap<SequenceId, Text>,
    rows: LogitRows,
}

/// What a sequence has come to.
#[derive(Clone, Debug, Default)]
struct Text {
    /// The target tokens that are there for good.
    kept: Vec<Token>,
    /// So many first target tokens are final.
    final_len: usize,
    /// The last span behind them.
    tokens: Vec<Token>,
    parents: Vec<Option<u32>>,
    /// What the translator has read.
    reading: Reading,
    /// The assistant's tokens that were run.
    ran: Vec<Token>,
    /// So many first tokens that it reads are taken to be final: those of the last row that was no guess, but for the
    /// end.
    certain: usize,
}

impl Text {
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

    /// Makes a row of the span, and what leads to it, there for good, and forgets the others.
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
        SharedScorer { scorer, translator, texts: BTreeMap::new(), rows: LogitRows::new() }
    }

    fn text(&mut self, sequence: SequenceId) -> &mut Text {
        self.texts.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"))
    }

    /// Begins an ask: what was kept of the span before is there for good, and this is the new one.
    fn begin(&mut self, ask: &ScoreAsk<'_>) {
        let text = self.text(ask.sequence);
        let (kept, start) = (text.kept.len(), ask.start);
        assert!(start >= kept, "{kept} tokens are there for good, asked from {start}");
        text.keep_row((start - kept).checked_sub(1).map(|last| last as u32));
        assert!(text.kept.len() == start, "rows up to {start} behind {kept} are no chain");
        text.final_len = ask.certain;
        text.tokens.extend_from_slice(ask.tokens);
        text.parents.extend_from_slice(ask.parents);
    }

    /// Reads up to a row and sets the assistant's cache back to what agrees, leaving at least one token to be run.
    /// Whether there is one, and whether its row would mean something.
    fn catch_up(&mut self, sequence: SequenceId, row: u32) -> bool {
        let text = self.texts.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        let path = text.path(row);
        text.reading.read(&mut self.translator, sequence, [&text.kept, &path]);
        let assistant = self.translator.assistant_tokens(sequence);
        // What was cut once mostly stays as it is, but for the end. If it does not, the assistant runs it again.
        if text.kept.len() + path.len() <= text.final_len {
            text.certain = assistant.len().saturating_sub(OPEN_TOKENS);
        }
        if text.ran.is_empty() && !assistant.is_empty() {
            let adopted = self.scorer.adopt(sequence, &assistant[..assistant.len() - 1]);
            text.ran.extend_from_slice(&assistant[..adopted]);
        }
        let same = common_prefix(&text.ran, &assistant[..assistant.len().saturating_sub(1)]);
        if same < text.ran.len() {
            let left = self.scorer.truncate(sequence, same);
            text.ran.truncate(left);
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
            .map(|sequence| self.translator.assistant_tokens(sequence).len() - self.texts[&sequence].ran.len())
            .map(|len| [len as u32 - 1])
            .collect();
        let score_ask = |(sequence, last)| {
            let start = self.texts[&sequence].ran.len();
            let tokens = &self.translator.assistant_tokens(sequence)[start..];
            let certain = self.texts[&sequence].certain.min(start + tokens.len());
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
            let text = self.texts.get_mut(&sequence).expect("opened, or there was nothing to run");
            let assistant = self.translator.assistant_tokens(sequence);
            text.ran.extend_from_slice(&assistant[text.ran.len()..]);
            let row = rows.push_zeros(self.translator.target_vocabulary());
            deal_out(logits, self.translator.shared(sequence), row);
        }
    }
}

impl<S: Scorer, T: Translator> Scorer for SharedScorer<S, T> {
    fn open(&mut self, sequence: SequenceId, tenant: Tenant) {
        self.texts.insert(sequence, Text::default());
        self.translator.open(sequence);
        self.scorer.open(sequence, tenant);
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
        let text = self.text(sequence);
        let rows = len.saturating_sub(text.kept.len());
        text.tokens.truncate(rows);
        text.parents.truncate(rows);
        text.kept.truncate(len);
        len
    }

    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        let text = self.text(sequence);
        let kept = text.kept.len();
        assert!(start >= kept, "{kept} tokens are there for good, kept from {start}");
        // Rows count from `start`, which may lie behind a part of the span that was kept without a word.
        let skipped = (start - kept) as u32;
        text.keep_row(rows.last().map(|row| row + skipped).or(skipped.checked_sub(1)));
        assert!(text.kept.len() == start + rows.len(), "rows {rows:?} behind {start} are no path");
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.texts.remove(&sequence).is_some() {
            self.translator.close(sequence);
            self.scorer.close(sequence);
        }
    }

    /// No bound: that of the assistant counts its own tokens, and shows as an empty row where it is reached.
    fn context_max(&self) -> usize {
        usize::MAX
    }

    fn not_numbers(&self) -> u64 {
        self.scorer.not_numbers()
    }
}

/// Gives the target's tokens the logits of the assistant's.
fn deal_out(logits: &[f32], shared: &[(Token, Token)], row: &mut [f32]) {
    row.fill(f32::NEG_INFINITY);
    for &(assistant, target) in shared {
        if let (Some(&logit), Some(place)) = (logits.get(assistant as usize), row.get_mut(target as usize)) {
            *place = place.max(logit);
        }
    }
}
