//! A mistake: the caller withdraws its job and does not wait for who joined it.

#[path = "../../src/pool.rs"]
#[allow(dead_code)] // more than a model needs
pub mod pool;

pub mod sync {
    //! In place of `src/sync.rs`: what the caller waits for, it believes to be 0 at once. It waits for nothing else by
    //! an acquiring load.

    pub use crate::whole::sync::*;
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
