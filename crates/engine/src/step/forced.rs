//! Tokens that nobody is asked for: where settings and constraint leave one alone, it is written at once.
//!
//! Several tokens are pending then. Their rows ride in the next pass, which asks for the logits of the last alone,
//! and whatever else holds for a pending token holds for each of them: it is part of the text, counts towards its
//! limit, may end it, is seen by stop strings, and has its rows computed again when its pages were needed by others.
//! A law that is forced is a point mass whatever the model says ([`foretoken_speculation::Sampling::forced`]), so a
//! text is the same where such a place is verified in a tree instead, and noise, which goes by the position of a
//! token, stays where it is. A row of NaN behind which nothing was to choose ends no text; the next one behind which
//! something is does.
//!
//! Where log-probabilities are wanted, nothing is skipped: the pass that computes them tells the token. Left out: bytes
//! that are forced where tokens are not, which are a draft (`foretoken_drafters::GrammarDrafter`).

use foretoken_speculation::{Context, Token};

use super::stuck::refuses_what_it_allowed;
use crate::faults::{Fault, is_made};
use crate::output::{Emitted, FinishReason, Origin};
use crate::sequence::{PENDING_MAX, Phase, Sequence};

/// Tokens that are written at once: so long nobody else is heard. What is forced behind them is asked for.
const FORCED_MAX: usize = 256;

impl Sequence {
    /// Writes tokens while only one is possible, and appends them to `emitted`. `vocabulary`: tokens there are.
    pub(super) fn write_forced(&mut self, vocabulary: usize, emitted: &mut Vec<Emitted>) {
        let is_told = self.request.log_probabilities || self.request.top_log_probabilities > 0;
        if is_told || !self.request.skip_forced {
            return;
        }
        let last = self.stats.skipped + FORCED_MAX;
        while self.finished.is_none()
            && self.stats.skipped < last
            && let Some(token) = self.forced(vocabulary)
        {
            let before = self.tokens.len();
            emitted.push(self.append(Emitted {
                token,
                origin: Origin::Forced,
                depth: 0,
                pass: self.stats.passes,
                p: 1.0,
                q: None,
                log_probability: None,
                top: Vec::new(),
                text: String::new(),
            }));
            self.stats.skipped += 1;
            if !self.constraint_goes_on(before) {
                self.finished.get_or_insert(FinishReason::Failed(refuses_what_it_allowed(self.tokens.len())));
            }
        }
        if self.uncached() > PENDING_MAX {
            self.phase = Phase::Reads;
        }
    }

    /// The one token that may come next, if only one may.
    fn forced(&self, vocabulary: usize) -> Option<Token> {
        let constraint = self.request.constraint.as_ref();
        if is_made(Fault::ForcedBytesTaken)
            && let Some(token) = constraint.and_then(|constraint| constraint.foreseen(&[]).first().copied())
        {
            return Some(token);
        }
        let (tokens, prompt_len) = (&self.tokens[..], self.request.prompt.len());
        self.request.sampling.forced(vocabulary, &Context { tokens, prompt_len, path: &[], constraint })
    }

    /// Tells the constraint, if there is one, of the tokens from this position on; false if it cannot go on with them.
    pub(super) fn constraint_goes_on(&self, from: usize) -> bool {
        self.request.constraint.as_ref().is_none_or(|constraint| constraint.advance(&self.tokens[from..]))
    }

    /// The position by which the noise of the next pass goes: that of the token that it chooses.
    pub(super) fn place_of_noise(&self) -> usize {
        self.tokens.len() - if is_made(Fault::NoiseShifted) { self.stats.skipped.min(1) } else { 0 }
    }
}
