//! The decoder: a network of any [`Spec`] as an [`Executor`].
//!
//! A pass embeds the rows of all spans, runs the blocks, and computes the head only for the rows whose logits are
//! wanted, since the head is a sixth of a model of a billion weights and half of a small one. Each row gets the list of
//! slots that it attends to: the committed positions of its sequence, then its ancestors, by logical position
//! (`decoder/pass.rs`). The sources of encoder-decoders are read when a sequence is opened (`decoder/encoder.rs`), and
//! `decoder/cpu.rs` makes a backend of the decoder.

mod cpu;
mod encoder;
mod offloading;
mod pass;
mod saved;

use std::sync::Arc;

use foretoken_kernels::softmax::cap_scores;
use foretoken_kernels::{Compute, Isa};

use crate::batch::Batch;
use crate::block::{
    AttentionMetadata, Block, Buffers, ELEMENTS_A_TASK, Fused, PassMetadata, RotaryAngles, grow_to, normalized,
};
use crate::cache::Cache;
use crate::capacity::{Capacity, Group};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::executor::{CacheEdit, CacheRows, Executor, ExecutorError, SavedBytes, Source, WeightsRead, check};
use crate::expert_memory::ExpertMemory;
use crate::family;
use crate::hidden::{HiddenReads, HiddenStates};
use crate::linear::{Linear, Packing, Unpacked};
use crate::network::{Fusion, Layer, Network, Progress};
use crate::offload::{Offload, PackedFile};
use crate::options::Options;
use crate::outputs::{HostOutputs, Outputs};
use crate::products::{Products, Rank, Share};
use crate::spec::{DraftHead, HeadKind, Spec};
pub use cpu::Cpu;
use encoder::Sources;
pub use offloading::Offloading;
use pass::Pass;

/// A network with its weights, its cache and the threads that compute it.
pub struct Model {
    /// The network, which other models over the same weights share.
    network: Arc<Network<Linear>>,
    /// The memory of experts, if not all of them are packed; it is shared, too.
    memory: Option<Arc<ExpertMemory>>,
    /// The layers that are read for every pass, if there are any; they are shared, too.
    offload: Option<Arc<Offload>>,
    products: Products,
    cache: Cache,
    /// The sources of an encoder-decoder.
    sources: Option<Sources>,
    capacity: Capacity,
    buffers: Buffers,
    pass: Pass,
    outputs: HostOutputs,
    /// Two numbers of bytes: of all matrices except the head and those of experts that rows choose, and of the head.
    matrices: [usize; 2],
    /// Number of layers that are run, from the first on.
    layers: usize,
    read: WeightsRead,
}

/// The weights of a model, which further executors share.
#[derive(Clone)]
struct Weights {
    network: Arc<Network<Linear>>,
    memory: Option<Arc<ExpertMemory>>,
    offload: Option<Arc<Offload>>,
}

impl Model {
    /// Loads a checkpoint. `progress` is called after each layer.
    ///
    /// # Errors
    /// [`ModelError`] naming the file and the tensor or field, what was expected and what was found; or if there is not
    /// enough memory for the cache, or its type does not fit the heads.
    pub fn load(checkpoint: &Checkpoint, options: Options, progress: Progress<'_>) -> Result<Self, ModelError> {
        // Only vectors are read so far.
        let network = family::read(checkpoint, options.context)?.with_tokens(options.tokens);
        Self::of(network, options, (None, None), progress)
    }

