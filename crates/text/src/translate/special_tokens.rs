//! Maps special tokens of one vocabulary to those of another: by the same text, else by the same role.
//!
//! The roles are those that files name: bos, end of text, end of turn. If one token has several roles (GPT-2's only
//! special token is bos and eos) the end is matched first. Similar texts are not matched.

use std::collections::BTreeMap;

use crate::{Token, Tokenizer};

/// For each special token of one vocabulary its counterpart in the other, if there is one.
#[derive(Debug)]
pub(super) struct Counterparts(BTreeMap<Token, Token>);

impl Counterparts {
    pub fn new(from: &Tokenizer, to: &Tokenizer) -> Self {
        let special_tokens = |tokenizer: &Tokenizer| {
            let all = 0..tokenizer.vocabulary_len() as Token;
            all.filter(|&token| tokenizer.is_special(token)).collect::<Vec<Token>>()
        };
        let mut by_spelling: BTreeMap<&[u8], Token> = BTreeMap::new();
        for token in special_tokens(to) {
            by_spelling.entry(to.token_bytes(token)).or_insert(token);
        }
        let role = |token: Token| {
            let ends = from.end_tokens().contains(&token).then(|| to.end_tokens().first().copied());
            let turn = from.turn_end_tokens().contains(&token).then(|| to.turn_end_tokens().first().copied());
            let begins = (from.bos() == Some(token)).then(|| to.bos());
            [ends, turn, begins].into_iter().flatten().flatten().find(|&other| to.is_special(other))
        };
        let pair = |token: Token| {
            let other = by_spelling.get(from.token_bytes(token)).copied().or_else(|| role(token))?;
            Some((token, other))
        };
        Self(special_tokens(from).into_iter().filter_map(pair).collect())
    }

    pub fn of(&self, token: Token) -> Option<Token> {
        self.0.get(&token).copied()
    }

    /// The special tokens whose counterpart this is.
    pub fn counterparts_of(&self, other: Token) -> impl Iterator<Item = Token> {
        self.0.iter().filter(move |(_, counterpart)| **counterpart == other).map(|(token, _)| *token)
    }
}
