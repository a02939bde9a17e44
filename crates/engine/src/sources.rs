//! What encoders read: which sources are known, whose pages hold their rows, and how many texts are about each.
//!
//! A network with an encoder computes the rows that cross attention sees once a source, when the first text about it is
//! opened, and keeps them in pages of their own. Sources of one tenant that have the same tokens are one source: they
//! are compared token by token, and share its rows. A source about which nobody writes any more stays cached until its
//! pages are needed; the one that was let go of first goes first. Tenants do not share, since time would tell.
//!
//! Rows of a text depend on what it is about. So each source has a number, never used again, and a prefix of a text is
//! found by those about the same source alone ([`crate::pages::Owner`]).
//!
//! Left out: the rows, which are the executor's, and who is let in where there is no room (`step/admission`).

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
    /// The last number that was given; texts about nothing have 0.
    numbers: u64,
    clock: u64,
}

/// Whose a source is, and its tokens: what it is compared by.
type Key = (Tenant, Arc<[Token]>);

#[derive(Debug, Default)]
struct Entry {
    number: u64,
    /// Where its rows are; empty: nowhere.
    table: PageTable,
    /// Texts about it, also those that wait.
    texts: usize,
    /// Those of them that run.
    readers: usize,
    /// When the last reader let go of it.
    let_go: u64,
}

/// Where the rows of a source are, or are to be computed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
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
    /// No sources; `None` is a network without an encoder.
    pub(crate) fn new(capacity: Option<&SourceCapacity>) -> Self {
        let capacity = capacity.cloned().unwrap_or_default();
        let free = (0..capacity.pages as u32).rev().map(PageId).collect();
        Self { capacity, free, ..Self::default() }
    }

    /// Another text is about this source; the source's number.
    pub(crate) fn add_text(&mut self, tenant: Tenant, tokens: &Arc<[Token]>) -> u64 {
        let entry = self.entries.entry(key(tenant, tokens)).or_default();
        if entry.number == 0 {
            self.numbers += 1;
            entry.number = self.numbers;
        }
        entry.texts += 1;
        entry.number
    }

    /// A text about this source has ended, and does not run.
    pub(crate) fn end_text(&mut self, tenant: Tenant, tokens: &Arc<[Token]>) {
        let key = key(tenant, tokens);
        let entry = self.entries.get_mut(&key).expect("a text about it was added");
        entry.texts -= 1;
        if entry.texts == 0 && entry.table.is_empty() {
            self.entries.remove(&key);
        }
    }

    /// Whether nothing is known of any source, and no page has rows of one.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there are pages for a source that a text is about.
    pub(crate) fn has_room(&self, tenant: Tenant, tokens: &Arc<[Token]>) -> bool {
        let is_there = self.entries.get(&key(tenant, tokens)).is_some_and(|entry| !entry.table.is_empty());
        let unread = self.entries.values().filter(|entry| entry.readers == 0).map(|entry| entry.table.len());
        is_there || self.capacity.pages_for(tokens.len()) <= self.free.len() + unread.sum::<usize>()
    }

    /// A text about this source begins to run: where the source's rows are, or are to be computed before anything
    /// else. Sources that nobody reads are evicted for it.
    ///
    /// # Panics
    /// If there is no room, or no text about it was added.
    pub(crate) fn hold(&mut self, tenant: Tenant, tokens: &Arc<[Token]>) -> Held {
        let key = key(tenant, tokens);
        let needed = self.capacity.pages_for(tokens.len());
        let is_computed = !self.entries[&key].table.is_empty();
        while !is_computed && self.free.len() < needed {
            self.evict();
        }
        let entry = self.entries.get_mut(&key).expect("a text about it was added");
        if !is_computed {
            entry.table = self.free.split_off(self.free.len() - needed);
        }
        entry.readers += 1;
        Held { table: entry.table.clone(), is_computed }
    }

    /// A text about this source stops running. `is_computed`: whether the source's rows are there, as they are unless
    /// the executor failed to compute them.
    pub(crate) fn let_go(&mut self, tenant: Tenant, tokens: &Arc<[Token]>, is_computed: bool) {
        self.clock += 1;
        let entry = self.entries.get_mut(&key(tenant, tokens)).expect("it was held");
        entry.readers -= 1;
        entry.let_go = self.clock;
        if !is_computed {
            self.free.append(&mut entry.table);
        }
    }

    /// Frees the pages of the source that was let go of first. There are as many sources as fit into their pages, so
    /// that looking through all of them costs less than computing one.
    fn evict(&mut self) {
        let unread = self.entries.iter_mut().filter(|(_, entry)| entry.readers == 0 && !entry.table.is_empty());
        let first = unread.min_by_key(|(_, entry)| entry.let_go);
        let (key, entry) = first.expect("somebody counted pages that can be had");
        self.free.append(&mut entry.table);
        if entry.texts == 0 {
            let key = key.clone();
            self.entries.remove(&key);
        }
    }

    /// Checks that every page is free or one source's, and that so many texts run.
    ///
    /// # Errors
    /// What is not in order.
    pub(crate) fn check(&self, running: usize) -> Result<(), String> {
        let mut pages: Vec<PageId> = self.free.clone();
        pages.extend(self.entries.values().flat_map(|entry| &entry.table));
        pages.sort_unstable();
        if !pages.iter().copied().eq((0..self.capacity.pages as u32).map(PageId)) {
            return Err(format!("sources: {pages:?} are free or held, of {}", self.capacity.pages));
        }
        let readers: usize = self.entries.values().map(|entry| entry.readers).sum();
        if readers != running {
            return Err(format!("sources: {readers} texts read one, and {running} of those that run are about one"));
        }
        let useless = self.entries.values().find(|entry| entry.texts == 0 && entry.table.is_empty());
        useless.map_or(Ok(()), |entry| Err(format!("sources: nobody needs {entry:?}")))
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
        let numbers = [(one, &a), (one, &a), (one, &b), (other, &a)].map(|(whose, of)| sources.add_text(whose, of));
        assert_eq!(numbers, [1, 1, 2, 3], "the same content of one tenant is one source");
        let first = sources.hold(one, &a);
        assert_eq!((first.table.len(), first.is_computed), (2, false));
        assert_eq!(sources.hold(one, &a), Held { is_computed: true, ..first });
        let second = sources.hold(one, &b);
        assert!(!sources.has_room(other, &a), "all pages are read");
        sources.check(3).unwrap();
        // Who failed to compute leaves nothing that could be taken for rows.
        sources.let_go(one, &b, false);
        let held = sources.hold(other, &a);
        assert!(!held.is_computed && held.table.iter().all(|page| second.table.contains(page)));
        sources.let_go(other, &a, true);
        (0..2).for_each(|_| sources.let_go(one, &a, true));
        sources.check(0).unwrap();
        // One that is as long as everything evicts all, the first that was let go of first.
        assert_eq!(sources.add_text(one, &c), 4);
        assert!(sources.has_room(one, &c));
        assert_eq!(sources.hold(one, &c).table.len(), 4);
        sources.let_go(one, &c, true);
        for (whose, of) in [(one, &a), (one, &a), (one, &b), (other, &a), (one, &c)] {
            sources.end_text(whose, of);
        }
        sources.check(0).unwrap();
        assert_eq!(sources.add_text(one, &a), 5, "its rows are gone, and with them its number");
        assert_eq!(sources.add_text(one, &c), 4, "cached");
    }
}
