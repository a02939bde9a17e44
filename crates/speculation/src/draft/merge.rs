//! Merging: candidates of several drafters in, the tree that is worth verifying out.
//!
//! Drafters that share a pass fill one tree of candidates, equal branches sharing their nodes. Of these candidates the
//! best stay. The gain of a node is the estimated probability that it is accepted: the product along its path of what
//! its drafters think, added up where several propose the same, each corrected by how often that drafter was right
//! ([`Calibration`]). Gains never grow downwards, so taking the best nodes takes whole branches from the root on.
//!
//! What may be dropped is the law's business. Under *exact* everything may: offers are only consulted. Under *rejection* a
//! drawn token must be offered whatever it is, so all drawn offers go first, in the order in which they were drawn, with
//! the nodes that they hang on. Points come after them: chosen by looking at draws, they may stand behind these draws and
//! never before, where their presence would tell of a draw that is still to be judged. For the same reason a point that
//! says what another drafter drew is not offered a second time.
//!
//! Left out: what drafting costs, which is a budget's business.

use crate::{DraftTree, NodeId, Offer, Proposal};

/// How often each drafter of a sequence was right, next to what it thought.
///
/// The ratio of accepted to expected acceptances, decayed, so that the last hundred or so judged guesses count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// By drafter: expected and found acceptances.
    counts: Vec<(f32, f32)>,
}

/// Weight of the belief that a drafter is right in its opinion, in judged guesses.
const PRIOR: f32 = 4.0;
/// What is left of an old count when a new guess is judged.
const DECAY: f32 = 0.98;

impl Calibration {
    /// By what to multiply the opinion of this drafter.
    pub fn factor(&self, source: u8) -> f32 {
        self.counts.get(usize::from(source)).map_or(1.0, |(expected, found)| (found + PRIOR) / (expected + PRIOR))
    }

    /// Learns from a verified tree: the guesses under the root and under each accepted node were judged.
    pub fn learn(&mut self, tree: &DraftTree, path: &[NodeId]) {
        let accepted = path.iter().map(|&node| Some(node)).chain([None]);
        let visited = std::iter::once(None).chain(path.iter().map(|&node| Some(node)));
        for (parent, accepted) in visited.zip(accepted) {
            for offer in tree.offers_under(parent) {
                let source = usize::from(offer.source);
                if self.counts.len() <= source {
                    self.counts.resize(source + 1, (0.0, 0.0));
                }
                let (expected, found) = &mut self.counts[source];
                *expected = *expected * DECAY + offer.evidence.acceptance;
                *found = *found * DECAY + f32::from(u8::from(Some(offer.node) == accepted));
            }
        }
    }
}

/// Copies into `tree` (cleared first) the best of the candidates: all drawn ones, then points up to `nodes_max` nodes.
///
/// Laws move over, so the candidates are left without a use.
pub fn merge(candidates: &mut DraftTree, calibration: &Calibration, nodes_max: usize, tree: &mut DraftTree) {
    tree.clear();
    let needed = under_draws(candidates);
    tree.take_laws(candidates);
    let mut places: Vec<Option<NodeId>> = vec![None; candidates.len()];
    let copy = |offer: &Offer, tree: &mut DraftTree, places: &mut Vec<Option<NodeId>>| {
        let parent = offer.parent.map(|parent| places[parent.index()].expect("parents are copied first"));
        let node = tree.suggest(parent, candidates.token(offer.node), offer.proposal, offer.source, offer.evidence);
        places[offer.node.index()] = Some(node);
    };
    for offer in candidates.offers() {
        let drawn = |offer: &Offer| matches!(offer.proposal, Proposal::Drawn(_));
        let only_way = needed[offer.node.index()]
            && places[offer.node.index()].is_none()
            && !candidates.offers_of(offer.node).any(drawn);
        if drawn(offer) || only_way {
            copy(offer, tree, &mut places);
        }
    }
    for node in ranked(candidates, calibration) {
        if tree.len() >= nodes_max {
            break;
        }
        if places[node.index()].is_none() {
            candidates.offers_of(node).for_each(|offer| copy(offer, tree, &mut places));
        }
    }
    tree.settle_laws(&places);
}

/// For each node whether something below it was drawn.
fn under_draws(candidates: &DraftTree) -> Vec<bool> {
    let mut needed = vec![false; candidates.len()];
    for offer in candidates.offers().iter().rev() {
        if matches!(offer.proposal, Proposal::Drawn(_)) {
            let mut at = offer.parent;
            while let Some(node) = at {
                needed[node.index()] = true;
                at = candidates.parent(node);
            }
        }
    }
    needed
}

/// All nodes, the most probably accepted first; of equals the one proposed first.
fn ranked(candidates: &DraftTree, calibration: &Calibration) -> Vec<NodeId> {
    let mut gains: Vec<f32> = Vec::with_capacity(candidates.len());
    for node in candidates.nodes() {
        let opinion = |offer: &Offer| offer.evidence.acceptance * calibration.factor(offer.source);
        let acceptance = candidates.offers_of(node).map(opinion).sum::<f32>().min(1.0);
        gains.push(acceptance * candidates.parent(node).map_or(1.0, |parent| gains[parent.index()]));
    }
    let mut nodes: Vec<NodeId> = candidates.nodes().collect();
    // Stable, and parents come before their children in node order: a child's gain is never more than its parent's.
    nodes.sort_by(|a, b| gains[b.index()].total_cmp(&gains[a.index()]));
    nodes
}
