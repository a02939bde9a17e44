//! Canary tests: executors with a fault, each of which the conformance suite must detect.

use foretoken_testkit::conform::{Setting, cases, drafters, exact, selections};
use foretoken_testkit::toy::Fault;

/// The seed, the tokens and the order of the targets.
const TARGETS: [(u64, usize, usize); 3] = [(1, 6, 1), (2, 11, 2), (3, 5, 6)];

/// Whether the suite detects the fault with at least one of its selections of drafters.
fn is_caught(fault: Fault) -> bool {
    let (all, setting) = (drafters(), setting(fault));
    let fails = |target, drafters: &[_]| exact(&cases(target), &setting, drafters).is_err();
    selections(&all).iter().any(|drafters| TARGETS.iter().any(|target| fails(*target, drafters)))
}

/// The setting in which an executor with this fault gives wrong texts.
fn setting(fault: Fault) -> Setting {
    let remote_logits = fault == Fault::SumOfLargestAlone;
    let states = matches!(fault, Fault::GuessPassed | Fault::PassedTwice);
    let ranks = matches!(fault, Fault::RankNotReached | Fault::PartsSwapped);
    let has_encoder = fault == Fault::RowsOfLongerSource;
    Setting { fault, batch: 4, remote_logits, states, ranks, has_encoder, ..Setting::plain() }
}

#[test]
fn the_suite_passes_without_a_fault() {
    let all = drafters();
    // Each selection with one target and the setting of one fault in turn; `conformance.rs` has more of them.
    let faults =
        [Fault::None, Fault::SumOfLargestAlone, Fault::PassedTwice, Fault::PartsSwapped, Fault::RowsOfLongerSource];
    for (i, drafters) in selections(&all).into_iter().enumerate() {
        let setting = Setting { fault: Fault::None, ..setting(faults[i % faults.len()]) };
        let passed = exact(&cases(TARGETS[i % TARGETS.len()]), &setting, &drafters);
        passed.unwrap_or_else(|message| panic!("{message}"));
    }
}

#[test]
fn rows_that_are_not_moved_are_caught() {
    assert!(is_caught(Fault::RowsNotMoved));
}

#[test]
fn rows_that_see_their_siblings_are_caught() {
    assert!(is_caught(Fault::SiblingsSeen));
}

#[test]
fn rows_that_depend_on_the_rest_of_the_batch_are_caught() {
    assert!(is_caught(Fault::RowsDependOnBatch));
}

#[test]
fn a_forgotten_page_is_caught() {
    assert!(is_caught(Fault::PageForgotten));
}

#[test]
fn largest_logits_without_the_sum_of_the_row_are_caught() {
    assert!(is_caught(Fault::SumOfLargestAlone));
}

#[test]
fn hidden_rows_of_the_pass_before_are_caught() {
    assert!(is_caught(Fault::StaleHiddenRows));
}

#[test]
fn a_state_that_passes_drafted_tokens_is_caught() {
    assert!(is_caught(Fault::GuessPassed));
}

#[test]
fn a_state_that_passes_a_repeated_pass_twice_is_caught() {
    assert!(is_caught(Fault::PassedTwice));
}

#[test]
fn a_rank_that_misses_cache_edits_is_caught() {
    assert!(is_caught(Fault::RankNotReached));
}

#[test]
fn parts_of_ranks_that_are_gathered_in_the_wrong_order_are_caught() {
    assert!(is_caught(Fault::PartsSwapped));
}

#[test]
fn rows_of_a_longer_source_are_caught() {
    assert!(is_caught(Fault::RowsOfLongerSource));
}
