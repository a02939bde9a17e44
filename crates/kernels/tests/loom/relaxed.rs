//! A mistake: no counter orders anything, as if all of them were relaxed.

#[path = "../../src/pool.rs"]
#[allow(dead_code)] // more than a model needs
pub mod pool;

pub mod sync {
    //! In place of `src/sync.rs`.

    pub use crate::whole::sync::*;
    use loom::sync::atomic;

    pub struct Ordering;

    #[allow(non_upper_case_globals)] // as the orderings are called
    impl Ordering {
        pub const Acquire: atomic::Ordering = atomic::Ordering::Relaxed;
        pub const Relaxed: atomic::Ordering = atomic::Ordering::Relaxed;
        pub const Release: atomic::Ordering = atomic::Ordering::Relaxed;
    }
}
