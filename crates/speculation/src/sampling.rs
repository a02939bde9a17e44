//! From a row of logits to a law: the usual sampling settings, in transformers' order.
//!
//! The law that speculation preserves is the law *after* all of these, so the logits of drafter and target go through
//! this one function, at every position of a draft tree, with the context of that position. The only state that is kept
//! between calls is that of a constraint: penalties are counted again from the context each time.
//!
//! Order of application (transformers 5.23, `_get_logits_processor`; presence and frequency penalties, which it lacks,
//! stand where llama.cpp and vLLM have them, after the repetition penalty):
//!
//! 1. logit bias;
//! 2. repetition penalty, then frequency and presence penalties;
//! 3. banned tokens, end tokens while fewer than `tokens_min` were generated, and what a constraint forbids;
//! 4. temperature; at 0 the law is the most probable token, and the filters below are skipped;
//! 5. top-k, then the other filters in the order of `filter.rs`.
//!
//! Ties are broken so that a law is a function of its logits alone: greedy takes the lowest token; top-k keeps every
//! token that ties with the k-th, as transformers does; `filter.rs` says what the others do.
//!
//! Logits that are not finite never cause a panic (an engine ends a sequence whose logits are NaN before it gets here):
//! NaN counts as minus infinity, which gives probability zero, and plus infinity counts as the largest finite number.
//! If no token is left, [`Sampling::possible_law_with`] returns `None`, and the other methods give a point mass on the
//! lowest token that the settings allow, or on token 0 if they allow none. Tokens of settings or context beyond the row
//! are ignored, because a draft model's row may be shorter.

mod constraint;
mod edit;
mod exponential;
mod filter;
mod law;
mod raw;
mod reduced;
mod scores;
mod settings;
mod token_set;

pub use constraint::{Constrained, Constraint, Ending};
use exponential::{power_of_two, weigh};
pub use law::Law;
pub use raw::{RawLaw, log_probability};
pub(crate) use settings::FRACTION;
pub use settings::{NumberRange, ParameterKind, Sampling, SamplingParameter, SamplingProblem};
pub use token_set::TokenSet;

use std::f64::consts::LOG2_E;

use crate::Token;

/// The context of a law: what was written before the token to be chosen.
#[derive(Copy, Clone, Debug)]
pub struct Context<'a> {
    /// Prompt and output, up to the pending token, which is included (the root of the tree).
    pub tokens: &'a [Token],
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// The tokens of the tree from below the root to the node whose law is asked for; empty at the root.
    pub path: &'a [Token],
    /// The constraint on the output, if there is one.
    pub constraint: Option<&'a Constrained>,
}

impl Context<'_> {
    /// The context in which nothing was written and there is no constraint.
    pub const EMPTY: Context<'static> = Context { tokens: &[], prompt_len: 0, path: &[], constraint: None };

    /// Number of tokens generated before the one to be chosen.
    fn generated(&self) -> usize {
        (self.tokens.len() + self.path.len()).saturating_sub(self.prompt_len)
    }

    /// The last `window` tokens.
    fn last(&self, window: Option<usize>) -> impl Iterator<Item = Token> + '_ {
        let len = self.tokens.len() + self.path.len();
        let skip = window.map_or(0, |window| len.saturating_sub(window));
        let tokens = &self.tokens[skip.min(self.tokens.len())..];
        let path = &self.path[skip.saturating_sub(self.tokens.len())..];
        tokens.iter().chain(path).copied()
    }
}

/// Memory of [`Sampling::law_with`], reused from call to call. It carries no state from one call to the next.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// The row after bias, penalties and bans.
    logits: Vec<f32>,
    /// Occurrences per token; all zero between calls.
    counts: Vec<u32>,
    /// Candidates of the top-k selection.
    best: Vec<f32>,
    /// Tokens left by top-k with their scaled weights, ascending by token.
    kept: Vec<(Token, f64)>,
    /// Tokens that are left, with the numbers by which the other filters rank them.
    ranked: Vec<filter::Ranked>,
    /// A row of a reduced vocabulary, expanded to the whole vocabulary.
    row: Vec<f32>,
    /// Memory of the laws themselves, which is returned when they are dropped.
    laws: law::LawPool,
}

