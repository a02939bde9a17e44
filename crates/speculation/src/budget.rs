//! Budgets: how many nodes a tree may have.
//!
//! A budget decides before anything is drafted, from what earlier passes accepted; so it can never change the law of
//! the output. In every pass and for each sequence it gives its limits, and then it learns the outcome.
//!
//! Each budget has its file: [`Fixed`]; [`Heuristic`] (longer after a success); [`Confidence`] (a branch ends after a
//! token whose confidence is low, and what counts as low is learned); [`Threshold`] (a branch ends once the product of
//! its confidences is low).
//!
//! These budgets know how often a draft was right, but not how long a wider pass takes. The setting `auto`, which
//! weighs both, is not a budget but the choice among all candidates of a pass ([`crate::choose`]).

mod confidence;
mod fixed;
mod heuristic;
mod threshold;

pub use confidence::Confidence;
pub use fixed::Fixed;
pub use heuristic::Heuristic;
pub use threshold::Threshold;

use crate::{DraftTree, NodeId};

/// The limits of one draft.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Limits {
    /// Maximum number of nodes of the tree; 0 is plain decoding.
    pub nodes_max: usize,
    /// A branch ends after a token whose own confidence is below this, 0 to 1; 0 never ends it.
    pub token_min: f32,
    /// A branch ends after a token if the product of all confidences from the root to it is below this, 0 to 1.
    pub path_min: f32,
}

impl Limits {
    /// Limits of up to `nodes_max` nodes, whatever the confidence.
    pub fn nodes(nodes_max: usize) -> Limits {
        Limits { nodes_max, token_min: 0.0, path_min: 0.0 }
    }
}

/// The outcome of a draft: the tree that was verified, and its accepted nodes.
#[derive(Copy, Clone, Debug)]
pub struct Outcome<'a> {
    /// The tree; never empty.
    pub tree: &'a DraftTree,
    /// The accepted nodes, beginning with a child of the root, each the parent of the next.
    pub path: &'a [NodeId],
}

impl Outcome<'_> {
    /// Length of the longest branch.
    pub fn depth(&self) -> usize {
        self.tree.nodes().map(|node| self.tree.depth(node)).max().unwrap_or(0)
    }

    /// The chain that was offered first, and how many of its nodes were accepted; the next of them, if any, was
    /// rejected.
    pub fn main_chain(&self) -> (Vec<NodeId>, usize) {
        let chain = self.tree.main_chain();
        let accepted = chain.iter().zip(self.path).take_while(|(a, b)| a == b).count();
        (chain, accepted)
    }

    /// The confidence of the drafter that offered a node first, 0 to 1: its law's probability, or its estimate.
    pub fn confidence(&self, node: NodeId) -> f32 {
        self.tree.offers_of(node).next().map_or(0.0, |offer| offer.evidence.clamped_acceptance())
    }
}

/// A rule that decides how much to draft.
pub trait Budget: Send {
    /// The limits of the next draft.
    fn limits(&self) -> Limits;

    /// Learns from a draft. It is not called for passes without a draft.
    fn learn(&mut self, outcome: &Outcome<'_>);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Evidence, Proposal};

    /// Lets a budget learn from a chain with these confidences whose first `accepted` tokens were accepted.
    pub(super) fn learn(budget: &mut dyn Budget, confidences: &[f32], accepted: usize) {
        let mut tree = DraftTree::new();
        let mut path: Vec<NodeId> = Vec::new();
        for confidence in confidences {
            let evidence = Evidence::of_law(*confidence, 1.0);
            path.push(tree.suggest(path.last().copied(), 1, Proposal::Point, 0, evidence));
        }
        budget.learn(&Outcome { tree: &tree, path: &path[..accepted] });
    }

    #[test]
    fn the_main_chain_ends_where_another_branch_was_accepted() {
        let mut tree = DraftTree::new();
        let offer = |tree: &mut DraftTree, parent, token, acceptance| {
            tree.suggest(parent, token, Proposal::Point, 0, Evidence::estimate(acceptance))
        };
        let first = offer(&mut tree, None, 1, 0.9);
        let second = offer(&mut tree, Some(first), 2, 0.8);
        let sibling = offer(&mut tree, Some(first), 3, 0.1);
        let below = offer(&mut tree, Some(sibling), 4, 0.7);
        offer(&mut tree, Some(first), 2, 0.3);
        let outcome = Outcome { tree: &tree, path: &[first, sibling, below] };
        assert_eq!(outcome.main_chain(), (vec![first, second], 1));
        assert_eq!((outcome.confidence(second), outcome.confidence(sibling)), (0.8, 0.1));
        assert_eq!(outcome.depth(), 3);
        assert_eq!(Outcome { tree: &tree, path: &[first, second] }.main_chain().1, 2);
    }

    #[test]
    fn a_fixed_budget_does_not_learn() {
        let mut fixed = Fixed(4);
        learn(&mut fixed, &[0.5; 4], 0);
        assert_eq!(fixed.limits(), Limits::nodes(4));
    }
}
