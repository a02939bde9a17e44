//! Replays a record: the real engine, with a network that returns the recorded tokens.
//!
//! The network is an executor whose rows are one-hot: after the token at position i the record's next token has
//! probability 1. Rows of a tree that leave the record get the same row as those that follow it; verification never
//! reads them. So drafting, verification and counting are the engine's own, and only the arithmetic is missing.

use std::sync::{Arc, Mutex, PoisonError};

use foretoken::store::Store;
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::records::Record;
use foretoken_engine::{BudgetKind, Engine, Event, Race, Request, Stats};
use foretoken_model::{Batch, CacheEdit, Capacity, Executor, ExecutorError, Group, HostOutputs, Outputs, Source};
use foretoken_speculation::{Drafter, Token};

/// All tokens of the record that is replayed.
pub type RecordedTokens = Arc<Mutex<Vec<Token>>>;

/// A network that returns the recorded tokens.
pub struct ReplayExecutor {
    recorded: RecordedTokens,
    capacity: Capacity,
    outputs: HostOutputs,
    /// Elements of the outputs that are one; all others are zero.
    hot: Vec<usize>,
}

impl ReplayExecutor {
    /// A network with this capacity, whose cache takes no memory.
    pub fn new(recorded: RecordedTokens, capacity: Capacity) -> Self {
        let outputs = HostOutputs { vocabulary: capacity.vocabulary, ..HostOutputs::default() };
        Self { recorded, capacity, outputs, hot: Vec::new() }
    }

    /// The recorded token of the `row`th wanted row of the latest pass.
    pub fn recorded_token(&self, row: usize) -> Option<Token> {
        self.hot.get(row).map(|hot| (hot - row * self.capacity.vocabulary) as Token)
    }
}

impl Executor for ReplayExecutor {
    fn open(&mut self, _sequence: u64, _source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn release(&mut self, _sequence: u64) {}

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        let Self { capacity: Capacity { vocabulary, .. }, outputs, hot, .. } = self;
        let vocabulary = *vocabulary;
        let rows: usize = batch.spans.iter().map(|span| span.wanted.len()).sum();
        // Only elements that were set are cleared; clearing all would take most of the time.
        hot.drain(..).for_each(|hot| outputs.logits[hot] = 0.0);
        if outputs.logits.len() < rows * vocabulary {
            outputs.logits.resize(rows * vocabulary, 0.0);
        }
        let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = batch.spans.iter().flat_map(|span| span.wanted.iter().map(move |row| (span, *row as usize)));
        for (at, (span, row)) in wanted.enumerate() {
            let next = span.start + span.depth(row) + 1;
            let token = recorded.get(next).copied().unwrap_or(0);
            hot.push(at * vocabulary + token as usize);
        }
        hot.iter().for_each(|hot| outputs.logits[*hot] = 1.0);
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
}

/// An engine that replays records.
pub struct ReplayEngine {
    engine: Engine,
    recorded: RecordedTokens,
    drafters: u8,
}

impl ReplayEngine {
    /// An engine for sequences of up to `context` tokens in a vocabulary, with these drafters and up to `nodes_max`
    /// nodes in a pass.
    pub fn new(drafters: Vec<Box<dyn Drafter>>, nodes_max: usize, context: usize, vocabulary: usize) -> Self {
        let recorded = RecordedTokens::default();
        // One page has a sequence with its tree; nothing is stored in it, so its size does not matter.
        let room = context + nodes_max + 1;
        let groups = vec![Group::attention(room, 1)];
        let capacity = Capacity { vocabulary, context_max: room, rows_max: room, groups, ..Capacity::default() };
        let mut engine = Engine::new(Box::new(ReplayExecutor::new(recorded.clone(), capacity)), 1, room);
        let count = drafters.len() as u8;
        drafters.into_iter().for_each(|drafter| {
            engine.add_drafter(drafter);
        });
        Self { engine, recorded, drafters: count }
    }

    /// Makes the drafters learn a record without replaying it.
    pub fn learn(&mut self, tokens: &[Token], prompt_len: usize) {
        self.engine.warm_up(tokens, prompt_len, None);
    }

    /// Makes the drafters learn the texts of a store, as at the start of a program.
    pub fn learn_all(&mut self, store: &Store) {
        store.warm_up(&mut self.engine);
    }

    /// Replays one record and returns its statistics. What drafters learned across texts is kept.
    ///
    /// # Errors
    /// A drafter failed.
    pub fn play(&mut self, record: &Record, budget: BudgetKind) -> Result<Stats, Failure> {
        let (prompt, output) = record.tokens.split_at(record.prompt_len);
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&record.tokens);
        let request = Request {
            tokens_max: Some(output.len()),
            budget,
            drafters: (0..self.drafters).collect(),
            ..Request::new(prompt.to_vec())
        };
        self.engine.submit(request).map_err(foretoken::Error::from)?;
        let mut written = Vec::with_capacity(output.len());
        let mut found = None;
        while !self.engine.is_idle() {
            for event in self.engine.step(&mut Race) {
                match event {
                    Event::Tokens { emitted, .. } => written.extend(emitted.iter().map(|emitted| emitted.token)),
                    Event::Finished { stats, .. } => found = Some(stats.clone()),
                    Event::DrafterFailed { message, .. } => {
                        return Err(Failure::Other(format!("a drafter failed: {message}")));
                    }
                    Event::Prompt { .. } | Event::PromptScored { .. } | Event::Drafts { .. } | Event::Beams { .. } => {}
                }
            }
        }
        assert!(written == output, "{} tokens were played that are not those of the record", written.len());
        Ok(*found.expect("a sequence that ends has a last event"))
    }
}

/// Tokens of the longest record.
pub fn longest(records: &[Record]) -> usize {
    records.iter().map(|record| record.tokens.len()).max().unwrap_or(0)
}

/// The number of the conversation that each record belongs to.
pub fn conversations(records: &[Record]) -> Vec<usize> {
    let mut conversations = 0;
    let number = |record: &Record| {
        conversations += usize::from(!record.continues_conversation);
        conversations
    };
    records.iter().map(number).collect()
}

/// Replays all records in their order on one engine; or, by halves, those of even and of odd numbers each on an engine
/// of their own that has learned the other half. A conversation is never split, since its later turns contain the
/// earlier ones.
///
/// # Errors
/// An engine cannot be created, or as [`ReplayEngine::play`].
pub fn all(
    records: &[Record],
    by_halves: bool,
    replay: impl Fn() -> Result<ReplayEngine, Failure>,
    budget: impl Fn(&Record) -> BudgetKind,
) -> Result<Stats, Failure> {
    let parts = if by_halves { 2 } else { 1 };
    let numbers = conversations(records);
    let mut total = Stats::default();
    for part in 0..parts {
        let mut replay = replay()?;
        let in_part = |(number, _): &(&usize, &Record)| **number % parts == part;
        for (_, record) in numbers.iter().zip(records).filter(|each| !in_part(each)) {
            replay.learn(&record.tokens, record.prompt_len);
        }
        for (_, record) in numbers.iter().zip(records).filter(in_part) {
            if !Interrupts::none_pending() {
                return Err(Failure::Interrupted);
            }
            total.add(&replay.play(record, budget(record))?);
        }
    }
    Ok(total)
}
