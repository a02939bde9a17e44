//! Where one text stands in its grammar.
//!
//! What may come next and what is accepted are the same question to the same parser, asked for all tokens and for one.
//! The library takes tokens back itself. Where a parser gives up, or has grown too much ([`super::limits`]), another
//! walks the text from the beginning, and what it says is so: the guesses that the first has seen are as if they had
//! never been, and a text comes to a limit where it would without any.

use std::fmt;
use std::sync::Arc;

use llguidance::toktrie::SimpleVob;

use super::Grammar;
use super::parser::{Parser, Question};
use super::tables::MARK;
use crate::Token;

/// Most bytes that are told to have to come next.
const FORCED_MAX_BYTES: usize = 512;
/// Where the parser has given up over what has to come next, it is not asked for so many tokens: it might take as long.
const NOT_FORCED_TOKENS: usize = 4096;
/// How far a beginning is followed when a form is compiled.
const BEGINNING_MAX_BYTES: usize = 256;

/// Walks a grammar with one text.
pub struct Matcher {
    grammar: Arc<Grammar>,
    pub(super) parser: Parser,
    /// The tokens that were accepted.
    accepted: Vec<Token>,
    /// Why no parser can follow them, if none can.
    failure: Option<String>,
    /// Why none can say what may follow them. A token that may follow is a smaller question, and whether this one was
    /// asked before, for guesses, say, makes no difference to it.
    mask_failure: Option<String>,
    /// The number of tokens behind which the parser gave up over what has to come next.
    not_forced: Option<usize>,
    /// The bytes that have to come next, if that was asked since tokens were taken back: behind a part of them the rest
    /// has to come.
    forced: Option<Vec<u8>>,
}

/// The tokens that may come next.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// A bit a token; `None` for no token.
    tokens: Option<SimpleVob>,
    len: usize,
    may_end: bool,
}

impl Allowed {
    /// Whether the text may end here.
    pub fn may_end(&self) -> bool {
        self.may_end
    }

    /// Whether no token of the vocabulary may come next.
    pub fn is_empty(&self) -> bool {
        !(0..self.len as Token).any(|token| self.has(token))
    }

    /// Whether this token may come next, as a part of the text. `false` outside the vocabulary.
    pub fn has(&self, token: Token) -> bool {
        (token as usize) < self.len && self.tokens.as_ref().is_some_and(|tokens| tokens.is_allowed(token))
    }

    /// The set as bits: bit i of word w is token 32 w + i. Tokens behind the last word may not come next.
    pub fn words(&self) -> &[u32] {
        self.tokens.as_ref().map_or(&[][..], SimpleVob::as_slice)
    }
}

impl Matcher {
    pub(super) fn new(grammar: Arc<Grammar>) -> Matcher {
        let (parser, accepted) = (grammar.first(), Vec::new());
        Matcher { parser, grammar, accepted, failure: None, mask_failure: None, not_forced: None, forced: None }
    }

    /// What may come next.
    ///
    /// # Errors
    /// The parser gave up at one of the library's limits; the message says at which.
    pub fn allowed(&mut self) -> Result<Allowed, String> {
        if let Some(failure) = self.failure() {
            return Err(failure.to_string());
        }
        let asked = self.ask(0, |parser, _| parser.mask());
        let (mut tokens, may_end) = asked.inspect_err(|failure| self.mask_failure = Some(failure.clone()))?;
        let len = self.grammar.tables.len();
        if let Some(tokens) = &mut tokens {
            // The library's own end, behind the vocabulary.
            tokens.disallow_token(len as Token);
        }
        Ok(Allowed { tokens, len, may_end })
    }

    /// Whether the text may end here. `false` where the parser gave up.
    pub fn may_end(&mut self) -> bool {
        self.failure.is_none()
            && (self.parser.has_stopped() || self.ask(0, |parser, _| Ok(parser.may_end())).unwrap_or(false))
    }

    /// Goes on with a token of the text; false, and nothing is changed, if it may not come next. Where the parser gives
    /// up over it, it counts as accepted, and nothing is known of what may follow ([`Matcher::has_given_up`]): whether
    /// it may come next is what the tokens say that are allowed before it.
    pub fn accept(&mut self, token: Token) -> bool {
        if self.failure.is_some() || !self.grammar.tables.has(token) || self.parser.has_stopped() {
            return false;
        }
        let asked = self.ask(token, Parser::go_on);
        let is_accepted = asked.unwrap_or_else(|failure| {
            self.failure = Some(failure);
            true
        });
        if is_accepted {
            self.mask_failure = None;
            self.accepted.push(token);
            let written = self.grammar.tables.bytes(token);
            self.forced = self.forced.take().and_then(|bytes| bytes.strip_prefix(written).map(<[u8]>::to_vec));
        }
        is_accepted
    }

    /// The tokens that were accepted and not taken back.
    pub fn accepted(&self) -> &[Token] {
        &self.accepted
    }

