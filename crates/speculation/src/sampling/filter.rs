//! The filters that shorten a law: top-k, top-p, min-p, typical-p, in this order, which is transformers'.
//!
//! None of them sorts the vocabulary. Top-k needs only the k-th largest logit, found in one scan with a rising floor.
//! Top-p sorts the few hundred most probable tokens, then twice as many, until they have the mass. Typical-p does sort
//! all tokens that are left, which are the whole vocabulary only if no other filter is on.
//!
//! Weights here are exp of the scaled logits, not normalized; every filter keeps at least one token. Of ties top-p
//! takes the lower token first; min-p and typical-p keep all of them.

use std::cmp::Ordering;

use super::Sampling;
use crate::Token;

/// A token that is left, with its weight and the number by which it is ranked.
#[derive(Copy, Clone, Debug)]
pub(super) struct Ranked {
    token: Token,
    weight: f64,
    rank: f64,
}

impl Ranked {
    /// The order by rank, then by token: a total order, so that selection is deterministic.
    fn order(&self, other: &Ranked) -> Ordering {
        self.rank.total_cmp(&other.rank).then(self.token.cmp(&other.token))
    }
}

/// How many logits are tested together: enough to amortize the test of a chunk.
pub(super) const CHUNK: usize = 64;

/// Whether a chunk holds a logit of at least the floor. There is no early exit, so that this compiles to vector code:
/// in a vocabulary of 100 thousand tokens nearly every chunk is skipped, and this test is most of the time of a law.
pub(super) fn reaches(chunk: &[f32], floor: f32) -> bool {
    chunk.iter().fold(false, |found, &logit| found | (logit >= floor))
}

/// The k-th largest logit; minus infinity if all are to be kept.
///
/// Candidates above the floor are collected until there are 2k, then halved by selection, which raises the floor. On
/// ordinary rows the floor is soon so high that the scan is one comparison a token.
pub(super) fn top_k_floor(logits: &[f32], k: usize, best: &mut Vec<f32>) -> f32 {
    if k == 0 || k >= logits.len() {
        return f32::NEG_INFINITY;
    }
    let halve = |best: &mut Vec<f32>| {
        let (_, &mut floor, _) = best.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        best.truncate(k);
        floor
    };
    best.clear();
    let mut floor = f32::NEG_INFINITY;
    for chunk in logits.chunks(CHUNK) {
        if best.len() >= k && !reaches(chunk, floor) {
            continue;
        }
        for &logit in chunk {
            if logit > floor || best.len() < k {
                best.push(logit);
                if best.len() >= 2 * k {
                    floor = halve(best);
                }
            }
        }
    }
    if best.len() > k { halve(best) } else { best.iter().copied().fold(f32::INFINITY, f32::min) }
}

/// Whether a filter after top-k is on.
pub(super) fn is_any_on(sampling: &Sampling) -> bool {
    sampling.top_p < 1.0 || sampling.min_p > 0.0 || sampling.typical_p < 1.0
}

/// Applies the filters after top-k.
pub(super) fn apply(sampling: &Sampling, kept: &mut Vec<(Token, f64)>, ranked: &mut Vec<Ranked>) {
    top_p(kept, f64::from(sampling.top_p), ranked);
    min_p(kept, f64::from(sampling.min_p));
    typical_p(kept, f64::from(sampling.typical_p), ranked);
}

/// Keeps each token whose more probable tokens together have less than `mass`.
fn top_p(kept: &mut Vec<(Token, f64)>, mass: f64, ranked: &mut Vec<Ranked>) {
    if mass >= 1.0 {
        return;
    }
    let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
    ranked.clear();
    ranked.extend(kept.iter().map(|&(token, weight)| Ranked { token, weight, rank: -weight }));
    let mut reached = 0.0;
    let mut len = 0;
    let mut sorted = 0;
    let mut chunk = 256;
    'filling: while sorted < ranked.len() {
        let rest = &mut ranked[sorted..];
        if chunk < rest.len() {
            rest.select_nth_unstable_by(chunk, Ranked::order);
        }
        let end = chunk.min(rest.len());
        rest[..end].sort_unstable_by(Ranked::order);
        for item in &rest[..end] {
            len += 1;
            reached += item.weight;
            if reached >= mass * total {
                break 'filling;
            }
        }
        sorted += end;
        chunk *= 2;
    }
    keep_first(kept, ranked, len.max(1));
}

/// Keeps the tokens at least `fraction` as probable as the most probable.
fn min_p(kept: &mut Vec<(Token, f64)>, fraction: f64) {
    if fraction <= 0.0 {
        return;
    }
    let largest = kept.iter().map(|&(_, weight)| weight).fold(0.0, f64::max);
    kept.retain(|&(_, weight)| weight >= fraction * largest);
}

/// Keeps the tokens whose surprise is nearest to the entropy, until `mass` is reached, and all that tie with the last
/// of them.
fn typical_p(kept: &mut Vec<(Token, f64)>, mass: f64, ranked: &mut Vec<Ranked>) {
    if mass >= 1.0 {
        return;
    }
    let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
    let surprise = |weight: f64| -(weight / total).ln();
    // A share that underflows to 0 adds no entropy: 0 ln 0 is 0.
    let term = |weight: f64| if weight / total > 0.0 { weight / total * surprise(weight) } else { 0.0 };
    let entropy: f64 = kept.iter().map(|&(_, weight)| term(weight)).sum();
    ranked.clear();
    ranked.extend(kept.iter().map(|&(token, weight)| {
        let rank = (surprise(weight) - entropy).abs();
        Ranked { token, weight, rank }
    }));
    ranked.sort_unstable_by(Ranked::order);
    let mut reached = 0.0;
    let mut last = ranked.len() - 1;
    for (i, item) in ranked.iter().enumerate() {
        reached += item.weight;
        if reached >= mass * total {
            last = i;
            break;
        }
    }
    let limit = ranked[last].rank;
    let len = ranked.iter().take_while(|item| item.rank <= limit).count();
    keep_first(kept, ranked, len);
}

/// Keeps the first `len` of the ranked tokens, in ascending order of tokens.
fn keep_first(kept: &mut Vec<(Token, f64)>, ranked: &mut [Ranked], len: usize) {
    kept.clear();
    kept.extend(ranked[..len].iter().map(|item| (item.token, item.weight)));
    kept.sort_unstable_by_key(|&(token, _)| token);
}
