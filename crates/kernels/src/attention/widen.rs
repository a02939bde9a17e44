//! Widens blocks of the cache to f32, and finds the blocks to prefetch.
//!
//! A block is widened once for all queries of a tile. That costs a load, a conversion and a store for each sixteen
//! elements, as much as two queries compute with them; reading them from memory at 17 GB/s per core takes three times
//! as long.

use super::cache_tensor::{CacheTensor, Elements};
use crate::isa::dispatch;
use crate::isa::shapes::{CACHE_LINE, Prefetch, Q8_BLOCK};
use crate::{Isa, LANES};

/// Widens the block of keys `[panel, head]` into `[head_dim, 16]`.
pub(super) fn widen_keys(isa: Isa, tensor: &CacheTensor, [panel, head]: [usize; 2], to: &mut [f32]) {
    let dim = tensor.head_dim;
    widen(isa, tensor, tensor.block(panel, head), &mut to[..LANES * dim], |from, scales, to| {
        // SAFETY (of the pointer contract in both functions): `widen` passes the pointers that its documentation
        // describes.
        dispatch!(isa, widen_q8_keys(from, scales, to, dim));
    });
}

/// Widens `len` rows of values of the block `[panel, head]`, from `lane` on, into `[len, head_dim]`. A few elements
/// after the last are written, too.
pub(super) fn widen_values(isa: Isa, tensor: &CacheTensor, block: [usize; 2], [lane, len]: [usize; 2], to: &mut [f32]) {
    assert!(lane + len <= LANES);
    let dim = tensor.head_dim;
    let first = tensor.block(block[0], block[1]) + lane * dim;
    widen(isa, tensor, first, &mut to[..(len * dim).next_multiple_of(LANES)], |from, scales, to| {
        dispatch!(isa, widen_q8_values(from, scales, to, dim, lane, len));
    });
}

/// Fills `to` with the elements from `first` on, widened. `quantized` does so for bytes, given pointers to the first of
/// them, to the scales of their block, and to the output.
fn widen(
    isa: Isa,
    tensor: &CacheTensor,
    first: usize,
    to: &mut [f32],
    quantized: impl Fn(*const i8, *const half::f16, *mut f32),
) {
    let (count, at) = (to.len(), tensor.start + first);
    assert!(count.is_multiple_of(LANES));
    let to = to.as_mut_ptr();
    // In each case `count` elements can be read, since the slice has them, and written, by the assertion.
    match &tensor.elements {
        Elements::F32(all) => dispatch!(isa, widen_f32(all[at..at + count].as_ptr(), to, count)),
        Elements::F16(all) => dispatch!(isa, widen_f16(all[at..at + count].as_ptr().cast(), to, count)),
        Elements::BF16(all) => dispatch!(isa, widen_bf16(all[at..at + count].as_ptr().cast(), to, count)),
        Elements::Q8 { quants, scales } => {
            let block = LANES * tensor.head_dim / Q8_BLOCK;
            let scales = &scales[first / Q8_BLOCK / block * block..][..block];
            quantized(quants[at..at + count].as_ptr(), scales.as_ptr().cast(), to);
        }
    }
}

impl Prefetch {
    /// Replaces the list by the blocks `[panel, head]` of these panels.
    pub(super) fn set_blocks(&mut self, tensor: &CacheTensor, head: usize, panels: impl Iterator<Item = usize>) {
        let (start, bytes) = match &tensor.elements {
            Elements::F32(all) => (all.as_ptr().addr(), size_of::<f32>()),
            Elements::F16(all) | Elements::BF16(all) => (all.as_ptr().addr(), size_of::<u16>()),
            Elements::Q8 { quants, .. } => (quants.as_ptr().addr(), size_of::<i8>()),
        };
        self.blocks.clear();
        self.blocks.extend(panels.map(|panel| start + (tensor.start + tensor.block(panel, head)) * bytes));
        self.lines = (LANES * tensor.head_dim * bytes).div_ceil(CACHE_LINE);
    }
}
