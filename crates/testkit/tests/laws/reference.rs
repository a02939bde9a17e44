//! A reference implementation of recursive rejection, over dense rows, with a switch for each classic fault.
//!
//! Without a fault it must agree with the engine's verification; with one it is a canary, which the tests of laws must
//! detect. With a lenience below 1 it is the lossy verification: q is multiplied by it.

use foretoken_speculation::{Address, Chance, DraftTree, Law, NodeId, Pass, Proposal, TargetLaws, Token, Verdict};

/// A classic fault of verification.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// After a rejection the token is drawn from p.
    ResidualIsTarget,
    /// r - q is not clamped at zero (its absolute value is used, so that it is a law).
    NoClamp,
    /// The bonus after the last accepted token is drawn from the law one row above.
    BonusOffByOne,
    /// Siblings are judged as if each had been drawn from q itself.
    WithReplacement,
    /// The coin takes the noise that the draft was drawn with.
    SharedNoise,
    /// Two offers of one token are judged as one.
    MergedOffers,
    /// Under lenience, q itself is subtracted from the residual.
    ResidualWithoutLenience,
}

pub fn verify(
    tree: &DraftTree,
    target: &mut dyn TargetLaws,
    (fault, lenience): (Fault, f64),
    vocabulary: usize,
    pass: Pass,
    chance: &mut dyn Chance,
) -> Verdict {
    let dense = |law: &Law| (0..vocabulary as Token).map(|token| law.probability(token)).collect::<Vec<f64>>();
    let mut verdict = Verdict::default();
    let mut above = None;
    'node: loop {
        let node: Option<NodeId> = verdict.path.last().copied();
        let position = pass.start + verdict.path.len() as u64;
        let p = dense(&target.law(node));
        let mut r = p.clone();
        let offers: Vec<_> = tree.offers_under(node).copied().collect();
        for (i, offer) in offers.iter().enumerate() {
            let token = tree.token(offer.node);
            if fault == Fault::MergedOffers && offers[..i].iter().any(|earlier| earlier.node == offer.node) {
                continue;
            }
            let (mut q, mut noise) = (vec![0.0; vocabulary], Address::coin(pass, position, offer.index));
            match offer.proposal {
                Proposal::Point => q[token as usize] = 1.0,
                Proposal::Drawn(id) => {
                    q = dense(tree.law(id));
                    if fault == Fault::SharedNoise {
                        noise = Address::draft(pass, position, id);
                    }
                    for earlier in &offers[..i] {
                        if earlier.proposal == offer.proposal && fault != Fault::WithReplacement {
                            q[tree.token(earlier.node) as usize] = 0.0;
                        }
                    }
                }
            }
            let mass: f64 = q.iter().sum();
            q.iter_mut().for_each(|q| *q /= mass);
            q.iter_mut().for_each(|q| *q *= lenience);
            if chance.coin((r[token as usize] / q[token as usize]).min(1.0), noise) {
                verdict.path.push(offer.node);
                verdict.tokens.push(token);
                above = Some(p);
                continue 'node;
            }
            if fault == Fault::ResidualWithoutLenience {
                q.iter_mut().for_each(|q| *q /= lenience);
            }
            let gap = |(r, q): (&f64, &f64)| if fault == Fault::NoClamp { (r - q).abs() } else { (r - q).max(0.0) };
            let left: Vec<f64> = r.iter().zip(&q).map(gap).collect();
            let mass: f64 = left.iter().sum();
            if mass <= 0.0 {
                verdict.path.push(offer.node);
                verdict.tokens.push(token);
                above = Some(p);
                continue 'node;
            }
            r = left.iter().map(|left| left / mass).collect();
        }
        let own = match fault {
            Fault::ResidualIsTarget => p,
            Fault::BonusOffByOne if offers.is_empty() => above.unwrap_or(p),
            _ => r,
        };
        let own = Law::from_pairs(own.into_iter().enumerate().map(|(token, weight)| (token as Token, weight)));
        verdict.tokens.push(chance.pick(&own, Address::residual(pass, position)));
        return verdict;
    }
}
