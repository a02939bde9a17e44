//! Levels with a scale of either sign: `scale * level`.
//!
//! Large blocks (Q3_K, Q6_K, IQ4_XS) have a small integer for the scale of each part. Small blocks (Q4_0, Q5_0, IQ4_NL)
//! are one part whose scale is an f16. There is one level more on the negative side, which the element of largest
//! magnitude gets: that determines the sign of the scale.

use super::super::{Format, Large, Small};
use super::{Levels, NonLinear, Part, Uniform, clamp, power_of_two, round, scaled, sums};

/// The levels that are tried for the largest element: near `end`, `steps` steps of `size` to either side.
#[derive(Clone, Copy)]
struct Candidates {
    end: f32,
    steps: i32,
    size: f32,
}

/// The candidates of formats whose levels are integers.
const fn uniform(end: f32) -> Candidates {
    Candidates { end, steps: 9, size: 0.1 }
}

/// The candidates of the sixteen values of IQ4.
const NON_LINEAR: Candidates = Candidates { end: -127.0, steps: 7, size: 4.0 };

/// The block of Q3_K, Q6_K or IQ4_XS nearest to these finite values.
pub(in super::super) fn large(format: Format, values: &[f32; 256], importance: Option<&[f32]>) -> Large {
    match format {
        Format::Q3K => parts::<16, 16>(values, importance, Uniform { low: -4.0, high: 3.0 }, uniform(-4.0), 32.0),
        Format::Q6K => parts::<16, 16>(values, importance, Uniform { low: -32.0, high: 31.0 }, uniform(-32.0), 128.0),
        _ => parts::<32, 8>(values, importance, NonLinear, NON_LINEAR, 32.0),
    }
}

/// A block of `P` parts of `N` elements, whose scales are integers from `-limit` to `limit - 1`.
#[inline(always)]
fn parts<const N: usize, const P: usize>(
    values: &[f32; 256],
    importance: Option<&[f32]>,
    levels: impl Levels,
    candidates: Candidates,
    limit: f32,
) -> Large {
    let zero = levels.quant(0.0);
    let mut block = Large { quants: [zero; 256], scales: [0; 16], minimums: [0; 16], scale: 0, minimum: 0 };
    let Some(scaled) = scaled(values) else { return block };
    let parts: [Part<'_, N>; P] = std::array::from_fn(|j| Part::new(&scaled.values, importance, j));
    let fits = parts.each_ref().map(|part| fit(part, levels, candidates));
    let greatest = fits.iter().fold(0f32, |greatest, &fit| if fit.abs() > greatest.abs() { fit } else { greatest });
    // The largest scale becomes the most negative integer: the block's scale has the opposite sign.
    let (bits, magnitude) = scaled.ceil_f16(greatest.abs() / limit);
    let negative = greatest > 0.0;
    block.scale = if negative { bits | 0x8000 } else { bits };
    let scale = if negative { -magnitude } else { magnitude };
    for (j, (part, fit)) in parts.iter().zip(fits).enumerate() {
        let s = best_neighbour(part, levels, fit, scale, limit);
        block.scales[j] = s as i8;
        part.write(scale * s, 0.0, levels, &mut block.quants[j * N..][..N]);
    }
    block
}

/// The block of Q4_0, Q5_0 or IQ4_NL nearest to these finite values.
pub(in super::super) fn small(format: Format, values: &[f32; 32], importance: Option<&[f32]>) -> Small {
    match format {
        Format::Q4_0 => one(values, importance, Uniform { low: -8.0, high: 7.0 }, uniform(-8.0)),
        Format::Q5_0 => one(values, importance, Uniform { low: -16.0, high: 15.0 }, uniform(-16.0)),
        _ => one(values, importance, NonLinear, NON_LINEAR),
    }
}

/// A block that is one part.
#[inline(always)]
fn one(values: &[f32; 32], importance: Option<&[f32]>, levels: impl Levels, candidates: Candidates) -> Small {
    let mut block = Small { quants: [levels.quant(0.0); 32], scale: 0, minimum: 0 };
    let Some(scaled) = scaled(values) else { return block };
    let part = Part::<'_, 32>::new(&scaled.values, importance, 0);
    let (bits, scale) = scaled.nearest_f16(fit(&part, levels, candidates));
    block.scale = bits;
    part.write(scale, 0.0, levels, &mut block.quants);
    block
}

/// The scale, of either sign, for which `scale * level` is nearest to a part.
#[inline(always)]
fn fit<const N: usize>(part: &Part<'_, N>, levels: impl Levels, candidates: Candidates) -> f32 {
    let extreme =
        part.values.iter().fold(0f32, |extreme, &value| if value.abs() > extreme.abs() { value } else { extreme });
    // A part below this is 0 in any block whose largest element is 1 or more.
    if extreme.abs() < power_of_two(-30) {
        return 0.0;
    }
    let (mut best, mut best_gain) = (0.0, 0.0);
    for step in -candidates.steps..=candidates.steps {
        let inverse = (candidates.end - candidates.size * step as f32) / extreme;
        let [square, product, _] = sums::<N>(|i| {
            let level = levels.nearest(part.values[i] * inverse);
            let weighted = part.weights[i] * level;
            [weighted * level, weighted * part.values[i], 0.0]
        });
        // The best scale reduces the error by product^2 / square.
        if square > 0.0 && product * product > best_gain * square {
            (best, best_gain) = (product / square, product * product / square);
        }
    }
    best
}

/// The integer near a fit that leaves the smallest error under the block's scale.
#[inline(always)]
fn best_neighbour<const N: usize>(part: &Part<'_, N>, levels: impl Levels, fit: f32, scale: f32, limit: f32) -> f32 {
    if scale == 0.0 {
        return 0.0;
    }
    let s = round(clamp(fit / scale, -limit, limit - 1.0));
    let (mut best, mut best_error) = (s, f32::INFINITY);
    for s in [s, s - 1.0, s + 1.0] {
        let inside = (-limit..=limit - 1.0).contains(&s);
        let error = if inside { part.error(scale * s, 0.0, levels) } else { f32::INFINITY };
        if error < best_error {
            (best, best_error) = (s, error);
        }
    }
    best
}
