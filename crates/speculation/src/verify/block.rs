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

use super::rejection::{self, Place};
use super::{TargetLaws, Verdict};
use crate::{Address, Chance, DraftTree, Law, Offer, Pass, Proposal, Token};

pub(super) fn verify(tree: &DraftTree, target: &mut dyn TargetLaws, pass: Pass, chance: &mut dyn Chance) -> Verdict {
    let chain = leading_chain(tree);
    let mut law = target.law(None);
    let mut owed = chain.first().map(|offer| Owed::new(tree, offer, &law, 1.0));
    // The longest accepted prefix: its length, the law after it, and what is owed there if the chain went on.
    let mut cut = (0, law.clone(), owed.take());
    let mut weight = 1.0_f64;
    let mut probabilities = Vec::with_capacity(chain.len());
    for (i, offer) in chain.iter().enumerate() {
        let token = tree.token(offer.node);
        probabilities.push(law.probability(token));
        weight = (weight * law.probability(token) / drafted_probability(tree, offer, token)).min(1.0);
        if weight == 0.0 {
            break; // every longer prefix has acceptance zero as well
        }
        law = target.law(Some(offer.node));
        owed = chain.get(i + 1).map(|next| Owed::new(tree, next, &law, weight));
        let accept = owed.as_ref().map_or(weight, |owed| owed.acceptance(weight));
        let position = pass.start + i as u64;
        if chance.coin(accept, Address::coin(pass, position, offer.index)) {
            cut = (i + 1, law.clone(), owed.take());
        }
    }
    let (accepted, law, owed) = cut;
    let path: Vec<_> = chain[..accepted].iter().map(|offer| offer.node).collect();
    let tokens = path.iter().map(|&node| tree.token(node)).collect();
    probabilities.truncate(accepted);
    let place = match owed {
        None => Place { law, owed: None, offers_from: 0 },
        // The leading offer under the cut is refused; the others there are still to be judged.
        Some(owed) => Place { law, owed: owed.law(), offers_from: chain[accepted].index + 1 },
    };
    rejection::descend(tree, target, pass, Verdict { path, tokens, probabilities }, place, chance)
}

/// The first offers of the tree, as long as each is made under the one before.
fn leading_chain(tree: &DraftTree) -> &[Offer] {
    let offers = tree.offers();
    let goes_on = |i: usize| offers[i].parent == i.checked_sub(1).map(|before| offers[before].node);
    let len = (0..offers.len()).take_while(|&i| goes_on(i)).count();
    &offers[..len]
}

/// (w p - q)+, not normalised.
struct Owed {
    tokens: Vec<Token>,
    weights: Vec<f64>,
}

impl Owed {
    fn new(tree: &DraftTree, offer: &Offer, target: &Law, weight: f64) -> Owed {
        let left = target.iter().map(|(token, p)| (token, weight * p - drafted_probability(tree, offer, token)));
        let (tokens, weights) = left.filter(|&(_, left)| left > 0.0).unzip();
        Owed { tokens, weights }
    }

    /// h_i of the paper: owed / (owed + 1 - w). Where both vanish p = q at full weight, and any answer is right because
    /// the next prefix is accepted for certain.
    fn acceptance(&self, weight: f64) -> f64 {
        let owed: f64 = self.weights.iter().sum();
        let refused = 1.0 - weight;
        if owed + refused > 0.0 { (owed / (owed + refused)).min(1.0) } else { 1.0 }
    }

    /// The law of what is owed; `None` if rounding alone led here, because p = q and the chain should have gone on.
    fn law(self) -> Option<Law> {
        (!self.tokens.is_empty()).then(|| Law::from_sorted(self.tokens, self.weights))
    }
}

/// q of a token under the law of an offer. Along the leading chain nothing was drawn from that law before.
fn drafted_probability(tree: &DraftTree, offer: &Offer, token: Token) -> f64 {
    match offer.proposal {
        Proposal::Drawn(law) => tree.law(law).probability(token),
        Proposal::Point => f64::from(u8::from(tree.token(offer.node) == token)),
    }
}
