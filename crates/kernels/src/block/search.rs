//! The search for the scales of a large block: least squares over several roundings.
//!
//! The idea: once every element is rounded to some level, the best scale (and minimum) for these levels has a closed
//! form, weighted least squares; so try several roundings, a little finer and a little coarser than the plain one, and
//! keep the one whose best scale leaves the least error. The scales of the parts are then rounded themselves, to small
//! whole numbers under one f16 scale; each tries its neighbours too, and the elements are rounded last, to the levels
//! that a reader will see.
//!
//! The block is first scaled by a power of two so that its largest element lies between 1 and 4: no square overflows.
//! Every sum has eight lanes in an order that the source fixes, so that all machines write the same bytes.
//!
//! Left out: importance matrices, and any search over the f16 scale itself.

use half::f16;

use super::{Format, Large};
use crate::dtype::f16_to_f32;

/// Lanes of the sums below.
const LANES: usize = 8;

/// Tenths of a level by which the roundings that are tried differ from the plain one.
const AFFINE_TENTHS: std::ops::RangeInclusive<i32> = -10..=10;
const SYMMETRIC_TENTHS: std::ops::RangeInclusive<i32> = -9..=9;

/// Greatest scale and minimum of a part of Q4_K.
const SIX_BITS_MAX: f32 = 63.0;

/// Adding this to a number between -2^21 and 2^21 leaves the nearest whole number in its low bits.
const ROUNDER: f32 = 12_582_912.0;

#[inline(always)]
fn round(x: f32) -> f32 {
    (x + ROUNDER) - ROUNDER
}

#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    let four = [lanes[0] + lanes[4], lanes[1] + lanes[5], lanes[2] + lanes[6], lanes[3] + lanes[7]];
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Adds up what `term` says of each index below `N`, for three sums at once.
#[inline(always)]
fn sums<const N: usize>(term: impl Fn(usize) -> [f32; 3]) -> [f32; 3] {
    // All terms first, then the sums: two plain loops, which become vector code where one loop of both does not.
    let mut terms = [[0f32; N]; 3];
    for i in 0..N {
        [terms[0][i], terms[1][i], terms[2][i]] = term(i);
    }
    terms.map(|terms| {
        let mut lanes = [0f32; LANES];
        for chunk in terms.chunks_exact(LANES) {
            for lane in 0..LANES {
                lanes[lane] += chunk[lane];
            }
        }
        total(lanes)
    })
}

/// A block scaled by a power of two.
struct Scaled {
    values: [f32; 256],
    /// 2^exponent of these is one of the block.
    exponent: i32,
}

/// Scales a block; `None` if each of its elements is nearer to 0 than to any other number that a block can hold.
fn scaled(values: &[f32; 256]) -> Option<Scaled> {
    let largest = values.iter().fold(0f32, |largest, value| if value.abs() > largest { value.abs() } else { largest });
    // Half of the least f16, which is the least step.
    if largest <= power_of_two(-25) {
        return None;
    }
    // A normal number, so its exponent is where it seems; 127 has no reciprocal that is normal.
    let exponent = ((largest.to_bits() >> 23) as i32 - 127).min(126);
    let factor = power_of_two(-exponent);
    Some(Scaled { values: values.map(|value| value * factor), exponent })
}

/// 2^`exponent` of -126..=127.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

impl Scaled {
    /// The least f16 not below `scale` of this block (the greatest finite one if there is none), as bits and as what it
    /// is here. Rounding up lets the largest scale of a part fit, also where f16 has few bits left.
    fn half(&self, scale: f32) -> (u16, f32) {
        // In the block's own size. What overflows is infinite, and what underflows is 0: both are right below.
        let own = f64::from(scale) * 2f64.powi(self.exponent);
        let mut half = f16::from_f64(own);
        if half.to_f64() < own {
            half = f16::from_bits(half.to_bits() + 1);
        }
        let bits = half.to_bits().min(f16::MAX.to_bits());
        (bits, (f64::from(f16_to_f32(bits)) * 2f64.powi(-self.exponent)) as f32)
    }
}

/// The elements of a part and what an error in each counts.
struct Part<'a, const N: usize> {
    values: &'a [f32; N],
    weights: [f32; N],
    /// Sums over the part: weights, weighted values, weighted squares.
    sums: [f32; 3],
}

