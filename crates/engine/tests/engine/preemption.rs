//! Tests with more sequences than there are pages for: prefixes are shared, sequences are preempted and resumed, and
//! every output is the one that the request has alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_drafters::{ModelDrafter, SuffixDrafter};
use foretoken_engine::{
    BudgetKind, Engine, Event, ExecutorScorer, FinishReason, Race, Request, RequestError, SequenceId, Stats, Token,
};
use foretoken_model::{Executor, Keep};
use foretoken_speculation::{Chance, Promise, Sampling, Tenant};
use foretoken_testkit::conform::{Registered, drafters};
use foretoken_testkit::enumerator::enumerate;
use foretoken_testkit::oracle::decode;
use foretoken_testkit::table::{Table, distance, mix};
use foretoken_testkit::toy::{ToyExecutor, Watched, rows as rows_of};

/// A random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 % below as u64) as usize
    }
}

/// The output of a request: tokens with the bits of their log-probabilities, the finish reason and the statistics.
#[derive(Default)]
struct Output {
    written: Vec<(Token, u32)>,
    end: Option<(FinishReason, Stats)>,
}

/// Makes a step, adds its events to the outputs, and checks the bookkeeping of pages.
fn step(engine: &mut Engine, chance: &mut dyn Chance, outputs: &mut BTreeMap<SequenceId, Output>) {
    for event in engine.step(chance) {
        match event {
            Event::Tokens { sequence, emitted } => {
                let bits = |log_probability: Option<f32>| log_probability.map_or(0, f32::to_bits);
                let written = emitted.iter().map(|emitted| (emitted.token, bits(emitted.log_probability)));
                outputs.entry(*sequence).or_default().written.extend(written);
            }
            Event::Finished { sequence, reason, stats, .. } => {
                let end = &mut outputs.entry(*sequence).or_default().end;
                assert!(end.replace((reason.clone(), (**stats).clone())).is_none(), "{sequence:?} ended twice");
            }
            Event::DrafterFailed { message, .. } => panic!("no drafter fails: {message}"),
            Event::PromptScored { .. } | Event::Drafts { .. } | Event::Beams { .. } => {
                panic!("no request asked for scores, drafts or beams")
            }
            Event::Prompt { done, total, .. } => assert!(*done > 0 && done <= total, "{done} of {total}"),
        }
    }
    engine.check_pages().unwrap_or_else(|error| panic!("{error}"));
}

fn run(engine: &mut Engine, chance: &mut dyn Chance) -> BTreeMap<SequenceId, Output> {
    let mut outputs = BTreeMap::new();
    while !engine.is_idle() {
        step(engine, chance, &mut outputs);
    }
    outputs
}

const VOCABULARY: usize = 6;

fn table() -> Table {
    Table::seeded(VOCABULARY, 4, 11)
}

/// Requests of three tenants with a few common prefixes.
fn requests(random: &mut Random, drafters: usize, promise: Promise) -> Vec<Request> {
    let prefixes: Vec<Vec<Token>> =
        (0..3).map(|_| (0..20).map(|_| random.below(VOCABULARY) as Token).collect()).collect();
    let request = |seed: u64| {
        let prefix = &prefixes[random.below(3)];
        let mut prompt = prefix[..random.below(prefix.len() + 1)].to_vec();
        prompt.extend((0..1 + random.below(6)).map(|_| random.below(VOCABULARY) as Token));
        let temperature = if promise == Promise::Exact { random.below(2) as f32 } else { 0.0 };
        let end_tokens = if random.below(3) == 0 { vec![1] } else { Vec::new() };
        Request {
            tokens_max: Some(1 + random.below(26)),
            sampling: Sampling { temperature, end_tokens, ..Sampling::default() },
            seed,
            promise,
            tenant: Tenant(random.below(3) as u64),
            public_prefix: random.below(2) * random.below(prompt.len() + 1),
            priority: random.below(3) as i32 - 1,
            budget: match random.below(3) {
                0 => BudgetKind::default(),
                _ => BudgetKind::Fixed { nodes: 1 + random.below(9) },
            },
            drafters: (0..drafters as u8).filter(|_| random.below(3) > 0).collect(),
            log_probabilities: true,
            ..Request::new(prompt)
        }
    };
    (0..24).map(request).collect()
}

/// An engine with three drafters for several sequences, with pages for less than two.
fn small_engine(random: &mut Random, all: &[Registered]) -> Engine {
    let page_len = 1 + random.below(5);
    let pages = (52 + random.below(30)).div_ceil(page_len);
    let mut toy = ToyExecutor::new(table(), page_len, pages, 6 + random.below(20));
    let batch = 2 + random.below(5);
    if random.below(2) == 0 {
        toy = toy.with_window(4 + random.below(4), 1 + random.below(2));
    }
    let mut engine = Engine::new(Box::new(toy), batch, usize::MAX);
    for _ in 0..3 {
        engine.add_drafter((all[random.below(all.len())].make)(&table()));
    }
    engine
}

