//! Activations in the layouts that products with panels read, prepared once for all products of an input. The memory is
//! kept for the next input.

use crate::block::Format;
use crate::isa::shapes::{LARGE, PanelFormat, Rows, SMALL, TileShapes};
use crate::quantized_rows::{self, QuantizedRows};
use crate::{Compute, Isa};

/// Rows in up to three layouts, as the products of an input need them.
#[derive(Default)]
pub(crate) struct PreparedRows {
    /// The rows quantized in blocks of 32.
    small: QuantizedRows,
    /// The scale times the sum of the quants, for each small block.
    weighted_sums: Vec<f32>,
    /// For each offset that occurs, the initial sums of small blocks: minus the offset times the sum of quants.
    initial_sums: Vec<(i32, Vec<i32>)>,
    /// How many entries of `initial_sums` belong to the current input; the others are kept for their memory.
    initial_sums_filled: usize,
    /// The rows quantized in blocks of 256.
    large: QuantizedRows,
    /// The rows without quantization, `[strip][inputs][rows of the strip]`.
    floats: Vec<f32>,
    /// Which of `small`, `large` and `floats` are filled.
    filled: [bool; 3],
}

/// The offset that the initial sums of a format subtract, besides the offset that the instruction set itself subtracts.
fn initial_offset(format: Format, isa: Isa) -> i32 {
    format.offset() - if format.is_wide() { isa.tiles().dot_offset } else { 0 }
}

/// The maximum number of rows of a strip, which one tile computes, if there are `rows` rows.
fn height_max(rows: usize, form: PanelFormat, isa: Isa) -> usize {
    let TileShapes { single, double, floats, .. } = isa.tiles();
    match (form, double.last()) {
        (PanelFormat::F32 | PanelFormat::F16 | PanelFormat::BF16, _) => floats.len(),
        (PanelFormat::Blocks(format), Some(double)) if !format.is_large() && rows > single.len() => *double,
        _ => single.len(),
    }
}

impl PreparedRows {
    /// Discards the rows that were prepared before.
    pub(crate) fn clear(&mut self) {
        self.filled = [false; 3];
        self.initial_sums_filled = 0;
    }

    /// Prepares the layouts of `x` `[rows, inputs]` that weights of this format need.
    pub(crate) fn prepare(&mut self, compute: &Compute, x: &[f32], inputs: usize, form: PanelFormat) {
        let height_max = height_max(x.len() / inputs, form, compute.isa);
        let PanelFormat::Blocks(format) = form else {
            if !std::mem::replace(&mut self.filled[2], true) {
                self.floats.resize(x.len(), 0.0);
                quantized_rows::pack(compute, x, inputs, height_max, &mut self.floats);
            }
            return;
        };
        if format.is_large() {
            if !std::mem::replace(&mut self.filled[1], true) {
                self.large.fill(compute, x, inputs, LARGE, height_max);
            }
            return;
        }
        if !std::mem::replace(&mut self.filled[0], true) {
            self.small.fill(compute, x, inputs, SMALL, height_max);
            self.weighted_sums.clear();
            let sums = self.small.scales.iter().zip(&self.small.sums);
            self.weighted_sums.extend(sums.map(|(scale, sum)| scale * *sum as f32));
        }
        let offset = initial_offset(format, compute.isa);
        if self.initial_sums[..self.initial_sums_filled].iter().any(|(known, _)| *known == offset) {
            return;
        }
        if self.initial_sums.len() == self.initial_sums_filled {
            self.initial_sums.push((0, Vec::new()));
        }
        let (filled_offset, initial_sums) = &mut self.initial_sums[self.initial_sums_filled];
        *filled_offset = offset;
        initial_sums.clear();
        initial_sums.extend(self.small.sums.iter().map(|sum| -offset * sum));
        self.initial_sums_filled += 1;
    }

    /// The `count` rows that were prepared for weights of this format.
    pub(crate) fn rows(&self, count: usize, inputs: usize, form: PanelFormat, isa: Isa) -> Rows<'_> {
        let height_max = height_max(count, form, isa);
        let none = Rows {
            inputs,
            height_max,
            floats: &[],
            quants: &[],
            scales: &[],
            initial_sums: &[],
            weighted_sums: &[],
            part_sums: &[],
        };
        let PanelFormat::Blocks(format) = form else { return Rows { floats: &self.floats, ..none } };
        let large = format.is_large();
        let QuantizedRows { quants, scales, pairs_of_16, pairs_of_32, .. } =
            if large { &self.large } else { &self.small };
        if large {
            let part_sums = if format.parts() == 16 { pairs_of_16 } else { pairs_of_32 };
            return Rows { quants, scales, part_sums, ..none };
        }
        let offset = initial_offset(format, isa);
        let initial_sums = self.initial_sums[..self.initial_sums_filled].iter().find(|(known, _)| *known == offset);
        let initial_sums = initial_sums.map_or(&[][..], |(_, initial_sums)| initial_sums);
        Rows { quants, scales, initial_sums, weighted_sums: &self.weighted_sums, ..none }
    }
}

impl Rows<'_> {
    /// Asserts that every array has the shape that a tile of this format reads.
    pub(super) fn check(&self, count: usize, form: PanelFormat) {
        let elements = count.checked_mul(self.inputs).expect("panels: the number of elements fits a usize");
        let PanelFormat::Blocks(format) = form else {
            assert_eq!(self.floats.len(), elements, "panels: elements of {count} rows");
            return;
        };
        assert_eq!(self.quants.len(), elements, "panels: quants of {count} rows");
        assert_eq!(self.scales.len(), elements / format.elements(), "panels: scales of {count} rows");
        if format.is_large() {
            assert_eq!(self.part_sums.len(), elements / LARGE * format.parts(), "panels: sums of {count} rows");
        } else {
            assert_eq!(self.initial_sums.len(), elements / SMALL, "panels: starts of {count} rows");
            assert_eq!(self.weighted_sums.len(), elements / SMALL, "panels: weighted sums of {count} rows");
        }
    }
}
