//! The search for the scales of a block: least squares over several roundings.
//!
//! Once every element is rounded to some level, the best scale (and minimum) for these levels has a closed form,
//! weighted least squares. So several roundings are tried, a little finer and a little coarser than the plain one, and
//! the one whose best scale leaves the smallest error is kept. In large blocks the scales of the parts are then rounded
//! themselves, to small integers under one f16 scale; for each of them the adjacent integers are tried, too. The
//! elements are rounded last, to the levels that a reader will see. `affine.rs` does so for formats with a minimum,
//! `symmetric.rs` for those without.
//!
//! The block is first scaled by a power of two so that its largest element lies between 1 and 4: no square overflows.
//! Every sum has eight lanes in an order that the source fixes, so that all machines write the same bytes.
//!
//! The weight of an error depends on the element and, if importances were measured, on the importance of its column.
//! Only the ratios of importances within a part matter.
//!
//! The f16 scale itself is not searched for, and errors are not balanced against each other across a row.

pub(super) mod affine;
pub(super) mod symmetric;

use half::f16;

use super::IQ4_VALUES;
use crate::dtype::f16_to_f32;

/// Lanes of the sums below.
const LANES: usize = 8;

/// Adding this to a number between -2^21 and 2^21 leaves the nearest integer in its low bits.
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

/// Adds up `term` over the indices below `N`, for three sums at once.
#[inline(always)]
fn sums<const N: usize>(term: impl Fn(usize) -> [f32; 3]) -> [f32; 3] {
    // All terms are computed first, then the sums: compilers vectorize two plain loops, but not one loop of both.
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
struct Scaled<const N: usize> {
    values: [f32; N],
    /// The block's values are these times 2^exponent.
    exponent: i32,
}

/// Scales a block; `None` if each of its elements is nearer to 0 than to any other number that a block can hold.
fn scaled<const N: usize>(values: &[f32; N]) -> Option<Scaled<N>> {
    let largest = values.iter().fold(0f32, |largest, value| if value.abs() > largest { value.abs() } else { largest });
    // This is half of the smallest positive f16, which is the smallest step.
    if largest <= power_of_two(-25) {
        return None;
    }
    // The number is normal, so these bits are its exponent; 2^127 has no normal reciprocal.
    let exponent = ((largest.to_bits() >> 23) as i32 - 127).min(126);
    let factor = power_of_two(-exponent);
    Some(Scaled { values: values.map(|value| value * factor), exponent })
}

/// 2^`exponent`, for exponents in -126..=127.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

impl<const N: usize> Scaled<N> {
    /// The smallest f16 not below `scale` in the block's own size (the largest finite f16 if there is none), as bits
    /// and as a scaled number. By rounding up the largest scale of a part fits, even if the f16 is denormal and has few
    /// bits.
    fn ceil_f16(&self, scale: f32) -> (u16, f32) {
        // This is the scale in the block's own size. An overflow gives infinity and an underflow 0, which the code
        // below treats correctly.
        let unscaled = f64::from(scale) * 2f64.powi(self.exponent);
        let mut half = f16::from_f64(unscaled);
        if half.to_f64() < unscaled {
            half = f16::from_bits(half.to_bits() + 1);
        }
        let bits = half.to_bits().min(f16::MAX.to_bits());
        (bits, self.to_scaled(bits))
    }

    /// The finite f16 nearest to `number` in the block's own size, as bits and as a scaled number.
    fn nearest_f16(&self, number: f32) -> (u16, f32) {
        let unscaled = f64::from(number) * 2f64.powi(self.exponent);
        let bits = f16::from_f64(unscaled.clamp(f16::MIN.to_f64(), f16::MAX.to_f64())).to_bits();
        (bits, self.to_scaled(bits))
    }

    /// An f16 of the block as a scaled number.
    fn to_scaled(&self, bits: u16) -> f32 {
        (f64::from(f16_to_f32(bits)) * 2f64.powi(-self.exponent)) as f32
    }
}

/// The levels of a format: the values that its quants stand for, before any scale.
trait Levels: Copy {
    /// The level nearest to `x`.
    fn nearest(self, x: f32) -> f32;

    /// The quant that stands for the level nearest to `x`.
    fn quant(self, x: f32) -> u8;
}

/// The integers from `low` to `high`; the quant of `low` is 0.
#[derive(Clone, Copy)]
struct Uniform {
    low: f32,
    high: f32,
}

impl Levels for Uniform {
    #[inline(always)]
    fn nearest(self, x: f32) -> f32 {
        round(clamp(x, self.low, self.high))
    }

    #[inline(always)]
    fn quant(self, x: f32) -> u8 {
        (clamp(x, self.low, self.high) - self.low + ROUNDER).to_bits() as u8
    }
}

/// The sixteen values of IQ4, closer to each other near 0.
#[derive(Clone, Copy)]
struct NonLinear;

/// The points at which the nearest of the sixteen values changes to the next, each with the difference of the two.
const THRESHOLDS: [(f32, f32); 15] = {
    let mut thresholds = [(0.0, 0.0); 15];
    let mut i = 0;
    while i < 15 {
        let (low, high) = (IQ4_VALUES[i] as f32, IQ4_VALUES[i + 1] as f32);
        thresholds[i] = ((low + high) / 2.0, high - low);
        i += 1;
    }
    thresholds
};

impl Levels for NonLinear {
    #[inline(always)]
    fn nearest(self, x: f32) -> f32 {
        // The differences are added up, which is exact and needs no table lookup for each element.
        let mut level = f32::from(IQ4_VALUES[0]);
        for (middle, step) in THRESHOLDS {
            level += if x > middle { step } else { 0.0 };
        }
        level
    }

    #[inline(always)]
    fn quant(self, x: f32) -> u8 {
        THRESHOLDS.iter().map(|(middle, _)| u8::from(x > *middle)).sum()
    }
}

/// Minimum importance of an element, relative to the most important one of its part: an element that never mattered
/// while importances were measured may matter later.
const IMPORTANCE_MIN: f32 = 1e-6;

/// Importances relative to the largest; all equal if none is above 0.
fn relative_importances<const N: usize>(importance: &[f32]) -> [f32; N] {
    let importance: &[f32; N] = importance.try_into().expect("as many as a part has elements");
    let largest = importance.iter().fold(0f32, |largest, &x| if x > largest { x } else { largest });
    if largest > 0.0 { importance.map(|x| (x / largest).max(IMPORTANCE_MIN)) } else { [1.0; N] }
}

/// The elements of a part and the weight of an error in each.
struct Part<'a, const N: usize> {
    values: &'a [f32; N],
    weights: [f32; N],
    /// Sums over the part: weights, weighted values, weighted squares.
    sums: [f32; 3],
}