/// Runs many requests, some of which are cancelled, in too small a cache.
fn run_many(seeds: std::ops::Range<u64>, promise: Promise) {
    let all = drafters();
    let (mut preempted, mut shared, mut cancelled) = (0, 0, 0);
    for seed in seeds {
        let mut random = Random(seed);
        let mut engine = small_engine(&mut random, &all);
        let requests = requests(&mut random, 3, promise);
        let mut to_submit = requests.iter();
        let (mut ids, mut outputs) = (Vec::new(), BTreeMap::new());
        while !(engine.is_idle() && to_submit.len() == 0) {
            for request in to_submit.by_ref().take(random.below(3)) {
                ids.push(engine.submit(request.clone()).unwrap_or_else(|error| panic!("{error}")));
            }
            if random.below(30) == 0 && !ids.is_empty() {
                engine.cancel(ids[random.below(ids.len())]);
            }
            step(&mut engine, &mut Race, &mut outputs);
        }
        for (request, id) in requests.iter().zip(&ids) {
            let Request { sampling, prompt, tokens_max, .. } = request;
            let expected = decode(&table(), sampling, request.seed, prompt, tokens_max.expect("it is set"));
            let (reason, stats) = outputs[id].end.as_ref().expect("all requests end");
            let len = if *reason == FinishReason::Cancelled { outputs[id].written.len() } else { expected.len() };
            assert_eq!(outputs[id].written, expected[..len], "seed {seed}: {id:?}");
            preempted += stats.preemptions;
            shared += stats.prompt_tokens_shared;
            cancelled += usize::from(*reason == FinishReason::Cancelled);
        }
    }
    println!("{promise:?}: {preempted} preempted, {shared} tokens shared, {cancelled} cancelled");
    assert!(preempted > 100 && shared > 500 && cancelled > 10, "{preempted} {shared} {cancelled}");
}

#[test]
fn outputs_are_the_oracles_when_pages_run_out() {
    run_many(0..150, Promise::Exact);
}

#[test]
fn greedy_outputs_are_the_oracles_under_rejection_and_block_too() {
    run_many(1000..1040, Promise::Rejection);
    run_many(2000..2040, Promise::Block);
}

/// The law of an output under *rejection* with drafts, while another request preempts the sequence.
#[test]
fn preempted_sequences_keep_the_law() {
    let table = Table::dense(3, 2, 31);
    let case = |promise, pages, priority| {
        let (mut preempted, mut runs) = (0, 0);
        let law = enumerate(|chance| {
            let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 1, pages, 12)), 3, usize::MAX);
            let draft = ToyExecutor::new(Table::dense(3, 2, 32), 2, 50, 8);
            let mut drafter = ModelDrafter::new(ExecutorScorer::new(Box::new(draft)));
            drafter.settings.p_split = Some(0.3);
            engine.add_drafter(Box::new(drafter));
            let budget = BudgetKind::Fixed { nodes: 2 };
            let other = Request { tokens_max: Some(8), priority, ..Request::new(vec![2, 1, 1, 0]) };
            engine.submit(other).unwrap();
            let request = Request {
                tokens_max: Some(4),
                sampling: Sampling::default(),
                promise,
                budget,
                drafters: vec![0],
                ..Request::new(vec![1, 2, 1])
            };
            let id = engine.submit(request).unwrap();
            let outputs = run(&mut engine, chance);
            preempted += outputs[&id].end.as_ref().unwrap().1.preemptions;
            runs += 1;
            outputs[&id].written.iter().map(|(token, _)| *token).collect()
        });
        let error = distance(&law, &table.plain(&Sampling::default(), &[1, 2, 1], 4));
        assert!(error < 1e-6, "{promise:?} in {pages} pages: off by {error}");
        assert!(runs > 10);
        preempted
    };
    for promise in [Promise::Rejection, Promise::Block] {
        let preempted: usize = (11..16).map(|pages| case(promise, pages, 1)).sum();
        assert!(preempted > 100, "{preempted} preemptions");
    }
}

/// Without drafts the output under *rejection* depends only on the seed and the request's number.
#[test]
fn sampled_outputs_equal_those_of_the_same_request_number_alone() {
    let request = |seed: u64| Request {
        tokens_max: Some(20),
        sampling: Sampling::default(),
        seed,
        promise: Promise::Rejection,
        log_probabilities: true,
        ..Request::new((0..9 + seed).map(|at| (mix(at) % VOCABULARY as u64) as Token).collect())
    };
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 3, 15, 9)), 4, usize::MAX);
    let ids: Vec<SequenceId> = (0..8).map(|seed| engine.submit(request(seed)).unwrap()).collect();
    let outputs = run(&mut engine, &mut Race);
    assert!(outputs.values().map(|output| output.end.as_ref().unwrap().1.preemptions).sum::<usize>() > 3);
    for (seed, id) in (0..).zip(ids) {
        let mut alone = Engine::new(Box::new(ToyExecutor::new(table(), 3, 200, 64)), 1, usize::MAX);
        alone.set_next_request(seed);
        let other = alone.submit(request(seed)).unwrap();
        assert_eq!(outputs[&id].written, run(&mut alone, &mut Race)[&other].written, "{id:?}");
    }
}

