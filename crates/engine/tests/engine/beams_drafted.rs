//! Tests of drafts for beam searches: whatever is drafted, the hypotheses are those of the naive search; and a good
//! draft saves passes.

use std::collections::BTreeMap;

use foretoken_drafters::{ModelDrafter, Scorer};
use foretoken_engine::{BeamSearch, BudgetKind, Engine, Event, FinishReason, Race, Request, Stats, Token};
use foretoken_speculation::costs::Curve;
use foretoken_speculation::{Ask, BeamAsk, Chance, Costs, Drafter, DrafterCosts};
use foretoken_testkit::beams::Found;
use foretoken_testkit::checked_scorer::CheckedScorer;
use foretoken_testkit::table::{Table, TableScorer};
use foretoken_testkit::toy::ToyExecutor;

use crate::beams::{Written, below, expected, random_request, run, run_one};

/// A drafter that proposes random tokens after random rows, or does what it must not.
struct Random {
    state: u64,
    vocabulary: usize,
    is_bad: bool,
}

impl Drafter for Random {
    fn name(&self) -> &str {
        "random beams"
    }

    fn draft(&mut self, _asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        panic!("a beam search is asked by another call");
    }

    fn drafts_beams(&self) -> bool {
        true
    }

    fn draft_beams(&mut self, ask: &mut BeamAsk<'_>) {
        for _ in 0..below(&mut self.state, ask.depth_max * ask.width + 1) {
            let rows = ask.rows.len() + ask.drafted.len();
            let row = rows - 1 - below(&mut self.state, rows.min(12));
            let token = below(&mut self.state, self.vocabulary) as Token;
            ask.propose(row as u32, token);
        }
        match below(&mut self.state, if self.is_bad { 12 } else { usize::MAX }) {
            0 => panic!("a planned failure"),
            1 => _ = ask.propose(0, self.vocabulary as Token),
            2 => _ = ask.propose(9999, 0),
            3 => (0..1000).for_each(|_| _ = ask.propose(0, 0)),
            _ => {}
        }
    }
}

/// The drafters of a target of this table: itself, itself on an executor with states, another, and random ones.
fn drafters(table: &Table, case: u64) -> Vec<Box<dyn Drafter>> {
    let vocabulary = table.vocabulary();
    let other = Table::dense(vocabulary, 2, case + 1000);
    vec![
        Box::new(ModelDrafter::new(TableScorer::new(table.clone()))),
        Box::new(ModelDrafter::new(CheckedScorer::new(table.clone(), 4, 300, 40))),
        Box::new(ModelDrafter::new(CheckedScorer::with_states(table.clone(), 3, 300, 40, 6))),
        Box::new(ModelDrafter::new(TableScorer::new(other))),
        Box::new(Random { state: case, vocabulary, is_bad: false }),
    ]
}

#[test]
fn whatever_is_drafted_the_hypotheses_are_those_of_the_naive_search() {
    let (mut state, mut counts) = (9, [[0; 3]; 5]);
    for case in 0..150 {
        let vocabulary = [5, 7, 11][below(&mut state, 3)];
        let table = Table::dense(vocabulary, 1 + below(&mut state, 3), case);
        let toy = ToyExecutor::new(table.clone(), 1 + below(&mut state, 4), 400, 60);
        let toy = match below(&mut state, 3) {
            0 => toy.with_window(60, 2),
            1 => toy.with_states(3),
            _ => toy,
        };
        let mut engine = Engine::new(Box::new(toy), 1, usize::MAX);
        let all = drafters(&table, case);
        for drafter in all {
            engine.add_drafter(drafter);
        }
        let mut plain = random_request(&mut state, vocabulary);
        plain.sampling.tokens_min = 0;
        let expected = expected(&table, &plain);
        for (number, counts) in (0..5u8).zip(&mut counts) {
            let budget = match below(&mut state, 4) {
                0 => BudgetKind::default(),
                _ => BudgetKind::Fixed { nodes: below(&mut state, 40) },
            };
            let request = Request { drafters: vec![number], budget, ..plain.clone() };
            let Written { beams, end, .. } = run_one(&mut engine, request);
            let (reason, stats) = end.expect("an end");
            let beams = beams.unwrap_or_else(|| panic!("case {case}, drafter {number}: {reason:?}"));
            assert_eq!(Found::all(&beams), expected, "case {case}, drafter {number}: {:?}", plain.beams);
            assert_eq!(stats.passes + stats.beams.included, stats.beams.steps, "case {case}, drafter {number}");
            counts
                .iter_mut()
                .zip([stats.beams.drafted, stats.beams.checked, stats.beams.included])
                .for_each(|(a, b)| *a += b);
        }
    }
    println!("drafted, checked and included steps: {counts:?}");
    for [drafted, checked, included] in &counts[..3] {
        assert!(*drafted > 1000 && included == checked, "the target itself drafts all: {counts:?}");
    }
    assert!(counts[3..].iter().all(|[drafted, checked, included]| *drafted > 500 && included * 2 < *checked));
    assert!(counts[3][2] > 0, "{counts:?}");
}

