//! The draft tree: the proposed tokens in flat arrays, each node with its parent.
//!
//! *Nodes* are the rows of a verify pass: a token under a parent, each pair at most once. *Offers* are what
//! verification walks: who proposed the node, and from which law, in the order in which it happened. The two differ
//! when two drafters propose the same token: they then share one node (one row to compute) but both offers stay,
//! because under *rejection* the order and the law of every draw matter. The root is not a node: it is the pending
//! token, which has no cache row yet, and is written `None`. A chain is a tree without forks.
//!
//! A drafter cannot remove an offer, since dropping a drawn token after having looked at it would change the law of the
//! output. Which part of the tree is verified is decided by [`crate::choose`].

use crate::{Law, Token};

/// A node of a [`DraftTree`]: its index in [`DraftTree::tokens`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    /// The node of this index.
    ///
    /// # Panics
    ///
    /// Panics if `index` does not fit 32 bits.
    pub fn new(index: usize) -> NodeId {
        NodeId(u32::try_from(index).unwrap_or_else(|_| panic!("node {index} does not fit 32 bits")))
    }

    /// Its index in the tree's arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A draft law kept in a [`DraftTree`], from which one or more siblings were drawn.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LawId(u32);

impl LawId {
    /// Its index among the laws of its tree.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How an offered token was found.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// Without chance, or by a chance that verification need not know: a point mass. This is allowed under every
    /// promise.
    Point,
    /// Drawn from this law q, without replacement among the earlier siblings drawn from it.
    Drawn(LawId),
}

/// A drafter's estimate of its own proposal. It decides which proposals are verified, and is shown to users; it never
/// decides what is accepted.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Evidence {
    /// Estimated probability that the target writes this token once it has written the node's parent, 0 to 1.
    pub acceptance: f32,
    /// Probability of the token under the drafter's own law, after its sampling settings, if the drafter has a law.
    pub q: Option<f32>,
}

impl Evidence {
    /// The evidence of a proposal of which nothing is known: an acceptance of one half.
    pub const UNKNOWN: Evidence = Evidence { acceptance: 0.5, q: None };

    /// The evidence of a drafter without a law, such as a lookup: an estimate, clamped between 0 and 1.
    pub fn estimate(acceptance: f32) -> Evidence {
        Evidence { acceptance: acceptance.clamp(0.0, 1.0), q: None }
    }

    /// The evidence of a drafter with a law: its confidence before sampling settings, and q after them.
    pub fn of_law(confidence: f32, q: f64) -> Evidence {
        Evidence { acceptance: confidence.clamp(0.0, 1.0), q: Some(q as f32) }
    }

    /// The estimated acceptance, clamped between 0 and 1; NaN counts as 0.
    pub(crate) fn clamped_acceptance(&self) -> f32 {
        if self.acceptance > 0.0 { self.acceptance.min(1.0) } else { 0.0 }
    }
}

/// One proposal as it was made: a node and the law it came from.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Offer {
    /// Index among all offers of the tree, in the order in which they were made.
    pub index: u32,
    /// The node that is proposed.
    pub node: NodeId,
    /// The parent of the node (`None`: the root).
    pub parent: Option<NodeId>,
    /// How the token was found.
    pub proposal: Proposal,
    /// The drafter that made the offer.
    pub source: u8,
    /// The drafter's estimate of the offer.
    pub evidence: Evidence,
}

/// Proposed tokens as a tree, parents before children.
///
/// ```
/// use foretoken_speculation::{DraftTree, Proposal};
/// let mut tree = DraftTree::new();
/// let first = tree.offer(None, 7, Proposal::Point, 0);
/// let second = tree.offer(Some(first), 8, Proposal::Point, 0);
/// assert_eq!(tree.path(second), [7, 8]);
/// assert_eq!(tree.offer(None, 7, Proposal::Point, 1), first); // a second drafter shares the node
/// assert_eq!((tree.len(), tree.offers().len()), (2, 3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct DraftTree {
    tokens: Vec<Token>,
    parents: Vec<Option<NodeId>>,
    depths: Vec<u32>,
    sources: Vec<u8>,
    offers: Vec<Offer>,
    /// Laws that offers were drawn from, by their ids.
    laws: Vec<Law>,
    /// Laws that are only kept to be compared with the target's: nothing is offered as drawn from them. They have no
    /// ids, so that keeping one does not change the address of any draw.
    kept: Vec<KeptLaw>,
    /// Whether `keep_law` drops its laws at once, because nothing reads them.
    drops_kept_laws: bool,
}

