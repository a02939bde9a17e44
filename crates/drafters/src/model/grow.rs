//! How a draft grows: leaves, and which of them are continued together.
//!
//! A leaf's gain is the product of the confidences on the path to it. The draft is grown best first, but a pass of the
//! draft model costs nearly the same for one row as for several, so a round continues all leaves that are expected to
//! be continued before the tree is full: assuming the mean confidence of this draft's first choices for each next
//! token, every leaf that has a child among the best of the nodes that still fit. Leaves with equal gains come in the
//! order in which they were offered. A chain has one leaf, and a round for every token.
//!
//! All of this is a function of tokens that are offered already, so it is allowed under every promise, and does not
//! depend on the cache: rows that are computed ahead save passes and change no draft.

use foretoken_speculation::{NodeId, Sampling, Token};

/// A token that may be continued.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Leaf {
    /// `None`: the root.
    pub node: Option<NodeId>,
    pub token: Token,
    /// The scorer's row of its parent, `None` if that is the root.
    pub parent_row: Option<u32>,
    /// Its own row, once it is to be continued; the root has none.
    pub row: Option<u32>,
    pub depth: usize,
    /// Product of the confidences from the root on.
    pub gain: f32,
    /// Product of the calibrated acceptances from the root on; 1 if the ask has no outlook.
    pub calibrated_gain: f64,
}

/// The draft of one ask while it grows.
#[derive(Debug)]
pub(crate) struct Growth {
    /// The index of its ask.
    pub ask: usize,
    /// The sampling settings of the draft's logits, if they differ from the target's.
    pub sampling: Option<Sampling>,
    /// In order of offer.
    pub leaves: Vec<Leaf>,
    /// The leaves that this round continues, greatest gain first.
    pub picked: Vec<Leaf>,
    /// How many rows of the tree must be computed for this round; further rows of the cache are run ahead.
    pub needed: usize,
    /// The index of the root's logits among the drafter's rows, once they are computed.
    pub root: Option<usize>,
    /// For each row of the tree the index of its logits, once they are computed.
    pub rows: Vec<usize>,
    /// Nodes that were offered.
    pub nodes: usize,
    /// Sum and number of the confidences of first choices.
    pub choices: (f32, usize),
}

impl Growth {
    /// A draft of which only the root is to be continued.
    pub(crate) fn new(ask: usize, sampling: Option<Sampling>) -> Growth {
        let root =
            Leaf { node: None, token: 0, parent_row: None, row: None, depth: 0, gain: 1.0, calibrated_gain: 1.0 };
        let (leaves, picked, rows) = (Vec::new(), vec![root], Vec::new());
        Growth { ask, sampling, leaves, picked, needed: 0, root: None, rows, nodes: 0, choices: (0.0, 0) }
    }

    /// The index of a leaf's logits among the drafter's rows, if they are computed.
    pub(crate) fn logits(&self, leaf: &Leaf) -> Option<usize> {
        match leaf.row {
            None => self.root,
            Some(row) => self.rows.get(row as usize).copied(),
        }
    }

    /// The first leaf of this round that is not computed.
    pub(crate) fn missing(&self) -> Option<&Leaf> {
        self.picked.iter().find(|leaf| self.logits(leaf).is_none())
    }

    /// Drops the leaves of this round that are not computed.
    pub(crate) fn drop_missing(&mut self) {
        let mut picked = std::mem::take(&mut self.picked);
        picked.retain(|leaf| self.logits(leaf).is_some());
        self.picked = picked;
    }

    /// Whether no row that was computed before is needed any more.
    pub(crate) fn needs_no_old_rows(&self) -> bool {
        self.leaves.is_empty() && self.picked.iter().all(|leaf| self.logits(leaf).is_none())
    }

    /// Removes and returns the leaves that are to be continued together, where `room` more nodes fit and branches end
    /// at `depth_max`: the greatest gain first.
    pub(crate) fn take(&mut self, room: usize, depth_max: usize) -> Vec<Leaf> {
        if room == 0 {
            return Vec::new();
        }
        if self.leaves.len() <= 1 {
            return std::mem::take(&mut self.leaves);
        }
        // The gain of each leaf's next expected descendant, and how many it can still have.
        let mean_confidence = self.choices.0 / self.choices.1.max(1) as f32;
        let mut next: Vec<(f32, usize)> = self.leaves.iter().map(|leaf| (leaf.gain, depth_max - leaf.depth)).collect();
        let mut order: Vec<usize> = Vec::new();
        for _ in 0..room {
            let better = |best: Option<usize>, at: usize| match best {
                Some(best) if next[best].0 >= next[at].0 => Some(best),
                _ => Some(at),
            };
            let Some(best) = (0..next.len()).filter(|&at| next[at].1 > 0).fold(None, better) else { break };
            next[best] = (next[best].0 * mean_confidence, next[best].1 - 1);
            if !order.contains(&best) {
                order.push(best);
            }
        }
        let taken = order.iter().map(|&at| self.leaves[at]).collect();
        let mut at = 0;
        self.leaves.retain(|_| {
            at += 1;
            !order.contains(&(at - 1))
        });
        taken
    }
}
