//! Gains: how probably each candidate is accepted.
//!
//! The gain of a node is the product along its path of what is thought of each token there: what its drafters say,
//! corrected by how right they were ([`Experience`]), added up where several say the same, less where they contradict
//! each other.

use crate::{DraftTree, Experience, NodeId, Offer};

/// However sure a drafter is, another may know better.
const CLAIM_MAX: f32 = 0.95;

/// By node: the estimated probability that verification accepts it.
pub(super) fn gains(candidates: &DraftTree, experience: &Experience) -> Vec<f32> {
    let mut gains: Vec<f32> = vec![0.0; candidates.len()];
    let mut siblings = Siblings::default();
    let mut judge = |parent: Option<NodeId>, gains: &mut [f32]| {
        siblings.weigh(candidates, parent, experience);
        let depth = 1 + parent.map_or(0, |parent| candidates.depth(parent));
        for weighed in &siblings.tokens {
            let together = weighed.company.map(|company| experience.together(company, weighed.weight, depth));
            gains[weighed.node.index()] = together.unwrap_or(weighed.weight).min(1.0);
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

/// In whose company a token is proposed, where several drafters say something.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// This one alone says it.
    Alone(u8),
    /// Several do.
    Agreed,
}

/// A token that is proposed under some node.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Weighed {
    pub(crate) node: NodeId,
    /// How probably it is accepted there, by what all drafters say.
    pub(crate) weight: f32,
    /// `None` if only one drafter says anything there.
    pub(crate) company: Option<Company>,
    /// The drafter that said it first.
    source: u8,
    /// Drafters that say it.
    supporters: usize,
}

/// What several drafters say under one node. Memory that is used again from node to node.
#[derive(Default)]
pub(crate) struct Siblings {
    /// By drafter: the sum of what it says here, less than 1.
    claims: Vec<(u8, f32)>,
    /// By token.
    pub(crate) tokens: Vec<Weighed>,
}

impl Siblings {
    /// Weighs the children of `parent` against each other.
    ///
    /// Who proposes the same adds up. Who proposes something else contradicts: a token's weight is what is said for it
    /// times, for each drafter that is silent about it, what that drafter leaves to others. Weights are brought to sum
    /// 1 with that of no guess being right. That treats drafters as if they knew nothing of the same, which they do:
    /// how far such weights are right is learned as well ([`Experience`]). A drafter without rivals is taken at its
    /// word, as long as the sum of its words is a probability.
    pub(crate) fn weigh(&mut self, candidates: &DraftTree, parent: Option<NodeId>, experience: &Experience) {
        self.claims.clear();
        self.tokens.clear();
        for offer in candidates.offers_under(parent) {
            // Who says a token twice is no surer of it.
            let again = |other: &&Offer| other.index < offer.index && other.source == offer.source;
            if candidates.offers_of(offer.node).any(|other| again(&other)) {
                continue;
            }
            let acceptance = experience.acceptance(offer.source, offer.evidence, candidates.depth(offer.node));
            match self.claims.iter_mut().find(|(source, _)| *source == offer.source) {
                Some((_, claim)) => *claim += acceptance,
                None => self.claims.push((offer.source, acceptance)),
            }
            match self.tokens.iter_mut().find(|weighed| weighed.node == offer.node) {
                Some(weighed) => {
                    weighed.weight += acceptance;
                    weighed.supporters += 1;
                }
                None => {
                    let (node, source, weight) = (offer.node, offer.source, acceptance);
                    self.tokens.push(Weighed { node, weight, company: None, source, supporters: 1 });
                }
            }
        }
        if let [(_, claim)] = self.claims[..] {
            self.tokens.iter_mut().for_each(|weighed| weighed.weight /= claim.max(1.0));
        } else if self.claims.len() > 1 {
            self.claims.iter_mut().for_each(|(_, claim)| *claim = claim.min(CLAIM_MAX));
            let left = |(_, claim): &(u8, f32)| 1.0 - claim;
            let mut total: f32 = self.claims.iter().map(left).product();
            for weighed in &mut self.tokens {
                let says = |source: u8| candidates.offers_of(weighed.node).any(|offer| offer.source == source);
                weighed.weight *= self.claims.iter().filter(|claim| !says(claim.0)).map(left).product::<f32>();
                let alone = weighed.supporters == 1;
                weighed.company = Some(if alone { Company::Alone(weighed.source) } else { Company::Agreed });
                total += weighed.weight;
            }
            self.tokens.iter_mut().for_each(|weighed| weighed.weight /= total);
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
