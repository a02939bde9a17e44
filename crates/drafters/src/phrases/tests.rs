//! Tests of phrases against a scan of the list, and against examples worked out by hand.

use proptest::prelude::*;

use super::*;
use crate::trial::Trial;

fn paths(drafter: &mut PhrasesDrafter, tokens: &[Token], nodes_max: usize) -> Vec<Vec<Token>> {
    let tree = Trial::greedy(nodes_max).draft(drafter, tokens);
    assert!(tree.offers().iter().all(|offer| offer.proposal == Proposal::Point));
    tree.nodes().map(|node| tree.path(node)).collect()
}

#[test]
fn after_going_comes_to() {
    let mut drafter = PhrasesDrafter::new([vec![7, 8], vec![5, 7, 3, 4], vec![9], vec![]]);
    assert_eq!(paths(&mut drafter, &[1, 7], 9), [vec![8]]);
    assert_eq!(paths(&mut drafter, &[5, 7], 9), [vec![3], vec![3, 4], vec![8]], "the longest beginning first");
    assert_eq!(paths(&mut drafter, &[5, 7, 3], 9), [vec![4]]);
    assert_eq!(
        paths(&mut drafter, &[5, 7, 3, 4], 9),
        [[0; 0]; 0],
        "the phrase is complete, and no phrase begins with 4"
    );
    assert_eq!(paths(&mut drafter, &[9], 9), [[0; 0]; 0]);
    assert_eq!(paths(&mut drafter, &[5, 7], 1), [vec![3]]);
    assert_eq!(paths(&mut PhrasesDrafter::new([]), &[1], 9), [[0; 0]; 0]);
}

#[test]
fn several_continuations_are_all_proposed_and_share_the_probability() {
    let mut drafter = PhrasesDrafter::new([vec![1, 2, 3], vec![1, 2, 4], vec![1, 5]]);
    let tree = Trial::greedy(9).draft(&mut drafter, &[1]);
    let found: Vec<(Vec<Token>, f32)> =
        tree.offers().iter().map(|offer| (tree.path(offer.node), offer.evidence.acceptance)).collect();
    let third = 2.0 / 3.0 / 2.0;
    assert_eq!(found, [(vec![2], 0.25), (vec![2, 3], third), (vec![2, 4], third), (vec![5], 0.25)]);
    let mut limited = Trial::greedy(9);
    limited.limits.path_min = 0.2;
    assert_eq!(limited.draft(&mut drafter, &[1]).tokens(), [2, 3, 4, 5]);
    limited.limits.token_min = 0.3;
    assert_eq!(limited.draft(&mut drafter, &[1]).tokens(), [2, 5], "a branch ends after a token below the limit");
}

proptest! {
    #[test]
    fn the_trie_finds_what_a_scan_of_the_list_finds(
        phrases in proptest::collection::vec(proptest::collection::vec(0u32..3, 0..6), 0..6),
        text in proptest::collection::vec(0u32..3, 1..12),
    ) {
        let mut drafter = PhrasesDrafter::new(phrases.clone());
        let mut expected: Vec<Vec<Token>> = Vec::new();
        for len in (1..=text.len()).rev() {
            for phrase in phrases.iter().filter(|phrase| phrase.len() > len) {
                if text.ends_with(&phrase[..len]) {
                    expected.extend((len + 1..=phrase.len()).map(|end| phrase[len..end].to_vec()));
                }
            }
        }
        expected.sort();
        expected.dedup();
        let mut found = paths(&mut drafter, &text, 1000);
        found.sort();
        prop_assert_eq!(found, expected);
    }
}
