//! The exponential and the softmax, the same on every instruction set.
//!
//! [`exp`] is a polynomial without fused operations, branches or tables, so compilers can vectorize it and every
//! machine gets the same bits. Its maximum relative error is 2e-7, measured in the test below.

use crate::{LANES, lane_sum};

/// e^x. It is 0 below -87.3 and clamped to e^88 above 88; NaN gives NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // e^x = 2^n * e^r with n = round(x / ln 2), |r| <= ln 2 / 2; ln 2 in two parts keeps r exact.
    // Adding 1.5 * 2^23 rounds to an integer in the low bits of the sum.
    let clamped = x.clamp(-87.336_54, 88.0);
    let shifted = clamped * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    let r = (clamped - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 5.000_000_3e-1;
    let e = p * (r * r) + r + 1.0;
    let scale = f32::from_bits((shifted.to_bits().wrapping_add(127)) << 23);
    let value = e * scale;
    if x < -87.336_54 { 0.0 } else { value }
}

/// Multiplies scores by `scale` and replaces each by e^(score - highest), in place. Returns the highest score and the
/// sum, which is taken over sixteen lanes by position.
///
/// The sum is NaN if all scores are -inf or one is NaN. Such a model is broken, and the sampling laws define what
/// follows.
#[inline(always)]
pub(crate) fn exponentials(scores: &mut [f32], scale: f32) -> (f32, f32) {
    let mut highest = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = scores.as_chunks_mut::<LANES>();
    for chunk in chunks.iter_mut() {
        for l in 0..LANES {
            chunk[l] *= scale;
            highest[l] = if chunk[l] > highest[l] { chunk[l] } else { highest[l] };
        }
    }
    rest.iter_mut().for_each(|score| *score *= scale);
    let highest = highest.iter().chain(rest.iter()).copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0f32; LANES];
    for chunk in chunks.iter_mut() {
        for l in 0..LANES {
            chunk[l] = exp(chunk[l] - highest);
            sums[l] += chunk[l];
        }
    }
    for (l, score) in rest.iter_mut().enumerate() {
        *score = exp(*score - highest);
        sums[l] += *score;
    }
    (highest, lane_sum(&sums))
}

/// The hyperbolic tangent: a polynomial near 0 (Cephes), 1 - 2 / (e^2x + 1) elsewhere. The maximum relative error is
/// 2e-7.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let square = x * x;
    let p = -5.704_988_7e-3;
    let p = p * square + 2.063_908_8e-2;
    let p = p * square - 5.373_971_5e-2;
    let p = p * square + 1.333_144_2e-1;
    let p = p * square - 3.333_328e-1;
    let near = p * square * x + x;
    let far = (1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0)).copysign(x);
    if magnitude < 0.625 { near } else { far }
}

/// Multiplies scores by `scale` and soft-caps them: cap * tanh(score * scale / cap).
#[inline(always)]
pub fn cap_scores(scores: &mut [f32], scale: f32, cap: f32) {
    for score in scores {
        *score = tanh(*score * scale / cap) * cap;
    }
}

/// Multiplies scores by `scale` and subtracts `slope` times their distance (ALiBi). The distance of the first score is
/// `distance`, and falls by one for each that follows.
#[inline(always)]
pub(crate) fn slope_scores(scores: &mut [f32], scale: f32, slope: f32, distance: usize) {
    for (i, score) in scores.iter_mut().enumerate() {
        *score = *score * scale - slope * (distance as i32 - i as i32) as f32;
    }
}

/// Multiplies scores by `scale` and adds to each its element of `biases`: the first score has element `first`, and each
/// that follows the next one. Scores before the first element have that one, and those behind the last one the last.
#[inline(always)]
pub fn bias_scores(scores: &mut [f32], scale: f32, biases: &[f32], first: isize) {
    let (count, len) = (scores.len() as isize, biases.len() as isize);
    let within = (-first).clamp(0, count) as usize..(len - first).clamp(0, count) as usize;
    let add = |scores: &mut [f32], bias: f32| scores.iter_mut().for_each(|score| *score = *score * scale + bias);
    add(&mut scores[..within.start], biases[0]);
    add(&mut scores[within.end..], biases[biases.len() - 1]);
    if !within.is_empty() {
        let own = &biases[(first + within.start as isize) as usize..][..within.len()];
        scores[within].iter_mut().zip(own).for_each(|(score, bias)| *score = *score * scale + bias);
    }
}

/// Turns scores into weights that sum to one, in place: the exponentials divided by their sum.
#[inline(always)]
pub fn softmax(scores: &mut [f32]) {
    let scale = 1.0 / exponentials(scores, 1.0).1;
    for score in scores {
        *score *= scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_in_ten_million() {
        let mut worst = 0f64;
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0;
            worst = worst.max((f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs());
        }
        assert!(worst < 2e-7, "worst relative error {worst}");
        assert_eq!((exp(0.0), exp(-100.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn biases_before_the_first_and_behind_the_last_are_these() {
        let biased = |first| {
            let mut scores = [1.0; 4];
            bias_scores(&mut scores, 2.0, &[10.0, 20.0, 30.0], first);
            scores.map(|score| score - 2.0)
        };
        assert_eq!(biased(0), [10.0, 20.0, 30.0, 30.0]);
        assert_eq!([biased(-2), biased(-9)], [[10.0, 10.0, 10.0, 20.0], [10.0; 4]]);
        assert_eq!([biased(2), biased(3)], [[30.0; 4]; 2]);
        bias_scores(&mut [], 1.0, &[1.0], -5);
    }

    #[test]
    fn tanh_is_within_two_in_ten_million() {
        let mut worst = 0f64;
        for i in (-20_000..20_000).filter(|i| *i != 0) {
            let x = i as f32 / 1000.0;
            worst = worst.max((f64::from(tanh(x)) / f64::from(x).tanh() - 1.0).abs());
        }
        assert!(worst < 2e-7, "worst relative error {worst}");
        assert_eq!((tanh(0.0), tanh(100.0), tanh(f32::NEG_INFINITY)), (0.0, 1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan());
    }
}
