//! Tests with mixture-of-experts networks: the bytes that passes read are learned together with their times, and the
//! automatic budget uses them. The clock is the toy's own, so every number here is the same on any machine.

use std::time::Duration;

use foretoken_drafters::ModelDrafter;
use foretoken_engine::{BudgetKind, CostRecord, Engine, Event, ExecutorScorer, Race, Request};
use foretoken_speculation::{Promise, Sampling, Token};
use foretoken_testkit::experts::{Experts, ExpertsExecutor, ManualClock};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

/// The result of a run.
#[derive(Debug, Default, PartialEq)]
struct RunResult {
    outputs: Vec<Vec<Token>>,
    /// The mean relative error of the predicted times of passes.
    error: f64,
    /// The time of all passes.
    time: Duration,
    drafted: usize,
    passes: usize,
    record: CostRecord,
}

/// Runs one request after the other with a draft model and measured costs.
fn run(experts: Experts, [target, draft]: [&Table; 2], requests: &[Request]) -> RunResult {
    let clock = ManualClock::default();
    let toy = |table: &Table| ToyExecutor::new(table.clone(), 8, 80, 64);
    let mut engine = Engine::new(Box::new(ExpertsExecutor::new(toy(target), experts, clock.clone())), 1, usize::MAX);
    engine.set_clock(Box::new(clock));
    engine.add_drafter(Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(toy(draft))))));
    engine.measure_costs();
    let mut result = RunResult::default();
    for request in requests {
        engine.submit(request.clone()).expect("the request is valid");
        let mut tokens = Vec::new();
        while !engine.is_idle() {
            let costs = engine.costs().clone();
            for event in engine.step(&mut Race) {
                match event {
                    Event::Tokens { emitted, .. } => tokens.extend(emitted.iter().map(|emitted| emitted.token)),
                    Event::Finished { stats, .. } => result.drafted += stats.drafted,
                    _ => {}
                }
            }
            let last = engine.last_step();
            if last.rows > 0 {
                let seconds = last.passes.as_secs_f64();
                result.error += (costs.pass(last.rows, 0) - seconds).abs() / seconds;
                result.time += last.passes;
                result.passes += 1;
            }
        }
        result.outputs.push(tokens);
    }
    result.error /= result.passes as f64;
    result.record = engine.cost_record();
    result
}

fn request(prompt: Vec<Token>, seed: usize) -> Request {
    Request {
        tokens_max: Some(60),
        drafters: vec![0],
        budget: BudgetKind::Auto { nodes_max: 12 },
        seed: seed as u64,
        ..Request::new(prompt)
    }
}

/// Requests of the seeded table.
fn seeded_requests() -> Vec<Request> {
    let prompt = |number: usize| (0..4).map(|i| ((number * 7 + i * 3) % 11) as Token).collect();
    let sampling = Sampling { temperature: 0.6, ..Sampling::default() };
    (0..40).map(|number| Request { sampling: sampling.clone(), ..request(prompt(number), number) }).collect()
}

#[test]
fn times_of_passes_are_predicted_better_where_reads_are_reported() {
    let (table, requests) = (Table::seeded(11, 2, 5), seeded_requests());
    let (mut with, mut without) = (0.0, 0.0);
    for context_len in [1, 2, 3] {
        for count in [8, 16, 32] {
            let experts = Experts { context_len, count, ..Experts::default() };
            let result = |reports_reads| run(Experts { reports_reads, ..experts }, [&table; 2], &requests);
            let [by_reads, by_rows] = [true, false].map(result);
            for (output, Request { prompt, sampling, seed, .. }) in by_reads.outputs.iter().zip(&requests) {
                let expected = decode(&table, sampling, *seed, prompt, 60);
                assert!(output.iter().eq(expected.iter().map(|(token, _)| token)), "the output of seed {seed}");
            }
            println!("{experts:?}: error {:.4}, and {:.4} by rows alone", by_reads.error, by_rows.error);
            assert!(
                by_reads.error < by_rows.error,
                "{experts:?}: error {}, by rows alone {}",
                by_reads.error,
                by_rows.error
            );
            (with, without) = (with + by_reads.error, without + by_rows.error);
        }
    }
    assert!(with < 0.9 * without, "error {with}, by rows alone {without}");
}

/// After 0 comes 0, after others the next one in a circle of eleven, with probability `mostly`; after 0 always, unless
/// `after_zero` is set.
fn circles(mostly: f64, after_zero: bool) -> Table {
    Table::new(12, move |tokens| {
        let last = tokens.last().map_or(0, |last| *last as usize);
        let next = if last == 0 { 0 } else { last % 11 + 1 };
        let others = if last == 0 && !after_zero { f64::NEG_INFINITY } else { ((1.0 - mostly) / 11.0).ln() };
        let mut row = vec![others as f32; 12];
        row[next] = mostly.ln() as f32;
        row
    })
}

/// Alternating groups of requests: sequences of zeros, whose rows all choose the same experts, and sequences whose rows
/// choose different ones.
fn requests_in_circles() -> Vec<Request> {
    let request = |number: usize| {
        let first = if (number / 6).is_multiple_of(2) { 0 } else { 1 + number as Token % 11 };
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        Request { sampling, promise: Promise::Rejection, ..request(vec![first; 3], number) }
    };
    (0..48).map(request).collect()
}

#[test]
fn the_automatic_budget_follows_the_experts_that_requests_read() {
    let requests = requests_in_circles();
    let (mut with, mut without) = (Duration::ZERO, Duration::ZERO);
    for (mostly, expert, count) in
        [(0.6, 1000, 32), (0.75, 1000, 32), (0.6, 2000, 32), (0.75, 2000, 64), (0.85, 2000, 32)]
    {
        let durations = [2000, 50, expert].map(Duration::from_micros);
        let experts = Experts { count, durations, ..Experts::default() };
        let (target, draft) = (circles(mostly, false), circles(mostly, true));
        let result = |reports_reads| run(Experts { reports_reads, ..experts }, [&target, &draft], &requests);
        let [by_reads, by_rows] = [true, false].map(result);
        println!("{mostly} {experts:?}: {:?}, and {:?} by rows alone", by_reads.time, by_rows.time);
        assert!(
            by_reads.time.as_secs_f64() < 1.02 * by_rows.time.as_secs_f64(),
            "{:?}, by rows alone {:?}",
            by_reads.time,
            by_rows.time
        );
        (with, without) = (with + by_reads.time, without + by_rows.time);
    }
    assert!(with.as_secs_f64() < 0.97 * without.as_secs_f64(), "{with:?}, by rows alone {without:?}");
}

#[test]
fn reports_change_nothing_where_every_pass_reads_the_same() {
    let (target, draft, requests) = (circles(0.6, false), circles(0.6, true), requests_in_circles());
    // Every pass reads all three experts, or there are none, as in a dense network.
    for count in [3, 0] {
        let durations = [2000, 800, 1000].map(Duration::from_micros);
        let experts = Experts { count, durations, ..Experts::default() };
        let result = |reports_reads| run(Experts { reports_reads, ..experts }, [&target, &draft], &requests);
        let by_reads = result(true);
        let widths = by_reads.record.widths.len();
        assert!(by_reads.drafted > 100 && widths > 3, "{} drafted, {widths} widths", by_reads.drafted);
        assert!(by_reads == result(false), "reporting the reads changes something");
    }
}
