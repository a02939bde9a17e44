//! A mistake: a worker that parks does not hear of the job that came meanwhile.

#[path = "../../src/pool.rs"]
#[allow(dead_code)] // more than a model needs
pub mod pool;

pub mod sync {
    //! In place of `src/sync.rs`: nobody is woken.

    pub use crate::whole::sync::*;
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
