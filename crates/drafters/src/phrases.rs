//! Fixed phrases: once one has begun, the rest of it is proposed. "to" is proposed after "going".
//!
//! The phrases are a trie of their tokens. From each of the last tokens of the sequence, as many as the longest phrase
//! has, the trie is followed to the end of the sequence; so no state is kept per sequence, and the time does not depend
//! on the number of phrases. The longest beginning that the sequence ends with comes first; all continuations of a
//! beginning are proposed, in the order of the list.
//!
//! A phrase of which n tokens are written is assumed to continue with probability n / (n + 1), divided among its
//! continuations; the engine calibrates this estimate.
//!
//! Phrases are given as tokens. A phrase with several tokenizations, as with and without a space before it, is given
//! once for each.

use std::collections::HashMap;

use foretoken_speculation::{Ask, Drafter};
use foretoken_speculation::{Chance, Evidence, NodeId, Proposal, Token};

/// A [`Drafter`] that completes phrases of a list. Proposes point masses; needs no model and no chance.
#[derive(Clone, Debug)]
pub struct PhrasesDrafter {
    nodes: Vec<Beginning>,
    /// From a node and a token to the node of the beginning that is longer by this token.
    longer: HashMap<(u32, Token), u32>,
    /// Tokens of the longest phrase.
    len_max: usize,
}

/// Some first tokens of a phrase. The empty beginning is node 0.
#[derive(Clone, Debug, Default)]
struct Beginning {
    /// The tokens that continue it, in the order of the list.
    next: Vec<Token>,
    len: usize,
}

impl PhrasesDrafter {
    /// A drafter of these phrases, the most important first. Phrases of fewer than two tokens are ignored.
    ///
    /// ```
    /// use foretoken_drafters::PhrasesDrafter;
    /// let going_to = PhrasesDrafter::new([vec![7, 8], vec![7, 8, 9]]);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the phrases have 2^32 tokens or more.
    pub fn new(phrases: impl IntoIterator<Item = Vec<Token>>) -> PhrasesDrafter {
        let mut drafter = PhrasesDrafter { nodes: vec![Beginning::default()], longer: HashMap::new(), len_max: 0 };
        for phrase in phrases {
            drafter.len_max = drafter.len_max.max(phrase.len());
            let mut at = 0;
            for &token in phrase.iter().filter(|_| phrase.len() > 1) {
                at = drafter.child(at, token);
            }
        }
        drafter
    }

    fn child(&mut self, parent: u32, token: Token) -> u32 {
        if let Some(&node) = self.longer.get(&(parent, token)) {
            return node;
        }
        let node = u32::try_from(self.nodes.len()).expect("phrases of fewer than 2^32 tokens");
        let len = self.nodes[parent as usize].len + 1;
        self.nodes[parent as usize].next.push(token);
        self.nodes.push(Beginning { next: Vec::new(), len });
        self.longer.insert((parent, token), node);
        node
    }

    /// Proposes all continuations of a beginning, depth first. `gain`: of the path to `parent`.
    fn complete(&self, ask: &mut Ask<'_>, parent: Option<NodeId>, node: u32, gain: f32) {
        let beginning = &self.nodes[node as usize];
        let written = beginning.len as f32;
        let acceptance = written / (written + 1.0) / beginning.next.len().max(1) as f32;
        for &token in &beginning.next {
            if !ask.has_room() {
                return;
            }
            let evidence = Evidence::estimate(acceptance);
            let child = ask.tree.suggest(parent, token, Proposal::Point, ask.source, evidence);
            let gain = gain * acceptance;
            if ask.is_confident(acceptance, gain) {
                self.complete(ask, Some(child), self.longer[&(node, token)], gain);
            }
        }
    }
}

impl Drafter for PhrasesDrafter {
    fn name(&self) -> &str {
        "phrases"
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        for ask in asks {
            let last = &ask.tokens[ask.tokens.len().saturating_sub(self.len_max)..];
            for start in 0..last.len() {
                let node = last[start..].iter().try_fold(0, |node, &token| self.longer.get(&(node, token)).copied());
                node.into_iter().for_each(|node| self.complete(ask, None, node, 1.0));
            }
        }
    }
}

#[cfg(test)]
mod tests;
