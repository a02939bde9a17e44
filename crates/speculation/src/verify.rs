//! The one verify function: from a draft tree and the target's laws it decides the tokens that are written.
//!
//! Verification does not know drafters. It gets a tree, and for each offer the law that it was drawn from; it asks for
//! the target's law only at nodes that it visits. Each promise has its file: `exact` (the target picks, and the tree is
//! compared with the pick), `rejection` (each offer is accepted or rejected so that the law stays p) and `block` (as
//! `rejection`, with the tree's leading chain judged as a whole). With an empty tree all three are plain decoding.
//! Under *exact* switching the drafter off changes no byte. Under the others the output depends on the drafts, but its
//! law does not; without drafters the same seed and request number give the same output again.
//!
//! `lenient` is beside them, not among them: a lossy verification, which changes the law and has a function of its own.

mod block;
mod exact;
mod lenient;
mod rejection;

pub use lenient::{Lenience, verify_leniently};

use crate::{Chance, DraftTree, Law, NodeId, Pass, Token};

/// What speculation promises about its output, compared with plain decoding.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// *exact*: same seed, same text as plain decoding, byte for byte.
    #[default]
    Exact,
    /// *rejection*: the same distribution as plain decoding, by rejection sampling (Leviathan et al. 2023, Algorithm 1,
    /// and its tree form). The promise holds as long as no two requests have both seed and number in common
    /// ([`Pass::request`]; the engine counts these numbers).
    Rejection,
    /// *rejection*, with the chain that was offered first judged as one block (Sun et al. 2025, Algorithm 2), which
    /// accepts at least as many of its tokens on average; all other offers are judged as under [`Promise::Rejection`].
    Block,
}

/// What a verify pass decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The accepted nodes, beginning with a child of the root, each the parent of the next.
    pub path: Vec<NodeId>,
    /// The tokens to write: those of the path, and exactly one more of the target's own (in the papers, the corrected
    /// token or the bonus token).
    pub tokens: Vec<Token>,
    /// For each of these tokens its probability under the target's law p at its position.
    pub probabilities: Vec<f64>,
}

impl Verdict {
    fn write(&mut self, token: Token, probability: f64) {
        self.tokens.push(token);
        self.probabilities.push(probability);
    }
}

/// The target's laws p over the nodes of a tree, after all sampling settings.
pub trait TargetLaws {
    /// The law of the token after this node (`None`: after the root). It is asked only for visited nodes; *block* may
    /// ask for the same node again.
    fn law(&mut self, node: Option<NodeId>) -> Law;
}

impl<F: FnMut(Option<NodeId>) -> Law> TargetLaws for F {
    fn law(&mut self, node: Option<NodeId>) -> Law {
        self(node)
    }
}

/// Decides which proposals are accepted, and adds the target's own token.
///
/// The noise of its draws is addressed by `pass`. The verdict has at least one token, and one more than its path.
///
/// ```
/// use foretoken_speculation::{Address, Chance, DraftTree, Law, NodeId, Pass, Promise, Proposal, Token, verify};
///
/// // A target that counts: 7, 8, 9. It is certain, so no chance is needed.
/// struct NoChance;
/// impl Chance for NoChance {
///     fn draw(&mut self, _: &Law, _: usize, address: Address, _: &mut Vec<Token>) { panic!("{address:?}") }
///     fn coin(&mut self, _: f64, address: Address) -> bool { panic!("{address:?}") }
/// }
/// let mut tree = DraftTree::new();
/// let seven = tree.offer(None, 7, Proposal::Point, 0);
/// tree.offer(Some(seven), 5, Proposal::Point, 0);
/// let mut target = |node: Option<NodeId>| Law::point(if node.is_none() { 7 } else { 8 });
/// let pass = Pass { seed: 0, request: 0, start: 3 };
/// let verdict = verify(&tree, &mut target, Promise::Exact, pass, &mut NoChance);
/// assert_eq!(verdict.path, [seven]);
/// assert_eq!(verdict.tokens, [7, 8]);
/// ```
pub fn verify(
    tree: &DraftTree,
    target: &mut dyn TargetLaws,
    promise: Promise,
    pass: Pass,
    chance: &mut dyn Chance,
) -> Verdict {
    let verdict = match promise {
        Promise::Exact => exact::verify(tree, target, pass, chance),
        Promise::Rejection => rejection::verify(tree, target, pass, chance),
        Promise::Block => block::verify(tree, target, pass, chance),
    };
    debug_assert_eq!(verdict.tokens.len(), verdict.path.len() + 1);
    debug_assert_eq!(verdict.tokens.len(), verdict.probabilities.len());
    verdict
}
