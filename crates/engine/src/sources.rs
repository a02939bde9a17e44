//! The cache of encoder sources: which sources are known, their pages, and how many sequences use each.
//!
//! A network with an encoder computes the rows that cross attention reads once for each source, when the first sequence
//! with it begins to run, and keeps them in pages of their own. Sources of one tenant with the same tokens, compared
//! token by token, are one source and share its rows. An unused source stays cached until its pages are needed, and the
//! least recently used one is evicted first. Tenants do not share sources, since response times would reveal it.
//!
//! Rows of a sequence depend on its source. So each source has a number, never used again, and a cached prefix is found
//! only by sequences with the same source ([`crate::pages::Owner`]). Admission is decided in `step/admission`.

use std::collections::HashMap;
use std::sync::Arc;

use foretoken_model::{PageId, PageTable, SourceCapacity};
use foretoken_speculation::{Tenant, Token};

use crate::faults::{Fault, is_made};

/// The sources of one executor.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    capacity: SourceCapacity,
    free: Vec<PageId>,
    entries: HashMap<Key, Entry>,
    /// The last number that was given; sequences without a source have 0.
    numbers: u64,
    clock: u64,
}

/// The tenant and the tokens of a source, by which it is found.
type Key = (Tenant, Arc<[Token]>);

#[derive(Debug, Default)]
struct Entry {
    number: u64,
    /// The pages of its rows; empty while it is not cached.
    table: PageTable,
    /// Sequences with this source, waiting ones included.
    sequences: usize,
    /// Running sequences with this source.
    readers: usize,
    /// When a reader last released it.
    released: u64,
}

/// The pages for the rows of a source, and whether the rows are computed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeldSource {
    pub(crate) table: PageTable,
    pub(crate) is_computed: bool,
}

fn key(tenant: Tenant, tokens: &Arc<[Token]>) -> Key {
    if is_made(Fault::SourceByHashAlone) {
        return (tenant, Arc::from([tokens.iter().sum::<Token>() % 2]));
    }
    (tenant, Arc::clone(tokens))
}

impl Sources {
    /// No sources; a capacity of `None` is a network without an encoder.
    pub(crate) fn new(capacity: Option<&SourceCapacity>) -> Self {
        let capacity = capacity.cloned().unwrap_or_default();
        let free = (0..capacity.pages as u32).rev().map(PageId).collect();
        Self { capacity, free, ..Self::default() }
    }

    /// Counts another sequence with this source. Returns the source's number.
    pub(crate) fn add_sequence(&mut self, tenant: Tenant, tokens: &Arc<[Token]>) -> u64 {
        let entry = self.entries.entry(key(tenant, tokens)).or_default();
        if entry.number == 0 {
            self.numbers += 1;
            entry.number = self.numbers;
        }
        entry.sequences += 1;
        entry.number
    }

    /// Removes a sequence with this source, which does not run.
    pub(crate) fn remove_sequence(&mut self, tenant: Tenant, tokens: &Arc<[Token]>) {
        let key = key(tenant, tokens);
        let entry = self.entries.get_mut(&key).expect("a sequence with this source was added");
        entry.sequences -= 1;
        if entry.sequences == 0 && entry.table.is_empty() {
            self.entries.remove(&key);
        }
    }

    /// Whether no source is known, so that none is cached.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the source is cached, or there are pages for it.
    pub(crate) fn has_room(&self, tenant: Tenant, tokens: &Arc<[Token]>) -> bool {
        let is_cached = self.entries.get(&key(tenant, tokens)).is_some_and(|entry| !entry.table.is_empty());
        let unread = self.entries.values().filter(|entry| entry.readers == 0).map(|entry| entry.table.len());
        is_cached || self.capacity.pages_for(tokens.len()) <= self.free.len() + unread.sum::<usize>()
    }

    /// A sequence with this source begins to run. Returns the pages of the source's rows, which have to be computed
    /// first if they are not. Evicts unused sources to make room.
    ///
    /// # Panics
    /// If there is no room, or no sequence with this source was added.
    pub(crate) fn hold(&mut self, tenant: Tenant, tokens: &Arc<[Token]>) -> HeldSource {
        let key = key(tenant, tokens);
        let needed = self.capacity.pages_for(tokens.len());
        let is_computed = !self.entries[&key].table.is_empty();
        while !is_computed && self.free.len() < needed {
            self.evict();
        }
        let entry = self.entries.get_mut(&key).expect("a sequence with this source was added");
        if !is_computed {
            entry.table = self.free.split_off(self.free.len() - needed);
        }
        entry.readers += 1;
        HeldSource { table: entry.table.clone(), is_computed }
    }

