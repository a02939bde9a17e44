//! The state of one sequence in its grammar.
//!
//! Masks and accepted tokens are answers of the same parser, for all tokens and for one. The library rolls tokens back.
//! If a parser gives up or has grown too much ([`super::limits`]), a fresh one replays the text from the beginning, and
//! its answer counts: so drafts that the first has seen do not matter, and a text reaches a limit where it would
//! without any.

use std::fmt;
use std::sync::Arc;

use llguidance::toktrie::SimpleVob;

use super::Grammar;
use super::parser::{Parser, Query};
use super::tables::SPECIAL_MARKER;
use crate::Token;

/// Maximum number of forced bytes that are returned.
const FORCED_MAX_BYTES: usize = 512;
/// After the parser gave up on forced bytes, they are not computed for this many tokens, since that might take as long.
const FORCED_RETRY_TOKENS: usize = 4096;
/// How many forced bytes at the beginning are followed when a grammar is compiled.
const FORCED_START_MAX_BYTES: usize = 256;

/// Matches one sequence against a grammar.
pub struct Matcher {
    grammar: Arc<Grammar>,
    pub(super) parser: Parser,
    /// The tokens that were accepted.
    accepted: Vec<Token>,
    /// Why the parser gave up on the accepted tokens, if it did.
    failure: Option<String>,
    /// Why the parser gave up on the mask after them. Accepting a token takes less, and does not depend on whether the
    /// mask was computed before.
    mask_failure: Option<String>,
    /// The number of accepted tokens when the parser gave up on forced bytes.
    forced_failed_at: Option<usize>,
    /// The forced bytes, if they were computed since the last rollback. After a part of them was written the rest
    /// remains forced.
    forced: Option<Vec<u8>>,
}

/// The tokens that may come next.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// One bit per token; `None` if no token is allowed.
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

    /// Whether this token may come next. `false` outside the vocabulary.
    pub fn has(&self, token: Token) -> bool {
        (token as usize) < self.len && self.tokens.as_ref().is_some_and(|tokens| tokens.is_allowed(token))
    }

    /// The mask as bits: bit i of word w is token 32 w + i. Tokens beyond the last word are not allowed.
    pub fn words(&self) -> &[u32] {
        self.tokens.as_ref().map_or(&[][..], SimpleVob::as_slice)
    }
}

impl Matcher {
    pub(super) fn new(grammar: Arc<Grammar>) -> Matcher {
        let (parser, accepted) = (grammar.initial(), Vec::new());
        Matcher { parser, grammar, accepted, failure: None, mask_failure: None, forced_failed_at: None, forced: None }
    }

    /// The tokens that may come next.
    ///
    /// # Errors
    /// If the parser gave up at one of the library's limits; the message names it.
    pub fn allowed(&mut self) -> Result<Allowed, String> {
        if let Some(failure) = self.failure() {
            return Err(failure.to_string());
        }
        let answer = self.query(0, |parser, _| parser.mask());
        let (mut tokens, may_end) = answer.inspect_err(|failure| self.mask_failure = Some(failure.clone()))?;
        let len = self.grammar.tables.len();
        if let Some(tokens) = &mut tokens {
            // The library's own end token, after the vocabulary.
            tokens.disallow_token(len as Token);
        }
        Ok(Allowed { tokens, len, may_end })
    }

    /// Whether the text may end here. `false` if the parser gave up.
    pub fn may_end(&mut self) -> bool {
        self.failure.is_none()
            && (self.parser.has_stopped() || self.query(0, |parser, _| Ok(parser.may_end())).unwrap_or(false))
    }

