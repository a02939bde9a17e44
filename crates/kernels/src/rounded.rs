//! Activations rounded to 8 bits, the form that products with quantized weights take.
//!
//! The idea: a row is cut into blocks of 32 elements (256 for weights in blocks of 256); each block has one
//! scale, its largest magnitude over 127, and a signed byte an element, rounded to the nearest, ties to even. An
//! element is off by at most half a scale. A row is rounded by itself, once for all products that read it, and
//! everything that follows in integers is exact, so all instruction sets agree on every bit.
//!
//! A block with an element that is not finite gets the scale NaN: what is computed from it must not look sound.
//! Cost: an element is read once from the nearest cache; two thousand take about a third of a microsecond.

use std::sync::Mutex;

use crate::isa::dispatch;
use crate::{Compute, Isa};

/// Elements of a small block, and of a part of a large one.
pub(crate) const SMALL: usize = 32;
/// Elements of a large block.
pub(crate) const LARGE: usize = 256;

/// Elements below which the caller rounds all rows alone.
const ALONE_BELOW: usize = 1 << 15;

/// Rows of activations in blocks of one length.
#[derive(Default)]
pub(crate) struct Rounded {
    /// `[rows, inputs]`.
    pub(crate) quants: Vec<i8>,
    /// `[rows, inputs / block]`.
    pub(crate) scales: Vec<f32>,
    /// Sums of each 16 quants, `[rows, inputs / 16]`.
    pub(crate) sums_of_16: Vec<i16>,
    /// Sums of each 32 quants, `[rows, inputs / 32]`.
    pub(crate) sums_of_32: Vec<i16>,
}

/// One row of [`Rounded`], as the kernels fill it.
pub(crate) struct Row<'a> {
    pub(crate) quants: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums_of_16: &'a mut [i16],
    pub(crate) sums_of_32: &'a mut [i16],
}

impl Rounded {
    /// Rounds `x` `[rows, inputs]` in blocks of `block` elements, which divide the inputs.
    pub(crate) fn fill(&mut self, compute: &Compute, x: &[f32], inputs: usize, block: usize) {
        debug_assert!(inputs.is_multiple_of(block) && x.len().is_multiple_of(inputs));
        self.quants.resize(x.len(), 0);
        self.scales.resize(x.len() / block, 0.0);
        self.sums_of_16.resize(x.len() / 16, 0);
        self.sums_of_32.resize(x.len() / 32, 0);
        let rows = x
            .chunks_exact(inputs)
            .zip(self.quants.chunks_exact_mut(inputs))
            .zip(self.scales.chunks_exact_mut(inputs / block))
            .zip(self.sums_of_16.chunks_exact_mut(inputs / 16))
            .zip(self.sums_of_32.chunks_exact_mut(inputs / 32))
            .map(|((((x, quants), scales), sums_of_16), sums_of_32)| {
                (x, Row { quants, scales, sums_of_16, sums_of_32 })
            });
        if x.len() < ALONE_BELOW {
            rows.for_each(|(x, mut row)| round(compute.isa, x, &mut row));
        } else {
            let rows: Vec<_> = rows.map(Mutex::new).collect();
            compute.pool.run(rows.len(), &|i| {
                // Nobody else asks for this row: the lock is there for the compiler.
                let mut row = rows[i].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let (x, row) = &mut *row;
                round(compute.isa, x, row);
            });
        }
    }
}

fn round(isa: Isa, x: &[f32], row: &mut Row<'_>) {
    dispatch!(isa, round_row(x, row));
}

/// Rounds one row. Compiled once an instruction set, whose vectors the plain loops become.
#[inline(always)]
pub(crate) fn round_row(x: &[f32], row: &mut Row<'_>) {
    let block = x.len() / row.scales.len();
    for ((x, quants), scale) in x.chunks_exact(block).zip(row.quants.chunks_exact_mut(block)).zip(&mut *row.scales) {
        *scale = round_block(x, quants);
    }
    for (sum, quants) in row.sums_of_16.iter_mut().zip(row.quants.chunks_exact(16)) {
        *sum = quants.iter().map(|quant| i16::from(*quant)).sum();
    }
    for (sum, halves) in row.sums_of_32.iter_mut().zip(row.sums_of_16.chunks_exact(2)) {
        *sum = halves[0] + halves[1];
    }
}

/// Rounds one block, a multiple of 16 elements, and says its scale.
#[inline(always)]
fn round_block(x: &[f32], quants: &mut [i8]) -> f32 {
    // The bits of magnitudes are ordered as their values are, with infinity and NaN above all finite ones.
    let mut largest = [0u32; 16];
    for x in x.chunks_exact(16) {
        for l in 0..16 {
            largest[l] = largest[l].max(x[l].to_bits() & 0x7fff_ffff);
        }
    }
    let largest = f32::from_bits(largest.into_iter().fold(0, u32::max));
    if !largest.is_finite() {
        quants.fill(0);
        return f32::NAN;
    }
    let inverse = 127.0 / largest;
    if !inverse.is_finite() {
        // Zeros, or denormals too small for anything that a product adds them to.
        quants.fill(0);
        return 0.0;
    }
    for (quant, x) in quants.iter_mut().zip(x) {
        // Adding 1.5 x 2^23 rounds to a whole number, ties to even, and leaves it in the lowest bits.
        const WHOLE: f32 = 12_582_912.0;
        *quant = (*x * inverse + WHOLE).to_bits() as i8;
    }
    largest / 127.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    fn rounded(x: &[f32], block: usize) -> Vec<Rounded> {
        let fill = |isa| {
            let mut all = Rounded::default();
            all.fill(&Compute::with(isa, Pool::new(2)), x, x.len(), block);
            all
        };
        Isa::available().into_iter().map(fill).collect()
    }

    #[test]
    fn an_element_is_off_by_at_most_half_a_scale() {
        let x: Vec<f32> = (0..512).map(|i| ((i * 7919) % 1009) as f32 / 37.0 - 13.0 * (i % 5) as f32).collect();
        for block in [SMALL, LARGE] {
            for all in rounded(&x, block) {
                for (i, x) in x.iter().enumerate() {
                    let scale = all.scales[i / block];
                    let error = (f32::from(all.quants[i]) * scale - x).abs();
                    assert!(error <= scale * 0.50001, "element {i}: {error} with scale {scale}");
                }
                let sum: i32 = all.quants[..32].iter().map(|quant| i32::from(*quant)).sum();
                assert_eq!(i32::from(all.sums_of_32[0]), sum);
                assert_eq!(all.sums_of_16[0] + all.sums_of_16[1], all.sums_of_32[0]);
            }
        }
    }

    #[test]
    fn zeros_denormals_and_what_is_not_finite_have_their_answers() {
        let block = |x: f32| {
            let mut all = [0.5f32; 32];
            all[17] = x;
            all
        };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(rounded(&block(bad), SMALL).iter().all(|all| all.scales[0].is_nan() && all.quants == [0; 32]));
        }
        for tiny in [0.0, 1e-40, -1e-45] {
            assert!(rounded(&[tiny; 32], SMALL).iter().all(|all| all.scales == [0.0] && all.quants == [0; 32]));
        }
        let extreme = rounded(&block(f32::MIN), SMALL);
        assert!(extreme.iter().all(|all| all.quants[17] == -127 && all.quants[0] == 0));
    }
}
