//! Activations quantized to 8 bits, for products with quantized weights.
//!
//! A row is cut into blocks of 32 elements (256 for weights in blocks of 256). Each block has one scale, its largest
//! magnitude divided by 127, and a signed byte per element, rounded to nearest, ties to even, so that the error of an
//! element is at most half a scale. A row is quantized independently of other rows, once for all products that read it.
//! The integer arithmetic that follows is exact, so all instruction sets agree on every bit.
//!
//! A block with an element that is not finite gets the scale NaN, so that results computed from it are NaN, too. Each
//! element is read twice from the L1 cache; two thousand elements take about a quarter of a microsecond.

use std::cell::RefCell;
use std::sync::Mutex;

use crate::isa::dispatch;
use crate::isa::shapes::{LARGE, Row};
use crate::{Compute, Isa};

/// With fewer elements than this, the calling thread quantizes all rows itself.
const SERIAL_BELOW: usize = 1 << 15;

/// Number of rows whose sums are kept in memory between chunks of k. No strip crosses a multiple of it.
pub(crate) const ROW_BLOCK: usize = 64;

/// Height of the strip of rows that begins at `row`: at most `height_max`, and nearly the same for all strips. A strip
/// is what one tile of a product computes; which rows share a strip does not change their bits.
pub(crate) fn strip_height(row: usize, rows: usize, height_max: usize) -> usize {
    let remaining = (ROW_BLOCK - row % ROW_BLOCK).min(rows - row);
    remaining.div_ceil(remaining.div_ceil(height_max))
}

/// The number of strips.
pub(crate) fn strip_count(rows: usize, height_max: usize) -> usize {
    rows / ROW_BLOCK * ROW_BLOCK.div_ceil(height_max) + (rows % ROW_BLOCK).div_ceil(height_max)
}

/// Rows of activations in blocks of one length, packed strip by strip, so that a tile reads adjacent memory in order.
/// The strip at row r begins at r times the length of a row.
#[derive(Default)]
pub(crate) struct QuantizedRows {
    /// `[strip][inputs / 4][rows of the strip][4]`.
    pub(crate) quants: Vec<i8>,
    /// `[strip][blocks][rows of the strip]`.
    pub(crate) scales: Vec<f32>,
    /// Sums of each 32 quants, `[strip][inputs / 32][rows of the strip]`.
    pub(crate) sums: Vec<i32>,
    /// Sums of the quants of each part of 16, in pairs: `[strip][inputs / 32][rows of the strip][2]`.
    pub(crate) pairs_of_16: Vec<i16>,
    /// Sums of the quants of each part of 32, in pairs; only for large blocks.
    pub(crate) pairs_of_32: Vec<i16>,
}

/// The memory that a [`Row`] borrows.
#[derive(Default)]
struct RowMemory {
    quants: Vec<i8>,
    scales: Vec<f32>,
    sums_of_16: Vec<i16>,
    sums_of_32: Vec<i16>,
}

/// The slices of [`QuantizedRows`] that one strip fills.
struct Strip<'a> {
    x: &'a [f32],
    quants: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
    pairs_of_16: &'a mut [i16],
    pairs_of_32: &'a mut [i16],
}

impl QuantizedRows {
    /// Quantizes `x` `[rows, inputs]` in blocks of `block` elements, which divide the inputs, for strips of up to
    /// `height_max` rows.
    pub(crate) fn fill(&mut self, compute: &Compute, x: &[f32], inputs: usize, block: usize, height_max: usize) {
        assert!(inputs.is_multiple_of(block) && x.len().is_multiple_of(inputs));
        let rows = x.len() / inputs;
        let pairs = if block == LARGE { x.len() / 32 } else { 0 };
        self.quants.resize(x.len(), 0);
        self.scales.resize(x.len() / block, 0.0);
        self.sums.resize(x.len() / 32, 0);
        self.pairs_of_16.resize(2 * pairs, 0);
        self.pairs_of_32.resize(pairs, 0);
        let mut remaining = Strip {
            x,
            quants: &mut self.quants,
            scales: &mut self.scales,
            sums: &mut self.sums,
            pairs_of_16: &mut self.pairs_of_16,
            pairs_of_32: &mut self.pairs_of_32,
        };
        let mut strips = Vec::with_capacity(strip_count(rows, height_max));
        let mut row = 0;
        while row < rows {
            let height = strip_height(row, rows, height_max);
            strips.push(Mutex::new(remaining.take(height * inputs)));
            row += height;
        }
        let quantize = |i: usize| {
            // No other task takes this strip: the lock only satisfies the compiler.
            let mut strip = strips[i].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            strip.quantize(compute.isa, inputs, block);
        };
        if x.len() < SERIAL_BELOW {
            (0..strips.len()).for_each(quantize);
        } else {
            compute.pool.run(strips.len(), &quantize);
        }
    }
}

