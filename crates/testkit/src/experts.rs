//! A toy of experts: each row chooses some of many by what it sees, and a pass reads each that is chosen once.
//!
//! It says what it read, and what a pass takes goes by that on a clock of its own ([`Hands`]), so tests can hold what
//! is learned of costs to what passes take. What it says of tokens is the toy's: experts change no text. Left out:
//! layers, of which a real network has many, each with a choice of its own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foretoken_engine::Clock;
use foretoken_model::{
    Batch, CacheEdit, CacheRows, Capacity, Executor, ExecutorError, Outputs, Reading, SavedBytes, Source,
};

use crate::table::mix;
use crate::toy::{ToyExecutor, rows};

/// A clock that only moves when it is told to, which all that have it share.
#[derive(Clone, Debug, Default)]
pub struct Hands(Arc<AtomicU64>);

impl Hands {
    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for Hands {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// What experts there are, and what they take.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many a row chooses.
    pub chosen: usize,
    /// By so many last tokens of what it sees.
    pub by_last: usize,
    /// Whether it is said what was read.
    pub are_told: bool,
    /// Of a pass, of each of its rows, and of each expert that it reads.
    pub takes: [Duration; 3],
}

impl Default for Experts {
    fn default() -> Self {
        let takes = [2000, 50, 1000].map(Duration::from_micros);
        Self { count: 16, chosen: 3, by_last: 1, are_told: true, takes }
    }
}

/// Bytes of what every pass reads, and of an expert.
const BYTES: [usize; 2] = [5000, 700];

impl Experts {
    /// Those that a row chooses which sees these tokens.
    fn chosen_by(&self, context: &[u32]) -> BTreeSet<usize> {
        let last = &context[context.len().saturating_sub(self.by_last)..];
        let mut state = last.iter().fold(self.count as u64, |state, token| mix(state ^ u64::from(*token)));
        let mut chosen = BTreeSet::new();
        while chosen.len() < self.chosen.min(self.count) {
            state = mix(state);
            chosen.insert((state >> 20) as usize % self.count);
        }
        chosen
    }
}

/// A [`ToyExecutor`] of experts.
pub struct ExpertsExecutor {
    toy: ToyExecutor,
    experts: Experts,
    hands: Hands,
    read: Reading,
}

impl ExpertsExecutor {
    /// Experts of this toy, whose passes move the hands of this clock.
    pub fn new(toy: ToyExecutor, experts: Experts, hands: Hands) -> Self {
        Self { toy, experts, hands, read: Reading::default() }
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
                chosen.append(&mut self.experts.chosen_by(&self.toy.whole(span, row)));
            }
        }
        let [pass, row, expert] = self.experts.takes;
        self.hands.pass(pass + row * rows(batch) as u32 + expert * chosen.len() as u32);
        if self.experts.are_told {
            let (bytes, experts) = (BYTES[0] + BYTES[1] * chosen.len(), chosen.len());
            self.read = Reading { bytes, experts, packed: 0 };
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

    fn read(&self) -> Reading {
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
