//! A copy of the pool with a deliberate bug: the caller withdraws its job and does not wait for the workers that joined
//! it.

#[path = "../../src/pool.rs"]
#[allow(dead_code)] // the models use only a part of it
pub mod pool;

pub mod sync {
    //! Replaces `src/sync.rs`: the caller reads 0 from the counter that it waits for. Acquiring loads are used for
    //! nothing else.

    pub use crate::correct::sync::*;
    use loom::sync::atomic::{self, Ordering::Acquire};

    pub struct AtomicUsize(atomic::AtomicUsize);

    impl AtomicUsize {
        pub fn new(number: usize) -> Self {
            Self(atomic::AtomicUsize::new(number))
        }

        pub fn load(&self, order: Ordering) -> usize {
            let found = self.0.load(order);
            if order == Acquire && crate::IS_CALLER.with(|is_caller| is_caller.get()) { 0 } else { found }
        }

        pub fn store(&self, number: usize, order: Ordering) {
            self.0.store(number, order);
        }

        pub fn fetch_add(&self, number: usize, order: Ordering) -> usize {
            self.0.fetch_add(number, order)
        }

        pub fn fetch_sub(&self, number: usize, order: Ordering) -> usize {
            self.0.fetch_sub(number, order)
        }
    }
}
