//! Tests of predictions by examples, by random edits of a text, and of the index against a scan.

use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::trial::Trial;
use foretoken_speculation::DraftTree;

const PROMPT: [Token; 2] = [900, 901];

fn opened(prediction: &[Token]) -> PredictionDrafter {
    let mut drafter = PredictionDrafter::default();
    let sequence = Trial::greedy(0).sequence;
    drafter.open(&Opening { prediction, ..Opening::new(sequence, &PROMPT) });
    drafter
}

/// The branches that are proposed after an answer, if the drafter is asked before each of its tokens.
fn tree(drafter: &mut PredictionDrafter, answer: &[Token], nodes_max: usize) -> Vec<Vec<Token>> {
    let mut tokens = PROMPT.to_vec();
    let trial = Trial::greedy(nodes_max).after(PROMPT.len());
    for token in answer {
        trial.draft(drafter, &tokens);
        tokens.push(*token);
    }
    let tree = trial.draft(drafter, &tokens);
    assert!(tree.offers().iter().all(|offer| offer.proposal == Proposal::Point));
    branches(&tree)
}

/// All branches of a tree, in the order of their first nodes.
fn branches(tree: &DraftTree) -> Vec<Vec<Token>> {
    let leaves = tree.nodes().filter(|node| !tree.parents().contains(&Some(*node)));
    let mut branches: Vec<Vec<Token>> = leaves.map(|node| tree.path(node)).collect();
    branches.sort_by_key(|branch| tree.child(None, branch[0]));
    branches
}

/// The first branch that is proposed.
fn next(prediction: &[Token], answer: &[Token], nodes_max: usize) -> Vec<Token> {
    tree(&mut opened(prediction), answer, nodes_max).swap_remove(0)
}

fn numbers(range: std::ops::Range<Token>) -> Vec<Token> {
    range.collect()
}

#[test]
fn the_prediction_is_proposed_as_far_as_there_is_room() {
    let prediction = numbers(0..50);
    assert_eq!(next(&prediction, &[], 4), [0, 1, 2, 3], "before anything is written");
    assert_eq!(next(&prediction, &numbers(0..20), 6), [20, 21, 22, 23, 24, 25]);
    assert_eq!(next(&prediction, &numbers(0..48), 6), [48, 49], "the prediction ends");
    assert!(tree(&mut opened(&prediction), &prediction, 6).is_empty(), "nothing follows its end");
}

#[test]
fn without_a_prediction_nothing_is_proposed_and_nothing_kept() {
    let mut drafter = opened(&[]);
    assert!(drafter.running.is_empty());
    assert!(tree(&mut drafter, &[1, 2, 3], 9).is_empty());
    let mut drafter = opened(&[1, 2]);
    drafter.close(Trial::greedy(0).sequence);
    assert!(drafter.running.is_empty());
}

#[test]
fn the_cursor_is_found_two_tokens_after_a_difference() {
    let prediction = numbers(0..200);
    let after = |edit: &[Token], from: Token| [&numbers(0..40)[..], edit, &numbers(from..from + 2)].concat();
    for (what, edit, from) in [
        ("one replaced", &[777][..], 41),
        ("one replaced by three", &[777, 778, 779], 41),
        ("five replaced by two", &[777, 778], 45),
        ("one left out", &[], 41),
        ("nine left out", &[], 49),
        ("inserted", &[777, 778, 779, 780], 40),
        ("many inserted", &numbers(700..760), 40),
    ] {
        let expected = numbers(from + 2..from + 6);
        assert_eq!(next(&prediction, &after(edit, from), 4), expected, "{what}");
    }
    // It takes three tokens far away, and long after the difference.
    let long = [&numbers(0..40)[..], &numbers(700..780), &numbers(40..43)].concat();
    assert_eq!(next(&prediction, &long, 4), [43, 44, 45, 46]);
    let far = [&numbers(0..40)[..], &numbers(150..152)].concat();
    assert_ne!(next(&prediction, &far, 4), [152, 153, 154, 155]);
    let far = [&numbers(0..40)[..], &numbers(150..153)].concat();
    assert_eq!(next(&prediction, &far, 4), [153, 154, 155, 156]);
    let back = [&numbers(100..140)[..], &numbers(7..10)].concat();
    assert_eq!(next(&prediction, &back, 4), [10, 11, 12, 13], "a part that was moved");
}

#[test]
fn after_one_token_that_differs_each_kind_of_guess_is_a_branch() {
    let prediction = numbers(0..50);
    let first = |last: Token| -> Vec<Token> {
        let answer = [&numbers(0..20)[..], &[last]].concat();
        tree(&mut opened(&prediction), &answer, 16).iter().map(|branch| branch[0]).collect()
    };
    assert_eq!(first(777), [21, 20], "replaced, then inserted");
    assert_eq!(first(25), [26, 21, 20], "20 to 24 were left out, or 20 was replaced by 25, or 25 inserted");
}

#[test]
fn the_kinds_of_differences_are_learned() {
    let prediction = numbers(0..400);
    // A token is inserted after every tenth.
    let answer: Vec<Token> = (0..200).flat_map(|i| if i % 10 == 9 { vec![i, 1000 + i] } else { vec![i] }).collect();
    assert_eq!(tree(&mut opened(&prediction), &answer[..11], 6)[0][0], 11, "at first a replacement is assumed");
    let last = 17 * 11;
    assert!(answer[last - 1] >= 1000);
    assert_eq!(tree(&mut opened(&prediction), &answer[..last], 6)[0][0], answer[last]);
}

