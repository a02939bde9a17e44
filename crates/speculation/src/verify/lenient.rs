//! Lenient verification (Leviathan et al. 2023, Appendix A.5), which is **lossy**: it accepts more drafted tokens, and
//! the text has another law than plain decoding's. No promise has it; a request asks for it by a lenience l below 1.
//!
//! # Where tokens are drawn: a law within a bound
//!
//! The paper multiplies q by l before it is compared with p, and so does this file, for every offer of a node. The
//! residual r starts as p. An offer x drawn from q is accepted with probability min(1, r(x) / (l q(x))); if it is
//! rejected, the residual becomes r := norm((r - l q)+), by which the next offer is judged with the same l; after the
//! last one the token is drawn from r. As under *rejection*, q is a point mass on x for an offer without a law, and the
//! law without replacement for later siblings.
//!
//! *r is a law.* (r - l q)+ is nowhere negative, and its sum R = 1 - sum of min(r, l q) is at least 1 - l, so it can be
//! normalized if l < 1. With l = 1 this is `rejection`, step by step and to the bit.
//!
//! *No token is written with more than 1 / l times its probability under p.* Let r be the residual when an offer from q
//! is judged, and e(x) the probability that x is then written at this node. Claim: e <= r / l, whatever was drawn and
//! rejected before, and whatever offers follow. If none is left, e = r. Otherwise the offer is accepted as x with
//! probability q(x) min(1, r(x) / (l q(x))) = min(r(x), l q(x)) / l. Let A be the sum of these, so R = 1 - l A. With
//! probability 1 - A the offer is rejected, and then, by induction over the offers that are left, x is written with
//! probability r'(x) / l at most, where r' = (r - l q)+ / R. Since 1 - A <= 1 - l A = R, that adds at most (r - l q)+ /
//! l. Together: (min(r, l q) + (r - l q)+) / l = r / l. At the first offer r = p.
//!
//! The bound holds for each token, given all that was written before it: a text of n tokens is at most l^-n times as
//! probable as under plain decoding. It has the three premises of `rejection` (see the crate's documentation). There is
//! no bound from below: a token that is rarely drafted may become as rare.
//!
//! The residual matters. If tokens were drawn from p after a rejection, as if nothing had been offered, a token could
//! get up to (1 / l + 1) times its probability: a test makes that mistake.
//!
//! # At temperature 0: no bound
//!
//! p is then a point mass, and the paper is lenient "before standardizing" it: x is accepted if p(x) >= l max p, where
//! p is the law of temperature 1 without filters. Of several such siblings the one that is most probable under p is
//! accepted, of ties the one offered first, so a token of plain decoding that was offered is never passed over. If
//! there is none, the most probable token is written. What is written has at least l times the probability of the best
//! token under that law. Under the law of temperature 0 it may have none, so no factor bounds what it gets.

use super::rejection::OfferLaw;
use super::{TargetLaws, Verdict};
use crate::{Address, Chance, DraftTree, Law, NodeId, Pass, Token, theory};

/// How lenient verification is, and in which form. It is lossy: [`verify_leniently`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Lenience {
    /// q is multiplied by this number, above 0 and at most 1.
    Drawn(f64),
    /// At temperature 0 a token is accepted that has at least this part of the greatest probability. The number is
    /// above 0 and at most 1, and laws p are those of [`Sampling::before_greedy`](crate::Sampling::before_greedy).
    Greedy(f64),
}

impl Lenience {
    /// The probability that a token drawn from q is accepted as the first offer of a node: alpha at one position under
    /// this lenience. As [`Law::overlap`] where the number is 1 and tokens are drawn.
    ///
    /// # Panics
    ///
    /// Panics if the number is not above 0 and at most 1.
    pub fn overlap(self, p: &Law, q: &Law) -> f64 {
        match self {
            Lenience::Drawn(lenience) => theory::lenient_acceptance(p, q, lenience),
            Lenience::Greedy(lenience) => {
                let accepted = |(token, _): &(Token, f64)| theory::is_leniently_accepted(p, *token, lenience);
                q.iter().filter(accepted).map(|(_, q)| q).sum()
            }
        }
    }
}

/// As [`verify`](super::verify) under [`Promise::Rejection`](super::Promise::Rejection), but **lossy**: more drafted
/// tokens are accepted, and the text has another law (Leviathan et al. 2023, Appendix A.5).
///
/// Under [`Lenience::Drawn`] no token is written with more than 1 / l times its probability under p; under
/// [`Lenience::Greedy`] there is no such bound, and chance is not asked.
///
/// # Panics
///
/// Panics if the lenience is not above 0 and at most 1.
pub fn verify_leniently(
    tree: &DraftTree,
    target: &mut dyn TargetLaws,
    lenience: Lenience,
    pass: Pass,
    chance: &mut dyn Chance,
) -> Verdict {
    let (Lenience::Drawn(number) | Lenience::Greedy(number)) = lenience;
    assert!(number > 0.0 && number <= 1.0, "a lenience of {number}");
    let mut verdict = Verdict::default();
    loop {
        let node = verdict.path.last().copied();
        let law = target.law(node);
        let (token, accepted) = match lenience {
            Lenience::Drawn(_) => {
                let position = pass.start + verdict.path.len() as u64;
                judge(tree, node, &law, number, (pass, position), chance)
            }
            Lenience::Greedy(_) => judge_greedily(tree, node, &law, number),
        };
        verdict.write(token, law.probability(token));
        let Some(child) = accepted else { return verdict };
        verdict.path.push(child);
    }
}

/// Judges the offers under `node`, which is one position of a pass. Returns the token to write, and its node if it was
/// offered and accepted.
fn judge(
    tree: &DraftTree,
    node: Option<NodeId>,
    law: &Law,
    lenience: f64,
    (pass, position): (Pass, u64),
    chance: &mut dyn Chance,
) -> (Token, Option<NodeId>) {
    let mut residual = law.clone();
    for offer in tree.offers_under(node) {
        let token = tree.token(offer.node);
        let q = OfferLaw::new(tree, offer);
        let accept = (residual.probability(token) / (lenience * q.probability(token))).min(1.0);
        if chance.coin(accept, Address::coin(pass, position, offer.index)) {
            return (token, Some(offer.node));
        }
        let lenient = q.iter().map(|(token, q)| (token, lenience * q));
        // Nothing is left only if the lenience is 1 and r = q: the coin's probability was 1 up to rounding.
        let Some((rest, _)) = residual.minus(1.0, lenient) else { return (token, Some(offer.node)) };
        residual = rest;
    }
    // The same addresses as under *rejection*.
    let address = match tree.offers_under(node).next() {
        Some(_) => Address::residual(pass, position),
        None => Address::plain(pass, position),
    };
    (chance.pick(&residual, address), None)
}

/// The greedy form for the tokens offered under `node`.
fn judge_greedily(tree: &DraftTree, node: Option<NodeId>, law: &Law, lenience: f64) -> (Token, Option<NodeId>) {
    let more_probable = |best: (Token, f64), other: (Token, f64)| if other.1 > best.1 { other } else { best };
    let (best, most) = law.iter().reduce(more_probable).expect("a law has a token");
    let offered = tree.offers_under(node).map(|offer| (offer.node, law.probability(tree.token(offer.node))));
    let passed = offered.filter(|&(_, p)| p >= lenience * most);
    match passed.reduce(|best, other| if other.1 > best.1 { other } else { best }) {
        Some((accepted, _)) => (tree.token(accepted), Some(accepted)),
        None => (best, None),
    }
}

#[cfg(test)]
mod tests;
