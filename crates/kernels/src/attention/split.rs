//! One split of the positions, one key-value head, one tile of rows: scores, exponentials, weighted values.
//!
//! The idea: blocks of the cache are widened to f32 a few at a time, and everything that the tile's queries want of
//! them is computed while they lie in the nearest cache. Scores and weighted values are both [`Sum`]s. A score is one
//! chain over the elements of a head in order, so it does not matter in which lane of which block it is computed, and
//! lanes that hold other slots are left where they are. A weighted value is one chain over the positions of a row in
//! order, so rows of different length go together as far as they go, and each ends alone.
//!
//! Left out: slots out of order are right, but slow: each run of neighbours costs as much as a block.

use super::widen::{widen_keys, widen_values};
use super::{Arguments, Places};
use crate::isa::dispatch;
use crate::isa::shapes::{Ahead, CACHE_LINE, FACTORS_STRIDE, SPLIT, Sum};
use crate::{Isa, LANES};

/// Elements of a head that are widened at once: 16 KB, which leaves room in the nearest cache.
const WIDENED: usize = 4096;

/// Rows that share what they read: the prefix of each is the beginning of `shared`.
pub(super) struct Tile<'a> {
    /// The first row.
    pub(super) first: usize,
    pub(super) places: &'a [Places<'a>],
    /// The longest of the rows' prefixes.
    pub(super) shared: &'a [u32],
}

/// What is to be computed.
pub(super) struct Work<'a> {
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

/// Neighbouring positions in neighbouring slots of one block.
#[derive(Clone, Copy)]
struct Run {
    /// Of the split.
    position: usize,
    panel: usize,
    lane: usize,
    len: usize,
}

/// A thread's working memory, kept between calls.
#[derive(Default)]
pub(super) struct Desk {
    /// `[head_dim / SPLIT, rows, group, FACTORS_STRIDE]`.
    queries: Vec<f32>,
    /// `[rows, group, FACTORS_STRIDE]`, by position of the split.
    scores: Vec<f32>,
    /// Blocks as f32.
    wide: Vec<f32>,
    /// Scores of single blocks, before they are sorted by position.
    loose: Vec<f32>,
    runs: Vec<Run>,
    ahead: Ahead,
    /// Blocks in which tails lie.
    panels: Vec<usize>,
}

/// What a split says: for each query the highest score, the sum of the exponentials of what the others are lower, and
/// the values weighted by these. `[rows, group, padded head_dim]`, then twice `[rows, group]`.
pub(super) struct Part<'a> {
    pub(super) sums: &'a mut [f32],
    pub(super) highest: &'a mut [f32],
    pub(super) totals: &'a mut [f32],
}

impl<'a> Part<'a> {
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

/// `len` elements of memory that grows when it must, from the beginning of a cache line on. They keep what they hold
/// until more are asked for.
pub(super) fn room(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if memory.len() < len + LANES {
        memory.resize(len + LANES, 0.0);
    }
    let start = memory.as_ptr().align_offset(CACHE_LINE).min(LANES);
    &mut memory[start..start + len]
}

impl Work<'_> {
    fn group(&self) -> usize {
        self.arguments.heads / self.arguments.keys.kv_heads
    }

    fn dim(&self) -> usize {
        self.arguments.keys.head_dim
    }

    fn rows(&self) -> usize {
        self.tile.places.len()
    }

    /// The first position that a row sees.
    fn first(&self, row: usize) -> usize {
        self.tile.places[row].first(self.arguments.window)
    }

    /// Positions of the split: where those that a row sees begin, where its prefix ends, where it ends.
    fn seen(&self, row: usize) -> [usize; 3] {
        let Places { prefix, tail } = self.tile.places[row];
        [self.first(row), prefix.len(), prefix.len() + tail.len()]
            .map(|position| position.saturating_sub(self.from).min(SPLIT))
    }

    /// The slots of a row's tail that belong to the split, and the position of the first.
    fn tail(&self, row: usize) -> (&[u32], usize) {
        let Places { prefix, tail } = self.tile.places[row];
        let at = |position: usize| position.saturating_sub(prefix.len()).min(tail.len());
        let (begin, end) = (at(self.from.max(self.first(row))), at(self.from + SPLIT));
        let [first, prefix, _] = self.seen(row);
        (&tail[begin.min(end)..end], first.max(prefix))
    }

    /// Elements of a block.
    fn block(&self) -> usize {
        LANES * self.dim()
    }

