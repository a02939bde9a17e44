//! The pool of n-grams: for each first token the latest few that begin with it.

use std::collections::HashMap;

use foretoken_speculation::Token;

/// N-grams by their first token.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// Tokens of an n-gram after its first.
    rest: usize,
    /// Maximum number of n-grams of one first token.
    guesses_max: usize,
    /// For each first token what follows it, the latest last, end to end.
    guesses: HashMap<Token, Vec<Token>>,
}

impl Pool {
    pub(super) fn new(ngram: usize, guesses_max: usize) -> Pool {
        Pool { rest: ngram - 1, guesses_max, guesses: HashMap::new() }
    }

    /// Tokens of an n-gram.
    pub(super) fn ngram(&self) -> usize {
        self.rest + 1
    }

    /// What may follow a token, the latest first.
    pub(super) fn guesses(&self, first: Token) -> impl Iterator<Item = &[Token]> {
        self.guesses.get(&first).into_iter().flat_map(|list| list.chunks(self.rest).rev())
    }

    /// Adds an n-gram; one that was there already counts as new, and the oldest is dropped if there is no room.
    pub(super) fn add(&mut self, ngram: &[Token]) {
        let (rest, full) = (self.rest, self.rest * self.guesses_max);
        let list = self.guesses.entry(ngram[0]).or_default();
        let known = list.chunks(rest).position(|old| *old == ngram[1..]);
        match known.or((list.len() == full).then_some(0)) {
            Some(old) => {
                list[old * rest..].rotate_left(rest);
                let last = list.len() - rest;
                list[last..].copy_from_slice(&ngram[1..]);
            }
            None => list.extend_from_slice(&ngram[1..]),
        }
    }
}
