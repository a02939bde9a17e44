//! Quantizes floats into blocks: the small formats by ggml's reference algorithm; the large ones, IQ4_NL, and all
//! formats with importances by the search of `search.rs`.
//!
//! Blocks are made of finite numbers only. A NaN counts as 0 and an infinity as the largest float before anything is
//! computed, and a scale beyond f16 becomes the largest f16, so that every block is dequantized to finite numbers.
//! Rounding avoids conversions that saturate: adding 2^23 to a number leaves its nearest integer in the low bits, and
//! compilers vectorize such loops.
//!
//! INT4 and MXFP4 are only read, not written.

use half::f16;

use super::search::{affine, symmetric};
use super::{Format, Small, assert_whole_blocks, pack};

impl Format {
    /// Whether [`quantize`] can make blocks of this format.
    pub const fn can_quantize(self) -> bool {
        !matches!(self, Format::Int4 | Format::Mxfp4)
    }
}

/// The index of the first value that blocks of a format cannot hold: one that is not finite, or beyond the largest
/// scale. Quantized, it would silently become another number.
///
/// # Panics
/// If the format is not one that [`Format::can_quantize`].
pub fn first_unrepresentable(format: Format, values: &[f32]) -> Option<usize> {
    // This is the largest magnitude of a quant, times that of its part's scale if parts have one. If there is a
    // minimum, it alone has to reach the smallest value.
    let steps = match format {
        Format::Q8_0 => 127.0,
        Format::Q4_0 => 8.0,
        Format::Q5_0 => 16.0,
        Format::Q4_1 | Format::Q5_1 => 1.0,
        Format::Iq4Nl => 127.0,
        Format::Q2K => 15.0,
        Format::Q4K | Format::Q5K => 63.0,
        Format::Q3K => 4.0 * 31.0,
        Format::Q6K => 32.0 * 127.0,
        Format::Iq4Xs => 127.0 * 31.0,
        Format::Int4 | Format::Mxfp4 => panic!("first_unrepresentable: {} is only read", format.name()),
    };
    let limit = f16::MAX.to_f32() * steps;
    values.iter().position(|value| value.is_nan() || value.abs() > limit)
}

/// Quantizes floats into blocks. Each block depends on its own elements only.
///
/// Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 have the bits of the Python package `gguf` wherever that is defined: if input and
/// scale are finite and the scale's reciprocal is not infinite. The others search for the scales with the smallest
/// squared error. NaN counts as 0 and infinities as the largest floats; scales saturate at the largest f16, so huge
/// values become smaller, but finite.
///
/// # Panics
/// If the format is not one that [`Format::can_quantize`], `bytes` is not a whole number of blocks, or `values` has not
/// as many elements as these blocks.
pub fn quantize(format: Format, values: &[f32], bytes: &mut [u8]) {
    assert!(format.can_quantize(), "quantize: {} is only read", format.name());
    assert_whole_blocks(format, bytes.len(), values.len());
    let blocks = values.chunks_exact(format.elements()).zip(bytes.chunks_exact_mut(format.bytes()));
    for (values, bytes) in blocks {
        match format {
            Format::Q8_0 => q8_0(&finite(values), bytes),
            Format::Q4_0 => pack::small(format, &around_zero(&finite(values), 8.0), bytes),
            Format::Q5_0 => pack::small(format, &around_zero(&finite(values), 16.0), bytes),
            Format::Q4_1 => pack::small(format, &with_minimum(&finite(values), 15.0), bytes),
            Format::Q5_1 => pack::small(format, &with_minimum(&finite(values), 31.0), bytes),
            _ => search(format, values, None, bytes),
        }
    }
}

/// Quantizes floats into blocks, with the error of each element weighted by its `importance`. All formats then search
/// for their scales, except Q8_0, which would gain nothing. Importances that are not above 0 count almost nothing; if
/// no importance of a part is above 0, all of its elements count equally.
///
/// # Panics
/// As [`quantize`], or if there are not as many importances as values.
pub fn quantize_by_importance(format: Format, values: &[f32], importance: &[f32], bytes: &mut [u8]) {
    assert_eq!(values.len(), importance.len(), "quantize: values and their importances");
    if format == Format::Q8_0 || !format.can_quantize() {
        return quantize(format, values, bytes);
    }
    assert_whole_blocks(format, bytes.len(), values.len());
    let elements = format.elements();
    let blocks = values.chunks_exact(elements).zip(importance.chunks_exact(elements));
    for ((values, importance), bytes) in blocks.zip(bytes.chunks_exact_mut(format.bytes())) {
        search(format, values, Some(importance), bytes);
    }
}

