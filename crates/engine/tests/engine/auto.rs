//! Tests of the automatic budget: when drafters pause and resume, what their trials cost, and that nothing depends on
//! the clock while costs are held.

use std::sync::{Arc, Mutex};

use foretoken_drafters::{ModelDrafter, RandomDrafter, SuffixDrafter};
use foretoken_engine::{BudgetKind, CostRecord, Costs, Engine, Event, ExecutorScorer, Race, Request, Stats};
use foretoken_speculation::costs::Curve;
use foretoken_speculation::{
    Ask, Chance, Drafter, DrafterCosts, Opening, Promise, Proposal, Sampling, SequenceId, StepOutput, Token, Work,
};
use foretoken_testkit::table::Table;
use foretoken_testkit::toy::ToyExecutor;

use crate::budgets::generate;

/// A pass of one row takes a second; further rows a twentieth up to the eighth, then half a second and a tenth.
fn costs(drafters: &[DrafterCosts]) -> Costs {
    let points = vec![(1, 1.0), (8, 1.35), (9, 1.85), (16, 2.55)];
    Costs { curves: vec![Curve::new(0, points)], drafters: drafters.to_vec() }
}

fn step(step: f64) -> DrafterCosts {
    DrafterCosts { step, catch_up: step / 100.0, call: 0.0 }
}

/// A model that counts up to the end of its vocabulary and starts again.
fn counting(vocabulary: usize) -> Table {
    Table::new(vocabulary, move |tokens| {
        let mut row = vec![f32::NEG_INFINITY; vocabulary];
        row[tokens.last().map_or(0, |last| (*last as usize + 1) % vocabulary)] = 0.0;
        row
    })
}

/// A drafter that reports the work of a network, and drafts the right tokens or wrong ones, as it is set.
struct ScriptedDrafter {
    is_right: Arc<Mutex<bool>>,
    asked: Arc<Mutex<Vec<usize>>>,
    read: usize,
    work: Work,
}

impl Drafter for ScriptedDrafter {
    fn name(&self) -> &str {
        "scripted"
    }
    fn work(&self) -> Option<Work> {
        Some(self.work)
    }
    fn unread(&self, _sequence: SequenceId, len: usize) -> usize {
        len - self.read.min(len)
    }
    fn open(&mut self, _opening: &Opening<'_>) {
        self.read = 0;
    }
    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let (mut last, mut parent) = (ask.tokens[ask.tokens.len() - 1], None);
            self.work.read += ask.tokens.len().saturating_sub(self.read) as u64;
            self.read = ask.tokens.len();
            let stride = if *self.is_right.lock().unwrap() { 1 } else { 3 };
            for depth in 1..=4 {
                if !ask.has_room() {
                    break;
                }
                self.work.passes += 1;
                last = (last + stride) % 7;
                parent = Some(ask.tree.offer(parent, last, Proposal::Point, ask.source));
                let branch = foretoken_speculation::Branch { gain: 0.5, depth, nodes: depth, room: 4 - depth };
                if ask.outlook.is_some_and(|outlook| !outlook.pays(ask.source, branch)) {
                    break;
                }
            }
            self.asked.lock().unwrap().push(ask.tokens.len());
        }
    }
    fn observe(&mut self, _outputs: &[StepOutput<'_>]) {}
    fn close(&mut self, _sequence: SequenceId) {}
}

struct Setup {
    engine: Engine,
    is_right: Arc<Mutex<bool>>,
    asked: Arc<Mutex<Vec<usize>>>,
}

fn with_scripted_drafter(drafter_costs: DrafterCosts) -> Setup {
    let mut engine = Engine::new(Box::new(ToyExecutor::new(counting(7), 16, 400, 600)), 4, usize::MAX);
    let (is_right, asked) = (Arc::new(Mutex::new(true)), Arc::new(Mutex::new(Vec::new())));
    let work = Work::default();
    engine.add_drafter(Box::new(ScriptedDrafter { is_right: is_right.clone(), asked: asked.clone(), read: 0, work }));
    engine.hold_costs(costs(&[drafter_costs]));
    Setup { engine, is_right, asked }
}

fn request(prompt: usize, tokens_max: usize) -> Request {
    let prompt = (0..prompt).map(|i| (i % 7) as Token).collect();
    Request { tokens_max: Some(tokens_max), drafters: vec![0], ..Request::new(prompt) }
}

#[test]
fn a_drafter_that_is_never_right_pauses_and_its_trials_take_a_hundredth_of_the_time() {
    let Setup { mut engine, is_right, asked } = with_scripted_drafter(step(0.2));
    *is_right.lock().unwrap() = false;
    let (tokens, stats) = generate(&mut engine, request(5, 2000));
    assert!(tokens.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 7));
    assert_eq!(stats.accepted, 0);
    let early = asked.lock().unwrap().iter().filter(|len| **len < 100).count();
    assert!(early < 20, "{early} times in the first hundred tokens");
    // A trial takes a step and a row, a quarter of a pass, and reads everything that was written since the last one.
    let late = asked.lock().unwrap().len() - early;
    assert!((5..=70).contains(&late), "{late} trials in 1900 passes");
    assert!(stats.modelled_speedup().unwrap() > 0.985, "{:?}", stats.modelled_speedup());
}

