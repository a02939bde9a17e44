//! A toy with experts: each row chooses some of many experts by its context, and a pass reads each chosen expert once.
//!
//! It reports the experts that it read, and they determine the time of a pass on a manual clock ([`ManualClock`]), so
//! tests can compare the costs that the engine learns with the true ones. Its logits are those of the toy: experts
//! change no output. It has one choice of experts per row, while a real network has one per row and layer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foretoken_engine::Clock;
use foretoken_model::{
    Batch, CacheEdit, CacheRows, Capacity, Executor, ExecutorError, Outputs, SavedBytes, Source, WeightsRead,
};

use crate::table::mix;
use crate::toy::{ToyExecutor, rows};

/// A clock that moves only when it is advanced. Clones share their time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Advances the clock.
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The experts of a toy, and their costs.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that a row chooses.
    pub chosen: usize,
    /// The number of last tokens of the context on which a row's choice depends.
    pub context_len: usize,
    /// Whether the executor reports the experts that a pass read.
    pub reports_reads: bool,
    /// The time of a pass, of each of its rows, and of each expert that it reads.
    pub durations: [Duration; 3],
}

impl Default for Experts {
    fn default() -> Self {
        let durations = [2000, 50, 1000].map(Duration::from_micros);
        Self { count: 16, chosen: 3, context_len: 1, reports_reads: true, durations }
    }
}

/// The number of bytes that every pass reads, and that of an expert.
const BYTES: [usize; 2] = [5000, 700];

impl Experts {
    /// The experts that a row with this context chooses.
    pub(crate) fn chosen_by(&self, context: &[u32]) -> BTreeSet<usize> {
        let last = &context[context.len().saturating_sub(self.context_len)..];
        let mut state = last.iter().fold(self.count as u64, |state, token| mix(state ^ u64::from(*token)));
        let mut chosen = BTreeSet::new();
        while chosen.len() < self.chosen.min(self.count) {
            state = mix(state);
            chosen.insert((state >> 20) as usize % self.count);
        }
        chosen
    }
}

/// A [`ToyExecutor`] with experts.
pub struct ExpertsExecutor {
    toy: ToyExecutor,
    experts: Experts,
    clock: ManualClock,
    read: WeightsRead,
}

impl ExpertsExecutor {
    /// Adds experts to a toy; its passes advance the clock.
    pub fn new(toy: ToyExecutor, experts: Experts, clock: ManualClock) -> Self {
        Self { toy, experts, clock, read: WeightsRead::default() }
    }
}

impl Executor for ExpertsExecutor {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        self.toy.open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        self.toy.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        self.toy.forward(batch)?;
        let mut chosen = BTreeSet::new();
        for span in batch.spans {
            for row in span.computed..span.tokens.len() {
                chosen.append(&mut self.experts.chosen_by(&self.toy.whole_context(span, row)));
            }
        }
        let [pass, row, expert] = self.experts.durations;
        self.clock.advance(pass + row * rows(batch) as u32 + expert * chosen.len() as u32);
        if self.experts.reports_reads {
            let (bytes, experts) = (BYTES[0] + BYTES[1] * chosen.len(), chosen.len());
            self.read = WeightsRead { bytes, experts, packed: 0 };
        }
        Ok(())
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

    fn weights_read(&self) -> WeightsRead {
        self.read
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
