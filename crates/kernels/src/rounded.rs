//! Activations rounded to 8 bits, the form that products with quantized weights take.
//!
//! The idea: a row is cut into blocks of 32 elements (256 for weights in blocks of 256); each block has one
//! scale, its largest magnitude over 127, and a signed byte an element, rounded to the nearest, ties to even. An
//! element is off by at most half a scale. A row is rounded by itself, once for all products that read it, and
//! everything that follows in integers is exact, so all instruction sets agree on every bit.
//!
//! A block with an element that is not finite gets the scale NaN: what is computed from it must not look sound.
//! Cost: an element is read twice from the nearest cache; two thousand take about a quarter of a microsecond.

use std::cell::RefCell;
use std::sync::Mutex;

use crate::isa::dispatch;
use crate::isa::shapes::{LARGE, Row};
use crate::{Compute, Isa};

/// Elements below which the caller rounds all rows alone.
const ALONE_BELOW: usize = 1 << 15;

/// Rows whose sums wait in memory between chunks of k; strips do not cross a border of as many rows.
pub(crate) const ROWS_AT_ONCE: usize = 64;

/// Height of the strip of rows that begins at `row`: as high as is allowed, and all of nearly the same height. A
/// strip is what one tile of a product computes; which rows share one changes no bit of them.
pub(crate) fn strip_height(row: usize, rows: usize, highest: usize) -> usize {
    let left = (ROWS_AT_ONCE - row % ROWS_AT_ONCE).min(rows - row);
    left.div_ceil(left.div_ceil(highest))
}

/// How many strips there are.
pub(crate) fn strip_count(rows: usize, highest: usize) -> usize {
    rows / ROWS_AT_ONCE * ROWS_AT_ONCE.div_ceil(highest) + (rows % ROWS_AT_ONCE).div_ceil(highest)
}

/// Rows of activations in blocks of one length, packed strip by strip: what a tile reads lies side by side in the order
/// in which it is read. The strip at row r begins at r times the length of a row.
#[derive(Default)]
pub(crate) struct Rounded {
    /// `[strip][inputs / 4][rows of the strip][4]`.
    pub(crate) quants: Vec<i8>,
    /// `[strip][blocks][rows of the strip]`.
    pub(crate) scales: Vec<f32>,
    /// Sums of each 32 quants, `[strip][inputs / 32][rows of the strip]`.
    pub(crate) sums: Vec<i32>,
    /// Sums of the quants of each part of 16, in pairs: `[strip][inputs / 32][rows of the strip][2]`.
    pub(crate) pairs_of_16: Vec<i16>,
    /// The same of parts of 32; only of large blocks.
    pub(crate) pairs_of_32: Vec<i16>,
}

/// What a [`Row`] borrows.
#[derive(Default)]
struct RowMemory {
    quants: Vec<i8>,
    scales: Vec<f32>,
    sums_of_16: Vec<i16>,
    sums_of_32: Vec<i16>,
}

/// The part of [`Rounded`] that one strip fills.
struct Strip<'a> {
    x: &'a [f32],
    quants: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
    pairs_of_16: &'a mut [i16],
    pairs_of_32: &'a mut [i16],
}

impl Rounded {
    /// Rounds `x` `[rows, inputs]` in blocks of `block` elements, which divide the inputs, for strips of up to
    /// `highest` rows.
    pub(crate) fn fill(&mut self, compute: &Compute, x: &[f32], inputs: usize, block: usize, highest: usize) {
        assert!(inputs.is_multiple_of(block) && x.len().is_multiple_of(inputs));
        let rows = x.len() / inputs;
        let pairs = if block == LARGE { x.len() / 32 } else { 0 };
        self.quants.resize(x.len(), 0);
        self.scales.resize(x.len() / block, 0.0);
        self.sums.resize(x.len() / 32, 0);
        self.pairs_of_16.resize(2 * pairs, 0);
        self.pairs_of_32.resize(pairs, 0);
        let mut left = Strip {
            x,
            quants: &mut self.quants,
            scales: &mut self.scales,
            sums: &mut self.sums,
            pairs_of_16: &mut self.pairs_of_16,
            pairs_of_32: &mut self.pairs_of_32,
        };
        let mut strips = Vec::with_capacity(strip_count(rows, highest));
        let mut row = 0;
        while row < rows {
            let height = strip_height(row, rows, highest);
            strips.push(Mutex::new(left.take(height * inputs)));
            row += height;
        }
        let round = |i: usize| {
            // Nobody else asks for this strip: the lock is there for the compiler.
            let mut strip = strips[i].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            strip.round(compute.isa, inputs, block);
        };
        if x.len() < ALONE_BELOW { (0..strips.len()).for_each(round) } else { compute.pool.run(strips.len(), &round) }
    }
}