#[test]
fn the_estimate_grows_with_tokens_that_agree_and_falls_with_those_that_do_not() {
    let prediction = numbers(0..400);
    let first = |answer: &[Token]| {
        let mut drafter = opened(&prediction);
        let tokens = [&PROMPT[..], answer].concat();
        let tree = Trial::greedy(1).after(PROMPT.len()).draft(&mut drafter, &tokens);
        tree.offers()[0].evidence.acceptance
    };
    let (begun, followed) = (first(&[]), first(&numbers(0..100)));
    assert!(begun < 0.7 && followed > 0.95, "{begun} {followed}");
    let broken: Vec<Token> = (0..100).map(|i| if i % 8 == 7 { 999 } else { i }).collect();
    let found = first(&broken);
    assert!(found < 0.93 && found > 0.6, "{found}");
}

#[test]
fn drafted_tokens_do_not_move_the_cursor() {
    let prediction = numbers(0..50);
    let mut drafter = opened(&prediction);
    let tokens = [&PROMPT[..], &numbers(0..10)].concat();
    let plain = Trial::greedy(3).after(PROMPT.len());
    assert_eq!(plain.draft(&mut drafter, &tokens).tokens(), [10, 11, 12]);
    let before = drafter.running[&plain.sequence].cursor;
    let drafted = Trial { drafted: 2, ..plain.clone() };
    let longer = [&tokens[..], &[10, 11]].concat();
    assert_eq!(drafted.draft(&mut drafter, &longer).tokens(), [12, 13, 14]);
    assert_eq!(drafter.running[&plain.sequence].cursor, before);
    assert_eq!(plain.draft(&mut drafter, &tokens).tokens(), [10, 11, 12]);
}

#[test]
fn a_prediction_of_one_repeated_token_takes_bounded_time() {
    // A scan of all matches would compare 10^10 tokens here.
    let mut drafter = opened(&vec![7; 100_000]);
    let answer: Vec<Token> = (0..100_000).map(|i| if i % 2 == 0 { 7 } else { 8 }).collect();
    let tokens = [&PROMPT[..], &answer].concat();
    let started = Instant::now();
    Trial::greedy(8).after(PROMPT.len()).draft(&mut drafter, &tokens);
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
}

/// A text with tokens left out, inserted and replaced.
fn edited(text: &[Token], edits: &[(usize, u8, usize)]) -> Vec<Token> {
    let mut edited = text.to_vec();
    for (at, kind, len) in edits {
        let at = at % (edited.len() + 1);
        let end = (at + len).min(edited.len());
        let new: Vec<Token> = (0..*len).map(|i| 500 + (at * 7 + i) as Token % 9).collect();
        match kind {
            0 => drop(edited.drain(at..end)),
            1 => drop(edited.splice(at..at, new)),
            _ => drop(edited.splice(at..end, new)),
        }
    }
    edited
}

proptest! {
    #[test]
    fn the_index_finds_what_a_scan_finds(text in prop::collection::vec(0u32..3, 0..60), here in 0usize..70,
        last in prop::collection::vec(0u32..3, 0..6)) {
        let mut expected: Vec<usize> = Vec::new();
        if last.len() >= 3 {
            let ends = |at: &usize| text[..*at].ends_with(&last[last.len() - 3..]);
            let all: Vec<usize> = (3..=text.len()).filter(ends).collect();
            expected.extend(all.iter().filter(|at| **at >= here).take(16));
            expected.extend(all.iter().rev().filter(|at| **at < here).take(8));
        }
        prop_assert_eq!(Index::new(&text).positions(&last, here).collect::<Vec<_>>(), expected);
    }

    /// The cursor does not depend on when the drafter is asked, and nothing panics for any output.
    #[test]
    fn a_cursor_depends_on_the_output_alone(
        text in prop::collection::vec(0u32..40, 0..80),
        edits in prop::collection::vec((0usize..80, 0u8..3, 0usize..6), 0..5),
        nodes_max in 0usize..12,
    ) {
        let answer = edited(&text, &edits);
        let often = tree(&mut opened(&text), &answer, nodes_max);
        let mut seldom = opened(&text);
        let tokens = [&PROMPT[..], &answer].concat();
        let once = Trial::greedy(nodes_max).after(PROMPT.len()).draft(&mut seldom, &tokens);
        prop_assert_eq!(often, branches(&once));
    }

    /// In a text in which no token comes twice, each difference costs a few tokens that are not proposed.
    #[test]
    fn an_edited_text_is_followed(edits in prop::collection::vec((0usize..200, 0u8..3, 1usize..4), 0..6)) {
        let text = numbers(0..200);
        let answer = edited(&text, &edits);
        let mut drafter = opened(&text);
        let trial = Trial::greedy(6).after(PROMPT.len());
        let mut tokens = PROMPT.to_vec();
        let mut missed = 0;
        for token in &answer {
            let tree = trial.draft(&mut drafter, &tokens);
            missed += usize::from(tree.child(None, *token).is_none());
            tokens.push(*token);
        }
        prop_assert!(missed <= 8 * edits.len(), "{missed} of {}, {} edits", answer.len(), edits.len());
    }
}
