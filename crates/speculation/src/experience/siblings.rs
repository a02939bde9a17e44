//! The proposals of all drafters under one node, weighed against each other.
//!
//! Estimates for the same token add up, and those for other tokens under the same parent lower it.

use super::Experience;
use crate::{DraftTree, NodeId, Offer};

/// Maximum of the sum of one drafter's estimates under a parent, so that they never rule out another drafter's tokens.
const CLAIM_MAX: f32 = 0.95;

/// How many drafters propose a token, if several propose something under the same parent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// This drafter alone.
    Alone(u8),
    /// Several drafters.
    Several,
}

/// A token that is proposed under some node.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Weighed {
    pub(crate) node: NodeId,
    /// Estimated probability that it is accepted there, by the estimates of all drafters.
    pub(crate) weight: f32,
    /// `None` if only one drafter proposes anything there.
    pub(crate) agreement: Option<Agreement>,
    /// The drafter that proposed it first.
    source: u8,
    /// The number of drafters that propose it.
    supporters: usize,
}

/// The proposals of all drafters under one node. The memory is reused from node to node.
#[derive(Default)]
pub(crate) struct Siblings {
    /// For each drafter the sum of its estimates here, less than 1.
    claims: Vec<(u8, f32)>,
    /// The proposed tokens, each once.
    pub(crate) tokens: Vec<Weighed>,
}

impl Siblings {
    /// Weighs the children of `parent` against each other.
    ///
    /// A token's weight is the sum of the estimates for it, times, for each drafter that proposes only other tokens
    /// here, 1 minus the sum of that drafter's estimates. Weights are normalized together with the weight of no
    /// proposal being right. This treats drafters as independent, which they are not, so weights are calibrated as well
    /// ([`Experience`]). If only one drafter proposes something, its estimates are the weights, scaled down if their
    /// sum is above 1.
    pub(crate) fn weigh(&mut self, candidates: &DraftTree, parent: Option<NodeId>, experience: &Experience) {
        self.claims.clear();
        self.tokens.clear();
        for offer in candidates.offers_under(parent) {
            // A drafter's second offer of a token does not count.
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
                    self.tokens.push(Weighed { node, weight, agreement: None, source, supporters: 1 });
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
                let proposes = |source: u8| candidates.offers_of(weighed.node).any(|offer| offer.source == source);
                weighed.weight *= self.claims.iter().filter(|claim| !proposes(claim.0)).map(left).product::<f32>();
                let alone = weighed.supporters == 1;
                weighed.agreement = Some(if alone { Agreement::Alone(weighed.source) } else { Agreement::Several });
                total += weighed.weight;
            }
            self.tokens.iter_mut().for_each(|weighed| weighed.weight /= total);
        }
    }
}
