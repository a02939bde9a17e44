//! Tests of the scoring of prompts in the engine: requests for nothing else, shared rows, and cancellation.
//!
//! The simulator of `testkit` scores prompts in batches, under preemption and with drafters; `families` scores prompts
//! with every network.

use foretoken_engine::{Engine, Event, FinishReason, Race, Request};
use foretoken_speculation::{Token, log_probability};
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

use crate::writing::write_and_score;

fn table() -> Table {
    Table::seeded(7, 5, 31)
}

fn engine(rows_max: usize) -> Engine {
    Engine::new(Box::new(ToyExecutor::new(table(), 4, 40, rows_max)), 3, usize::MAX)
}

fn scored(prompt: Vec<Token>, tokens_max: usize) -> Request {
    Request { tokens_max: Some(tokens_max), prompt_log_probabilities: true, ..Request::new(prompt) }
}

fn prompt(len: usize) -> Vec<Token> {
    (0..len).map(|i| (i * i % 7) as Token).collect()
}

fn expected(prompt: &[Token]) -> Vec<(Token, u32)> {
    let bits = |i: usize| if i == 0 { 0 } else { log_probability(&table().logits(&prompt[..i]), prompt[i]).to_bits() };
    (0..prompt.len()).map(|i| (prompt[i], bits(i))).collect()
}

#[test]
fn a_request_for_scores_alone_reads_its_prompt_and_ends() {
    for (len, rows_max) in [1, 2, 3, 9, 30].into_iter().flat_map(|len| [(len, 2), (len, 7), (len, 64)]) {
        let mut engine = engine(rows_max);
        let id = engine.submit(scored(prompt(len), 0)).unwrap();
        let (mut found, mut end) = (Vec::new(), None);
        while !engine.is_idle() {
            for event in engine.step(&mut Race) {
                match event {
                    Event::PromptScored { sequence, scored } => {
                        assert!(*sequence == id && !scored.is_empty() && end.is_none());
                        found.extend(scored.iter().map(|one| (one.token, one.log_probability.map_or(0, f32::to_bits))));
                    }
                    Event::Prompt { done, total, .. } => assert!(done < total, "the last row is not needed"),
                    Event::Finished { reason, stats, .. } => end = Some((reason.clone(), stats.clone())),
                    other => panic!("{other:?}"),
                }
            }
        }
        let (reason, stats) = end.unwrap();
        assert_eq!((reason, stats.emitted, stats.passes), (FinishReason::Length, 0, 0));
        assert_eq!(stats.prompt_passes, (len - 1).div_ceil(rows_max));
        assert_eq!(found, expected(&prompt(len)), "{len} tokens, {rows_max} rows per pass");
        engine.check_pages().unwrap();
    }
}

#[test]
fn cached_rows_are_computed_again_to_be_scored_and_then_shared() {
    let mut engine = engine(9);
    let plain = Request { tokens_max: Some(3), ..Request::new(prompt(20)) };
    write_and_score(&mut engine, std::slice::from_ref(&plain));
    let results = write_and_score(&mut engine, &[scored(prompt(20), 3), scored(prompt(20), 0)]);
    for (_, scored) in &results {
        let scored: Vec<_> = scored.iter().map(|(token, bits, top)| (*token, *bits, top.len())).collect();
        let expected: Vec<_> = expected(&prompt(20)).into_iter().map(|(token, bits)| (token, bits, 0)).collect();
        assert_eq!(scored, expected);
    }
    assert_eq!(results[0].0.len(), 3);
    engine.submit(plain).unwrap();
    let events = engine.step(&mut Race).to_vec();
    assert!(matches!(events[0], Event::Prompt { done: 20, .. }), "the rows of the others are cached: {:?}", events[0]);
}

#[test]
fn a_cancelled_request_is_not_scored_any_further() {
    let mut engine = engine(4);
    let id = engine.submit(scored(prompt(30), 0)).unwrap();
    let scored = |events: &[Event]| events.iter().filter(|event| matches!(event, Event::PromptScored { .. })).count();
    assert_eq!(scored(engine.step(&mut Race)), 2, "one event for the first token, one for the first pass");
    engine.cancel(id);
    let events = engine.step(&mut Race);
    assert!(matches!(events, [Event::Finished { reason: FinishReason::Cancelled, .. }]), "{events:?}");
    assert!(engine.is_idle());
}
