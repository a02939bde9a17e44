//! What a draft and its verification cost where a pass takes longer the more rows it has, by measured costs
//! ([`crate::Costs`]).
//!
//! Theorem 3.8 of Leviathan et al. 2023 counts gamma c + 1 passes of one row for an iteration: gamma steps of the draft
//! model and one pass. Here the pass has the time of its width, a drafter may take time whatever it drafts, and a draft
//! model reads the tokens that it has not read yet. Divided into a number of tokens, the total is a speedup.

use crate::Costs;

/// The cost coefficient c: the time of a step of the draft model over that of a pass of one row (Definition 3.7). 0 for
/// a drafter without a network.
pub fn cost_coefficient(costs: &Costs, source: u8, context: usize) -> f64 {
    costs.drafter(source).step / costs.pass(1, context)
}

/// The time of an iteration, a draft and the pass that verifies it, in passes of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IterationCosts {
    /// The pass over the drafted tokens and the pending one.
    pub pass: f64,
    /// All steps of drafting.
    pub drafting: f64,
    /// Reading of tokens that the draft model did not draft itself, or drafted last.
    pub catching_up: f64,
}

impl IterationCosts {
    /// The costs of the drafter `source` at a context of `context` tokens. It drafts a tree of `nodes` nodes (for a
    /// chain: gamma) in `steps` steps (for a tree: its depth), after reading `unread` tokens besides the pending one.
    /// These numbers may be means over many iterations.
    ///
    /// # Panics
    ///
    /// Panics if a number is negative.
    pub fn new(costs: &Costs, source: u8, context: usize, nodes: f64, steps: f64, unread: f64) -> IterationCosts {
        assert!(nodes >= 0.0 && steps >= 0.0 && unread >= 0.0, "{nodes} nodes, {steps} steps, {unread} tokens to read");
        let drafter = costs.drafter(source);
        let one = costs.pass(1, context);
        let (narrow, wide) = (nodes.floor(), nodes.ceil());
        let pass = |nodes: f64| costs.pass(1 + nodes as usize, context);
        IterationCosts {
            pass: (pass(narrow) + (nodes - narrow) * (pass(wide) - pass(narrow))) / one,
            drafting: (drafter.call + steps * drafter.step) / one,
            catching_up: unread * drafter.catch_up / one,
        }
    }

    /// All parts together.
    pub fn total(&self) -> f64 {
        self.pass + self.drafting + self.catching_up
    }

    /// The speedup over plain decoding of iterations that write `tokens` tokens.
    pub fn speedup(&self, tokens: f64) -> f64 {
        tokens / self.total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DrafterCosts;
    use crate::costs::Curve;
    use crate::theory;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} for {expected}");
    }

    fn costs(points: Vec<(usize, f64)>, drafter: DrafterCosts) -> Costs {
        Costs { curves: vec![Curve::new(0, points)], drafters: vec![drafter] }
    }

    #[test]
    fn where_width_is_free_the_speedup_is_that_of_theorem_3_8() {
        let flat = costs(vec![(1, 0.02), (64, 0.02)], DrafterCosts { step: 0.001, ..DrafterCosts::default() });
        near(cost_coefficient(&flat, 0, 100), 0.05);
        near(cost_coefficient(&flat, 1, 100), 0.0);
        for gamma in 0..8 {
            let iteration = IterationCosts::new(&flat, 0, 100, f64::from(gamma), f64::from(gamma), 0.0);
            near(iteration.speedup(theory::expected_tokens(0.8, gamma)), theory::speedup(0.8, gamma, 0.05));
        }
    }

    #[test]
    fn width_overhead_and_reading_are_added() {
        let drafter = DrafterCosts { call: 0.002, step: 0.001, catch_up: 0.0005 };
        let measured = costs(vec![(1, 0.01), (4, 0.013), (8, 0.02)], drafter);
        let iteration = IterationCosts::new(&measured, 0, 100, 3.0, 3.0, 0.5);
        near(iteration.pass, 1.3);
        near(iteration.drafting, 0.5);
        near(iteration.catching_up, 0.025);
        near(iteration.speedup(2.0), 2.0 / 1.825);
        // Means lie between the widths around them; a tree of seven nodes is drafted in fewer steps.
        near(IterationCosts::new(&measured, 0, 100, 0.5, 0.5, 0.0).pass, 1.05);
        let tree = IterationCosts::new(&measured, 0, 100, 7.0, 2.0, 0.0);
        near(tree.pass, 2.0);
        near(tree.drafting, 0.4);
    }
}
