//! Networks of experts: what passes read is learned with what they take, and drafts are weighed by it. Time is the
//! toy's own, so every number here is the same on any machine.

use std::time::Duration;

use foretoken_drafters::ModelDrafter;
use foretoken_engine::{BudgetKind, CostRecord, Engine, Event, ExecutorScorer, Race, Request};
use foretoken_speculation::{Promise, Sampling, Token};
use foretoken_testkit::experts::{Experts, ExpertsExecutor, Hands};
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

/// What came of a run.
#[derive(Debug, Default, PartialEq)]
struct Ran {
    texts: Vec<Vec<Token>>,
    /// How far expected times of passes were off, as parts of what they took, on average.
    error: f64,
    /// What all passes took.
    time: Duration,
    drafted: usize,
    passes: usize,
    record: CostRecord,
}

/// Writes one text after the other, drafted by a draft model, with costs as they are measured.
fn run(experts: Experts, [target, draft]: [&Table; 2], requests: &[Request]) -> Ran {
    let hands = Hands::default();
    let toy = |table: &Table| ToyExecutor::new(table.clone(), 8, 80, 64);
    let mut engine = Engine::new(Box::new(ExpertsExecutor::new(toy(target), experts, hands.clone())), 1, usize::MAX);
    engine.set_clock(Box::new(hands));
    engine.add_drafter(Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(toy(draft))))));
    engine.measure_costs();
    let mut ran = Ran::default();
    for request in requests {
        engine.submit(request.clone()).expect("it can run");
        let mut text = Vec::new();
        while !engine.is_idle() {
            let costs = engine.costs().clone();
            for event in engine.step(&mut Race) {
                match event {
                    Event::Tokens { emitted, .. } => text.extend(emitted.iter().map(|emitted| emitted.token)),
                    Event::Finished { stats, .. } => ran.drafted += stats.drafted,
                    _ => {}
                }
            }
            let last = engine.last_step();
            if last.rows > 0 {
                let took = last.passes.as_secs_f64();
                ran.error += (costs.pass(last.rows, 0) - took).abs() / took;
                ran.time += last.passes;
                ran.passes += 1;
            }
        }
        ran.texts.push(text);
    }
    ran.error /= ran.passes as f64;
    ran.record = engine.cost_record();
    ran
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
fn passes_take_what_is_expected_of_them_more_nearly_where_it_is_told_what_they_read() {
    let (table, requests) = (Table::seeded(11, 2, 5), seeded_requests());
    let (mut with, mut without) = (0.0, 0.0);
    for by_last in [1, 2, 3] {
        for count in [8, 16, 32] {
            let experts = Experts { by_last, count, ..Experts::default() };
            let ran = |are_told| run(Experts { are_told, ..experts }, [&table; 2], &requests);
            let [told, silent] = [true, false].map(ran);
            for (text, Request { prompt, sampling, seed, .. }) in told.texts.iter().zip(&requests) {
                let expected = decode(&table, sampling, *seed, prompt, 60);
                assert!(text.iter().eq(expected.iter().map(|(token, _)| token)), "a text of seed {seed}");
            }
            println!("{experts:?}: off by {:.4}, and {:.4} by rows alone", told.error, silent.error);
            assert!(told.error < silent.error, "{experts:?}: off by {}, by rows by {}", told.error, silent.error);
            (with, without) = (with + told.error, without + silent.error);
        }
    }
    assert!(with < 0.9 * without, "off by {with}, by rows by {without}");
}

/// Behind 0 comes 0, behind others the next one in a circle; surely, or only mostly if `mostly` is a probability.
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

/// Texts of zeros, whose rows all choose the same experts, and texts whose rows choose others, in turn.
fn requests_in_circles() -> Vec<Request> {
    let request = |number: usize| {
        let first = if (number / 6).is_multiple_of(2) { 0 } else { 1 + number as Token % 11 };
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        Request { sampling, promise: Promise::Rejection, ..request(vec![first; 3], number) }
    };
    (0..48).map(request).collect()
}

#[test]
fn auto_drafts_by_what_texts_read_now() {
    let requests = requests_in_circles();
    let (mut with, mut without) = (Duration::ZERO, Duration::ZERO);
    for (mostly, expert, count) in
        [(0.6, 1000, 32), (0.75, 1000, 32), (0.6, 2000, 32), (0.75, 2000, 64), (0.85, 2000, 32)]
    {
        let takes = [2000, 50, expert].map(Duration::from_micros);
        let experts = Experts { count, takes, ..Experts::default() };
        let (target, draft) = (circles(mostly, false), circles(mostly, true));
        let ran = |are_told| run(Experts { are_told, ..experts }, [&target, &draft], &requests);
        let [told, silent] = [true, false].map(ran);
        println!("{mostly} {experts:?}: {:?}, and {:?} by rows alone", told.time, silent.time);
        assert!(
            told.time.as_secs_f64() < 1.02 * silent.time.as_secs_f64(),
            "{:?}, by rows {:?}",
            told.time,
            silent.time
        );
        (with, without) = (with + told.time, without + silent.time);
    }
    assert!(with.as_secs_f64() < 0.97 * without.as_secs_f64(), "{with:?}, by rows {without:?}");
}

#[test]
fn where_every_pass_reads_the_same_nothing_is_decided_otherwise() {
    let (target, draft, requests) = (circles(0.6, false), circles(0.6, true), requests_in_circles());
    // All experts there are, and none, as in a network that has attention and nothing else.
    for count in [3, 0] {
        let takes = [2000, 800, 1000].map(Duration::from_micros);
        let experts = Experts { count, takes, ..Experts::default() };
        let ran = |are_told| run(Experts { are_told, ..experts }, [&target, &draft], &requests);
        let told = ran(true);
        let widths = told.record.widths.len();
        assert!(told.drafted > 100 && widths > 3, "{} drafted, {widths} widths", told.drafted);
        assert!(told == ran(false), "what is said changes something");
    }
}
