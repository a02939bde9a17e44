//! What threads of the pool meet at: the standard library's, in one place, so that a test can put a model's there.
//!
//! `tests/loom` includes `pool.rs` beside a module of this name whose locks and counters belong to loom, which tries
//! every order in which the threads could come. Left out: locks that nobody waits at, in other files.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(crate) use std::thread::{Builder, JoinHandle, yield_now};

/// How often a worker looks before it yields its core, about 30 microseconds, and then before it parks. With
/// fewer cores than threads yielding is what lets the others finish.
pub(crate) const SPINS: usize = 1_000;
pub(crate) const YIELDS: usize = 300;