/// Packs `x` `[rows, inputs]` in strips without quantizing it: `[strip][inputs][rows of the strip]`.
pub(crate) fn pack(compute: &Compute, x: &[f32], inputs: usize, height_max: usize, out: &mut [f32]) {
    let rows = x.len() / inputs;
    let (mut row, mut remaining) = (0, out);
    let mut strips = Vec::with_capacity(strip_count(rows, height_max));
    while row < rows {
        let height = strip_height(row, rows, height_max);
        let (strip, rest) = remaining.split_at_mut(height * inputs);
        strips.push(Mutex::new((&x[row * inputs..][..height * inputs], strip)));
        (row, remaining) = (row + height, rest);
    }
    let pack = |i: usize| {
        let mut strip = strips[i].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (x, out) = &mut *strip;
        let height = x.len() / inputs;
        for (r, x) in x.chunks_exact(inputs).enumerate() {
            scatter(x.iter().copied(), r, height, out);
        }
    };
    if x.len() < SERIAL_BELOW { (0..strips.len()).for_each(pack) } else { compute.pool.run(strips.len(), &pack) }
}

impl<'a> Strip<'a> {
    /// Splits off the strip of the first `elements` elements.
    fn take(&mut self, elements: usize) -> Strip<'a> {
        fn first<'a, T>(all: &mut &'a mut [T], len: usize) -> &'a mut [T] {
            let (first, rest) = std::mem::take(all).split_at_mut(len);
            *all = rest;
            first
        }
        let part = |len: usize| len * elements / self.x.len();
        let (scales, sums) = (part(self.scales.len()), part(self.sums.len()));
        let (of_16, of_32) = (part(self.pairs_of_16.len()), part(self.pairs_of_32.len()));
        let (x, rest) = self.x.split_at(elements);
        self.x = rest;
        Strip {
            x,
            quants: first(&mut self.quants, elements),
            scales: first(&mut self.scales, scales),
            sums: first(&mut self.sums, sums),
            pairs_of_16: first(&mut self.pairs_of_16, of_16),
            pairs_of_32: first(&mut self.pairs_of_32, of_32),
        }
    }

    /// Quantizes the rows one after another and writes each to its place in the strip.
    fn quantize(&mut self, isa: Isa, inputs: usize, block: usize) {
        thread_local! {
            static ROW: RefCell<RowMemory> = RefCell::default();
        }
        let height = self.x.len() / inputs;
        ROW.with_borrow_mut(|RowMemory { quants, scales, sums_of_16, sums_of_32 }| {
            quants.resize(inputs, 0);
            scales.resize(inputs / block, 0.0);
            sums_of_16.resize(inputs / 16, 0);
            sums_of_32.resize(inputs / 32, 0);
            for (r, x) in self.x.chunks_exact(inputs).enumerate() {
                let mut row = Row { quants, scales, sums_of_16, sums_of_32 };
                dispatch!(isa, quantize_row(x, &mut row));
                scatter_units::<4, _>(quants, r, height, self.quants);
                scatter(scales.iter().copied(), r, height, self.scales);
                scatter(sums_of_32.iter().map(|sum| i32::from(*sum)), r, height, self.sums);
                if block == LARGE {
                    scatter_units::<2, _>(sums_of_16, r, height, self.pairs_of_16);
                    scatter_units::<2, _>(sums_of_32, r, height, self.pairs_of_32);
                }
            }
        });
    }
}

/// Writes one row's numbers to its place among `height` rows.
fn scatter<T>(from: impl Iterator<Item = T>, row: usize, height: usize, to: &mut [T]) {
    let mut at = row;
    for from in from {
        to[at] = from;
        at += height;
    }
}

