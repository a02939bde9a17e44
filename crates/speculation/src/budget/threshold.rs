//! The budget that ends a branch once the whole of it has become improbable: threshold decoding.
//!
//! A branch continues while the product of its confidences, from the root on, is not below a moving threshold. If all
//! of the chain was right, the threshold is lowered a little, since it was probably too high; if not, it moves half way
//! to the product at the first wrong token, at which the branch should have ended. So it rises while drafts are bad,
//! and falls while the text is predictable. The idea and the constants are from "How to make LLMs go fast" (vgel,
//! 2023), which has chains only; in a tree the chain that was offered first counts.
//!
//! The update is a heuristic; [`super::Confidence`] counts what was right.

use super::{Budget, Limits, Outcome};

/// The initial threshold.
const START: f32 = 0.4;
/// The threshold is lowered by this when everything was accepted.
const BOOST: f32 = 0.1;
/// The threshold stays between these two, so that it can always recover.
const THRESHOLD_MIN: f32 = 0.05;
const THRESHOLD_MAX: f32 = 0.95;

/// A [`Budget`] that ends a branch after a token if the product of all confidences up to it is below a moving
/// threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// Maximum number of nodes; the author of the idea uses 16.
    pub nodes_max: usize,
    threshold: f32,
}

impl Threshold {
    /// Starts with a threshold of 0.4.
    pub fn new(nodes_max: usize) -> Threshold {
        Threshold { nodes_max, threshold: START }
    }

    /// What the product of confidences must reach for a branch to continue.
    pub fn threshold(&self) -> f32 {
        self.threshold
    }
}

impl Budget for Threshold {
    fn limits(&self) -> Limits {
        Limits { nodes_max: self.nodes_max, token_min: 0.0, path_min: self.threshold }
    }

    fn learn(&mut self, outcome: &Outcome<'_>) {
        let (chain, accepted) = outcome.main_chain();
        let moved = match accepted < chain.len() {
            true => {
                let product: f32 = chain[..=accepted].iter().map(|node| outcome.confidence(*node)).product();
                (self.threshold + product) / 2.0
            }
            false => self.threshold - BOOST,
        };
        self.threshold = moved.clamp(THRESHOLD_MIN, THRESHOLD_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::tests::learn;

    #[test]
    fn it_moves_as_in_its_source() {
        let mut budget = Threshold::new(16);
        assert_eq!(budget.limits(), Limits { nodes_max: 16, token_min: 0.0, path_min: 0.4 });
        // The products are 0.75 and 0.375, which is below 0.4: the branch ended there. Both tokens were right.
        learn(&mut budget, &[0.75, 0.5], 2);
        assert!((budget.threshold() - 0.3).abs() < 1e-6);
        // The second token was wrong, at a product of 0.375.
        learn(&mut budget, &[0.75, 0.5, 0.9], 1);
        assert!((budget.threshold() - (0.3 + 0.375) / 2.0).abs() < 1e-6);
        learn(&mut budget, &[0.9], 0);
        assert!((budget.threshold() - (0.3375 + 0.9) / 2.0).abs() < 1e-6);
    }

    #[test]
    fn it_stays_within_its_bounds_and_recovers() {
        let mut budget = Threshold::new(16);
        (0..20).for_each(|_| learn(&mut budget, &[0.9, 0.9], 2));
        assert_eq!(budget.threshold(), THRESHOLD_MIN);
        (0..20).for_each(|_| learn(&mut budget, &[1.0], 0));
        assert_eq!(budget.threshold(), THRESHOLD_MAX);
        learn(&mut budget, &[0.3], 1);
        assert!((budget.threshold() - 0.85).abs() < 1e-6);
    }
}
