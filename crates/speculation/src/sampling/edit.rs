//! The settings that change single logits: bias, penalties, bans.
//!
//! They change few tokens, so the row is copied once and edited in place. Counting tokens uses an array over the
//! vocabulary that is cleared by visiting the same tokens again, so its cost grows with the window and not with the
//! vocabulary.

use super::{Context, Sampling, Scratch, sane};
use crate::Token;

impl Sampling {
    /// Writes into `scratch.logits` the row as it is before temperature: after bias, penalties and bans.
    pub(super) fn edit(&self, logits: &[f32], context: &Context<'_>, scratch: &mut Scratch) {
        scratch.logits.clear();
        scratch.logits.extend(logits.iter().map(|&logit| sane(logit)));
        for &(token, bias) in &self.logit_bias {
            change(&mut scratch.logits, token, |logit| logit + bias);
        }
        self.penalize(context, scratch);
        for &token in &self.banned_tokens {
            change(&mut scratch.logits, token, |_| f32::NEG_INFINITY);
        }
        if context.generated() < self.tokens_min {
            for &token in &self.end_tokens {
                change(&mut scratch.logits, token, |_| f32::NEG_INFINITY);
            }
        }
        if let Some(constraint) = context.constraint {
            constraint.mask(context.path, &mut scratch.logits);
        }
    }

    fn penalize(&self, context: &Context<'_>, scratch: &mut Scratch) {
        if !self.has_penalties() {
            return;
        }
        let width = scratch.logits.len();
        if scratch.counts.len() < width {
            scratch.counts.resize(width, 0);
        }
        let written = || context.last(self.penalty_window).filter(|&token| (token as usize) < width);
        for token in written() {
            scratch.counts[token as usize] += 1;
        }
        for token in written() {
            let count = std::mem::take(&mut scratch.counts[token as usize]);
            if count > 0 {
                change(&mut scratch.logits, token, |logit| {
                    let repeated =
                        if logit < 0.0 { logit * self.repetition_penalty } else { logit / self.repetition_penalty };
                    sane(repeated) - count as f32 * self.frequency_penalty - self.presence_penalty
                });
            }
        }
    }

    /// The lowest token that constraint, bias and bans leave possible, whatever the logits are; 0 if there is none.
    pub(super) fn lowest_allowed(&self, width: usize, context: &Context<'_>, scratch: &mut Scratch) -> Token {
        self.edit(&vec![0.0; width], context, scratch);
        let lowest = scratch.logits.iter().position(|logit| *logit > f32::NEG_INFINITY);
        lowest.unwrap_or(0) as Token
    }
}

/// Changes one logit, if the row has it.
fn change(logits: &mut [f32], token: Token, to: impl FnOnce(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = sane(to(*logit));
    }
}
