//! Forced tokens: if the settings and the constraint leave only one possible token, it is written without a pass.
//!
//! Several tokens are pending then. Their rows are computed in the next pass, which wants the logits of the last only.
//! Each of them is treated like any pending token: it is part of the output, counts towards the limit, may end the
//! sequence, is searched for stop strings, and its row is computed again after a preemption. The law of a forced token
//! is a point mass whatever the logits are ([`foretoken_speculation::Sampling::forced`]), so the output is the same if
//! such a position is verified in a tree instead; and the noise of a token depends on its position only, so it does not
//! change. A row of NaN after which a token is forced does not end the sequence; the next one after which a token is
//! chosen does.
//!
//! If log-probabilities are wanted, no token is written without a pass, since the pass computes them. Bytes that are
//! forced while tokens are not become a draft (`foretoken_drafters::GrammarDrafter`).

use foretoken_speculation::{Context, Token};

use super::stuck::refuses_what_it_allowed;
use crate::faults::{Fault, is_made};
use crate::output::{Emitted, FinishReason, Origin};
use crate::sequence::{PENDING_TOKENS_MAX, Phase, Sequence};

/// Maximum number of forced tokens that are written at once, since other sequences wait meanwhile. Further ones are
/// verified in a pass.
const FORCED_MAX: usize = 256;

impl Sequence {
    /// Writes tokens while only one is possible, and appends them to `emitted`. `vocabulary`: number of tokens.
    pub(super) fn write_forced(&mut self, vocabulary: usize, emitted: &mut Vec<Emitted>) {
        let needs_logits = self.request.log_probabilities || self.request.top_log_probabilities > 0;
        if needs_logits || !self.request.skip_forced {
            return;
        }
        let last = self.stats.skipped + FORCED_MAX;
        while self.finished.is_none()
            && self.stats.skipped < last
            && let Some(token) = self.forced(vocabulary)
        {
            let before = self.text.tokens.len();
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
                self.finished.get_or_insert(FinishReason::Failed(refuses_what_it_allowed(self.text.tokens.len())));
            }
        }
        if self.uncached() > PENDING_TOKENS_MAX {
            self.cache.phase = Phase::Prefill;
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
        let (tokens, prompt_len) = (&self.text.tokens[..], self.request.prompt.len());
        self.request.sampling.forced(vocabulary, &Context { tokens, prompt_len, path: &[], constraint })
    }

    /// Advances the constraint, if there is one, by the tokens from this position on; false if it refuses them.
    pub(super) fn constraint_goes_on(&self, from: usize) -> bool {
        self.request.constraint.as_ref().is_none_or(|constraint| constraint.advance(&self.text.tokens[from..]))
    }

    /// The position that addresses the noise of the next pass: that of the token that it chooses.
    pub(super) fn place_of_noise(&self) -> usize {
        self.text.tokens.len() - if is_made(Fault::NoiseShifted) { self.stats.skipped.min(1) } else { 0 }
    }
}
