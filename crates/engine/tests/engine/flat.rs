//! Memory stays flat: an engine that has served many requests holds what it held after the first of them.
//!
//! Left out: what a single step allocates (`company.rs`), and drafters that are meant to remember all texts.

use foretoken_drafters::{ModelDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, Engine, Event, ExecutorScorer, Race, Request};
use foretoken_speculation::{Sampling, Tenant, Token};
use foretoken_testkit::table::{Table, mix};
use foretoken_testkit::toy::ToyExecutor;

const VOCABULARY: usize = 6;
const PAGES: usize = 26;
/// Requests of a round.
const REQUESTS: u64 = 400;

/// An engine that has pages for two texts of four, with a draft model that has no more, and a drafter that soon
/// forgets.
fn engine() -> Engine {
    let toy = |seed: u64, order: usize| ToyExecutor::new(Table::seeded(VOCABULARY, order, seed), 3, PAGES, 12);
    let mut engine = Engine::new(Box::new(toy(1, 3).with_window(5, 4)), 4, usize::MAX);
    engine.add_drafter(Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(toy(2, 2))))));
    engine.add_drafter(Box::new(SuffixDrafter::new(60)));
    engine
}

/// Prompts of which many begin alike, of two tenants, with texts of any length.
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

/// The same requests in each round, of which some are cancelled; how often one had to give way.
fn round(engine: &mut Engine) -> usize {
    let (mut next, mut preemptions) = (0, 0);
    while next < REQUESTS || !engine.is_idle() {
        for _ in 0..2 {
            if next < REQUESTS {
                let id = engine.submit(request(next)).expect("a request that fits");
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
fn memory_is_what_it_was_after_many_requests() {
    let mut engine = engine();
    let (mut bytes, mut preemptions) = (Vec::new(), 0);
    for _ in 0..12 {
        bytes.push(allocation_counter::measure(|| preemptions += round(&mut engine)).bytes_current);
        engine.check_pages().unwrap_or_else(|error| panic!("{error}"));
        let pages = engine.pages();
        assert_eq!(pages.available(), PAGES, "pages that nobody holds");
        // A node has a page at least, or one below it has; and there are fewer pages of the other group.
        assert!(pages.nodes() <= 3 * PAGES, "{} nodes for {PAGES} pages", pages.nodes());
    }
    println!("{preemptions} preemptions; bytes more after each round: {bytes:?}");
    assert!(preemptions > 100, "{preemptions}");
    // What grows once, as buffers do, is there after a few rounds.
    let grown: i64 = bytes[4..].iter().sum();
    assert!(grown.abs() < 4096, "{grown} bytes more: {bytes:?}");
}
