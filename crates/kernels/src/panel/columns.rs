//! The output of a product, whose columns are divided among tasks.

use crate::isa::dispatch;
use crate::{Isa, LANES};

/// The output of one product, written by several tasks in disjoint columns.
pub(crate) struct Columns<'a> {
    out: *mut f32,
    stride: usize,
    pub(crate) rows: usize,
    bias: Option<&'a [f32]>,
    accumulate: bool,
}

// SAFETY: tasks write disjoint columns through `write_panel`, whose contract says so; nothing is read across tasks.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    /// Takes all of `out` `[rows, outputs]`, the bias that is added, and whether results are added to the values of
    /// `out`.
    pub(crate) fn new(out: &'a mut [f32], rows: usize, bias: Option<&'a [f32]>, accumulate: bool) -> Self {
        Self { stride: out.len() / rows, out: out.as_mut_ptr(), rows, bias, accumulate }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.stride
    }

    /// Writes a panel's sixteen results for each row from `row` on; bias and residual are added in this order. The last
    /// panel may extend beyond the output; only existing columns are written.
    ///
    /// # Safety
    /// The rows are among those of the output, `column < stride`, and no other thread touches these elements.
    pub(crate) unsafe fn write_panel(&self, isa: Isa, row: usize, column: usize, sums: &[[f32; LANES]]) {
        let Self { stride, accumulate, .. } = *self;
        let bias = self.bias.map(|bias| &bias[column..]);
        // SAFETY: guaranteed by the caller.
        let out = unsafe { self.out.add(row * stride + column) };
        if column + LANES <= stride {
            let bias = bias.and_then(|bias| bias.first_chunk());
            // The features are those that `isa` proves; sixteen columns of these rows exist and belong to this thread.
            return dispatch!(isa, store_sums(sums, out, stride, bias, accumulate));
        }
        for (row, lanes) in sums.iter().enumerate() {
            // SAFETY: the columns up to the stride exist, and no other thread touches these elements.
            let out = unsafe { std::slice::from_raw_parts_mut(out.add(row * stride), stride - column) };
            for (l, out) in out.iter_mut().enumerate() {
                let value = bias.map_or(lanes[l], |bias| lanes[l] + bias[l]);
                *out = if accumulate { *out + value } else { value };
            }
        }
    }
}
