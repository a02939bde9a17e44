//! Tests with executors whose cache edits sometimes fail: the target's and a draft model's.
//!
//! The output before a failure equals the oracle's; the sequence then ends with an error, the other requests continue,
//! and its pages can be used again. A draft model that fails does not change the output.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_drafters::{ModelDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, FinishReason, Race, Request, SequenceId, Token};
use foretoken_model::{CacheEdit, Executor, ExecutorError};
use foretoken_speculation::{Drafter, Sampling};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::{ToyExecutor, Watched};

const FAILURE: &str = "a planned failure";

/// A toy whose every `every`th cache edit fails, after one row was changed, until `failures` have; and how many have.
fn failing(table: Table, every: usize, failures: usize) -> (Watched, Arc<AtomicUsize>) {
    let failed = Arc::<AtomicUsize>::default();
    let (count, mut edits) = (Arc::clone(&failed), 0_usize);
    let toy = Watched::new(ToyExecutor::new(table, 2, 60, 64), |_| Ok(())).with_edits(move |toy, edit| {
        edits += 1;
        if count.load(Ordering::Relaxed) == failures || !edits.is_multiple_of(every) {
            return toy.rows(edit);
        }
        count.fetch_add(1, Ordering::Relaxed);
        match edit {
            CacheEdit::Move { tables, from, to } => {
                toy.rows(CacheEdit::Move { tables, from: &from[..1.min(from.len())], to })?;
            }
            CacheEdit::Copy { from, to, positions } => {
                toy.rows(CacheEdit::Copy { from, to, positions: positions.start..positions.start + 1 })?;
            }
        }
        Err(ExecutorError::Failed { message: FAILURE.to_string() })
    });
    (toy, failed)
}

fn table() -> Table {
    Table::seeded(7, 2, 5)
}

/// A draft model that drafts trees, so that accepted rows have to be moved, in its own cache too.
fn trees(executor: impl Executor + 'static) -> Box<dyn Drafter> {
    let mut drafter = ModelDrafter::new(ExecutorScorer::new(Box::new(executor)));
    drafter.settings.p_split = Some(0.05);
    Box::new(drafter)
}

fn toy(table: Table) -> ToyExecutor {
    ToyExecutor::new(table, 4, 200, 64)
}

/// Runs eight requests for 20 tokens and checks their output against the oracle's. Returns their finish reasons.
fn finish_reasons(engine: &mut Engine, drafters: &[u8]) -> Vec<FinishReason> {
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
                Event::Prompt { .. } | Event::PromptScored { .. } | Event::Drafts { .. } | Event::Beams { .. } => {}
            }
        }
    }
    for (seed, id) in (0..).zip(&ids) {
        let expected: Vec<Token> =
            decode(&table(), &Sampling::default(), seed, &prompt(seed), 20).iter().map(|(token, _)| *token).collect();
        let found = &written[id];
        assert!(expected.starts_with(found), "{id:?}: {found:?}, expected {expected:?}");
        let failed = matches!(reasons[id], FinishReason::Failed(_));
        assert!(failed || found.len() == 20, "{id:?} ended after {} tokens", found.len());
    }
    ids.iter().map(|id| reasons[id].clone()).collect()
}

#[test]
fn a_failure_to_move_rows_ends_only_its_sequence() {
    for every in [1, 2, 3, 7] {
        let mut engine = Engine::new(Box::new(failing(table(), every, 3).0), 3, usize::MAX);
        engine.add_drafter(trees(toy(Table::seeded(7, 2, 50))));
        engine.add_drafter(trees(toy(table())));
        let reasons = finish_reasons(&mut engine, &[0, 1]);
        let failed: Vec<&String> = reasons
            .iter()
            .filter_map(|reason| match reason {
                FinishReason::Failed(message) => Some(message),
                _ => None,
            })
            .collect();
        assert!((1..=3).contains(&failed.len()), "{every}: {reasons:?}");
        assert!(failed.iter().all(|message| **message == format!("executor: failed: {FAILURE}")), "{failed:?}");
        // When no edit fails any more, the same requests, which need most of the pages, must all succeed.
        let failed = |reason: &FinishReason| matches!(reason, FinishReason::Failed(_));
        assert!((0..4).any(|_| !finish_reasons(&mut engine, &[0, 1]).iter().any(failed)), "{every}: pages are missing");
    }
}

#[test]
fn a_draft_model_whose_rows_cannot_be_moved_does_not_change_the_output() {
    for (every, failures) in [(1, usize::MAX), (3, usize::MAX), (5, 2)] {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 2, 200, 64)), 3, usize::MAX);
        let (failing, failed_edits) = failing(Table::seeded(7, 2, 50), every, failures);
        engine.add_drafter(trees(failing));
        engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 3, 10)));
        for drafters in [&[0][..], &[1, 0]] {
            let reasons = finish_reasons(&mut engine, drafters);
            assert!(reasons.iter().all(|reason| *reason == FinishReason::Length), "{reasons:?}");
        }
        assert!(failed_edits.load(Ordering::Relaxed) > 1, "every {every}");
    }
}
