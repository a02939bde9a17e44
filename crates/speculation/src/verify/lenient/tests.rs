//! Tests of the greedy form, and of what is accepted on average. The law of the drawn form is computed by enumeration
//! in `testkit/tests/laws/lenience.rs`.

use super::*;
use crate::theory::lenient_acceptance;
use crate::{Context, Proposal, Sampling};

/// The greedy form draws nothing.
struct NoChance;

impl Chance for NoChance {
    fn draw(&mut self, _: &Law, _: usize, address: Address, _: &mut Vec<Token>) {
        panic!("a draw at {address:?}")
    }
    fn coin(&mut self, _: f64, address: Address) -> bool {
        panic!("a coin at {address:?}")
    }
}

fn law() -> Law {
    Law::from_pairs([(3, 0.5), (5, 0.3), (6, 0.3), (8, 0.2)])
}

/// What is written over a tree whose children of the root are these tokens, each with a child 3.
fn written(tokens: &[Token], lenience: f64) -> Vec<Token> {
    let mut tree = DraftTree::new();
    for token in tokens {
        let node = tree.offer(None, *token, Proposal::Point, 0);
        tree.offer(Some(node), 3, Proposal::Point, 0);
    }
    let (mut target, pass) = (|_: Option<NodeId>| law(), Pass { seed: 0, request: 0, start: 1 });
    let verdict = verify_leniently(&tree, &mut target, Lenience::Greedy(lenience), pass, &mut NoChance);
    assert_eq!(verdict.tokens.len(), verdict.path.len() + 1);
    verdict.tokens
}

#[test]
fn greedily_the_most_probable_sibling_that_is_probable_enough_is_accepted() {
    // 0.2 is two fifths of 0.5, and 0.3 is three.
    assert_eq!(written(&[8], 0.39), [8, 3, 3]);
    assert_eq!(written(&[8], 0.41), [3]);
    assert_eq!(written(&[8, 5], 0.1), [5, 3, 3]);
    assert_eq!(written(&[8, 6, 5], 0.1), [6, 3, 3], "of ties the first");
    assert_eq!(written(&[8, 5, 3, 6], 0.1), [3, 3, 3], "the token of plain decoding is never passed over");
    assert_eq!(written(&[9], 0.1), [3], "a token of no probability");
    assert_eq!(written(&[5, 8], 1.0), [3], "without lenience as greedy decoding");
    assert_eq!(written(&[], 0.1), [3]);
}

#[test]
fn greedily_accepted_is_what_the_formula_says() {
    for lenience in [0.1, 0.39, 0.41, 0.59, 0.61, 1.0] {
        for token in [3, 5, 8, 9] {
            let expected = theory::is_leniently_accepted(&law(), token, lenience);
            assert_eq!(written(&[token], lenience)[0] == token, expected, "{token} with {lenience}");
            let of_point = Lenience::Greedy(lenience).overlap(&law(), &Law::point(token));
            assert_eq!(of_point, f64::from(u8::from(expected)));
        }
    }
}

#[test]
fn the_overlap_is_that_of_the_form() {
    let q = Law::from_pairs([(5, 0.25), (8, 0.25), (9, 0.5)]);
    assert_eq!(Lenience::Drawn(1.0).overlap(&law(), &q), law().overlap(&q));
    assert_eq!(Lenience::Drawn(0.25).overlap(&law(), &q), lenient_acceptance(&law(), &q, 0.25));
    assert_eq!(Lenience::Greedy(0.5).overlap(&law(), &q), 0.25);
}

#[test]
fn the_law_before_greedy_has_edits_and_no_filters() {
    let sampling = Sampling {
        temperature: 0.0,
        top_k: 1,
        typical_p: 0.1,
        min_p: 0.9,
        banned_tokens: vec![0],
        ..Sampling::default()
    };
    let before = sampling.before_greedy().law(&[9.0, 1.0, 0.0], &Context::EMPTY);
    assert_eq!(before.tokens(), [1, 2]);
    assert!((before.probability(2) / before.probability(1) - f64::exp(-1.0)).abs() < 1e-12);
}

#[test]
#[should_panic(expected = "a lenience of 0")]
fn a_lenience_of_zero_is_a_mistake() {
    written(&[3], 0.0);
}