impl Scratch {
    /// Writes into `out` (cleared first) the `count` most probable tokens of the whole row whose law was asked for
    /// last, after bias, penalties and bans: the most probable first, of ties the lowest token, and no impossible ones.
    /// `row_tokens` are the tokens of the row if these were not all ([`Sampling::law_of_reduced`]).
    pub fn most_probable(&self, count: usize, row_tokens: Option<&[Token]>, out: &mut Vec<Token>) {
        out.clear();
        let mut floor = f32::NEG_INFINITY;
        for (token, &logit) in (0..).zip(&self.logits) {
            if logit > floor {
                let at = out.partition_point(|&better: &Token| self.logits[better as usize] >= logit);
                out.truncate(count.saturating_sub(1));
                out.insert(at, token);
                floor = if out.len() == count { self.logits[out[count - 1] as usize] } else { floor };
            }
        }
        // A row of another length was expanded to the whole vocabulary, so its indices are tokens already.
        if let Some(row_tokens) = row_tokens.filter(|row_tokens| row_tokens.len() == self.logits.len()) {
            out.iter_mut().for_each(|token| *token = row_tokens[*token as usize]);
        }
    }
}

impl Sampling {
    /// The law of the next token.
    ///
    /// # Panics
    ///
    /// Panics if `logits` is empty, or if the settings have a [`Sampling::problem`].
    pub fn law(&self, logits: &[f32], context: &Context<'_>) -> Law {
        self.law_with(logits, context, &mut Scratch::default())
    }

    /// [`Sampling::law`] with reused memory.
    ///
    /// # Panics
    ///
    /// As [`Sampling::law`].
    pub fn law_with(&self, logits: &[f32], context: &Context<'_>, scratch: &mut Scratch) -> Law {
        let law = self.possible_law_with(logits, context, scratch);
        law.unwrap_or_else(|| Law::point(self.lowest_allowed(logits.len(), context, scratch)))
    }

    /// [`Sampling::law_with`], or `None` if no token is possible: the row holds no finite logit, or the settings leave
    /// none.
    ///
    /// # Panics
    ///
    /// As [`Sampling::law`].
    pub fn possible_law_with(&self, logits: &[f32], context: &Context<'_>, scratch: &mut Scratch) -> Option<Law> {
        assert!(!logits.is_empty(), "a row without logits");
        let problem = self.problem();
        assert!(problem.is_none(), "{problem:?}");
        self.edit(logits, context, scratch);
        let best = argmax(&scratch.logits);
        if scratch.logits[best] == f32::NEG_INFINITY {
            return None;
        }
        if self.temperature == 0.0 {
            return Some(Law::point(best as Token));
        }
        let largest = f64::from(scratch.logits[best]);
        let floor = filter::top_k_floor(&scratch.logits, self.top_k, &mut scratch.best);
        if floor == f32::NEG_INFINITY && !filter::is_any_on(self) {
            let (Scratch { laws, logits, .. }, scale) = (scratch, self.scale());
            return laws.law_of_row(logits.len(), |weights| weigh(logits, largest, scale, weights));
        }
        let weigh = self.weight_below(largest);
        scratch.kept.clear();
        for (i, chunk) in scratch.logits.chunks(filter::CHUNK).enumerate() {
            if !filter::reaches(chunk, floor) {
                continue;
            }
            for (token, &logit) in (i * filter::CHUNK..).zip(chunk) {
                if logit >= floor && weigh(logit) > 0.0 {
                    scratch.kept.push((token as Token, weigh(logit)));
                }
            }
        }
        self.law_of_kept(scratch)
    }

    /// The only token of a vocabulary of this size that the settings and the constraint leave possible here; `None` if
    /// they leave several, or none. Such a token is *forced*: its law is a point mass whatever the logits are, so the
    /// model need not compute them.
    pub fn forced(&self, vocabulary: usize, context: &Context<'_>) -> Option<Token> {
        let bans_ends = context.generated() < self.tokens_min;
        let banned_ends = if bans_ends { &self.end_tokens[..] } else { &[] };
        let is_biased_away =
            |token| self.logit_bias.iter().any(|&(other, bias)| other == token && bias == -f32::INFINITY);
        let is_possible = |token: &Token| {
            !self.banned_tokens.contains(token) && !banned_ends.contains(token) && !is_biased_away(*token)
        };
        let only = |tokens: &mut dyn Iterator<Item = Token>| {
            let mut possible = tokens.filter(is_possible);
            possible.next().filter(|_| possible.next().is_none())
        };
        let banned_len = self.logit_bias.len() + self.banned_tokens.len() + banned_ends.len();
        match context.constraint {
            Some(constraint) if banned_len == 0 && constraint.leaves_choice(context.path) => None,
            Some(constraint) => constraint.with_allowed(context.path, |allowed| only(&mut allowed.below(vocabulary))),
            None if banned_len + 1 < vocabulary => None,
            None => only(&mut (0..vocabulary as Token)),
        }
    }

