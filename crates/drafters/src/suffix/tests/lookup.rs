//! Tests of prompt lookup against its definition.

use proptest::prelude::*;

use super::*;
use crate::trial::NoChance;
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{DraftTree, Probes, Proposal, Sampling};

const SEQUENCE: SequenceId = SequenceId(4);

fn propose(drafter: &mut SuffixDrafter, tokens: &[Token], nodes_max: usize, tree: &mut DraftTree) {
    let (sampling, mut probes) = (Sampling::default(), Probes::default());
    let ask = Ask { source: 2, ..Ask::new(SEQUENCE, tokens, &sampling, Limits::nodes(nodes_max), tree, &mut probes) };
    drafter.draft(&mut [ask], &mut NoChance);
}

fn proposed(drafter: &mut SuffixDrafter, tokens: &[Token], nodes_max: usize) -> Vec<Token> {
    let mut tree = DraftTree::new();
    propose(drafter, tokens, nodes_max, &mut tree);
    assert!(tree.is_chain());
    tree.tokens().to_vec()
}

/// Prompt lookup, straight from its definition.
fn naive(tokens: &[Token], ngram_min: usize, ngram_max: usize, len: usize) -> Vec<Token> {
    for n in (ngram_min..=ngram_max.min(tokens.len() - 1)).rev() {
        let last = &tokens[tokens.len() - n..];
        for start in (0..tokens.len() - n).rev() {
            if &tokens[start..start + n] == last {
                let mut text = tokens.to_vec();
                for i in 0..len {
                    text.push(text[start + n + i]);
                }
                return text.split_off(tokens.len());
            }
        }
    }
    Vec::new()
}

#[test]
fn the_longest_match_wins_and_then_the_latest() {
    let mut drafter = SuffixDrafter::lookup_chain(1, 2, 3);
    let text = [1, 2, 7, 7, 1, 2, 8, 8, 3, 2, 9, 9, 1, 2];
    drafter.open(&Opening::new(SEQUENCE, &text));
    assert_eq!(proposed(&mut drafter, &text, 9), [8, 8, 3]);
    assert_eq!(proposed(&mut drafter, &text, 2), [8, 8]);
    assert_eq!(proposed(&mut drafter, &text, 0), []);
}

#[test]
fn the_tokens_of_a_chain_are_draws_from_point_masses() {
    let text = [1, 2, 7, 8, 1, 2, 9, 8, 1, 2];
    let laws = |mut drafter: SuffixDrafter| {
        let mut tree = DraftTree::new();
        drafter.open(&Opening::new(SEQUENCE, &text));
        propose(&mut drafter, &text, 3, &mut tree);
        let under = |parent| tree.laws_under(parent).map(|(source, law)| (source, law.clone())).collect::<Vec<_>>();
        (under(None), tree.main_chain().first().map(|first| under(Some(*first))))
    };
    let (first, second) = laws(SuffixDrafter::lookup_chain(1, 2, 3));
    assert_eq!((first, second), (vec![(2, Law::point(9))], Some(vec![(2, Law::point(8))])));
    // Of several alternatives none is drawn with certainty.
    assert_eq!(laws(SuffixDrafter::lookup(1, 2, 3)).0, []);
}

#[test]
fn a_source_is_matched_as_if_it_had_been_written() {
    let mut drafter = SuffixDrafter::lookup_chain(1, 3, 3);
    drafter.open(&Opening { source: &[4, 5, 6, 7, 8, 9], ..Opening::new(SEQUENCE, &[0]) });
    assert_eq!(proposed(&mut drafter, &[0, 5, 6], 9), [7, 8, 9]);
    assert_eq!(proposed(&mut drafter, &[0, 5, 6, 9], 9), [], "nothing follows its end");
    drafter.close(SEQUENCE);
    drafter.open(&Opening::new(SEQUENCE, &[0]));
    assert_eq!(proposed(&mut drafter, &[0, 5, 6], 9), []);
}

#[test]
fn the_earliest_occurrence_comes_first_if_asked_to() {
    let text = [1, 2, 7, 1, 2, 8, 2, 9, 1, 2];
    let mut drafter = SuffixDrafter { first: true, ..SuffixDrafter::lookup_chain(1, 2, 2) };
    drafter.open(&Opening::new(SEQUENCE, &text));
    assert_eq!(proposed(&mut drafter, &text, 9), [7, 1]);
    assert_eq!(proposed(&mut SuffixDrafter { candidates: 0, ..drafter }, &text, 9), []);
}

