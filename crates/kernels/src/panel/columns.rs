//! Where the results of a product go: columns of its output, a task's each.

use crate::LANES;

/// The output of one product, written by several tasks in disjoint columns.
pub(crate) struct Columns<'a> {
    out: *mut f32,
    stride: usize,
    pub(crate) rows: usize,
    bias: Option<&'a [f32]>,
    accumulate: bool,
}

// SAFETY: tasks write disjoint columns through `set`, whose contract says so; nothing is read across tasks.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    /// All of `out` `[rows, outputs]`, with what is added to it.
    pub(crate) fn new(out: &'a mut [f32], rows: usize, bias: Option<&'a [f32]>, accumulate: bool) -> Self {
        Self { stride: out.len() / rows, out: out.as_mut_ptr(), rows, bias, accumulate }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.stride
    }

    /// Writes the sixteen results of a panel, with bias and residual in this order, or those of them that are columns:
    /// the last panel may reach beyond.
    ///
    /// # Safety
    /// `row < rows`, `column < stride`, and no other thread touches these elements.
    #[inline(always)]
    pub(crate) unsafe fn set_lanes(&self, row: usize, column: usize, lanes: &[f32; LANES]) {
        let count = LANES.min(self.stride - column);
        // SAFETY: column + count <= stride, and the row is inside; nobody else touches these elements.
        let out = unsafe { std::slice::from_raw_parts_mut(self.out.add(row * self.stride + column), count) };
        let mut lanes = *lanes;
        if let Some(bias) = self.bias {
            lanes.iter_mut().zip(&bias[column..]).for_each(|(value, bias)| *value += bias);
        }
        if let (Ok(out), false) = (<&mut [f32; LANES]>::try_from(&mut *out), self.accumulate) {
            *out = lanes; // a whole panel, which is nearly every one: a move of known length
        } else if self.accumulate {
            out.iter_mut().zip(lanes).for_each(|(out, value)| *out += value);
        } else {
            out.copy_from_slice(&lanes[..count]);
        }
    }
}
