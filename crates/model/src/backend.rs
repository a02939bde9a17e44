//! Who makes executors of described networks: a trait, what it gives back, and the CPU.
//!
//! The idea: a family describes a network ([`Network`], whose matrices are named and not yet read), and a backend packs
//! the description in its own way. What comes out is an [`Executor`], as everything above knows it, and beside it the
//! little that is asked of a loaded model and not of a pass: its threads, its matrices as they are multiplied, and
//! further executors over the same weights. A second backend is a crate that implements the two traits here. Left out:
//! memory that a backend needs beyond that of this process.

use std::fmt;

use crate::decoder::Model;
use crate::error::ModelError;
use crate::executor::Executor;
use crate::lent::Lent;
use crate::linear::Unpacked;
use crate::network::{Network, Progress};
use crate::options::Options;
use crate::products::Rank;
use crate::spec::Spec;

/// Packs networks and runs them.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Its name, for readers.
    fn name(&self) -> &'static str;

    /// Packs a network, and makes an executor of it with a cache of its own. `progress` hears of each layer. The head
    /// has been cut to [`Options::tokens`] and the frequencies are those of [`Options::context`] already.
    ///
    /// # Errors
    /// [`ModelError`] naming the model and the tensor, if its weights cannot be read, or cannot be run in this way; or
    /// there is not memory enough.
    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError>;
}

/// A network that a backend has loaded.
pub struct Loaded {
    /// What runs it.
    pub executor: Box<dyn Executor>,
    /// What it computes.
    pub spec: Spec,
    /// Names of tensors of its files that it does not use ([`Network::left_out`]).
    pub left_out: Vec<String>,
    /// Threads of this process that compute: as many as were asked for, or as the system gives.
    pub threads: usize,
    /// Its weights, which further executors can share.
    pub weights: Box<dyn Packed>,
}

/// Whether what an executor says of itself makes sense; whoever loads a model asks before it is used.
///
/// # Errors
/// [`ModelError::Capacity`] naming the model, the backend and the field.
pub fn check(backend: &dyn Backend, model: &str, executor: &dyn Executor) -> Result<(), ModelError> {
    let place = || format!("{model}: backend {}", backend.name());
    executor.capacity().problem().map_or(Ok(()), |problem| Err(ModelError::Capacity { place: place(), problem }))
}

/// Weights as a backend multiplies with them.
pub trait Packed: Send {
    /// Another executor over the same weights, which are not loaded again: with a cache of its own. The type of the
    /// weights is as it is, and so are the frequencies that the context chose and the rows of the head.
    ///
    /// # Errors
    /// There is not memory enough for the cache, or its type does not fit the heads.
    fn executor(&self, options: Options) -> Result<Box<dyn Executor>, ModelError>;

    /// Every matrix that a pass may multiply with: those of experts that rows choose, then the others in order; the
    /// head is the last.
    fn matrices(&self) -> Vec<PackedMatrix>;

    /// Lends embedding and output rows to another network in this process, without a copy; `None`, as by default: they
    /// are not here, or not as one.
    fn lend(&self) -> Option<Lent> {
        None
    }
}

/// A matrix in the form in which it is multiplied, or as much of it as is in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedMatrix {
    /// Name of its weights' type.
    pub form: &'static str,
    /// Weights.
    pub elements: usize,
    /// Bytes that a product with it reads.
    pub bytes: usize,
    /// Whether it is that of an expert which rows choose: it is read where one of them did, for these rows alone.
    pub is_chosen: bool,
}

/// This machine's processor: [`Model`] runs every network.
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

/// The processor as one of several ranks, each of which loads its part of every matrix and runs the same passes.
impl Backend for Rank {
    fn name(&self) -> &'static str {
        "cpu rank"
    }

    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError> {
        Ok(Model::of(network, options, Some(self.clone()), progress)?.into_loaded())
    }
}
