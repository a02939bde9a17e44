//! Where one text stands in its grammar.
//!
//! What may come next and what is accepted are the same question to the same parser, asked for all tokens and for one.
//! The library takes tokens back itself; where it cannot, because it gave up behind them (a limit, on a branch that was
//! only a guess), the text is walked again from the beginning, so that what lay behind is as if it had never been.

use std::fmt;
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;

use super::{Grammar, complaint};
use crate::Token;

/// Walks a grammar with one text.
#[derive(Clone)]
pub struct Matcher {
    grammar: Arc<Grammar>,
    parser: TokenParser,
    /// The tokens that were accepted.
    accepted: Vec<Token>,
    /// Why the parser gave up behind them, if it did.
    failure: Option<String>,
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

    /// Sets the logits of tokens that may not come next to minus infinity. The row may be shorter than the vocabulary,
    /// or longer; tokens that the vocabulary lacks may not come next.
    pub fn mask(&self, logits: &mut [f32]) {
        let words = self.tokens.as_ref().map_or(&[][..], SimpleVob::as_slice);
        for (i, logits) in logits.chunks_mut(u32::BITS as usize).enumerate() {
            let left = self.len.saturating_sub(i * u32::BITS as usize).min(u32::BITS as usize);
            // The library's own token lies behind the vocabulary.
            let inside = u32::MAX.checked_shr(u32::BITS - left as u32).unwrap_or(0);
            match words.get(i).copied().unwrap_or(0) & inside {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                // Without branches: which of its bits are set is anybody's guess.
                word => logits.iter_mut().enumerate().for_each(|(bit, logit)| {
                    *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }),
            }
        }
    }
}

impl Matcher {
    pub(super) fn new(grammar: Arc<Grammar>) -> Matcher {
        Matcher { parser: grammar.first(), grammar, accepted: Vec::new(), failure: None }
    }

    /// What may come next.
    ///
    /// # Errors
    /// The parser gave up at one of the library's limits; the message says at which. It stays so until tokens are
    /// taken back.
    pub fn allowed(&mut self) -> Result<Allowed, String> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let len = self.grammar.tables.len();
        match self.parser.stop_reason() {
            StopReason::NotStopped => {}
            StopReason::NoExtensionBias => return Ok(Allowed { tokens: None, len, may_end: false }),
            _ => return Ok(Allowed { tokens: None, len, may_end: true }),
        }
        let may_end = self.parser.is_accepting();
        match self.parser.compute_mask() {
            Ok(tokens) => Ok(Allowed { tokens: Some(tokens), len, may_end }),
            // The bytes that may come next are those of no token.
            Err(_) if self.parser.stop_reason() == StopReason::NoExtensionBias => {
                Ok(Allowed { tokens: None, len, may_end })
            }
            Err(error) => Err(self.fail(&error.to_string())),
        }
    }

    /// Whether the text may end here. `false` where the parser gave up.
    pub fn may_end(&mut self) -> bool {
        self.failure.is_none()
            && match self.parser.stop_reason() {
                StopReason::NotStopped => self.parser.is_accepting(),
                reason => reason != StopReason::NoExtensionBias,
            }
    }

    /// Goes on with a token of the text; false, and nothing is changed, if it may not come next.
    pub fn accept(&mut self, token: Token) -> bool {
        if self.failure.is_some() || !self.grammar.tables.has(token) || self.parser.stopped() {
            return false;
        }
        match self.parser.validate_token(token) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                self.fail(&error.to_string());
                return false;
            }
        }
        let accepted = self.parser.consume_token(token).and_then(|_| self.parser.check_stop());
        self.accepted.push(token);
        if let Err(error) = accepted {
            self.fail(&error.to_string());
        }
        true
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
        if self.failure.take().is_some() || self.parser.rollback(tokens).is_err() {
            self.walk_again();
        }
        // The library keeps its last mask by its place in the text, and forgets none when the text there is another.
        self.parser.invalidate_bias_cache();
    }

    /// The same place of the same text, for somebody else: nothing is shared that either changes.
    pub fn duplicate(&self) -> Matcher {
        Matcher { parser: self.parser.deep_clone(), ..self.clone() }
    }

    /// One token earlier, where there is one: for mistakes that tests make.
    #[doc(hidden)]
    pub fn parent(&self) -> Matcher {
        let mut parent = self.duplicate();
        parent.roll_back(self.accepted.len().min(1));
        parent
    }

    /// Why the parser gave up, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Goes from the beginning to where the text is.
    fn walk_again(&mut self) {
        self.parser = self.grammar.first();
        for token in std::mem::take(&mut self.accepted) {
            assert!(self.accept(token), "token {token}, number {}, was accepted before", self.accepted.len());
        }
    }

    fn fail(&mut self, error: &str) -> String {
        let failure = complaint(error);
        self.failure = Some(failure.clone());
        failure
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Matcher").field("accepted", &self.accepted.len()).finish_non_exhaustive()
    }
}
