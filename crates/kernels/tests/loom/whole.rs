//! The pool with loom's locks and counters.

#[path = "../../src/pool.rs"]
#[allow(dead_code)] // more than a model needs
pub mod pool;

pub mod sync {
    //! In place of `src/sync.rs`. A worker looks once before it parks: looking more often is the same once more.

    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::{AtomicUsize, Ordering};
    pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub use loom::thread::{Builder, JoinHandle, yield_now};

    pub const SPINS: usize = 0;
    pub const YIELDS: usize = 1;
}