fn lookup_engine(page_len: usize, pages: usize, batch: usize) -> Engine {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), page_len, pages, 64)), batch, usize::MAX);
    engine.add_drafter(Box::new(SuffixDrafter::lookup(1, 3, 10)));
    engine
}

#[test]
fn a_prefix_is_computed_once_for_its_tenant_and_a_public_one_once_for_all() {
    let prefix: Vec<Token> = (0..101).map(|at| (mix(at) % VOCABULARY as u64) as Token).collect();
    let mut engine = lookup_engine(8, 100, 4);
    let mut shared = |tenant, public_prefix, end: Token| {
        let prompt = [&prefix[..], &[end]].concat();
        let drafters = vec![0];
        let request = Request {
            tokens_max: Some(2),
            tenant: Tenant(tenant),
            public_prefix,
            drafters,
            ..Request::new(prompt.clone())
        };
        let id = engine.submit(request).unwrap();
        run(&mut engine, &mut Race)[&id].end.as_ref().unwrap().1.prompt_tokens_shared
    };
    assert_eq!(shared(1, 0, 0), 0);
    // All but the last token, whose logits are needed, are shared, those of the partly filled last page included.
    assert_eq!(shared(1, 0, 0), 101);
    assert_eq!(shared(1, 0, 3), 101);
    assert_eq!(shared(2, 0, 3), 0);
    // A request that declares a prefix public computes it again for all tenants, even if its own tenant has it cached.
    assert_eq!(shared(2, 50, 4), 7);
    assert_eq!(shared(3, 0, 5), 48);
    assert_eq!(shared(2, 96, 4), 48 + 7);
    assert_eq!(shared(4, 101, 4), 96);
}

#[test]
fn a_draft_model_reads_a_prefix_once_for_its_tenant() {
    let prefix: Vec<Token> = (0..100).map(|at| (mix(at) % VOCABULARY as u64) as Token).collect();
    let rows = Arc::new(AtomicUsize::new(0));
    // Pages for little more than one sequence, so that cached ones are evicted.
    let counted = rows.clone();
    let draft = Watched::new(ToyExecutor::new(table(), 8, 16, 64), move |batch| {
        counted.fetch_add(rows_of(batch), Ordering::Relaxed);
        Ok(())
    });
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table(), 8, 100, 64)), 1, usize::MAX);
    engine.add_drafter(Box::new(ModelDrafter::new(ExecutorScorer::new(Box::new(draft)))));
    let mut read = |tenant, end: Token| {
        let prompt = [&prefix[..], &[end]].concat();
        let (drafters, budget) = (vec![0], BudgetKind::Fixed { nodes: 4 });
        let request = Request {
            tokens_max: Some(20),
            tenant: Tenant(tenant),
            drafters,
            budget,
            log_probabilities: true,
            ..Request::new(prompt.clone())
        };
        let (before, id) = (rows.load(Ordering::Relaxed), engine.submit(request.clone()).unwrap());
        let outputs = run(&mut engine, &mut Race);
        assert_eq!(outputs[&id].written, decode(&table(), &request.sampling, 0, &prompt, 20));
        assert!(outputs[&id].end.as_ref().unwrap().1.accepted > 10, "the draft model is the target itself");
        rows.load(Ordering::Relaxed) - before
    };
    assert!(read(1, 0) > 100);
    assert!(read(1, 1) < 40);
    assert!(read(2, 1) > 100);
    assert!(read(1, 2) > 100, "its pages were evicted");
}

#[test]
fn requests_with_the_same_prompt_share_its_pages() {
    let prompt: Vec<Token> = (0..200).map(|at| (mix(at) % VOCABULARY as u64) as Token).collect();
    let mut engine = lookup_engine(8, 60, 6);
    let request = |seed| Request {
        tokens_max: Some(10),
        sampling: Sampling::default(),
        seed,
        log_probabilities: true,
        ..Request::new(prompt.clone())
    };
    // Each takes 27 pages alone; with shared pages all six fit into 60.
    let ids: Vec<SequenceId> = (0..6).map(|seed| engine.submit(request(seed)).unwrap()).collect();
    let outputs = run(&mut engine, &mut Race);
    for (seed, id) in (0..).zip(ids) {
        assert_eq!(outputs[&id].written, decode(&table(), &Sampling::default(), seed, &prompt, 10));
        let stats = &outputs[&id].end.as_ref().unwrap().1;
        assert_eq!((stats.preemptions, stats.prompt_tokens_shared), (0, if seed == 0 { 0 } else { 192 }), "{id:?}");
    }
}

