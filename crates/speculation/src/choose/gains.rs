//! Gains: the estimated probability that each candidate is accepted.
//!
//! The gain of a node is the product of the estimated acceptances along its path. Each acceptance is made of its
//! drafters' estimates, calibrated by how often they were right ([`Experience`]): estimates for the same token add up,
//! and those for other tokens under the same parent lower it.

use crate::experience::Siblings;
use crate::{DraftTree, Experience, NodeId};

/// For each node the estimated probability that verification accepts it.
pub(super) fn gains(candidates: &DraftTree, experience: &Experience) -> Vec<f32> {
    let mut gains: Vec<f32> = vec![0.0; candidates.len()];
    let mut siblings = Siblings::default();
    let mut judge = |parent: Option<NodeId>, gains: &mut [f32]| {
        siblings.weigh(candidates, parent, experience);
        let depth = 1 + parent.map_or(0, |parent| candidates.depth(parent));
        for weighed in &siblings.tokens {
            let calibrated = |agreement| experience.combined_acceptance(agreement, weighed.weight, depth);
            gains[weighed.node.index()] = weighed.agreement.map_or(weighed.weight, calibrated).min(1.0);
        }
    };
    judge(None, &mut gains);
    for node in candidates.nodes() {
        if let Some(parent) = candidates.parent(node) {
            gains[node.index()] *= gains[parent.index()];
        }
        judge(Some(node), &mut gains);
    }
    gains
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Evidence, Proposal};

    #[test]
    fn proposals_of_other_tokens_lower_a_gain() {
        let mut candidates = DraftTree::new();
        let mut propose = |parent, token, source, acceptance| {
            candidates.suggest(parent, token, Proposal::Point, source, Evidence::estimate(acceptance))
        };
        let sure = propose(None, 1, 0, 0.9);
        let rival = propose(None, 2, 1, 0.6);
        let agreed = propose(Some(sure), 3, 0, 0.5);
        propose(Some(sure), 3, 1, 0.5);
        let gains = gains(&candidates, &Experience::default());
        // The weights are 0.9 * 0.4 and 0.6 * 0.1, and 0.1 * 0.4 for neither; below, 0.5 + 0.5, and 0.5 * 0.5 for
        // neither.
        let sure_gain = 0.36 / 0.46;
        for (node, expected) in [(sure, sure_gain), (rival, 0.06 / 0.46), (agreed, sure_gain / 1.25)] {
            assert!((gains[node.index()] - expected).abs() < 1e-6, "{gains:?}");
        }
    }

    #[test]
    fn gains_of_one_drafters_siblings_sum_to_at_most_one() {
        let mut candidates = DraftTree::new();
        let nodes = [1, 2].map(|token| candidates.suggest(None, token, Proposal::Point, 0, Evidence::estimate(0.8)));
        let gains = gains(&candidates, &Experience::default());
        assert!(nodes.iter().all(|node| (gains[node.index()] - 0.5).abs() < 1e-3), "{gains:?}");
    }
}
