//! Attention of rows over a paged KV cache, in the order of logical positions.
//!
//! A row sees a list of slots, one for each logical position from 0 to its own: first the sequence's committed rows
//! (shared by all rows of a span), then its ancestors in the tree, then itself. Adjacent rows that share what they read
//! form a tile, together with the query heads of a group (GQA), so that keys and values are read and widened once for
//! all of them. The positions of a row are cut into splits of 512 (`split.rs`), which are computed separately, by any
//! thread, and always merged in order. All sums are in order of position: neither the layout of pages, nor the rows of
//! a tile, nor siblings in the tree, nor threads, nor a later compaction of the accepted path can change a bit.
//!
//! Estimated cost: a row of one head of 64 takes, per position, 8 multiply-adds of 16 lanes and a 16th of a vector of
//! exponentials, 5 cycles on a core that begins two multiply-adds each cycle and 9 on one that begins one. For each
//! position a tile reads the key and the value of a head (`cache_tensor.rs`): in f16 256 bytes, about 50 cycles of one
//! core's half of 34 GB/s. So up to about six queries per key-value head are memory-bound, more are compute-bound.
//! Measured on 2 cores of a Sapphire Rapids Xeon that had other work, one layer of 12 heads of 64 over 1000 positions
//! in f16: 0.11 ms for one row (28 GB/s), 0.20 for 8, 0.34 for 16; of 4 heads for 32 queries: 0.06, 0.36 and 0.66 ms,
//! 2.6 ns per query and position.
//!
//! [`Arguments`] has the variations of model families: a soft cap of the scores, a slope over the distance (ALiBi), a
//! bias by relative position (T5), a window of the latest positions, attention sinks. A sink is an additional score of
//! a head, learned and equal for every row, that takes part in the softmax and has no value. It is added once, when all
//! splits of a row are merged, so the loops do not depend on it, and if it is -inf no bit differs from attention
//! without sinks. A window changes only which positions a row sees: splits begin at the same positions, a row's first
//! split is that of the first position it sees, and earlier positions have no weight, whatever they hold. So the bits
//! of a row depend only on its logical position, with or without a window.
//!
//! All dot products are in f32. Lists of slots include the positions before a window.

mod cache_tensor;
mod split;
mod widen;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::isa::shapes::SPLIT;
use crate::softmax::exp;
use crate::{Compute, LANES};

pub use cache_tensor::{CacheTensor, CacheType};
use split::{Partial, SplitTask, Tile, Workspace, aligned};

/// The arguments that all rows of one call share.
pub struct Arguments<'a> {
    /// The number of query heads, a multiple of the number of key-value heads.
    pub heads: usize,
    /// Multiplies every score.
    pub scale: f32,
    /// Scaled scores are soft-capped by this: cap * tanh(score / cap).
    pub soft_cap: Option<f32>,
    /// For each query head, what is subtracted from a scaled score per position of distance between key and query
    /// (ALiBi); empty without ALiBi.
    pub slopes: &'a [f32],
    /// What is added to scaled scores by the position of the key relative to that of the query; `None` if nothing is.
    pub bias: Option<RelativeBias<'a>>,
    /// For each query head an attention sink: an additional score, neither scaled nor capped, which takes part in the
    /// softmax and has no value; empty without sinks.
    pub sinks: &'a [f32],
    /// The maximum number of positions that a row sees: the latest ones, its own included.
    pub window: Option<usize>,
    /// The keys of all slots.
    pub keys: &'a CacheTensor,
    /// The values of all slots, with the same heads.
    pub values: &'a CacheTensor,
}

impl<'a> Arguments<'a> {
    /// The arguments of attention to all positions, whose scores are only scaled.
    pub fn new(heads: usize, scale: f32, keys: &'a CacheTensor, values: &'a CacheTensor) -> Self {
        Self { heads, scale, soft_cap: None, slopes: &[], bias: None, sinks: &[], window: None, keys, values }
    }
}

/// Biases of scores by relative position: a query at position q adds element k - q + `before` of its head's row to its
/// score of the key at position k. Where a row has no such element, its first or its last one is taken.
///
/// Positions are given because a query need not be at the last position that it sees: in an encoder all rows see all
/// positions.
#[derive(Clone, Copy)]
pub struct RelativeBias<'a> {
    /// The biases, `[query heads, columns]`.
    pub table: &'a [f32],
    /// The element for the query's own position.
    pub before: usize,
    /// The position of each row of the call.
    pub positions: &'a [u32],
}

