//! Runs the real engine in simulated time, to measure what its planner gains. The gain does not depend on the machine
//! that runs the simulation, so small changes of the planner can be compared.
//!
//! The rows, the context and the experts of a pass determine its time, drafters take given times and are right with
//! given probabilities (`drafter`), and the engine's clock advances by these times alone. The clock is noisy like a
//! real one: it shows most times a few per cent longer, and some several times as long. Results count the times without
//! noise, so two runs differ only by the decisions of the planner. Texts, noise and accuracy are hashes of a seed.
//!
//! A token depends on its position and not on the tokens before it, so the target needs no cache; outputs are compared
//! elsewhere (`conform`, `simulator`). The engine's own bookkeeping takes no time. [`scenarios()`] are the use cases
//! that are measured; `examples/planner.rs` prints them.

mod drafter;
mod scenarios;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foretoken_model::executor::check;
use foretoken_model::{
    Batch, CacheEdit, Capacity, Executor, ExecutorError, Group, HostOutputs, Outputs, Source, WeightsRead,
};
use foretoken_speculation::Token;

use crate::experts::{Experts, ManualClock};
use crate::table::mix;
use crate::toy::rows;
pub use drafter::{Accuracy, DraftCost, DrafterScript};
pub use scenarios::{Arrival, Measured, Scenario, scenarios};

/// Seconds of a pass of one row over a short context.
const PASS_SECONDS: f64 = 0.030;
/// The clock shows a time longer by up to this fraction.
const NOISE_PART_MAX: f64 = 0.05;
/// The clock shows this fraction of all times 3 to 7 times as long.
const OUTLIER_PART: f64 = 0.01;
/// How many times as long passes and drafts take while the machine is slow.
const SLOW_FACTOR: f64 = 2.0;

/// Number of tokens in the vocabulary.
const VOCABULARY: usize = 64;
/// The token that ends a text, and occurs nowhere else.
const END: Token = 0;
/// The positions of a page and the number of pages, enough for all sequences of a scenario.
const PAGES: [usize; 2] = [16, 1024];
/// Most rows of a pass.
const ROWS_MAX: usize = 512;

/// A number from 0 to 1 that depends on these alone.
fn fraction(parts: &[u64]) -> f64 {
    let hash = parts.iter().fold(0_u64, |state, part| mix(state ^ *part));
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

/// The times of the target's passes. The unit is the time of a pass of one row over a short context.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// The time of each further row.
    pub row: f64,
    /// The time of each token of the context.
    pub context: f64,
    /// The positions of a text at which the machine is slow.
    pub slow: Range<usize>,
    /// The experts of which each row reads some, and the time of each expert that a pass reads besides those of its
    /// first row.
    pub experts: Option<(Experts, f64)>,
}

/// The machine on which target and drafters run. Clones are the same machine.
#[derive(Clone, Debug)]
struct Machine {
    seed: u64,
    times: Arc<Times>,
    /// The clock that the engine reads, with noise.
    clock: ManualClock,
    spent: Arc<Mutex<Spent>>,
}

/// The time that a machine has spent.
#[derive(Debug, Default)]
struct Spent {
    /// Without noise.
    seconds: f64,
    /// Number of calls of [`Machine::work`], which the noise depends on.
    works: u64,
    /// The position in the text of the latest pass.
    position: usize,
}

impl Machine {
    fn new(seed: u64, times: Times) -> Self {
        Self { seed, times: Arc::new(times), clock: ManualClock::default(), spent: Arc::default() }
    }

    /// Spends the time of this many passes of one row.
    fn work(&self, passes: f64) {
        let mut spent = self.spent.lock().expect("no thread panics while it works");
        let slowness = if self.times.slow.contains(&spent.position) { SLOW_FACTOR } else { 1.0 };
        let seconds = PASS_SECONDS * slowness * passes;
        spent.seconds += seconds;
        spent.works += 1;
        let [kind, size] = [0, 1].map(|number| fraction(&[self.seed, spent.works, number]));
        let noise = if kind < OUTLIER_PART { 3.0 + 4.0 * size } else { 1.0 + NOISE_PART_MAX * size };
        self.clock.advance(Duration::from_secs_f64(seconds * noise));
    }