    /// Packs a described network, or a rank's part of it; with a `file`, except for the layers, which are read from
    /// there.
    ///
    /// # Errors
    /// As [`Model::load`]; or the file has other layers, cannot be read or is damaged.
    pub(crate) fn of(
        mut network: Network<Unpacked>,
        options: Options,
        (rank, file): (Option<Rank>, Option<&Arc<PackedFile>>),
        progress: Progress<'_>,
    ) -> Result<Self, ModelError> {
        options.check_types(&network.name, &network.spec)?;
        let compute = Compute::new(options.threads);
        let source = network.source.clone();
        let packing = Packing::new(&compute.pool, &source, options.weight_type, Share::new(rank.as_ref()));
        let take = |bytes| ExpertMemory::take(&mut network, bytes, &packing, options.weight_type);
        let memory = options.expert_bytes.map(take).transpose()?.flatten().map(Arc::new);
        let (network, offload) = match file {
            None => (network.pack(&packing, progress)?, None),
            Some(file) => {
                let (network, offload) = Offload::load(network, &packing, (file, options.layer_bytes), progress)?;
                (network, Some(Arc::new(offload)))
            }
        };
        let weights = Weights { network: Arc::new(network), memory, offload };
        Self::with(weights, Products::new(compute, rank), options)
    }

    fn with(
        Weights { network, memory, offload }: Weights,
        products: Products,
        options: Options,
    ) -> Result<Self, ModelError> {
        let spec = &network.spec;
        let types = [options.key_type, options.value_type];
        let layers = options.layers.unwrap_or(spec.layers).min(spec.layers);
        let windows = spec.windows_of(layers);
        let groups: Vec<Group> = windows.iter().map(|window| options.group(*window)).collect();
        let group_of = |layer| windows.iter().position(|window| *window == spec.window_of(layer));
        let share = products.share();
        let cached = |layer| (group_of(layer).expect("named by its layer"), share.heads(spec.kv_heads_of(layer)));
        let cached: Vec<_> = (0..spec.kv_layers().min(layers)).map(cached).collect();
        let cache = Cache::new(groups.clone(), &cached, types).ok_or_else(|| ModelError::Memory {
            file: network.name.clone(),
            positions: options.pages.saturating_mul(options.page_len),
            position_bytes: spec.cache_bytes_per_position(types),
        })?;
        let sources = Sources::new(&network, layers, &options, share)?;
        let has_all_tokens = network.head_tokens.is_empty();
        let vocabulary = if has_all_tokens { network.head.outputs() } else { spec.vocabulary };
        let hidden_in = spec.draft_head.as_ref().map(|head| HiddenReads {
            target_layers: head.target_layers.clone(),
            target_width: head.target_width,
            own_layer: layers - 1,
        });
        let capacity = Capacity {
            vocabulary,
            context_max: spec.context_max,
            rows_max: options.rows_max.max(1),
            groups,
            sources: sources.as_ref().map(|sources| sources.capacity().clone()),
            hidden: HiddenStates { layers, width: spec.width },
            hidden_in,
        };
        let row_tokens = (!has_all_tokens).then(|| network.head_tokens.as_slice().into());
        let (elements, width) = (network.head.outputs(), spec.width);
        let outputs = HostOutputs { vocabulary: elements, row_tokens, width, ..HostOutputs::default() };
        let (buffers, pass) = (Buffers::default(), Pass::default());
        let head = network.head.packed().bytes;
        let all: usize = network.matrices().map(|matrix| matrix.packed().bytes).sum();
        let beyond = network.layers[layers..].iter().flat_map(Layer::matrices);
        let body = all - head - beyond.map(|matrix| matrix.packed().bytes).sum::<usize>();
        let (matrices, read) = ([body, head], WeightsRead::default());
        Ok(Self {
            network,
            memory,
            offload,
            products,
            cache,
            sources,
            capacity,
            buffers,
            pass,
            outputs,
            matrices,
            layers,
            read,
        })
    }

    /// The network's shape and choices.
    pub fn spec(&self) -> &Spec {
        &self.network.spec
    }

    /// The network's matrices.
    #[cfg(test)]
    pub(crate) fn network(&self) -> &Network<Linear> {
        &self.network
    }

    /// Number of threads that compute: as many as were requested, or fewer if the system gives no more.
    fn threads(&self) -> usize {
        self.products.compute.pool.threads()
    }

    fn isa(&self) -> Isa {
        self.products.compute.isa
    }

    /// Computes with another instruction set than the best.
    pub fn with_isa(mut self, isa: Isa) -> Self {
        self.products.compute.isa = isa;
        self
    }