#[test]
fn a_drafter_that_becomes_right_resumes_and_drafts_for_the_next_request_from_the_start() {
    let Setup { mut engine, is_right, asked } = with_scripted_drafter(step(0.02));
    *is_right.lock().unwrap() = false;
    generate(&mut engine, request(5, 400));
    let asked_before = asked.lock().unwrap().len();
    *is_right.lock().unwrap() = true;
    generate(&mut engine, request(5, 800));
    let asked_after = asked.lock().unwrap().len();
    assert!(asked_after > asked_before + 60, "asked {asked_before} times, then {asked_after}");
    let (_, stats) = generate(&mut engine, request(5, 60));
    assert!(stats.tokens_per_pass() > 2.0, "{}", stats.tokens_per_pass());
}

#[test]
fn a_drafter_as_slow_as_the_target_is_soon_not_asked() {
    let Setup { mut engine, .. } = with_scripted_drafter(step(1.0));
    let (_, stats) = generate(&mut engine, request(5, 1000));
    assert!(stats.modelled_speedup().unwrap() > 0.98, "{:?}", stats.modelled_speedup());
}

#[test]
fn a_drafter_whose_draws_must_be_kept_pauses_too() {
    for promise in [Promise::Rejection, Promise::Block] {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(counting(400), 16, 400, 600)), 1, usize::MAX);
        engine.add_drafter(Box::new(RandomDrafter::new(400)));
        engine.hold_costs(costs(&[DrafterCosts { call: 0.001, ..step(0.0) }]));
        let sampling = Sampling::default();
        let (_, stats) = generate(&mut engine, Request { sampling, promise, ..request(5, 2000) });
        assert!(stats.passes > 1900, "{} passes, though nearly every draft is rejected", stats.passes);
        assert!(stats.modelled_speedup().unwrap() > 0.985, "{promise:?}: {:?}", stats.modelled_speedup());
    }
}

#[test]
fn a_drafter_paused_for_one_request_is_tried_for_it_though_it_pays_for_another() {
    // It drafts every next token of sequences that count up, and none of a sequence that counts by threes.
    let threes = |tokens: &[Token]| tokens.first() == Some(&3);
    let table = Table::new(7, move |tokens| {
        let mut row = vec![f32::NEG_INFINITY; 7];
        let by = if threes(tokens) { 3 } else { 1 };
        row[tokens.last().map_or(0, |last| (*last as usize + by) % 7)] = 0.0;
        row
    });
    let mut engine = Engine::new(Box::new(ToyExecutor::new(table, 16, 800, 600)), 2, usize::MAX);
    let (is_right, asked) = (Arc::new(Mutex::new(true)), Arc::new(Mutex::new(Vec::new())));
    engine.add_drafter(Box::new(ScriptedDrafter { is_right, asked: asked.clone(), read: 0, work: Work::default() }));
    engine.hold_costs(costs(&[step(0.02)]));
    engine.submit(request(3000, 4000)).unwrap();
    engine.submit(Request { prompt: vec![3; 900], ..request(5, 800) }).unwrap();
    while !engine.is_idle() {
        engine.step(&mut Race);
    }
    // The lengths of the two sequences do not overlap.
    let trials = asked.lock().unwrap().iter().filter(|len| (1000..1700).contains(*len)).count();
    assert!((5..150).contains(&trials), "{trials} trials");
}

