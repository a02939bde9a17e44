//! Attention of rows over a paged cache, by logical position.
//!
//! The idea: a row sees a list of places, one for each logical position from 0 to its own: first the sequence's
//! committed rows (shared by all rows of a span), then its ancestors in the tree, then itself. Rows that follow one
//! another and share what they read are a tile, and with them the heads of a group (GQA), so that keys and values are
//! read and widened once for all of them. The positions of a row are cut into splits of 512 (`split.rs`), which are
//! computed apart, by whatever thread, and merged in order, always. Every order is by position: neither the layout of
//! pages, nor the rows of a tile, nor siblings in the tree, nor threads, nor a later compaction of the accepted path
//! can change a bit.
//!
//! Cost, an estimate: a row of one head of 64 takes 8 multiply-adds of 16 lanes a position and a 16th of a vector of
//! exponentials, 5 cycles where two multiply-adds begin each cycle and 9 where one does. A position costs all rows of a
//! tile together twice the bytes of a head (`side.rs`): in f16 256, some 50 cycles of one core's half of 34 GB/s, so
//! up to some six queries a key-value head are bound by memory, more by arithmetic. Measured on 2 cores of a Sapphire
//! Rapids Xeon that had other work, one layer of 12 heads of 64 over 1000 positions in f16: 0.11 ms for one row (28
//! GB/s), 0.20 for 8, 0.34 for 16; of 4 heads for 32 queries: 0.06, 0.36 and 0.66 ms, 2.6 ns a query and position.
//!
//! What families add to it is said in [`Arguments`]: a cap of the scores, a slope over the distance (ALiBi), a window
//! of the latest positions, sinks. A sink is one more score of a head, learned and the same for every row, that takes
//! part in the softmax and has no value: it is taken in once, when all splits of a row are merged, so it is no matter
//! of the loops, and where it is -inf no bit differs from attention without. A window changes which positions a row
//! sees and nothing else: splits begin where they always do, a row's first one is that of the first position it sees,
//! and what lies before it is not weighed, whatever is there. So its bits follow from its logical position alone, like
//! those of any row.
//!
//! Left out: dots of narrow types, and places that name no slots for positions behind a window.

mod side;
mod split;
mod widen;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::isa::shapes::SPLIT;
use crate::softmax::exp;
use crate::{Compute, LANES};

pub use side::{CacheType, Side};
use split::{Desk, Part, Tile, Work, room};

/// What all rows of one call share.
pub struct Arguments<'a> {
    /// Query heads, a multiple of the key-value heads.
    pub heads: usize,
    /// Multiplies every score.
    pub scale: f32,
    /// Scaled scores are brought below this, as cap * tanh(score / cap).
    pub soft_cap: Option<f32>,
    /// For each query head what a scaled score loses for each position that its key lies before the query (ALiBi).
    /// Empty: nothing.
    pub slopes: &'a [f32],
    /// For each query head a score beside those of the positions, as it is (neither scaled nor capped), which takes
    /// part in the softmax and has no value. Empty: none.
    pub sinks: &'a [f32],
    /// A row sees so many positions at most, the latest, its own included.
    pub window: Option<usize>,
    /// The keys of every slot.
    pub keys: &'a Side,
    /// The values of every slot, of the same heads.
    pub values: &'a Side,
}

impl<'a> Arguments<'a> {
    /// Attention to all positions, by scaled scores as they are.
    pub fn new(heads: usize, scale: f32, keys: &'a Side, values: &'a Side) -> Self {
        Self { heads, scale, soft_cap: None, slopes: &[], sinks: &[], window: None, keys, values }
    }
}

/// Where the positions of one row lie in the cache: slot numbers in order of position.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// Committed positions, from 0.
    pub prefix: &'a [u32],
    /// The row's ancestors within its span, and itself.
    pub tail: &'a [u32],
}

impl Places<'_> {
    fn len(&self) -> usize {
        self.prefix.len() + self.tail.len()
    }

    /// The first position that the row sees through a window.
    fn first(&self, window: Option<usize>) -> usize {
        window.map_or(0, |window| self.len().saturating_sub(window))
    }
}

/// Working memory, kept between calls: a desk a thread, and the parts that wait to be merged.
#[derive(Default)]
pub struct Scratch {
    desks: Vec<Mutex<Desk>>,
    parts: Vec<f32>,
}

/// Queries of a tile, about: their scores of one split are 256 KB, and fit beside its keys into the second cache.
const QUERIES: usize = 128;

/// Multiply-adds below which threads are not woken: about 5 microseconds of one core.
const ALONE_BELOW: usize = 100_000;

/// Memory that tasks write in disjoint ranges.
struct Shared(*mut f32, usize);
// SAFETY: tasks take disjoint ranges of it: their own parts, or the output of their own rows and group.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// No other task touches the range.
    #[expect(clippy::mut_from_ref, reason = "disjoint ranges of one slice, by the contract above")]
    unsafe fn range(&self, from: usize, len: usize) -> &mut [f32] {
        assert!(from.checked_add(len).is_some_and(|end| end <= self.1));
        // SAFETY: the range is inside the slice that the pointer came from, and the caller promises that it is free.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(from), len) }
    }
}

