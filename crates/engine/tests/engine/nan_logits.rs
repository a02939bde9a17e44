//! Tests with networks whose logits are NaN: the request that meets one fails with a message, its output so far and the
//! other requests are not affected, and a draft model with such logits is dropped.

use std::collections::BTreeMap;

use foretoken_drafters::{ModelDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, FinishReason, Race, Request, SequenceId, Token};
use foretoken_speculation::{Drafter, Promise, Sampling};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

fn table() -> Table {
    Table::seeded(7, 2, 5)
}

/// The table, with one NaN in the rows after sequences that a rule selects.
fn broken(rule: fn(&[Token]) -> bool) -> Table {
    let healthy = table();
    Table::new(7, move |tokens| {
        let mut row = healthy.logits(tokens);
        if rule(tokens) {
            row[tokens.len() % 7] = f32::NAN;
        }
        row
    })
}

fn toy(table: Table) -> Box<ToyExecutor> {
    Box::new(ToyExecutor::new(table, 4, 400, 64))
}

fn model(table: Table) -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(ExecutorScorer::new(toy(table))))
}

const PROMPTS: [&[Token]; 3] = [&[1, 2, 1, 2], &[3, 3, 3], &[4, 5, 6, 4, 5]];

/// The result of a request: its output, its finish reason, and the messages of failed drafters.
type Ended = (Vec<Token>, FinishReason, Vec<String>);

/// Runs three requests for up to 30 tokens together.
fn run(engine: &mut Engine, drafters: &[u8], change: impl Fn(Request) -> Request) -> Vec<Ended> {
    let request = |(seed, prompt): (u64, &&[Token])| Request {
        tokens_max: Some(30),
        sampling: Sampling::default(),
        seed,
        drafters: drafters.to_vec(),
        budget: BudgetKind::Fixed { nodes: 5 },
        ..Request::new(prompt.to_vec())
    };
    let ids: Vec<SequenceId> = (0..).zip(&PROMPTS).map(|of| engine.submit(change(request(of))).unwrap()).collect();
    let mut ended: BTreeMap<SequenceId, Ended> =
        ids.iter().map(|id| (*id, (Vec::new(), FinishReason::Cancelled, Vec::new()))).collect();
    while !engine.is_idle() {
        for event in engine.step(&mut Race) {
            let written = ended.get_mut(&event.sequence()).unwrap();
            match event {
                Event::Tokens { emitted, .. } => written.0.extend(emitted.iter().map(|emitted| emitted.token)),
                Event::Finished { reason, .. } => written.1 = reason.clone(),
                Event::DrafterFailed { message, .. } => written.2.push(message.clone()),
                Event::Prompt { .. } | Event::PromptScored { .. } | Event::Drafts { .. } | Event::Beams { .. } => {}
            }
        }
    }
    ended.into_values().collect()
}

fn oracle(i: usize) -> Vec<Token> {
    decode(&table(), &Sampling::default(), i as u64, PROMPTS[i], 30).iter().map(|(token, _)| *token).collect()
}

#[test]
fn a_single_nan_logit_ends_only_its_request() {
    for promise in [Promise::Exact, Promise::Rejection, Promise::Block] {
        for drafters in [&[][..], &[0], &[1], &[0, 1]] {
            // Only the second sequence begins with a 3; its row after 12 tokens has the NaN.
            let mut engine = Engine::new(toy(broken(|tokens| tokens[0] == 3 && tokens.len() == 12)), 3, usize::MAX);
            engine.add_drafter(model(table()));
            engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 3, 10)));
            let found = run(&mut engine, drafters, |request| Request { promise, ..request });
            let expected = "token 12: expected logits that are numbers, found NaN: the model's weights cannot be right";
            assert_eq!(found[1].1, FinishReason::Failed(expected.to_string()), "{promise:?} {drafters:?}");
            assert_eq!(found[1].0.len(), 9);
            for (i, (output, reason, failures)) in found.iter().enumerate() {
                assert!(failures.is_empty(), "{failures:?}");
                assert!(i == 1 || *reason == FinishReason::Length, "{reason:?}");
                assert!(promise != Promise::Exact || oracle(i).starts_with(output), "{i}: {output:?}");
            }
        }
    }
}

#[test]
fn a_prompt_whose_scores_are_nan_ends_its_request() {
    let mut engine = Engine::new(toy(broken(|tokens| tokens == [3, 3])), 3, usize::MAX);
    let found = run(&mut engine, &[], |request| Request { prompt_log_probabilities: true, ..request });
    let FinishReason::Failed(message) = &found[1].1 else { panic!("{found:?}") };
    assert!(message.starts_with("token 2: expected logits that are numbers, found NaN"), "{message}");
    assert!(found[1].0.is_empty());
    assert_eq!([&found[0].0, &found[2].0], [&oracle(0), &oracle(2)]);
    assert!(engine.is_idle() && engine.workload().pages_held == 0);
}

#[test]
fn a_row_of_minus_infinity_ends_its_request() {
    let healthy = table();
    let row = move |tokens: &[Token]| match tokens {
        [3, .., _] if tokens.len() == 6 => vec![f32::NEG_INFINITY; 7],
        _ => healthy.logits(tokens),
    };
    let mut engine = Engine::new(toy(Table::new(7, row)), 3, usize::MAX);
    let found = run(&mut engine, &[], |request| request);
    let FinishReason::Failed(message) = &found[1].1 else { panic!("{found:?}") };
    assert!(message.starts_with("token 6: expected a possible one, found none: all logits are minus infinity"));
    assert_eq!([&found[0].0, &found[2].0], [&oracle(0), &oracle(2)]);
}

#[test]
fn a_draft_model_whose_logits_are_nan_is_dropped() {
    // Always, or for one sequence, or at one position of it.
    let rules: [fn(&[Token]) -> bool; 3] =
        [|_| true, |tokens| tokens[0] == 3, |tokens| tokens[0] == 3 && tokens.len() == 7];
    for (i, rule) in rules.into_iter().enumerate() {
        for drafters in [&[0][..], &[0, 1], &[1, 0]] {
            let mut engine = Engine::new(toy(table()), 3, usize::MAX);
            engine.add_drafter(model(broken(rule)));
            engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 3, 10)));
            let found = run(&mut engine, drafters, |request| request);
            for (number, (found, reason, failures)) in found.iter().enumerate() {
                assert_eq!((found, reason), (&oracle(number), &FinishReason::Length), "{i} {drafters:?}");
                let expected = usize::from(i == 0 || number == 1);
                let is_expected = failures.len() == expected || i == 2 && failures.len() < 2;
                assert!(is_expected, "{i} {drafters:?} {number}: {failures:?}");
                let message = "expected logits that are numbers, found NaN";
                assert!(failures.iter().all(|failure| failure == message), "{failures:?}");
            }
            assert!(i < 2 || found[0].2.is_empty() && found[2].2.is_empty());
        }
    }
}