#[test]
fn short_answers_are_not_drafted_if_the_draft_model_would_have_to_read_the_prompt() {
    // The draft model takes as long as 9 passes to read a prompt of 300 tokens.
    for (tokens_max, drafts) in [(1, false), (6, false), (300, true)] {
        let Setup { mut engine, asked, .. } =
            with_scripted_drafter(DrafterCosts { step: 0.05, catch_up: 0.03, call: 0.0 });
        generate(&mut engine, request(300, tokens_max));
        assert_eq!(!asked.lock().unwrap().is_empty(), drafts, "{tokens_max} tokens");
    }
}

/// An engine with a draft model similar to its target, and suffix matching.
fn with_model(seed: u64) -> Engine {
    let table = Table::seeded(11, 2, seed);
    let target = table.clone();
    let flatter = Table::new(11, move |tokens| target.logits(tokens).iter().map(|logit| 0.7 * logit).collect());
    let toy = |table: Table| Box::new(ToyExecutor::new(table, 4, 400, 64));
    let mut engine = Engine::new(toy(table), 8, usize::MAX);
    engine.add_drafter(Box::new(ModelDrafter::new(ExecutorScorer::new(toy(flatter)))));
    engine.add_drafter(Box::new(SuffixDrafter::default()));
    engine.hold_costs(costs(&[step(0.05), DrafterCosts { call: 0.001, ..step(0.0) }]));
    engine
}

#[test]
fn the_automatic_budget_is_within_a_twentieth_of_the_best_fixed_one() {
    for (temperature, promise) in [(0.0, Promise::Exact), (1.0, Promise::Exact), (1.0, Promise::Rejection)] {
        let speed = |budget: BudgetKind| {
            let mut engine = with_model(3);
            let mut all = Stats::default();
            for seed in 0..6 {
                let sampling = Sampling { temperature, ..Sampling::default() };
                let request = Request { sampling, promise, seed, budget: budget.clone(), ..request(9, 120) };
                all.add(&generate(&mut engine, request).1);
            }
            all.modelled_speedup().unwrap()
        };
        let auto = speed(BudgetKind::default());
        let best = (0..9).map(|nodes| speed(BudgetKind::Fixed { nodes })).fold(0.0, f64::max);
        assert!(auto > 0.95 * best, "{promise:?} at {temperature}: {auto}, the best fixed budget {best}");
    }
}

#[test]
fn with_held_costs_a_seed_is_reproducible_under_every_promise() {
    for promise in [Promise::Exact, Promise::Rejection, Promise::Block] {
        let output = || {
            let sampling = Sampling::default();
            let request = Request { sampling, promise, seed: 5, drafters: vec![0, 1], ..request(9, 200) };
            generate(&mut with_model(4), request)
        };
        let (first, second) = (output(), output());
        assert_eq!(first.0, second.0);
        assert_eq!(first.1.drafted, second.1.drafted);
    }
}

#[test]
fn larger_batches_have_smaller_drafts() {
    let drafted = |count: u64| {
        let mut engine = with_model(3);
        for seed in 0..count {
            let sampling = Sampling::default();
            engine.submit(Request { sampling, seed, ..request(9, 100) }).unwrap();
        }
        let (mut drafted, mut passes) = (0, 0);
        while !engine.is_idle() {
            for event in engine.step(&mut Race) {
                if let Event::Finished { stats, .. } = event {
                    (drafted, passes) = (drafted + stats.drafted, passes + stats.passes);
                }
            }
        }
        drafted as f64 / passes as f64
    };
    let (alone, batched) = (drafted(1), drafted(8));
    assert!(batched < 0.8 * alone, "{batched} nodes per pass in a batch of 8, {alone} alone");
}

#[test]
fn contradictory_limits_are_refused() {
    let mut engine = with_model(1);
    let mut request = Request { budget: BudgetKind::Auto { nodes_max: 4 }, ..request(9, 10) };
    request.draft.n_min = Some(5);
    let error = engine.submit(request).unwrap_err().to_string();
    assert_eq!(error, "draft.n_min: expected at most the budget's nodes_max (4), found 5");
}

#[test]
fn costs_are_measured_at_the_start_and_during_passes() {
    let mut engine = with_model(2);
    engine.resume_costs(&CostRecord::default());
    engine.measure_costs();
    let widths: Vec<usize> = engine.costs().curves[0].points().iter().map(|(rows, _)| *rows).collect();
    assert_eq!(widths, [1, 8, 16]);
    assert!(engine.costs().drafter(0).step > 0.0 && engine.costs().drafter(1).step == 0.0);
    generate(&mut engine, request(20, 50));
    assert!(engine.costs().curves[0].points().iter().any(|(rows, _)| *rows == 20), "{:?}", engine.costs().curves);
}
