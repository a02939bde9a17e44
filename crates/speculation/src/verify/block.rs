//! Block verification of the leading chain (Sun et al. 2025, Algorithm 2), and recursive rejection for the rest.
//!
//! Token by token, one unlucky coin ends the pass although the tokens after it may be likelier under p than under q.
//! Judging a chain as a whole recovers that: w_i = min(1, w_{i-1} p(x_i) / q(x_i)) is carried along the chain, the
//! prefix of length i is accepted with probability h_i, and the longest accepted one is kept. What is owed after a
//! prefix that was cut is norm((w p - q)+), and no rule that knows only p and q along the chain accepts more.
//!
//! Which offers are the chain must be settled before their values are known; that a tree *turned out* to be a chain is
//! not good enough, since the coins at its top weigh what lies below. So the chain is the first offers, as long as each
//! is made under the one before: whether it goes on is then a function of the prefix, and the proof is by prefixes.
//! Every other offer was made later, with the whole chain known. At the cut it is judged against what is owed there, as
//! any later sibling; this holds for each chain and each cut, and so in sum.
//!
//! Every node's law along the chain is asked for, where token by token would stop at the first refusal.

use super::rejection::{self, OfferLaw, Visit};
use super::{TargetLaws, Verdict};
use crate::{Address, Chance, DraftTree, Law, Offer, Pass};

pub(super) fn verify(tree: &DraftTree, target: &mut dyn TargetLaws, pass: Pass, chance: &mut dyn Chance) -> Verdict {
    let chain = leading_chain(tree);
    // (w p - q)+ after a prefix of the chain, if the chain goes on there: as a law, and what it adds up to.
    let owed = |len: usize, law: &Law, weight: f64| law.minus(weight, OfferLaw::new(tree, chain.get(len)?).iter());
    let mut law = target.law(None);
    // The longest accepted prefix: its length, the law after it, and what is owed there.
    let mut cut = (0, law.clone(), owed(0, &law, 1.0));
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
        let owed = owed(len, &law, weight);
        let accept = match len < chain.len() {
            true => acceptance(owed.as_ref().map_or(0.0, |(_, sum)| *sum), weight),
            false => weight,
        };
        if chance.coin(accept, Address::coin(pass, pass.start + i as u64, offer.index)) {
            cut = (len, law.clone(), owed);
        }
    }
    let (accepted, law, owed) = cut;
    let path: Vec<_> = chain[..accepted].iter().map(|offer| offer.node).collect();
    let tokens = path.iter().map(|&node| tree.token(node)).collect();
    probabilities.truncate(accepted);
    // The leading offer under the cut is refused; the others there are still to be judged. Where nothing is owed under
    // it, p = q and the chain should have gone on: rounding alone led here.
    let offers_from = chain.get(accepted).map_or(0, |refused| refused.index + 1);
    let owed = owed.map_or_else(|| law.clone(), |(owed, _)| owed);
    rejection::descend(
        tree,
        target,
        pass,
        Verdict { path, tokens, probabilities },
        Visit { law, owed, offers_from },
        chance,
    )
}

/// The first offers of the tree, as long as each is made under the one before.
fn leading_chain(tree: &DraftTree) -> &[Offer] {
    let offers = tree.offers();
    let goes_on = |i: usize| offers[i].parent == i.checked_sub(1).map(|before| offers[before].node);
    let len = (0..offers.len()).take_while(|&i| goes_on(i)).count();
    &offers[..len]
}

/// h_i of the paper: owed / (owed + 1 - w). Where both vanish p = q at full weight, and any answer is right because the
/// next prefix is accepted for certain.
fn acceptance(owed: f64, weight: f64) -> f64 {
    let refused = 1.0 - weight;
    if owed + refused > 0.0 { (owed / (owed + refused)).min(1.0) } else { 1.0 }
}
