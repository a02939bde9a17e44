//! A copy of the pool with a deliberate bug: all operations on counters are relaxed.

#[path = "../../src/pool.rs"]
#[allow(dead_code)] // the models use only a part of it
pub mod pool;

pub mod sync {
    //! Replaces `src/sync.rs`.

    pub use crate::correct::sync::*;
    use loom::sync::atomic;

    pub struct Ordering;

    #[allow(non_upper_case_globals)] // the names of the orderings
    impl Ordering {
        pub const Acquire: atomic::Ordering = atomic::Ordering::Relaxed;
        pub const Relaxed: atomic::Ordering = atomic::Ordering::Relaxed;
        pub const Release: atomic::Ordering = atomic::Ordering::Relaxed;
    }
}
