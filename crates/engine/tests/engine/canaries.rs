//! Canary tests: executors with a fault, each of which the conformance suite must detect.

use foretoken_testkit::conform::{Setting, cases, drafters, exact, selections};
use foretoken_testkit::toy::Fault;

/// Whether the suite detects the fault with at least one of its selections of drafters.
fn is_caught(fault: Fault) -> bool {
    let all = drafters();
    let remote_logits = fault == Fault::SumOfLargestAlone;
    let states = matches!(fault, Fault::GuessPassed | Fault::PassedTwice);
    let ranks = matches!(fault, Fault::RankNotReached | Fault::PartsSwapped);
    let has_encoder = fault == Fault::RowsOfLongerSource;
    let setting = Setting { fault, batch: 4, remote_logits, states, ranks, has_encoder, ..Setting::plain() };
    let fails = |target, drafters: &[_]| exact(&cases(target), &setting, drafters).is_err();
    let targets = [(1, 6, 1), (2, 11, 2), (3, 5, 6)];
    selections(&all).iter().any(|drafters| targets.iter().any(|target| fails(*target, drafters)))
}

#[test]
fn the_suite_passes_without_a_fault() {
    assert!(!is_caught(Fault::None));
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
