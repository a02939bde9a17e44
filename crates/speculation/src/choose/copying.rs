//! Copying offers into the tree that is verified, without a change of law.
//!
//! Under *rejection* all drawn offers go first, in the order in which they were drawn. A point that is an ancestor of a
//! draw comes right before that draw: earlier draws may have decided whether there is such a draw, so the point must
//! not come before them, as it may among the candidates. All other points come after all draws: they are chosen by
//! looking at the draws, so before a draw their presence would depend on a value that verification has not judged yet.
//! For the same reason a point that repeats what another drafter drew is not offered a second time.
//!
//! So every offer is judged only after offers that were determined before it was drawn: those before it under its
//! parent, and those that led to its parent, which was there when it was drawn. That is the premise of the proof in the
//! documentation of the crate.

use crate::{DraftTree, NodeId, Offer, Proposal};

/// Copies into `tree` (cleared first) these nodes of the candidates, parents before children. With `keeps_draws`, all
/// drawn offers and their ancestors come first. The laws are moved.
pub(super) fn copy(
    keeps_draws: bool,
    candidates: &mut DraftTree,
    nodes: impl Iterator<Item = NodeId>,
    tree: &mut DraftTree,
) {
    tree.clear();
    let mut copy = Copying::new(candidates, tree);
    let drawn = |offer: &&Offer| keeps_draws && matches!(offer.proposal, Proposal::Drawn(_));
    for offer in candidates.offers().iter().filter(drawn) {
        copy.path_to(candidates, offer.parent);
        copy.offer(candidates, offer);
    }
    for node in nodes {
        if copy.copy_of(node).is_none() {
            candidates.offers_of(node).for_each(|offer| copy.offer(candidates, offer));
        }
    }
    copy.finish();
}

/// The number of offers of the tree that stay, given that the offers from `asked_at` on were made by a drafter that was
/// asked for a tree of at most `nodes_max` nodes; `None` if it kept to that limit and all stay.
///
/// The offers are cut at the first one that was made to a full tree: it and all later ones are dropped, and the draws
/// before it stay, whatever they are. Whether an offer is dropped depends on those before it and not on itself, so the
/// law of the output is kept. (A cut at the first offer that does not fit would depend on what was drawn.)
pub fn lawful_offers(tree: &DraftTree, asked_at: usize, nodes_max: usize) -> Option<usize> {
    let offers = tree.offers();
    // Nodes are numbered as they are made, so the highest node of the earlier offers gives their number of nodes.
    let mut nodes = offers[..asked_at].iter().map(|offer| offer.node.index() + 1).max().unwrap_or(0);
    for (i, offer) in offers.iter().enumerate().skip(asked_at) {
        // A point for a node that exists already changes nothing.
        let harmless = offer.proposal == Proposal::Point && offer.node.index() < nodes;
        if nodes >= nodes_max && !harmless {
            return Some(i);
        }
        nodes = nodes.max(offer.node.index() + 1);
    }
    None
}

/// Keeps those offers of the tree for which `wanted` holds and whose parent is kept, in their order.
///
/// Under *rejection* the caller must make sure that no draw is dropped by looking at it.
pub fn retain(tree: &mut DraftTree, wanted: impl Fn(&Offer) -> bool) {
    let mut from = std::mem::take(tree);
    let mut copy = Copying::new(&mut from, tree);
    for offer in from.offers() {
        let has_parent = offer.parent.is_none_or(|parent| copy.copy_of(parent).is_some());
        if has_parent && wanted(offer) {
            copy.offer(&from, offer);
        }
    }
    copy.finish();
}

/// A tree that takes over the laws and some of the offers of another.
struct Copying<'t> {
    tree: &'t mut DraftTree,
    /// The copy of each node of the other tree, if there is one.
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

    /// Copies the nodes down to this one that are not copied yet, each as the point that it was first offered as. (A
    /// node that was drawn first is copied already, since it was drawn before anything was drawn under it.)
    fn path_to(&mut self, from: &DraftTree, node: Option<NodeId>) {
        let missing = node.filter(|node| self.copy_of(*node).is_none());
        let Some(node) = missing else { return };
        self.path_to(from, from.parent(node));
        let first = from.offers_of(node).next().expect("a node has an offer");
        self.offer(from, first);
    }

    fn finish(self) {
        self.tree.remap_kept_laws(&self.copies);
    }
}
