//! Quantizes a row to 8 bits in plain loops, for instruction sets without a faster version.
//!
//! `quantized_rows.rs` describes the format.

use crate::isa::shapes::Row;

/// Quantizes one row. The loops are compiled and vectorized for each instruction set.
#[inline(always)]
pub(crate) fn quantize_row(x: &[f32], row: &mut Row<'_>) {
    let block = x.len() / row.scales.len();
    for ((x, quants), scale) in x.chunks_exact(block).zip(row.quants.chunks_exact_mut(block)).zip(&mut *row.scales) {
        *scale = quantize_block(x, quants);
    }
    for (sum, quants) in row.sums_of_16.iter_mut().zip(row.quants.chunks_exact(16)) {
        *sum = quants.iter().map(|quant| i16::from(*quant)).sum();
    }
    for (sum, halves) in row.sums_of_32.iter_mut().zip(row.sums_of_16.chunks_exact(2)) {
        *sum = halves[0] + halves[1];
    }
}

/// Quantizes one block, a multiple of 16 elements, and returns its scale.
#[inline(always)]
pub(crate) fn quantize_block(x: &[f32], quants: &mut [i8]) -> f32 {
    let factor = Factor::of(largest_magnitude(x));
    if factor.inverse == 0.0 {
        quants.fill(0);
        return factor.scale;
    }
    for (quant, x) in quants.iter_mut().zip(x) {
        // Adding 1.5 x 2^23 rounds to an integer, ties to even, and leaves it in the lowest bits.
        const ROUNDER: f32 = 12_582_912.0;
        *quant = (*x * factor.inverse + ROUNDER).to_bits() as i8;
    }
    factor.scale
}

/// The largest magnitude of a block, a multiple of 16 elements; not finite if one of them is not.
#[inline(always)]
pub(crate) fn largest_magnitude(x: &[f32]) -> f32 {
    // The bits of magnitudes are ordered as their values are, with infinity and NaN above all finite ones.
    let mut largest = [0u32; 16];
    for x in x.chunks_exact(16) {
        for l in 0..16 {
            largest[l] = largest[l].max(x[l].to_bits() & 0x7fff_ffff);
        }
    }
    f32::from_bits(largest.into_iter().fold(0, u32::max))
}

/// The factor that quantizes a block (`inverse`), and the scale that dequantizes it.
pub(crate) struct Factor {
    pub(crate) scale: f32,
    /// The factor; 0 if all quants are 0.
    pub(crate) inverse: f32,
}

impl Factor {
    /// What the elements of a block are multiplied by if this is their largest magnitude.
    #[inline(always)]
    pub(crate) fn of(largest: f32) -> Self {
        let inverse = 127.0 / largest;
        if !largest.is_finite() {
            Self { scale: f32::NAN, inverse: 0.0 }
        } else if !inverse.is_finite() {
            // The elements are zeros, or numbers below 4e-37, which are too small to matter in any sum of a product.
            Self { scale: 0.0, inverse: 0.0 }
        } else {
            Self { scale: largest / 127.0, inverse }
        }
    }
}
