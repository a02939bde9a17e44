//! All products of the decoder with matrices, in one process or on several ranks (tensor parallelism).
//!
//! Every matrix is split by outputs. A rank computes the outputs of its part for all rows of the pass, and gets the
//! others by an exchange (an all-gather, [`Exchange`]); then all ranks hold the same numbers and continue alike.
//! Nothing is ever summed across ranks: each output is one sum, in one order, on one rank, so the bits are those of one
//! process on any number of ranks. In one process a product is a plain call of the kernel.
//!
//! What belongs together is in one part: a rank has whole heads of keys and values with the queries that read them, and
//! whole blocks of the inputs of the next matrix ([`Share::of`]). So attention and activations are computed where their
//! inputs are ([`Products::own`]), and only their results are exchanged ([`Products::gather`]): a layer has four
//! exchanges, of the heads' outputs, of the inner feed-forward network, and of what both add to the residual stream.
//! The cache of a rank has its heads alone.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use foretoken_kernels::matmul::{Group, Product, grouped_products, products};
use foretoken_kernels::{Compute, rounding};

use crate::executor::ExecutorError;
use crate::spec::Heads;

/// The all-gather of the ranks.
pub trait Exchange: fmt::Debug + Send + Sync {
    /// Gathers the parts of all ranks into `all`, in order of rank: `part` is this rank's, and `lens` are the numbers
    /// of bytes of all parts. Every rank runs the same passes and calls this the same number of times, with the same
    /// `lens`.
    ///
    /// # Errors
    /// [`ExecutorError`] if a rank does not answer. The pass then fails on this rank and perhaps not on others, which
    /// leaves ranks out of step. So an exchange that has failed once must keep failing, for all ranks.
    fn gather(&self, part: &[u8], lens: &[usize], all: &mut [u8]) -> Result<(), ExecutorError>;
}

/// One of several processes that compute a network together.
#[derive(Clone, Debug)]
pub struct Rank {
    /// The number of the rank, from 0 on.
    pub number: usize,
    /// Number of ranks.
    pub count: usize,
    /// The exchange of outputs with the others.
    pub exchange: Arc<dyn Exchange>,
}

/// The part of every matrix's outputs that a rank computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    number: usize,
    count: usize,
}

impl Share {
    /// The part of this rank, or all outputs without ranks.
    pub(crate) fn new(rank: Option<&Rank>) -> Self {
        rank.map_or(Self { number: 0, count: 1 }, |rank| {
            assert!(rank.number < rank.count, "rank {} of {}", rank.number, rank.count);
            Self { number: rank.number, count: rank.count }
        })
    }

    /// The part of a rank, of this number of ranks.
    #[cfg(test)]
    pub(crate) fn of_rank(number: usize, count: usize) -> Self {
        Self { number, count }
    }

    /// Whether the part is all outputs.
    pub(crate) fn is_whole(self) -> bool {
        self.count == 1
    }

    /// The part's range of this many outputs, in whole units of `unit` outputs (the last unit may be shorter); the
    /// numbers of units of any two ranks differ by at most one.
    pub(crate) fn of(self, outputs: usize, unit: usize) -> Range<usize> {
        let units = outputs.div_ceil(unit);
        let first = |number: usize| (units * number / self.count * unit).min(outputs);
        first(self.number)..first(self.number + 1)
    }

    /// The part's heads of keys and values, of these.
    pub(crate) fn heads(self, heads: Heads) -> Heads {
        Heads { count: self.of(heads.count, 1).len(), ..heads }
    }

    /// The shares of all ranks, in order.
    pub(crate) fn all(self) -> impl Iterator<Item = Self> {
        (0..self.count).map(move |number| Self { number, ..self })
    }
}

/// A product with a matrix, and the units of its outputs that belong to one rank.
pub(crate) struct Output<'a> {
    pub(crate) product: Product<'a>,
    pub(crate) unit: usize,
}

/// Rows of a group of their own, and their products.
pub(crate) type OutputGroup<'a, 'b, const N: usize> = (&'b [f32], usize, [Output<'a>; N]);

/// Multiplies rows with matrices, alone or as one of several ranks.
pub(crate) struct Products {
    /// The threads of this process, and their instruction set.
    pub(crate) compute: Compute,
    ranked: Option<Ranked>,
}

