//! Floats made into blocks: Q8_0 and Q4_0 as ggml's reference rounds them, Q4_K and Q6_K by the search of `search.rs`.
//!
//! The idea: a block is made of finite numbers only. A NaN counts as 0 and an infinity as the greatest float before
//! anything is computed, and a scale beyond f16 stays at the greatest f16, so that every block that is written reads
//! back as finite numbers. Rounding avoids conversions that saturate: adding 2^23 to a number leaves its nearest whole
//! number in the low bits, and such loops become vector code.
//!
//! Left out: the other formats, which are only read; threads, which are the caller's.

use half::f16;

use super::search;
use super::{Format, assert_whole_blocks};

impl Format {
    /// True of the formats that [`quantize`] can make.
    pub const fn can_quantize(self) -> bool {
        matches!(self, Format::Q8_0 | Format::Q4_0 | Format::Q4K | Format::Q6K)
    }
}

/// The place of the first value that blocks of a format cannot hold: one that is not finite, or beyond the greatest
/// scale. Made into blocks it would come back as another number without a word.
///
/// # Panics
/// If the format is not one that [`Format::can_quantize`].
pub fn first_beyond(format: Format, values: &[f32]) -> Option<usize> {
    // The greatest magnitude of a quant, times that of its scale where scales are scaled again.
    let steps = match format {
        Format::Q8_0 => 127.0,
        Format::Q4_0 => 8.0,
        Format::Q4K => 15.0 * 63.0,
        Format::Q6K => 32.0 * 127.0,
        other => panic!("first_beyond: {} is only read", other.name()),
    };
    let most = f16::MAX.to_f32() * steps;
    values.iter().position(|value| value.is_nan() || value.abs() > most)
}

/// Makes blocks of floats. A pure function: each block depends on its own elements only.
///
/// Q8_0 and Q4_0 have the bits of the Python package `gguf` wherever that is defined: where input and scale are finite
/// and the scale's reciprocal is no infinity. Q4_K and Q6_K search for the scales of least squared error. NaN is
/// taken for 0, infinities for the greatest floats; scales saturate at the greatest f16, so huge values come back
/// smaller, but finite.
///
/// # Panics
/// If the format is not one that [`Format::can_quantize`], `bytes` is not a whole number of blocks, or `values` has
/// not as many elements as these.
pub fn quantize(format: Format, values: &[f32], bytes: &mut [u8]) {
    assert!(format.can_quantize(), "quantize: {} is only read", format.name());
    assert_whole_blocks(format, bytes.len(), values.len());
    let blocks = values.chunks_exact(format.elements()).zip(bytes.chunks_exact_mut(format.bytes()));
    for (values, bytes) in blocks {
        match format {
            Format::Q8_0 => q8_0(&finite(values), bytes),
            Format::Q4_0 => q4_0(&finite(values), bytes),
            Format::Q4K => q4_k(&finite(values), bytes),
            _ => q6_k(&finite(values), bytes),
        }
    }
}

/// The values of a block without NaN and infinities.
#[inline(always)]
fn finite<const N: usize>(values: &[f32]) -> [f32; N] {
    let values: &[f32; N] = values.try_into().expect("a block");
    values.map(|value| if value.is_nan() { 0.0 } else { value.clamp(-f32::MAX, f32::MAX) })
}

/// The bits of the f16 nearest to a scale, the greatest if that is an infinity.
#[inline(always)]
fn half_bits(scale: f32) -> u16 {
    let greatest = f16::MAX.to_f32();
    f16::from_f32(scale.clamp(-greatest, greatest)).to_bits()
}

/// What elements are multiplied by; 0 where that is beyond f32, since the f16 scale is 0 long before.
#[inline(always)]
fn reciprocal(scale: f32) -> f32 {
    let reciprocal = 1.0 / scale.clamp(-f16::MAX.to_f32(), f16::MAX.to_f32());
    if reciprocal.is_finite() { reciprocal } else { 0.0 }
}