    /// How many of the largest logits of a row decide its law: 1 for greedy, k for top-k. `None` if the whole row does,
    /// because there is no such filter or because logits are changed before it.
    pub fn largest_needed(&self, context: &Context<'_>) -> Option<usize> {
        let needed = if self.temperature == 0.0 { 1 } else { self.top_k };
        (!self.changes_logits(context) && needed > 0).then_some(needed)
    }

    /// Whether bias, penalties, bans or a constraint may change logits.
    fn changes_logits(&self, context: &Context<'_>) -> bool {
        context.constraint.is_some()
            || self.has_penalties()
            || !self.logit_bias.is_empty()
            || !self.banned_tokens.is_empty()
            || (self.tokens_min > 0 && !self.end_tokens.is_empty())
    }

    /// The law of a row of which only the largest logits are known: all that are at least as large as its k-th largest,
    /// ascending by token, where k is that of top-k. At least k of them are above minus infinity, and they are fewer
    /// than the whole row. The law has the same bits as that of the whole row.
    ///
    /// # Panics
    ///
    /// Panics if the settings need more of the row ([`Sampling::largest_needed`]), or if there are fewer than k.
    pub fn law_of_largest(&self, logits: &[(Token, f32)], scratch: &mut Scratch) -> Option<Law> {
        let needed = self.largest_needed(&Context::EMPTY).expect("settings that go by the largest logits");
        assert!(logits.len() >= needed, "{} largest logits of {needed}", logits.len());
        let largest = logits.iter().map(|&(_, logit)| sane(logit)).fold(f32::NEG_INFINITY, f32::max);
        if self.temperature == 0.0 {
            let best = logits.iter().find(|&&(_, logit)| sane(logit) == largest);
            return best.map(|&(token, _)| Law::point(token));
        }
        let weigh = self.weight_below(f64::from(largest));
        scratch.kept.clear();
        scratch.kept.extend(logits.iter().map(|&(token, logit)| (token, weigh(sane(logit)))));
        scratch.kept.retain(|&(_, weight)| weight > 0.0);
        self.law_of_kept(scratch)
    }

    /// The factor that makes logits exponents of two.
    fn scale(&self) -> f64 {
        LOG2_E / f64::from(self.temperature)
    }

    /// Returns the function from a logit to its weight; the largest logit has weight 1.
    fn weight_below(&self, largest: f64) -> impl Fn(f32) -> f64 + use<> {
        let scale = self.scale();
        move |logit| power_of_two(scale * (f64::from(logit) - largest))
    }

    /// The law of the tokens that top-k left, after the filters that follow top-k.
    fn law_of_kept(&self, scratch: &mut Scratch) -> Option<Law> {
        filter::apply(self, &mut scratch.kept, &mut scratch.ranked);
        scratch.laws.law(scratch.kept.iter().copied()).map(|(law, _)| law)
    }
}

/// The index of the largest logit, of ties the lowest. NaN is ignored; if the whole row is NaN the index is 0.
pub fn argmax(logits: &[f32]) -> usize {
    // Lanes compile to vector code; the maximum does not depend on the order.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let largest = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    // Within a chunk there is no early exit, so that this compiles to vector code, too.
    let found = |chunk: &[f32]| chunk.iter().fold(false, |found, &logit| found | (logit == largest));
    let first = logits.chunks(filter::CHUNK).position(found).unwrap_or(0) * filter::CHUNK;
    logits[first..].iter().position(|&logit| logit == largest).map_or(0, |i| first + i)
}

/// The value that a logit counts as: NaN as minus infinity, plus infinity as the largest finite number.
fn sane(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) }
}

#[cfg(test)]
mod tests;
