//! Medusa heads (Cai et al. 2024): for each position ahead output rows of their own, which read the target's last
//! hidden row.
//!
//! The head of the k-th position ahead says what follows the k tokens behind the row that it reads, whatever these are:
//! logits = output(x + silu(block(x))), x the target's hidden row behind its last norm (section 2.1). So a row of the
//! text, beside a hidden row of the target, is answered by the first head; a guess reads what the row that it continues
//! passes on, which is the same hidden row and a number: how many heads have spoken before. With this the heads are a
//! network like any other to whoever drafts with it, of which each step costs one head. Nothing is cached, and tokens
//! change nothing. Left out: output rows that all heads share.

use std::sync::Arc;

use foretoken_kernels::Compute;
use foretoken_kernels::activation::silu;

use crate::backend::{Loaded, Packed, PackedMatrix};
use crate::batch::Batch;
use crate::capacity::{Capacity, Group};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::executor::{CacheEdit, Executor, ExecutorError, Reading, Source, check};
use crate::hidden::{HiddenInput, HiddenReads, HiddenStates};
use crate::lent::Lent;
use crate::linear::{Linear, Packing, Unpacked};
use crate::network::Progress;
use crate::options::Options;
use crate::outputs::{HostOutputs, Outputs};
use crate::products::{Products, Share};
use crate::spec::Spec;

/// The head of one position ahead.
pub(crate) struct Head<M> {
    /// `[width, width]` each.
    pub(crate) blocks: Vec<M>,
    /// `[vocabulary, width]`.
    pub(crate) output: M,
}

/// All heads, and the target's norm before its output rows.
struct Weights {
    spec: Spec,
    target_layer: usize,
    heads: Vec<Head<Linear>>,
    lent: Lent,
}

/// Heads that are run.
struct Medusa {
    weights: Arc<Weights>,
    products: Products,
    capacity: Capacity,
    outputs: HostOutputs,
    buffers: Buffers,
    read: Reading,
}

/// Buffers of one pass, kept between passes.
#[derive(Default)]
struct Buffers {
    /// What the rows of one head read, and what its blocks add, `[rows, width]`.
    x: Vec<f32>,
    added: Vec<f32>,
    logits: Vec<f32>,
    /// What each row of the pass passes on, `[rows, width + 1]`.
    own: Vec<f32>,
}

/// Packs heads and makes an executor of them. `target_layer`: the target's last.
///
/// # Errors
/// As [`Unpacked::pack`].
pub(crate) fn load(
    checkpoint: &Checkpoint,
    (spec, heads): (Spec, Vec<Head<Unpacked>>),
    (target_layer, lent): (usize, &Lent),
    options: Options,
    progress: Progress<'_>,
) -> Result<Loaded, ModelError> {
    let compute = Compute::new(options.threads);
    let packing = Packing::new(&compute.pool, &checkpoint.name, options.weight_type, Share::new(None));
    let (count, mut packed) = (heads.len(), Vec::with_capacity(heads.len()));
    let vocabulary = options.tokens.map_or(spec.vocabulary, |tokens| tokens.clamp(1, spec.vocabulary));
    let spec = Spec { vocabulary, ..spec };
    for Head { blocks, output } in heads {
        let output = output.outputs(0..vocabulary);
        let blocks = blocks.into_iter().map(|block| block.pack(&packing)).collect::<Result<_, _>>()?;
        packed.push(Head { blocks, output: output.pack(&packing.of_head())? });
        progress(packed.len(), count);
    }
    let weights = Arc::new(Weights { spec, target_layer, heads: packed, lent: lent.clone() });
    let executor = Medusa::new(Arc::clone(&weights), Products::new(compute, None), options);
    let (spec, threads) = (weights.spec.clone(), executor.products.compute.pool.threads());
    Ok(Loaded { executor: Box::new(executor), spec, left_out: Vec::new(), threads, weights: Box::new(Shared(weights)) })
}

/// The weights, for further executors.
struct Shared(Arc<Weights>);

impl Packed for Shared {
    fn executor(&self, options: Options) -> Result<Box<dyn Executor>, ModelError> {
        let products = Products::new(Compute::new(options.threads), None);
        Ok(Box::new(Medusa::new(Arc::clone(&self.0), products, options)))
    }

    fn matrices(&self) -> Vec<PackedMatrix> {
        self.0.heads.iter().flat_map(|head| head.blocks.iter().chain([&head.output]).map(Linear::packed)).collect()
    }
}

