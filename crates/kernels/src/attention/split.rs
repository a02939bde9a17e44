//! Attention over one split of the positions, for one key-value head and one tile of rows: scores, exponentials,
//! weighted values.
//!
//! Blocks of the cache are widened to f32 a few at a time, and everything that the tile's queries need of them is
//! computed while they are in the L1 cache. Scores and weighted values (`split/values.rs`) are both [`Sum`]s. A score
//! is added up over the elements of a head one after another, in order, so its bits do not depend on the lane or the
//! block in which it is computed, and lanes of other slots are ignored.
//!
//! Slots that are not consecutive give the same results, but slowly: each run of consecutive slots costs as much as a
//! block.

mod values;

use super::widen::widen_keys;
use super::{Arguments, RelativeBias, RowSlots};
use crate::isa::dispatch;
use crate::isa::shapes::{CACHE_LINE, FACTORS_STRIDE, Prefetch, SPLIT, Sum};
use crate::{Isa, LANES};

/// Number of elements that are widened at once: 16 KB, which leaves room in the L1 cache.
const WIDENED_ELEMENTS: usize = 4096;

/// Rows that share what they read: the prefix of each is the beginning of `shared`.
pub(super) struct Tile<'a> {
    /// The first row, as its number in the whole call.
    pub(super) first: usize,
    /// The slots of each row.
    pub(super) row_slots: &'a [RowSlots<'a>],
    /// The longest of the rows' prefixes.
    pub(super) shared: &'a [u32],
}

/// The computation of one split for one tile and key-value head.
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

/// Consecutive positions in consecutive slots of one panel.
#[derive(Clone, Copy)]
struct Run {
    /// The first position, from the beginning of the split.
    position: usize,
    /// The number of the panel (sixteen slots) in the cache.
    panel: usize,
    /// The first slot within the panel.
    lane: usize,
    /// Number of positions.
    len: usize,
}

/// The working memory of a thread, kept between calls.
#[derive(Default)]
pub(super) struct Workspace {
    /// `[head_dim / SPLIT, rows, group, FACTORS_STRIDE]`.
    queries: Vec<f32>,
    /// `[rows, group, FACTORS_STRIDE]`, indexed by position in the split.
    scores: Vec<f32>,
    /// Blocks as f32.
    widened: Vec<f32>,
    /// Scores of single blocks, before they are put in order of position.
    block_scores: Vec<f32>,
    runs: Vec<Run>,
    prefetch: Prefetch,
    /// The numbers of the panels that have slots of tails, ascending.
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
    /// Number of elements for `queries` queries of `width` padded elements.
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

/// Returns `len` elements of `memory`, from the beginning of a cache line on; the memory grows if necessary. The
/// elements keep their values until more are requested.
pub(super) fn aligned(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if memory.len() < len + LANES {
        memory.resize(len + LANES, 0.0);
    }
    let start = memory.as_ptr().align_offset(CACHE_LINE).min(LANES);
    &mut memory[start..start + len]
}

impl SplitTask<'_> {
    /// Number of query heads that share the key-value head.
    fn group(&self) -> usize {
        self.arguments.heads / self.arguments.keys.kv_heads
    }

    /// Elements of a head.
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

    /// Three positions in the split: the first that a row sees, the end of its prefix, and the end of the row.
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

    /// The memory for the queries of this head, in pieces that fit a row of factors.
    fn packed_queries<'a>(&self, memory: &'a mut Vec<f32>) -> &'a mut [f32] {
        aligned(memory, self.dim().div_ceil(SPLIT) * self.rows() * self.group() * FACTORS_STRIDE)
    }

    /// The memory for the scores of all queries, which are `FACTORS_STRIDE` apart.
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

    /// Applies the soft cap, the ALiBi slope and the relative bias to the scores of one query, if there are any;
    /// returns the scale that is still to be applied.
    fn adjust_scores(&self, row: usize, query: usize, scores: &mut [f32]) -> f32 {
        let Arguments { mut scale, soft_cap, slopes, bias, window, .. } = *self.arguments;
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
        if let Some(RelativeBias { table, before, positions }) = bias {
            let columns = table.len() / self.arguments.heads;
            let biases = &table[(self.head * self.group() + query % self.group()) * columns..][..columns];
            let key = self.first(row).max(self.from);
            let first = key as isize - positions[self.tile.first + row] as isize + before as isize;
            dispatch!(self.isa, bias_scores(scores, scale, biases, first));
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

    /// The range of rows whose prefix reaches beyond a position of the split: the first of them, and the row after the
    /// last.
    fn rows_beyond(&self, position: usize) -> [usize; 2] {
        let mut rows = (0..self.rows()).filter(|row| self.visible(*row)[1] > position);
        let first = rows.next().unwrap_or(0);
        [first, rows.next_back().map_or(first, |last| last.max(first)) + 1]
    }

    /// Computes the raw scores of the queries of the rows from `rows[0]` on and before `rows[1]` with some widened
    /// blocks of keys. `out`: where they are written, and the elements between the scores of two queries.
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
                    // overwritten by the next one, or belongs to no row.
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

    /// Computes the scores of the rows' own tails: of every query with every panel that some tail touches. Each row
    /// then takes its own scores.
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
}

/// Widened keys from which scores are computed.
struct Keys<'a> {
    /// `[vectors, head_dim, 16]`.
    keys: &'a [f32],
    /// Number of blocks, each of which gives a vector of sixteen scores.
    vectors: usize,
    prefetch: Option<&'a Prefetch>,
}

/// The index of a slot among the lanes of these panels.
fn column(panels: &[usize], slot: u32) -> usize {
    let (panel, lane) = (slot as usize / LANES, slot as usize % LANES);
    panels.binary_search(&panel).expect("the block of a slot of a tail") * LANES + lane
}

/// Cuts slots into runs of consecutive slots within a panel; the first slot is that of the position `first`.
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
