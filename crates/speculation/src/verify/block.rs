//! Block verification of a chain (Sun et al. 2025, Algorithm 2): all coins first, then the longest accepted prefix.
//!
//! Token by token, one unlucky coin ends the pass although the tokens after it may be likelier under p than under q.
//! Judging the block as a whole recovers that: w_i = min(1, w_{i-1} p(x_i) / q(x_i)) is carried along the chain, the
//! prefix of length i is accepted with probability h_i, and the longest accepted one is kept. With a residual
//! norm((w p - q)+) the law stays p, and no rule that knows only p and q along the chain accepts more in expectation.
//!
//! Needs one law per node, so it applies to a chain with one offer a node; the caller falls back to `rejection`
//! elsewhere. A chain that stopped by looking at its last token is fine: whether a prefix ends the chain is a function
//! of that prefix. Every node's law is asked for, where token by token would stop at the first refusal.

use super::{Pass, TargetLaws, Verdict};
use crate::{Address, Chance, DraftTree, Law, Offer, Proposal, Token};

/// Whether the tree is a chain with exactly one offer at each node.
pub(super) fn applies(tree: &DraftTree) -> bool {
    tree.is_chain() && tree.offers().len() == tree.len()
}

pub(super) fn verify(tree: &DraftTree, target: &mut dyn TargetLaws, pass: Pass, chance: &mut dyn Chance) -> Verdict {
    let offers = tree.offers();
    let mut law = target.law(None);
    // What is left to draw from if the chain is cut at the longest prefix accepted so far.
    let mut owed = offers.first().map(|offer| residual(tree, offer, &law, 1.0));
    let mut last = law.clone();
    let mut weight = 1.0_f64;
    let mut accepted = 0;
    for (i, offer) in offers.iter().enumerate() {
        let token = tree.token(offer.node);
        weight = (weight * law.probability(token) / drafted_probability(tree, offer, token)).min(1.0);
        if weight == 0.0 {
            break; // every later prefix has acceptance zero as well
        }
        law = target.law(Some(offer.node));
        let rest = offers.get(i + 1).map(|next| residual(tree, next, &law, weight));
        let accept = match &rest {
            None => weight,
            Some(rest) => rest.acceptance(weight),
        };
        let position = pass.start + i as u64;
        if chance.coin(accept, Address::coin(pass.seed, pass.start, position, offer.index)) {
            accepted = i + 1;
            owed = rest;
            last = law.clone();
        }
    }
    let path: Vec<_> = offers[..accepted].iter().map(|offer| offer.node).collect();
    let mut tokens: Vec<Token> = path.iter().map(|&node| tree.token(node)).collect();
    let position = pass.start + accepted as u64;
    tokens.push(match owed {
        None => chance.pick(&last, Address::token(pass.seed, position)),
        Some(owed) => {
            // Nothing owed means p = q with full weight, where the next prefix is accepted but for rounding.
            let own = if owed.tokens.is_empty() { last } else { Law::from_sorted(owed.tokens, owed.weights) };
            chance.pick(&own, Address::residual(pass.seed, pass.start, position))
        }
    });
    Verdict { path, tokens }
}

/// (w p - q)+, not normalised.
struct Owed {
    tokens: Vec<Token>,
    weights: Vec<f64>,
}

impl Owed {
    /// h_i of the paper: owed / (owed + 1 - w). Where both vanish p = q at full weight, and any answer is right because
    /// the next prefix is accepted for certain.
    fn acceptance(&self, weight: f64) -> f64 {
        let owed: f64 = self.weights.iter().sum();
        let refused = 1.0 - weight;
        if owed + refused > 0.0 { (owed / (owed + refused)).min(1.0) } else { 1.0 }
    }
}

fn residual(tree: &DraftTree, offer: &Offer, target: &Law, weight: f64) -> Owed {
    let left = target.iter().map(|(token, p)| (token, weight * p - drafted_probability(tree, offer, token)));
    let (tokens, weights) = left.filter(|&(_, left)| left > 0.0).unzip();
    Owed { tokens, weights }
}

/// q of a token under the law of an offer.
fn drafted_probability(tree: &DraftTree, offer: &Offer, token: Token) -> f64 {
    match offer.proposal {
        Proposal::Drawn(law) => tree.law(law).probability(token),
        Proposal::Point => f64::from(u8::from(tree.token(offer.node) == token)),
    }
}
