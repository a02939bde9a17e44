//! Attention over one split of the positions, for one key-value head and one tile of rows: scores, exponentials,
//! weighted values.
//!
//! Blocks of the cache are widened to f32 a few at a time, and everything that the tile's queries need of them is
//! computed while they lie in the L1 cache. Scores and weighted values are both [`Sum`]s. A score is one chain over the
//! elements of a head in order, so it does not matter in which lane of which block it is computed, and lanes of other
//! slots are ignored. A weighted value is one chain over the positions of a row in order, so rows of different lengths
//! are computed together as far as all of them go, and then each alone.
//!
//! Slots out of order give right results, but slowly: each run of consecutive slots costs as much as a block.

use super::widen::{widen_keys, widen_values};
use super::{Arguments, RowSlots};
use crate::isa::dispatch;
use crate::isa::shapes::{CACHE_LINE, FACTORS_STRIDE, Prefetch, SPLIT, Sum};
use crate::{Isa, LANES};

/// Elements of a head that are widened at once: 16 KB, which leaves room in the L1 cache.
const WIDENED_ELEMENTS: usize = 4096;

/// Rows that share what they read: the prefix of each is the beginning of `shared`.
pub(super) struct Tile<'a> {
    /// The first row.
    pub(super) first: usize,
    pub(super) row_slots: &'a [RowSlots<'a>],
    /// The longest of the rows' prefixes.
    pub(super) shared: &'a [u32],
}

/// The computation of one split.
pub(super) struct SplitTask<'a> {
    pub(super) isa: Isa,
    pub(super) arguments: &'a Arguments<'a>,
    /// `[rows, heads, head_dim]` of the whole call.
    pub(super) queries: &'a [f32],
    pub(super) tile: &'a Tile<'a>,
    /// The key-value head.
    pub(super) head: usize,
    /// The first position of the split.
    pub(super) from: usize,
}

/// Consecutive positions in consecutive slots of one block.
#[derive(Clone, Copy)]
struct Run {
    /// The first position, counted in the split.
    position: usize,
    panel: usize,
    lane: usize,
    len: usize,
}

/// A thread's working memory, kept between calls.
#[derive(Default)]
pub(super) struct Workspace {
    /// `[head_dim / SPLIT, rows, group, FACTORS_STRIDE]`.
    queries: Vec<f32>,
    /// `[rows, group, FACTORS_STRIDE]`, by position of the split.
    scores: Vec<f32>,
    /// Blocks as f32.
    widened: Vec<f32>,
    /// Scores of single blocks, before they are sorted by position.
    block_scores: Vec<f32>,
    runs: Vec<Run>,
    prefetch: Prefetch,
    /// Blocks with slots of tails.
    panels: Vec<usize>,
}

/// The partial result of a split: for each query the highest score, the sum of the exponentials of the scores minus the
/// highest, and the values weighted by these. `[rows, group, padded head_dim]`, then twice `[rows, group]`.
pub(super) struct Partial<'a> {
    pub(super) sums: &'a mut [f32],
    pub(super) highest: &'a mut [f32],
    pub(super) totals: &'a mut [f32],
}

impl<'a> Partial<'a> {
    /// Elements for `queries` queries of `width` padded elements.
    pub(super) fn len(queries: usize, width: usize) -> usize {
        queries * (width + 2)
    }

    /// Views the first elements of a slab.
    pub(super) fn new(slab: &'a mut [f32], queries: usize, width: usize) -> Self {
        let (sums, rest) = slab.split_at_mut(queries * width);
        let (highest, rest) = rest.split_at_mut(queries);
        Self { sums, highest, totals: &mut rest[..queries] }
    }
}

/// `len` elements of `memory`, which grows if it must, from the beginning of a cache line on. They keep their values
/// until more are requested.
pub(super) fn aligned(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if memory.len() < len + LANES {
        memory.resize(len + LANES, 0.0);
    }
    let start = memory.as_ptr().align_offset(CACHE_LINE).min(LANES);
    &mut memory[start..start + len]
}

