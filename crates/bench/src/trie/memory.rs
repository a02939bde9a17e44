//! A trie drafter whose memory is measured while it works.
//!
//! An engine owns its drafters, so their memory is recorded when it is largest: just before a sequence is closed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foretoken_drafters::TrieDrafter;
use foretoken_speculation::{Ask, Chance, Drafter, Needs, Opening, SequenceId, StepOutput, Tenant, Token};

/// The peak memory of drafters: nodes and bytes.
#[derive(Clone, Debug, Default)]
pub struct TrieMemory(Arc<Mutex<(usize, usize)>>);

impl TrieMemory {
    /// Nodes and bytes, when the bytes were the most.
    pub fn most(&self) -> (usize, usize) {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, (usize, usize)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, trie: &TrieDrafter) {
        let (nodes, bytes) = (trie.nodes(), trie.memory_bytes());
        let mut most = self.lock();
        if bytes > most.1 {
            *most = (nodes, bytes);
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
    }

    fn observe(&mut self, news: &[StepOutput<'_>]) {
        self.trie.observe(news);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.memory.record(&self.trie);
        self.trie.close(sequence);
    }
}
