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

use std::borrow::Cow;

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
}

/// Where a leaf's logits are.
#[derive(Copy, Clone, Debug)]
pub(super) enum Logits {
    /// Among the rows of this draft's first pass.
    First(usize),
    /// Among the rows of its last pass.
    Last(usize),
    /// Not computed yet.
    Missing,
}

/// A leaf that this round continues.
#[derive(Copy, Clone, Debug)]
pub(super) struct Picked {
    pub leaf: Leaf,
    /// Its own row in the scorer, `None` for the root.
    pub row: Option<u32>,
    pub logits: Logits,
}

/// The draft of one ask while it grows.
#[derive(Debug)]
pub(super) struct Growth {
    /// Place among the asks.
    pub ask: usize,
    /// In order of offer.
    pub leaves: Vec<Leaf>,
    /// What this round continues, greatest gain first.
    pub picked: Vec<Picked>,
    /// Guesses of the inner drafter, which the first pass computes ahead: tokens, and parents among them.
    pub ahead: (Vec<Token>, Vec<Option<u32>>),
    /// The place of their first row among the rows of the first pass.
    pub ahead_from: usize,
    /// Rows of the tree that are computed.
    pub computed: usize,
    /// Sum and number of the confidences of first choices.
    choices: (f32, usize),
}

impl Growth {
    /// Nothing but a root that is to be continued.
    pub(super) fn new(ask: usize) -> Growth {
        let root = Leaf { node: None, token: 0, parent_row: None, depth: 0, gain: 1.0 };
        Growth {
            ask,
            leaves: Vec::new(),
            picked: vec![Picked { leaf: root, row: None, logits: Logits::Missing }],
            ahead: Default::default(),
            ahead_from: 0,
            computed: 0,
            choices: (0.0, 0),
        }
    }

    /// The span of the first pass: tokens that were not run yet, then what is run ahead. With parents (none: a chain) and
    /// the wanted rows, from the pending token's on.
    pub(super) fn first_span<'a>(&self, new: &'a [Token]) -> (Cow<'a, [Token]>, Vec<Option<u32>>, Vec<u32>) {
        let (ahead, above) = &self.ahead;
        let root = new.len() as u32 - 1;
        if ahead.is_empty() {
            return (Cow::Borrowed(new), Vec::new(), vec![root]);
        }
        let below = above.iter().map(|parent| Some(parent.map_or(root, |parent| root + 1 + parent)));
        let parents = (0..=root).map(|row| row.checked_sub(1)).chain(below).collect();
        (Cow::Owned([new, ahead].concat()), parents, (root..=root + ahead.len() as u32).collect())
    }

    /// Hears how sure the first choice at a place was.
    pub(super) fn learn(&mut self, confidence: f32) {
        self.choices = (self.choices.0 + confidence, self.choices.1 + 1);
    }

    /// Takes out the leaves that are to be continued together, where `room` more nodes fit and branches end at `n_max`.
    pub(super) fn take(&mut self, room: usize, n_max: usize) -> Vec<Leaf> {
        if room == 0 || self.leaves.len() <= 1 {
            return if room == 0 { Vec::new() } else { std::mem::take(&mut self.leaves) };
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
        let taken = order.iter().map(|&at| self.leaves[at]).collect();
        let mut at = 0;
        self.leaves.retain(|_| {
            at += 1;
            !order.contains(&(at - 1))
        });
        taken
    }
}
