//! A text that never changes, and the positions after each of its 3-grams, in order.
//!
//! One sorted list of positions, by the three tokens before them and then by position: one binary search finds the
//! positions after a 3-gram, another those nearest to a given position. Unlike [`crate::history`] it finds the nearest
//! ones in both directions, and it needs the whole text first. Longer matches are found by comparing backwards.

use std::cmp::Ordering;

use foretoken_speculation::Token;

/// Tokens of an n-gram.
const LEN: usize = 3;
/// Maximum number of positions that are returned from a given one on.
const AHEAD_MAX: usize = 16;
/// Maximum number of positions that are returned before it.
const BEHIND_MAX: usize = 8;

/// A text with its index.
#[derive(Debug)]
pub(super) struct Index {
    tokens: Vec<Token>,
    /// Positions after an n-gram, ordered by it, then by position.
    positions: Vec<u32>,
}

impl Index {
    /// Indexes a text.
    ///
    /// # Panics
    ///
    /// Panics if it has 2^32 tokens or more.
    pub(super) fn new(tokens: &[Token]) -> Index {
        let len = u32::try_from(tokens.len()).expect("a prediction of fewer than 2^32 tokens");
        let mut positions: Vec<u32> = (LEN as u32..=len).collect();
        positions.sort_unstable_by(|a, b| ngram(tokens, *a).cmp(ngram(tokens, *b)).then(a.cmp(b)));
        Index { tokens: tokens.to_vec(), positions }
    }

    /// The text.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Positions after the last tokens of `written`: those from `here` on, the nearest first, then those before it,
    /// likewise.
    pub(super) fn positions(&self, written: &[Token], here: usize) -> impl Iterator<Item = usize> + '_ {
        let last = &written[written.len().saturating_sub(LEN)..];
        let from =
            self.positions.partition_point(|position| ngram(&self.tokens, *position).cmp(last) == Ordering::Less);
        // A shorter end equals no n-gram.
        let all = &self.positions[from..];
        let all = &all[..all.partition_point(|position| ngram(&self.tokens, *position) == last)];
        let (behind, ahead) = all.split_at(all.partition_point(|position| (*position as usize) < here));
        let nearest = ahead.iter().take(AHEAD_MAX).chain(behind.iter().rev().take(BEHIND_MAX));
        nearest.map(|position| *position as usize)
    }
}

/// The n-gram before a position.
fn ngram(tokens: &[Token], position: u32) -> &[Token] {
    &tokens[position as usize - LEN..position as usize]
}