    /// The bytes that have to come next: the string that every text of the grammar goes on with here, as long as it is
    /// or 512 of them. Where a special token has to come, they end before it; where the parser gives up on the
    /// way, there are none.
    pub fn forced_bytes(&mut self) -> Vec<u8> {
        let bytes = self.forced().unwrap_or_default().iter().copied();
        bytes.take_while(|byte| *byte != MARK).take(FORCED_MAX_BYTES).collect()
    }

    /// The bytes that have to come next, marks of special tokens included; `None` where nothing may, or the parser
    /// gives up on the way.
    fn forced(&mut self) -> Option<&[u8]> {
        if self.failure.is_some() || self.parser.has_stopped() {
            return None;
        }
        let at = self.accepted.len();
        if self.forced.is_none() && self.not_forced.is_none_or(|from| at >= from + NOT_FORCED_TOKENS) {
            match self.ask(0, |parser, _| parser.forced_bytes()) {
                Ok(bytes) => self.forced = Some(bytes),
                Err(_) => (self.not_forced, self.failure) = (Some(at), self.walk_again().err()),
            }
        }
        self.forced.as_deref()
    }

    /// Whether several tokens may certainly come next, found by trying two letters, for the many places where nearly
    /// any may. `false` says nothing.
    pub fn leaves_choice(&mut self) -> bool {
        self.failure.is_none()
            && !self.parser.has_stopped()
            && self.ask(0, |parser, _| Ok(parser.has_choice())).unwrap_or(false)
    }

    /// This byte and what has to come behind it ([`forced_bytes`](Self::forced_bytes)); nothing where it may not come
    /// next, or where the text may go on behind it in several ways.
    pub fn forced_behind(&mut self, byte: u8) -> Vec<u8> {
        if !self.grammar.tables.byte(byte).is_some_and(|token| self.accept(token)) {
            return Vec::new();
        }
        let mut bytes = self.forced_bytes();
        if !bytes.is_empty() || self.failure.is_none() && self.parser.has_stopped() {
            bytes.insert(0, byte);
        }
        self.roll_back(1);
        bytes
    }

    /// Asks what may come next behind what every text begins with, byte by byte, as far as the next place with a
    /// choice or a special token.
    ///
    /// # Errors
    /// As [`Matcher::allowed`].
    pub(super) fn ask_behind_beginning(mut self) -> Result<(), String> {
        for byte in self.forced_bytes().into_iter().take(BEGINNING_MAX_BYTES) {
            if !self.grammar.tables.byte(byte).is_some_and(|token| self.accept(token)) {
                break;
            }
        }
        self.allowed().map(drop)
    }

    /// The form.
    pub fn grammar(&self) -> &Arc<Grammar> {
        &self.grammar
    }

    /// Takes back so many of the tokens that were accepted last.
    ///
    /// # Panics
    ///
    /// Panics if fewer were accepted.
    pub fn roll_back(&mut self, tokens: usize) {
        let accepted = self.accepted.len();
        assert!(tokens <= accepted, "{tokens} tokens taken back of {accepted} accepted");
        if tokens == 0 {
            return;
        }
        self.accepted.truncate(accepted - tokens);
        (self.forced, self.mask_failure) = (None, None);
        // Behind another text it may be another answer.
        self.not_forced = self.not_forced.filter(|from| *from <= self.accepted.len());
        if self.failure.take().is_some() || !self.parser.roll_back(tokens) {
            self.failure = self.walk_again().err();
        }
    }

    /// The same place of the same text, for somebody else: nothing is shared that either changes.
    pub fn duplicate(&self) -> Matcher {
        Matcher {
            grammar: Arc::clone(&self.grammar),
            parser: self.parser.duplicate(),
            accepted: self.accepted.clone(),
            failure: self.failure.clone(),
            mask_failure: self.mask_failure.clone(),
            not_forced: self.not_forced,
            forced: self.forced.clone(),
        }
    }

    /// Why the parser gave up, over the last token or over what may follow, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref().or(self.mask_failure.as_deref())
    }

    /// Whether it gave up over a token that counts as accepted.
    pub fn has_given_up(&self) -> bool {
        self.failure.is_some()
    }

    /// Asks the parser something where it stands; one that gives up, or has grown too much, is replaced by one that
    /// comes from the beginning, whose answer is the last.
    fn ask<T>(&mut self, token: Token, question: Question<T>) -> Result<T, String> {
        let grown = self.grammar.limits.half();
        if let Ok(answer) = self.parser.within(grown, token, question) {
            return Ok(answer);
        }
        self.walk_again()?;
        self.parser.within(self.grammar.limits, token, question)
    }

    /// Goes from the beginning to where the text is, as one that was never anywhere else.
    fn walk_again(&mut self) -> Result<(), String> {
        self.parser = self.grammar.first();
        for (i, token) in self.accepted.iter().enumerate() {
            let is_accepted = self.parser.within(self.grammar.limits, *token, Parser::go_on)?;
            assert!(is_accepted, "token {token}, number {i}, was accepted before");
        }
        Ok(())
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Matcher").field("accepted", &self.accepted.len()).finish_non_exhaustive()
    }
}
