//! Medusa heads (Cai et al. 2024): for each position ahead an output matrix that reads the target's last hidden state.
//!
//! The k-th head predicts the token after the k tokens that follow its input row, whatever these are. Its logits are
//! output(x + silu(block(x))), where x is the target's hidden state after its last norm (section 2.1). The row of a
//! written token reads the target's hidden state there, and its logits come from the first head. The row of a drafted
//! token reads what its parent row returned as its own hidden state: that same hidden state of the target, and the
//! number of heads used since. So drafters run these heads step by step like any other network, and each step takes the
//! time of one head. Nothing is cached, and tokens are ignored. An output matrix that all heads share is not supported.

use std::sync::Arc;

use foretoken_kernels::Compute;
use foretoken_kernels::activation::silu;

use crate::backend::{Loaded, Packed};
use crate::batch::Batch;
use crate::capacity::{Capacity, Group};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::executor::{CacheEdit, Executor, ExecutorError, Source, WeightsRead, check};
use crate::hidden::{HiddenInput, HiddenReads, HiddenStates};
use crate::linear::{Linear, PackedMatrix, Packing, Unpacked};
use crate::network::Progress;
use crate::options::Options;
use crate::outputs::{HostOutputs, Outputs};
use crate::products::{Products, Share};
use crate::shared_embeddings::SharedEmbeddings;
use crate::spec::Spec;

/// The head of one position ahead.
pub(crate) struct Head<M> {
    /// The matrices of the residual blocks, each `[width, width]`.
    pub(crate) blocks: Vec<M>,
    /// The output matrix `[vocabulary, width]`.
    pub(crate) output: M,
}

/// All heads, and what they need to know of the target.
struct Weights {
    spec: Spec,
    /// The target's last layer, whose output the heads read.
    target_layer: usize,
    heads: Vec<Head<Linear>>,
    /// Has the target's norm before its output matrix.
    shared: SharedEmbeddings,
}

/// The executor of the heads.
struct Medusa {
    weights: Arc<Weights>,
    products: Products,
    capacity: Capacity,
    outputs: HostOutputs,
    buffers: Buffers,
    read: WeightsRead,
}

/// The buffers of one pass, kept between passes.
#[derive(Default)]
struct Buffers {
    /// The input rows of one head, `[rows, width]`.
    x: Vec<f32>,
    /// What a block adds to them, `[rows, width]`.
    added: Vec<f32>,
    /// The logits of one head, `[rows, vocabulary]`.
    logits: Vec<f32>,
    /// For each row of the pass, `[rows, width + 1]`: the target's hidden state that it reads, and the number of heads
    /// used so far.
    own: Vec<f32>,
}

/// Packs heads and makes an executor of them. `target_layer` is the target's last layer.
///
/// # Errors
/// As [`Unpacked::pack`].
pub(crate) fn load(
    checkpoint: &Checkpoint,
    (spec, heads): (Spec, Vec<Head<Unpacked>>),
    (target_layer, shared): (usize, &SharedEmbeddings),
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
    let weights = Arc::new(Weights { spec, target_layer, heads: packed, shared: shared.clone() });
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
        // What a row returns as its own hidden state is the target's hidden state, and the number of heads used so far.
        let own_width = spec.width + 1;
        let capacity = Capacity {
            vocabulary: spec.vocabulary,
            context_max: spec.context_max,
            rows_max: options.rows_max.max(1),
            // Nothing is stored, but the engine counts rows.
            groups: vec![Group::attention(options.page_len.max(1), options.pages.max(1))],
            sources: None,
            hidden: HiddenStates { layers: 1, width: own_width },
            hidden_in: Some(HiddenReads { target_layers: vec![*target_layer], target_width: spec.width, own_layer: 0 }),
        };
        let outputs = HostOutputs { vocabulary: spec.vocabulary, width: own_width, ..HostOutputs::default() };
        let (buffers, read) = (Buffers::default(), WeightsRead::default());
        Self { weights, products, capacity, outputs, buffers, read }
    }

    /// Collects the inputs of the batch's rows: the target's normalized hidden state, and the number of heads used so
    /// far.
    fn collect_inputs(&mut self, batch: &Batch<'_>) {
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
                        self.weights.shared.normalize(isa, row, &mut own[first..first + width]);
                    }
                }
            }
        }
    }

    /// Computes the logits of the wanted rows, given by their numbers in the pass, in order.
    fn compute_logits(&mut self, wanted: &[usize]) {
        let Self { weights, products, outputs, buffers, read, .. } = self;
        let Weights { spec, heads, .. } = &**weights;
        let Buffers { x, added, logits, own } = buffers;
        let (width, vocabulary) = (spec.width, spec.vocabulary);
        outputs.logits.resize(wanted.len() * vocabulary, 0.0);
        // No drafter asks beyond the last head; if one did, the last head would be used again.
        let head_of = |row: usize| (own[row * (width + 1) + width] as usize).min(heads.len() - 1);
        *read = WeightsRead::default();
        for (number, Head { blocks, output }) in heads.iter().enumerate() {
            let indices: Vec<usize> = (0..wanted.len()).filter(|index| head_of(wanted[*index]) == number).collect();
            if indices.is_empty() {
                continue;
            }
            let rows = indices.len();
            x.clear();
            indices.iter().for_each(|index| x.extend_from_slice(&own[wanted[*index] * (width + 1)..][..width]));
            for block in blocks {
                added.resize(x.len(), 0.0);
                products.one(x, rows, width, block.product(added, false));
                silu(products.compute.isa, added);
                x.iter_mut().zip(&*added).for_each(|(x, added)| *x += added);
            }
            logits.resize(rows * vocabulary, 0.0);
            products.one(x, rows, width, output.product(logits, false));
            for (index, from) in indices.iter().zip(logits.chunks_exact(vocabulary)) {
                outputs.logits[index * vocabulary..][..vocabulary].copy_from_slice(from);
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
        self.collect_inputs(batch);
        let (mut wanted, mut hidden) = (Vec::new(), Vec::new());
        batch.requested_rows(&mut wanted, &mut hidden);
        self.compute_logits(&wanted);
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

    fn weights_read(&self) -> WeightsRead {
        self.read
    }
}
