//! *What does this network say about these tokens?* Batch in, logits out.
//!
//! A family (`family/`) reads a checkpoint ([`Checkpoint`]) into a [`Spec`], a closed list of the ways in which
//! networks differ, and a [`Network`] whose tensors are described but not yet read. A [`Backend`] packs it. On the CPU
//! one decoder runs every network behind the [`Executor`] trait: spans and trees of tokens over a paged KV cache, whose
//! *bytes* live here and whose *bookkeeping* is the engine's. Prefill and decode are the same operation: rows are
//! scored. Matrices are packed for the kernels when they are loaded, in the type of their file or in a requested
//! [`WeightType`]; embeddings stay in the mapped file.
//!
//! This crate knows no sampling, text or requests.

#![forbid(unsafe_code)]

pub mod backend;
mod batch;
mod block;
mod cache;
mod capacity;
pub mod checkpoint;
mod collected;
mod decoder;
mod error;
pub mod executor;
mod expert_memory;
pub mod export;
pub mod family;
#[cfg(feature = "faults")]
pub mod faults;
#[cfg(not(feature = "faults"))]
mod faults;
mod hidden;
mod layer_inputs;
mod linear;
mod medusa;
mod mxfp4;
pub mod network;
mod offload;
mod options;
mod outputs;
mod products;
mod quantization;
mod quantized;
mod router;
mod shared_embeddings;
pub mod spec;
mod storage;
mod weight_type;

pub use backend::{Backend, Loaded, Packed};
pub use batch::{Batch, PageId, PageTable, Span, Token};
pub use cache::ARITHMETIC_VERSION;
pub use capacity::{Capacity, Group, Keep, Kind, SourceCapacity};
pub use checkpoint::Checkpoint;
pub use decoder::{Cpu, Model, Offloading};
pub use error::{CapacityProblem, ModelError, Setting};
pub use executor::{CacheEdit, CacheRows, Executor, ExecutorError, SavedBytes, Sent, Source, WeightsRead};
pub use expert_memory::ExpertNeed;
pub use foretoken_kernels::attention::CacheType;
pub use hidden::{HiddenInput, HiddenReads, HiddenStates};
pub use linear::{Elements, PackedMatrix, Table, Unpacked};
pub use network::{Network, Progress};
pub use offload::{LayerNeed, PackedFile, WriteLayersError, write_layers};
pub use options::Options;
pub use outputs::{HostOutputs, Largest, Outputs};
pub use products::{Exchange, Rank};
pub use shared_embeddings::SharedEmbeddings;
pub use spec::Spec;
pub use weight_type::WeightType;
