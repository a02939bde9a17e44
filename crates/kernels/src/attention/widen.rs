//! Blocks of the cache as f32, and where blocks lie that will be needed next.
//!
//! A block is widened once for all queries of a tile. That costs a load, a conversion and a store for each sixteen
//! elements, which is what two queries do with them; from a memory of 17 GB/s a core they take three times as long.
//! Left out: arithmetic on narrow elements.

use super::side::{Elements, Side};
use crate::isa::dispatch;
use crate::isa::shapes::{Ahead, CACHE_LINE, QUANTS};
use crate::{Isa, LANES};

/// Widens the block of keys `[panel, head]` into `[head_dim, 16]`.
pub(super) fn widen_keys(isa: Isa, side: &Side, [panel, head]: [usize; 2], to: &mut [f32]) {
    let dim = side.head_dim;
    widen(isa, side, side.block(panel, head), &mut to[..LANES * dim], |from, scales, to| {
        // SAFETY (of the pointer contract in both functions): `widen` hands out what its documentation says.
        dispatch!(isa, widen_q8_keys(from, scales, to, dim));
    });
}

/// Widens `len` rows of values of the block `[panel, head]`, from `lane` on, into `[len, head_dim]`. A few elements
/// behind the last are written, too.
pub(super) fn widen_values(isa: Isa, side: &Side, place: [usize; 2], [lane, len]: [usize; 2], to: &mut [f32]) {
    assert!(lane + len <= LANES);
    let dim = side.head_dim;
    let first = side.block(place[0], place[1]) + lane * dim;
    widen(isa, side, first, &mut to[..(len * dim).next_multiple_of(LANES)], |from, scales, to| {
        dispatch!(isa, widen_q8_values(from, scales, to, dim, lane, len));
    });
}

/// Fills `to` with the elements from `first` on, widened. `quantized` does it for bytes, given pointers to the first of
/// as many of them, to the scales of their block, and to the output.
fn widen(
    isa: Isa,
    side: &Side,
    first: usize,
    to: &mut [f32],
    quantized: impl Fn(*const i8, *const half::f16, *mut f32),
) {
    let (count, at) = (to.len(), side.start + first);
    assert!(count.is_multiple_of(LANES));
    let to = to.as_mut_ptr();
    // In each case `count` elements can be read, since the slice has them, and written, by the assertion.
    match &side.elements {
        Elements::F32(all) => dispatch!(isa, widen_f32(all[at..at + count].as_ptr(), to, count)),
        Elements::F16(all) => dispatch!(isa, widen_f16(all[at..at + count].as_ptr().cast(), to, count)),
        Elements::BF16(all) => dispatch!(isa, widen_bf16(all[at..at + count].as_ptr().cast(), to, count)),
        Elements::Q8 { quants, scales } => {
            let block = LANES * side.head_dim / QUANTS;
            let scales = &scales[first / QUANTS / block * block..][..block];
            quantized(quants[at..at + count].as_ptr(), scales.as_ptr().cast(), to);
        }
    }
}

impl Ahead {
    /// Names the blocks `[panel, head]` of some panels instead of what was named before.
    pub(super) fn name(&mut self, side: &Side, head: usize, panels: impl Iterator<Item = usize>) {
        let (start, bytes) = match &side.elements {
            Elements::F32(all) => (all.as_ptr().addr(), size_of::<f32>()),
            Elements::F16(all) | Elements::BF16(all) => (all.as_ptr().addr(), size_of::<u16>()),
            Elements::Q8 { quants, .. } => (quants.as_ptr().addr(), size_of::<i8>()),
        };
        self.blocks.clear();
        self.blocks.extend(panels.map(|panel| start + (side.start + side.block(panel, head)) * bytes));
        self.lines = (LANES * side.head_dim * bytes).div_ceil(CACHE_LINE);
    }
}
