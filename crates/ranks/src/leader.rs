//! Rank 0: a backend whose executors tell the other ranks what they do.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foretoken::models::Opened;
use foretoken_model::{
    Backend, Batch, CacheEdit, CacheRows, Capacity, Executor, ExecutorError, Loaded, ModelError, Network, Options,
    Outputs, Packed, PackedMatrix, Progress, SavedBytes, Sent, Source, Unpacked, WeightsRead,
};

use crate::command::{Call, Command};
use crate::group::Group;

/// Rank 0 of a job. Clones are the same rank.
#[derive(Clone, Debug)]
pub struct Leader {
    group: Arc<Group>,
    /// The number of the next model or executor.
    next: Arc<AtomicU64>,
}

impl Leader {
    pub(crate) fn new(group: Arc<Group>) -> Self {
        Self { group, next: Arc::default() }
    }

    /// The group that it leads.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Ends the other ranks. Executors fail after it.
    ///
    /// # Errors
    /// A rank does not answer.
    pub fn stop(&self) -> Result<(), ExecutorError> {
        let _turn = self.group.turn();
        let told = self.group.tell(&Command::Stop);
        self.group.end();
        told
    }

    /// The next numbers of models and executors.
    fn numbers(&self, count: u64) -> Range<u64> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        first..first + count
    }

    fn leading(&self, number: u64, own: Box<dyn Executor>) -> Box<dyn Executor> {
        Box::new(LeadingExecutor { group: Arc::clone(&self.group), number, own, sent: Sent::default() })
    }

    /// Has all ranks open a model, and compare their files with these.
    fn open(&self, name: &str, model: u64) -> Result<(), ModelError> {
        let opened = Opened::named(name).map_err(|error| of_model(name, error.to_string()))?;
        let (name, sample) = (name.to_string(), opened.checkpoint.sample());
        let told = self.group.tell(&Command::Open { model, name: name.clone(), sample });
        told.and_then(|()| self.group.answers()).map_err(|error| of_ranks(&name, error))
    }
}

/// An error of the ranks with a model.
fn of_model(model: &str, message: String) -> ModelError {
    ModelError::Ranks { place: model.to_string(), message }
}

fn of_ranks(model: &str, error: ExecutorError) -> ModelError {
    let message = match error {
        ExecutorError::Failed { message } => message,
        other => other.to_string(),
    };
    of_model(model, message)
}

impl Backend for Leader {
    fn name(&self) -> &'static str {
        "ranks"
    }

    fn ranks(&self) -> usize {
        self.group.size()
    }

    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError> {
        let (name, numbers) = (network.name.clone(), self.numbers(2));
        let (model, executor) = (numbers.start, numbers.start + 1);
        let _turn = self.group.turn();
        let load = || {
            self.open(&name, model)?;
            let command = Command::Load { model, executor, options: (&options).into() };
            self.group.tell(&command).map_err(|error| of_ranks(&name, error))?;
            let own = self.group.rank().load(network, options, progress);
            // All ranks are waited for even if this one has failed.
            let others = self.group.answers().map_err(|error| of_ranks(&name, error));
            own.and_then(|own| others.map(|()| own))
        };
        let Loaded { executor: own, spec, left_out, threads, weights } = load().inspect_err(|_| {
            // What others have loaded is of no use without the rest.
            let _ = self.group.tell(&Command::Call { executor, call: Call::Close });
            let _ = self.group.tell(&Command::Forget { model });
        })?;
        let weights = LeadingWeights { leader: self.clone(), model, name, own: weights };
        let executor = self.leading(executor, own);
        Ok(Loaded { executor, spec, left_out, threads, weights: Box::new(weights) })
    }
}

/// The packed weights of all ranks.
struct LeadingWeights {
    leader: Leader,
    model: u64,
    name: String,
    own: Box<dyn Packed>,
}

impl Packed for LeadingWeights {
    fn executor(&self, options: Options) -> Result<Box<dyn Executor>, ModelError> {
        let (Leader { group, .. }, model) = (&self.leader, self.model);
        let executor = self.leader.numbers(1).start;
        let _turn = group.turn();
        let make = || {
            let command = Command::Executor { model, executor, options: (&options).into() };
            group.tell(&command).map_err(|error| of_ranks(&self.name, error))?;
            let own = self.own.executor(options);
            let others = group.answers().map_err(|error| of_ranks(&self.name, error));
            own.and_then(|own| others.map(|()| own))
        };
        let own = make().inspect_err(|_| {
            let _ = group.tell(&Command::Call { executor, call: Call::Close });
        })?;
        Ok(self.leader.leading(executor, own))
    }

    fn matrices(&self) -> Vec<PackedMatrix> {
        self.own.matrices()
    }

    fn source_matrices(&self) -> Vec<PackedMatrix> {
        self.own.source_matrices()
    }
}

impl Drop for LeadingWeights {
    fn drop(&mut self) {
        let Self { leader: Leader { group, .. }, model, .. } = self;
        let _turn = group.turn();
        // A job that has failed ends anyway.
        let _ = group.tell(&Command::Forget { model: *model });
    }
}

/// An executor on all ranks, as rank 0 sees it.
struct LeadingExecutor {
    group: Arc<Group>,
    number: u64,
    /// This rank's own executor.
    own: Box<dyn Executor>,
    /// What this rank sent for the latest pass.
    sent: Sent,
}

impl LeadingExecutor {
    fn tell(&self, call: Call) -> Result<(), ExecutorError> {
        self.group.tell(&Command::Call { executor: self.number, call })
    }
}

impl Executor for LeadingExecutor {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        let group = Arc::clone(&self.group);
        let _turn = group.turn();
        self.tell(Call::open(sequence, source))?;
        self.own.open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        let group = Arc::clone(&self.group);
        let _turn = group.turn();
        // The next pass reports a rank that does not answer.
        let _ = self.tell(Call::Release { sequence });
        self.own.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        let group = Arc::clone(&self.group);
        let _turn = group.turn();
        let before = group.sent();
        self.tell(Call::forward(batch))?;
        self.own.forward(batch)?;
        self.sent = group.sent() - before;
        Ok(())
    }

    fn outputs(&self) -> &dyn Outputs {
        self.own.outputs()
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        let group = Arc::clone(&self.group);
        let _turn = group.turn();
        self.tell(Call::edit(&edit))?;
        self.own.rows(edit)
    }

    fn capacity(&self) -> &Capacity {
        self.own.capacity()
    }

    fn weights_read(&self) -> WeightsRead {
        self.own.weights_read()
    }

    fn sent(&self) -> Sent {
        self.sent
    }

    fn saved_bytes(&self, group: usize) -> Option<SavedBytes> {
        self.own.saved_bytes(group)
    }

    fn save_rows(&self, rows: CacheRows<'_>, out: &mut Vec<u8>) -> Result<(), ExecutorError> {
        let _turn = self.group.turn();
        // Each rank has some of the heads.
        self.tell(Call::save_rows(&rows))?;
        self.own.save_rows(rows, out)
    }

    fn load_rows(&mut self, rows: CacheRows<'_>, bytes: &[u8]) -> Result<(), ExecutorError> {
        let group = Arc::clone(&self.group);
        let _turn = group.turn();
        self.tell(Call::load_rows(&rows))?;
        group.send_to_all(bytes)?;
        self.own.load_rows(rows, bytes)
    }
}

impl Drop for LeadingExecutor {
    fn drop(&mut self) {
        let _turn = self.group.turn();
        let _ = self.tell(Call::Close);
    }
}
