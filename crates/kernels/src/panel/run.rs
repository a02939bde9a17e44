//! A task of a product: all rows against one or two panels.
//!
//! The idea: rows go in strips, as many as the registers of a tile hold. Where there are several strips, they pass in turn
//! over chunks of k, which stay in the nearest cache meanwhile; the sums wait in memory between chunks, which changes no
//! bit of them. One strip reads its weights from memory, and asks for what it will read itself a little later. Several read
//! from a cache, while in equal parts they ask memory for the panels after these.

use super::{AT_ONCE, CHUNK, FAR, Form, Panels, Rows, Tile};
use crate::isa::dispatch;
use crate::matmul::Columns;
use crate::rounded::{ROWS_AT_ONCE, strip_count, strip_height};
use crate::{Isa, LANES};

/// The sums of a panel.
type Sums = [[f32; LANES]; ROWS_AT_ONCE];
/// Floats from the sums of a panel to those of the next.
const APART: usize = ROWS_AT_ONCE * LANES;

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
        let mut sums = [[[0f32; LANES]; ROWS_AT_ONCE]; AT_ONCE];
        let chunk = if tile.alone { rows.inputs } else { CHUNK };
        for k in (0..rows.inputs).step_by(chunk) {
            let (mut row, mut strip) = (some.start, first_strip);
            while row < some.end {
                let height = strip_height(row, columns.rows, rows.highest);
                look_ahead(isa, &mut tile, height, [strip, strips]);
                let chunk = k..rows.inputs.min(k + chunk);
                run_strip(isa, &mut tile, (row, height), chunk, &mut sums, row - some.start);
                row += height;
                strip += 1;
            }
        }
        first_strip += strip_count(some.len(), rows.highest);
        for (number, sums) in sums.iter().enumerate().take(tile.count) {
            for (row, lanes) in some.clone().zip(sums) {
                // SAFETY: the row is one of the output's, the column is checked above, and a task owns its columns.
                unsafe { columns.set_lanes(row, from + number * LANES, lanes) };
            }
        }
    }
}

/// Says how the tile is computed for a strip, and what it asks memory for meanwhile.
fn look_ahead(isa: Isa, tile: &mut Tile<'_>, height: usize, [strip, strips]: [usize; 2]) {
    let double = isa.tiles().double;
    let small = matches!(tile.form, Form::Blocks(format) if !format.is_large());
    tile.paired = small && !tile.alone && tile.count == 2 && double.contains(&height);
    let bytes = if tile.paired { 2 * tile.stride } else { tile.stride };
    let steps = tile.rows.inputs.div_ceil(tile.form.step());
    tile.share = bytes.div_ceil(steps * strips);
    let behind = if tile.alone { FAR } else { AT_ONCE * tile.stride + strip * tile.share * steps };
    tile.ahead = tile.panel.wrapping_add(behind);
}

fn run_strip(
    isa: Isa,
    tile: &mut Tile<'_>,
    strip: (usize, usize),
    chunk: std::ops::Range<usize>,
    sums: &mut [Sums; AT_ONCE],
    at: usize,
) {
    assert!(at + strip.1 <= ROWS_AT_ONCE);
    let out = sums.as_mut_ptr().cast::<f32>().wrapping_add(at * LANES);
    // SAFETY (of the pointer contract in all four): `Panels::tile` and `Rows::check` have checked the shapes, and the
    // strip's sums of as many panels as the tile has lie in `sums`.
    match tile.form {
        Form::F32 => dispatch!(isa, strip_f32(tile, strip, chunk, out, APART)),
        Form::F16 => dispatch!(isa, strip_f16(tile, strip, chunk, out, APART)),
        Form::BF16 => dispatch!(isa, strip_bf16(tile, strip, chunk, out, APART)),
        Form::Blocks(_) => dispatch!(isa, strip_blocks(tile, strip, chunk, out, APART)),
    }
}
