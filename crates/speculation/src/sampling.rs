//! From a row of logits to a law: the usual sampling settings, in transformers' order.
//!
//! The law that speculation preserves is the law *after* all of these, so the logits of drafter and target go through
//! this one function, at every position of a draft tree, with the context of that position. No state is kept between
//! calls except that of a constraint: penalties are counted again from the context each time.
//!
//! Order of application (transformers 5.23, `_get_logits_processor`; presence and frequency penalties, which it lacks,
//! stand where llama.cpp and vLLM have them, after the repetition penalty):
//!
//! 1. logit bias;
//! 2. repetition penalty, then frequency and presence penalties;
//! 3. banned tokens, end tokens while fewer than `tokens_min` were generated, and what a constraint forbids;
//! 4. temperature; at 0 the law is the most probable token, and the filters below are skipped;
//! 5. top-k;
//! 6. top-p;
//! 7. min-p;
//! 8. typical-p.
//!
//! Ties, so that a law is a function of its logits alone: greedy takes the lowest id; top-k keeps every token that ties
//! with the k-th, as transformers does; top-p takes the lower id first among equals; min-p and typical-p keep all
//! equals.
//!
//! Logits that are not finite never cause a panic (an engine ends a sequence whose logits are NaN before it gets here):
//! NaN counts as minus infinity, which is probability zero; plus infinity as the largest finite number. If no token is
//! left, [`Sampling::possible_law_with`] returns `None`, and the others give a point mass on the lowest token that the
//! settings allow, or on token 0 if they allow none. Tokens of settings or context beyond the row are ignored, because
//! a draft model's row may be shorter.

mod constraint;
mod edit;
mod exponential;
mod filter;
mod law;
mod problem;
mod raw;
mod reduced;
mod token_set;

pub use constraint::{Constrained, Constraint, Ending};
use exponential::{power_of_two, weigh};
pub use law::Law;
pub use problem::SamplingProblem;
pub use raw::{RawLaw, log_probability};
pub use token_set::TokenSet;

use std::f64::consts::LOG2_E;

use crate::Token;

/// How the next token is chosen from the model's logits. The default changes nothing: temperature 1, all else off.
///
/// ```
/// use foretoken_speculation::{Context, Sampling};
/// let sampling = Sampling { temperature: 0.5, top_k: 2, ..Sampling::default() };
/// let law = sampling.law(&[0.0, 1.0, 2.0], &Context::EMPTY);
/// assert_eq!(law.tokens(), [1, 2]);
/// assert!((law.probability(2) / law.probability(1) - f64::exp(2.0)).abs() < 1e-12);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this; 0 is greedy: the most probable token for certain.
    pub temperature: f32,
    /// Only the k most probable tokens; 0 is off.
    pub top_k: usize,
    /// Only the smallest set of most probable tokens that has this mass, the crossing one included; 1 is off.
    pub top_p: f32,
    /// Only tokens at least this fraction as probable as the most probable one; 0 is off.
    pub min_p: f32,
    /// Only the tokens nearest to the entropy that together have this mass (Meister et al. 2022); 1 is off.
    pub typical_p: f32,
    /// Logits of tokens written before are divided by this if positive, multiplied if negative; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens written before; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from logits once for each time that the token was written before; 0 is off.
    pub frequency_penalty: f32,
    /// How many last tokens, prompt included, the three penalties count (llama.cpp's `--repeat-last-n`; 0 switches them
    /// off); `None` is all of them.
    pub penalty_window: Option<usize>,
    /// Added to the logits of tokens; minus infinity bans.
    pub logit_bias: Vec<(Token, f32)>,
    /// Tokens that are never written.
    pub banned_tokens: Vec<Token>,
    /// End tokens are banned until so many tokens were generated.
    pub tokens_min: usize,
    /// The tokens that end a sequence.
    pub end_tokens: Vec<Token>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: None,
            logit_bias: Vec::new(),
            banned_tokens: Vec::new(),
            tokens_min: 0,
            end_tokens: Vec::new(),
        }
    }
}

/// What was written before the token to be chosen.
#[derive(Copy, Clone, Debug)]
pub struct Context<'a> {
    /// Prompt and output, up to and with the pending token (the root of the tree).
    pub tokens: &'a [Token],
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// The tokens of the tree from below the root to the node whose law is asked for; empty at the root.
    pub path: &'a [Token],
    /// The constraint on the output, if there is one.
    pub constraint: Option<&'a Constrained>,
}