    /// A sequence with this source stops running. `is_computed`: whether the source's rows are computed, which is false
    /// only if the executor failed to compute them.
    pub(crate) fn release(&mut self, tenant: Tenant, tokens: &Arc<[Token]>, is_computed: bool) {
        self.clock += 1;
        let entry = self.entries.get_mut(&key(tenant, tokens)).expect("it was held");
        entry.readers -= 1;
        entry.released = self.clock;
        if !is_computed {
            self.free.append(&mut entry.table);
        }
    }

    /// Frees the pages of the least recently used source. A linear search suffices: only as many sources are cached as
    /// fit into the pages, and looking at all of them costs less than computing one.
    fn evict(&mut self) {
        let unread = self.entries.iter_mut().filter(|(_, entry)| entry.readers == 0 && !entry.table.is_empty());
        let first = unread.min_by_key(|(_, entry)| entry.released);
        let (key, entry) = first.expect("has_room counted unused pages");
        self.free.append(&mut entry.table);
        if entry.sequences == 0 {
            let key = key.clone();
            self.entries.remove(&key);
        }
    }

    /// Checks that every page is free or belongs to one source, and that `running` sequences read sources.
    ///
    /// # Errors
    /// The first inconsistency.
    pub(crate) fn check(&self, running: usize) -> Result<(), String> {
        let mut pages: Vec<PageId> = self.free.clone();
        pages.extend(self.entries.values().flat_map(|entry| &entry.table));
        pages.sort_unstable();
        if !pages.iter().copied().eq((0..self.capacity.pages as u32).map(PageId)) {
            return Err(format!("sources: {pages:?} are free or held, of {}", self.capacity.pages));
        }
        let readers: usize = self.entries.values().map(|entry| entry.readers).sum();
        if readers != running {
            return Err(format!(
                "sources: {readers} readers are counted, and {running} running sequences have a source"
            ));
        }
        let unneeded = self.entries.values().find(|entry| entry.sequences == 0 && entry.table.is_empty());
        unneeded.map_or(Ok(()), |entry| Err(format!("sources: {entry:?} is neither used nor cached")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_shared_by_content_within_a_tenant_and_evicted_in_order() {
        let capacity = SourceCapacity { vocabulary: 9, len_max: 8, page_len: 2, pages: 4 };
        let mut sources = Sources::new(Some(&capacity));
        let [a, b, c]: [Arc<[Token]>; 3] = [Arc::from([1, 2, 3]), Arc::from([3, 2, 1]), Arc::from([4; 8])];
        let (one, other) = (Tenant(1), Tenant(2));
        let numbers =
            [(one, &a), (one, &a), (one, &b), (other, &a)].map(|(tenant, source)| sources.add_sequence(tenant, source));
        assert_eq!(numbers, [1, 1, 2, 3], "the same content of one tenant is one source");
        let first = sources.hold(one, &a);
        assert_eq!((first.table.len(), first.is_computed), (2, false));
        assert_eq!(sources.hold(one, &a), HeldSource { is_computed: true, ..first });
        let second = sources.hold(one, &b);
        assert!(!sources.has_room(other, &a), "all pages are read");
        sources.check(3).unwrap();
        // A source that could not be computed is not taken for a cached one.
        sources.release(one, &b, false);
        let held = sources.hold(other, &a);
        assert!(!held.is_computed && held.table.iter().all(|page| second.table.contains(page)));
        sources.release(other, &a, true);
        (0..2).for_each(|_| sources.release(one, &a, true));
        sources.check(0).unwrap();
        // A source that needs all pages evicts all others, the least recently used first.
        assert_eq!(sources.add_sequence(one, &c), 4);
        assert!(sources.has_room(one, &c));
        assert_eq!(sources.hold(one, &c).table.len(), 4);
        sources.release(one, &c, true);
        for (tenant, source) in [(one, &a), (one, &a), (one, &b), (other, &a), (one, &c)] {
            sources.remove_sequence(tenant, source);
        }
        sources.check(0).unwrap();
        assert_eq!(sources.add_sequence(one, &a), 5, "an evicted source gets a new number");
        assert_eq!(sources.add_sequence(one, &c), 4, "a cached source keeps its number");
    }
}
