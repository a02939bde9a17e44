//! Copying offers into the tree that is verified, without a change of law.
//!
//! Under *rejection* all drawn offers go first, in the order in which they were drawn. A point that a draw hangs on
//! comes right before that draw, since whether there is such a draw may have been decided by the draws before it; where
//! it stood as a candidate would be too early. All other points come after all draws: chosen by looking at draws, they
//! may stand behind these draws and never before, where their presence would tell of a draw that is still to be judged.
//! For the same reason a point that says what another drafter drew is not offered a second time.
//!
//! So an offer is only ever judged after offers that were settled before it was drawn: those before it under its
//! parent, and those that led to its parent, which was there when it was drawn. That is the premise of the proof in the
//! crate's head.

use crate::{DraftTree, NodeId, Offer, Proposal};

/// Copies into `tree` (cleared first) these nodes of the candidates, parents before children; where draws bind, behind
/// all drawn offers and the nodes that lead to them. Laws move over.
pub(super) fn copy(binds: bool, candidates: &mut DraftTree, nodes: impl Iterator<Item = NodeId>, tree: &mut DraftTree) {
    tree.clear();
    let mut copy = Copying::new(candidates, tree);
    let drawn = |offer: &&Offer| binds && matches!(offer.proposal, Proposal::Drawn(_));
    for offer in candidates.offers().iter().filter(drawn) {
        copy.way(candidates, offer.parent);
        copy.offer(candidates, offer);
    }
    for node in nodes {
        if copy.copy_of(node).is_none() {
            candidates.offers_of(node).for_each(|offer| copy.offer(candidates, offer));
        }
    }
    copy.settle();
}

/// How many offers of the tree may stand, if those from `asked_at` on are of a drafter that was asked for a tree of at
/// most `nodes_max` nodes; `None` if it obeyed and all may.
///
/// It should not have gone on when the tree was full, and this is where its offers are cut: whatever it said from there
/// on is dropped, and what it drew before stands, whatever it was. Whether an offer is dropped depends on those before
/// it and not on itself (a cut at the first offer *that does not fit* would look at what was drawn), so this is lawful
/// always.
pub fn lawful_offers(tree: &DraftTree, asked_at: usize, nodes_max: usize) -> Option<usize> {
    let offers = tree.offers();
    // Nodes are numbered as they are made, so the count before an offer is what the offers before it reach.
    let mut nodes = offers[..asked_at].iter().map(|offer| offer.node.index() + 1).max().unwrap_or(0);
    for (i, offer) in offers.iter().enumerate().skip(asked_at) {
        // Saying again as a point what is there already changes nothing.
        let harmless = offer.proposal == Proposal::Point && offer.node.index() < nodes;
        if nodes >= nodes_max && !harmless {
            return Some(i);
        }
        nodes = nodes.max(offer.node.index() + 1);
    }
    None
}

/// Keeps of the tree the offers that are wanted, in their order; a node without its parent is not wanted.
///
/// Under *rejection* it is the caller's part to show that no draw is dropped by looking at it.
pub fn retain(tree: &mut DraftTree, wanted: impl Fn(&Offer) -> bool) {
    let mut from = std::mem::take(tree);
    let mut copy = Copying::new(&mut from, tree);
    for offer in from.offers() {
        let has_parent = offer.parent.is_none_or(|parent| copy.copy_of(parent).is_some());
        if has_parent && wanted(offer) {
            copy.offer(&from, offer);
        }
    }
    copy.settle();
}

/// A tree that takes over the laws and some of the offers of another.
struct Copying<'t> {
    tree: &'t mut DraftTree,
    /// Where each node of the other tree is now.
    copies: Vec<Option<NodeId>>,
}

impl<'t> Copying<'t> {
    fn new(from: &mut DraftTree, tree: &'t mut DraftTree) -> Copying<'t> {
        tree.take_laws(from);
        Copying { tree, copies: vec![None; from.len()] }
    }

    fn copy_of(&self, node: NodeId) -> Option<NodeId> {
        self.copies[node.index()]
    }

    fn offer(&mut self, from: &DraftTree, offer: &Offer) {
        let parent = offer.parent.map(|parent| self.copy_of(parent).expect("parents are copied first"));
        let node = self.tree.suggest(parent, from.token(offer.node), offer.proposal, offer.source, offer.evidence);
        self.copies[offer.node.index()] = Some(node);
    }

    /// Copies the nodes down to this one that are not there yet, each as the point that it was first offered as. (A
    /// node that was first drawn is there: it was drawn before anything was drawn under it.)
    fn way(&mut self, from: &DraftTree, node: Option<NodeId>) {
        let missing = node.filter(|node| self.copy_of(*node).is_none());
        let Some(node) = missing else { return };
        self.way(from, from.parent(node));
        let first = from.offers_of(node).next().expect("a node has an offer");
        self.offer(from, first);
    }

    fn settle(self) {
        self.tree.settle_laws(&self.copies);
    }
}
