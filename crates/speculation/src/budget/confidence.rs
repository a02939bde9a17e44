//! The budget that ends a branch after a token of low confidence, and learns what is low.
//!
//! A branch ends after the first token whose confidence is below a threshold (transformers'
//! `assistant_confidence_threshold`). The threshold is tuned while generating, as transformers' dynamic speculation
//! does (Mamou et al. 2024): verified tokens are kept as pairs of confidence and outcome, and of all thresholds that
//! the pairs distinguish the one with the lowest cost is taken. An accepted token that the threshold would not have
//! drafted costs three times as much as a rejected token that it would have drafted. Confidence is the drafter's raw
//! probability, or the estimate of a drafter without a law.
//!
//! Only the latest pairs are kept, so memory and work do not grow with the output; transformers keeps all of them. The
//! constants 3 and 0.4 are chosen, not measured.

use std::collections::VecDeque;

use super::{Budget, Limits, Outcome};

/// The initial threshold.
const START: f32 = 0.4;
/// Maximum number of pairs that are kept.
const WINDOW: usize = 256;
/// The threshold is tuned once there are more pairs than this, and both outcomes are among them.
const PAIRS_MIN: usize = 5;
/// The cost of not drafting a token that would be accepted, relative to drafting one that is rejected.
const MISS_COST: f64 = 3.0;

/// A [`Budget`] that ends a branch after a token whose confidence is below a threshold that it learns.
#[derive(Clone, Debug, PartialEq)]
pub struct Confidence {
    /// Maximum number of nodes.
    pub nodes_max: usize,
    threshold: f32,
    /// Verified tokens, the oldest first: confidence, and whether it was accepted.
    pairs: VecDeque<(f32, bool)>,
    /// The pairs sorted by confidence; kept to reuse its memory.
    ranked: Vec<(f32, bool)>,
}

impl Confidence {
    /// Starts with a threshold of 0.4.
    pub fn new(nodes_max: usize) -> Confidence {
        Confidence { nodes_max, threshold: START, pairs: VecDeque::new(), ranked: Vec::new() }
    }

    /// The confidence that a token must have for its branch to continue.
    pub fn threshold(&self) -> f32 {
        self.threshold
    }

    fn note(&mut self, confidence: f32, accepted: bool) {
        if self.pairs.len() == WINDOW {
            self.pairs.pop_front();
        }
        self.pairs.push_back((confidence, accepted));
    }

    /// The threshold with the lowest cost, the highest of ties; `None` while there are too few pairs.
    fn tuned(&mut self) -> Option<f32> {
        let good = self.pairs.iter().filter(|(_, accepted)| *accepted).count();
        let bad = self.pairs.len() - good;
        if self.pairs.len() <= PAIRS_MIN || good == 0 || bad == 0 {
            return None;
        }
        self.ranked.clear();
        self.ranked.extend(&self.pairs);
        self.ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let (mut passed_good, mut passed_bad) = (0, 0);
        let mut best = (f64::INFINITY, None);
        for (i, &(confidence, accepted)) in self.ranked.iter().enumerate() {
            passed_good += usize::from(accepted);
            passed_bad += usize::from(!accepted);
            if self.ranked.get(i + 1).is_some_and(|next| next.0 == confidence) {
                continue; // of tokens with equal confidence a threshold lets all pass, or none
            }
            let missed = (good - passed_good) as f64 / good as f64;
            let cost = passed_bad as f64 / bad as f64 + MISS_COST * missed;
            if cost < best.0 {
                best = (cost, Some(confidence));
            }
        }
        best.1
    }
}

impl Budget for Confidence {
    fn limits(&self) -> Limits {
        Limits { nodes_max: self.nodes_max, token_min: self.threshold, path_min: 0.0 }
    }

    /// Learns from the accepted path and from the first rejected token of the chain that was offered first.
    fn learn(&mut self, outcome: &Outcome<'_>) {
        for node in outcome.path {
            self.note(outcome.confidence(*node), true);
        }
        let (chain, accepted) = outcome.main_chain();
        if let Some(rejected) = chain.get(accepted) {
            self.note(outcome.confidence(*rejected), false);
        }
        self.threshold = self.tuned().unwrap_or(self.threshold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::tests::learn;
    use proptest::prelude::*;

    #[test]
    fn it_waits_for_more_than_five_pairs_and_for_both_outcomes() {
        let mut budget = Confidence::new(9);
        assert_eq!(budget.limits(), Limits { nodes_max: 9, token_min: 0.4, path_min: 0.0 });
        learn(&mut budget, &[0.9, 0.8, 0.7, 0.6], 4);
        learn(&mut budget, &[0.2], 0);
        assert_eq!(budget.threshold(), 0.4);
        learn(&mut budget, &[0.9], 1);
        assert_eq!(budget.threshold(), 0.6, "right above 0.6, wrong below");
        let mut lucky = Confidence::new(9);
        (0..20).for_each(|_| learn(&mut lucky, &[0.9, 0.3], 2));
        assert_eq!(lucky.threshold(), 0.4, "nothing was ever rejected");
    }

    #[test]
    fn tokens_after_the_first_rejected_one_are_not_learned() {
        let mut budget = Confidence::new(9);
        learn(&mut budget, &[0.9, 0.1, 0.8, 0.7], 1);
        assert_eq!(budget.pairs, [(0.9, true), (0.1, false)]);
    }

    #[test]
    fn pairs_outside_the_window_are_forgotten() {
        let mut budget = Confidence::new(9);
        (0..WINDOW).for_each(|_| learn(&mut budget, &[0.9, 0.5], 1));
        assert_eq!(budget.threshold(), 0.9);
        (0..WINDOW).for_each(|_| learn(&mut budget, &[0.5, 0.2], 1));
        assert_eq!((budget.threshold(), budget.pairs.len()), (0.5, WINDOW));
    }

    proptest! {
        /// Compares the learned threshold with the cost of every threshold, computed from its definition.
        #[test]
        fn no_threshold_costs_less(drafts in prop::collection::vec((0..9_u8, any::<bool>()), 1..60)) {
            let mut budget = Confidence::new(9);
            for (confidence, accepted) in &drafts {
                learn(&mut budget, &[f32::from(*confidence) / 8.0], usize::from(*accepted));
            }
            let rate = |wanted: bool, passes: &dyn Fn(f32) -> bool| {
                let chosen: Vec<_> = drafts.iter().filter(|(_, accepted)| *accepted == wanted).collect();
                let passed = chosen.iter().filter(|(confidence, _)| passes(f32::from(*confidence) / 8.0)).count();
                passed as f64 / chosen.len() as f64
            };
            let cost = |threshold: f32| rate(false, &|c| c >= threshold) + 3.0 * rate(true, &|c| c < threshold);
            let both = drafts.iter().any(|draft| draft.1) && drafts.iter().any(|draft| !draft.1);
            if drafts.len() > 5 && both {
                let found = cost(budget.threshold());
                (0..9).for_each(|i| assert!(found <= cost(i as f32 / 8.0) + 1e-12, "{i}: {found}"));
            } else {
                prop_assert_eq!(budget.threshold(), 0.4);
            }
        }
    }
}
