//! A text that never changes, and the places behind each of its 3-grams, in order.
//!
//! One sorted list of places, by the three tokens before them and then by place: a binary search finds the places
//! behind a 3-gram, another those nearest to a given place. Unlike the lists of [`crate::history`] it answers "the next
//! one behind here" at once, and it needs the whole text first.
//!
//! Left out: longer matches, which are found by comparing backwards.

use std::cmp::Ordering;

use foretoken_speculation::Token;

/// Tokens of an n-gram.
const LEN: usize = 3;
/// Most places told ahead of a given one, and behind it.
const AHEAD_MAX: usize = 16;
const BEHIND_MAX: usize = 8;

/// A text with its index.
#[derive(Debug)]
pub(super) struct Index {
    tokens: Vec<Token>,
    /// Places behind an n-gram, ordered by it, then by place.
    places: Vec<u32>,
}

impl Index {
    /// Indexes a text.
    ///
    /// # Panics
    ///
    /// Panics if it has 2^32 tokens or more.
    pub(super) fn new(tokens: &[Token]) -> Index {
        let len = u32::try_from(tokens.len()).expect("a prediction of fewer than 2^32 tokens");
        let mut places: Vec<u32> = (LEN as u32..=len).collect();
        places.sort_unstable_by(|a, b| ngram(tokens, *a).cmp(ngram(tokens, *b)).then(a.cmp(b)));
        Index { tokens: tokens.to_vec(), places }
    }

    /// The text.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Places behind the last tokens of `written`: from `here` on, the nearest first, then those before, likewise.
    pub(super) fn places(&self, written: &[Token], here: usize) -> impl Iterator<Item = usize> + '_ {
        let last = &written[written.len().saturating_sub(LEN)..];
        let from = self.places.partition_point(|place| ngram(&self.tokens, *place).cmp(last) == Ordering::Less);
        // A shorter end equals no n-gram.
        let all = &self.places[from..];
        let all = &all[..all.partition_point(|place| ngram(&self.tokens, *place) == last)];
        let (behind, ahead) = all.split_at(all.partition_point(|place| (*place as usize) < here));
        let nearest = ahead.iter().take(AHEAD_MAX).chain(behind.iter().rev().take(BEHIND_MAX));
        nearest.map(|place| *place as usize)
    }
}

/// The n-gram before a place.
fn ngram(tokens: &[Token], place: u32) -> &[Token] {
    &tokens[place as usize - LEN..place as usize]
}
