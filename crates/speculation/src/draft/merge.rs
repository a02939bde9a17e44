//! Merging: candidates of several drafters in, the tree that is worth verifying out.
//!
//! Drafters that share a pass fill one tree of candidates, equal branches sharing their nodes. Of these candidates the
//! best stay. The gain of a node is the estimated probability that it is accepted: the product along its path of what
//! its drafters think, added up where several propose the same, less where they contradict each other, each corrected by
//! how often that drafter was right ([`Calibration`]). Gains never grow downwards, so taking the best nodes takes whole branches from the root on.
//!
//! What may be dropped is the law's business. Under *exact* everything may: offers are only consulted. Under *rejection* a
//! drawn token must be offered whatever it is, so all drawn offers go first, in the order in which they were drawn. A point
//! that a draw hangs on comes right before that draw, since whether there is such a draw may have been decided by the draws
//! before it; its place as a candidate would be too early. All other points come after all draws: chosen by looking at
//! draws, they may stand behind these draws and never before, where their presence would tell of a draw that is still to be
//! judged. For the same reason a point that says what another drafter drew is not offered a second time.
//!
//! So an offer is only ever judged after offers that were settled before it was drawn: those before it under its parent, and
//! those that led to its parent, which was there when it was drawn. That is the premise of the proof in the crate's head.
//!
//! Left out: what drafting costs, which is a budget's business.

use crate::{DraftTree, NodeId, Offer, Promise, Proposal};

/// How often each drafter of a sequence was right, next to what it thought.
///
/// Counts are decayed, so that the last fifty or so judged guesses decide. A drafter whose guesses are not judged, because
/// others' are better, is believed again little by little: so it can come back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// By drafter.
    counts: Vec<Count>,
}

/// Decayed counts of one drafter.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Count {
    judged: f32,
    /// Sum of the opinions of the judged guesses: what it expected.
    expected: f32,
    /// How many of them were accepted.
    found: f32,
    /// Whether any was judged in the last pass.
    fresh: bool,
}

impl Count {
    fn decay(&mut self) {
        (self.judged, self.expected, self.found) = (self.judged * DECAY, self.expected * DECAY, self.found * DECAY);
    }
}

/// Weight of the belief that a drafter is right in its opinion, in judged guesses.
const PRIOR: f32 = 4.0;
/// A row costs some hundredths of a pass on a CPU, so a guess that is accepted more rarely than this is not worth one.
const GAIN_MIN: f32 = 0.05;
/// However sure a drafter is, another may know better.
const CLAIM_MAX: f32 = 0.95;
/// What is left of an old count when a new guess is judged, and after a pass in which none was.
const DECAY: f32 = 0.98;

impl Calibration {
    /// By what to multiply the opinion of this drafter: the share of its guesses that is accepted, over the mean of its
    /// opinions, where a few guesses that were as good as it thought are taken for granted.
    pub fn factor(&self, source: u8) -> f32 {
        let count = self.counts.get(usize::from(source)).copied().unwrap_or_default();
        if count.judged < 1e-3 || count.expected <= 0.0 {
            return 1.0;
        }
        let mean = count.expected / count.judged;
        (count.found + PRIOR * mean) / (count.expected + PRIOR * mean)
    }

    /// Learns from a verified tree: the guesses under the root and under each accepted node were judged.
    pub fn learn(&mut self, tree: &DraftTree, path: &[NodeId]) {
        self.counts.iter_mut().for_each(|count| count.fresh = false);
        let accepted = path.iter().map(|&node| Some(node)).chain([None]);
        let visited = std::iter::once(None).chain(path.iter().map(|&node| Some(node)));
        for (parent, accepted) in visited.zip(accepted) {
            for offer in tree.offers_under(parent) {
                let source = usize::from(offer.source);
                if self.counts.len() <= source {
                    self.counts.resize(source + 1, Count::default());
                }
                let count = &mut self.counts[source];
                count.decay();
                count.judged += 1.0;
                count.expected += opinion(offer);
                count.found += f32::from(u8::from(Some(offer.node) == accepted));
                count.fresh = true;
            }
        }
        self.counts.iter_mut().filter(|count| !count.fresh).for_each(Count::decay);
    }
}

