//! One assistant with two ways of drafting; the way is chosen for each sequence by its promise.
//!
//! Measured on the demo pair (`docs/log.md`): translated text is accepted more often if the target is greedy, since any
//! text can be drafted; tokens of the law over shared tokens are accepted more often if they are drawn from it and
//! verified with it. Under *exact* at a temperature above 0 the two are even, and translated text does not depend on
//! how many tokens the vocabularies share. The way is chosen when a sequence is first drafted for, and kept. Both ways
//! share one network, in which each sequence has one cache.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foretoken_drafters::{LogitRows, ModelDrafter, ScoreAsk, Scorer, SharedScorer, TranslatedDrafter};
use foretoken_speculation::{Ask, Chance, Drafter, Opening, Promise, ReadAsk, SequenceId, Tenant, Token, Work};

use super::TextTranslator;
use crate::scorer::ExecutorScorer;

/// A scorer shared by two drafters, which never use it for the same sequence.
#[derive(Clone)]
pub(super) struct SharedNetwork(Arc<Mutex<ExecutorScorer>>);

impl SharedNetwork {
    pub(super) fn new(scorer: ExecutorScorer) -> Self {
        Self(Arc::new(Mutex::new(scorer)))
    }

    /// The network, for one call. A drafter that panicked during a call is dropped for its request; the others
    /// continue, so a poisoned lock is ignored.
    fn network(&self) -> MutexGuard<'_, ExecutorScorer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scorer for SharedNetwork {
    fn open(&mut self, opening: &Opening<'_>) {
        self.network().open(opening);
    }

    fn adopt(&mut self, sequence: SequenceId, tokens: &[Token]) -> usize {
        self.network().adopt(sequence, tokens)
    }

    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        self.network().score(asks, rows);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize {
        self.network().truncate(sequence, len)
    }

    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        self.network().keep_path(sequence, start, rows);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.network().close(sequence);
    }

    fn context_max(&self) -> usize {
        self.network().context_max()
    }

    fn not_numbers(&self) -> u64 {
        self.network().not_numbers()
    }
}

/// Drafts by translated text under *exact* and for greedy requests, and over shared tokens for the others.
pub(super) struct TwoWays {
    text: TranslatedDrafter<SharedNetwork, TextTranslator>,
    shared: ModelDrafter<SharedScorer<SharedNetwork, TextTranslator>>,
    /// For each sequence that was drafted for, whether it is by text.
    by_text: BTreeMap<SequenceId, bool>,
    /// The open sequences, with their tenants.
    open: BTreeMap<SequenceId, Tenant>,
}

impl TwoWays {
    pub(super) fn new(
        text: TranslatedDrafter<SharedNetwork, TextTranslator>,
        shared: ModelDrafter<SharedScorer<SharedNetwork, TextTranslator>>,
    ) -> Self {
        Self { text, shared, by_text: BTreeMap::new(), open: BTreeMap::new() }
    }

    fn chosen(&mut self, sequence: SequenceId) -> Option<&mut dyn Drafter> {
        Some(match self.by_text.get(&sequence)? {
            true => &mut self.text,
            false => &mut self.shared,
        })
    }

    /// Chooses a way for a sequence that has none. Returns whether the sequence's way is text.
    fn choose(&mut self, ask: &ReadAsk<'_>) -> bool {
        if let Some(by_text) = self.by_text.get(&ask.sequence) {
            return *by_text;
        }
        let tenant = self.open.get(&ask.sequence).copied();
        let tenant = tenant.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        let by_text = ask.promise == Promise::Exact || ask.sampling.temperature == 0.0;
        self.by_text.insert(ask.sequence, by_text);
        let opening = Opening { tenant, ..Opening::new(ask.sequence, &ask.tokens[..ask.prompt_len]) };
        self.chosen(ask.sequence).expect("just chosen").open(&opening);
        by_text
    }
}

impl Drafter for TwoWays {
    fn name(&self) -> &str {
        self.text.name()
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let before = self.open.insert(opening.sequence, opening.tenant);
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
    }

    fn work(&self) -> Option<Work> {
        let [text, shared] = [self.text.work(), self.shared.work()].map(Option::unwrap_or_default);
        // Both drafters report the count of the one network.
        let not_numbers = text.not_numbers;
        Some(Work { passes: text.passes + shared.passes, read: text.read + shared.read, not_numbers })
    }

    fn unread(&self, sequence: SequenceId, len: usize) -> usize {
        match self.by_text.get(&sequence) {
            None => len,
            Some(true) => self.text.unread(sequence, len),
            Some(false) => self.shared.unread(sequence, len),
        }
    }

    fn read(&mut self, asks: &[ReadAsk<'_>]) {
        let (text, shared): (Vec<_>, Vec<_>) = asks.iter().partition(|ask| self.choose(ask));
        self.text.read(&text);
        self.shared.read(&shared);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        let (mut text, mut shared) = (Vec::new(), Vec::new());
        for ask in asks {
            let Ask { sequence, tokens, prompt_len, sampling, promise, .. } = *ask;
            let by_text =
                self.choose(&ReadAsk { sequence, tokens, prompt_len, until: tokens.len(), sampling, promise });
            // The ask, reborrowed for one call.
            let ask = Ask { tree: &mut *ask.tree, probes: &mut *ask.probes, ..*ask };
            if by_text { text.push(ask) } else { shared.push(ask) }
        }
        if !text.is_empty() {
            self.text.draft(&mut text, chance);
        }
        if !shared.is_empty() {
            self.shared.draft(&mut shared, chance);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if let Some(drafter) = self.chosen(sequence) {
            drafter.close(sequence);
        }
        self.by_text.remove(&sequence);
        self.open.remove(&sequence);
    }
}