#[test]
fn occurrences_that_differ_make_a_tree_and_equal_ones_share_nodes() {
    let text = [1, 2, 7, 4, 1, 2, 7, 5, 1, 2, 8, 6, 1, 2];
    let mut drafter = SuffixDrafter { window: 0, ..SuffixDrafter::lookup(2, 2, 30) };
    drafter.open(&Opening::new(SEQUENCE, &text));
    let mut tree = DraftTree::new();
    propose(&mut drafter, &text, 30, &mut tree);
    let seven = tree.child(None, 7).expect("two votes");
    let eight = tree.child(None, 8).expect("one vote");
    assert_eq!((seven.index(), tree.acceptance(seven) > tree.acceptance(eight)), (0, true));
    assert!(tree.child(Some(seven), 4).is_some() && tree.child(Some(seven), 5).is_some());
    assert!(tree.child(Some(eight), 6).is_some());
    drafter.gain_min = tree.acceptance(eight) + 0.01;
    let mut sure = DraftTree::new();
    propose(&mut drafter, &text, 30, &mut sure);
    assert_eq!(sure.child(None, 8), None);
}

#[test]
fn where_nothing_matches_the_most_frequent_tokens_are_proposed() {
    let text = [5, 6, 5, 6, 5, 6, 7, 9];
    let mut drafter = SuffixDrafter { window: 6, ..SuffixDrafter::lookup(1, 3, 3) };
    drafter.open(&Opening::new(SEQUENCE, &text));
    let mut tree = DraftTree::new();
    propose(&mut drafter, &text, 3, &mut tree);
    // Among the last six, 6 and 5 occur twice and the others once; and 5 follows 6.
    assert_eq!(tree.tokens()[0], 6);
    assert_eq!(tree.len(), 3);
}

#[test]
fn a_branch_ends_after_the_token_that_falls_below_the_limits() {
    let text = [1, 2, 3, 4, 9, 9, 1];
    let mut drafter = SuffixDrafter { window: 0, ..SuffixDrafter::lookup(1, 3, 6) };
    drafter.open(&Opening::new(SEQUENCE, &text));
    for (token_min, path_min, len) in [(0.0, 0.0, 6), (0.4, 0.0, 1), (0.0, 0.3, 2)] {
        let (mut tree, mut probes, sampling) = (DraftTree::new(), Probes::default(), Sampling::default());
        let limits = Limits { nodes_max: 9, token_min, path_min };
        let ask = Ask::new(SEQUENCE, &text, &sampling, limits, &mut tree, &mut probes);
        drafter.draft(&mut [ask], &mut NoChance);
        assert_eq!(tree.len(), len, "{token_min} {path_min}");
    }
}

#[test]
fn a_copy_continues_into_itself() {
    let mut drafter = SuffixDrafter::lookup_chain(1, 3, 10);
    drafter.open(&Opening::new(SEQUENCE, &[5, 6, 5, 6, 5]));
    assert_eq!(proposed(&mut drafter, &[5, 6, 5, 6, 5], 5), [6, 5, 6, 5, 6]);
}

#[test]
fn it_adds_to_a_tree_and_stops_where_that_is_full() {
    let mut drafter = SuffixDrafter::lookup_chain(1, 3, 10);
    drafter.open(&Opening::new(SEQUENCE, &[5, 6, 5]));
    let mut tree = DraftTree::new();
    tree.offer(None, 6, Proposal::Point, 0);
    propose(&mut drafter, &[5, 6, 5], 1, &mut tree);
    assert_eq!((tree.len(), tree.offers().len()), (1, 2), "a second offer of a node takes no room");
    propose(&mut drafter, &[5, 6, 5], 2, &mut tree);
    assert_eq!((tree.tokens(), tree.offers().len()), (&[6, 5][..], 4));
}

#[test]
fn new_tokens_have_no_match_and_a_closed_sequence_is_forgotten() {
    let mut drafter = SuffixDrafter::lookup_chain(1, 3, 10);
    drafter.open(&Opening::new(SEQUENCE, &[1]));
    assert_eq!(proposed(&mut drafter, &[1], 5), []);
    assert_eq!(proposed(&mut drafter, &[1, 2, 3], 5), []);
    drafter.close(SEQUENCE);
    drafter.open(&Opening::new(SEQUENCE, &[3]));
    assert_eq!(drafter.running[&SEQUENCE].history.len(), 1);
}

proptest! {
    /// The sequence grows at random; the proposals always agree with a naive scan.
    #[test]
    fn proposals_are_those_of_a_naive_scan(
        more in prop::collection::vec(prop::collection::vec(0..3_u32, 1..12), 1..12),
        ngram_min in 1..3_usize,
        longer in 0..3_usize,
    ) {
        let ngram_max = ngram_min + longer;
        let mut drafter = SuffixDrafter::lookup_chain(ngram_min, ngram_max, 6);
        let mut text: Vec<Token> = vec![0];
        drafter.open(&Opening::new(SEQUENCE, &text));
        for new in more {
            text.extend(new);
            prop_assert_eq!(proposed(&mut drafter, &text, 10), naive(&text, ngram_min, ngram_max, 6));
        }
    }
}
