//! Tests of the shapes of trees, of windows, and of the law of the drawn tokens.

use super::*;
use crate::trial::Trial;
use foretoken_speculation::{Promise, Proposal};

#[test]
fn chains_and_trees_fill_the_room_for_nodes() {
    let mut drafter = RandomDrafter { nodes_max: 8, ..RandomDrafter::new(1000) };
    for forks in [false, true] {
        drafter.forks = forks;
        let trees: Vec<_> = (1..60).map(|len| Trial::greedy(6).draft(&mut drafter, &vec![0; len])).collect();
        assert!(trees.iter().all(|tree| tree.len() == 6));
        assert_eq!(trees.iter().all(|tree| tree.is_chain()), !forks);
        if forks {
            let shapes: std::collections::BTreeSet<_> = trees.iter().map(|tree| tree.parents().to_vec()).collect();
            assert!(shapes.len() > 20, "{} shapes", shapes.len());
        }
    }
    assert!(Trial::greedy(0).draft(&mut drafter, &[1]).is_empty());
}

#[test]
fn the_law_is_uniform_over_the_vocabulary_or_a_window_that_reaches_all_of_it() {
    let mut trial = Trial::greedy(3);
    trial.promise = Promise::Rejection;
    let tree = trial.draft(&mut RandomDrafter::new(7), &[1]);
    for offer in tree.offers() {
        let Proposal::Drawn(id) = offer.proposal else { panic!("{offer:?}") };
        assert_eq!(tree.law(id).tokens(), [0, 1, 2, 3, 4, 5, 6]);
        assert!(tree.law(id).probabilities().iter().all(|q| (q - 1.0 / 7.0).abs() < 1e-15));
    }
    let mut narrow = RandomDrafter { support_max: 2, ..RandomDrafter::new(7) };
    let mut seen: std::collections::BTreeSet<Token> = std::collections::BTreeSet::new();
    for len in 1..60 {
        let tree = trial.draft(&mut narrow, &vec![0; len]);
        for offer in tree.offers() {
            let Proposal::Drawn(id) = offer.proposal else { panic!("{offer:?}") };
            assert_eq!(tree.law(id).support_len(), 2);
            seen.extend(tree.law(id).tokens());
        }
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
}

#[test]
fn a_vocabulary_of_one_token_needs_no_chance() {
    let mut trial = Trial::greedy(3);
    trial.promise = Promise::Rejection;
    let tree = trial.draft(&mut RandomDrafter { forks: true, ..RandomDrafter::new(1) }, &[0]);
    assert!(!tree.is_empty() && tree.offers().iter().all(|offer| offer.proposal == Proposal::Point));
    assert!(tree.laws_under(None).all(|(_, law)| law.tokens() == [0]) && tree.laws_under(None).count() == 1);
}
