//! Activations as the panels of one format want them: views of rounded rows, made once for all products that share
//! an input, and kept for their memory.

use crate::Compute;
use crate::block::Format;
use crate::rounded::{LARGE, Rounded, SMALL};

/// Rounded rows, in the one or two ways that the products of an input ask for.
#[derive(Default)]
pub(crate) struct Views {
    small: Rounded,
    large: Rounded,
    /// For each offset that occurs, what the sums of small blocks start with: minus offset times the sum of quants.
    starts: Vec<(i32, Vec<i32>)>,
    /// Scale times sum of the small blocks.
    weighted_sums: Vec<f32>,
    /// Which of the two are filled, and how many of `starts`.
    filled: [bool; 2],
    starts_filled: usize,
}

/// What a tile reads of its rows.
pub(crate) struct Rows<'a> {
    pub(crate) inputs: usize,
    /// `[rows, inputs]`.
    pub(crate) quants: &'a [i8],
    /// `[rows, inputs / block]`.
    pub(crate) scales: &'a [f32],
    /// Small blocks: what each sum starts with, `[rows, inputs / 32]`.
    pub(crate) starts: &'a [i32],
    /// Small blocks with minimums: `[rows, inputs / 32]`.
    pub(crate) weighted_sums: &'a [f32],
    /// Large blocks: sums of the quants of each part, `[rows, inputs / part]`.
    pub(crate) part_sums: &'a [i16],
}

/// What the starts of a format take off, given what the instruction set takes off by itself.
fn start_offset(format: Format, bias: i32) -> i32 {
    format.offset() - if format.is_wide() { bias } else { 0 }
}

impl Views {
    /// Begins with new rows.
    pub(crate) fn clear(&mut self) {
        self.filled = [false; 2];
        self.starts_filled = 0;
    }

    /// Prepares what weights of `format` need of `x` `[rows, inputs]`.
    pub(crate) fn prepare(&mut self, compute: &Compute, x: &[f32], inputs: usize, format: Format, bias: i32) {
        if format.is_large() {
            if !std::mem::replace(&mut self.filled[1], true) {
                self.large.fill(compute, x, inputs, LARGE);
            }
            return;
        }
        if !std::mem::replace(&mut self.filled[0], true) {
            self.small.fill(compute, x, inputs, SMALL);
            self.weighted_sums.clear();
            let sums = self.small.scales.iter().zip(&self.small.sums_of_32);
            self.weighted_sums.extend(sums.map(|(scale, sum)| scale * f32::from(*sum)));
        }
        let offset = start_offset(format, bias);
        if self.starts[..self.starts_filled].iter().any(|(known, _)| *known == offset) {
            return;
        }
        if self.starts.len() == self.starts_filled {
            self.starts.push((0, Vec::new()));
        }
        let (of, starts) = &mut self.starts[self.starts_filled];
        *of = offset;
        starts.clear();
        starts.extend(self.small.sums_of_32.iter().map(|sum| -offset * i32::from(*sum)));
        self.starts_filled += 1;
    }

    /// The rows for weights of `format`, which were prepared for it.
    pub(crate) fn rows(&self, inputs: usize, format: Format, bias: i32) -> Rows<'_> {
        if format.is_large() {
            let Rounded { quants, scales, sums_of_16, sums_of_32 } = &self.large;
            let part_sums = if format.parts() == 16 { sums_of_16 } else { sums_of_32 };
            return Rows { inputs, quants, scales, starts: &[], weighted_sums: &[], part_sums };
        }
        let offset = start_offset(format, bias);
        let starts = self.starts[..self.starts_filled].iter().find(|(known, _)| *known == offset);
        Rows {
            inputs,
            quants: &self.small.quants,
            scales: &self.small.scales,
            starts: starts.map_or(&[], |(_, starts)| starts),
            weighted_sums: &self.weighted_sums,
            part_sums: &[],
        }
    }
}

impl Rows<'_> {
    /// Asserts that every array has the shape that a tile of this format reads.
    pub(crate) fn check(&self, count: usize, format: Format) {
        let elements = count * self.inputs;
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
