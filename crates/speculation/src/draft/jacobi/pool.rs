//! The pool of n-grams: for each first token the latest few that begin with it.
//!
//! Everything that is added is noted, with the length of the text that it was learned from, so that it can be undone.
//!
//! Left out: any count of how often an n-gram was right.

use std::collections::HashMap;

use crate::Token;

/// N-grams by their first token.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// Tokens of an n-gram after its first.
    rest: usize,
    /// Most n-grams of one first token.
    guesses_max: usize,
    /// For each first token what follows it, the latest last, end to end.
    guesses: HashMap<Token, Vec<Token>>,
    /// What was added, to be undone.
    log: Vec<Added>,
    /// The n-grams that had to go, end to end.
    gone: Vec<Token>,
}

#[derive(Copy, Clone, Debug, PartialEq)]
struct Added {
    /// Tokens of the text when it was learned.
    len: u32,
    first: Token,
    how: How,
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum How {
    /// There was room.
    New,
    /// The oldest had to go.
    Instead,
    /// It was there already, at this place.
    From(u32),
}

impl Pool {
    pub(super) fn new(ngram: usize, guesses_max: usize) -> Pool {
        Pool { rest: ngram - 1, guesses_max, guesses: HashMap::new(), log: Vec::new(), gone: Vec::new() }
    }

    /// Tokens of an n-gram.
    pub(super) fn ngram(&self) -> usize {
        self.rest + 1
    }

    /// What may follow a token, the latest first.
    pub(super) fn guesses(&self, first: Token) -> impl Iterator<Item = &[Token]> {
        self.guesses.get(&first).into_iter().flat_map(|list| list.chunks(self.rest).rev())
    }

    /// Adds an n-gram that was learned from `len` tokens of text.
    pub(super) fn add(&mut self, ngram: &[Token], len: usize) {
        let (rest, full) = (self.rest, self.rest * self.guesses_max);
        let list = self.guesses.entry(ngram[0]).or_default();
        let how = match list.chunks(rest).position(|old| *old == ngram[1..]) {
            Some(at) => {
                list[at * rest..].rotate_left(rest);
                How::From(at as u32)
            }
            None if list.len() == full => {
                self.gone.extend_from_slice(&list[..rest]);
                list.rotate_left(rest);
                list[full - rest..].copy_from_slice(&ngram[1..]);
                How::Instead
            }
            None => {
                list.extend_from_slice(&ngram[1..]);
                How::New
            }
        };
        let len = u32::try_from(len).expect("texts of fewer than 2^32 tokens");
        self.log.push(Added { len, first: ngram[0], how });
    }

    /// Undoes what was learned from more than `len` tokens of text.
    pub(super) fn keep(&mut self, len: usize) {
        let rest = self.rest;
        while let Some(added) = self.log.pop_if(|added| added.len as usize > len) {
            let list = self.guesses.get_mut(&added.first).expect("something was added");
            match added.how {
                How::New => list.truncate(list.len() - rest),
                How::Instead => {
                    list.rotate_right(rest);
                    list[..rest].copy_from_slice(&self.gone[self.gone.len() - rest..]);
                    self.gone.truncate(self.gone.len() - rest);
                }
                How::From(at) => list[at as usize * rest..].rotate_right(rest),
            }
            if list.is_empty() {
                self.guesses.remove(&added.first);
            }
        }
    }
}

/// Equal if everything that can still be seen is.
impl PartialEq for Pool {
    fn eq(&self, other: &Pool) -> bool {
        self.guesses == other.guesses && self.log == other.log && self.gone == other.gone
    }
}
