//! A task of a product: all rows against one or two panels.
//!
//! The idea: rows go in strips, as many as the registers of a tile hold. Where there are several strips, they pass in
//! turn over chunks of k, which stay in the nearest cache meanwhile; the sums wait in memory between chunks, which
//! changes no bit of them. One strip reads its weights from memory, and asks for what it will read itself a little
//! later. Several read from a cache, while in equal parts they ask memory for the panels after these.

use std::ops::Range;

use super::columns::Columns;
use super::{AT_ONCE, CHUNK, FAR, Panels};
use crate::isa::dispatch;
use crate::isa::shapes::{Form, Rows, Tile};
use crate::rounded::{ROWS_AT_ONCE, strip_count, strip_height};
use crate::{Isa, LANES};

/// The sums of the panels of a task, `[panel][row][16]`.
type Sums<const ROWS: usize> = [[[f32; LANES]; ROWS]; AT_ONCE];
/// Rows for which a small array is enough; setting up the large one takes as long as computing a few rows does.
const FEW: usize = 8;

/// Computes the columns `from..to`, at most two panels of them.
pub(crate) fn run(isa: Isa, rows: &Rows<'_>, columns: &Columns<'_>, panels: &Panels, from: usize, to: usize) {
    rows.check(columns.rows, panels.form);
    let mut tile = panels.tile(from / LANES, (to - from).div_ceil(LANES), rows, isa.tiles().bias);
    assert!(tile.count <= AT_ONCE && to <= columns.outputs(), "panels: {} at once", tile.count);
    let strips = strip_count(columns.rows, rows.highest);
    tile.alone = strips == 1;
    let mut first_strip = 0;
    for first in (0..columns.rows).step_by(ROWS_AT_ONCE) {
        let some = first..columns.rows.min(first + ROWS_AT_ONCE);
        let strips = [first_strip, strips];
        first_strip += strip_count(some.len(), rows.highest);
        if some.len() <= FEW {
            run_rows::<FEW>(isa, &mut tile, columns, some, strips, from);
        } else {
            run_rows::<ROWS_AT_ONCE>(isa, &mut tile, columns, some, strips, from);
        }
    }
}

/// The rows `some`, whose first strip has the number `first_strip` of `strips`.
fn run_rows<const ROWS: usize>(
    isa: Isa,
    tile: &mut Tile<'_>,
    columns: &Columns<'_>,
    some: Range<usize>,
    [first_strip, strips]: [usize; 2],
    column: usize,
) {
    let rows = tile.rows;
    let mut sums: Sums<ROWS> = [[[0.0; LANES]; ROWS]; AT_ONCE];
    let chunk = if tile.alone { rows.inputs } else { CHUNK };
    for k in (0..rows.inputs).step_by(chunk) {
        let (mut row, mut strip) = (some.start, first_strip);
        while row < some.end {
            let height = strip_height(row, columns.rows, rows.highest);
            look_ahead(isa, tile, height, [strip, strips]);
            run_strip(isa, tile, (row, height), k..rows.inputs.min(k + chunk), &mut sums, row - some.start);
            row += height;
            strip += 1;
        }
    }
    for (number, sums) in sums.iter().enumerate().take(tile.count) {
        // SAFETY: the rows are the output's, the columns are checked in `run`, and a task owns its columns.
        unsafe { columns.set(isa, some.start, column + number * LANES, &sums[..some.len()]) };
    }
}

/// Says how the tile is computed for a strip, and what it asks memory for meanwhile.
fn look_ahead(isa: Isa, tile: &mut Tile<'_>, height: usize, [strip, strips]: [usize; 2]) {
    let tiles = isa.tiles();
    let small = matches!(tile.form, Form::Blocks(format) if !format.is_large());
    let pairs = match tile.form {
        Form::Blocks(_) if small && !tile.alone => tiles.double,
        Form::Blocks(_) => &[],
        Form::F32 | Form::F16 | Form::BF16 => tiles.float_pairs,
    };
    tile.paired = tile.count == 2 && pairs.contains(&height);
    // A pair of small blocks asks for both panels through one place, one of floats through a place each.
    let bytes = if tile.paired && small { 2 * tile.stride } else { tile.stride };
    let steps = tile.rows.inputs.div_ceil(tile.form.step());
    tile.share = bytes.div_ceil(steps * strips);
    let behind = if tile.alone { FAR } else { AT_ONCE * tile.stride + strip * tile.share * steps };
    tile.ahead = tile.panel.wrapping_add(behind);
    tile.turn = if tile.alone { tile.stride.saturating_sub(FAR) / tile.share } else { usize::MAX };
}

/// Computes one strip with the panels of the tile: both side by side where it is paired, else one after the other.
fn run_strip<const ROWS: usize>(
    isa: Isa,
    tile: &mut Tile<'_>,
    strip: (usize, usize),
    chunk: Range<usize>,
    sums: &mut Sums<ROWS>,
    at: usize,
) {
    assert!(at + strip.1 <= ROWS);
    let apart = ROWS * LANES;
    let (panel, ahead) = (tile.panel, tile.ahead);
    for number in 0..if tile.paired { 1 } else { tile.count } {
        tile.panel = panel.wrapping_add(number * tile.stride);
        tile.ahead = ahead.wrapping_add(number * tile.stride);
        let (tile, chunk) = (&*tile, chunk.clone());
        let out = sums.as_mut_ptr().cast::<f32>().wrapping_add(number * apart + at * LANES);
        // SAFETY (of the pointer contract in all four): `Panels::tile` and `Rows::check` have checked the shapes, and
        // the strip's sums of as many panels as the tile has lie in `sums`.
        match tile.form {
            Form::F32 => dispatch!(isa, strip_f32(tile, strip, chunk, out, apart)),
            Form::F16 => dispatch!(isa, strip_f16(tile, strip, chunk, out, apart)),
            Form::BF16 => dispatch!(isa, strip_bf16(tile, strip, chunk, out, apart)),
            Form::Blocks(_) => dispatch!(isa, strip_blocks(tile, strip, chunk, out, apart)),
        }
    }
    (tile.panel, tile.ahead) = (panel, ahead);
}