impl Products {
    pub(crate) fn new(compute: Compute, rank: Option<Rank>) -> Self {
        Self { compute, ranked: rank.map(|rank| Ranked { rank, buffers: Mutex::default() }) }
    }

    /// The rank that this process is, if it is one of several.
    pub(crate) fn rank(&self) -> Option<&Rank> {
        self.ranked.as_ref().map(|ranked| &ranked.rank)
    }

    /// The part of this process.
    pub(crate) fn share(&self) -> Share {
        Share::new(self.rank())
    }

    /// Computes products of the same `x` `[rows, inputs]` into `[rows, outputs]`, all in one fork-join.
    ///
    /// # Panics
    /// As [`products`](fn@products): if a shape does not fit.
    pub(crate) fn all<const N: usize>(&self, x: &[f32], rows: usize, inputs: usize, outputs: [Output<'_>; N]) {
        match &self.ranked {
            None => self.own(x, rows, inputs, outputs),
            Some(ranked) => ranked.all(&self.compute, x, [rows, inputs], outputs),
        }
    }

    /// Computes one product alone; see [`all`](Self::all).
    pub(crate) fn one(&self, x: &[f32], rows: usize, inputs: usize, output: Output<'_>) {
        self.all(x, rows, inputs, [output]);
    }

    /// Computes this process's part of products of the same `x` `[rows, inputs]`, into `[rows, own outputs]`.
    ///
    /// # Panics
    /// As [`all`](Self::all).
    pub(crate) fn own<const N: usize>(&self, x: &[f32], rows: usize, inputs: usize, outputs: [Output<'_>; N]) {
        products(&self.compute, x, rows, inputs, &mut outputs.map(|output| output.product));
    }

    /// Computes products of several groups of rows `[rows, inputs]`, each with matrices of its own.
    ///
    /// # Panics
    /// As [`grouped_products`]: if a shape does not fit.
    pub(crate) fn grouped<const N: usize>(&self, inputs: usize, groups: Vec<OutputGroup<'_, '_, N>>) {
        match &self.ranked {
            None => self.own_grouped(inputs, groups),
            Some(ranked) => {
                for (x, rows, outputs) in groups {
                    ranked.all(&self.compute, x, [rows, inputs], outputs);
                }
            }
        }
    }

    /// Computes this process's part of products of groups, as [`own`](Self::own).
    ///
    /// # Panics
    /// As [`grouped_products`].
    pub(crate) fn own_grouped<const N: usize>(&self, inputs: usize, groups: Vec<OutputGroup<'_, '_, N>>) {
        let mut groups: Vec<_> =
            groups.into_iter().map(|(x, rows, outputs)| (x, rows, outputs.map(|output| output.product))).collect();
        let group = groups.iter_mut().map(|(x, rows, products)| Group { x, rows: *rows, products });
        let mut groups: Vec<_> = group.collect();
        grouped_products(&self.compute, inputs, &mut groups);
    }

    /// All outputs `[rows, outputs]` of which this process has its part, `own` `[rows, own outputs]`, split by units.
    /// With `rounding`, they are only read by products that round them in blocks of this many elements: where units are
    /// whole blocks, they are sent rounded.
    pub(crate) fn gather<'a>(
        &self,
        own: &'a [f32],
        [rows, outputs, unit]: [usize; 3],
        rounding: Option<usize>,
        all: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let Some(ranked) = &self.ranked else { return own };
        all.resize(rows * outputs, 0.0);
        match rounding.filter(|block| unit.is_multiple_of(*block) && outputs.is_multiple_of(*block)) {
            Some(block) => ranked.gather_rounded(own, [rows, unit, block], all),
            None => ranked.gather(own, [rows, unit], all),
        }
        all
    }

    /// The bytes of all ranks one after another, of which `own` are this one's and `lens` the numbers of each.
    ///
    /// # Errors
    /// A rank does not answer.
    pub(crate) fn gather_bytes(&self, own: &[u8], lens: &[usize]) -> Result<Vec<u8>, ExecutorError> {
        let Some(ranked) = &self.ranked else { return Ok(own.to_vec()) };
        let mut all = vec![0; lens.iter().sum()];
        ranked.rank.exchange.gather(own, lens, &mut all)?;
        Ok(all)
    }

    /// Whether any rank failed in this pass. All ranks call it and get the same result.
    pub(crate) fn any_failed(&self, failed: bool) -> bool {
        self.ranked.as_ref().map_or(failed, |ranked| ranked.any_failed(failed))
    }

    /// The failure of an exchange since the last call, if there was one: then the products since are undefined.
    pub(crate) fn take_failure(&self) -> Option<ExecutorError> {
        self.ranked.as_ref().and_then(|ranked| ranked.buffers().failure.take())
    }
}

/// A rank and the buffers of its exchanges.
struct Ranked {
    rank: Rank,
    buffers: Mutex<Buffers>,
}

#[derive(Default)]
struct Buffers {
    /// This rank's parts of the products of an input, `[rows, own outputs]` each.
    part: Vec<f32>,
    /// The parts of all ranks, one after another.
    all: Vec<f32>,
    /// Number of bytes of each rank's parts.
    lens: Vec<usize>,
    /// This rank's part, and those of all ranks, rounded.
    rounded: [Vec<u8>; 2],
    failure: Option<ExecutorError>,
}

impl Ranked {
    fn buffers(&self) -> std::sync::MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shares of all ranks, in order.
    fn shares(&self) -> impl Iterator<Item = Share> {
        Share::new(Some(&self.rank)).all()
    }