/// [`scatter`] for numbers that stay together in groups of N.
fn scatter_units<const N: usize, T: Copy>(from: &[T], row: usize, height: usize, to: &mut [T]) {
    let ((from, _), (to, _)) = (from.as_chunks::<N>(), to.as_chunks_mut::<N>());
    scatter(from.iter().copied(), row, height, to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use crate::isa::shapes::SMALL;

    fn quantized(x: &[f32], block: usize) -> Vec<QuantizedRows> {
        let fill = |isa| {
            let mut all = QuantizedRows::default();
            all.fill(&Compute::with(isa, Pool::new(2)), x, x.len(), block, 8);
            all
        };
        Isa::available().into_iter().map(fill).collect()
    }

    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919) % 1009) as f32 / 37.0 - 13.0 * (i % 5) as f32).collect()
    }

    #[test]
    fn the_error_is_at_most_half_a_scale() {
        let x = numbers(512);
        for block in [SMALL, LARGE] {
            for all in quantized(&x, block) {
                for (i, x) in x.iter().enumerate() {
                    let scale = all.scales[i / block];
                    let error = (f32::from(all.quants[i]) * scale - x).abs();
                    assert!(error <= scale * 0.50001, "element {i}: {error} with scale {scale}");
                }
                let sum = |quants: &[i8]| quants.iter().map(|quant| i32::from(*quant)).sum::<i32>();
                assert_eq!(all.sums[0], sum(&all.quants[..32]));
                if block == LARGE {
                    assert_eq!(i32::from(all.pairs_of_16[3]), sum(&all.quants[48..64]));
                    assert_eq!(i32::from(all.pairs_of_32[1]), sum(&all.quants[32..64]));
                }
            }
        }
    }

    /// Tests that each row of a strip equals the row quantized alone.
    #[test]
    #[cfg_attr(miri, ignore = "takes Miri minutes")]
    fn strips_interleave_their_rows() {
        let (inputs, height_max) = (512, 6);
        for rows in [1, 5, 7, 16, 64, 67, 130] {
            let x = numbers(rows * inputs);
            for (pool, isa) in [(Pool::new(1), Isa::PORTABLE), (Pool::new(3), Isa::chosen())] {
                let compute = Compute::with(isa, pool);
                let mut all = QuantizedRows::default();
                all.fill(&compute, &x, inputs, LARGE, height_max);
                let (mut first, mut count) = (0, 0);
                while first < rows {
                    count += 1;
                    let height = strip_height(first, rows, height_max);
                    assert!(height <= height_max && first / ROW_BLOCK == (first + height - 1) / ROW_BLOCK);
                    for r in 0..height {
                        let alone = &quantized(&x[(first + r) * inputs..][..inputs], LARGE)[0];
                        for k in 0..inputs {
                            let at = first * inputs + k / 4 * 4 * height + 4 * r + k % 4;
                            assert_eq!(all.quants[at], alone.quants[k]);
                        }
                        for pair in 0..inputs / 32 {
                            let at = 2 * (first * inputs / 32 + pair * height + r);
                            assert_eq!(all.pairs_of_16[at..at + 2], alone.pairs_of_16[2 * pair..2 * pair + 2]);
                            assert_eq!(all.sums[at / 2], alone.sums[pair]);
                        }
                        assert_eq!(all.scales[first * 2 + height + r], alone.scales[1]);
                    }
                    first += height;
                }
                assert_eq!(count, strip_count(rows, height_max));
            }
        }
    }

    #[test]
    fn zeros_denormals_and_non_finite_elements_are_defined() {
        let block = |x: f32| {
            let mut all = [0.5f32; 32];
            all[17] = x;
            all
        };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(quantized(&block(bad), SMALL).iter().all(|all| all.scales[0].is_nan() && all.quants == [0; 32]));
        }
        for tiny in [0.0, 1e-40, -1e-45] {
            assert!(quantized(&[tiny; 32], SMALL).iter().all(|all| all.scales == [0.0] && all.quants == [0; 32]));
        }
        let extreme = quantized(&block(f32::MIN), SMALL);
        assert!(extreme.iter().all(|all| all.quants[17] == -127 && all.quants[0] == 0));
    }
}
