//! Tests of the drafters' statistics: what they learn, from what, and how soon.

use super::*;
use crate::{Law, Proposal};

/// A chain of points of one drafter, each with this acceptance.
fn chain(tokens: &[Token], source: u8, acceptance: f32) -> DraftTree {
    let mut tree = DraftTree::new();
    let mut at = None;
    for token in tokens {
        at = Some(tree.suggest(at, *token, Proposal::Point, source, Evidence::estimate(acceptance)));
    }
    tree
}

fn learn(experience: &mut Experience, tree: &DraftTree, written: &[Token]) -> Vec<Judged> {
    let mut judged = Vec::new();
    experience.learn(&[0], tree, written, |guess| judged.push(guess));
    judged
}

fn acceptance(experience: &Experience, estimate: f32, depth: usize) -> f32 {
    experience.acceptance(0, Evidence::estimate(estimate), depth)
}

#[test]
fn estimates_are_calibrated_to_the_rate_of_right_offers() {
    for (estimate, period) in [(0.5, 1), (0.2, 1), (0.9, 2), (0.5, 4), (0.8, 0), (0.3, 3)] {
        let mut experience = Experience::default();
        assert_eq!(acceptance(&experience, estimate, 1), estimate);
        for i in 0..1000 {
            let right = period > 0 && i % period == 0;
            learn(&mut experience, &chain(&[1], 0, estimate), &[if right { 1 } else { 2 }]);
        }
        let found = if period > 0 { 1.0 / period as f32 } else { 0.0 };
        let corrected = acceptance(&experience, estimate, 1);
        assert!((corrected - found).abs() < 0.06, "{estimate} {period}: {corrected}");
        assert_eq!(experience.acceptance(1, Evidence::estimate(estimate), 1), estimate);
    }
}

#[test]
fn ten_wrong_offers_lower_the_acceptance_of_a_drafter() {
    let mut experience = Experience::default();
    (0..10).for_each(|_| drop(learn(&mut experience, &chain(&[1], 0, 0.9), &[2])));
    assert!(acceptance(&experience, 0.9, 1) < 0.1 && experience.mean_acceptance(0, 1) < 0.25);
    assert!(experience.right_per_ask(0) < 0.15);
    // The acceptance of a drafter that becomes right rises again.
    (0..40).for_each(|_| drop(learn(&mut experience, &chain(&[1], 0, 0.9), &[1])));
    assert!(acceptance(&experience, 0.9, 1) > 0.6 && experience.right_per_ask(0) > 0.6);
}

#[test]
fn classes_and_depths_are_learned_apart() {
    let mut experience = Experience::default();
    for i in 0..400 {
        learn(&mut experience, &chain(&[1], 0, 0.9), &[1]);
        // Offers with a low estimate are never right.
        learn(&mut experience, &chain(&[1], 0, 0.3), &[2]);
        // At depth 2, after a right token, every other offer is right.
        learn(&mut experience, &chain(&[1, 2], 0, 0.9), &[1, if i % 2 == 0 { 2 } else { 3 }]);
    }
    let found = [(0.9, 1), (0.3, 1), (0.9, 2)].map(|(estimate, depth)| acceptance(&experience, estimate, depth));
    assert!(found[0] > 0.9 && found[1] < 0.1 && (found[2] - 0.5).abs() < 0.1, "{found:?}");
    assert!(experience.mean_acceptance(0, 2) < experience.mean_acceptance(0, 1));
}

#[test]
fn all_offers_along_the_written_tokens_are_judged() {
    let mut tree = chain(&[1, 2, 3, 4], 0, 0.5);
    tree.suggest(None, 5, Proposal::Point, 1, Evidence::estimate(0.5));
    let mut judged = Vec::new();
    let mut experience = Experience::default();
    experience.learn(&[0, 1, 2], &tree, &[1, 2, 9], |guess| judged.push((guess.source, guess.right)));
    // 1 and 2 were right, 3 and 5 wrong; 4 was not reached.
    assert_eq!(judged, [(0, true), (1, false), (0, true), (0, false)]);
    let right = [0, 1, 2].map(|source| experience.right_per_ask(source));
    assert!(right[0] > right[1] && right[1] == right[2], "{right:?}");
    assert!(experience.knows(2) && !experience.knows(3));
    assert_eq!(experience.uniqueness(0), 1.0);
    let mut of_two = Experience::default();
    let mut agreed = chain(&[1], 0, 0.5);
    agreed.suggest(None, 1, Proposal::Point, 1, Evidence::estimate(0.5));
    (0..50).for_each(|_| of_two.learn(&[0, 1], &agreed, &[1], |_| {}));
    assert!(of_two.uniqueness(0) < 0.1 && of_two.uniqueness(1) < 0.1);
    // Nothing is learned if no drafter was asked.
    let before = experience.clone();
    experience.learn(&[], &tree, &[], |_| panic!("nothing was written"));
    assert_eq!(experience, before);
}

#[test]
fn a_drawn_token_has_a_higher_acceptance_than_its_q() {
    let mut tree = DraftTree::new();
    let law = tree.add_law(Law::from_pairs([(1, 0.25), (2, 0.75)]));
    tree.suggest(None, 1, Proposal::Drawn(law), 0, Evidence::of_law(0.25, 0.25));
    let evidence = tree.offers()[0].evidence;
    assert_eq!(Experience::default().acceptance(0, evidence, 1), 0.5);
    assert_eq!(Experience::default().acceptance(0, Evidence::of_law(0.25, 1.0), 1), 0.25);
}

#[test]
fn the_speedup_is_tokens_over_time_and_at_least_one() {
    let mut experience = Experience::default();
    assert_eq!(experience.speedup(), 1.0);
    (0..200).for_each(|_| experience.learn_pass(4, 1.25));
    assert!((experience.speedup() - 3.2).abs() < 0.3, "{}", experience.speedup());
    (0..200).for_each(|_| experience.learn_pass(1, 2.0));
    assert_eq!(experience.speedup(), 1.0);
}

#[test]
fn the_length_of_answers_is_learned() {
    let mut experience = Experience::default();
    let before = experience.answer_len();
    (0..30).for_each(|_| experience.learn_answer(4));
    assert!(before > 100.0 && experience.answer_len() < 30.0, "{}", experience.answer_len());
}
