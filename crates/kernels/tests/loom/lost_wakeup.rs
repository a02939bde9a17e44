//! A copy of the pool with a deliberate bug: a worker that parks misses a job that came meanwhile.

#[path = "../../src/pool.rs"]
#[allow(dead_code)] // the models use only a part of it
pub mod pool;

pub mod sync {
    //! Replaces `src/sync.rs`: no worker is woken.

    pub use crate::correct::sync::*;
    use std::sync::LockResult;

    pub struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub fn notify_all(&self) {}

        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            self.0.wait(guard)
        }
    }
}
