//! Which mark of one vocabulary stands for which of another: the same spelling, else the same role.
//!
//! Roles are those that files name: what begins a text, what ends one, what ends a turn. Where one token has several
//! roles (GPT-2's only mark begins and ends texts) the end counts first. Left out: guessing by similar spellings.

use std::collections::BTreeMap;

use crate::{Token, Tokenizer};

/// For each mark of one vocabulary its counterpart in the other, if there is one.
#[derive(Debug)]
pub(super) struct Counterparts(BTreeMap<Token, Token>);

impl Counterparts {
    pub fn new(from: &Tokenizer, to: &Tokenizer) -> Self {
        let marks = |tokenizer: &Tokenizer| {
            let all = 0..tokenizer.vocabulary_len() as Token;
            all.filter(|&token| tokenizer.is_special(token)).collect::<Vec<Token>>()
        };
        let mut by_spelling: BTreeMap<&[u8], Token> = BTreeMap::new();
        for mark in marks(to) {
            by_spelling.entry(to.token_bytes(mark)).or_insert(mark);
        }
        let role = |mark: Token| {
            let ends = from.end_tokens().contains(&mark).then(|| to.end_tokens().first().copied());
            let turn = from.turn_end_tokens().contains(&mark).then(|| to.turn_end_tokens().first().copied());
            let begins = (from.bos() == Some(mark)).then(|| to.bos());
            [ends, turn, begins].into_iter().flatten().flatten().find(|&other| to.is_special(other))
        };
        let pair = |mark: Token| {
            let other = by_spelling.get(from.token_bytes(mark)).copied().or_else(|| role(mark))?;
            Some((mark, other))
        };
        Self(marks(from).into_iter().filter_map(pair).collect())
    }

    pub fn of(&self, mark: Token) -> Option<Token> {
        self.0.get(&mark).copied()
    }

    /// The marks whose counterpart this is.
    pub fn counterparts_of(&self, other: Token) -> impl Iterator<Item = Token> {
        self.0.iter().filter(move |(_, counterpart)| **counterpart == other).map(|(mark, _)| *mark)
    }
}
