//! A toy whose passes a test can watch, or make fail.

use foretoken_model::{Batch, CacheEdit, Capacity, Executor, ExecutorError, Outputs, Source};

use super::ToyExecutor;

/// A function that is called before each pass; a pass that it refuses is not run.
type Watch = dyn FnMut(&Batch<'_>) -> Result<(), ExecutorError> + Send;

/// A toy whose passes a test can watch, or make fail.
pub struct Watched {
    toy: ToyExecutor,
    watch: Box<Watch>,
}

impl Watched {
    /// Calls `watch` before each pass of this toy.
    pub fn new(toy: ToyExecutor, watch: impl FnMut(&Batch<'_>) -> Result<(), ExecutorError> + Send + 'static) -> Self {
        Self { toy, watch: Box::new(watch) }
    }
}

impl Executor for Watched {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        self.toy.open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        self.toy.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        (self.watch)(batch)?;
        self.toy.forward(batch)
    }

    fn outputs(&self) -> &dyn Outputs {
        self.toy.outputs()
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        self.toy.rows(edit)
    }

    fn capacity(&self) -> &Capacity {
        self.toy.capacity()
    }
}