/// Cuts rows into tiles that share what they read.
fn tiles<'a>(places: &'a [Places<'a>], rows_max: usize) -> Vec<Tile<'a>> {
    let mut tiles: Vec<Tile<'a>> = Vec::new();
    for (row, place) in places.iter().enumerate() {
        if let Some(tile) = tiles.last_mut() {
            let shorter = tile.shared.len().min(place.prefix.len());
            let same = tile.shared.as_ptr() == place.prefix.as_ptr();
            if tile.places.len() < rows_max && (same || tile.shared[..shorter] == place.prefix[..shorter]) {
                tile.places = &places[tile.first..=row];
                if place.prefix.len() > shorter {
                    tile.shared = place.prefix;
                }
                continue;
            }
        }
        tiles.push(Tile { first: row, places: &places[row..=row], shared: place.prefix });
    }
    tiles
}

/// What the tasks of one call share.
struct Call<'a> {
    compute: &'a Compute,
    arguments: &'a Arguments<'a>,
    queries: &'a [f32],
    tiles: Vec<Tile<'a>>,
    desks: &'a [Mutex<Desk>],
    /// Slabs of `slab` elements, each for one part.
    parts: Shared,
    slab: usize,
    out: Shared,
}

impl Call<'_> {
    fn group(&self) -> usize {
        self.arguments.heads / self.arguments.keys.kv_heads
    }

    /// Elements of a padded head.
    fn width(&self) -> usize {
        self.arguments.keys.head_dim.next_multiple_of(LANES)
    }

    /// The tile and the head of an item. The tiles of a head come one after another: they mostly read the same.
    fn item(&self, item: usize) -> (&Tile<'_>, usize) {
        (&self.tiles[item % self.tiles.len()], item / self.tiles.len())
    }

    /// Computes one split of an item into a slab.
    fn part(&self, item: usize, split: usize, slab: usize, worker: usize) {
        let (tile, head) = self.item(item);
        let Self { compute, arguments, queries, .. } = *self;
        let work = Work { isa: compute.isa, arguments, queries, tile, head, from: split * SPLIT };
        // SAFETY: this task alone works with the slab.
        let slab = unsafe { self.parts.range(slab * self.slab, self.slab) };
        let mut part = Part::new(slab, tile.places.len() * self.group(), self.width());
        work.compute(&mut self.desks[worker].lock().unwrap_or_else(PoisonError::into_inner), &mut part);
    }

    /// Splits that the rows of an item see.
    fn splits(&self, item: usize) -> Range<usize> {
        splits(self.item(item).0.places, self.arguments.window)
    }

    /// Takes the next split of an item into the state that lies in another slab. The first one that a row sees is its
    /// state.
    fn merge(&self, item: usize, split: usize, [state, next]: [usize; 2]) {
        let (tile, _) = self.item(item);
        let (group, width) = (self.group(), self.width());
        let queries = tile.places.len() * group;
        // SAFETY: this task alone works with the two slabs.
        let [state, next] = [state, next].map(|slab| unsafe { self.parts.range(slab * self.slab, self.slab) });
        let (state, next) = (Part::new(state, queries, width), Part::new(next, queries, width));
        for q in (0..queries).filter(|q| tile.places[q / group].len() > split * SPLIT) {
            let begins = tile.places[q / group].first(self.arguments.window) / SPLIT;
            if split <= begins {
                // What the state holds of this row is of positions that it does not see.
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
        let state = unsafe { self.parts.range(state * self.slab, self.slab) };
        let state = Part::new(state, tile.places.len() * group, width);
        for q in 0..tile.places.len() * group {
            let of_heads = head * group + q % group;
            let first = ((tile.first + q / group) * self.arguments.heads + of_heads) * dim;
            // SAFETY: the output of this row and head belongs to this item.
            let out = unsafe { self.out.range(first, dim) };
            let scale = match self.arguments.sinks.get(of_heads) {
                None => 1.0 / state.totals[q],
                Some(sink) => with_sink(state.highest[q], state.totals[q], *sink),
            };
            out.iter_mut().zip(&state.sums[q * width..]).for_each(|(out, sum)| *out = sum * scale);
        }
    }
}

/// What weighted values are multiplied with where a sink takes part: as when it is merged as one more split, whose only
/// score it is and whose sum of values is 0.
fn with_sink(ours: f32, total: f32, sink: f32) -> f32 {
    let highest = if sink > ours { sink } else { ours };
    let part = exp(ours - highest);
    part / (total * part + exp(sink - highest))
}

/// Splits that some rows see.
fn splits(places: &[Places<'_>], window: Option<usize>) -> Range<usize> {
    let first = places.iter().map(|place| place.first(window)).min().unwrap_or(0);
    let longest = places.iter().map(Places::len).max().unwrap_or(0);
    first / SPLIT..longest.div_ceil(SPLIT)
}

/// The length of this shape; `None` where it wraps around, and could fit a slice that it must not fit.
fn checked_len(shape: [usize; 3]) -> Option<usize> {
    shape.iter().try_fold(1, |len: usize, dimension| len.checked_mul(*dimension))
}

/// Asserts that everything has its shape, and that every row sees something.
fn check(arguments: &Arguments<'_>, [queries, out]: [&[f32]; 2], places: &[Places<'_>]) {
    let Arguments { heads, keys, values, window, slopes, sinks, .. } = *arguments;
    let (kv_heads, head_dim, rows) = (keys.kv_heads, keys.head_dim, places.len());
    assert!(heads % kv_heads == 0, "attention: {heads} heads over {kv_heads} key-value heads");
    assert!([values.kv_heads, values.head_dim] == [kv_heads, head_dim], "attention: keys and values");
    assert!(keys.slots() == values.slots() && out.len() == queries.len(), "attention: slots, or shape of the output");
    assert!(checked_len([rows, heads, head_dim]) == Some(queries.len()), "attention: shape of queries");
    assert!(places.iter().all(|place| place.len() > 0), "attention: a row without positions");
    assert!(window != Some(0), "attention: a window of no positions");
    assert!([0, heads].contains(&slopes.len()), "attention: {} slopes for {heads} heads", slopes.len());
    assert!([0, heads].contains(&sinks.len()), "attention: {} sinks for {heads} heads", sinks.len());
}

/// Attends `queries` `[rows, heads, head_dim]` to the positions named by `places` (one a row), into `out` of
/// the same shape.
///
/// # Panics
/// If a shape does not fit, a row sees no position (of none, or through a window of none), or a slot lies outside the
/// cache.
pub fn attention(
    compute: &Compute,
    arguments: &Arguments<'_>,
    queries: &[f32],
    places: &[Places<'_>],
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let Arguments { heads, keys, window, .. } = *arguments;
    let (kv_heads, head_dim, rows) = (keys.kv_heads, keys.head_dim, places.len());
    check(arguments, [queries, out], places);
    if rows == 0 {
        return;
    }
    let tiles = tiles(places, (QUERIES * kv_heads / heads).max(1));
    for tile in &tiles {
        let seen = tile.shared.iter().chain(tile.places.iter().flat_map(|place| place.tail));
        let last = seen.max().map_or(0, |slot| *slot as usize);
        assert!(last < keys.slots(), "attention: slot {last} of {}", keys.slots());
    }
    let (threads, items) = (compute.pool.threads(), tiles.len() * kv_heads);
    let splits = tiles.iter().map(|tile| splits(tile.places, window).len()).max().unwrap_or(0);
    let tallest = tiles.iter().map(|tile| tile.places.len()).max().unwrap_or(0) * heads / kv_heads;
    let slab = Part::len(tallest, head_dim.next_multiple_of(LANES)).next_multiple_of(LANES);
    // Few items are given out split by split, and their parts kept until all are there; of many, each is one task that
    // merges as it goes, with two slabs a thread.
    let apart = splits > 1 && items < 4 * threads;
    let slabs = if apart { items * splits } else { 2 * threads };
    let Scratch { desks, parts } = scratch;
    desks.resize_with(threads.max(desks.len()), Mutex::default);
    let parts = room(parts, slabs.checked_mul(slab).expect("attention: parts that a machine can number"));
    let (parts, out) = (Shared(parts.as_mut_ptr(), parts.len()), Shared(out.as_mut_ptr(), out.len()));
    let call = Call { compute, arguments, queries, tiles, desks, parts, slab, out };
    let item = |item: usize, worker: usize| {
        let [state, next] = [2 * worker, 2 * worker + 1];
        let mut splits = call.splits(item);
        splits.next().into_iter().for_each(|split| call.part(item, split, state, worker));
        for split in splits {
            call.part(item, split, next, worker);
            call.merge(item, split, [state, next]);
        }
        call.finish(item, state);
    };
    let part = |task: usize, worker: usize| {
        let item = task / splits;
        if let Some(split) = call.splits(item).nth(task % splits) {
            call.part(item, split, task, worker);
        }
    };
    let merged = |item: usize| {
        let others = call.splits(item).enumerate().skip(1);
        others.for_each(|(i, split)| call.merge(item, split, [item * splits, item * splits + i]));
        call.finish(item, item * splits);
    };
    let seen = places.iter().map(|place| place.len() - place.first(window)).sum::<usize>();
    let alone = 2 * seen * heads * head_dim < ALONE_BELOW;
    match (alone, apart) {
        (true, _) if !apart => (0..items).for_each(|number| item(number, 0)),
        (_, false) => compute.pool.run_as(items, &item),
        (_, true) => {
            compute.pool.run_as(items * splits, &part);
            compute.pool.run(items, &merged);
        }
    }
}
