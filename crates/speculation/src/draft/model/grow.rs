//! How a draft grows: leaves, and which of them are continued together.
//!
//! A leaf's gain is the product of the confidences on the way to it. The draft is grown best first, but a pass of the
//! draft model costs nearly the same for one row as for several, so a round continues all leaves that are expected to be
//! continued before the tree is full: if each next token is as sure as this draft's first choices were on average, every
//! leaf that has a child among the best of the nodes that still fit. Leaves of equal gain come in the order in which
//! they were offered. A chain has one leaf, and a round for every token.
//!
//! All of this is a function of tokens that are offered already, as the law demands, and of nothing that the cache holds:
//! rows that are there before they are needed save passes and change no draft.

use crate::{NodeId, Token};

/// A token that may be continued.
#[derive(Copy, Clone, Debug)]
pub(super) struct Leaf {
    /// `None`: the root.
    pub node: Option<NodeId>,
    pub token: Token,
    /// The scorer's row of its parent, `None` where that is the root.
    pub parent_row: Option<u32>,
    pub depth: usize,
    /// Product of the confidences from the root on.
    pub gain: f32,
    /// The same of what is expected when they are corrected by experience; 1 where nobody asks for it.
    pub worth: f64,
}

/// A leaf that this round continues.
#[derive(Copy, Clone, Debug)]
pub(super) struct Picked {
    pub leaf: Leaf,
    /// Its own row in the scorer, `None` for the root.
    pub row: Option<u32>,
}

/// Where logits are: which of the drafter's blocks of rows, and which row of it.
#[derive(Copy, Clone, Debug)]
pub(super) struct Location {
    pub block: usize,
    pub row: usize,
}

/// The draft of one ask while it grows.
#[derive(Debug)]
pub(super) struct Growth {
    /// Place among the asks.
    pub ask: usize,
    /// In order of offer.
    pub leaves: Vec<Leaf>,
    /// The leaves that were taken out last, greatest gain first.
    pub taken: Vec<Leaf>,
    /// What this round continues: these, with their rows.
    pub picked: Vec<Picked>,
    /// So many rows of the tree must be computed for this round; what the cache lists beyond is run ahead.
    pub needed: usize,
    /// The root's logits, once they are computed.
    pub root: Option<Location>,
    /// Logits of the rows of the tree that are computed.
    pub rows: Vec<Location>,
    /// Nodes that were offered.
    pub nodes: usize,
    /// Sum and number of the confidences of first choices.
    choices: (f32, usize),
}

impl Growth {
    /// Nothing but a root that is to be continued.
    pub(super) fn new(ask: usize) -> Growth {
        let root = Leaf { node: None, token: 0, parent_row: None, depth: 0, gain: 1.0, worth: 1.0 };
        Growth {
            ask,
            leaves: Vec::new(),
            taken: Vec::new(),
            picked: vec![Picked { leaf: root, row: None }],
            needed: 0,
            root: None,
            rows: Vec::new(),
            nodes: 0,
            choices: (0.0, 0),
        }
    }

    /// Where the logits of a leaf are, if they are computed.
    pub(super) fn logits(&self, picked: &Picked) -> Option<Location> {
        match picked.row {
            None => self.root,
            Some(row) => self.rows.get(row as usize).copied(),
        }
    }

    /// The first leaf of this round that is not computed.
    pub(super) fn missing(&self) -> Option<&Picked> {
        self.picked.iter().find(|picked| self.logits(picked).is_none())
    }

    /// Leaves of this round that are not computed are not continued.
    pub(super) fn drop_missing(&mut self) {
        let mut picked = std::mem::take(&mut self.picked);
        picked.retain(|picked| self.logits(picked).is_some());
        self.picked = picked;
    }

    /// Whether nothing that was computed before is wanted any more.
    pub(super) fn is_fresh(&self) -> bool {
        self.leaves.is_empty() && self.picked.iter().all(|picked| self.logits(picked).is_none())
    }

    /// Hears how sure the first choice at a place was.
    pub(super) fn learn(&mut self, confidence: f32) {
        self.choices = (self.choices.0 + confidence, self.choices.1 + 1);
    }

    /// Takes out the leaves that are to be continued together, where `room` more nodes fit and branches end at `n_max`.
    pub(super) fn take(&mut self, room: usize, n_max: usize) {
        self.taken.clear();
        if room == 0 {
            return;
        }
        if self.leaves.len() <= 1 {
            return self.taken.append(&mut self.leaves);
        }
        // The gain of each leaf's next expected descendant, and how many it can still have.
        let sure = self.choices.0 / self.choices.1.max(1) as f32;
        let mut next: Vec<(f32, usize)> = self.leaves.iter().map(|leaf| (leaf.gain, n_max - leaf.depth)).collect();
        let mut order: Vec<usize> = Vec::new();
        for _ in 0..room {
            let better = |best: Option<usize>, at: usize| match best {
                Some(best) if next[best].0 >= next[at].0 => Some(best),
                _ => Some(at),
            };
            let Some(best) = (0..next.len()).filter(|&at| next[at].1 > 0).fold(None, better) else { break };
            next[best] = (next[best].0 * sure, next[best].1 - 1);
            if !order.contains(&best) {
                order.push(best);
            }
        }
        self.taken.extend(order.iter().map(|&at| self.leaves[at]));
        let mut at = 0;
        self.leaves.retain(|_| {
            at += 1;
            !order.contains(&(at - 1))
        });
    }
}
