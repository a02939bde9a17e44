//! Random tokens: a drafter without any knowledge, some of whose tokens are accepted nevertheless.
//!
//! Leviathan et al. 2023 (section 3.6) name it as the model of negligible cost that improves every target a little: its
//! q is uniform, so a token is accepted with probability sum of min(p, 1/V), at least about 1/V. It is used in tests:
//! it produces laws, forks and depths that no other drafter produces.
//!
//! With a large vocabulary a law over all of it would cost too much. The law is then uniform over a window of
//! `support_max` tokens, whose position is a hash of seed, position and node: over many passes it covers every token.

use foretoken_speculation::{Ask, Drafter, Draws};
use foretoken_speculation::{Chance, Evidence, Law, NodeId, Token};

/// A [`Drafter`] that chooses tokens at random.
#[derive(Debug)]
pub struct RandomDrafter {
    /// Maximum number of nodes proposed per pass.
    pub nodes_max: usize,
    /// Whether trees have random shapes; otherwise they are chains.
    pub forks: bool,
    /// Maximum number of tokens of a law.
    pub support_max: usize,
    vocabulary: usize,
    draws: Draws,
}

impl RandomDrafter {
    /// A drafter of chains of up to 5 tokens of a vocabulary of this size.
    ///
    /// # Panics
    ///
    /// Panics if the vocabulary is empty.
    pub fn new(vocabulary: usize) -> RandomDrafter {
        assert!(vocabulary > 0, "a vocabulary of no tokens");
        RandomDrafter { nodes_max: 5, forks: false, support_max: 256, vocabulary, draws: Draws::default() }
    }

    /// The uniform law over the window of this hash.
    fn law(&self, hash: u64) -> Law {
        let support = self.support_max.clamp(1, self.vocabulary);
        let first = if support < self.vocabulary { hash % self.vocabulary as u64 } else { 0 };
        let token = |i: usize| ((first as usize + i) % self.vocabulary) as Token;
        Law::from_pairs((0..support).map(|i| (token(i), 1.0)))
    }

    /// The number of the parent of each node to be proposed, 0 for the root. It is drawn before any token is.
    fn shape(&self, nodes: usize, hash: u64) -> Vec<usize> {
        let parent = |i: usize| if self.forks { mix(hash ^ i as u64) as usize % (i + 1) } else { i };
        (0..nodes).map(parent).collect()
    }

    /// Draws `count` tokens under a node and offers them.
    fn propose(
        &mut self,
        ask: &mut Ask<'_>,
        parent: Option<NodeId>,
        count: usize,
        hash: u64,
        chance: &mut dyn Chance,
    ) -> Vec<NodeId> {
        let law = self.law(hash);
        // The estimate is the mean probability of a token.
        let evidence = Evidence::of_law(1.0 / self.vocabulary as f32, law.probabilities()[0]);
        ask.draw(parent, law, count, &[], chance, &mut self.draws);
        let Draws { tokens, proposal, .. } = &self.draws;
        let (tree, source) = (&mut *ask.tree, ask.source);
        tokens.iter().map(|(token, _)| tree.suggest(parent, *token, *proposal, source, evidence)).collect()
    }
}

impl Drafter for RandomDrafter {
    fn name(&self) -> &str {
        "random"
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        for ask in asks {
            let hash = mix(ask.seed ^ mix(ask.position() ^ u64::from(ask.source) << 48));
            let shape = self.shape(ask.room().min(self.nodes_max), hash);
            // The node of each number in the shape, if the law had a token for it.
            let mut nodes: Vec<Option<NodeId>> = vec![None; shape.len() + 1];
            for at in 0..shape.len() {
                let children: Vec<usize> = (0..shape.len()).filter(|&i| shape[i] == at).map(|i| i + 1).collect();
                if children.is_empty() || (at > 0 && nodes[at].is_none()) {
                    continue;
                }
                let found = self.propose(ask, nodes[at], children.len(), mix(hash ^ at as u64), chance);
                children.iter().zip(found).for_each(|(&child, node)| nodes[child] = Some(node));
            }
        }
    }
}

/// SplitMix64: a hash of a number.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
