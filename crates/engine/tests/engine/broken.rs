//! Executors that fail to change their cache now and then: the target's and a draft model's.
//!
//! What was verified before a failure is written and is the oracle's; the sequence then ends with a reason, its
//! neighbours go on, and its pages can be used again. A draft model that fails changes no text.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_drafters::{ModelDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, FinishReason, Race, Request, SequenceId, Token};
use foretoken_model::{Batch, CacheEdit, Capacity, Executor, ExecutorError, Outputs, Source};
use foretoken_speculation::{Drafter, Sampling};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

const LOST: &str = "a planned loss";

/// An executor whose every `every`th change of rows fails, after one of the rows was changed; so many times in all.
struct Losing {
    toy: ToyExecutor,
    every: usize,
    losses: usize,
    edits: usize,
    made: Arc<AtomicUsize>,
}

impl Losing {
    fn new(table: Table, every: usize, losses: usize) -> Self {
        Self { toy: ToyExecutor::new(table, 2, 60, 64), every, losses, edits: 0, made: Arc::default() }
    }
}

impl Executor for Losing {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        self.toy.open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        self.toy.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        self.toy.forward(batch)
    }

    fn outputs(&self) -> &dyn Outputs {
        self.toy.outputs()
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        self.edits += 1;
        if self.losses == 0 || !self.edits.is_multiple_of(self.every) {
            return self.toy.rows(edit);
        }
        self.losses -= 1;
        self.made.fetch_add(1, Ordering::Relaxed);
        match edit {
            CacheEdit::Move { tables, from, to } => {
                self.toy.rows(CacheEdit::Move { tables, from: &from[..1.min(from.len())], to })?;
            }
            CacheEdit::Copy { from, to, positions } => {
                self.toy.rows(CacheEdit::Copy { from, to, positions: positions.start..positions.start + 1 })?;
            }
        }
        Err(ExecutorError::Failed { message: LOST.to_string() })
    }

    fn capacity(&self) -> &Capacity {
        self.toy.capacity()
    }
}

fn table() -> Table {
    Table::seeded(7, 2, 5)
}

/// A draft model whose drafts fork, so that accepted rows have to be moved, in its own cache too.
fn trees(executor: impl Executor + 'static) -> Box<dyn Drafter> {
    let mut drafter = ModelDrafter::new(ExecutorScorer::new(Box::new(executor)));
    drafter.settings.p_split = Some(0.05);
    Box::new(drafter)
}

fn toy(table: Table) -> ToyExecutor {
    ToyExecutor::new(table, 4, 200, 64)
}

/// How eight texts of 20 tokens end; each, as far as it goes, is the oracle's.
fn ends(engine: &mut Engine, drafters: &[u8]) -> Vec<FinishReason> {
    let prompt = |i: u64| vec![(i % 7) as Token, 2, (i % 3) as Token, 2];
    let request = |seed: u64| Request {
        tokens_max: Some(20),
        sampling: Sampling::default(),
        seed,
        drafters: drafters.to_vec(),
        budget: BudgetKind::Fixed { nodes: 6 },
        ..Request::new(prompt(seed))
    };
    let ids: Vec<SequenceId> = (0..8).map(|seed| engine.submit(request(seed)).unwrap()).collect();
    let (mut written, mut reasons) = (BTreeMap::<SequenceId, Vec<Token>>::new(), BTreeMap::new());
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            match event {
                Event::Tokens { sequence, emitted } => {
                    written.entry(*sequence).or_default().extend(emitted.iter().map(|emitted| emitted.token));
                }
                Event::Finished { sequence, reason, .. } => _ = reasons.insert(*sequence, reason.clone()),
                Event::DrafterFailed { message, .. } => panic!("no drafter fails: {message}"),
                Event::Prompt { .. } | Event::PromptScored { .. } | Event::Drafts { .. } => {}
            }
        }
    }
    for (seed, id) in (0..).zip(&ids) {
        let expected: Vec<Token> =
            decode(&table(), &Sampling::default(), seed, &prompt(seed), 20).iter().map(|(token, _)| *token).collect();
        let found = &written[id];
        assert!(expected.starts_with(found), "{id:?}: {found:?}, expected {expected:?}");
        let ended = matches!(reasons[id], FinishReason::Failed(_));
        assert!(ended || found.len() == 20, "{id:?} ended after {} tokens", found.len());
    }
    ids.iter().map(|id| reasons[id].clone()).collect()
}

#[test]
fn rows_that_cannot_be_moved_end_their_sequence_only() {
    for every in [1, 2, 3, 7] {
        let mut engine = Engine::new(Box::new(Losing::new(table(), every, 3)), 3, usize::MAX);
        engine.add_drafter(trees(toy(Table::seeded(7, 2, 50))));
        engine.add_drafter(trees(toy(table())));
        let reasons = ends(&mut engine, &[0, 1]);
        let failed: Vec<&String> = reasons
            .iter()
            .filter_map(|reason| match reason {
                FinishReason::Failed(message) => Some(message),
                _ => None,
            })
            .collect();
        assert!((1..=3).contains(&failed.len()), "{every}: {reasons:?}");
        assert!(failed.iter().all(|message| **message == format!("executor: failed: {LOST}")), "{failed:?}");
        // When all losses are spent, the same requests, which need most pages, find them all again.
        let failed = |reason: &FinishReason| matches!(reason, FinishReason::Failed(_));
        assert!((0..4).any(|_| !ends(&mut engine, &[0, 1]).iter().any(failed)), "{every}: pages are missing");
    }
}

#[test]
fn a_draft_model_whose_rows_cannot_be_moved_changes_no_text() {
    for (every, losses) in [(1, usize::MAX), (3, usize::MAX), (5, 2)] {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 2, 200, 64)), 3, usize::MAX);
        let losing = Losing::new(Table::seeded(7, 2, 50), every, losses);
        let made = Arc::clone(&losing.made);
        engine.add_drafter(trees(losing));
        engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 3, 10)));
        for drafters in [&[0][..], &[1, 0]] {
            let reasons = ends(&mut engine, drafters);
            assert!(reasons.iter().all(|reason| *reason == FinishReason::Length), "{reasons:?}");
        }
        assert!(made.load(Ordering::Relaxed) > 1, "every {every}");
    }
}
