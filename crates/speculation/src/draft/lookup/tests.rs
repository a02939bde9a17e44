//! The index against a naive scan, and its way back against a shadow that never went further.

use proptest::prelude::*;

use super::*;
use crate::budget::Limits;
use crate::{Address, DraftSettings, DraftTree, Law, Probes, Promise, Sampling};

/// No chance is needed, so none is given.
struct NoChance;

impl Chance for NoChance {
    fn draw(&mut self, _law: &Law, _count: usize, address: Address, _out: &mut Vec<Token>) {
        panic!("a draw at {address:?}");
    }
    fn coin(&mut self, _probability: f64, address: Address) -> bool {
        panic!("a coin at {address:?}");
    }
}

const SEQUENCE: SequenceId = SequenceId(4);

fn propose(drafter: &mut LookupDrafter, tokens: &[Token], nodes_max: usize, tree: &mut DraftTree) {
    let sampling = Sampling::default();
    let ask = Ask {
        sequence: SEQUENCE,
        tokens,
        prompt_len: 1,
        sampling: &sampling,
        settings: DraftSettings::default(),
        promise: Promise::Exact,
        seed: 0,
        limits: Limits::nodes(nodes_max),
        tree,
        probes: &mut Probes::default(),
        source: 2,
    };
    drafter.draft(&mut [ask], &mut NoChance);
}

fn proposed(drafter: &mut LookupDrafter, tokens: &[Token], nodes_max: usize) -> Vec<Token> {
    let mut tree = DraftTree::new();
    propose(drafter, tokens, nodes_max, &mut tree);
    assert!(tree.is_chain());
    tree.tokens().to_vec()
}

/// Prompt lookup in the words of its definition.
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
    let mut drafter = LookupDrafter::new(1, 2, 3);
    let text = [1, 2, 7, 7, 1, 2, 8, 8, 3, 2, 9, 9, 1, 2];
    drafter.open(SEQUENCE, &text, Tenant(0));
    assert_eq!(proposed(&mut drafter, &text, 9), [8, 8, 3]);
    assert_eq!(proposed(&mut drafter, &text, 2), [8, 8]);
    assert_eq!(proposed(&mut drafter, &text, 0), []);
    drafter.keep(SEQUENCE, 10);
    assert_eq!(proposed(&mut drafter, &text[..10], 9), [8, 8, 3]);
}

#[test]
fn a_copy_runs_on_into_itself() {
    let mut drafter = LookupDrafter::default();
    drafter.open(SEQUENCE, &[5, 6, 5, 6, 5], Tenant(0));
    assert_eq!(proposed(&mut drafter, &[5, 6, 5, 6, 5], 5), [6, 5, 6, 5, 6]);
}

#[test]
fn it_joins_a_tree_and_stops_where_that_is_full() {
    let mut drafter = LookupDrafter::default();
    drafter.open(SEQUENCE, &[5, 6, 5], Tenant(0));
    let mut tree = DraftTree::new();
    tree.offer(None, 6, Proposal::Point, 0);
    propose(&mut drafter, &[5, 6, 5], 1, &mut tree);
    assert_eq!((tree.len(), tree.offers().len()), (1, 1));
    propose(&mut drafter, &[5, 6, 5], 2, &mut tree);
    assert_eq!((tree.tokens(), tree.offers().len()), (&[6, 5][..], 3));
}

#[test]
fn new_text_has_no_match_and_a_closed_sequence_is_forgotten() {
    let mut drafter = LookupDrafter::default();
    drafter.open(SEQUENCE, &[1], Tenant(0));
    assert_eq!(proposed(&mut drafter, &[1], 5), []);
    assert_eq!(proposed(&mut drafter, &[1, 2, 3], 5), []);
    drafter.close(SEQUENCE);
    drafter.open(SEQUENCE, &[3], Tenant(0));
    assert_eq!(drafter.indexes[&SEQUENCE].len, 1);
}

proptest! {
    /// Grows and goes back at random; always agrees with the naive scan, and equals an index that never went further.
    #[test]
    fn the_index_is_the_naive_scan_at_every_length(
        edits in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(0..3_u32, 1..12)), 1..12),
        ngram_min in 1..3_usize,
        more in 0..3_usize,
    ) {
        let ngram_max = ngram_min + more;
        let mut drafter = LookupDrafter::new(ngram_min, ngram_max, 6);
        let mut text: Vec<Token> = vec![0];
        drafter.open(SEQUENCE, &text, Tenant(0));
        for (back, new) in edits {
            let len = back.index(text.len()) + 1;
            text.truncate(len);
            drafter.keep(SEQUENCE, len);
            text.extend(new);
            prop_assert_eq!(proposed(&mut drafter, &text, 10), naive(&text, ngram_min, ngram_max, 6));
            let mut shadow = Index::new(ngram_min, ngram_max);
            shadow.extend(&text);
            prop_assert_eq!(&drafter.indexes[&SEQUENCE], &shadow);
        }
    }
}
