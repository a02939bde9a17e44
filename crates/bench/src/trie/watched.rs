//! A trie drafter whose memory is looked at while it works.
//!
//! An engine owns its drafters, so what they hold is written down where it is largest: just before a sequence is
//! forgotten. Left out: everything else, which is the drafter's own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foretoken_drafters::TrieDrafter;
use foretoken_speculation::{Ask, Chance, Drafter, Needs, News, Opening, SequenceId, Tenant, Token};

/// The most that drafters held: nodes and bytes.
#[derive(Clone, Debug, Default)]
pub struct TrieMemory(Arc<Mutex<(usize, usize)>>);

impl TrieMemory {
    /// Nodes and bytes, at the moment of most bytes.
    pub fn most(&self) -> (usize, usize) {
        *self.held()
    }

    fn held(&self) -> MutexGuard<'_, (usize, usize)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, trie: &TrieDrafter) {
        let (nodes, bytes) = (trie.nodes(), trie.memory_bytes());
        let mut most = self.held();
        if bytes > most.1 {
            *most = (nodes, bytes);
        }
    }
}

/// The drafter, and where its memory is written down.
pub struct Watched {
    trie: TrieDrafter,
    memory: TrieMemory,
}

impl Watched {
    /// A drafter that tells its memory.
    pub fn new(trie: TrieDrafter, memory: TrieMemory) -> Self {
        Self { trie, memory }
    }
}

impl Drafter for Watched {
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

    fn observe(&mut self, news: &[News<'_>]) {
        self.trie.observe(news);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.memory.look(&self.trie);
        self.trie.close(sequence);
    }
}
