//! The budget that depends on success alone: longer after a draft that was right, shorter after one that was not.
//!
//! This is transformers' `heuristic_transient`: every request begins at 5 nodes, so its draft lengths do not depend on
//! earlier requests. (transformers' `heuristic` keeps its number from request to request.)
//!
//! A tree counts as wholly accepted if its longest branch was. That is rare for a wide tree, however often a shorter
//! branch was right, so with tries, whose trees are wide, this budget shrinks to a few nodes. For them use the budget
//! `fixed`.

use super::{Budget, Limits, Outcome};

/// A [`Budget`] that begins at 5 nodes in each request, adds two after a draft that was wholly accepted and removes one
/// after any other.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Heuristic {
    /// Maximum number of nodes.
    pub nodes_max: usize,
    nodes: usize,
}

impl Heuristic {
    /// Starts at 5 nodes (or at `nodes_max`, if that is lower) and stays between 1 and `nodes_max`; with a `nodes_max`
    /// of 0 nothing is drafted.
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
        // Only one branch of a fork can be accepted, so the draft counts as right if its longest branch was.
        self.nodes = match outcome.path.len() == outcome.depth() {
            true => (nodes + 2).min(self.nodes_max),
            false => nodes.saturating_sub(1).max(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::tests::learn;

    #[test]
    fn up_by_two_and_down_by_one_within_its_bounds() {
        let mut budget = Heuristic::new(8);
        assert_eq!(budget.limits(), Limits::nodes(5));
        learn(&mut budget, &[0.5; 5], 5);
        assert_eq!(budget.limits().nodes_max, 7);
        learn(&mut budget, &[0.5; 7], 7);
        assert_eq!(budget.limits().nodes_max, 8);
        for left in [7, 6, 5, 4, 3, 2, 1, 1] {
            learn(&mut budget, &[0.5; 8], 0);
            assert_eq!(budget.limits().nodes_max, left);
        }
    }

    #[test]
    fn a_maximum_below_the_start_and_of_zero_is_kept() {
        let mut small = Heuristic::new(2);
        assert_eq!(small.limits().nodes_max, 2);
        learn(&mut small, &[0.5; 2], 1);
        assert_eq!(small.limits().nodes_max, 1);
        assert_eq!(Heuristic::new(0).limits().nodes_max, 0);
    }
}
