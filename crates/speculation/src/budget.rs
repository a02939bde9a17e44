//! Budgets: how many nodes a tree may have.
//!
//! A budget decides before anything is drafted, from what earlier passes accepted; so it can never change the law of
//! the output. It is asked once per pass and sequence, and told what came of it.
//!
//! Left out: costs. [`Fixed`] and [`Heuristic`] know how often a draft was right and not what a wider pass takes; a
//! budget that weighs both belongs behind the same trait.

use crate::{DraftTree, NodeId};

/// How far one draft may go.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Limits {
    /// Most nodes of the tree; 0 is plain decoding.
    pub nodes_max: usize,
    /// A branch ends behind a token whose own confidence is below this, 0 to 1; 0 never ends it.
    pub token_min: f32,
    /// A branch ends behind a token where the product of all confidences from the root on is below this, 0 to 1.
    pub path_min: f32,
}

impl Limits {
    /// Up to so many nodes, whatever the confidence.
    pub fn nodes(nodes_max: usize) -> Limits {
        Limits { nodes_max, token_min: 0.0, path_min: 0.0 }
    }
}

/// What came of a draft: the tree that was verified, and the nodes that were accepted, from below the root downwards.
#[derive(Copy, Clone, Debug)]
pub struct Outcome<'a> {
    /// The tree; never empty.
    pub tree: &'a DraftTree,
    /// The accepted path.
    pub path: &'a [NodeId],
}

impl Outcome<'_> {
    /// Length of the longest branch.
    pub fn depth(&self) -> usize {
        self.tree.nodes().map(|node| self.tree.depth(node)).max().unwrap_or(0)
    }
}

/// How much to draft.
pub trait Budget {
    /// What the next draft may do.
    fn limits(&self) -> Limits;

    /// Learns from a draft. Not called for passes without one.
    fn learn(&mut self, outcome: &Outcome<'_>);
}

/// Always the same.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Fixed(pub usize);

impl Budget for Fixed {
    fn limits(&self) -> Limits {
        Limits::nodes(self.0)
    }

    fn learn(&mut self, _outcome: &Outcome<'_>) {}
}

/// transformers' `heuristic` schedule: two more after a draft that was accepted whole, one less after any other.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Heuristic {
    /// Never more nodes than this.
    pub nodes_max: usize,
    nodes: usize,
}

impl Heuristic {
    /// Starts at 5 nodes (or the maximum, if less), and stays between 1 and `nodes_max`; a maximum of 0 never drafts.
    pub fn new(nodes_max: usize) -> Heuristic {
        Heuristic { nodes_max, nodes: 5 }
    }
}

impl Budget for Heuristic {
    fn limits(&self) -> Limits {
        Limits::nodes(self.nodes.min(self.nodes_max))
    }

    fn learn(&mut self, outcome: &Outcome<'_>) {
        let nodes = self.nodes.min(self.nodes_max);
        // A fork cannot be accepted whole: the draft was right if its longest branch was.
        self.nodes = match outcome.path.len() == outcome.depth() {
            true => (nodes + 2).min(self.nodes_max),
            false => nodes.saturating_sub(1).max(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Proposal;

    /// A chain of so many nodes of which so many were accepted.
    fn learn(budget: &mut dyn Budget, drafted: usize, accepted: usize) {
        let mut tree = DraftTree::new();
        let mut path: Vec<NodeId> = Vec::new();
        for _ in 0..drafted {
            path.push(tree.offer(path.last().copied(), 1, Proposal::Point, 0));
        }
        budget.learn(&Outcome { tree: &tree, path: &path[..accepted] });
    }

    #[test]
    fn heuristic_goes_up_by_two_and_down_by_one_within_its_bounds() {
        let mut budget = Heuristic::new(8);
        assert_eq!(budget.limits(), Limits::nodes(5));
        learn(&mut budget, 5, 5);
        assert_eq!(budget.limits().nodes_max, 7);
        learn(&mut budget, 7, 7);
        assert_eq!(budget.limits().nodes_max, 8);
        for left in [7, 6, 5, 4, 3, 2, 1, 1] {
            learn(&mut budget, 8, 0);
            assert_eq!(budget.limits().nodes_max, left);
        }
    }

    #[test]
    fn a_maximum_below_the_start_and_of_zero_is_kept() {
        let mut small = Heuristic::new(2);
        assert_eq!(small.limits().nodes_max, 2);
        learn(&mut small, 2, 1);
        assert_eq!(small.limits().nodes_max, 1);
        assert_eq!(Heuristic::new(0).limits().nodes_max, 0);
        let mut fixed = Fixed(4);
        learn(&mut fixed, 4, 0);
        assert_eq!(fixed.limits().nodes_max, 4);
    }
}