#[derive(Clone, Debug)]
struct KeptLaw {
    parent: Option<NodeId>,
    source: u8,
    law: Law,
}

impl DraftTree {
    /// A tree that has only the root.
    pub fn new() -> DraftTree {
        DraftTree::default()
    }

    /// Removes every node, offer and law, and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
        self.depths.clear();
        self.sources.clear();
        self.offers.clear();
        self.laws.clear();
        self.kept.clear();
    }

    /// Number of nodes, without the root.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no node, as in plain decoding.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Keeps a draft law, so that tokens drawn from it can be offered under one parent.
    ///
    /// Add the law *before* drawing: its id is part of the draw's address ([`crate::Address::draft`]), which is what
    /// keeps the noise of two drafters, or of two nodes, apart.
    pub fn add_law(&mut self, law: Law) -> LawId {
        let id = u32::try_from(self.laws.len()).expect("fewer than 2^32 laws in a tree");
        self.laws.push(law);
        LawId(id)
    }

    /// Keeps a draft law from which nothing is offered as drawn, so that it can be compared with the target's: this is
    /// for any law under *exact*, and for a point mass under every promise.
    pub fn keep_law(&mut self, parent: Option<NodeId>, law: Law, source: u8) {
        if !self.drops_kept_laws {
            self.kept.push(KeptLaw { parent, source, law });
        }
    }

    /// Sets whether laws are kept to be compared ([`DraftTree::keep_law`]), which is the default. Without a filter each
    /// law takes 12 bytes a token of the vocabulary.
    pub fn compare_laws(&mut self, compares: bool) {
        self.drops_kept_laws = !compares;
    }

    /// The draft laws under one parent, with the drafters that they belong to.
    pub fn laws_under(&self, parent: Option<NodeId>) -> impl Iterator<Item = (u8, &Law)> {
        let drawn = (0..).zip(&self.laws).filter_map(move |(id, law)| {
            let offer = self.offers_under(parent).find(|offer| offer.proposal == Proposal::Drawn(LawId(id)))?;
            Some((offer.source, law))
        });
        let kept = self.kept.iter().filter(move |kept| kept.parent == parent);
        drawn.chain(kept.map(|kept| (kept.source, &kept.law)))
    }

    /// Takes over the laws of another tree whose offers are about to be copied; ids stay the same.
    pub(crate) fn take_laws(&mut self, other: &mut DraftTree) {
        self.laws.clear();
        self.laws.append(&mut other.laws);
        self.kept.clear();
        self.kept.append(&mut other.kept);
    }

    /// Replaces the parents of the kept laws, which are nodes of the other tree, by their copies in this one; `copies`
    /// is indexed by the other tree's nodes. Laws of nodes that were not copied are dropped.
    pub(crate) fn remap_kept_laws(&mut self, copies: &[Option<NodeId>]) {
        self.kept.retain_mut(|kept| {
            let Some(parent) = kept.parent else { return true };
            kept.parent = copies[parent.index()];
            kept.parent.is_some()
        });
    }

    /// The law with this id.
    ///
    /// # Panics
    ///
    /// Panics if the id is of another tree, or from before [`DraftTree::clear`].
    pub fn law(&self, id: LawId) -> &Law {
        &self.laws[id.index()]
    }

    /// [`DraftTree::suggest`] for a drafter that has no estimate of its proposal.
    ///
    /// # Panics
    ///
    /// As [`DraftTree::suggest`].
    pub fn offer(&mut self, parent: Option<NodeId>, token: Token, proposal: Proposal, source: u8) -> NodeId {
        self.suggest(parent, token, proposal, source, Evidence::UNKNOWN)
    }

    /// Proposes `token` after `parent` and returns its node: the existing one if the same token was proposed before.
    ///
    /// # Panics
    ///
    /// Panics if the parent is not in the tree; if a drawn token has probability zero under its law; if a law is used
    /// under two parents; if a law offers a token twice under its parent (draws are without replacement).
    pub fn suggest(
        &mut self,
        parent: Option<NodeId>,
        token: Token,
        proposal: Proposal,
        source: u8,
        evidence: Evidence,
    ) -> NodeId {
        if let Some(parent) = parent {
            assert!(parent.index() < self.len(), "parent {} of {} nodes", parent.index(), self.len());
        }
        if let Proposal::Drawn(id) = proposal {
            self.check_draw(parent, token, id);
        }
        let node = self.child(parent, token).unwrap_or_else(|| {
            let node = NodeId::new(self.len());
            let depth = parent.map_or(0, |parent| self.depths[parent.index()]) + 1;
            self.tokens.push(token);
            self.parents.push(parent);
            self.depths.push(depth);
            self.sources.push(source);
            node
        });
        let index = u32::try_from(self.offers.len()).expect("fewer than 2^32 offers in a tree");
        self.offers.push(Offer { index, node, parent, proposal, source, evidence });
        node
    }

    fn check_draw(&self, parent: Option<NodeId>, token: Token, id: LawId) {
        assert!(self.law(id).probability(token) > 0.0, "token {token} was drawn from a law that gives it zero");
        for before in self.offers.iter().filter(|offer| offer.proposal == Proposal::Drawn(id)) {
            let (id, first) = (id.index(), before.parent);
            assert!(first == parent, "law {id} belongs under {first:?} and was offered under {parent:?}");
            assert!(self.token(before.node) != token, "token {token} was drawn twice from law {id}");
        }
    }

    /// The child of `parent` with this token, if proposed.
    pub fn child(&self, parent: Option<NodeId>, token: Token) -> Option<NodeId> {
        // Trees have a few dozen nodes: a scan over two small arrays beats any map.
        let first = parent.map_or(0, |parent| parent.index() + 1);
        (first..self.len()).find(|&i| self.tokens[i] == token && self.parents[i] == parent).map(NodeId::new)
    }

    /// The token of a node.
    pub fn token(&self, node: NodeId) -> Token {
        self.tokens[node.index()]
    }

    /// The parent of a node, `None` for a child of the root.
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.parents[node.index()]
    }

    /// Distance from the root in tokens: 1 for a child of the root.
    pub fn depth(&self, node: NodeId) -> usize {
        self.depths[node.index()] as usize
    }

    /// The drafter that offered the node first.
    pub fn source(&self, node: NodeId) -> u8 {
        self.sources[node.index()]
    }

    /// Tokens of all nodes, in node order.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Parents of all nodes, in node order; each parent comes before its children.
    pub fn parents(&self) -> &[Option<NodeId>] {
        &self.parents
    }

    /// All nodes, parents before children.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> + use<> {
        (0..self.len()).map(NodeId::new)
    }

    /// All offers in the order in which they were made.
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// The offers under one parent in the order in which they were made.
    pub fn offers_under(&self, parent: Option<NodeId>) -> impl Iterator<Item = &Offer> {
        self.offers.iter().filter(move |offer| offer.parent == parent)
    }

    /// The offers that made a node, in the order in which they were made; at least one.
    pub fn offers_of(&self, node: NodeId) -> impl Iterator<Item = &Offer> {
        self.offers.iter().filter(move |offer| offer.node == node)
    }

    /// Estimated probability that the target writes the node once it has written its parent: the sum of its drafters'
    /// estimates, at most 1.
    pub fn acceptance(&self, node: NodeId) -> f32 {
        self.offers_of(node).map(|offer| offer.evidence.acceptance).sum::<f32>().min(1.0)
    }

    /// The chain of first offers from the root down: the draft, had it been limited to one chain.
    pub fn main_chain(&self) -> Vec<NodeId> {
        let mut chain: Vec<NodeId> = Vec::new();
        while let Some(offer) = self.offers_under(chain.last().copied()).next() {
            chain.push(offer.node);
        }
        chain
    }

    /// The nodes of the longest path from the root whose tokens are the first of `tokens`, without the root.
    pub fn follow(&self, tokens: &[Token]) -> Vec<NodeId> {
        let mut path: Vec<NodeId> = Vec::new();
        while let Some(node) = tokens.get(path.len()).and_then(|token| self.child(path.last().copied(), *token)) {
            path.push(node);
        }
        path
    }

    /// The tokens of the path from the root to the node, including the node's.
    pub fn path(&self, node: NodeId) -> Vec<Token> {
        let mut path = Vec::new();
        self.path_into(Some(node), &mut path);
        path
    }

    /// Writes into `path` the tokens of [`DraftTree::path`]; none for the root.
    pub fn path_into(&self, node: Option<NodeId>, path: &mut Vec<Token>) {
        path.clear();
        let mut at = node;
        while let Some(node) = at {
            path.push(self.token(node));
            at = self.parent(node);
        }
        path.reverse();
    }

    /// Whether no node has two children (an empty tree is a chain).
    pub fn is_chain(&self) -> bool {
        self.parents.iter().enumerate().all(|(i, &parent)| parent.map_or(0, |parent| parent.index() + 1) == i)
    }
}

#[cfg(test)]
mod tests;