    /// The queries of this head, in pieces of it that fit a row of factors.
    fn packed<'a>(&self, memory: &'a mut Vec<f32>) -> &'a mut [f32] {
        room(memory, self.dim().div_ceil(SPLIT) * self.rows() * self.group() * FACTORS_STRIDE)
    }

    /// The scores of all queries, `FACTORS_STRIDE` apart.
    fn scores<'a>(&self, memory: &'a mut Vec<f32>) -> &'a mut [f32] {
        room(memory, self.rows() * self.group() * FACTORS_STRIDE)
    }

    /// Computes the split. Queries of rows that do not reach it get nothing that means anything.
    pub(super) fn compute(&self, desk: &mut Desk, part: &mut Part<'_>) {
        let shared = self.tile.shared;
        let lowest = (0..self.rows()).map(|row| self.first(row)).min().unwrap_or(0).clamp(self.from, self.from + SPLIT);
        let here = &shared[lowest.min(shared.len())..shared.len().min(self.from + SPLIT)];
        find_runs(here, lowest - self.from, &mut desk.runs);
        desk.panels.clear();
        let tails = (0..self.rows()).flat_map(|row| self.tail(row).0);
        desk.panels.extend(tails.map(|slot| *slot as usize / LANES));
        desk.panels.sort_unstable();
        desk.panels.dedup();
        self.pack_queries(self.packed(&mut desk.queries));
        self.score_shared(desk);
        self.score_tails(desk);
        let scores = self.scores(&mut desk.scores);
        for row in 0..self.rows() {
            let [begin, _, end] = self.seen(row);
            for query in row * self.group()..(row + 1) * self.group() {
                let scores = &mut scores[query * FACTORS_STRIDE..][begin.min(end)..end];
                let scale = self.shape(row, query, scores);
                let (highest, total) = dispatch!(self.isa, exponentials(scores, scale));
                (part.highest[query], part.totals[query]) = (highest, total);
            }
        }
        part.sums.fill(0.0);
        self.weigh_shared(desk, part.sums);
        self.weigh_tails(desk, part.sums);
    }

    /// Caps the scores of one query and takes off what distance costs, where that is asked for; returns the scale that
    /// is left to do.
    fn shape(&self, row: usize, query: usize, scores: &mut [f32]) -> f32 {
        let Arguments { mut scale, soft_cap, slopes, window, .. } = *self.arguments;
        if let Some(cap) = soft_cap {
            dispatch!(self.isa, cap_scores(scores, scale, cap));
            scale = 1.0;
        }
        if let Some(slope) = slopes.get(self.head * self.group() + query % self.group()) {
            let place = self.tile.places[row];
            let distance = place.len() - 1 - place.first(window).max(self.from).min(place.len() - 1);
            dispatch!(self.isa, slope_scores(scores, scale, *slope, distance));
            scale = 1.0;
        }
        scale
    }

    /// Brings the queries of this head together.
    fn pack_queries(&self, packed: &mut [f32]) {
        let (dim, group, rows) = (self.dim(), self.group(), self.rows());
        for row in 0..rows {
            let first = ((self.tile.first + row) * self.arguments.heads + self.head * group) * dim;
            for (g, query) in self.queries[first..][..group * dim].chunks_exact(dim).enumerate() {
                for (piece, elements) in query.chunks(SPLIT).enumerate() {
                    let at = ((piece * rows + row) * group + g) * FACTORS_STRIDE;
                    packed[at..at + elements.len()].copy_from_slice(elements);
                }
            }
        }
    }

    /// Rows whose prefix reaches beyond a position of the split: the first and the one after the last.
    fn rows_beyond(&self, position: usize) -> [usize; 2] {
        let mut rows = (0..self.rows()).filter(|row| self.seen(*row)[1] > position);
        let first = rows.next().unwrap_or(0);
        [first, rows.next_back().map_or(first, |last| last.max(first)) + 1]
    }

    /// Raw scores of the rows' queries against some widened blocks of keys, into `out`.
    fn score(&self, queries: &[f32], rows: [usize; 2], keys: Keys<'_>, out: (&mut [f32], usize)) {
        let (dim, group, Keys { keys, vectors, ahead }) = (self.dim(), self.group(), keys);
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
                ahead: ahead.filter(|_| piece == 0),
            };
            // Every factor, term and sum lies in the slices, whose lengths were asserted above.
            dispatch!(self.isa, accumulate(&sum));
        }
    }

    /// Scores of the shared positions, for the rows that have them.
    fn score_shared(&self, desk: &mut Desk) {
        let (block, group) = (self.block(), self.group());
        let Desk { queries, scores, wide, loose, runs, ahead, .. } = desk;
        let (queries, scores) = (&*self.packed(queries), self.scores(scores));
        let at_once = (WIDENED / block).max(1);
        let wide = room(wide, at_once * block + LANES);
        let loose = room(loose, self.rows() * group * LANES);
        for (i, chunk) in runs.chunks(at_once).enumerate() {
            for (i, run) in chunk.iter().enumerate() {
                widen_keys(self.isa, self.arguments.keys, [run.panel, self.head], &mut wide[i * block..]);
            }
            // While these are used, the next keys come, and after the last the first values.
            let (side, next) = match runs.get((i + 1) * at_once..) {
                Some(next) if !next.is_empty() => (self.arguments.keys, next),
                _ => (self.arguments.values, &runs[..]),
            };
            ahead.name(side, self.head, next.iter().take(at_once).map(|run| run.panel));
            let mut first = 0;
            while first < chunk.len() {
                let run = chunk[first];
                let rows = self.rows_beyond(run.position);
                let query = rows[0] * group;
                let (keys, ahead) = (&wide[first * block..], (first == 0).then_some(&*ahead));
                if run.lane == 0 {
                    // Whole blocks one after another are as many vectors of a sum. What the last of them writes beyond
                    // its run is written again by the next, or is no row's.
                    let whole = chunk[first..].windows(2).take_while(|w| w[0].len == LANES && w[1].lane == 0).count();
                    let out = &mut scores[query * FACTORS_STRIDE + run.position..];
                    self.score(queries, rows, Keys { keys, vectors: whole + 1, ahead }, (out, FACTORS_STRIDE));
                    first += whole + 1;
                    continue;
                }
                self.score(queries, rows, Keys { keys, vectors: 1, ahead }, (loose, LANES));
                for i in 0..(rows[1] - rows[0]) * group {
                    scores[(query + i) * FACTORS_STRIDE + run.position..][..run.len]
                        .copy_from_slice(&loose[i * LANES + run.lane..][..run.len]);
                }
                first += 1;
            }
        }
    }

    /// Scores of the rows' own tails: every query against every block that some tail touches, then each takes its own.
    fn score_tails(&self, desk: &mut Desk) {
        let (block, group, rows) = (self.block(), self.group(), self.rows());
        let Desk { queries, scores, wide, loose, panels, .. } = desk;
        let (queries, scores) = (&*self.packed(queries), self.scores(scores));
        let stride = panels.len() * LANES;
        let loose = room(loose, rows * group * stride);
        let wide = room(wide, block + LANES);
        for (i, panel) in panels.iter().enumerate() {
            widen_keys(self.isa, self.arguments.keys, [*panel, self.head], wide);
            let keys = Keys { keys: wide, vectors: 1, ahead: None };
            self.score(queries, [0, rows], keys, (&mut loose[i * LANES..], stride));
        }
        for row in 0..rows {
            let (tail, position) = self.tail(row);
            for (i, slot) in tail.iter().enumerate() {
                let column = column(panels, *slot);
                for query in row * group..(row + 1) * group {
                    scores[query * FACTORS_STRIDE + position + i] = loose[query * stride + column];
                }
            }
        }
    }

    /// Adds widened values, weighted, to the sums of some rows.
    fn weigh(&self, scores: &[f32], rows: [usize; 2], values: Values<'_>, sums: &mut [f32]) {
        let (dim, group, Values { values, position, terms, ahead }) = (self.dim(), self.group(), values);
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
            ahead,
        };
        // Every factor, term and sum lies in the slices, by their lengths. The last vector of a term may reach into the
        // next: its lanes beyond the head are nobody's.
        dispatch!(self.isa, accumulate(&sum));
    }

    /// Weighted values of the shared positions.
    fn weigh_shared(&self, desk: &mut Desk, sums: &mut [f32]) {
        let (block, dim, rows) = (self.block(), self.dim(), self.rows());
        let Desk { scores, wide, runs, ahead, .. } = desk;
        let scores = &*self.scores(scores);
        let at_once = (WIDENED / block).max(1);
        let wide = room(wide, at_once * block + LANES);
        for (i, chunk) in runs.chunks(at_once).enumerate() {
            let (from, last) = (chunk[0].position, chunk[chunk.len() - 1]);
            let to = last.position + last.len;
            for run in chunk {
                let (place, lanes) = ([run.panel, self.head], [run.lane, run.len]);
                widen_values(self.isa, self.arguments.values, place, lanes, &mut wide[(run.position - from) * dim..]);
            }
            let next = runs.get((i + 1) * at_once..).unwrap_or(&[]).iter().take(at_once);
            ahead.name(self.arguments.values, self.head, next.map(|run| run.panel));
            let windowed = self.arguments.window.is_some();
            let begin = |row: usize| if windowed { self.seen(row)[0].clamp(from, to) - from } else { 0 };
            let reach = |row: usize| self.seen(row)[1].clamp(from, to) - from;
            let part = |first: usize, terms: usize, row: usize| Values {
                values: &wide[first * dim..],
                position: from + first,
                terms,
                ahead: (row == 0).then_some(&*ahead),
            };
            let mut row = 0;
            while row < rows {
                // A row that begins within goes alone.
                if begin(row) > 0 {
                    let first = begin(row);
                    self.weigh(scores, [row, row + 1], part(first, reach(row).saturating_sub(first), row), sums);
                    row += 1;
                    continue;
                }
                // Neighbours that go from the beginning to the end go together.
                let whole = (row..rows).take_while(|row| begin(*row) == 0 && reach(*row) == to - from).count();
                self.weigh(scores, [row, row + whole], part(0, to - from, row), sums);
                row += whole;
                // Rows that end here, a few at a time: as far as all of them go, then one by one.
                let few = (row..rows).take_while(|row| begin(*row) == 0 && reach(*row) < to - from);
                let few = few.take(8usize.div_ceil(self.group()));
                let end = row + few.count();
                let common = (row..end).map(reach).min().unwrap_or(0);
                self.weigh(scores, [row, end], part(0, common, row), sums);
                for row in row..end {
                    self.weigh(scores, [row, row + 1], part(common, reach(row) - common, 1), sums);
                }
                row = end;
            }
        }
    }

    /// Weighted values of the rows' own tails.
    fn weigh_tails(&self, desk: &mut Desk, sums: &mut [f32]) {
        let (block, dim) = (self.block(), self.dim());
        let Desk { scores, wide, panels, .. } = desk;
        let scores = &*self.scores(scores);
        let wide = room(wide, panels.len() * block + LANES);
        for (i, panel) in panels.iter().enumerate() {
            let place = [*panel, self.head];
            widen_values(self.isa, self.arguments.values, place, [0, LANES], &mut wide[i * block..]);
        }
        for row in 0..self.rows() {
            let (mut rest, mut position) = self.tail(row);
            while let Some(slot) = rest.first() {
                let first = column(panels, *slot);
                let terms = (1..rest.len()).take_while(|i| column(panels, rest[*i]) == first + i).count() + 1;
                let values = Values { values: &wide[first * dim..], position, terms, ahead: None };
                self.weigh(scores, [row, row + 1], values, sums);
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
    ahead: Option<&'a Ahead>,
}

/// Widened values that are to be weighted.
#[derive(Clone, Copy)]
struct Values<'a> {
    /// `[terms, head_dim]`.
    values: &'a [f32],
    /// The first one's, of the split.
    position: usize,
    terms: usize,
    ahead: Option<&'a Ahead>,
}

/// Where a slot stands among the lanes of some blocks.
fn column(panels: &[usize], slot: u32) -> usize {
    let (panel, lane) = (slot as usize / LANES, slot as usize % LANES);
    panels.binary_search(&panel).expect("the block of a slot of a tail") * LANES + lane
}

/// Cuts slots, the first of which is that of a position, into runs of neighbours within a block.
fn find_runs(slots: &[u32], first: usize, runs: &mut Vec<Run>) {
    runs.clear();
    let mut at = 0;
    while at < slots.len() {
        let slot = slots[at];
        let (panel, lane) = (slot as usize / LANES, slot as usize % LANES);
        let ahead = &slots[at..slots.len().min(at + LANES - lane)];
        let whole = ahead.iter().zip(slot..).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0;
        let neighbours = || ahead.iter().zip(slot..).take_while(|(a, b)| **a == *b).count();
        let len = if whole { ahead.len() } else { neighbours() };
        runs.push(Run { position: first + at, panel, lane, len });
        at += len;
    }
}
