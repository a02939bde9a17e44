//! Best-first growth: the tokens that may be offered next, the most probable first.
//!
//! When a drafter has offered a token it adds the token's continuations here.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Tokens that may be offered, each with its gain: the probability that the whole path down to it is accepted.
#[derive(Debug)]
pub(super) struct Frontier<T> {
    heap: BinaryHeap<Entry<T>>,
    pushed: u32,
}

#[derive(Debug)]
struct Entry<T> {
    gain: f32,
    /// Its number among all entries: with equal gains the earlier one comes first.
    order: u32,
    guess: T,
}

impl<T> Default for Frontier<T> {
    fn default() -> Frontier<T> {
        Frontier { heap: BinaryHeap::new(), pushed: 0 }
    }
}

impl<T> Frontier<T> {
    /// Forgets all guesses and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.heap.clear();
        self.pushed = 0;
    }

    /// Adds a guess.
    pub(super) fn push(&mut self, gain: f32, guess: T) {
        self.heap.push(Entry { gain, order: self.pushed, guess });
        self.pushed += 1;
    }

    /// Removes the guess with the highest gain; of ties the one that was added first.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.heap.pop().map(|entry| entry.guess)
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Entry<T>) -> Ordering {
        self.gain.total_cmp(&other.gain).then(other.order.cmp(&self.order))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Entry<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Entry<T>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}
