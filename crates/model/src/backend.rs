//! Backends make executors of described networks: the trait, its result, and the CPU.
//!
//! A family describes a network ([`Network`], whose matrices are not yet read), and a backend packs the description in
//! its own way. The result is an [`Executor`], which is all that the engine uses, and what concerns a loaded model
//! instead of a pass: its threads, its packed matrices, and further executors over the same weights. A second backend
//! is a crate that implements the two traits here.

use std::fmt;

use crate::decoder::Model;
use crate::error::ModelError;
use crate::executor::Executor;
use crate::linear::Unpacked;
use crate::network::{Network, Progress};
use crate::options::Options;
use crate::products::Rank;
use crate::shared_embeddings::SharedEmbeddings;
use crate::spec::Spec;

/// Packs networks and runs them.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Its name, for readers.
    fn name(&self) -> &'static str;

    /// Packs a network, and makes an executor of it with a cache of its own. `progress` is called after each layer. The
    /// head has already been cut to [`Options::tokens`], and the frequencies are those of [`Options::context`].
    ///
    /// # Errors
    /// [`ModelError`] naming the model and the tensor, if its weights cannot be read, or if the backend cannot run
    /// them; or there is not enough memory.
    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError>;
}

/// A network that a backend has loaded.
pub struct Loaded {
    /// Runs it.
    pub executor: Box<dyn Executor>,
    /// What it computes.
    pub spec: Spec,
    /// Names of tensors of its files that it does not use ([`Network::left_out`]).
    pub left_out: Vec<String>,
    /// Threads of this process that compute: as many as were requested, or fewer if the system gives no more.
    pub threads: usize,
    /// Its weights, which further executors can share.
    pub weights: Box<dyn Packed>,
}

/// Checks that the capacity of an executor is consistent, before a loaded model is used.
///
/// # Errors
/// [`ModelError::Capacity`] naming the model, the backend and the field.
pub fn check(backend: &dyn Backend, model: &str, executor: &dyn Executor) -> Result<(), ModelError> {
    let place = || format!("{model}: backend {}", backend.name());
    executor.capacity().problem().map_or(Ok(()), |problem| Err(ModelError::Capacity { place: place(), problem }))
}

/// The packed weights of a backend.
pub trait Packed: Send {
    /// Another executor over the same weights, with a cache of its own. Nothing is loaded again: the type of the
    /// weights, the frequencies that were chosen by the context, and the rows of the head stay as they are.
    ///
    /// # Errors
    /// There is not enough memory for the cache, or its type does not fit the heads.
    fn executor(&self, options: Options) -> Result<Box<dyn Executor>, ModelError>;

    /// Every matrix that a pass may multiply with: those of experts that rows choose, then the others in order; the
    /// head is the last.
    fn matrices(&self) -> Vec<PackedMatrix>;

    /// Embedding and output matrix, to be shared with another network in this process without a copy. `None`, the
    /// default, if they are not in this process, or not whole.
    fn shared_embeddings(&self) -> Option<SharedEmbeddings> {
        None
    }
}

/// A matrix in the form in which it is multiplied, or the part of it that is in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedMatrix {
    /// Name of its weights' type.
    pub form: &'static str,
    /// Number of weights.
    pub elements: usize,
    /// Bytes that a product with it reads.
    pub bytes: usize,
    /// Whether it belongs to an expert that rows choose: a pass reads it only for rows that chose this expert.
    pub is_chosen: bool,
}

/// This machine's CPU: [`Model`] runs every network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError> {
        Ok(Model::of(network, options, None, progress)?.into_loaded())
    }
}

/// The CPU as one of several ranks, each of which loads its part of every matrix and runs the same passes.
impl Backend for Rank {
    fn name(&self) -> &'static str {
        "cpu rank"
    }

    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError> {
        Ok(Model::of(network, options, Some(self.clone()), progress)?.into_loaded())
    }
}
