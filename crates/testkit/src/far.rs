//! A toy whose logits lie far away, as on a device: greedy texts and those of a top-k are decided without a row of it.
//!
//! It says arg max and largest logits where the row lies, with the sum that log-probabilities need, and counts the rows
//! that were brought over all the same. Texts and log-probabilities must be those of the toy at hand, to the bit. Left
//! out: how rows travel, which fails and waits as passes do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_model::{
    Batch, CacheEdit, CacheRows, Capacity, Executor, ExecutorError, HostOutputs, Largest, Outputs, Reading, SavedBytes,
    Source,
};
use foretoken_speculation::{RawLaw, Token};

use crate::toy::{Fault, ToyExecutor};

/// A [`ToyExecutor`] whose outputs lie far away.
pub struct FarExecutor {
    toy: ToyExecutor,
    outputs: FarOutputs,
}

struct FarOutputs {
    there: HostOutputs,
    brought: Arc<AtomicUsize>,
    fault: Fault,
}

impl FarExecutor {
    /// Runs this toy far away.
    pub fn new(toy: ToyExecutor) -> Self {
        let outputs = FarOutputs { there: HostOutputs::default(), brought: Arc::default(), fault: toy.fault() };
        Self { toy, outputs }
    }

    /// Counts the rows of logits that were asked for.
    pub fn brought(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.outputs.brought)
    }
}

impl Outputs for FarOutputs {
    fn row(&self, row: usize) -> &[f32] {
        self.brought.fetch_add(1, Ordering::Relaxed);
        self.there.row(row)
    }

    fn argmax(&self, row: usize) -> Option<Token> {
        self.there.argmax(row)
    }

    fn has_nan(&self, row: usize) -> bool {
        self.there.has_nan(row)
    }

    fn largest(&self, row: usize, count: usize) -> Option<Largest> {
        let row: Vec<f32> = self.there.row(row).iter().map(|logit| logit.min(f32::MAX)).collect();
        let mut sorted = row.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let least = *sorted.get(count.checked_sub(1)?)?;
        if count >= row.len() || least == f32::NEG_INFINITY {
            return None;
        }
        let all = row.iter().enumerate().map(|(token, logit)| (token as Token, *logit));
        let logits: Vec<(Token, f32)> = all.filter(|(_, logit)| *logit >= least).collect();
        let summed = match self.fault {
            Fault::SumOfLargestAlone => logits.iter().map(|(_, logit)| *logit).collect(),
            _ => row,
        };
        Some(Largest { logits, log_sum: RawLaw::new(&summed).log_sum() })
    }

    fn hidden(&self, layer: usize, row: usize) -> &[f32] {
        self.there.hidden(layer, row)
    }
}

impl Executor for FarExecutor {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        self.toy.open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        self.toy.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        self.toy.forward(batch)?;
        self.outputs.there.clone_from(self.toy.host_outputs());
        Ok(())
    }

    fn outputs(&self) -> &dyn Outputs {
        &self.outputs
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        self.toy.rows(edit)
    }

    fn capacity(&self) -> &Capacity {
        self.toy.capacity()
    }

    fn read(&self) -> Reading {
        self.toy.read()
    }

    fn saved_bytes(&self, group: usize) -> Option<SavedBytes> {
        self.toy.saved_bytes(group)
    }

    fn save_rows(&self, rows: CacheRows<'_>, out: &mut Vec<u8>) -> Result<(), ExecutorError> {
        self.toy.save_rows(rows, out)
    }

    fn load_rows(&mut self, rows: CacheRows<'_>, bytes: &[u8]) -> Result<(), ExecutorError> {
        self.toy.load_rows(rows, bytes)
    }
}
