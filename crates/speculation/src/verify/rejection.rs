//! *rejection*: speculative sampling over the offers of a tree, one after the other (recursive rejection).
//!
//! At a node, the residual r starts as the target's law p. An offer x drawn from q is accepted with probability
//! min(1, r(x) / q(x)); if refused, what is still owed is r := norm((r - q)+) (Leviathan et al. 2023, Algorithm 1), and
//! the next offer is judged against that. Each step keeps the law r: q(x) min(1, r(x) / q(x)) is min(q, r), and the
//! refused mass times the new residual is (r - q)+, which add up to r. An offer of which nothing is known but its value
//! is drawn from a point mass, so it is accepted with probability r(x) and then removed from r. For siblings drawn
//! without replacement, q is the law given what was drawn before (SpecInfer, Miao et al. 2024; Sequoia, Chen et al. 2024).
//!
//! What it relies on and cannot check: every drawn token was offered, whatever it was, and no noise was used twice,
//! neither in this request nor in an earlier one from whose text a drafter has learned.

use std::borrow::Cow;

use super::{TargetLaws, Verdict};
use crate::{Address, Chance, DraftTree, Law, LawId, NodeId, Offer, Pass, Proposal, Token};

pub(super) fn verify(tree: &DraftTree, target: &mut dyn TargetLaws, pass: Pass, chance: &mut dyn Chance) -> Verdict {
    let root = Place { law: target.law(None), owed: None, offers_from: 0 };
    descend(tree, target, pass, Verdict::default(), root, chance)
}

/// Where the walk stands: the target's law, what is owed to the output if it is something else, and the first offer that
/// is still to be judged.
pub(super) struct Place {
    pub(super) law: Law,
    pub(super) owed: Option<Law>,
    pub(super) offers_from: u32,
}

/// Walks on from the end of a verdict's path until the target writes a token of its own.
pub(super) fn descend(
    tree: &DraftTree,
    target: &mut dyn TargetLaws,
    pass: Pass,
    mut verdict: Verdict,
    mut place: Place,
    chance: &mut dyn Chance,
) -> Verdict {
    loop {
        let node = verdict.path.last().copied();
        let position = pass.start + verdict.path.len() as u64;
        match judge(tree, node, &place, pass, position, chance) {
            Judgement::Accepted(child) => {
                let token = tree.token(child);
                verdict.write(token, place.law.probability(token));
                verdict.path.push(child);
                place = Place { law: target.law(Some(child)), owed: None, offers_from: 0 };
            }
            Judgement::Own(token) => {
                verdict.write(token, place.law.probability(token));
                return verdict;
            }
        }
    }
}

enum Judgement {
    Accepted(NodeId),
    Own(Token),
}

/// One position: the offers under `node` against what is owed there.
fn judge(
    tree: &DraftTree,
    node: Option<NodeId>,
    place: &Place,
    pass: Pass,
    position: u64,
    chance: &mut dyn Chance,
) -> Judgement {
    let mut residual = Cow::Borrowed(place.owed.as_ref().unwrap_or(&place.law));
    for offer in tree.offers_under(node).filter(|offer| offer.index >= place.offers_from) {
        let token = tree.token(offer.node);
        let (accept, rest) = match offer.proposal {
            Proposal::Point => (residual.probability(token), None),
            Proposal::Drawn(law) => {
                let remaining = Remaining::new(tree, offer, law);
                ((residual.probability(token) / remaining.probability(token)).min(1.0), Some(remaining))
            }
        };
        if chance.coin(accept, Address::coin(pass, position, offer.index)) {
            return Judgement::Accepted(offer.node);
        }
        let refused = match rest {
            None => subtract(&residual, |other| if other == token { 1.0 } else { 0.0 }),
            Some(remaining) => subtract(&residual, |other| remaining.probability(other)),
        };
        // Nothing is owed: r and q are equal, the coin had probability 1 up to rounding, and refusing was the rounding.
        let Some(refused) = refused else { return Judgement::Accepted(offer.node) };
        residual = Cow::Owned(refused);
    }
    // Without an offer this is plain decoding, with the noise that this request would have had without drafters. It
    // cannot meet another use of that address: a position is written once, and drafters do not draw there under this
    // promise. The request's number is part of it, for drafters may know what was picked here for an earlier request.
    let address = match tree.offers_under(node).next() {
        Some(_) => Address::residual(pass, position),
        None => Address::plain(pass, position),
    };
    Judgement::Own(chance.pick(&residual, address))
}

/// A draft law without the siblings that were drawn from it before an offer, renormalised.
struct Remaining<'a> {
    law: &'a Law,
    drawn: Vec<Token>,
    /// Mass of what is left. Added up, not 1 minus the drawn: that difference would be noise when little is left.
    mass: f64,
}

impl<'a> Remaining<'a> {
    fn new(tree: &'a DraftTree, offer: &Offer, id: LawId) -> Remaining<'a> {
        let law = tree.law(id);
        let drawn: Vec<Token> = tree
            .offers_under(offer.parent)
            .take_while(|earlier| earlier.index < offer.index)
            .filter(|earlier| earlier.proposal == Proposal::Drawn(id))
            .map(|earlier| tree.token(earlier.node))
            .collect();
        let mass = match drawn.is_empty() {
            true => 1.0,
            false => law.iter().filter(|(token, _)| !drawn.contains(token)).map(|(_, q)| q).sum(),
        };
        Remaining { law, drawn, mass }
    }

    fn probability(&self, token: Token) -> f64 {
        match self.drawn.contains(&token) {
            true => 0.0,
            false => self.law.probability(token) / self.mass,
        }
    }
}

/// norm((r - q)+), or `None` if nothing is left.
fn subtract(residual: &Law, q: impl Fn(Token) -> f64) -> Option<Law> {
    let left = residual.iter().map(|(token, r)| (token, r - q(token))).filter(|&(_, left)| left > 0.0);
    let (tokens, weights): (Vec<Token>, Vec<f64>) = left.unzip();
    (!tokens.is_empty()).then(|| Law::from_sorted(tokens, weights))
}
