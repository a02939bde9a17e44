//! The synchronization primitives of the pool, in a module of their own, so that a test can replace them.
//!
//! `tests/loom` includes `pool.rs` together with a module of this name that has the locks and counters of loom, which
//! tries every interleaving of the threads.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(crate) use std::thread::{Builder, JoinHandle, yield_now};

/// How often a worker spins before it yields its core, about 30 microseconds, and how often it yields before it parks.
/// With fewer cores than threads, yielding lets the other threads finish.
pub(crate) const SPINS: usize = 1_000;
pub(crate) const YIELDS: usize = 300;
