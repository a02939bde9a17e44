//! A toy whose logits are remote, as on a device: greedy and top-k sampling need not fetch whole rows.
//!
//! It computes the argmax and the largest logits without fetching the row, with the sum that log-probabilities need,
//! and counts the rows that are fetched nevertheless. Tokens and log-probabilities must be those of the toy with local
//! logits, to the bit. Transfers are not simulated: they fail and take time as passes do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_model::{
    Batch, CacheEdit, CacheRows, Capacity, Executor, ExecutorError, HostOutputs, Largest, Outputs, SavedBytes, Source,
    WeightsRead,
};
use foretoken_speculation::{RawLaw, Token};

use crate::toy::{Fault, ToyExecutor};

impl ToyExecutor {
    /// Boxes the toy as an executor, with local or remote logits.
    pub fn boxed(self, remote_logits: bool) -> Box<dyn Executor> {
        if remote_logits { Box::new(RemoteLogitsExecutor::new(self)) } else { Box::new(self) }
    }
}

/// A [`ToyExecutor`] with remote logits.
pub struct RemoteLogitsExecutor {
    toy: ToyExecutor,
    outputs: RemoteOutputs,
}

struct RemoteOutputs {
    remote: HostOutputs,
    rows_fetched: Arc<AtomicUsize>,
    fault: Fault,
}

impl RemoteLogitsExecutor {
    /// The toy with remote logits.
    pub fn new(toy: ToyExecutor) -> Self {
        let outputs =
            RemoteOutputs { remote: HostOutputs::default(), rows_fetched: Arc::default(), fault: toy.fault() };
        Self { toy, outputs }
    }

    /// The counter of rows of logits that were fetched.
    pub fn rows_fetched(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.outputs.rows_fetched)
    }
}

impl Outputs for RemoteOutputs {
    fn row(&self, row: usize) -> &[f32] {
        self.rows_fetched.fetch_add(1, Ordering::Relaxed);
        self.remote.row(row)
    }

    fn argmax(&self, row: usize) -> Option<Token> {
        self.remote.argmax(row)
    }

    fn has_nan(&self, row: usize) -> bool {
        self.remote.has_nan(row)
    }

    fn largest(&self, row: usize, count: usize) -> Option<Largest> {
        let row: Vec<f32> = self.remote.row(row).iter().map(|logit| logit.min(f32::MAX)).collect();
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
        self.remote.hidden(layer, row)
    }
}

impl Executor for RemoteLogitsExecutor {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        self.toy.open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        self.toy.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        self.toy.forward(batch)?;
        self.outputs.remote.clone_from(self.toy.host_outputs());
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

    fn weights_read(&self) -> WeightsRead {
        self.toy.weights_read()
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