impl<'a, const N: usize> Part<'a, N> {
    /// Large elements count more than small ones, since products do not divide an error by the size of a weight.
    fn new(values: &'a [f32]) -> Self {
        let values: &[f32; N] = values.try_into().expect("a part");
        let [squares, ..] = sums::<N>(|i| [values[i] * values[i], 0.0, 0.0]);
        let typical = (squares / N as f32).sqrt();
        let weights = values.map(|value| typical + value.abs());
        let sums = sums::<N>(|i| {
            let weighted = weights[i] * values[i];
            [weights[i], weighted, weighted * values[i]]
        });
        Self { values, weights, sums }
    }

    /// The weighted squared error of `scale * level - minimum`, each element at its nearest level of `low..=high`.
    #[inline(always)]
    fn error(&self, scale: f32, minimum: f32, low: f32, high: f32) -> f32 {
        let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
        let [error, ..] = sums::<N>(|i| {
            let level = round(clamp((self.values[i] + minimum) * inverse, low, high));
            let off = scale * level - minimum - self.values[i];
            [self.weights[i] * off * off, 0.0, 0.0]
        });
        error
    }
}

/// Levels written as unsigned quants.
fn write_levels(values: &[f32], scale: f32, minimum: f32, low: f32, high: f32, quants: &mut [u8]) {
    let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
    for (quant, value) in quants.iter_mut().zip(values) {
        let level = clamp((value + minimum) * inverse, low, high) - low;
        *quant = (level + ROUNDER).to_bits() as u8;
    }
}