impl<'a, const N: usize> Part<'a, N> {
    /// Part `j` of a block. An error in a large element has a higher weight, although products depend on absolute
    /// errors alone.
    fn new(block: &'a [f32], importance: Option<&[f32]>, j: usize) -> Self {
        let range = j * N..(j + 1) * N;
        let values: &[f32; N] = block[range.clone()].try_into().expect("a part");
        let [squares, ..] = sums::<N>(|i| [values[i] * values[i], 0.0, 0.0]);
        let typical = (squares / N as f32).sqrt();
        let mut weights = values.map(|value| typical + value.abs());
        if let Some(importance) = importance {
            weights
                .iter_mut()
                .zip(relative_importances::<N>(&importance[range]))
                .for_each(|(weight, relative)| *weight *= relative);
        }
        let sums = sums::<N>(|i| {
            let weighted = weights[i] * values[i];
            [weights[i], weighted, weighted * values[i]]
        });
        Self { values, weights, sums }
    }

    /// The weighted squared error of `scale * level - minimum`, each element at its nearest level.
    #[inline(always)]
    fn error(&self, scale: f32, minimum: f32, levels: impl Levels) -> f32 {
        let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
        let [error, ..] = sums::<N>(|i| {
            let level = levels.nearest((self.values[i] + minimum) * inverse);
            let difference = scale * level - minimum - self.values[i];
            [self.weights[i] * difference * difference, 0.0, 0.0]
        });
        error
    }

    /// The quants of the elements at their nearest levels.
    fn write(&self, scale: f32, minimum: f32, levels: impl Levels, quants: &mut [u8]) {
        let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
        for (quant, value) in quants.iter_mut().zip(self.values) {
            *quant = levels.quant((value + minimum) * inverse);
        }
    }
}
