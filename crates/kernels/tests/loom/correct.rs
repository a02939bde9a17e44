//! The pool with loom's locks and counters.

#[path = "../../src/pool.rs"]
#[allow(dead_code)] // the models use only a part of it
pub mod pool;

pub mod sync {
    //! Replaces `src/sync.rs`. A worker checks once before it parks, since further checks would only repeat that one.

    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::{AtomicUsize, Ordering};
    pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub use loom::thread::{Builder, JoinHandle, yield_now};

    pub const SPINS: usize = 0;
    pub const YIELDS: usize = 1;
}