/// The slots of the positions that one row sees, in order of position.
#[derive(Clone, Copy)]
pub struct RowSlots<'a> {
    /// The slots of committed positions, from position 0 on.
    pub prefix: &'a [u32],
    /// The slots of the row's ancestors within its span, and its own.
    pub tail: &'a [u32],
}

impl RowSlots<'_> {
    fn len(&self) -> usize {
        self.prefix.len() + self.tail.len()
    }

    /// The first position that the row sees through a window.
    fn first(&self, window: Option<usize>) -> usize {
        window.map_or(0, |window| self.len().saturating_sub(window))
    }
}

/// Working memory, kept between calls: a workspace per thread, and the partial results that are to be merged.
#[derive(Default)]
pub struct Scratch {
    workspaces: Vec<Mutex<Workspace>>,
    partials: Vec<f32>,
}

/// Approximate number of queries of a tile. Their scores of one split are 256 KB, which fit into the L2 cache together
/// with the split's keys.
const TILE_QUERIES: usize = 128;

/// With fewer multiply-adds than this, about 5 microseconds of one core, threads are not woken.
const SERIAL_BELOW: usize = 100_000;

/// Memory that tasks write in disjoint ranges.
struct DisjointSlice(*mut f32, usize);
// SAFETY: tasks take disjoint ranges of it: their own partial results, or the output of their own rows and group.
unsafe impl Sync for DisjointSlice {}

impl DisjointSlice {
    /// # Safety
    /// No other task touches the range.
    #[expect(clippy::mut_from_ref, reason = "disjoint ranges of one slice, by the contract above")]
    unsafe fn range(&self, from: usize, len: usize) -> &mut [f32] {
        assert!(from.checked_add(len).is_some_and(|end| end <= self.1));
        // SAFETY: the range is inside the slice that the pointer came from, and the caller promises that it is free.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(from), len) }
    }
}

/// Cuts rows into tiles of adjacent rows that share what they read.
fn tiles<'a>(row_slots: &'a [RowSlots<'a>], rows_max: usize) -> Vec<Tile<'a>> {
    let mut tiles: Vec<Tile<'a>> = Vec::new();
    for (row, slots) in row_slots.iter().enumerate() {
        if let Some(tile) = tiles.last_mut() {
            let shorter = tile.shared.len().min(slots.prefix.len());
            let same = tile.shared.as_ptr() == slots.prefix.as_ptr();
            if tile.row_slots.len() < rows_max && (same || tile.shared[..shorter] == slots.prefix[..shorter]) {
                tile.row_slots = &row_slots[tile.first..=row];
                if slots.prefix.len() > shorter {
                    tile.shared = slots.prefix;
                }
                continue;
            }
        }
        tiles.push(Tile { first: row, row_slots: &row_slots[row..=row], shared: slots.prefix });
    }
    tiles
}

/// The data that the tasks of one call share.
struct Call<'a> {
    compute: &'a Compute,
    arguments: &'a Arguments<'a>,
    queries: &'a [f32],
    tiles: Vec<Tile<'a>>,
    workspaces: &'a [Mutex<Workspace>],
    /// Slabs of `slab` elements, each for one partial result.
    partials: DisjointSlice,
    /// Elements of a slab.
    slab: usize,
    /// The output of all rows, `[rows, heads, head_dim]`.
    out: DisjointSlice,
}

