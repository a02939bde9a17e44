//! *exact*: the target picks each token itself, and the tree only decides whether the same pass can pick the next.
//!
//! The token at position n is a function of the target's law at n and of noise addressed by (seed, n). The tree appears
//! in neither, so it cannot change the text; it only changes how many tokens are picked in one pass. Hence the drafter
//! needs no law, every sampler works, and greedy is the case of a point mass. The disadvantage compared with
//! *rejection* is that a drafter with the right law that draws with other noise is rejected more often (the coupling of
//! both draws is analysed by Daliri et al. 2024).

use super::{TargetLaws, Verdict};
use crate::{Address, Chance, DraftTree, Pass};

pub(super) fn verify(tree: &DraftTree, target: &mut dyn TargetLaws, pass: Pass, chance: &mut dyn Chance) -> Verdict {
    let mut verdict = Verdict::default();
    loop {
        let node = verdict.path.last().copied();
        let position = pass.start + verdict.path.len() as u64;
        let law = target.law(node);
        let token = chance.pick(&law, Address::token(pass.seed, position));
        verdict.write(token, law.probability(token));
        match tree.child(node, token) {
            Some(child) => verdict.path.push(child),
            None => return verdict,
        }
    }
}