impl SplitTask<'_> {
    fn group(&self) -> usize {
        self.arguments.heads / self.arguments.keys.kv_heads
    }

    fn dim(&self) -> usize {
        self.arguments.keys.head_dim
    }

    fn rows(&self) -> usize {
        self.tile.row_slots.len()
    }

    /// The first position that a row sees.
    fn first(&self, row: usize) -> usize {
        self.tile.row_slots[row].first(self.arguments.window)
    }

    /// Positions in the split: where those that a row sees begin, where its prefix ends, where the row ends.
    fn visible(&self, row: usize) -> [usize; 3] {
        let RowSlots { prefix, tail } = self.tile.row_slots[row];
        [self.first(row), prefix.len(), prefix.len() + tail.len()]
            .map(|position| position.saturating_sub(self.from).min(SPLIT))
    }

    /// The slots of a row's tail that belong to the split, and the position of the first.
    fn tail(&self, row: usize) -> (&[u32], usize) {
        let RowSlots { prefix, tail } = self.tile.row_slots[row];
        let at = |position: usize| position.saturating_sub(prefix.len()).min(tail.len());
        let (begin, end) = (at(self.from.max(self.first(row))), at(self.from + SPLIT));
        let [first, prefix, _] = self.visible(row);
        (&tail[begin.min(end)..end], first.max(prefix))
    }

    /// Elements of a block.
    fn block(&self) -> usize {
        LANES * self.dim()
    }

    /// Room for the queries of this head, in pieces that fit a row of factors.
    fn packed_queries<'a>(&self, memory: &'a mut Vec<f32>) -> &'a mut [f32] {
        aligned(memory, self.dim().div_ceil(SPLIT) * self.rows() * self.group() * FACTORS_STRIDE)
    }

    /// Room for the scores of all queries, `FACTORS_STRIDE` apart.
    fn scores<'a>(&self, memory: &'a mut Vec<f32>) -> &'a mut [f32] {
        aligned(memory, self.rows() * self.group() * FACTORS_STRIDE)
    }

    /// Computes the split. Results of rows that do not reach it are meaningless.
    pub(super) fn compute(&self, workspace: &mut Workspace, partial: &mut Partial<'_>) {
        let shared = self.tile.shared;
        let lowest = (0..self.rows()).map(|row| self.first(row)).min().unwrap_or(0).clamp(self.from, self.from + SPLIT);
        let slots = &shared[lowest.min(shared.len())..shared.len().min(self.from + SPLIT)];
        find_runs(slots, lowest - self.from, &mut workspace.runs);
        workspace.panels.clear();
        let tails = (0..self.rows()).flat_map(|row| self.tail(row).0);
        workspace.panels.extend(tails.map(|slot| *slot as usize / LANES));
        workspace.panels.sort_unstable();
        workspace.panels.dedup();
        self.pack_queries(self.packed_queries(&mut workspace.queries));
        self.score_shared(workspace);
        self.score_tails(workspace);
        let scores = self.scores(&mut workspace.scores);
        for row in 0..self.rows() {
            let [begin, _, end] = self.visible(row);
            for query in row * self.group()..(row + 1) * self.group() {
                let scores = &mut scores[query * FACTORS_STRIDE..][begin.min(end)..end];
                let scale = self.adjust_scores(row, query, scores);
                let (highest, total) = dispatch!(self.isa, exponentials(scores, scale));
                (partial.highest[query], partial.totals[query]) = (highest, total);
            }
        }
        partial.sums.fill(0.0);
        self.add_shared_values(workspace, partial.sums);
        self.add_tail_values(workspace, partial.sums);
    }

    /// Applies the soft cap and the slope of distance to the scores of one query, where there are any; returns the
    /// scale that is still to be applied.
    fn adjust_scores(&self, row: usize, query: usize, scores: &mut [f32]) -> f32 {
        let Arguments { mut scale, soft_cap, slopes, window, .. } = *self.arguments;
        if let Some(cap) = soft_cap {
            dispatch!(self.isa, cap_scores(scores, scale, cap));
            scale = 1.0;
        }
        if let Some(slope) = slopes.get(self.head * self.group() + query % self.group()) {
            let slots = self.tile.row_slots[row];
            let distance = slots.len() - 1 - slots.first(window).max(self.from).min(slots.len() - 1);
            dispatch!(self.isa, slope_scores(scores, scale, *slope, distance));
            scale = 1.0;
        }
        scale
    }

    /// Copies the queries of this head to consecutive rows of factors.
    fn pack_queries(&self, packed_queries: &mut [f32]) {
        let (dim, group, rows) = (self.dim(), self.group(), self.rows());
        for row in 0..rows {
            let first = ((self.tile.first + row) * self.arguments.heads + self.head * group) * dim;
            for (g, query) in self.queries[first..][..group * dim].chunks_exact(dim).enumerate() {
                for (piece, elements) in query.chunks(SPLIT).enumerate() {
                    let at = ((piece * rows + row) * group + g) * FACTORS_STRIDE;
                    packed_queries[at..at + elements.len()].copy_from_slice(elements);
                }
            }
        }
    }

    /// Rows whose prefix reaches beyond a position of the split: the first and the one after the last.
    fn rows_beyond(&self, position: usize) -> [usize; 2] {
        let mut rows = (0..self.rows()).filter(|row| self.visible(*row)[1] > position);
        let first = rows.next().unwrap_or(0);
        [first, rows.next_back().map_or(first, |last| last.max(first)) + 1]
    }

    /// Computes the raw scores of the rows' queries with some widened blocks of keys, into `out`.
    fn score(&self, queries: &[f32], rows: [usize; 2], keys: Keys<'_>, out: (&mut [f32], usize)) {
        let (dim, group, Keys { keys, vectors, prefetch }) = (self.dim(), self.group(), keys);
        let ((out, sums_stride), count) = (out, (rows[1] - rows[0]) * group);
        assert!(keys.len() >= vectors * self.block());
        assert!(out.len() >= (count - 1) * sums_stride + vectors * LANES);
        for (piece, from) in (0..dim).step_by(SPLIT).enumerate() {
            let first = (piece * self.rows() + rows[0]) * group * FACTORS_STRIDE;
            let sum = Sum {
                factors: queries[first..first + count * FACTORS_STRIDE].as_ptr(),
                terms: keys[from * LANES..].as_ptr(),
                terms_step: LANES,
                terms_next: self.block(),
                count: (dim - from).min(SPLIT),
                sums: out.as_mut_ptr(),
                sums_stride,
                rows: count,
                vectors,
                fresh: piece == 0,
                prefetch: prefetch.filter(|_| piece == 0),
            };
            // Every factor, term and sum lies in the slices, whose lengths were asserted above.
            dispatch!(self.isa, accumulate(&sum));
        }
    }

    /// Computes the scores of the shared positions, for the rows that have them.
    fn score_shared(&self, workspace: &mut Workspace) {
        let (block, group) = (self.block(), self.group());
        let Workspace { queries, scores, widened, block_scores, runs, prefetch, .. } = workspace;
        let (queries, scores) = (&*self.packed_queries(queries), self.scores(scores));
        let at_once = (WIDENED_ELEMENTS / block).max(1);
        let widened = aligned(widened, at_once * block + LANES);
        let block_scores = aligned(block_scores, self.rows() * group * LANES);
        for (i, chunk) in runs.chunks(at_once).enumerate() {
            for (i, run) in chunk.iter().enumerate() {
                widen_keys(self.isa, self.arguments.keys, [run.panel, self.head], &mut widened[i * block..]);
            }
            // While these are used, the next keys are prefetched, and after the last keys the first values.
            let (tensor, next) = match runs.get((i + 1) * at_once..) {
                Some(next) if !next.is_empty() => (self.arguments.keys, next),
                _ => (self.arguments.values, &runs[..]),
            };
            prefetch.set_blocks(tensor, self.head, next.iter().take(at_once).map(|run| run.panel));
            let mut first = 0;
            while first < chunk.len() {
                let run = chunk[first];
                let rows = self.rows_beyond(run.position);
                let query = rows[0] * group;
                let (keys, prefetch) = (&widened[first * block..], (first == 0).then_some(&*prefetch));
                if run.lane == 0 {
                    // Consecutive whole blocks are vectors of one sum. What the last of them writes beyond its run is
                    // overwritten by the next, or belongs to no row.
                    let whole = chunk[first..].windows(2).take_while(|w| w[0].len == LANES && w[1].lane == 0).count();
                    let out = &mut scores[query * FACTORS_STRIDE + run.position..];
                    self.score(queries, rows, Keys { keys, vectors: whole + 1, prefetch }, (out, FACTORS_STRIDE));
                    first += whole + 1;
                    continue;
                }
                self.score(queries, rows, Keys { keys, vectors: 1, prefetch }, (block_scores, LANES));
                for i in 0..(rows[1] - rows[0]) * group {
                    scores[(query + i) * FACTORS_STRIDE + run.position..][..run.len]
                        .copy_from_slice(&block_scores[i * LANES + run.lane..][..run.len]);
                }
                first += 1;
            }
        }
    }

    /// Computes the scores of the rows' own tails: of every query with every block that some tail touches, of which
    /// each row then takes its own.
    fn score_tails(&self, workspace: &mut Workspace) {
        let (block, group, rows) = (self.block(), self.group(), self.rows());
        let Workspace { queries, scores, widened, block_scores, panels, .. } = workspace;
        let (queries, scores) = (&*self.packed_queries(queries), self.scores(scores));
        let stride = panels.len() * LANES;
        let block_scores = aligned(block_scores, rows * group * stride);
        let widened = aligned(widened, block + LANES);
        for (i, panel) in panels.iter().enumerate() {
            widen_keys(self.isa, self.arguments.keys, [*panel, self.head], widened);
            let keys = Keys { keys: widened, vectors: 1, prefetch: None };
            self.score(queries, [0, rows], keys, (&mut block_scores[i * LANES..], stride));
        }
        for row in 0..rows {
            let (tail, position) = self.tail(row);
            for (i, slot) in tail.iter().enumerate() {
                let column = column(panels, *slot);
                for query in row * group..(row + 1) * group {
                    scores[query * FACTORS_STRIDE + position + i] = block_scores[query * stride + column];
                }
            }
        }
    }

    /// Adds weighted values to the sums of some rows.
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
        // next: its lanes beyond the head are not used.
        dispatch!(self.isa, accumulate(&sum));
    }

    /// Adds the weighted values of the shared positions.
    fn add_shared_values(&self, workspace: &mut Workspace, sums: &mut [f32]) {
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
                // Rows that end within the chunk, a few at a time: together as far as all of them go, then one by one.
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
    fn add_tail_values(&self, workspace: &mut Workspace, sums: &mut [f32]) {
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

/// Widened keys that scores are made of.
struct Keys<'a> {
    /// `[vectors, head_dim, 16]`.
    keys: &'a [f32],
    vectors: usize,
    prefetch: Option<&'a Prefetch>,
}

/// Widened values that are to be weighted.
#[derive(Clone, Copy)]
struct Values<'a> {
    /// `[terms, head_dim]`.
    values: &'a [f32],
    /// The position of the first, counted in the split.
    position: usize,
    terms: usize,
    prefetch: Option<&'a Prefetch>,
}

/// The index of a slot among the lanes of some blocks.
fn column(panels: &[usize], slot: u32) -> usize {
    let (panel, lane) = (slot as usize / LANES, slot as usize % LANES);
    panels.binary_search(&panel).expect("the block of a slot of a tail") * LANES + lane
}

/// Cuts slots, the first of which is that of the position `first`, into runs of consecutive slots within a block.
fn find_runs(slots: &[u32], first: usize, runs: &mut Vec<Run>) {
    runs.clear();
    let mut at = 0;
    while at < slots.len() {
        let slot = slots[at];
        let (panel, lane) = (slot as usize / LANES, slot as usize % LANES);
        let candidates = &slots[at..slots.len().min(at + LANES - lane)];
        let whole = candidates.iter().zip(slot..).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0;
        let run = || candidates.iter().zip(slot..).take_while(|(a, b)| **a == *b).count();
        let len = if whole { candidates.len() } else { run() };
        runs.push(Run { position: first + at, panel, lane, len });
        at += len;
    }
}