impl Call<'_> {
    /// Number of query heads that share a key-value head.
    fn group(&self) -> usize {
        self.arguments.heads / self.arguments.keys.kv_heads
    }

    /// Elements of a padded head.
    fn width(&self) -> usize {
        self.arguments.keys.head_dim.next_multiple_of(LANES)
    }

    /// The tile and the key-value head of an item, the unit of work: an item is one tile with one head. The tiles of a
    /// head are consecutive, since they read mostly the same memory.
    fn item(&self, item: usize) -> (&Tile<'_>, usize) {
        (&self.tiles[item % self.tiles.len()], item / self.tiles.len())
    }

    /// Computes one split of an item into a slab.
    fn partial(&self, item: usize, split: usize, slab: usize, worker: usize) {
        let (tile, head) = self.item(item);
        let Self { compute, arguments, queries, .. } = *self;
        let task = SplitTask { isa: compute.isa, arguments, queries, tile, head, from: split * SPLIT };
        // SAFETY: this task alone works with the slab.
        let slab = unsafe { self.partials.range(slab * self.slab, self.slab) };
        let mut partial = Partial::new(slab, tile.row_slots.len() * self.group(), self.width());
        task.compute(&mut self.workspaces[worker].lock().unwrap_or_else(PoisonError::into_inner), &mut partial);
    }

    /// The splits that the rows of an item see.
    fn splits(&self, item: usize) -> Range<usize> {
        splits(self.item(item).0.row_slots, self.arguments.window)
    }

    /// Merges the next split of an item into its state, which lies in another slab. The first split that a row sees
    /// becomes its state.
    fn merge(&self, item: usize, split: usize, [state, next]: [usize; 2]) {
        let (tile, _) = self.item(item);
        let (group, width) = (self.group(), self.width());
        let queries = tile.row_slots.len() * group;
        // SAFETY: this task alone works with the two slabs.
        let [state, next] = [state, next].map(|slab| unsafe { self.partials.range(slab * self.slab, self.slab) });
        let (state, next) = (Partial::new(state, queries, width), Partial::new(next, queries, width));
        for q in (0..queries).filter(|q| tile.row_slots[q / group].len() > split * SPLIT) {
            let begins = tile.row_slots[q / group].first(self.arguments.window) / SPLIT;
            if split <= begins {
                // The state's values for this row are of positions that the row does not see.
                (state.highest[q], state.totals[q]) = (next.highest[q], next.totals[q]);
                state.sums[q * width..][..width].copy_from_slice(&next.sums[q * width..][..width]);
                continue;
            }
            let (ours, theirs) = (state.highest[q], next.highest[q]);
            let highest = if theirs > ours { theirs } else { ours };
            let (a, b) = (exp(ours - highest), exp(theirs - highest));
            state.highest[q] = highest;
            state.totals[q] = state.totals[q] * a + next.totals[q] * b;
            let sums = state.sums[q * width..][..width].iter_mut().zip(&next.sums[q * width..][..width]);
            sums.for_each(|(ours, theirs)| *ours = *ours * a + *theirs * b);
        }
    }

    /// Writes the output of an item whose state is complete.
    fn finish(&self, item: usize, state: usize) {
        let (tile, head) = self.item(item);
        let (group, width, dim) = (self.group(), self.width(), self.arguments.keys.head_dim);
        // SAFETY: this task alone works with the slab.
        let state = unsafe { self.partials.range(state * self.slab, self.slab) };
        let state = Partial::new(state, tile.row_slots.len() * group, width);
        for q in 0..tile.row_slots.len() * group {
            let query_head = head * group + q % group;
            let first = ((tile.first + q / group) * self.arguments.heads + query_head) * dim;
            // SAFETY: the output of this row and head belongs to this item.
            let out = unsafe { self.out.range(first, dim) };
            let scale = match self.arguments.sinks.get(query_head) {
                None => 1.0 / state.totals[q],
                Some(sink) => with_sink(state.highest[q], state.totals[q], *sink),
            };
            out.iter_mut().zip(&state.sums[q * width..]).for_each(|(out, sum)| *out = sum * scale);
        }
    }
}

/// What the sum of the weighted values is multiplied by if there is a sink, as if the sink were merged as one more
/// split that has only this score and a sum of values of 0.
fn with_sink(ours: f32, total: f32, sink: f32) -> f32 {
    let highest = if sink > ours { sink } else { ours };
    let partial = exp(ours - highest);
    partial / (total * partial + exp(sink - highest))
}

/// The splits that these rows see.
fn splits(row_slots: &[RowSlots<'_>], window: Option<usize>) -> Range<usize> {
    let first = row_slots.iter().map(|slots| slots.first(window)).min().unwrap_or(0);
    let longest = row_slots.iter().map(RowSlots::len).max().unwrap_or(0);
    first / SPLIT..longest.div_ceil(SPLIT)
}

/// The length of this shape; `None` if it overflows: a length that wraps around could match a slice of another shape.
fn checked_len(shape: [usize; 3]) -> Option<usize> {
    shape.iter().try_fold(1, |len: usize, dimension| len.checked_mul(*dimension))
}

/// Asserts that all slices have their shapes, and that every row sees a position.
fn check(arguments: &Arguments<'_>, [queries, out]: [&[f32]; 2], row_slots: &[RowSlots<'_>]) {
    let Arguments { heads, keys, values, window, slopes, bias, sinks, .. } = *arguments;
    let (kv_heads, head_dim, rows) = (keys.kv_heads, keys.head_dim, row_slots.len());
    assert!(heads % kv_heads == 0, "attention: {heads} heads over {kv_heads} key-value heads");
    assert!([values.kv_heads, values.head_dim] == [kv_heads, head_dim], "attention: keys and values");
    assert!(keys.slots() == values.slots() && out.len() == queries.len(), "attention: slots, or shape of the output");
    assert!(checked_len([rows, heads, head_dim]) == Some(queries.len()), "attention: shape of queries");
    assert!(row_slots.iter().all(|slots| slots.len() > 0), "attention: a row without positions");
    assert!(window != Some(0), "attention: a window of no positions");
    assert!([0, heads].contains(&slopes.len()), "attention: {} slopes for {heads} heads", slopes.len());
    if let Some(RelativeBias { table, positions, .. }) = bias {
        assert!(!table.is_empty() && table.len().is_multiple_of(heads), "attention: {} biases", table.len());
        assert!(positions.len() == rows, "attention: {} positions of {rows} rows", positions.len());
    }
    assert!([0, heads].contains(&sinks.len()), "attention: {} sinks for {heads} heads", sinks.len());
}

