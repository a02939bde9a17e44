//! A trie drafter whose memory and rows are measured while it works.
//!
//! An engine owns its drafters, so their memory is recorded when it is largest: just before a sequence is closed. Rows
//! are those that a draft would take as its layout has it: parallel branches repeat the tokens that they begin with,
//! while a draft tree, which the engine verifies, has them once and accepts the same.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foretoken_drafters::{Layout, TrieDrafter};
use foretoken_speculation::{Ask, Chance, DraftTree, Drafter, Needs, Opening, SequenceId, StepOutput, Tenant, Token};

/// The peak memory of drafters, and their rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needed {
    /// Nodes of all tries when the bytes were the most.
    pub nodes: usize,
    /// Bytes of all tries, at their most.
    pub bytes: usize,
    /// Rows of all drafts.
    pub rows: usize,
}

/// Where drafters record it.
#[derive(Clone, Debug, Default)]
pub struct TrieMemory(Arc<Mutex<Needed>>);

impl TrieMemory {
    /// What was recorded so far.
    pub fn needed(&self) -> Needed {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Needed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, trie: &TrieDrafter) {
        let (nodes, bytes) = (trie.nodes(), trie.memory_bytes());
        let mut needed = self.lock();
        if bytes > needed.bytes {
            *needed = Needed { nodes, bytes, ..*needed };
        }
    }
}

/// The drafter, and where its memory is recorded.
pub struct MeasuredTrie {
    trie: TrieDrafter,
    memory: TrieMemory,
}

impl MeasuredTrie {
    /// A drafter that records its memory.
    pub fn new(trie: TrieDrafter, memory: TrieMemory) -> Self {
        Self { trie, memory }
    }
}

impl Drafter for MeasuredTrie {
    fn name(&self) -> &str {
        self.trie.name()
    }

    fn needs(&self) -> Needs {
        self.trie.needs()
    }

    fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        self.trie.warm_up(tokens, prompt_len, tenant);
    }

    fn open(&mut self, opening: &Opening<'_>) {
        self.trie.open(opening);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        self.trie.draft(asks, chance);
        let rows: usize = asks.iter().map(|ask| rows(ask.tree, self.trie.options().layout)).sum();
        self.memory.lock().rows += rows;
    }

    fn observe(&mut self, news: &[StepOutput<'_>]) {
        self.trie.observe(news);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.memory.record(&self.trie);
        self.trie.close(sequence);
    }
}

/// Rows of a draft without its root. A parallel branch has a row for each token from the root to its leaf.
fn rows(tree: &DraftTree, layout: Layout) -> usize {
    match layout {
        Layout::Hier | Layout::One => tree.len(),
        Layout::Par => {
            let is_leaf = |node: &_| !tree.parents().contains(&Some(*node));
            tree.nodes().filter(is_leaf).map(|node| tree.depth(node)).sum()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_speculation::Proposal;

    #[test]
    fn parallel_branches_repeat_what_they_share() {
        let mut tree = DraftTree::new();
        let on = tree.offer(None, 1, Proposal::Point, 0);
        let my = tree.offer(Some(on), 2, Proposal::Point, 0);
        tree.offer(Some(my), 3, Proposal::Point, 0);
        tree.offer(Some(on), 4, Proposal::Point, 0);
        assert_eq!((rows(&tree, Layout::Hier), rows(&tree, Layout::Par)), (4, 5));
        assert_eq!(rows(&DraftTree::new(), Layout::Par), 0);
    }
}
