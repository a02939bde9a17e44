//! Block verification of the leading chain (Sun et al. 2025, Algorithm 2), and recursive rejection for the rest.
//!
//! If tokens are judged one by one, one rejection ends the pass, although the tokens after it may be more probable
//! under p than under q. Judging a chain as a whole makes use of that: a weight w_i = min(1, w_{i-1} p(x_i) / q(x_i))
//! is carried along the chain, the prefix of length i is accepted with probability h_i, and the longest accepted prefix
//! is kept. The residual law after that prefix is norm((w p - q)+), and no rule that knows only p and q along the chain
//! accepts more.
//!
//! Which offers are the chain must be decided before their values are known; it is not enough that a tree *turned out*
//! to be a chain, since the coins at its top would depend on what lies below. So the chain consists of the first
//! offers, as long as each is made under the one before: whether it continues is then a function of the prefix, and the
//! proof is by prefixes. Every other offer was made later, with the whole chain known. At the cut, the end of the
//! accepted prefix, it is judged against the residual there, like any later sibling. The law is kept for each chain and
//! each cut, and therefore in total.
//!
//! The target's law is asked for at every node of the chain, while *rejection* stops at the first rejected token.

use super::rejection::{self, OfferLaw, Visit};
use super::{TargetLaws, Verdict};
use crate::{Address, Chance, DraftTree, Law, Offer, Pass};

pub(super) fn verify(tree: &DraftTree, target: &mut dyn TargetLaws, pass: Pass, chance: &mut dyn Chance) -> Verdict {
    let chain = leading_chain(tree);
    // The residual (w p - q)+ after a prefix of the chain, if the chain continues there: as a law, and its sum.
    let residual = |len: usize, law: &Law, weight: f64| law.minus(weight, OfferLaw::new(tree, chain.get(len)?).iter());
    let mut law = target.law(None);
    // The longest accepted prefix: its length, the law after it, and the residual there.
    let mut cut = (0, law.clone(), residual(0, &law, 1.0));
    let mut weight = 1.0_f64;
    let mut probabilities = Vec::with_capacity(chain.len());
    for (i, offer) in chain.iter().enumerate() {
        let token = tree.token(offer.node);
        probabilities.push(law.probability(token));
        weight = (weight * law.probability(token) / OfferLaw::new(tree, offer).probability(token)).min(1.0);
        if weight == 0.0 {
            break; // every longer prefix has acceptance zero as well
        }
        law = target.law(Some(offer.node));
        let len = i + 1;
        let residual = residual(len, &law, weight);
        let accept = match len < chain.len() {
            true => acceptance(residual.as_ref().map_or(0.0, |(_, sum)| *sum), weight),
            false => weight,
        };
        if chance.coin(accept, Address::coin(pass, pass.start + i as u64, offer.index)) {
            cut = (len, law.clone(), residual);
        }
    }
    let (accepted, law, residual) = cut;
    let path: Vec<_> = chain[..accepted].iter().map(|offer| offer.node).collect();
    let tokens = path.iter().map(|&node| tree.token(node)).collect();
    probabilities.truncate(accepted);
    // The chain's offer under the cut is rejected; the others there are still to be judged. If the residual is empty, p
    // = q, and only rounding kept the chain from continuing.
    let offers_from = chain.get(accepted).map_or(0, |rejected| rejected.index + 1);
    let residual = residual.map_or_else(|| law.clone(), |(residual, _)| residual);
    rejection::descend(
        tree,
        target,
        pass,
        Verdict { path, tokens, probabilities },
        Visit { law, residual, offers_from },
        chance,
    )
}

/// The first offers of the tree, as long as each is made under the one before.
fn leading_chain(tree: &DraftTree) -> &[Offer] {
    let offers = tree.offers();
    let continues = |i: usize| offers[i].parent == i.checked_sub(1).map(|before| offers[before].node);
    let len = (0..offers.len()).take_while(|&i| continues(i)).count();
    &offers[..len]
}

/// h_i of the paper: s / (s + 1 - w), with s the mass of the residual. If both terms vanish, p = q at full weight, and
/// any answer is right because the next prefix is accepted for certain.
fn acceptance(residual: f64, weight: f64) -> f64 {
    let missing = 1.0 - weight;
    if residual + missing > 0.0 { (residual / (residual + missing)).min(1.0) } else { 1.0 }
}
