//! Row independence: a runner that tests, for any kernel, whether a row's result depends on the other rows of the
//! batch.
//!
//! A kernel is a closure from `[rows, width]` to `[rows, out_width]`. The runner computes every row alone, then the
//! same rows in batches of many sizes and offsets, in another order, and among rows of NaN, infinity and huge numbers,
//! and compares bit for bit. It detects the usual violations: a special kernel for one row, a reduction split by the
//! number of rows, a tail computed in another order. Threads and instruction sets are chosen by the closure.

use std::fmt;

use crate::table::mix;

/// A kernel: a function from rows and their number to the results of the rows.
pub type RowKernel<'a> = dyn FnMut(&[f32], usize) -> Vec<f32> + 'a;

/// A row whose result depended on the other rows of the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependence {
    /// The row.
    pub row: usize,
    /// The element of its result that differs.
    pub column: usize,
    /// Number of rows of the batch.
    pub batch: usize,
    /// The index of the row in the batch.
    pub index: usize,
    /// The element when the row was computed alone.
    pub alone: f32,
    /// The element when it was computed in the batch.
    pub together: f32,
}

impl fmt::Display for Dependence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, column, batch, index, alone, together } = self;
        write!(f, "row {row}, element {column}: alone {alone:e}, at index {index} of a batch of {batch} {together:e}")
    }
}

/// The first dependence found between `rows` `[_, width]`, or `None` if every row has the same bits in every batch.
///
/// # Panics
/// If `rows` is not a whole number of rows, or the kernel returns results of different widths.
pub fn first_dependence(kernel: &mut RowKernel<'_>, rows: &[f32], width: usize) -> Option<Dependence> {
    assert!(width > 0 && rows.len().is_multiple_of(width), "{} elements are not rows of {width}", rows.len());
    let count = rows.len() / width;
    let alone: Vec<Vec<f32>> = rows.chunks_exact(width).map(|row| kernel(row, 1)).collect();
    let mut members: Vec<Option<usize>> = Vec::new();
    for size in 1..=count {
        let mut offsets = vec![0, (count - size) / 2, count - size];
        offsets.dedup();
        for offset in offsets {
            members.clear();
            members.extend((offset..offset + size).map(Some));
            if let Some(found) = compare(kernel, rows, width, &alone, &members, 0.0) {
                return Some(found);
            }
        }
    }
    members.clear();
    members.extend((0..count).rev().map(Some));
    if let Some(found) = compare(kernel, rows, width, &alone, &members, 0.0) {
        return Some(found);
    }
    // One row is placed among others whose values would change any sum.
    for (row, hostile) in (0..count).zip([f32::NAN, f32::INFINITY, -1e38, 0.0].into_iter().cycle()) {
        members.clear();
        members.resize(count + 1, None);
        members[(row * 7 + 1) % (count + 1)] = Some(row);
        if let Some(found) = compare(kernel, rows, width, &alone, &members, hostile) {
            return Some(found);
        }
    }
    None
}

/// Runs one batch of `members` (`None` is a row full of `filler`) and compares the rows that count.
fn compare(
    kernel: &mut RowKernel<'_>,
    rows: &[f32],
    width: usize,
    alone: &[Vec<f32>],
    members: &[Option<usize>],
    filler: f32,
) -> Option<Dependence> {
    let mut batch = Vec::with_capacity(members.len() * width);
    for member in members {
        match member {
            Some(row) => batch.extend_from_slice(&rows[row * width..][..width]),
            None => batch.resize(batch.len() + width, filler),
        }
    }
    let together = kernel(&batch, members.len());
    for (index, row) in members.iter().enumerate() {
        let Some(row) = *row else { continue };
        let out_width = alone[row].len();
        assert_eq!(together.len(), members.len() * out_width, "results of a batch of {} rows", members.len());
        let together = &together[index * out_width..][..out_width];
        if let Some(column) = first_difference(&alone[row], together) {
            let (alone, together) = (alone[row][column], together[column]);
            return Some(Dependence { row, column, batch: members.len(), index, alone, together });
        }
    }
    None
}

/// The first element in which two results differ as bits.
///
/// # Panics
/// If they differ in length.
pub fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    assert_eq!(a.len(), b.len(), "results of different lengths");
    (0..a.len()).find(|i| a[*i].to_bits() != b[*i].to_bits())
}

/// A seeded source of numbers for test data. The numbers are the same on every machine, and good enough for inputs, but
/// not for statistics.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// The source of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits (splitmix64).
    pub fn bits(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits
    }

    /// A number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        assert!(end > 0, "a number below 0");
        (self.bits() % end as u64) as usize
    }

    /// A number between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Numbers between -1 and 1, whose sum depends on the order of addition.
    pub fn units(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }

    /// The numbers below `len`, in random order.
    pub fn permutation(&mut self, len: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..len).collect();
        for i in (1..len).rev() {
            let j = self.below(i + 1);
            all.swap(i, j);
        }
        all
    }
}