/// How many nodes the tree of `candidates` nodes may have when the next of several drafters is asked, for a pass of up to
/// `nodes_max`; `to_come` are asked after it.
///
/// Under *exact* each may fill the whole pass, for anything can be dropped. Under the other promises draws cannot, so the
/// candidates must fit into the pass: a quarter of what is left is kept for those to come.
pub fn share(promise: Promise, nodes_max: usize, candidates: usize, to_come: usize) -> usize {
    let left = nodes_max.saturating_sub(candidates);
    match promise {
        Promise::Exact => candidates.saturating_add(nodes_max),
        Promise::Rejection | Promise::Block if to_come == 0 => nodes_max,
        Promise::Rejection | Promise::Block => nodes_max - left / 4,
    }
}

/// How many offers of the tree may stand, if those from `asked_at` on are of a drafter that was asked for a tree of at most
/// `nodes_max` nodes; `None` if it obeyed and all may.
///
/// It should not have gone on when the tree was full, and this is where its offers are cut: whatever it said from there on
/// is dropped, and what it drew before stands, whatever it was. Whether an offer is dropped depends on those before it and
/// not on itself (a cut at the first offer *that does not fit* would look at what was drawn), so this is lawful always.
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
        let has_parent = offer.parent.is_none_or(|parent| copy.place(parent).is_some());
        if has_parent && wanted(offer) {
            copy.offer(&from, offer);
        }
    }
    copy.settle();
}

/// Copies into `tree` (cleared first) the best of the candidates: all drawn ones, then points up to `nodes_max` nodes; under
/// *exact*, where a draw is no more than a point, the best up to `nodes_max`.
///
/// Laws move over, so the candidates are left without a use.
pub fn merge(
    promise: Promise,
    candidates: &mut DraftTree,
    calibration: &Calibration,
    nodes_max: usize,
    tree: &mut DraftTree,
) {
    tree.clear();
    let mut copy = Copying::new(candidates, tree);
    let binds = promise != Promise::Exact;
    let drawn = |offer: &&Offer| binds && matches!(offer.proposal, Proposal::Drawn(_));
    for offer in candidates.offers().iter().filter(drawn) {
        copy.way(candidates, offer.parent);
        copy.offer(candidates, offer);
    }
    for node in ranked(candidates, calibration) {
        if copy.tree.len() >= nodes_max {
            break;
        }
        if copy.place(node).is_none() {
            candidates.offers_of(node).for_each(|offer| copy.offer(candidates, offer));
        }
    }
    copy.settle();
}

/// A tree that takes over the laws and some of the offers of another.
struct Copying<'t> {
    tree: &'t mut DraftTree,
    /// Where each node of the other tree is now.
    places: Vec<Option<NodeId>>,
}