/// The block of Q4_K nearest to these finite values.
pub(super) fn affine(values: &[f32; 256]) -> Large {
    let mut block = Large { quants: [0; 256], scales: [0; 16], minimums: [0; 16], scale: 0, minimum: 0 };
    let Some(scaled) = scaled(values) else { return block };
    let parts: [Part<'_, 32>; 8] = std::array::from_fn(|j| Part::new(&scaled.values[j * 32..][..32]));
    let fits = parts.each_ref().map(affine_fit);
    let greatest = fits.iter().fold([0f32; 2], |[s, m], fit| [s.max(fit.0), m.max(fit.1)]);
    let (scale_bits, scale) = scaled.half(greatest[0] / SIX_BITS_MAX);
    let (minimum_bits, minimum) = scaled.half(greatest[1] / SIX_BITS_MAX);
    (block.scale, block.minimum) = (scale_bits, minimum_bits);
    for (j, (part, fit)) in parts.iter().zip(fits).enumerate() {
        let (s, m) = affine_neighbours(part, fit, scale, minimum);
        (block.scales[j], block.minimums[j]) = (s as i8, m as u8);
        let quants = &mut block.quants[j * 32..][..32];
        write_levels(part.values, scale * s, minimum * m, 0.0, 15.0, quants);
    }
    block
}

/// Scale and minimum, both at least 0, for which `scale * level - minimum` with levels 0..=15 is nearest to a part.
fn affine_fit(part: &Part<'_, 32>) -> (f32, f32) {
    let [weight, first, second] = part.sums;
    let low = part.values.iter().fold(0f32, |low, &value| if value < low { value } else { low });
    let high = part.values.iter().fold(f32::MIN, |high, &value| if value > high { value } else { high });
    if high <= low {
        return (0.0, -low);
    }
    let mut best = ((high - low) / 15.0, -low);
    let mut least = part.error(best.0, best.1, 0.0, 15.0);
    for tenths in AFFINE_TENTHS {
        let inverse = (15.0 + 0.1 * tenths as f32) / (high - low);
        let [level, square, product] = sums::<32>(|i| {
            let level = round(clamp((part.values[i] - low) * inverse, 0.0, 15.0));
            let weighted = part.weights[i] * level;
            [weighted, weighted * level, weighted * part.values[i]]
        });
        let determinant = weight * square - level * level;
        if determinant <= 0.0 {
            continue;
        }
        let mut fit =
            ((weight * product - first * level) / determinant, (level * product - square * first) / determinant);
        if fit.1 < 0.0 {
            fit = (product / square, 0.0);
        }
        let (s, m) = fit;
        // The square of (value - s level + m), written out.
        let error = second + 2.0 * (m * first - s * product - s * m * level) + s * s * square + m * m * weight;
        if s > 0.0 && error < least {
            (best, least) = (fit, error);
        }
    }
    best
}

/// The whole numbers near to a fit that leave the least error under the block's scale and minimum.
fn affine_neighbours(part: &Part<'_, 32>, fit: (f32, f32), scale: f32, minimum: f32) -> (f32, f32) {
    let near = |wanted: f32, unit: f32| if unit > 0.0 { round(clamp(wanted / unit, 0.0, SIX_BITS_MAX)) } else { 0.0 };
    let (s, m) = (near(fit.0, scale), near(fit.1, minimum));
    let (mut best, mut least) = ((s, m), f32::INFINITY);
    for s in [s, s - 1.0, s + 1.0] {
        for m in [m, m - 1.0, m + 1.0] {
            let inside = (0.0..=SIX_BITS_MAX).contains(&s) && (0.0..=SIX_BITS_MAX).contains(&m);
            let error = if inside { part.error(scale * s, minimum * m, 0.0, 15.0) } else { f32::INFINITY };
            if error < least {
                (best, least) = ((s, m), error);
            }
        }
    }
    best
}

/// The block of Q6_K nearest to these finite values.
pub(super) fn symmetric(values: &[f32; 256]) -> Large {
    let zero = Format::Q6K.offset() as u8;
    let mut block = Large { quants: [zero; 256], scales: [0; 16], minimums: [0; 16], scale: 0, minimum: 0 };
    let Some(scaled) = scaled(values) else { return block };
    let parts: [Part<'_, 16>; 16] = std::array::from_fn(|j| Part::new(&scaled.values[j * 16..][..16]));
    let fits = parts.each_ref().map(symmetric_fit);
    let greatest = fits.iter().fold(0f32, |greatest, &fit| if fit.abs() > greatest.abs() { fit } else { greatest });
    // The greatest scale becomes -128: the block's scale has the opposite sign.
    let (bits, magnitude) = scaled.half(greatest.abs() / 128.0);
    let negative = greatest > 0.0;
    block.scale = if negative { bits | 0x8000 } else { bits };
    let scale = if negative { -magnitude } else { magnitude };
    for (j, (part, fit)) in parts.iter().zip(fits).enumerate() {
        let s = symmetric_neighbours(part, fit, scale);
        block.scales[j] = s as i8;
        write_levels(part.values, scale * s, 0.0, -32.0, 31.0, &mut block.quants[j * 16..][..16]);
    }
    block
}

/// The scale, of either sign, for which `scale * level` with levels -32..=31 is nearest to a part.
fn symmetric_fit(part: &Part<'_, 16>) -> f32 {
    let extreme = part.values.iter().fold(0f32, |most, &value| if value.abs() > most.abs() { value } else { most });
    // Less than this beside a largest element of 1 or more is 0 in any block.
    if extreme.abs() < power_of_two(-30) {
        return 0.0;
    }
    let (mut best, mut most) = (0.0, 0.0);
    for tenths in SYMMETRIC_TENTHS {
        // The extreme element goes to the side that has one level more.
        let inverse = -(32.0 + 0.1 * tenths as f32) / extreme;
        let [square, product, _] = sums::<16>(|i| {
            let level = round(clamp(part.values[i] * inverse, -32.0, 31.0));
            let weighted = part.weights[i] * level;
            [weighted * level, weighted * part.values[i], 0.0]
        });
        // The best scale takes product^2 / square off the error.
        if square > 0.0 && product * product > most * square {
            (best, most) = (product / square, product * product / square);
        }
    }
    best
}

/// The whole number near to a fit that leaves the least error under the block's scale.
fn symmetric_neighbours(part: &Part<'_, 16>, fit: f32, scale: f32) -> f32 {
    if scale == 0.0 {
        return 0.0;
    }
    let s = round(clamp(fit / scale, -128.0, 127.0));
    let (mut best, mut least) = (s, f32::INFINITY);
    for s in [s, s - 1.0, s + 1.0] {
        let error = if (-128.0..=127.0).contains(&s) { part.error(scale * s, 0.0, -32.0, 31.0) } else { f32::INFINITY };
        if error < least {
            (best, least) = (s, error);
        }
    }
    best
}