    /// Accepts a token; returns false without a change if it is not allowed. If the parser gives up on it, it counts as
    /// accepted, and nothing is known about what may follow ([`Matcher::has_given_up`]); whether it was allowed is
    /// answered by the mask before it.
    pub fn accept(&mut self, token: Token) -> bool {
        if self.failure.is_some() || !self.grammar.tables.contains(token) || self.parser.has_stopped() {
            return false;
        }
        let answer = self.query(token, Parser::advance);
        let is_accepted = answer.unwrap_or_else(|failure| {
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

    /// The tokens that were accepted and not rolled back.
    pub fn accepted(&self) -> &[Token] {
        &self.accepted
    }

    /// The forced bytes: the string with which every text of the grammar continues here, at most 512 bytes of it. They
    /// end before a forced special token; they are empty if the parser gives up.
    pub fn forced_bytes(&mut self) -> Vec<u8> {
        let bytes = self.forced().unwrap_or_default().iter().copied();
        bytes.take_while(|byte| *byte != SPECIAL_MARKER).take(FORCED_MAX_BYTES).collect()
    }

    /// The forced bytes with the markers of special tokens; `None` if the text has ended or the parser gives up.
    fn forced(&mut self) -> Option<&[u8]> {
        if self.failure.is_some() || self.parser.has_stopped() {
            return None;
        }
        let at = self.accepted.len();
        if self.forced.is_none() && self.forced_failed_at.is_none_or(|from| at >= from + FORCED_RETRY_TOKENS) {
            match self.query(0, |parser, _| parser.forced_bytes()) {
                Ok(bytes) => self.forced = Some(bytes),
                Err(_) => (self.forced_failed_at, self.failure) = (Some(at), self.replay().err()),
            }
        }
        self.forced.as_deref()
    }

    /// A fast test whether several tokens are allowed: whether two letters are, which holds in the many positions where
    /// nearly any token is. `false` means unknown.
    pub fn leaves_choice(&mut self) -> bool {
        self.failure.is_none()
            && !self.parser.has_stopped()
            && self.query(0, |parser, _| Ok(parser.has_choice())).unwrap_or(false)
    }

    /// This byte and the bytes forced after it ([`forced_bytes`](Self::forced_bytes)); empty if the byte is not
    /// allowed, or if the text may continue after it in several ways.
    pub fn forced_after(&mut self, byte: u8) -> Vec<u8> {
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

    /// Accepts the forced bytes at the beginning one by one, up to the first choice or special token, and computes the
    /// mask there.
    ///
    /// # Errors
    /// As [`Matcher::allowed`].
    pub(super) fn compute_first_masks(mut self) -> Result<(), String> {
        for byte in self.forced_bytes().into_iter().take(FORCED_START_MAX_BYTES) {
            if !self.grammar.tables.byte(byte).is_some_and(|token| self.accept(token)) {
                break;
            }
        }
        self.allowed().map(drop)
    }

    /// The grammar.
    pub fn grammar(&self) -> &Arc<Grammar> {
        &self.grammar
    }

    /// Rolls back the last `tokens` accepted tokens.
    ///
    /// # Panics
    ///
    /// Panics if fewer were accepted.
    pub fn roll_back(&mut self, tokens: usize) {
        let accepted = self.accepted.len();
        assert!(tokens <= accepted, "{tokens} tokens rolled back of {accepted} accepted");
        if tokens == 0 {
            return;
        }
        self.accepted.truncate(accepted - tokens);
        (self.forced, self.mask_failure) = (None, None);
        // With other tokens the answer may be another.
        self.forced_failed_at = self.forced_failed_at.filter(|from| *from <= self.accepted.len());
        if self.failure.take().is_some() || !self.parser.roll_back(tokens) {
            self.failure = self.replay().err();
        }
    }

    /// An independent copy in the same state.
    pub fn duplicate(&self) -> Matcher {
        Matcher {
            grammar: Arc::clone(&self.grammar),
            parser: self.parser.duplicate(),
            accepted: self.accepted.clone(),
            failure: self.failure.clone(),
            mask_failure: self.mask_failure.clone(),
            forced_failed_at: self.forced_failed_at,
            forced: self.forced.clone(),
        }
    }

    /// Why the parser gave up, on the last token or on the mask after it, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref().or(self.mask_failure.as_deref())
    }

    /// Whether it gave up on a token that counts as accepted.
    pub fn has_given_up(&self) -> bool {
        self.failure.is_some()
    }

    /// Queries the parser. One that gives up or has grown too much is replaced by a fresh one, whose answer counts.
    fn query<T>(&mut self, token: Token, ask_parser: Query<T>) -> Result<T, String> {
        let grown = self.grammar.limits.half();
        if let Ok(answer) = self.parser.query(grown, token, ask_parser) {
            return Ok(answer);
        }
        self.replay()?;
        self.parser.query(self.grammar.limits, token, ask_parser)
    }

    /// Replaces the parser by a fresh one that has accepted the same tokens.
    fn replay(&mut self) -> Result<(), String> {
        self.parser = self.grammar.initial();
        for (i, token) in self.accepted.iter().enumerate() {
            let is_accepted = self.parser.query(self.grammar.limits, *token, Parser::advance)?;
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
