//! Translation between the target's vocabulary and that of a draft model (the *assistant*): what the assistant reads of
//! the target's tokens, and what its drafts are in the target's tokens.
//!
//! The drafters of `translated` use the trait [`Translator`]; crates that know the bytes of tokens implement it.
//!
//! Its contract: what the assistant reads is a function of the target's tokens alone. It does not depend on how these
//! were split into passes, nor on what was read and rolled back in between, and reading a token takes no longer in a
//! long sequence.

use crate::scorer::common_prefix;
use foretoken_speculation::{SequenceId, Token};

/// What an assistant's token is in the target's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Ordinary text, a part of one or more of the target's tokens.
    Text,
    /// This special token of the target.
    Special(Token),
    /// A token that the target does not have.
    Nothing,
}

/// A target token made from drafted assistant tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The target's token.
    pub token: Token,
    /// How many of the drafted tokens begin before this one ends.
    pub drafted_end: usize,
    /// Whether text that follows could still become part of it.
    pub is_open: bool,
}

/// The tokens that a translator has read of one sequence. What is read next differs from them only at the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading(Vec<Token>);

impl Reading {
    /// Target tokens that were read.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Lets the translator read exactly these tokens, given in two parts.
    pub(crate) fn read(&mut self, translator: &mut impl Translator, sequence: SequenceId, text: [&[Token]; 2]) {
        let mut same = 0;
        for part in text {
            let common = common_prefix(&self.0[same..], part);
            same += common;
            if same < self.0.len() && common < part.len() {
                break;
            }
        }
        if same < self.0.len() {
            translator.truncate(sequence, same);
            self.0.truncate(same);
        }
        for part in text {
            let new = &part[same.min(part.len())..];
            same -= same.min(part.len());
            translator.read(sequence, new);
            self.0.extend_from_slice(new);
        }
    }
}

/// Translates between the target's vocabulary and an assistant's, for many sequences.
pub trait Translator: Send {
    /// A sequence begins, of which nothing is read yet.
    fn open(&mut self, sequence: SequenceId);

    /// Reads the target tokens that follow.
    fn read(&mut self, sequence: SequenceId, tokens: &[Token]);

    /// Forgets all but the first `len` target tokens.
    fn truncate(&mut self, sequence: SequenceId, len: usize);

    /// The assistant's tokens for the target's tokens that were read; may be empty.
    fn assistant_tokens(&self, sequence: SequenceId) -> &[Token];

    /// Writes into `pieces` (cleared first) the target's tokens for what the assistant drafts after the tokens read.
    /// They are a chain that begins where the target's tokens end.
    fn propose(&self, sequence: SequenceId, drafted: &[Token], pieces: &mut Vec<Piece>);

    /// What an assistant's token is in the target's vocabulary.
    fn meaning(&self, token: Token) -> Meaning;

    /// Appends to `out` the assistant's tokens for this special token of the target.
    fn specials(&self, target: Token, out: &mut Vec<Token>);

    /// The tokens of both vocabularies that may come next, as (assistant, target); several assistant tokens may go with
    /// one target token. Empty if the assistant's next token cannot be one of the target's.
    fn shared(&self, sequence: SequenceId) -> &[(Token, Token)];

    /// Number of tokens of the target's vocabulary.
    fn target_vocabulary(&self) -> usize;

    /// The sequence has ended.
    fn close(&mut self, sequence: SequenceId);
}
