//! A deliberate bug: a worker that parks misses the job that came meanwhile.

#[path = "../../src/pool.rs"]
#[allow(dead_code)] // more than a model needs
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
