//! All products of the decoder with matrices, in one process or on several ranks (tensor parallelism).
//!
//! Every matrix is split by outputs. A rank computes the outputs of its part for all rows of the pass, and gets the
//! others by an exchange (an all-gather, [`Exchange`]); then all ranks hold the same numbers and continue alike.
//! Nothing is ever summed across ranks: each output is one sum, in one order, on one rank, so the bits are those of one
//! process on any number of ranks. The products of one input take one exchange. In one process a product is a plain
//! call of the kernel.
//!
//! Attention is not split by heads: every rank computes all heads and has the whole cache.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use foretoken_kernels::Compute;
use foretoken_kernels::matmul::{Group, Product, grouped_products, products};

use crate::executor::ExecutorError;

/// The all-gather of the ranks.
pub trait Exchange: fmt::Debug + Send + Sync {
    /// Gathers the parts of all ranks into `all`, in order of rank: `part` is this rank's, and `lens` are the numbers
    /// of elements of all parts. Every rank runs the same passes and calls this the same number of times, with the same
    /// `lens`.
    ///
    /// # Errors
    /// [`ExecutorError`] if a rank does not answer. The pass then fails on this rank and perhaps not on others, which
    /// leaves ranks out of step. So an exchange that has failed once must keep failing, for all ranks.
    fn gather(&self, part: &[f32], lens: &[usize], all: &mut [f32]) -> Result<(), ExecutorError>;
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

    /// Whether the part is all outputs.
    pub(crate) fn is_whole(self) -> bool {
        self.count == 1
    }

    /// The part's range of this many outputs; the lengths of any two ranks differ by at most one.
    pub(crate) fn of(self, outputs: usize) -> Range<usize> {
        outputs * self.number / self.count..outputs * (self.number + 1) / self.count
    }
}

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

    /// Computes products of the same `x` `[rows, inputs]`, all in one fork-join.
    ///
    /// # Panics
    /// As [`products`](fn@products): if a shape does not fit.
    pub(crate) fn all(&self, x: &[f32], rows: usize, inputs: usize, all: &mut [Product<'_>]) {
        match &self.ranked {
            None => products(&self.compute, x, rows, inputs, all),
            Some(ranked) => ranked.all(&self.compute, x, [rows, inputs], all),
        }
    }

    /// Computes products of several groups of rows `[rows, inputs]`, each with matrices of its own.
    ///
    /// # Panics
    /// As [`grouped_products`]: if a shape does not fit.
    pub(crate) fn grouped(&self, inputs: usize, groups: &mut [Group<'_, '_>]) {
        match &self.ranked {
            None => grouped_products(&self.compute, inputs, groups),
            Some(ranked) => {
                for Group { x, rows, products } in groups {
                    ranked.all(&self.compute, x, [*rows, inputs], products);
                }
            }
        }
    }

    /// Computes one product alone; see [`all`](Self::all).
    pub(crate) fn one(&self, x: &[f32], rows: usize, inputs: usize, product: Product<'_>) {
        self.all(x, rows, inputs, &mut [product]);
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
    /// Number of elements of each rank's parts.
    lens: Vec<usize>,
    failure: Option<ExecutorError>,
}

impl Ranked {
    fn buffers(&self) -> std::sync::MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn share(&self, number: usize) -> Share {
        Share { number, count: self.rank.count }
    }

    fn any_failed(&self, failed: bool) -> bool {
        let Buffers { failure, .. } = &mut *self.buffers();
        let count = self.rank.count;
        let mut all = vec![0.0; count];
        if failure.is_none() {
            let own = [f32::from(u8::from(failed))];
            *failure = self.rank.exchange.gather(&own, &vec![1; count], &mut all).err();
        }
        failed || all.contains(&1.0)
    }

    fn all(&self, compute: &Compute, x: &[f32], [rows, inputs]: [usize; 2], all: &mut [Product<'_>]) {
        let mut buffers = self.buffers();
        let Buffers { part, all: gathered, lens, failure } = &mut *buffers;
        if failure.is_some() || rows == 0 {
            return;
        }
        // The number of elements of a rank's part of a product.
        let elements =
            |number: usize, product: &Product<'_>| rows * self.share(number).of(product.out.len() / rows).len();
        lens.clear();
        lens.extend(
            (0..self.rank.count).map(|number| all.iter().map(|product| elements(number, product)).sum::<usize>()),
        );
        part.resize(lens[self.rank.number], 0.0);
        gathered.resize(lens.iter().sum(), 0.0);
        let (mut rest, mut own) = (&mut part[..], Vec::with_capacity(all.len()));
        for product in &*all {
            let (out, behind) = rest.split_at_mut(elements(self.rank.number, product));
            rest = behind;
            own.push(Product { weights: product.weights, bias: product.bias, out, accumulate: false });
        }
        products(compute, x, rows, inputs, &mut own);
        if let Err(error) = self.rank.exchange.gather(part, lens, gathered) {
            *failure = Some(error);
            return;
        }
        let mut rest = &gathered[..];
        for number in 0..self.rank.count {
            for product in &mut *all {
                let (of_rank, behind) = rest.split_at(elements(number, product));
                rest = behind;
                write_part(of_rank, self.share(number), rows, product);
            }
        }
    }
}

/// Writes a rank's part `[rows, its outputs]` to its columns of a product's output.
fn write_part(part: &[f32], share: Share, rows: usize, product: &mut Product<'_>) {
    let outputs = product.out.len() / rows;
    let columns = share.of(outputs);
    if columns.is_empty() {
        return;
    }
    for (row, part) in product.out.chunks_exact_mut(outputs).zip(part.chunks_exact(columns.len())) {
        let row = &mut row[columns.clone()];
        match product.accumulate {
            true => row.iter_mut().zip(part).for_each(|(out, value)| *out += value),
            false => row.copy_from_slice(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_ranks_are_all_outputs_in_order() {
        for (outputs, count) in [(7, 2), (16, 3), (2, 3), (1, 1)] {
            let parts: Vec<_> = (0..count).map(|number| Share { number, count }.of(outputs)).collect();
            assert_eq!(parts.iter().cloned().flatten().collect::<Vec<_>>(), (0..outputs).collect::<Vec<_>>());
            let lens = || parts.iter().map(Range::len);
            assert!(lens().max() <= lens().min().map(|least| least + 1), "{parts:?}");
        }
    }
}
