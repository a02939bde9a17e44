//! Scores of a beam search: the logarithm of the model's law, changed by bias, penalties, bans and constraints.
//!
//! Unlike a law, scores are not normalized after they were changed, as in transformers (5.24, `_beam_search`), which
//! applies its processors to the log-softmax of the logits. Temperature and filters have no part. A score is a float
//! of 32 bits, rounded from a sum in 64.

use super::filter::{CHUNK, reaches};
use super::raw::RawLaw;
use super::{Context, Sampling, Scratch, sane};
use crate::Token;

impl Sampling {
    /// Writes into `best` (cleared first) the `count` tokens of the highest scores, with their scores: the highest
    /// first, of ties the lowest token, and no impossible ones. `count` is small relative to the row.
    ///
    /// Estimate: the sum of the row, which any log-probability needs (0.4 ms for 152 thousand logits), and one
    /// comparison for most tokens ([`RawLaw::top`]). Settings that change logits copy the row first.
    pub fn best_scores(
        &self,
        logits: &[f32],
        context: &Context<'_>,
        count: usize,
        scratch: &mut Scratch,
        best: &mut Vec<(Token, f32)>,
    ) {
        let raw = RawLaw::new(logits);
        if !self.changes_logits(context) {
            return highest(logits, |logit| raw.log_probability_of(logit), count, best);
        }
        let mut row = std::mem::take(&mut scratch.row);
        row.clear();
        row.extend(logits.iter().map(|&logit| raw.log_probability_of(logit)));
        self.edit(&row, context, scratch);
        scratch.row = row;
        highest(&scratch.logits, |score| score, count, best);
    }
}

/// The highest values of a row, each mapped by `score`, which ascends. Values that differ may have equal scores.
fn highest(row: &[f32], score: impl Fn(f32) -> f32, count: usize, best: &mut Vec<(Token, f32)>) {
    best.clear();
    let mut floor = f32::NEG_INFINITY;
    for (i, chunk) in row.chunks(CHUNK).enumerate() {
        if !reaches(chunk, floor) {
            continue;
        }
        for (token, value) in (i * CHUNK..).zip(chunk).map(|(token, &value)| (token as Token, sane(value))) {
            if value > floor {
                let at = best.partition_point(|&(_, better)| score(better) >= score(value));
                best.insert(at, (token, value));
                best.truncate(count);
                floor = if best.len() == count { best[count - 1].1 } else { floor };
            }
        }
    }
    best.iter_mut().for_each(|(_, value)| *value = score(*value));
    best.retain(|&(_, score)| score > f32::NEG_INFINITY);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All scores, sorted: the definition.
    fn naive(sampling: &Sampling, logits: &[f32], context: &Context<'_>, count: usize) -> Vec<(Token, f32)> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        let log = |&logit: &f32| (f64::from(logit) - f64::from(largest) - sum.ln()) as f32;
        let mut scratch = Scratch::default();
        sampling.edit(&logits.iter().map(log).collect::<Vec<_>>(), context, &mut scratch);
        let mut all: Vec<(Token, f32)> = (0..).zip(scratch.logits.iter().copied()).collect();
        all.retain(|&(_, score)| score > f32::NEG_INFINITY);
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(count);
        all
    }

    #[test]
    fn the_highest_scores_are_those_of_the_sorted_row() {
        let mut row: Vec<f32> = (0..3000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 400.0).collect();
        row[70] = f32::NEG_INFINITY;
        // Scores that are equal although the logits differ: the sum rounds the difference away.
        (row[5], row[9], row[2000]) = (0.250_000_03, 0.25, 9.0);
        let tokens = [3, 2000, 2000];
        let context = Context { tokens: &tokens, prompt_len: 1, ..Context::EMPTY };
        let settings = [
            Sampling::default(),
            Sampling { repetition_penalty: 1.5, ..Sampling::default() },
            Sampling { banned_tokens: vec![2000], logit_bias: vec![(9, 30.0)], ..Sampling::default() },
        ];
        for sampling in &settings {
            for (row, count) in [(&row[..], 8), (&row[..20], 20), (&row[..3], 9), (&[f32::NEG_INFINITY; 4], 2)] {
                let mut best = vec![(7, 7.0)];
                sampling.best_scores(row, &context, count, &mut Scratch::default(), &mut best);
                let expected = naive(sampling, row, &context, count);
                let tokens = |all: &[(Token, f32)]| all.iter().map(|&(token, _)| token).collect::<Vec<_>>();
                let differs = best.iter().zip(&expected).find(|(a, b)| (a.1 - b.1).abs() > 1e-6);
                assert!(tokens(&best) == tokens(&expected) && differs.is_none(), "{best:?} {expected:?}");
            }
        }
    }

    #[test]
    fn a_repeated_token_gets_a_lower_score_and_scores_are_not_normalized() {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        let context = Context { tokens: &[1], prompt_len: 1, ..Context::EMPTY };
        let mut best = Vec::new();
        sampling.best_scores(&[0.0, 0.0], &context, 2, &mut Scratch::default(), &mut best);
        let half = 0.5f32.ln();
        assert_eq!(best, [(0, half), (1, 2.0 * half)]);
    }
}
