//! Tests that memory does not grow: after many requests an engine holds as much as after the first ones.
//!
//! What a single step allocates is tested in `isolation.rs`. Drafters that remember all finished requests by design are
//! not covered.

use foretoken_drafters::{ModelDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, Race, Request};
use foretoken_speculation::{Sampling, Tenant, Token};
use foretoken_testkit::table::{Table, mix};
use foretoken_testkit::toy::ToyExecutor;

const VOCABULARY: usize = 6;
const PAGES: usize = 26;
/// Requests of a round.
const REQUESTS: u64 = 400;

/// An engine with pages for about two of four sequences, a draft model with no more pages, and a drafter that keeps
/// little.
fn engine() -> Engine {
    let toy = |seed: u64, order: usize| ToyExecutor::new(Table::seeded(VOCABULARY, order, seed), 3, PAGES, 12);
    let mut engine = Engine::new(Box::new(toy(1, 3).with_window(5, 4)), 4, usize::MAX);
    engine.add_drafter(Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(toy(2, 2))))));
    engine.add_drafter(Box::new(SuffixDrafter::new(60)));
    engine
}

/// A request of one of two tenants; many prompts have a common prefix, and the outputs have different lengths.
fn request(number: u64) -> Request {
    let below = |what: u64, below: u64| mix(number * 10 + what) % below;
    let prefix = mix(below(0, 5));
    let shared = (0..below(1, 16)).map(|i| (mix(prefix + i) % VOCABULARY as u64) as Token);
    let own = (0..1 + below(2, 5)).map(|i| (mix(number + i) % VOCABULARY as u64) as Token);
    Request {
        tokens_max: Some(1 + below(3, 24) as usize),
        sampling: Sampling { temperature: below(4, 2) as f32, ..Sampling::default() },
        seed: number,
        budget: BudgetKind::Fixed { nodes: 1 + below(5, 6) as usize },
        drafters: vec![0, 1],
        tenant: Tenant(below(6, 2)),
        public_prefix: 3,
        ..Request::new(shared.chain(own).collect())
    }
}

/// Runs the requests of a round, the same in each, some of which are cancelled. Returns the number of preemptions.
fn round(engine: &mut Engine) -> usize {
    let (mut next, mut preemptions) = (0, 0);
    while next < REQUESTS || !engine.is_idle() {
        for _ in 0..2 {
            if next < REQUESTS {
                let id = engine.submit(request(next)).expect("the request is valid");
                next += 1;
                if next.is_multiple_of(9) {
                    engine.cancel(id);
                }
            }
        }
        for event in engine.step(&mut Race) {
            if let Event::Finished { stats, .. } = event {
                preemptions += stats.preemptions;
            }
        }
    }
    preemptions
}

#[test]
fn memory_does_not_grow_over_many_requests() {
    let mut engine = engine();
    let (mut bytes, mut preemptions) = (Vec::new(), 0);
    for _ in 0..12 {
        bytes.push(allocation_counter::measure(|| preemptions += round(&mut engine)).bytes_current);
        engine.check_pages().unwrap_or_else(|error| panic!("{error}"));
        let pages = engine.pages();
        assert_eq!(pages.available(), PAGES, "all pages are available while no request runs");
        // Every node has a page, or a node below it has one; and the other group has fewer pages.
        assert!(pages.nodes() <= 3 * PAGES, "{} nodes for {PAGES} pages", pages.nodes());
    }
    println!("{preemptions} preemptions; growth in bytes in each round: {bytes:?}");
    assert!(preemptions > 100, "{preemptions}");
    // Buffers reach their size in the first rounds.
    let grown: i64 = bytes[4..].iter().sum();
    assert!(grown.abs() < 4096, "grown by {grown} bytes: {bytes:?}");
}
