//! The CPU as a backend: every network is packed for the decoder and run by it, alone or as one of several ranks.

use std::sync::Arc;

use foretoken_kernels::{Compute, Isa};

use super::{Model, Weights};
use crate::backend::{Backend, Loaded, Packed};
use crate::error::ModelError;
use crate::executor::Executor;
use crate::linear::{Linear, PackedMatrix, Unpacked};
use crate::network::{Network, Progress};
use crate::options::Options;
use crate::products::{Products, Rank};
use crate::shared_embeddings::SharedEmbeddings;

/// The backend of this machine's CPU: [`Model`] runs every network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn reads_layers(&self) -> bool {
        true
    }

    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError> {
        Ok(Model::of(network, options, (None, None), progress)?.into_loaded())
    }
}

/// The CPU as one of several ranks, each of which loads its part of every matrix and runs the same passes.
impl Backend for Rank {
    fn name(&self) -> &'static str {
        "cpu rank"
    }

    fn ranks(&self) -> usize {
        self.count
    }

    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError> {
        Ok(Model::of(network, options, (Some(self.clone()), None), progress)?.into_loaded())
    }
}

impl Model {
    /// The model as the return value of a backend.
    pub(crate) fn into_loaded(self) -> Loaded {
        let Network { spec, left_out, .. } = &*self.network;
        let (network, memory) = (Arc::clone(&self.network), self.memory.clone());
        let weights = Weights { network, memory, offload: self.offload.clone() };
        let weights = Shared { weights, isa: self.isa(), rank: self.products.rank().cloned() };
        let (spec, left_out, threads) = (spec.clone(), left_out.clone(), self.threads());
        Loaded { executor: Box::new(self), spec, left_out, threads, weights: Box::new(weights) }
    }
}

/// The weights of a [`Model`], for further executors.
struct Shared {
    weights: Weights,
    isa: Isa,
    rank: Option<Rank>,
}

impl Packed for Shared {
    fn executor(&self, options: Options) -> Result<Box<dyn Executor>, ModelError> {
        options.check_types(&self.weights.network.name, &self.weights.network.spec)?;
        let mut compute = Compute::new(options.threads);
        compute.isa = self.isa;
        let products = Products::new(compute, self.rank.clone());
        Ok(Box::new(Model::with(self.weights.clone(), products, options)?))
    }

    fn matrices(&self) -> Vec<PackedMatrix> {
        let Weights { network, memory, .. } = &self.weights;
        let of_expert = |matrix: &Linear| PackedMatrix { is_chosen: true, ..matrix.packed() };
        let experts = network.expert_matrices().map(of_expert);
        let of_memory = memory.iter().flat_map(|memory| memory.matrices());
        // The head comes last.
        experts.chain(of_memory).chain(network.matrices().map(Linear::packed)).collect()
    }

    fn source_matrices(&self) -> Vec<PackedMatrix> {
        self.weights.network.source_matrices().map(Linear::packed).collect()
    }

    fn shared_embeddings(&self) -> Option<SharedEmbeddings> {
        // A rank has only a part of the output rows, so it cannot share them.
        self.rank.is_none().then(|| SharedEmbeddings::of(&self.weights.network))
    }
}