/// Attends `queries` `[rows, heads, head_dim]` to the positions named by `row_slots` (one per row), into `out` of the
/// same shape.
///
/// # Panics
/// If a shape does not fit, a row sees no position, or a slot lies outside the cache.
pub fn attention(
    compute: &Compute,
    arguments: &Arguments<'_>,
    queries: &[f32],
    row_slots: &[RowSlots<'_>],
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let Arguments { heads, keys, window, .. } = *arguments;
    let (kv_heads, head_dim, rows) = (keys.kv_heads, keys.head_dim, row_slots.len());
    check(arguments, [queries, out], row_slots);
    if rows == 0 {
        return;
    }
    let tiles = tiles(row_slots, (TILE_QUERIES * kv_heads / heads).max(1));
    for tile in &tiles {
        let visible = tile.shared.iter().chain(tile.row_slots.iter().flat_map(|slots| slots.tail));
        let last = visible.max().map_or(0, |slot| *slot as usize);
        assert!(last < keys.slots(), "attention: slot {last} of {}", keys.slots());
    }
    let (threads, items) = (compute.pool.threads(), tiles.len() * kv_heads);
    let splits = tiles.iter().map(|tile| splits(tile.row_slots, window).len()).max().unwrap_or(0);
    let queries_max = tiles.iter().map(|tile| tile.row_slots.len()).max().unwrap_or(0) * heads / kv_heads;
    let slab = Partial::len(queries_max, head_dim.next_multiple_of(LANES)).next_multiple_of(LANES);
    // With few items each split is a task, and partial results are kept until all are computed. With many items each
    // item is one task that merges as it goes, with two slabs per thread.
    let by_split = splits > 1 && items < 4 * threads;
    let slabs = if by_split { items * splits } else { 2 * threads };
    let Scratch { workspaces, partials } = scratch;
    workspaces.resize_with(threads.max(workspaces.len()), Mutex::default);
    let partials =
        aligned(partials, slabs.checked_mul(slab).expect("attention: the size of the partial results fits a usize"));
    let (partials, out) =
        (DisjointSlice(partials.as_mut_ptr(), partials.len()), DisjointSlice(out.as_mut_ptr(), out.len()));
    let call = Call { compute, arguments, queries, tiles, workspaces, partials, slab, out };
    let item = |item: usize, worker: usize| {
        let [state, next] = [2 * worker, 2 * worker + 1];
        let mut splits = call.splits(item);
        splits.next().into_iter().for_each(|split| call.partial(item, split, state, worker));
        for split in splits {
            call.partial(item, split, next, worker);
            call.merge(item, split, [state, next]);
        }
        call.finish(item, state);
    };
    let partial = |task: usize, worker: usize| {
        let item = task / splits;
        if let Some(split) = call.splits(item).nth(task % splits) {
            call.partial(item, split, task, worker);
        }
    };
    let merged = |item: usize| {
        let others = call.splits(item).enumerate().skip(1);
        others.for_each(|(i, split)| call.merge(item, split, [item * splits, item * splits + i]));
        call.finish(item, item * splits);
    };
    let visible = row_slots.iter().map(|slots| slots.len() - slots.first(window)).sum::<usize>();
    let serial = 2 * visible * heads * head_dim < SERIAL_BELOW;
    match (serial, by_split) {
        (true, _) if !by_split => (0..items).for_each(|number| item(number, 0)),
        (_, false) => compute.pool.run_as(items, &item),
        (_, true) => {
            compute.pool.run_as(items * splits, &partial);
            compute.pool.run(items, &merged);
        }
    }
}
