//! Tests of the numbers of requests in the engine: the outputs of requests with one seed are independent, though
//! drafters learn from each.
//!
//! The laws of several requests are computed by enumeration in `testkit/tests/laws/requests.rs`, with numbers that the
//! test sets. Here the engine sets them: by enumeration again, and with the production noise over many seeds.

use foretoken_drafters::SuffixDrafter;
use foretoken_drafters::TrieDrafter;
use foretoken_engine::{BudgetKind, Engine, Race, Request};
use foretoken_speculation::{Chance, Drafter, Promise, Sampling, Token};
use foretoken_testkit::enumerator::{enumerate, enumerate_by_address};
use foretoken_testkit::table::{Joint, Table, distance};
use foretoken_testkit::toy::ToyExecutor;

use crate::writing::write_alone;

const PROMPT: [Token; 4] = [1, 0, 1, 0];

type Make = fn() -> Box<dyn Drafter>;

/// Drafters that remember finished requests.
const LEARNERS: [(&str, Make); 2] =
    [("suffix", || Box::new(SuffixDrafter::default())), ("trie", || Box::new(TrieDrafter::default()))];

fn table() -> Table {
    Table::dense(3, 2, 0)
}

fn engine(make: Make) -> Engine {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 4, 20, 64)), 1, usize::MAX);
    engine.add_drafter(make());
    engine
}

/// Runs one request.
fn write(engine: &mut Engine, promise: Promise, seed: u64, len: usize, chance: &mut dyn Chance) -> Vec<Token> {
    let request = Request {
        tokens_max: Some(len),
        sampling: Sampling::default(),
        seed,
        promise,
        budget: BudgetKind::Fixed { nodes: 3 },
        drafters: vec![0],
        ..Request::new(PROMPT.to_vec())
    };
    write_alone(engine, request, chance).0
}

#[test]
fn numbers_count_the_accepted_requests() {
    let mut engine = engine(LEARNERS[0].1);
    assert_eq!(engine.next_request(), 0);
    for expected in 1..4 {
        write(&mut engine, Promise::Exact, 9, 2, &mut Race);
        assert_eq!(engine.next_request(), expected, "under exact as well");
    }
    assert!(engine.submit(Request::new(Vec::new())).is_err());
    assert_eq!(engine.next_request(), 3, "a refused request has no number");
    engine.set_next_request(u64::MAX);
    write(&mut engine, Promise::Rejection, 9, 2, &mut Race);
    assert_eq!(engine.next_request(), 0);
}

#[test]
fn an_output_is_reproduced_by_its_seed_and_number() {
    for promise in [Promise::Exact, Promise::Rejection, Promise::Block] {
        let output = |number: u64| {
            let mut engine = engine(LEARNERS[0].1);
            engine.set_next_request(number);
            write(&mut engine, promise, 5, 24, &mut Race)
        };
        assert_eq!(output(7), output(7));
        assert_eq!(output(7) == output(8), promise == Promise::Exact, "{promise:?}");
    }
}

#[test]
fn the_second_output_of_a_seed_has_the_targets_law_and_is_independent_of_the_first() {
    const LEN: usize = 3;
    let plain = table().plain(&Sampling::default(), &PROMPT, LEN);
    let pairs = |(first, p): (&Vec<Token>, &f64)| {
        plain.iter().map(|(second, q)| ([&first[..], second].concat(), p * q)).collect::<Vec<_>>()
    };
    let expected: Joint = plain.iter().flat_map(pairs).collect();
    for promise in [Promise::Rejection, Promise::Block] {
        for (name, make) in LEARNERS {
            // The enumeration panics if an address is used twice.
            let found: Joint = enumerate(|chance| {
                let mut engine = engine(make);
                [0, 1].map(|_| write(&mut engine, promise, 9, LEN, chance)).concat()
            });
            let error = distance(&found, &expected);
            assert!(error < 1e-6, "{promise:?} {name}: {error}");
        }
    }
}

#[test]
fn reusing_the_number_of_the_first_request_is_caught() {
    const LEN: usize = 4;
    let plain = table().plain(&Sampling::default(), &PROMPT, LEN);
    for promise in [Promise::Rejection, Promise::Block] {
        for (name, make) in LEARNERS {
            let second: Joint = enumerate_by_address(|chance| {
                let mut engine = engine(make);
                write(&mut engine, promise, 9, LEN, chance);
                engine.set_next_request(0);
                write(&mut engine, promise, 9, LEN, chance)
            });
            let error = distance(&second, &plain);
            assert!(error > 1e-3, "{promise:?} {name}: {error}");
        }
    }
}

/// The largest deviation of an output's frequency from its probability, in standard deviations, over the second outputs
/// of these seeds. The engine counts on, or is set back to number 0 with `reuses_number`.
fn worst_deviation(make: Make, promise: Promise, seeds: u64, reuses_number: bool) -> f64 {
    const LEN: usize = 4;
    let mut counts = Joint::new();
    for seed in 0..seeds {
        let mut engine = engine(make);
        write(&mut engine, promise, seed, LEN, &mut Race);
        if reuses_number {
            engine.set_next_request(0);
        }
        *counts.entry(write(&mut engine, promise, seed, LEN, &mut Race)).or_insert(0.0) += 1.0;
    }
    let n = seeds as f64;
    let deviation = |(output, p): (&Vec<Token>, &f64)| {
        let frequency = counts.get(output).unwrap_or(&0.0) / n;
        (frequency - p).abs() / (p * (1.0 - p) / n).sqrt()
    };
    // The frequencies of rare outputs are not normally distributed.
    let plain = table().plain(&Sampling::default(), &PROMPT, LEN);
    plain.iter().filter(|(_, p)| **p > 0.01).map(deviation).fold(0.0, f64::max)
}

#[test]
fn with_production_noise_the_second_output_of_a_seed_follows_the_targets_law() {
    for promise in [Promise::Rejection, Promise::Block] {
        for (name, make) in LEARNERS {
            let own = worst_deviation(make, promise, 1500, false);
            assert!(own < 5.0, "{promise:?} {name}: {own} standard deviations");
            let same = worst_deviation(make, promise, 1500, true);
            assert!(same > 6.0, "{promise:?} {name}: {same} standard deviations with the same number");
        }
    }
}