    /// Sets the position in the text, which decides whether the machine is slow.
    fn reach(&self, position: usize) {
        self.spent.lock().expect("no thread panics while it works").position = position;
    }

    /// The seconds that it has spent, without noise.
    fn seconds(&self) -> f64 {
        self.spent.lock().expect("no thread panics while it works").seconds
    }
}

/// The texts that the target writes.
#[derive(Debug)]
struct Text {
    seed: u64,
    /// The position of the last token of each sequence, by the sequence's number.
    ends: Vec<usize>,
}

impl Text {
    /// The token at a position of a sequence.
    fn token(&self, sequence: u64, position: usize) -> Token {
        if self.ends.get(sequence as usize) == Some(&position) {
            return END;
        }
        let others = (VOCABULARY - 1) as f64;
        1 + (others * fraction(&[self.seed, sequence, position as u64])) as Token
    }

    /// A token that is not the one at this position, and differs between drafters.
    fn wrong_token(&self, sequence: u64, position: usize, drafter: u64) -> Token {
        let others = (VOCABULARY - 1) as u64;
        ((u64::from(self.token(sequence, position)) + drafter) % others) as Token + 1
    }
}

/// The target, as an executor without a cache.
struct Target {
    text: Arc<Text>,
    machine: Machine,
    capacity: Capacity,
    outputs: HostOutputs,
    read: WeightsRead,
}

impl Target {
    fn new(text: Arc<Text>, machine: Machine) -> Self {
        let [page_len, pages] = PAGES;
        let capacity = Capacity {
            vocabulary: VOCABULARY,
            context_max: page_len * pages,
            rows_max: ROWS_MAX,
            groups: vec![Group::attention(page_len, pages)],
            ..Capacity::default()
        };
        let outputs = HostOutputs { vocabulary: VOCABULARY, ..HostOutputs::default() };
        Self { text, machine, capacity, outputs, read: WeightsRead::default() }
    }

    /// Spends the time of a pass.
    fn take_time(&mut self, batch: &Batch<'_>) {
        let times = Arc::clone(&self.machine.times);
        let starts = || batch.spans.iter().map(|span| span.start);
        let mut passes = 1.0 + times.row * (rows(batch) as f64 - 1.0) + times.context * starts().sum::<usize>() as f64;
        if let Some((experts, expert)) = &times.experts {
            let tokens = batch.spans.iter().flat_map(|span| span.tokens);
            let read: BTreeSet<usize> = tokens.flat_map(|token| experts.chosen_by(&[*token])).collect();
            passes += expert * (read.len() as f64 - experts.chosen as f64);
            self.read = WeightsRead { experts: read.len(), ..WeightsRead::default() };
        }
        self.machine.reach(starts().max().unwrap_or(0));
        self.machine.work(passes);
    }
}

impl Executor for Target {
    fn open(&mut self, _sequence: u64, _source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn release(&mut self, _sequence: u64) {}

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        check(batch, &self.capacity)?;
        self.take_time(batch);
        let logits = &mut self.outputs.logits;
        logits.clear();
        for span in batch.spans {
            for row in span.wanted {
                let next = self.text.token(span.sequence, span.start + span.depth(*row as usize) + 1);
                let first = logits.len();
                logits.resize(first + VOCABULARY, f32::NEG_INFINITY);
                logits[first + next as usize] = 0.0;
            }
        }
        Ok(())
    }

    fn outputs(&self) -> &dyn Outputs {
        &self.outputs
    }

    fn rows(&mut self, _edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    fn weights_read(&self) -> WeightsRead {
        self.read
    }
}