    fn any_failed(&self, failed: bool) -> bool {
        let Buffers { failure, .. } = &mut *self.buffers();
        let mut all = vec![0; self.rank.count];
        if failure.is_none() {
            *failure = self.rank.exchange.gather(&[u8::from(failed)], &vec![1; all.len()], &mut all).err();
        }
        failed || all.contains(&1)
    }

    /// Computes this rank's part of some products, and gets the others.
    fn all<const N: usize>(
        &self,
        compute: &Compute,
        x: &[f32],
        [rows, inputs]: [usize; 2],
        mut outputs: [Output<'_>; N],
    ) {
        let buffers = &mut *self.buffers();
        if buffers.failure.is_some() || rows == 0 {
            return;
        }
        let shapes = outputs.each_ref().map(|output| [output.product.out.len() / rows, output.unit]);
        let own = Share::new(Some(&self.rank));
        let elements = shapes.map(|[outputs, unit]| rows * own.of(outputs, unit).len());
        buffers.part.resize(elements.iter().sum(), 0.0);
        let (mut rest, mut lens) = (&mut buffers.part[..], elements.iter());
        let mut parts = outputs.each_ref().map(|Output { product: Product { weights, bias, .. }, .. }| {
            let (out, behind) = std::mem::take(&mut rest).split_at_mut(*lens.next().expect("one for each"));
            rest = behind;
            Product { weights, bias: *bias, out, accumulate: false }
        });
        products(compute, x, rows, inputs, &mut parts);
        if self.exchange(buffers, rows, &shapes) {
            let outs = outputs.each_mut().map(|output| (&mut *output.product.out, output.product.accumulate));
            self.write_parts(&buffers.all, rows, &shapes, outs);
        }
    }

    /// Gets all outputs of which this rank has computed its part.
    fn gather(&self, own: &[f32], [rows, unit]: [usize; 2], out: &mut [f32]) {
        let buffers = &mut *self.buffers();
        if buffers.failure.is_some() || rows == 0 {
            return;
        }
        buffers.part.clear();
        buffers.part.extend_from_slice(own);
        let shapes = [[out.len() / rows, unit]];
        if self.exchange(buffers, rows, &shapes) {
            self.write_parts(&buffers.all, rows, &shapes, [(out, false)]);
        }
    }

    /// As [`gather`](Self::gather), for outputs that will be rounded in blocks: they are sent so.
    fn gather_rounded(&self, own: &[f32], [rows, unit, block]: [usize; 3], out: &mut [f32]) {
        let Buffers { rounded: [part, all], lens, failure, .. } = &mut *self.buffers();
        if failure.is_some() || rows == 0 {
            return;
        }
        let outputs = out.len() / rows;
        part.resize(rounding::rounded_bytes(own.len(), block), 0);
        rounding::round(own, block, part);
        let columns = |share: Share| share.of(outputs, unit);
        lens.clear();
        lens.extend(self.shares().map(|share| rounding::rounded_bytes(rows * columns(share).len(), block)));
        all.resize(lens.iter().sum(), 0);
        if let Err(error) = self.rank.exchange.gather(part, lens, all) {
            *failure = Some(error);
            return;
        }
        let mut rest = &all[..];
        for (share, len) in self.shares().zip(&*lens) {
            let (bytes, behind) = rest.split_at(*len);
            rest = behind;
            let columns = columns(share);
            // A rank may have no outputs.
            let rows = bytes.chunks_exact((len / rows).max(1)).zip(out.chunks_exact_mut(outputs));
            rows.for_each(|(bytes, row)| rounding::restore(bytes, block, &mut row[columns.clone()]));
        }
    }

    /// Exchanges the parts of matrices with these numbers of outputs and units. Returns whether that worked.
    fn exchange(&self, buffers: &mut Buffers, rows: usize, shapes: &[[usize; 2]]) -> bool {
        let Buffers { part, all, lens, failure, .. } = buffers;
        let elements =
            |share: Share| shapes.iter().map(|[outputs, unit]| rows * share.of(*outputs, *unit).len()).sum::<usize>();
        lens.clear();
        lens.extend(self.shares().map(|share| size_of::<f32>() * elements(share)));
        all.resize(lens.iter().sum::<usize>() / size_of::<f32>(), 0.0);
        let (part, all) = (bytemuck::cast_slice(&part[..]), bytemuck::cast_slice_mut(&mut all[..]));
        *failure = self.rank.exchange.gather(part, lens, all).err();
        failure.is_none()
    }

    /// Writes the parts of all ranks to their columns of the outputs, each of which is replaced or added to.
    fn write_parts<const N: usize>(
        &self,
        gathered: &[f32],
        rows: usize,
        shapes: &[[usize; 2]; N],
        mut outs: [(&mut [f32], bool); N],
    ) {
        let mut rest = gathered;
        for share in self.shares() {
            for ([outputs, unit], (out, accumulate)) in shapes.iter().zip(&mut outs) {
                let columns = share.of(*outputs, *unit);
                let (part, behind) = rest.split_at(rows * columns.len());
                rest = behind;
                write_part(part, columns, *outputs, (out, *accumulate));
            }
        }
    }
}

/// Writes a rank's part `[rows, its outputs]` to its columns of `out` `[rows, outputs]`.
fn write_part(part: &[f32], columns: Range<usize>, outputs: usize, (out, accumulate): (&mut [f32], bool)) {
    if columns.is_empty() {
        return;
    }
    for (row, part) in out.chunks_exact_mut(outputs).zip(part.chunks_exact(columns.len())) {
        let row = &mut row[columns.clone()];
        match accumulate {
            true => row.iter_mut().zip(part).for_each(|(out, value)| *out += value),
            false => row.copy_from_slice(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_ranks_are_all_outputs_in_order_and_whole_units() {
        for (outputs, unit, count) in
            [(7, 1, 2), (16, 1, 3), (2, 1, 3), (1, 1, 1), (5632, 256, 4), (3 * 64, 64, 2), (40, 16, 2)]
        {
            let parts: Vec<_> = Share { number: 0, count }.all().map(|share| share.of(outputs, unit)).collect();
            assert_eq!(parts.iter().cloned().flatten().collect::<Vec<_>>(), (0..outputs).collect::<Vec<_>>());
            assert!(parts.iter().all(|part| part.start % unit == 0 || part.is_empty()), "{parts:?}");
            let lens = || parts.iter().map(|part| part.len().div_ceil(unit));
            assert!(lens().max() <= lens().min().map(|least| least + 1), "{parts:?}");
        }
        let parts = |outputs, unit, count| -> Vec<usize> {
            Share { number: 0, count }.all().map(|share| share.of(outputs, unit).len()).collect()
        };
        assert_eq!(parts(5632, 256, 4), [1280, 1536, 1280, 1536]);
        assert_eq!((parts(192, 64, 2), parts(192, 64, 4)), (vec![64, 128], vec![0, 64, 64, 64]));
    }
}
