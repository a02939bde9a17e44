//! Budgets: how many nodes a tree may have.
//!
//! A budget decides before anything is drafted, from what earlier passes accepted; so it can never change the law of
//! the output. It is asked once per pass and sequence, and told what came of it.
//!
//! Left out: costs. [`Fixed`] and [`Heuristic`] know how often a draft was right and not what a wider pass takes; a
//! budget that weighs both belongs behind the same trait.

/// How much to draft.
pub trait Budget {
    /// Most nodes of the next tree; 0 is plain decoding.
    fn nodes(&self) -> usize;

    /// A pass with a draft of so many nodes accepted so many of them. Not called for passes without a draft.
    fn learn(&mut self, drafted: usize, accepted: usize);
}

/// Always the same.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Fixed(pub usize);

impl Budget for Fixed {
    fn nodes(&self) -> usize {
        self.0
    }

    fn learn(&mut self, _drafted: usize, _accepted: usize) {}
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
    fn nodes(&self) -> usize {
        self.nodes.min(self.nodes_max)
    }

    fn learn(&mut self, drafted: usize, accepted: usize) {
        assert!(accepted <= drafted, "{accepted} accepted of {drafted} drafted");
        self.nodes = match accepted == drafted {
            true => (self.nodes() + 2).min(self.nodes_max),
            false => (self.nodes() - 1).max(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heuristic_goes_up_by_two_and_down_by_one_within_its_bounds() {
        let mut budget = Heuristic::new(8);
        assert_eq!(budget.nodes(), 5);
        budget.learn(5, 5);
        assert_eq!(budget.nodes(), 7);
        budget.learn(7, 7);
        assert_eq!(budget.nodes(), 8);
        for left in [7, 6, 5, 4, 3, 2, 1, 1] {
            budget.learn(8, 0);
            assert_eq!(budget.nodes(), left);
        }
    }

    #[test]
    fn a_maximum_below_the_start_and_of_zero_is_kept() {
        let mut small = Heuristic::new(2);
        assert_eq!(small.nodes(), 2);
        small.learn(2, 1);
        assert_eq!(small.nodes(), 1);
        assert_eq!(Heuristic::new(0).nodes(), 0);
        let mut fixed = Fixed(4);
        fixed.learn(4, 0);
        assert_eq!(fixed.nodes(), 4);
    }
}
