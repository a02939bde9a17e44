//! Gains: how probably each candidate is accepted.
//!
//! The gain of a node is the product along its path of what is thought of each token there: what its drafters say,
//! corrected by how right they were ([`Experience`]), added up where several say the same, less where they contradict each
//! other.

use crate::{DraftTree, Experience, NodeId};

/// However sure a drafter is, another may know better.
const CLAIM_MAX: f32 = 0.95;

/// By node: the estimated probability that verification accepts it.
pub fn gains(candidates: &DraftTree, experience: &Experience) -> Vec<f32> {
    let mut gains: Vec<f32> = vec![0.0; candidates.len()];
    let mut siblings = Siblings::default();
    siblings.judge(candidates, None, experience, &mut gains);
    for node in candidates.nodes() {
        if let Some(parent) = candidates.parent(node) {
            gains[node.index()] *= gains[parent.index()];
        }
        siblings.judge(candidates, Some(node), experience, &mut gains);
    }
    gains
}

/// What several drafters say at one place. Memory that is used again from place to place.
#[derive(Default)]
struct Siblings {
    /// By drafter: the sum of what it says here, less than 1.
    claims: Vec<(u8, f32)>,
    /// By token: its node, and the sum of what is said of it.
    tokens: Vec<(NodeId, f32)>,
}

impl Siblings {
    /// Writes into `gains` how probably each child of `parent` is accepted once the parent is.
    ///
    /// Who proposes the same adds up. Who proposes something else contradicts: a token's weight is what is said for it
    /// times, for each drafter that is silent about it, what that drafter leaves to others. Weights are brought to sum 1
    /// with that of no guess being right. A drafter without rivals is taken at its word, as long as the sum of its words is
    /// a probability.
    fn judge(&mut self, candidates: &DraftTree, parent: Option<NodeId>, experience: &Experience, gains: &mut [f32]) {
        self.claims.clear();
        self.tokens.clear();
        for offer in candidates.offers_under(parent) {
            let acceptance = experience.acceptance(offer.source, offer.evidence, candidates.depth(offer.node));
            match self.claims.iter_mut().find(|(source, _)| *source == offer.source) {
                Some((_, claim)) => *claim += acceptance,
                None => self.claims.push((offer.source, acceptance)),
            }
            match self.tokens.iter_mut().find(|(node, _)| *node == offer.node) {
                Some((_, sum)) => *sum += acceptance,
                None => self.tokens.push((offer.node, acceptance)),
            }
        }
        if let [(_, claim)] = self.claims[..] {
            self.tokens.iter_mut().for_each(|(_, weight)| *weight /= claim.max(1.0));
        } else if self.claims.len() > 1 {
            self.claims.iter_mut().for_each(|(_, claim)| *claim = claim.min(CLAIM_MAX));
            let left = |(_, claim): &(u8, f32)| 1.0 - claim;
            let mut total: f32 = self.claims.iter().map(left).product();
            for (node, weight) in &mut self.tokens {
                let says = |source: u8| candidates.offers_of(*node).any(|offer| offer.source == source);
                *weight *= self.claims.iter().filter(|claim| !says(claim.0)).map(left).product::<f32>();
                total += *weight;
            }
            self.tokens.iter_mut().for_each(|(_, weight)| *weight /= total);
        }
        for (node, weight) in &self.tokens {
            gains[node.index()] = weight.min(1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Evidence, Proposal};

    #[test]
    fn who_contradicts_takes_from_the_others() {
        let mut candidates = DraftTree::new();
        let mut says = |parent, token, source, acceptance| {
            candidates.suggest(parent, token, Proposal::Point, source, Evidence::estimate(acceptance))
        };
        let sure = says(None, 1, 0, 0.9);
        let rival = says(None, 2, 1, 0.6);
        let agreed = says(Some(sure), 3, 0, 0.5);
        says(Some(sure), 3, 1, 0.5);
        let gains = gains(&candidates, &Experience::default());
        // 0.9 * 0.4 and 0.6 * 0.1, next to 0.1 * 0.4 for neither; (0.5 + 0.5) next to 0.5 * 0.5.
        let sure_gain = 0.36 / 0.46;
        for (node, expected) in [(sure, sure_gain), (rival, 0.06 / 0.46), (agreed, sure_gain / 1.25)] {
            assert!((gains[node.index()] - expected).abs() < 1e-6, "{gains:?}");
        }
    }

    #[test]
    fn siblings_of_one_drafter_are_no_more_than_certain_together() {
        let mut candidates = DraftTree::new();
        let nodes = [1, 2].map(|token| candidates.suggest(None, token, Proposal::Point, 0, Evidence::estimate(0.8)));
        let gains = gains(&candidates, &Experience::default());
        assert!(nodes.iter().all(|node| (gains[node.index()] - 0.5).abs() < 1e-3), "{gains:?}");
    }
}
