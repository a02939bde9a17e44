//! *rejection*: rejection sampling (speculative sampling) over the offers of a tree, one after the other.
//!
//! At a node, the residual r starts as the target's law p. An offer x drawn from q is accepted with probability min(1,
//! r(x) / q(x)); if it is rejected, the residual becomes r := norm((r - q)+) (Leviathan et al. 2023, Algorithm 1), and
//! the next offer is judged against that. Each step keeps the law r: q(x) min(1, r(x) / q(x)) is min(q, r), and the
//! rejected mass times the new residual is (r - q)+, which add up to r. An offer that was not drawn from a known law
//! counts as drawn from a point mass, so it is accepted with probability r(x) and then removed from r. For siblings
//! drawn without replacement, q is the law given what was drawn before (SpecInfer, Miao et al. 2024; Sequoia, Chen et
//! al. 2024).
//!
//! It relies on two conditions that it cannot check: every drawn token was offered, whatever it was, and no noise was
//! used twice, neither in this request nor in an earlier one from whose output a drafter has learned.

use super::{TargetLaws, Verdict};
use crate::{Address, Chance, DraftTree, Law, NodeId, Offer, Pass, Proposal, Token};

pub(super) fn verify(tree: &DraftTree, target: &mut dyn TargetLaws, pass: Pass, chance: &mut dyn Chance) -> Verdict {
    let root = Visit::new(target.law(None));
    descend(tree, target, pass, Verdict::default(), root, chance)
}

/// The node that verification has reached: the target's law there, the residual law, and the first offer that is still
/// to be judged.
pub(super) struct Visit {
    pub(super) law: Law,
    pub(super) residual: Law,
    pub(super) offers_from: u32,
}

impl Visit {
    /// A visit to a node with this law, none of whose offers was judged yet.
    pub(super) fn new(law: Law) -> Visit {
        Visit { residual: law.clone(), law, offers_from: 0 }
    }
}

/// Continues from the end of a verdict's path until the target writes a token of its own.
pub(super) fn descend(
    tree: &DraftTree,
    target: &mut dyn TargetLaws,
    pass: Pass,
    mut verdict: Verdict,
    mut visit: Visit,
    chance: &mut dyn Chance,
) -> Verdict {
    loop {
        let node = verdict.path.last().copied();
        let position = pass.start + verdict.path.len() as u64;
        let (token, accepted) = judge(tree, node, &visit, pass, position, chance);
        verdict.write(token, visit.law.probability(token));
        let Some(child) = accepted else { return verdict };
        verdict.path.push(child);
        visit = Visit::new(target.law(accepted));
    }
}

/// Judges the offers under `node`, which is one position, against the residual there. Returns the token to write, and
/// its node if it was offered and accepted.
fn judge(
    tree: &DraftTree,
    node: Option<NodeId>,
    visit: &Visit,
    pass: Pass,
    position: u64,
    chance: &mut dyn Chance,
) -> (Token, Option<NodeId>) {
    let mut residual = visit.residual.clone();
    for offer in tree.offers_under(node).filter(|offer| offer.index >= visit.offers_from) {
        let token = tree.token(offer.node);
        let q = OfferLaw::new(tree, offer);
        let accept = (residual.probability(token) / q.probability(token)).min(1.0);
        if chance.coin(accept, Address::coin(pass, position, offer.index)) {
            return (token, Some(offer.node));
        }
        // The residual is empty: r and q are equal, so the coin's probability was 1 up to rounding.
        let Some((rest, _)) = residual.minus(1.0, q.iter()) else { return (token, Some(offer.node)) };
        residual = rest;
    }
    // Without an offer this is plain decoding, with the noise that this request would have had without drafters. No
    // other draw has this address: a position is written once, and drafters do not draw there under this promise.
    let address = match tree.offers_under(node).next() {
        Some(_) => Address::residual(pass, position),
        None => Address::plain(pass, position),
    };
    (chance.pick(&residual, address), None)
}

/// The law q of one offer: the law that it was drawn from, without the siblings that were drawn from it before,
/// normalized again.
pub(super) struct OfferLaw {
    law: Law,
    drawn_before: Vec<Token>,
    /// The mass that is left. It is added up, since 1 minus the drawn mass would be mostly rounding error when little
    /// is left.
    mass: f64,
}

impl OfferLaw {
    pub(super) fn new(tree: &DraftTree, offer: &Offer) -> OfferLaw {
        let Proposal::Drawn(id) = offer.proposal else {
            return OfferLaw { law: Law::point(tree.token(offer.node)), drawn_before: Vec::new(), mass: 1.0 };
        };
        let law = tree.law(id).clone();
        let drawn_before: Vec<Token> = tree
            .offers_under(offer.parent)
            .take_while(|earlier| earlier.index < offer.index)
            .filter(|earlier| earlier.proposal == offer.proposal)
            .map(|earlier| tree.token(earlier.node))
            .collect();
        let mass = match drawn_before.is_empty() {
            true => 1.0,
            false => law.iter().filter(|(token, _)| !drawn_before.contains(token)).map(|(_, q)| q).sum(),
        };
        OfferLaw { law, drawn_before, mass }
    }

    pub(super) fn probability(&self, token: Token) -> f64 {
        if self.drawn_before.contains(&token) { 0.0 } else { self.law.probability(token) / self.mass }
    }

    /// Tokens with their probabilities, ascending by token.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Token, f64)> {
        let left = self.law.iter().filter(|(token, _)| !self.drawn_before.contains(token));
        left.map(|(token, q)| (token, q / self.mass))
    }
}