    /// Embeds the tokens of the pass into `x`, with everything that is computed before the first block.
    fn embed(&mut self, batch: &Batch<'_>) {
        let isa = self.isa();
        let Network { spec, embedding, positions, embedding_projection, embedding_norm, inputs, .. } = &*self.network;
        let Pass { tokens, positions: at, x, embedded, positional, inputs: of_layers, fusion: of_head, .. } =
            &mut self.pass;
        let (rows, elements) = (tokens.len(), tokens.len() * spec.width);
        if let Some(fusion) = &self.network.fusion {
            embedding.embed(tokens, grow_to(embedded, elements));
            return fusion.fill((&self.products, spec), batch, of_head, grow_to(x, elements));
        }
        if let Some(projection) = embedding_projection {
            let embedded = grow_to(embedded, rows * spec.embedding_width);
            embedding.embed(tokens, embedded);
            let out = projection.product(grow_to(x, elements), false);
            self.products.one(embedded, rows, spec.embedding_width, out);
        } else {
            embedding.embed(tokens, grow_to(x, elements));
        }
        if spec.embedding_multiplier != 1.0 {
            grow_to(x, elements).iter_mut().for_each(|x| *x *= spec.embedding_multiplier);
        }
        if let Some(table) = positions {
            let positional = grow_to(positional, elements);
            table.embed(at, positional);
            grow_to(x, elements).iter_mut().zip(positional).for_each(|(x, position)| *x += *position);
        }
        if embedding_norm.is_some() {
            let raw = grow_to(embedded, elements);
            raw.copy_from_slice(&x[..elements]);
            normalized(isa, spec, embedding_norm.as_ref(), raw, x);
        }
        if let Some(inputs) = inputs {
            inputs.fill(&self.products, spec, (tokens, &x[..elements]), of_layers);
        }
    }

    /// The error of this pass if an expert could not be packed. It fails the pass on all ranks, even if only one of
    /// them has the faulty part of the expert.
    fn expert_failure(&mut self) -> Option<ExecutorError> {
        self.network.spec.experts.as_ref()?;
        let own = self.buffers.ffn.experts.failure.take();
        let elsewhere = || "an expert could not be packed on another rank".to_string();
        let any = self.products.any_failed(own.is_some());
        any.then(|| ExecutorError::Failed { message: own.map_or_else(elsewhere, |error| error.to_string()) })
    }

    /// Computes output norm and head for the wanted rows of `x`, if there are any.
    fn head(&mut self) {
        let isa = self.isa();
        let Network { spec, output_norm, output_projection, head, .. } = &*self.network;
        let Pass { wanted, x, chosen, normed, projected, .. } = &mut self.pass;
        let logits = &mut self.outputs.logits;
        logits.resize(wanted.len() * head.outputs(), 0.0);
        if wanted.is_empty() {
            return;
        }
        gather(x, spec.width, wanted, chosen);
        let mut read = normalized(isa, spec, output_norm.as_ref(), chosen, normed);
        if let Some(projection) = output_projection {
            let out = grow_to(projected, wanted.len() * spec.embedding_width);
            self.products.one(read, wanted.len(), spec.width, projection.product(out, false));
            read = out;
        }
        self.products.one(read, wanted.len(), spec.embedding_width, head.product(logits, false));
        if spec.logit_multiplier != 1.0 {
            self.products.compute.pool.each_chunk(logits, ELEMENTS_A_TASK, &|_, logits| {
                logits.iter_mut().for_each(|logit| *logit *= spec.logit_multiplier);
            });
        }
        if let Some(cap) = spec.logit_soft_cap {
            self.products.compute.pool.each_chunk(logits, ELEMENTS_A_TASK, &|_, logits| cap_scores(logits, 1.0, cap));
        }
    }
}

/// Copies these rows of `x` `[_, width]` to `out`.
fn gather(x: &[f32], width: usize, rows: &[usize], out: &mut Vec<f32>) {
    out.clear();
    rows.iter().for_each(|row| out.extend_from_slice(&x[row * width..][..width]));
}