impl Context<'_> {
    /// Nothing was written, and there is no constraint.
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

/// Memory of [`Sampling::law_with`], reused from call to call. It carries no state from one to the next.
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
    /// Tokens that are left, with what the other filters rank them by.
    ranked: Vec<filter::Ranked>,
    /// A row of a reduced vocabulary, expanded to the whole one.
    row: Vec<f32>,
    /// Memory of the laws themselves, which is returned when they are dropped.
    laws: law::LawPool,
}

impl Scratch {
    /// Writes into `out` (cleared first) the `count` most probable tokens of the whole row whose law was asked for
    /// last, as its settings left it: the best first, the lowest of equals first, no impossible ones. `row_tokens`: the
    /// tokens of the row, where these were not all ([`Sampling::law_of_reduced`]).
    pub fn likeliest(&self, count: usize, row_tokens: Option<&[Token]>, out: &mut Vec<Token>) {
        out.clear();
        let mut least = f32::NEG_INFINITY;
        for (token, &logit) in (0..).zip(&self.logits) {
            if logit > least {
                let at = out.partition_point(|&better: &Token| self.logits[better as usize] >= logit);
                out.truncate(count.saturating_sub(1));
                out.insert(at, token);
                least = if out.len() == count { self.logits[out[count - 1] as usize] } else { least };
            }
        }
        // A row that was expanded to the whole vocabulary is longer, or its tokens are numbered alike.
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

    /// The same with reused memory.
    ///
    /// # Panics
    ///
    /// As [`Sampling::law`].
    pub fn law_with(&self, logits: &[f32], context: &Context<'_>, scratch: &mut Scratch) -> Law {
        let law = self.possible_law_with(logits, context, scratch);
        law.unwrap_or_else(|| Law::point(self.lowest_allowed(logits.len(), context, scratch)))
    }

    /// The same, or `None` if no token is possible: the row holds no finite logit, or the settings leave none.
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
        if floor == f32::NEG_INFINITY && self.top_p >= 1.0 && self.min_p <= 0.0 && self.typical_p >= 1.0 {
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

    /// The one token that the settings and the constraint leave possible here, of a vocabulary of so many; `None` where
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
    /// because there is no such filter, or because logits are changed before it.
    pub fn largest_needed(&self, context: &Context<'_>) -> Option<usize> {
        let needed = if self.temperature == 0.0 { 1 } else { self.top_k };
        (!self.changes_logits(context) && needed > 0).then_some(needed)
    }

    /// Whether bias, penalties, bans or a constraint may change logits.
    fn changes_logits(&self, context: &Context<'_>) -> bool {
        context.constraint.is_some()
            || (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)
            || !self.logit_bias.is_empty()
            || !self.banned_tokens.is_empty()
            || (self.tokens_min > 0 && !self.end_tokens.is_empty())
    }

    /// The law of a row of which only the largest logits are known: all that are at least its k-th largest, ascending
    /// by token, k of top-k or more of them above minus infinity, and fewer than all. Equal to the bit to that of the
    /// whole row.
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

    /// The weight of a logit; the largest one has weight 1.
    fn weight_below(&self, largest: f64) -> impl Fn(f32) -> f64 + use<> {
        let scale = self.scale();
        move |logit| power_of_two(scale * (f64::from(logit) - largest))
    }

    /// The law of the tokens that top-k left, after the filters that follow it.
    fn law_of_kept(&self, scratch: &mut Scratch) -> Option<Law> {
        filter::top_p(&mut scratch.kept, f64::from(self.top_p), &mut scratch.ranked);
        filter::min_p(&mut scratch.kept, f64::from(self.min_p));
        filter::typical_p(&mut scratch.kept, f64::from(self.typical_p), &mut scratch.ranked);
        scratch.laws.law(scratch.kept.iter().copied()).map(|(law, _)| law)
    }
}

/// The index of the largest logit, the lowest of equals. NaN is ignored; of a row of NaN alone it is 0.
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
    // Chunk by chunk without an early exit, likewise.
    let found = |chunk: &[f32]| chunk.iter().fold(false, |found, &logit| found | (logit == largest));
    let first = logits.chunks(filter::CHUNK).position(found).unwrap_or(0) * filter::CHUNK;
    logits[first..].iter().position(|&logit| logit == largest).map_or(0, |i| first + i)
}

/// A logit as it counts: NaN as minus infinity, plus infinity as the largest finite number.
fn sane(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) }
}

#[cfg(test)]
mod tests;
