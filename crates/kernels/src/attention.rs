//! Attention of rows over a paged cache, by logical position.
//!
//! The idea: a row sees a list of places, one for each logical position from 0 to its own: first the sequence's
//! committed rows (shared by all rows of a span), then its ancestors in the tree, then itself. Scores, the
//! softmax and the weighted sum of values run over these positions in order, so neither the layout of pages,
//! nor the siblings in the tree, nor a later compaction of the accepted path can change a bit. The heads of one
//! group (GQA) share each key and value that is loaded.
//!
//! Cost of a row: 2 x positions x width of the cache x 4 bytes read. Tasks are ordered so that the rows of one head
//! follow one another and find its keys and values in the nearer caches. Measured on 2 cores of a Sapphire Rapids
//! Xeon, 12 layers of 12 heads of 64, 1000 positions: 3 ms for one row, about 2 ms for each further one.
//!
//! Left out: computing several rows from one load of a key, reduced cache types, windows, soft caps and biases
//! ([`Arguments`] is where they will go).

use crate::Compute;
use crate::isa::dispatch;

/// What all rows of one call share.
pub struct Arguments<'a> {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Multiplies every score.
    pub scale: f32,
    /// `[slots, kv_heads, head_dim]`.
    pub keys: &'a [f32],
    /// `[slots, kv_heads, head_dim]`.
    pub values: &'a [f32],
}

/// Where the positions of one row lie in the cache: slot numbers in order of position.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// Committed positions, from 0.
    pub prefix: &'a [u32],
    /// The row's ancestors within its span, and itself.
    pub tail: &'a [u32],
}

/// One group of query heads of one row, with the key-value head that it reads.
pub(crate) struct Head<'a> {
    pub(crate) queries: &'a [f32],
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) offset: usize,
    pub(crate) dim: usize,
    pub(crate) scale: f32,
    pub(crate) prefix: &'a [u32],
    pub(crate) tail: &'a [u32],
}

/// Positions between asking for a row of the cache and reading it: the memory's delay over the time of one row.
pub(crate) const AHEAD: usize = 8;

impl<'a> Head<'a> {
    /// The slots of all positions, in two parts, each with the position that it begins with.
    #[inline(always)]
    pub(crate) fn segments(&self) -> [(usize, &'a [u32]); 2] {
        [(0, self.prefix), (self.prefix.len(), self.tail)]
    }

    /// This head's part of one slot.
    #[inline(always)]
    pub(crate) fn row<'b>(&self, cache: &'b [f32], slot: u32) -> &'b [f32] {
        &cache[slot as usize * self.stride + self.offset..][..self.dim]
    }
}

/// Memory for the scores, one slab a task that runs at the same time; kept between calls.
#[derive(Default)]
pub struct Scratch {
    scores: Vec<f32>,
}

struct Shared(*mut f32);
// SAFETY: tasks take disjoint ranges of it: their own scores, or the output of their own row and group.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// The range is inside the slice that the pointer came from, and no other task touches it.
    #[expect(clippy::mut_from_ref, reason = "disjoint ranges of one slice, by the contract above")]
    unsafe fn range(&self, from: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(from), len) }
    }
}

/// Attends `queries` `[rows, heads, head_dim]` to the positions named by `places` (one a row), into `out` of
/// the same shape.
///
/// # Panics
/// If a shape does not fit, a row sees no position, or a slot lies outside the cache.
pub fn attention(
    compute: &Compute,
    arguments: &Arguments<'_>,
    queries: &[f32],
    places: &[Places<'_>],
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let Arguments { heads, kv_heads, head_dim, scale, keys, values } = *arguments;
    let (rows, group, stride) = (places.len(), heads / kv_heads, kv_heads * head_dim);
    assert!(heads % kv_heads == 0, "attention: {heads} heads over {kv_heads} key-value heads");
    assert!(queries.len() == rows * heads * head_dim && out.len() == queries.len(), "attention: shape of queries");
    assert_eq!(keys.len(), values.len(), "attention: keys and values");
    let lens: Vec<usize> = places.iter().map(|p| p.prefix.len() + p.tail.len()).collect();
    assert!(lens.iter().all(|len| *len > 0), "attention: a row without positions");
    let longest = lens.iter().copied().max().unwrap_or(0);
    let workers = compute.pool.threads();
    let slab = group * longest;
    if scratch.scores.len() < workers * slab {
        scratch.scores.resize(workers * slab, 0.0);
    }
    let (scores, output) = (Shared(scratch.scores.as_mut_ptr()), Shared(out.as_mut_ptr()));
    let task = |task: usize, worker: usize| {
        // The rows of one head come one after another: they mostly read the same part of the cache.
        let (row, kv) = (task % rows, task / rows);
        let first = (row * heads + kv * group) * head_dim;
        let head = Head {
            queries: &queries[first..][..group * head_dim],
            keys,
            values,
            stride,
            offset: kv * head_dim,
            dim: head_dim,
            scale,
            prefix: places[row].prefix,
            tail: places[row].tail,
        };
        // SAFETY: a worker runs one task at a time and has a slab of its own; tasks own disjoint outputs.
        let (scores, out) =
            unsafe { (scores.range(worker * slab, group * lens[row]), output.range(first, group * head_dim)) };
        dispatch!(compute.isa, attend(&head, scores, out));
    };
    let tasks = rows * kv_heads;
    if lens.iter().sum::<usize>() * heads * head_dim < 20_000 {
        (0..tasks).for_each(|t| task(t, 0));
    } else {
        compute.pool.run_as(tasks, &task);
    }
}