#[test]
fn drafted_beams_in_batches_are_those_that_each_request_has_alone() {
    let table = Table::dense(7, 3, 9);
    let (mut state, mut preempted, mut included) = (3, 0, 0);
    for round in 0..12u64 {
        let (pages, rows_max) = ([64, 500][round as usize % 2], [20, 60][round as usize / 2 % 2]);
        let toy = ToyExecutor::new(table.clone(), 2, pages, rows_max);
        let toy = if round % 3 == 0 { toy.with_states(7) } else { toy };
        let mut engine = Engine::new(Box::new(toy), 6, usize::MAX);
        drafters(&table, round).into_iter().for_each(|drafter| _ = engine.add_drafter(drafter));
        let mut all = BTreeMap::new();
        for at in 0..9 {
            let mut beams = Request { tokens_max: Some(20), ..random_request(&mut state, 7) };
            (beams.drafters, beams.budget) = (vec![at % 5], BudgetKind::Fixed { nodes: 6 + 3 * usize::from(at) });
            if round % 4 < 2 {
                beams.sampling.end_tokens.clear();
            }
            let plain = Request {
                tokens_max: Some(20),
                drafters: vec![at % 4],
                budget: BudgetKind::Fixed { nodes: 3 },
                ..Request::new(beams.prompt.clone())
            };
            let sequence = engine.submit(beams.clone()).unwrap_or_else(|error| panic!("{error}"));
            all.insert(sequence, beams);
            engine.submit(plain).unwrap_or_else(|error| panic!("{error}"));
        }
        let written = run(&mut engine);
        for (sequence, request) in all {
            let Written { beams, end, .. } = &written[&sequence];
            let (_, stats) = end.as_ref().expect("an end");
            (preempted, included) = (preempted + stats.preemptions, included + stats.beams.included);
            assert_eq!(Found::all(beams.as_ref().expect("beams")), expected(&table, &request), "round {round}");
        }
    }
    assert!(preempted > 10 && included > 100, "{preempted}, {included}");
}

#[test]
fn a_drafter_that_fails_is_dropped_and_the_hypotheses_stay() {
    let table = Table::dense(7, 2, 1);
    let mut dropped = 0;
    for case in 0..30 {
        let mut engine = Engine::new(Box::new(ToyExecutor::new(table.clone(), 4, 300, 60)), 1, usize::MAX);
        engine.add_drafter(Box::new(Random { state: case, vocabulary: 7, is_bad: true }));
        let request = Request {
            drafters: vec![0],
            budget: BudgetKind::Fixed { nodes: 12 },
            tokens_max: Some(15),
            beams: Some(BeamSearch { returned: 3, ..BeamSearch::new(3) }),
            ..Request::new(vec![1, 2])
        };
        let expected = expected(&table, &request);
        engine.submit(request).unwrap_or_else(|error| panic!("{error}"));
        while !engine.is_idle() {
            for event in engine.step(&mut Race) {
                match event {
                    Event::Beams { beams, .. } => assert_eq!(Found::all(beams), expected),
                    Event::DrafterFailed { .. } => dropped += 1,
                    Event::Finished { reason, .. } => assert_eq!(*reason, FinishReason::Length),
                    _ => {}
                }
            }
        }
    }
    assert!(dropped > 15, "{dropped}");
}

/// The statistics of a search with a draft model, by given costs.
fn stats_with(scorer: impl Scorer + 'static, costs: Costs) -> Stats {
    let toy = ToyExecutor::new(Table::dense(11, 3, 4), 4, 400, 60);
    let mut engine = Engine::new(Box::new(toy), 1, usize::MAX);
    engine.add_drafter(Box::new(ModelDrafter::new(scorer)));
    engine.hold_costs(costs);
    let beams = Some(BeamSearch::new(4));
    let request = Request { drafters: vec![0], beams, tokens_max: Some(200), ..Request::new(vec![1, 2, 3]) };
    run_one(&mut engine, request).end.expect("an end").1
}

#[test]
fn how_far_is_drafted_depends_on_costs_and_on_how_often_drafts_are_right() {
    let costs = |row: f64, step: f64| Costs {
        curves: vec![Curve::new(0, vec![(1, 1.0), (101, 1.0 + 100.0 * row)])],
        drafters: vec![DrafterCosts { step, ..DrafterCosts::default() }],
    };
    let same = || TableScorer::new(Table::dense(11, 3, 4));
    let other = || TableScorer::new(Table::dense(11, 3, 5));
    let cheap = stats_with(same(), costs(0.01, 0.02));
    assert!(cheap.passes * 4 < cheap.beams.steps, "{} passes for {:?}", cheap.passes, cheap.beams);
    let slow = stats_with(same(), costs(0.01, 5.0));
    assert!(slow.beams.drafted < 20, "{:?}", slow.beams);
    let wrong = stats_with(other(), costs(0.01, 0.1));
    let time = wrong.beams.drafted as f64 * (0.01 + 0.1 / 6.0);
    assert!(time < 0.05 * wrong.passes as f64, "{} passes, {:?}", wrong.passes, wrong.beams);
}
