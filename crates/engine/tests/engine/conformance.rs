//! The conformance suite over toy models: every registered drafter, promise, budget and batch size, and then all
//! drafters but one.
//!
//! The whole product takes minutes. Every drafter meets every setting and every target, but each pair of the first two
//! on one target only, unless `FORETOKEN_WHOLE_CONFORMANCE` is set.

use foretoken_engine::BudgetKind;
use foretoken_speculation::{Promise, Sampling};
use foretoken_testkit::conform::{Case, Form, Setting, cases, drafters, exact, law_error, selections};
use foretoken_testkit::table::Table;

/// Targets: one that is easy to predict, one that is hard to predict, and one with a long context.
const TARGETS: [(u64, usize, usize); 3] = [(1, 6, 1), (2, 11, 2), (3, 5, 6)];

/// `window`: the sliding window of some of the executors, at least as many tokens as the target's rows depend on.
fn settings(window: Option<usize>) -> Vec<Setting> {
    let mut all = Vec::new();
    let others =
        [BudgetKind::Heuristic { nodes_max: 9 }, BudgetKind::Fixed { nodes: 3 }, BudgetKind::Fixed { nodes: 0 }];
    for ((batch, page_len, rows_max), other) in [(1, 4, 64), (7, 1, 64), (16, 16, 24)].into_iter().zip(others) {
        for (budget, window) in [(BudgetKind::default(), None), (other, window)] {
            let (remote_logits, has_encoder) = (window.is_some() && batch > 1, window.is_some());
            all.push(Setting {
                batch,
                page_len,
                rows_max,
                window,
                has_encoder,
                remote_logits,
                budget,
                ..Setting::plain()
            });
            if window.is_none() && batch > 1 {
                all.push(Setting { batch, page_len, rows_max, states: true, ..Setting::plain() });
            }
            if window.is_some() && batch == 7 {
                all.push(Setting { batch, page_len, rows_max, window, ranks: true, ..Setting::plain() });
                all.push(Setting { batch, page_len, rows_max, window, experts: true, ..Setting::plain() });
            }
        }
    }
    for budget in [BudgetKind::Confidence { nodes_max: 9 }, BudgetKind::Threshold { nodes_max: 9 }] {
        all.push(Setting { batch: 5, page_len: 3, window, budget, ..Setting::plain() });
    }
    all
}

/// Runs a check on every target, each on a thread, since these are the longest tests. The check also gets the target's
/// number.
fn each_target(check: impl Fn(usize, (u64, usize, usize)) + Sync) {
    std::thread::scope(|scope| {
        for (number, target) in TARGETS.into_iter().enumerate() {
            let check = &check;
            scope.spawn(move || check(number, target));
        }
    });
}

/// Whether the one of three that has this number is the turn's.
fn is_turn_of(number: usize, turn: usize) -> bool {
    turn % 3 == number || std::env::var_os("FORETOKEN_WHOLE_CONFORMANCE").is_some()
}

#[test]
fn exact_gives_the_tokens_and_bits_of_the_oracle_with_any_drafters() {
    each_target(|number, target| {
        let (all, cases) = (drafters(), cases(target));
        for (i, setting) in settings(Some(target.2)).iter().enumerate() {
            for (j, drafters) in selections(&all).into_iter().enumerate() {
                if is_turn_of(number, i + j) {
                    exact(&cases, setting, &drafters).unwrap_or_else(|message| panic!("{message}"));
                }
            }
        }
    });
}

#[test]
fn rejection_and_block_are_exact_where_the_law_is_a_point_mass() {
    each_target(|_, target| {
        let all = drafters();
        let greedy: Vec<Case> = cases(target)
            .into_iter()
            .map(|mut case| {
                case.sampling.temperature = 0.0;
                case
            })
            .collect();
        for promise in [Promise::Rejection, Promise::Block] {
            for drafters in selections(&all) {
                let setting = Setting { promise, batch: 4, ..Setting::plain() };
                exact(&greedy, &setting, &drafters).unwrap_or_else(|message| panic!("{message}"));
            }
        }
    });
}

#[test]
fn the_law_of_a_constrained_output_is_the_targets_restricted_to_allowed_tokens() {
    let (table, sampling) = (Table::dense(4, 2, 14), Sampling { temperature: 1.2, ..Sampling::default() });
    let case =
        Case { target: (14, 4, 2), prompt: vec![1, 2, 1], sampling, seed: 0, tokens_max: 3, form: Form::Forbidding };
    for promise in [Promise::Exact, Promise::Rejection, Promise::Block] {
        for drafter in &drafters() {
            let setting = Setting { promise, budget: BudgetKind::Fixed { nodes: 2 }, ..Setting::plain() };
            let error = law_error(&table, &case, &setting, &[drafter]);
            assert!(error < 1e-6, "{} with {setting:?}: off by {error}", drafter.name);
        }
    }
}

#[test]
fn the_law_of_the_output_is_the_targets_under_every_promise() {
    let all = drafters();
    let samplings = [
        (11, Sampling::default()),
        (12, Sampling { temperature: 1.3, top_k: 2, ..Sampling::default() }),
        (13, Sampling { repetition_penalty: 1.5, penalty_window: Some(2), ..Sampling::default() }),
    ];
    for (number, (seed, sampling)) in samplings.into_iter().enumerate() {
        let table = Table::seeded(3, 2, seed);
        let case =
            Case { target: (seed, 3, 2), prompt: vec![1, 2, 1], sampling, seed: 0, tokens_max: 3, form: Form::Free };
        for (i, promise) in [Promise::Exact, Promise::Rejection, Promise::Block].into_iter().enumerate() {
            for (j, drafter) in all.iter().enumerate() {
                // Over the promises each drafter meets every law, with one of the two budgets or the other.
                let budgets = [BudgetKind::Fixed { nodes: 2 }, BudgetKind::Auto { nodes_max: 2 }];
                for (k, budget) in budgets.into_iter().enumerate().filter(|(k, _)| is_turn_of(number, i + j + k)) {
                    let setting = Setting { promise, budget, ..Setting::plain() };
                    let error = law_error(&table, &case, &setting, &[drafter]);
                    assert!(error < 1e-6, "{} with {setting:?} and law {number}.{k}: off by {error}", drafter.name);
                }
            }
            let two: Vec<_> = all.iter().filter(|d| ["draft", "draft with p-min"].contains(&d.name)).collect();
            for budget in [BudgetKind::Fixed { nodes: 2 }, BudgetKind::Auto { nodes_max: 2 }] {
                let setting = Setting { promise, budget, ..Setting::plain() };
                let error = law_error(&table, &case, &setting, &two);
                assert!(error < 1e-6, "two drafters with {setting:?}: off by {error}");
            }
        }
    }
}