/// Adding this rounds a magnitude below 2^22 to a whole number (the nearest, halves to even) in the low bits.
const ROUNDER: f32 = 8_388_608.0;

fn q8_0(values: &[f32; 32], bytes: &mut [u8]) {
    let largest = values.iter().fold(0f32, |largest, value| if value.abs() > largest { value.abs() } else { largest });
    let scale = largest / 127.0;
    let inverse = reciprocal(scale);
    bytes[..2].copy_from_slice(&half_bits(scale).to_le_bytes());
    let quants: &mut [u8; 32] = (&mut bytes[2..]).try_into().expect("32 quants");
    for (quant, value) in quants.iter_mut().zip(values) {
        let scaled = value * inverse;
        let magnitude = if scaled.abs() < 127.0 { scaled.abs() } else { 127.0 };
        let even = (magnitude + ROUNDER) - ROUNDER;
        // Halves go away from zero; the nearest even number may lie below.
        let away = if magnitude - even == 0.5 { even + 1.0 } else { even };
        let magnitude = (away + ROUNDER).to_bits() as u8;
        let negative = ((scaled.to_bits() >> 31) as u8).wrapping_neg();
        *quant = (magnitude ^ negative).wrapping_sub(negative);
    }
}

fn q4_0(values: &[f32; 32], bytes: &mut [u8]) {
    // The first of the values that are largest in magnitude, with its sign: it becomes -8 exactly.
    let mut extreme = values[0];
    for &value in &values[1..] {
        extreme = if value.abs() > extreme.abs() { value } else { extreme };
    }
    let scale = extreme / -8.0;
    let inverse = reciprocal(scale);
    let mut quants = [0u8; 32];
    for (quant, value) in quants.iter_mut().zip(values) {
        let shifted = value * inverse + 8.5;
        let shifted = if shifted > 0.0 { shifted } else { 0.0 };
        *quant = (if shifted < 15.0 { shifted } else { 15.0 }) as u8;
    }
    bytes[..2].copy_from_slice(&half_bits(scale).to_le_bytes());
    for l in 0..16 {
        bytes[2 + l] = quants[l] | quants[l + 16] << 4;
    }
}

fn q4_k(values: &[f32; 256], bytes: &mut [u8]) {
    let block = search::affine(values);
    bytes[..2].copy_from_slice(&block.scale.to_le_bytes());
    bytes[2..4].copy_from_slice(&block.minimum.to_le_bytes());
    // Six bits each of eight scales and eight minimums: see `sixes` in read.rs.
    for j in 0..4 {
        let (scale, high_scale) = (block.scales[j] as u8, block.scales[j + 4] as u8);
        let (minimum, high_minimum) = (block.minimums[j], block.minimums[j + 4]);
        bytes[4 + j] = scale | high_scale >> 4 << 6;
        bytes[8 + j] = minimum | high_minimum >> 4 << 6;
        bytes[12 + j] = high_scale & 15 | high_minimum << 4;
    }
    for (run, quants) in bytes[16..].chunks_exact_mut(32).zip(block.quants.chunks_exact(64)) {
        for l in 0..32 {
            run[l] = quants[l] | quants[l + 32] << 4;
        }
    }
}

fn q6_k(values: &[f32; 256], bytes: &mut [u8]) {
    let block = search::symmetric(values);
    for run in 0..2 {
        let quants = &block.quants[run * 128..][..128];
        for l in 0..64 {
            bytes[run * 64 + l] = quants[l] & 15 | quants[l + 64] << 4;
        }
        for l in 0..32 {
            let high = [0, 1, 2, 3].map(|row| quants[row * 32 + l] >> 4 << (2 * row));
            bytes[128 + run * 32 + l] = high.iter().fold(0, |all, bits| all | bits);
        }
    }
    for (byte, scale) in bytes[192..208].iter_mut().zip(block.scales) {
        *byte = scale as u8;
    }
    bytes[208..].copy_from_slice(&block.scale.to_le_bytes());
}