impl Medusa {
    fn new(weights: Arc<Weights>, products: Products, options: Options) -> Self {
        let Weights { spec, target_layer, .. } = &*weights;
        // What a row passes on: the hidden row, and the number of the head that answers next.
        let own_width = spec.width + 1;
        let capacity = Capacity {
            vocabulary: spec.vocabulary,
            context_max: spec.context_max,
            rows_max: options.rows_max.max(1),
            // Of nothing, but rows are counted all the same.
            groups: vec![Group::attention(options.page_len.max(1), options.pages.max(1))],
            sources: None,
            hidden: HiddenStates { layers: 1, width: own_width },
            hidden_in: Some(HiddenReads { target_layers: vec![*target_layer], target_width: spec.width, own_layer: 0 }),
        };
        let outputs = HostOutputs { vocabulary: spec.vocabulary, width: own_width, ..HostOutputs::default() };
        let (buffers, read) = (Buffers::default(), Reading::default());
        Self { weights, products, capacity, outputs, buffers, read }
    }

    /// What the rows of the batch read: a hidden row behind the target's norm, and how many heads have spoken.
    fn take_rows(&mut self, batch: &Batch<'_>) {
        let (width, isa) = (self.weights.spec.width, self.products.compute.isa);
        let own = &mut self.buffers.own;
        own.clear();
        for span in batch.spans {
            match span.hidden_in {
                HiddenInput::None => {}
                HiddenInput::Own(rows) => own.extend_from_slice(rows),
                HiddenInput::Target(rows) => {
                    for row in rows.chunks_exact(width) {
                        let first = own.len();
                        own.resize(first + width + 1, 0.0);
                        self.weights.lent.normalize(isa, row, &mut own[first..first + width]);
                    }
                }
            }
        }
    }

    /// The logits of the wanted rows, which are these of the pass, in order.
    fn answer(&mut self, wanted: &[usize]) {
        let Self { weights, products, outputs, buffers, read, .. } = self;
        let Weights { spec, heads, .. } = &**weights;
        let Buffers { x, added, logits, own } = buffers;
        let (width, vocabulary) = (spec.width, spec.vocabulary);
        outputs.logits.resize(wanted.len() * vocabulary, 0.0);
        // Behind the last head nobody asks; it would answer itself.
        let head_of = |row: usize| (own[row * (width + 1) + width] as usize).min(heads.len() - 1);
        *read = Reading::default();
        for (number, Head { blocks, output }) in heads.iter().enumerate() {
            let places: Vec<usize> = (0..wanted.len()).filter(|place| head_of(wanted[*place]) == number).collect();
            if places.is_empty() {
                continue;
            }
            let rows = places.len();
            x.clear();
            places.iter().for_each(|place| x.extend_from_slice(&own[wanted[*place] * (width + 1)..][..width]));
            for block in blocks {
                added.resize(x.len(), 0.0);
                products.one(x, rows, width, block.product(added, false));
                silu(products.compute.isa, added);
                x.iter_mut().zip(&*added).for_each(|(x, added)| *x += added);
            }
            logits.resize(rows * vocabulary, 0.0);
            products.one(x, rows, width, output.product(logits, false));
            for (place, from) in places.iter().zip(logits.chunks_exact(vocabulary)) {
                outputs.logits[place * vocabulary..][..vocabulary].copy_from_slice(from);
            }
            read.bytes += blocks.iter().chain([output]).map(|matrix| matrix.packed().bytes).sum::<usize>();
        }
    }
}

impl Executor for Medusa {
    fn open(&mut self, _sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        assert!(source.is_none(), "a source for a network without an encoder: {source:?}");
        Ok(())
    }

    fn release(&mut self, _sequence: u64) {}

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        check(batch, &self.capacity)?;
        self.take_rows(batch);
        let (mut wanted, mut hidden) = (Vec::new(), Vec::new());
        batch.asked_rows(&mut wanted, &mut hidden);
        self.answer(&wanted);
        let width = self.weights.spec.width + 1;
        self.outputs.hidden.resize_with(batch.hidden_layers.len(), Vec::new);
        for out in &mut self.outputs.hidden {
            out.clear();
            for row in &hidden {
                out.extend_from_slice(&self.buffers.own[row * width..][..width]);
                *out.last_mut().expect("a row has elements") += 1.0;
            }
        }
        self.products.take_failure().map_or(Ok(()), Err)
    }

    fn outputs(&self) -> &dyn Outputs {
        &self.outputs
    }

    fn rows(&mut self, _edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    fn read(&self) -> Reading {
        self.read
    }
}
