//! Expected tokens where every node has its own probability of being accepted: chains whose acceptance changes with the
//! depth, and trees.
//!
//! Equation 1 of Leviathan et al. 2023 is the special case of a chain with the same probability at every node.

use super::check_probability;
use crate::{DraftTree, NodeId};

/// Expected tokens of a pass over a tree: one of the target's own, and for each node the probability that it is
/// accepted, which is the product of `acceptance` over the path to it. `acceptance`: the probability that a node is
/// accepted once its parent is; those of siblings add up to at most 1.
///
/// # Panics
///
/// Panics if an acceptance is not between 0 and 1.
pub fn expected_tokens(tree: &DraftTree, acceptance: impl Fn(NodeId) -> f64) -> f64 {
    let mut reached: Vec<f64> = Vec::with_capacity(tree.len());
    for node in tree.nodes() {
        let own = acceptance(node);
        check_probability("the acceptance of a node", own);
        reached.push(own * tree.parent(node).map_or(1.0, |parent| reached[parent.index()]));
    }
    1.0 + reached.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::super::tests::Dice;
    use super::*;
    use crate::{Law, Pass, Promise, Proposal, theory, verify};

    #[test]
    fn a_chain_with_one_acceptance_is_equation_1() {
        let (mut tree, mut parent) = (DraftTree::new(), None);
        for gamma in 0..6 {
            for alpha in [0.0, 0.3, 1.0] {
                assert!((expected_tokens(&tree, |_| alpha) - theory::expected_tokens(alpha, gamma)).abs() < 1e-12);
            }
            parent = Some(tree.offer(parent, 7, Proposal::Point, 0));
        }
    }

    #[test]
    fn a_tree_gives_what_the_verify_function_writes() {
        // A point is accepted with its probability under p, whatever its siblings are.
        let p = Law::from_pairs([(0, 0.5), (1, 0.3), (2, 0.2)]);
        let mut tree = DraftTree::new();
        let first = tree.offer(None, 0, Proposal::Point, 0);
        tree.offer(None, 2, Proposal::Point, 0);
        let below = tree.offer(Some(first), 1, Proposal::Point, 0);
        tree.offer(Some(first), 0, Proposal::Point, 0);
        tree.offer(Some(below), 0, Proposal::Point, 0);
        let expected = expected_tokens(&tree, |node| p.probability(tree.token(node)));
        assert!((expected - (1.0 + 0.5 + 0.2 + 0.5 * 0.3 + 0.5 * 0.5 + 0.5 * 0.3 * 0.5)).abs() < 1e-12);
        let (mut dice, passes, mut written) = (Dice(1), 40_000, 0);
        for _ in 0..passes {
            let pass = Pass { seed: 0, request: 0, start: 1 };
            let mut target = |_: Option<NodeId>| p.clone();
            written += verify(&tree, &mut target, Promise::Rejection, pass, &mut dice).tokens.len();
        }
        let found = written as f64 / f64::from(passes);
        // Five standard deviations of the mean.
        assert!((found - expected).abs() < 0.03, "{found} for {expected}");
    }

    #[test]
    #[should_panic(expected = "the acceptance of a node 2")]
    fn an_acceptance_above_one_is_a_mistake() {
        let mut tree = DraftTree::new();
        tree.offer(None, 7, Proposal::Point, 0);
        expected_tokens(&tree, |_| 2.0);
    }
}
