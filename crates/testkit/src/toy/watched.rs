//! A toy whose passes, openings and cache edits a test can watch, or make fail.

use foretoken_model::{Batch, CacheEdit, Capacity, Executor, ExecutorError, Outputs, Source};

use super::ToyExecutor;

type Pass = dyn FnMut(&Batch<'_>) -> Result<(), ExecutorError> + Send;
type Open = dyn FnMut(Option<Source<'_>>) -> Result<(), ExecutorError> + Send;
type Edit = dyn FnMut(&mut ToyExecutor, CacheEdit<'_>) -> Result<(), ExecutorError> + Send;

/// A toy whose passes, openings and cache edits a test can watch, or make fail.
pub struct Watched {
    toy: ToyExecutor,
    pass: Box<Pass>,
    open: Box<Open>,
    edit: Box<Edit>,
}

impl Watched {
    /// Calls `pass` before each pass of this toy; a pass that it refuses is not run.
    pub fn new(toy: ToyExecutor, pass: impl FnMut(&Batch<'_>) -> Result<(), ExecutorError> + Send + 'static) -> Self {
        Self { toy, pass: Box::new(pass), open: Box::new(|_| Ok(())), edit: Box::new(ToyExecutor::rows) }
    }

    /// Calls `open` before a sequence is opened; one that it refuses is not opened.
    pub fn with_open(
        mut self,
        open: impl FnMut(Option<Source<'_>>) -> Result<(), ExecutorError> + Send + 'static,
    ) -> Self {
        self.open = Box::new(open);
        self
    }

    /// Calls `edit` in the place of the toy's cache edits.
    pub fn with_edits(
        mut self,
        edit: impl FnMut(&mut ToyExecutor, CacheEdit<'_>) -> Result<(), ExecutorError> + Send + 'static,
    ) -> Self {
        self.edit = Box::new(edit);
        self
    }
}

impl Executor for Watched {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        (self.open)(source)?;
        self.toy.open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        self.toy.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        (self.pass)(batch)?;
        self.toy.forward(batch)
    }

    fn outputs(&self) -> &dyn Outputs {
        self.toy.outputs()
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        (self.edit)(&mut self.toy, edit)
    }

    fn capacity(&self) -> &Capacity {
        self.toy.capacity()
    }
}