/// Writes one block by the search for its scales.
fn search(format: Format, values: &[f32], importance: Option<&[f32]>, bytes: &mut [u8]) {
    match format {
        Format::Q4_1 | Format::Q5_1 => {
            pack::small(format, &affine::small(format, &finite(values), importance), bytes);
        }
        Format::Q2K | Format::Q4K | Format::Q5K => {
            pack::large(format, &affine::large(format, &finite(values), importance), bytes);
        }
        Format::Q3K | Format::Q6K | Format::Iq4Xs => {
            pack::large(format, &symmetric::large(format, &finite(values), importance), bytes);
        }
        _ => pack::small(format, &symmetric::small(format, &finite(values), importance), bytes),
    }
}

/// The values of a block without NaN and infinities.
#[inline(always)]
fn finite<const N: usize>(values: &[f32]) -> [f32; N] {
    let values: &[f32; N] = values.try_into().expect("a block");
    values.map(|value| if value.is_nan() { 0.0 } else { value.clamp(-f32::MAX, f32::MAX) })
}

/// The bits of the f16 nearest to a scale, or of the largest f16 if the scale is beyond it.
#[inline(always)]
fn f16_bits(scale: f32) -> u16 {
    let greatest = f16::MAX.to_f32();
    f16::from_f32(scale.clamp(-greatest, greatest)).to_bits()
}

/// What the elements are multiplied by, the reciprocal of the scale; 0 if it is beyond f32, since the f16 scale is 0
/// long before that.
#[inline(always)]
fn reciprocal(scale: f32) -> f32 {
    let reciprocal = 1.0 / scale.clamp(-f16::MAX.to_f32(), f16::MAX.to_f32());
    if reciprocal.is_finite() { reciprocal } else { 0.0 }
}

/// Adding this rounds a magnitude below 2^22 to an integer (the nearest, halves to even) in the low bits.
const ROUNDER: f32 = 8_388_608.0;

fn q8_0(values: &[f32; 32], bytes: &mut [u8]) {
    let largest = values.iter().fold(0f32, |largest, value| if value.abs() > largest { value.abs() } else { largest });
    let scale = largest / 127.0;
    let inverse = reciprocal(scale);
    bytes[..2].copy_from_slice(&f16_bits(scale).to_le_bytes());
    let quants: &mut [u8; 32] = (&mut bytes[2..]).try_into().expect("32 quants");
    for (quant, value) in quants.iter_mut().zip(values) {
        let scaled = value * inverse;
        let magnitude = if scaled.abs() < 127.0 { scaled.abs() } else { 127.0 };
        let even = (magnitude + ROUNDER) - ROUNDER;
        // Halves are rounded away from zero; the nearest even number may lie below.
        let away = if magnitude - even == 0.5 { even + 1.0 } else { even };
        let magnitude = (away + ROUNDER).to_bits() as u8;
        let negative = ((scaled.to_bits() >> 31) as u8).wrapping_neg();
        *quant = (magnitude ^ negative).wrapping_sub(negative);
    }
}

/// A block of Q4_0 (`steps` is 8, the distance from 0 to the lowest level) or Q5_0 (16).
#[inline(always)]
fn around_zero(values: &[f32; 32], steps: f32) -> Small {
    // The first of the values that are largest in magnitude, with its sign: it becomes the lowest level exactly.
    let mut extreme = values[0];
    for &value in &values[1..] {
        extreme = if value.abs() > extreme.abs() { value } else { extreme };
    }
    let scale = extreme / -steps;
    let inverse = reciprocal(scale);
    let mut quants = [0u8; 32];
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = clamped_floor(value * inverse + (steps + 0.5), 2.0 * steps - 1.0);
    }
    Small { quants, scale: f16_bits(scale), minimum: 0 }
}

/// A block of Q4_1 (`top`, the highest level, is 15) or Q5_1 (31).
#[inline(always)]
fn with_minimum(values: &[f32; 32], top: f32) -> Small {
    let (mut low, mut high) = (values[0], values[0]);
    for &value in &values[1..] {
        low = if value < low { value } else { low };
        high = if value > high { value } else { high };
    }
    let scale = (high - low) / top;
    let inverse = reciprocal(scale);
    let quants = values.map(|value| clamped_floor((value - low) * inverse + 0.5, top));
    Small { quants, scale: f16_bits(scale), minimum: f16_bits(low) }
}

/// The integer part of a number, which is clamped to 0..=`top` first.
#[inline(always)]
fn clamped_floor(x: f32, top: f32) -> u8 {
    let x = if x > 0.0 { x } else { 0.0 };
    (if x < top { x } else { top }) as u8
}