/// Packs `x` `[rows, inputs]` in strips without rounding: `[strip][inputs][rows of the strip]`.
pub(crate) fn pack(compute: &Compute, x: &[f32], inputs: usize, highest: usize, out: &mut [f32]) {
    let rows = x.len() / inputs;
    let (mut row, mut left) = (0, out);
    let mut strips = Vec::with_capacity(strip_count(rows, highest));
    while row < rows {
        let height = strip_height(row, rows, highest);
        let (strip, rest) = left.split_at_mut(height * inputs);
        strips.push(Mutex::new((&x[row * inputs..][..height * inputs], strip)));
        (row, left) = (row + height, rest);
    }
    let pack = |i: usize| {
        let mut strip = strips[i].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (x, out) = &mut *strip;
        let height = x.len() / inputs;
        for (r, x) in x.chunks_exact(inputs).enumerate() {
            spread(x.iter().copied(), r, height, out);
        }
    };
    if x.len() < ALONE_BELOW { (0..strips.len()).for_each(pack) } else { compute.pool.run(strips.len(), &pack) }
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

    /// Rounds row after row and puts each where it belongs.
    fn round(&mut self, isa: Isa, inputs: usize, block: usize) {
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
                dispatch!(isa, round_row(x, &mut row));
                spread_units::<4, _>(quants, r, height, self.quants);
                spread(scales.iter().copied(), r, height, self.scales);
                spread(sums_of_32.iter().map(|sum| i32::from(*sum)), r, height, self.sums);
                if block == LARGE {
                    spread_units::<2, _>(sums_of_16, r, height, self.pairs_of_16);
                    spread_units::<2, _>(sums_of_32, r, height, self.pairs_of_32);
                }
            }
        });
    }
}

/// Puts one row's numbers into its place among `height` rows.
fn spread<T>(from: impl Iterator<Item = T>, row: usize, height: usize, to: &mut [T]) {
    let mut at = row;
    for from in from {
        to[at] = from;
        at += height;
    }
}

/// The same of numbers that stay together, N by N.
fn spread_units<const N: usize, T: Copy>(from: &[T], row: usize, height: usize, to: &mut [T]) {
    let ((from, _), (to, _)) = (from.as_chunks::<N>(), to.as_chunks_mut::<N>());
    spread(from.iter().copied(), row, height, to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use crate::isa::shapes::SMALL;

    fn rounded(x: &[f32], block: usize) -> Vec<Rounded> {
        let fill = |isa| {
            let mut all = Rounded::default();
            all.fill(&Compute::with(isa, Pool::new(2)), x, x.len(), block, 8);
            all
        };
        Isa::available().into_iter().map(fill).collect()
    }

    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919) % 1009) as f32 / 37.0 - 13.0 * (i % 5) as f32).collect()
    }

    #[test]
    fn an_element_is_off_by_at_most_half_a_scale() {
        let x = numbers(512);
        for block in [SMALL, LARGE] {
            for all in rounded(&x, block) {
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

    /// Rows in strips are the rows alone, each at its place.
    #[test]
    #[cfg_attr(miri, ignore = "takes Miri minutes")]
    fn strips_hold_the_rows_side_by_side() {
        let (inputs, highest) = (512, 6);
        for rows in [1, 5, 7, 16, 64, 67, 130] {
            let x = numbers(rows * inputs);
            for (pool, isa) in [(Pool::new(1), Isa::PORTABLE), (Pool::new(3), Isa::chosen())] {
                let compute = Compute::with(isa, pool);
                let mut all = Rounded::default();
                all.fill(&compute, &x, inputs, LARGE, highest);
                let (mut first, mut count) = (0, 0);
                while first < rows {
                    count += 1;
                    let height = strip_height(first, rows, highest);
                    assert!(height <= highest && first / ROWS_AT_ONCE == (first + height - 1) / ROWS_AT_ONCE);
                    for r in 0..height {
                        let alone = &rounded(&x[(first + r) * inputs..][..inputs], LARGE)[0];
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
                assert_eq!(count, strip_count(rows, highest));
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