impl Executor for Model {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        match (&mut self.sources, source) {
            (None, None) => Ok(()),
            (Some(sources), Some(source)) => {
                sources.open((sequence, source), (&self.network, &self.products), &mut self.buffers)
            }
            (_, source) => panic!("an encoder, and a source for it, or neither: {source:?}"),
        }
    }

    fn release(&mut self, sequence: u64) {
        self.sources.iter_mut().for_each(|sources| sources.release(sequence));
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        check(batch, &self.capacity)?;
        let run = self.layers;
        assert!(
            batch.hidden_layers.iter().all(|layer| *layer < run),
            "batch: hidden layers {:?} of {run}",
            batch.hidden_layers
        );
        self.pass.lay_out(batch, &self.cache, self.network.spec.positions.rotations());
        self.outputs.hidden.resize_with(batch.hidden_layers.len(), Vec::new);
        self.embed(batch);
        let Self { network, memory, offload, products, cache, sources, buffers, pass, outputs, .. } = self;
        let Network { spec, layers, .. } = &**network;
        let attention: Vec<AttentionMetadata<'_>> =
            pass.slots.iter().map(|slots| slots.attention_metadata(&pass.ranges)).collect();
        let rotations = spec.positions.rotations().iter().zip(&pass.angles);
        let rotations: Vec<_> = rotations.map(|(rotation, angles)| RotaryAngles { rotation, angles }).collect();
        let (positions, inputs) = (&pass.positions, pass.inputs.inputs());
        let of_head = network.fusion.as_ref().zip(spec.draft_head.as_ref());
        let fused = of_head.map(|(Fusion { hidden_norm, .. }, DraftHead { kind, .. })| Fused {
            embedded: &pass.embedded[..pass.tokens.len() * spec.width],
            hidden_norm,
            residual_is_normed: matches!(kind, HeadKind::Layers { residual_is_normed: true, .. }),
        });
        let sources = sources.as_ref().map(|sources| sources.metadata(batch));
        let (attention, rotations) = (&attention[..], &rotations[..]);
        let metadata = PassMetadata { positions, attention, rotations, sources, inputs, fused };
        let block = Block { products, spec, memory: memory.as_deref(), metadata };
        let x = &mut pass.x[..pass.tokens.len() * spec.width];
        buffers.ffn.experts.read = WeightsRead::default();
        for (number, layer) in layers[..run].iter().enumerate() {
            let _held = offload.as_ref().map(|offload| offload.hold(number)).transpose()?;
            block.run((number, layer), cache, buffers, x);
            for (hidden, out) in batch.hidden_layers.iter().zip(&mut outputs.hidden) {
                if *hidden == number {
                    gather(x, spec.width, &pass.hidden, out);
                }
            }
        }
        self.head();
        // The results of a failed pass are not used, so it is enough to check at its end.
        let expert_failure = self.expert_failure();
        if let Some(error) = self.products.take_failure().or(expert_failure) {
            return Err(error);
        }
        let [body, head] = self.matrices;
        let bytes = if self.pass.wanted.is_empty() { body } else { body + head };
        let read = self.buffers.ffn.experts.read;
        self.read = WeightsRead { bytes: bytes + read.bytes, ..read };
        Ok(())
    }

    fn outputs(&self) -> &dyn Outputs {
        &self.outputs
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        match edit {
            CacheEdit::Move { tables, from, to } => self.cache.move_rows(tables, from, to),
            CacheEdit::Copy { from, to, positions } => self.cache.copy_rows(from, to, positions)?,
        }
        Ok(())
    }

    fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    fn weights_read(&self) -> WeightsRead {
        self.read
    }

    fn saved_bytes(&self, group: usize) -> Option<SavedBytes> {
        Some(SavedBytes { state: 0, row: self.saved_row(group).bytes() })
    }

    fn save_rows(&self, rows: CacheRows<'_>, out: &mut Vec<u8>) -> Result<(), ExecutorError> {
        self.save_all_heads(rows, out)
    }

    fn load_rows(&mut self, rows: CacheRows<'_>, bytes: &[u8]) -> Result<(), ExecutorError> {
        self.load_own_heads(rows, bytes)
    }
}
