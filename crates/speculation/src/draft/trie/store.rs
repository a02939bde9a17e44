//! What outlives a sequence: one trie per first token, each bounded, the least frequent nodes pruned.
//!
//! The authors' code keeps a dict of trees by token and counts the nodes of each: a capacity per first token bounds the
//! memory by the vocabulary, and no frequent token can crowd out the others. Each trie here is one array of its own, so
//! inserting a branch touches one small piece of memory, whatever the store holds.
//!
//! A trie that is full is pruned to three quarters, so that the cost is shared by the insertions that follow. Nothing is
//! ever taken back from a store: only texts that can no longer be set back are inserted. That is why pruning needs no
//! way back either.

use crate::Token;
use crate::draft::trie::nodes::{Common, Nodes, Prune, Roots, roots_bytes};

/// Tries by first token.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    roots: Roots,
    /// Each begins at its node 0.
    tries: Vec<Nodes>,
    common: Common,
    scratch: Prune,
}

impl Store {
    /// Inserts each window of `window` tokens; the last ones are shorter. `capacity`: most nodes of a trie, if bounded.
    pub fn insert_all(&mut self, text: &[Token], window: usize, is_output: bool, capacity: Option<usize>) {
        for start in 0..text.len() {
            self.insert(&text[start..text.len().min(start + window)], is_output, capacity);
        }
    }

    fn insert(&mut self, branch: &[Token], is_output: bool, capacity: Option<usize>) {
        let next = self.tries.len() as u32;
        let number = *self.roots.entry(branch[0]).or_insert(next);
        if number == next {
            self.tries.push(Nodes::default());
            self.tries[number as usize].root(branch[0]);
        }
        let nodes = &mut self.tries[number as usize];
        nodes.reserve(capacity.map_or(usize::MAX, |capacity| capacity + branch.len()), branch.len());
        let mut at = 0;
        nodes.counts_mut(at).add(is_output);
        self.common.raise(branch[0], nodes.node(at).counts, is_output);
        for &token in &branch[1..] {
            at = nodes.enter_front(at, token);
            nodes.counts_mut(at).add(is_output);
        }
        if let Some(capacity) = capacity
            && nodes.len() > capacity
        {
            nodes.prune((capacity - capacity / 4).max(1), &mut self.scratch);
        }
    }

    /// Where a run of tokens ends in the trie of its first token.
    pub fn find(&self, run: &[Token]) -> Option<(&Nodes, u32)> {
        let nodes = &self.tries[*self.roots.get(&run[0])? as usize];
        let end = run[1..].iter().try_fold(0, |at, &token| nodes.child(at, token))?;
        Some((nodes, end))
    }

    /// The commonest first tokens.
    pub fn common(&self) -> &Common {
        &self.common
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.tries.iter().map(Nodes::len).sum()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let tries = self.tries.iter().map(Nodes::bytes).sum::<usize>() + self.tries.capacity() * size_of::<Nodes>();
        roots_bytes(&self.roots) + tries
    }
}
