//! Saved prefixes: the cache rows of a prefix are copied out as bytes, and later into the pages of another engine.
//!
//! A program requests a prefix by its tokens. Its rows are copied at the end of the step in which the last of them is
//! committed, before any can be evicted; no output changes. A loaded prefix is cached as if a request had computed it
//! and ended: no sequence holds it, requests find it by its tokens, and it is evicted if its pages are needed.
//!
//! The library keeps the files, and checks that rows were saved by the same network.

use foretoken_model::{CacheRows, Executor, ExecutorError, PageId, SavedBytes};
use foretoken_speculation::{Tenant, Token};

use super::Engine;
use crate::pages::{Owner, PrefixPages};
use crate::sequence::Sequence;

/// The rows of a prefix, as bytes that only an executor of the same network and arithmetic can read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedPrefix {
    /// The tokens that the rows were computed from.
    pub tokens: Vec<Token>,
    /// The rows of each cache group.
    pub groups: Vec<SavedRows>,
}

/// The rows of a prefix in one cache group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedRows {
    /// The position of the first row; the last row is that of the last token. Above 0 in a group with a window, and in
    /// one with a state that has advanced over the tokens before.
    pub first: usize,
    /// The state, if there is one, and the rows, of the sizes of [`Engine::saved_bytes`].
    pub bytes: Vec<u8>,
}

/// The requested prefix, and the last one that was copied.
#[derive(Debug, Default)]
pub(super) struct PrefixToSave {
    requested: Option<(Tenant, Vec<Token>)>,
    saved: Option<SavedPrefix>,
}

impl Engine {
    /// The sizes of the saved rows of each cache group; `None` if the executor cannot save rows.
    pub fn saved_bytes(&self) -> Option<Vec<SavedBytes>> {
        (0..self.executor.capacity().groups.len()).map(|group| self.executor.saved_bytes(group)).collect()
    }

    /// Requests the rows of these tokens: they are copied when a sequence of this tenant that begins with them has
    /// computed them all. Replaces an earlier request that is not fulfilled yet.
    pub fn save_prefix(&mut self, tenant: Tenant, tokens: Vec<Token>) {
        self.prefix_to_save.requested =
            Some((tenant, tokens)).filter(|(_, tokens)| !tokens.is_empty() && self.saved_bytes().is_some());
    }

    /// Takes the prefix that was copied last, if it was not taken before.
    pub fn take_saved_prefix(&mut self) -> Option<SavedPrefix> {
        self.prefix_to_save.saved.take()
    }

    /// Copies the requested prefix, if its rows are cached. A request that cannot be copied is dropped.
    pub(super) fn save_requested_prefix(&mut self) {
        let Some((tenant, tokens)) = &self.prefix_to_save.requested else { return };
        let len = tokens.len();
        let own = |sequence: &&Sequence| sequence.owner == Owner::from(*tenant) && !sequence.has_failed();
        let mut running = self.running.iter().filter(own);
        let has_all = running.find(|other| other.cache.cached >= len && other.text.tokens.starts_with(tokens));
        let Some(groups) = has_all.and_then(|sequence| self.pages.prefix_pages(&sequence.cache.pages, tokens)) else {
            return;
        };
        let (_, tokens) = self.prefix_to_save.requested.take().expect("a requested prefix");
        self.prefix_to_save.saved = save(&*self.executor, groups, tokens).ok();
    }

    /// The length of the requested prefix, if the sequence begins with it.
    pub(super) fn len_to_save(&self, sequence: &Sequence) -> Option<usize> {
        let (tenant, tokens) = self.prefix_to_save.requested.as_ref()?;
        let is_of = sequence.owner == Owner::from(*tenant) && sequence.text.tokens.starts_with(tokens);
        is_of.then_some(tokens.len())
    }

    /// Caches a saved prefix for this tenant, or for all tenants. Returns how many of its tokens are cached: none if
    /// there is no room for them, or rows are missing that the next token would attend to; fewer than all only if no
    /// group has a window or states.
    ///
    /// # Panics
    /// If its groups or the sizes of its rows differ from [`saved_bytes`](Self::saved_bytes).
    pub fn load_prefix(&mut self, owner: Option<Tenant>, saved: &SavedPrefix) -> usize {
        let Some(sizes) = self.saved_bytes() else { return 0 };
        let all = saved.tokens.len();
        let found: Vec<usize> = saved.groups.iter().map(|rows| rows.bytes.len()).collect();
        let firsts = saved.groups.iter().map(|rows| rows.first);
        let expected: Vec<usize> = firsts.zip(&sizes).map(|(first, bytes)| bytes.of(all - first)).collect();
        assert!(found == expected && sizes.len() == found.len(), "saved rows: {found:?} bytes, not {expected:?}");
        let len = all.min(self.pages.room_for_prefix());
        if len < all && self.pages.has_states() {
            return 0;
        }
        self.load(owner, saved, &sizes, len).unwrap_or(0)
    }

    /// Loads the first `len` positions; `None` if they could not be.
    fn load(&mut self, owner: Option<Tenant>, saved: &SavedPrefix, sizes: &[SavedBytes], len: usize) -> Option<usize> {
        let firsts: Vec<usize> = saved.groups.iter().map(|rows| rows.first).collect();
        let public_len = if owner.is_none() { usize::MAX } else { 0 };
        let mut held = self.pages.open(owner.unwrap_or_default(), public_len);
        if len == 0 || !self.pages.grow_from(&mut held, &firsts, len) {
            return None;
        }
        let groups = saved.groups.iter().zip(held.tables()).zip(sizes).enumerate();
        let mut passed = 0;
        let loaded = groups.into_iter().try_for_each(|(group, ((rows, table), size))| {
            let page_len = self.executor.capacity().groups[group].page_len;
            let first = match size.state {
                0 => (table.iter().take_while(|page| **page == PageId::GONE).count() * page_len).min(len),
                _ => rows.first,
            };
            passed = passed.max(if size.state > 0 { first } else { 0 });
            let (from, to) = ((first - rows.first) * size.row, size.of(len - rows.first));
            self.executor.load_rows(CacheRows { group, table, positions: first..len }, &rows.bytes[from..to])
        });
        held.set_passed(passed);
        // Rows that could not be written must not be found.
        self.pages.enter_full(&mut held, if loaded.is_ok() { &saved.tokens[..len] } else { &[] });
        self.pages.release(&mut held, if loaded.is_ok() { &saved.tokens[..len] } else { &[] });
        loaded.ok().map(|()| len)
    }
}

/// Copies the rows of each group.
fn save(executor: &dyn Executor, groups: Vec<PrefixPages>, tokens: Vec<Token>) -> Result<SavedPrefix, ExecutorError> {
    let rows_of = |(group, PrefixPages { table, first }): (usize, PrefixPages)| {
        let size = executor.saved_bytes(group).unwrap_or_default().of(tokens.len() - first);
        let mut bytes = Vec::with_capacity(size);
        let rows = CacheRows { group, table: &table, positions: first..tokens.len() };
        executor.save_rows(rows, &mut bytes)?;
        assert_eq!(bytes.len(), size, "bytes of the rows of group {group}");
        Ok(SavedRows { first, bytes })
    };
    let groups = groups.into_iter().enumerate().map(rows_of).collect::<Result<_, _>>()?;
    Ok(SavedPrefix { tokens, groups })
}
