//! A model over several processes, on one machine or on many: *ranks*, each of which has a part of every matrix.
//!
//! Rank 0, the [`Leader`], is the program that its user sees: text, laws, drafts, the planner and the server are there,
//! and to the engine it is a backend like any other. Every other rank ([`follow`]) has an executor for each of the
//! leader's, and repeats each of its calls: whatever changes the leader's cache changes all caches alike. During a
//! pass the ranks exchange the outputs of their parts (`foretoken_model::Exchange`), nothing is summed across ranks,
//! and so the bits are those of one process.
//!
//! Ranks are joined by a [`Communicator`]: the crate `mpi` over Open MPI (feature `mpi`), or threads of one process
//! ([`in_process`]), which tests use; [`Slow`] makes either as slow as a given link. [`join`] refuses ranks whose
//! program or command line differs before anything is loaded, and models whose files differ when they are opened. A
//! rank that does not answer within the limit ends the job.
//!
//! Left out: draft models and heads on several ranks (draft models run on rank 0 alone; a draft head needs its target's
//! embedding in one process and is refused), and ranks that come and go.

#![forbid(unsafe_code)]

mod command;
mod communicator;
mod follower;
mod group;
pub mod in_process;
mod join;
mod leader;
#[cfg(feature = "mpi")]
mod open_mpi;
pub mod pass_time;
#[cfg(any(test, feature = "mpi"))]
mod patience;
mod slow;

pub use communicator::{Communicator, Silent};
pub use follower::follow;
pub use group::Group;
pub use join::{Greeting, Refused, Role, join};
pub use leader::Leader;
#[cfg(feature = "mpi")]
pub use open_mpi::OpenMpi;
pub use slow::Slow;
