//! The second half of a split: its values, weighted by the exponentials of their scores, are added up for each row.
//!
//! The sums of a row are added up one position after another, in order, so rows of different lengths are computed
//! together up to the end of the shortest, and then each alone. The weights are computed in `split.rs`.

use super::{SplitTask, WIDENED_ELEMENTS, Workspace, aligned, column};
use crate::LANES;
use crate::attention::widen::widen_values;
use crate::isa::dispatch;
use crate::isa::shapes::{FACTORS_STRIDE, Prefetch, SPLIT, Sum};

/// Widened values of consecutive positions, which are to be weighted and added up.
#[derive(Clone, Copy)]
struct Values<'a> {
    /// `[terms, head_dim]`.
    values: &'a [f32],
    /// The position of the first value, from the beginning of the split.
    position: usize,
    /// Number of values.
    terms: usize,
    /// What to prefetch meanwhile.
    prefetch: Option<&'a Prefetch>,
}

impl SplitTask<'_> {
    /// Adds weighted values to the sums of the rows from `rows[0]` on and before `rows[1]`; `scores` (the weights) and
    /// `sums` have all rows of the tile.
    fn add_values(&self, scores: &[f32], rows: [usize; 2], values: Values<'_>, sums: &mut [f32]) {
        let (dim, group, Values { values, position, terms, prefetch }) = (self.dim(), self.group(), values);
        let (width, count) = (dim.next_multiple_of(LANES), (rows[1] - rows[0]) * group);
        if count == 0 || terms == 0 {
            return;
        }
        assert!(position + terms <= SPLIT && values.len() >= (terms - 1) * dim + width);
        let sum = Sum {
            factors: scores[rows[0] * group * FACTORS_STRIDE..][..count * FACTORS_STRIDE][position..].as_ptr(),
            terms: values.as_ptr(),
            terms_step: dim,
            terms_next: LANES,
            count: terms,
            sums: sums[rows[0] * group * width..][..count * width].as_mut_ptr(),
            sums_stride: width,
            rows: count,
            vectors: width / LANES,
            fresh: false,
            prefetch,
        };
        // Every factor, term and sum lies in the slices, by their lengths. The last vector of a term may reach into the
        // next: its lanes beyond the elements of the head are not used.
        dispatch!(self.isa, accumulate(&sum));
    }

    /// Adds the weighted values of the positions that the rows of the tile share.
    pub(super) fn add_shared_values(&self, workspace: &mut Workspace, sums: &mut [f32]) {
        let (block, dim, rows) = (self.block(), self.dim(), self.rows());
        let Workspace { scores, widened, runs, prefetch, .. } = workspace;
        let scores = &*self.scores(scores);
        let at_once = (WIDENED_ELEMENTS / block).max(1);
        let widened = aligned(widened, at_once * block + LANES);
        for (i, chunk) in runs.chunks(at_once).enumerate() {
            let (from, last) = (chunk[0].position, chunk[chunk.len() - 1]);
            let to = last.position + last.len;
            for run in chunk {
                let (block_index, lanes) = ([run.panel, self.head], [run.lane, run.len]);
                widen_values(
                    self.isa,
                    self.arguments.values,
                    block_index,
                    lanes,
                    &mut widened[(run.position - from) * dim..],
                );
            }
            let next = runs.get((i + 1) * at_once..).unwrap_or(&[]).iter().take(at_once);
            prefetch.set_blocks(self.arguments.values, self.head, next.map(|run| run.panel));
            let windowed = self.arguments.window.is_some();
            let begin = |row: usize| if windowed { self.visible(row)[0].clamp(from, to) - from } else { 0 };
            let reach = |row: usize| self.visible(row)[1].clamp(from, to) - from;
            let values_of = |first: usize, terms: usize, row: usize| Values {
                values: &widened[first * dim..],
                position: from + first,
                terms,
                prefetch: (row == 0).then_some(&*prefetch),
            };
            let mut row = 0;
            while row < rows {
                // A row that begins within the chunk is computed alone.
                if begin(row) > 0 {
                    let first = begin(row);
                    self.add_values(
                        scores,
                        [row, row + 1],
                        values_of(first, reach(row).saturating_sub(first), row),
                        sums,
                    );
                    row += 1;
                    continue;
                }
                // Adjacent rows that have the whole chunk are computed together.
                let whole = (row..rows).take_while(|row| begin(*row) == 0 && reach(*row) == to - from).count();
                self.add_values(scores, [row, row + whole], values_of(0, to - from, row), sums);
                row += whole;
                // Rows that end within the chunk are computed a few at a time: together up to the end of the shortest,
                // then one by one.
                let few = (row..rows).take_while(|row| begin(*row) == 0 && reach(*row) < to - from);
                let few = few.take(8usize.div_ceil(self.group()));
                let end = row + few.count();
                let common = (row..end).map(reach).min().unwrap_or(0);
                self.add_values(scores, [row, end], values_of(0, common, row), sums);
                for row in row..end {
                    self.add_values(scores, [row, row + 1], values_of(common, reach(row) - common, 1), sums);
                }
                row = end;
            }
        }
    }

    /// Adds the weighted values of the rows' own tails.
    pub(super) fn add_tail_values(&self, workspace: &mut Workspace, sums: &mut [f32]) {
        let (block, dim) = (self.block(), self.dim());
        let Workspace { scores, widened, panels, .. } = workspace;
        let scores = &*self.scores(scores);
        let widened = aligned(widened, panels.len() * block + LANES);
        for (i, panel) in panels.iter().enumerate() {
            let block_index = [*panel, self.head];
            widen_values(self.isa, self.arguments.values, block_index, [0, LANES], &mut widened[i * block..]);
        }
        for row in 0..self.rows() {
            let (mut rest, mut position) = self.tail(row);
            while let Some(slot) = rest.first() {
                let first = column(panels, *slot);
                let terms = (1..rest.len()).take_while(|i| column(panels, rest[*i]) == first + i).count() + 1;
                let values = Values { values: &widened[first * dim..], position, terms, prefetch: None };
                self.add_values(scores, [row, row + 1], values, sums);
                (rest, position) = (&rest[terms..], position + terms);
            }
        }
    }
}
