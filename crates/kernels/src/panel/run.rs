//! A task of a product: all rows times one or two panels.
//!
//! Rows are computed in strips of as many rows as the registers of a tile hold. If there are several strips, all of
//! them are computed for one chunk of k, which stays in the L1 cache meanwhile, and then for the next; their sums are
//! kept in memory between chunks, which does not change their bits. A single strip reads its weights from memory, and
//! prefetches what it will read itself a little later. Several strips read them from a cache, and each prefetches an
//! equal part of the panels that come next.

use std::ops::Range;

use super::columns::Columns;
use super::{HeldPanels, K_CHUNK, PANELS_PER_TASK, PREFETCH_DISTANCE_BYTES};
use crate::isa::dispatch;
use crate::isa::shapes::{PanelFormat, Rows, Tile};
use crate::quantized_rows::{ROW_BLOCK, strip_count, strip_height};
use crate::{Isa, LANES};

/// The sums of the panels of a task, `[panel][row][16]`.
type Sums<const ROWS: usize> = [[[f32; LANES]; ROWS]; PANELS_PER_TASK];
/// Up to this number of rows a small array is used: initializing the large one takes as long as computing a few rows.
const FEW_ROWS: usize = 8;

/// Computes the columns `from..to`, at most two panels of them.
pub(crate) fn run(isa: Isa, rows: &Rows<'_>, columns: &Columns<'_>, held: &HeldPanels<'_>, from: usize, to: usize) {
    rows.check(columns.rows, held.panels.form);
    let mut tile = held.tile(from / LANES, (to - from).div_ceil(LANES), rows, isa.tiles().dot_offset);
    assert!(tile.count <= PANELS_PER_TASK && to <= columns.outputs(), "panels: {} at once", tile.count);
    let strips = strip_count(columns.rows, rows.height_max);
    tile.is_single_strip = strips == 1;
    let mut first_strip = 0;
    for first in (0..columns.rows).step_by(ROW_BLOCK) {
        let row_block = first..columns.rows.min(first + ROW_BLOCK);
        let strips = [first_strip, strips];
        first_strip += strip_count(row_block.len(), rows.height_max);
        if row_block.len() <= FEW_ROWS {
            run_rows::<FEW_ROWS>(isa, &mut tile, columns, row_block, strips, from);
        } else {
            run_rows::<ROW_BLOCK>(isa, &mut tile, columns, row_block, strips, from);
        }
    }
}

/// Computes the rows `row_block`, whose first strip is number `first_strip` of `strips`.
fn run_rows<const ROWS: usize>(
    isa: Isa,
    tile: &mut Tile<'_>,
    columns: &Columns<'_>,
    row_block: Range<usize>,
    [first_strip, strips]: [usize; 2],
    column: usize,
) {
    let rows = tile.rows;
    let mut sums: Sums<ROWS> = [[[0.0; LANES]; ROWS]; PANELS_PER_TASK];
    let chunk = if tile.is_single_strip { rows.inputs } else { K_CHUNK };
    for k in (0..rows.inputs).step_by(chunk) {
        let (mut row, mut strip) = (row_block.start, first_strip);
        while row < row_block.end {
            let height = strip_height(row, columns.rows, rows.height_max);
            plan_prefetch(isa, tile, height, [strip, strips]);
            run_strip(isa, tile, (row, height), k..rows.inputs.min(k + chunk), &mut sums, row - row_block.start);
            row += height;
            strip += 1;
        }
    }
    for (number, sums) in sums.iter().enumerate().take(tile.count) {
        // SAFETY: the rows are the output's, the columns are checked in `run`, and a task owns its columns.
        unsafe { columns.write_panel(isa, row_block.start, column + number * LANES, &sums[..row_block.len()]) };
    }
}

/// Sets how the tile is computed for a strip, and what it prefetches meanwhile.
fn plan_prefetch(isa: Isa, tile: &mut Tile<'_>, height: usize, [strip, strips]: [usize; 2]) {
    let tiles = isa.tiles();
    let small = matches!(tile.form, PanelFormat::Blocks(format) if !format.is_large());
    let pairs = match tile.form {
        PanelFormat::Blocks(_) if small && !tile.is_single_strip => tiles.double,
        PanelFormat::Blocks(_) => &[],
        PanelFormat::F32 | PanelFormat::F16 | PanelFormat::BF16 => tiles.float_pairs,
    };
    tile.is_paired = tile.count == 2 && pairs.contains(&height);
    // A pair of panels of small blocks is prefetched as one range, a pair of float panels as two.
    let bytes = if tile.is_paired && small { 2 * tile.stride } else { tile.stride };
    let steps = tile.rows.inputs.div_ceil(tile.form.step());
    tile.prefetch_bytes = bytes.div_ceil(steps * strips);
    let distance = if tile.is_single_strip {
        PREFETCH_DISTANCE_BYTES
    } else {
        PANELS_PER_TASK * tile.stride + strip * tile.prefetch_bytes * steps
    };
    tile.prefetch_from = tile.panel.wrapping_add(distance);
    tile.next_pair_step = if tile.is_single_strip {
        tile.stride.saturating_sub(PREFETCH_DISTANCE_BYTES) / tile.prefetch_bytes
    } else {
        usize::MAX
    };
}

/// Computes one strip with the panels of the tile: both at once if it is a pair, else one after the other.
fn run_strip<const ROWS: usize>(
    isa: Isa,
    tile: &mut Tile<'_>,
    strip: (usize, usize),
    chunk: Range<usize>,
    sums: &mut Sums<ROWS>,
    row_offset: usize,
) {
    assert!(row_offset + strip.1 <= ROWS);
    let sums_stride = ROWS * LANES;
    let (panel, prefetch_from) = (tile.panel, tile.prefetch_from);
    for number in 0..if tile.is_paired { 1 } else { tile.count } {
        tile.panel = panel.wrapping_add(number * tile.stride);
        tile.prefetch_from = prefetch_from.wrapping_add(number * tile.stride);
        let (tile, chunk) = (&*tile, chunk.clone());
        let out = sums.as_mut_ptr().cast::<f32>().wrapping_add(number * sums_stride + row_offset * LANES);
        // SAFETY (of the pointer contract in all four): `HeldPanels::tile` and `Rows::check` have checked the shapes,
        // and the strip's sums of as many panels as the tile has lie in `sums`.
        match tile.form {
            PanelFormat::F32 => dispatch!(isa, strip_f32(tile, strip, chunk, out, sums_stride)),
            PanelFormat::F16 => dispatch!(isa, strip_f16(tile, strip, chunk, out, sums_stride)),
            PanelFormat::BF16 => dispatch!(isa, strip_bf16(tile, strip, chunk, out, sums_stride)),
            PanelFormat::Blocks(_) => dispatch!(isa, strip_blocks(tile, strip, chunk, out, sums_stride)),
        }
    }
    (tile.panel, tile.prefetch_from) = (panel, prefetch_from);
}