impl<'t> Copying<'t> {
    fn new(from: &mut DraftTree, tree: &'t mut DraftTree) -> Copying<'t> {
        tree.take_laws(from);
        Copying { tree, places: vec![None; from.len()] }
    }

    fn place(&self, node: NodeId) -> Option<NodeId> {
        self.places[node.index()]
    }

    fn offer(&mut self, from: &DraftTree, offer: &Offer) {
        let parent = offer.parent.map(|parent| self.place(parent).expect("parents are copied first"));
        let node = self.tree.suggest(parent, from.token(offer.node), offer.proposal, offer.source, offer.evidence);
        self.places[offer.node.index()] = Some(node);
    }

    /// Copies the nodes down to this one that are not there yet, each as the point that it was first offered as. (A node
    /// that was first drawn is there: it was drawn before anything was drawn under it.)
    fn way(&mut self, from: &DraftTree, node: Option<NodeId>) {
        let missing = node.filter(|node| self.place(*node).is_none());
        let Some(node) = missing else { return };
        self.way(from, from.parent(node));
        let first = from.offers_of(node).next().expect("a node has an offer");
        self.offer(from, first);
    }

    fn settle(self) {
        self.tree.settle_laws(&self.places);
    }
}

/// How probably an offer is accepted, by what its drafter thinks of it.
///
/// A token that was drawn is accepted more often than it is drawn: under *exact* because the target races with the same
/// noise, under *rejection* because of min(1, p / q), which for equal laws is 1 whatever q is. Its square root lies between.
fn opinion(offer: &Offer) -> f32 {
    let acceptance = offer.evidence.sound();
    match offer.evidence.q {
        Some(q) if q < 1.0 => acceptance.sqrt(),
        _ => acceptance,
    }
}

/// The nodes that are worth a row, the most probably accepted first; of equals the one proposed first.
fn ranked(candidates: &DraftTree, calibration: &Calibration) -> Vec<NodeId> {
    let mut gains: Vec<f32> = vec![0.0; candidates.len()];
    let mut siblings = Siblings::default();
    siblings.judge(candidates, None, calibration, &mut gains);
    for node in candidates.nodes() {
        if let Some(parent) = candidates.parent(node) {
            gains[node.index()] *= gains[parent.index()];
        }
        siblings.judge(candidates, Some(node), calibration, &mut gains);
    }
    let mut nodes: Vec<NodeId> = candidates.nodes().filter(|node| gains[node.index()] >= GAIN_MIN).collect();
    // Stable, and parents come before their children in node order: a child's gain is never more than its parent's.
    nodes.sort_by(|a, b| gains[b.index()].total_cmp(&gains[a.index()]));
    nodes
}

/// What several drafters say at one place. Memory that is used again from place to place.
#[derive(Default)]
struct Siblings {
    /// By drafter: the sum of its opinions here, less than 1.
    claims: Vec<(u8, f32)>,
    /// By token: its node, and the sum of the opinions of it.
    tokens: Vec<(NodeId, f32)>,
}

impl Siblings {
    /// Writes into `gains` how probably each child of `parent` is accepted once the parent is.
    ///
    /// Who proposes the same adds up. Who proposes something else contradicts: a token's weight is what is said for it
    /// times, for each drafter that is silent about it, what that drafter leaves to others. Weights are brought to sum 1
    /// with that of no guess being right. A drafter without rivals is taken at its word.
    fn judge(&mut self, candidates: &DraftTree, parent: Option<NodeId>, calibration: &Calibration, gains: &mut [f32]) {
        self.claims.clear();
        self.tokens.clear();
        for offer in candidates.offers_under(parent) {
            let opinion = opinion(offer) * calibration.factor(offer.source);
            match self.claims.iter_mut().find(|(source, _)| *source == offer.source) {
                Some((_, claim)) => *claim += opinion,
                None => self.claims.push((offer.source, opinion)),
            }
            match self.tokens.iter_mut().find(|(node, _)| *node == offer.node) {
                Some((_, sum)) => *sum += opinion,
                None => self.tokens.push((offer.node, opinion)),
            }
        }
        if self.claims.len() > 1 {
            self.claims.iter_mut().for_each(|(_, claim)| *claim = claim.min(CLAIM_MAX));
            let left = |(_, claim): &(u8, f32)| 1.0 - claim;
            let mut total: f32 = self.claims.iter().map(left).product();
            for (node, weight) in &mut self.tokens {
                let says = |source: u8| candidates.offers_of(*node).any(|offer| offer.source == source);
                *weight *= self.claims.iter().filter(|claim| !says(claim.0)).map(left).product::<f32>();
                total += *weight;
            }
            self.tokens.iter_mut().for_each(|(_, weight)| *weight /= total);
        }
        for (node, weight) in &self.tokens {
            gains[node.index()] = weight.min(1.0);
        }
    }
}

#[cfg(test)]
mod tests;
