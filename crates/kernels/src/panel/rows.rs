//! Activations as the panels of one format want them: views of rounded rows, made once for all products that share
//! an input, and kept for their memory.

use crate::block::Format;
use crate::isa::shapes::{Form, LARGE, Rows, SMALL, Tiles};
use crate::rounded::{self, Rounded};
use crate::{Compute, Isa};

/// Rows in the one, two or three ways that the products of an input ask for.
#[derive(Default)]
pub(crate) struct Views {
    /// In blocks of 32, with what follows from them.
    small: Rounded,
    /// Scale times sum of the small blocks.
    weighted_sums: Vec<f32>,
    /// For each offset that occurs, what the sums of small blocks start with: minus offset times the sum of quants.
    starts: Vec<(i32, Vec<i32>)>,
    starts_filled: usize,
    /// In blocks of 256.
    large: Rounded,
    /// Not rounded, `[strip][inputs][rows of the strip]`.
    floats: Vec<f32>,
    /// Which of the three are filled.
    filled: [bool; 3],
}

/// What the starts of a format take off, given what the instruction set takes off by itself.
fn start_offset(format: Format, isa: Isa) -> i32 {
    format.offset() - if format.is_wide() { isa.tiles().bias } else { 0 }
}

/// The highest strip for this number of rows.
fn highest(rows: usize, form: Form, isa: Isa) -> usize {
    let Tiles { single, double, floats, .. } = isa.tiles();
    match (form, double.last()) {
        (Form::F32 | Form::F16 | Form::BF16, _) => floats.len(),
        (Form::Blocks(format), Some(double)) if !format.is_large() && rows > single.len() => *double,
        _ => single.len(),
    }
}

impl Views {
    /// Begins with new rows.
    pub(crate) fn clear(&mut self) {
        self.filled = [false; 3];
        self.starts_filled = 0;
    }

    /// Prepares what weights of this form need of `x` `[rows, inputs]`.
    pub(crate) fn prepare(&mut self, compute: &Compute, x: &[f32], inputs: usize, form: Form) {
        let highest = highest(x.len() / inputs, form, compute.isa);
        let Form::Blocks(format) = form else {
            if !std::mem::replace(&mut self.filled[2], true) {
                self.floats.resize(x.len(), 0.0);
                rounded::pack(compute, x, inputs, highest, &mut self.floats);
            }
            return;
        };
        if format.is_large() {
            if !std::mem::replace(&mut self.filled[1], true) {
                self.large.fill(compute, x, inputs, LARGE, highest);
            }
            return;
        }
        if !std::mem::replace(&mut self.filled[0], true) {
            self.small.fill(compute, x, inputs, SMALL, highest);
            self.weighted_sums.clear();
            let sums = self.small.scales.iter().zip(&self.small.sums);
            self.weighted_sums.extend(sums.map(|(scale, sum)| scale * *sum as f32));
        }
        let offset = start_offset(format, compute.isa);
        if self.starts[..self.starts_filled].iter().any(|(known, _)| *known == offset) {
            return;
        }
        if self.starts.len() == self.starts_filled {
            self.starts.push((0, Vec::new()));
        }
        let (of, starts) = &mut self.starts[self.starts_filled];
        *of = offset;
        starts.clear();
        starts.extend(self.small.sums.iter().map(|sum| -offset * sum));
        self.starts_filled += 1;
    }

    /// `count` rows for weights of this form, which were prepared for it.
    pub(crate) fn rows(&self, count: usize, inputs: usize, form: Form, isa: Isa) -> Rows<'_> {
        let highest = highest(count, form, isa);
        let none = Rows {
            inputs,
            highest,
            floats: &[],
            quants: &[],
            scales: &[],
            starts: &[],
            weighted_sums: &[],
            part_sums: &[],
        };
        let Form::Blocks(format) = form else { return Rows { floats: &self.floats, ..none } };
        let large = format.is_large();
        let Rounded { quants, scales, pairs_of_16, pairs_of_32, .. } = if large { &self.large } else { &self.small };
        if large {
            let part_sums = if format.parts() == 16 { pairs_of_16 } else { pairs_of_32 };
            return Rows { quants, scales, part_sums, ..none };
        }
        let offset = start_offset(format, isa);
        let starts = self.starts[..self.starts_filled].iter().find(|(known, _)| *known == offset);
        let starts = starts.map_or(&[][..], |(_, starts)| starts);
        Rows { quants, scales, starts, weighted_sums: &self.weighted_sums, ..none }
    }
}

impl Rows<'_> {
    /// Asserts that every array has the shape that a tile of this format reads.
    pub(super) fn check(&self, count: usize, form: Form) {
        let elements = count.checked_mul(self.inputs).expect("panels: elements that a machine can number");
        let Form::Blocks(format) = form else {
            assert_eq!(self.floats.len(), elements, "panels: elements of {count} rows");
            return;
        };
        assert_eq!(self.quants.len(), elements, "panels: quants of {count} rows");
        assert_eq!(self.scales.len(), elements / format.elements(), "panels: scales of {count} rows");
        if format.is_large() {
            assert_eq!(self.part_sums.len(), elements / LARGE * format.parts(), "panels: sums of {count} rows");
        } else {
            assert_eq!(self.starts.len(), elements / SMALL, "panels: starts of {count} rows");
            assert_eq!(self.weighted_sums.len(), elements / SMALL, "panels: weighted sums of {count} rows");
        }
    }
}