/// The order in which requests end.
fn ends(engine: &mut Engine) -> Vec<SequenceId> {
    let mut order = Vec::new();
    while !engine.is_idle() {
        let ended = |event: &Event| match event {
            Event::Finished { sequence, .. } => Some(*sequence),
            _ => None,
        };
        order.extend(engine.step(&mut Race).iter().filter_map(ended));
        engine.check_pages().unwrap();
    }
    order
}

#[test]
fn requests_run_by_priority_and_then_by_arrival() {
    let mut engine = lookup_engine(4, 100, 1);
    let mut submit = |priority| {
        let request = Request { tokens_max: Some(3), priority, ..Request::new(vec![1, 2]) };
        engine.submit(request).unwrap()
    };
    let ids = [0, 1, 0, 2, 1].map(&mut submit);
    assert_eq!(ends(&mut engine), [3, 1, 4, 0, 2].map(|at| ids[at]));
}

#[test]
fn a_request_that_waits_for_pages_is_overtaken_by_a_limited_number_of_others() {
    let mut engine = lookup_engine(1, 64, 4);
    let request = |prompt: usize, tokens: usize, seed: usize| Request {
        tokens_max: Some(tokens),
        ..Request::new((0..prompt).map(|at| ((at * at + seed) % VOCABULARY) as Token).collect())
    };
    let long = engine.submit(request(8, 50, 0)).unwrap();
    engine.step(&mut Race);
    // It does not fit together with the first; the requests after it do.
    let large = engine.submit(request(58, 2, 1)).unwrap();
    let small: Vec<SequenceId> = (0..40).map(|seed| engine.submit(request(3, 2, seed)).unwrap()).collect();
    let order = ends(&mut engine);
    let at = |id: SequenceId| order.iter().position(|other| *other == id).unwrap();
    let before = small.iter().filter(|id| at(**id) < at(large)).count();
    assert!((1..=8).contains(&before), "{before} overtook it, {order:?}");
    assert!(at(long) < at(large));
}

#[test]
fn a_full_queue_and_a_prompt_that_never_fits_are_refused() {
    let mut engine = lookup_engine(4, 8, 1);
    engine.set_waiting_max(2);
    let request = || Request { tokens_max: Some(3), ..Request::new(vec![1, 2]) };
    // The first can start at once, so it does not count as waiting.
    for _ in 0..3 {
        engine.submit(request()).unwrap();
    }
    let refused = engine.submit(request()).unwrap_err();
    assert_eq!(refused, RequestError::Queue { waiting_max: 2 });
    assert_eq!(refused.to_string(), "queue: expected fewer than 2 requests that wait, found 2");
    engine.step(&mut Race);
    let refused = engine.submit(Request::new(vec![1; 40])).unwrap_err();
    assert_eq!(refused, RequestError::Queue { waiting_max: 2 }, "one runs, two wait");
    assert_eq!(ends(&mut engine).len(), 3);
    let refused = engine.submit(Request::new(vec![1; 40])).unwrap_err().to_string();
    assert_eq!(refused, "prompt: expected at most 31 tokens (the context is 32), found 40");
}

#[test]
fn windows_share_the_rows_that_the_next_row_sees() {
    let table = Table::seeded(VOCABULARY, 4, 12);
    let prompt: Vec<Token> = (0..60).map(|at| (mix(at) % VOCABULARY as u64) as Token).collect();
    let toy = ToyExecutor::new(table.clone(), 4, 100, 8).with_window(6, 2);
    let windows = toy.capacity().groups.iter().filter(|group| matches!(group.keep, Keep::Window(_)));
    let pages: usize = windows.map(|group| group.pages).sum();
    let mut engine = Engine::new(Box::new(toy), 2, usize::MAX);
    let mut shared = |len: usize| {
        let prompt = prompt[..len].to_vec();
        let request = Request { tokens_max: Some(4), log_probabilities: true, ..Request::new(prompt.clone()) };
        let id = engine.submit(request.clone()).unwrap();
        let outputs = run(&mut engine, &mut Race);
        assert_eq!(outputs[&id].written, decode(&table, &request.sampling, 0, &prompt, 4));
        outputs[&id].end.as_ref().unwrap().1.prompt_tokens_shared
    };
    assert_eq!(shared(60), 0);
    assert_eq!(shared(60), 59, "its last window is cached");
    assert_eq!(shared(20), 0, "with {pages} pages, so early a window is not cached any more");
    assert_eq!(shared(20), 19);
}
