//! The trait of backends, which make executors of described networks, and their result.
//!
//! A family describes a network ([`Network`], whose matrices are not yet read), and a backend packs the description in
//! its own way. The result ([`Loaded`]) has an [`Executor`], which is all that the engine uses, and what concerns a
//! loaded model and not a pass: its threads, its packed matrices, and further executors over the same weights. A second
//! backend would be a crate that implements the two traits here; the backend of the CPU is `decoder/cpu.rs`.

use std::fmt;

use crate::error::ModelError;
use crate::executor::Executor;
use crate::linear::{PackedMatrix, Unpacked};
use crate::network::{Network, Progress};
use crate::options::Options;
use crate::shared_embeddings::SharedEmbeddings;
use crate::spec::Spec;

/// Packs networks and runs them.
pub trait Backend: fmt::Debug + Send + Sync {
    /// The name of the backend, for messages.
    fn name(&self) -> &'static str;

    /// Whether [`Offloading`](crate::Offloading) can take its place, which computes the same bits. False by default.
    fn reads_layers(&self) -> bool {
        false
    }

    /// Number of processes that share the weights, each of which has about an equal part.
    fn ranks(&self) -> usize {
        1
    }

    /// Packs a network, and makes an executor of it with a cache of its own. `progress` is called after each layer. The
    /// output head has already been cut to [`Options::tokens`], and the frequencies are those of [`Options::context`].
    ///
    /// # Errors
    /// [`ModelError`] naming the model and the tensor, if the weights cannot be read, if the backend cannot run them,
    /// or if there is not enough memory.
    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError>;
}

/// A network that a backend has loaded.
pub struct Loaded {
    /// The executor that runs the network.
    pub executor: Box<dyn Executor>,
    /// What the network computes.
    pub spec: Spec,
    /// Names of the tensors in its files that it does not use ([`Network::left_out`]).
    pub left_out: Vec<String>,
    /// Number of threads of this process that compute: as many as were requested, or fewer if the system gives no more.
    pub threads: usize,
    /// The packed weights, which further executors can share.
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
    /// Makes another executor over the same weights, with a cache of its own. Nothing is loaded again: the type of the
    /// weights, the frequencies that were chosen by the context, and the rows of the output head stay as they are.
    ///
    /// # Errors
    /// If there is not enough memory for the cache, or its type does not fit the heads.
    fn executor(&self, options: Options) -> Result<Box<dyn Executor>, ModelError>;

    /// Every matrix that a pass may multiply with: those of experts that rows choose, then the others in order, with
    /// the output head as the last.
    fn matrices(&self) -> Vec<PackedMatrix>;

    /// Every matrix that reading a source multiplies with; none, the default, without an encoder.
    fn source_matrices(&self) -> Vec<PackedMatrix> {
        Vec::new()
    }

    /// The embedding and the output matrix, to be shared with another network in this process without a copy. `None`,
    /// the default, if they are not in this process, or only in part.
    fn shared_embeddings(&self) -> Option<SharedEmbeddings> {
        None
    }
}
