//! Prefixes that are kept beyond an engine: their rows are copied out as bytes, and copied into the pages of another.
//!
//! An engine is told which tokens are wanted. Rows are copied out at the end of the step in which the last of them is
//! committed, before anything can be evicted; nothing of the text is changed by it. What is loaded is cached as if a
//! request had computed it and ended: held by nobody, found by its tokens, evicted when its room is needed.
//!
//! Left out: files, and whether rows were saved by the same network (the library's).

use foretoken_model::{CacheRows, Executor, ExecutorError, PageId, SavedBytes};
use foretoken_speculation::{Tenant, Token};

use super::Engine;
use crate::pages::{Lies, Owner};
use crate::sequence::Sequence;

/// The rows of a prefix, as bytes that only an executor of the same network, run in the same way, can read.
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
    /// The position of the first row; the last is that of the last token. More than 0 where a window is kept, or in
    /// front of the rows is a state that has passed all before.
    pub first: usize,
    /// The state, if there is one, and the rows: as many as [`Engine::saved_bytes`] says.
    pub bytes: Vec<u8>,
}

/// A prefix that is wanted, or was copied.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    of: Option<(Tenant, Vec<Token>)>,
    saved: Option<SavedPrefix>,
}

impl Engine {
    /// How many bytes are saved of each cache group; `None` if the executor saves none.
    pub fn saved_bytes(&self) -> Option<Vec<SavedBytes>> {
        (0..self.executor.capacity().groups.len()).map(|group| self.executor.saved_bytes(group)).collect()
    }

    /// From now on copies the rows of these tokens when a text of this tenant that begins with them has computed them
    /// all. Takes the place of a prefix that was asked for before and is not there yet.
    pub fn save_prefix(&mut self, tenant: Tenant, tokens: Vec<Token>) {
        self.wanted.of =
            Some((tenant, tokens)).filter(|(_, tokens)| !tokens.is_empty() && self.saved_bytes().is_some());
    }

    /// The prefix that was copied last and was not taken yet.
    pub fn take_saved_prefix(&mut self) -> Option<SavedPrefix> {
        self.wanted.saved.take()
    }

    /// Copies the prefix that is wanted, if its rows are there. What cannot be copied is not wanted any more.
    pub(super) fn copy_wanted_prefix(&mut self) {
        let Some((tenant, tokens)) = &self.wanted.of else { return };
        let len = tokens.len();
        let own = |sequence: &&Sequence| sequence.whose == Owner::from(*tenant) && !sequence.has_failed();
        let mut running = self.running.iter().filter(own);
        let has_all = running.find(|other| other.cached >= len && other.tokens.starts_with(tokens));
        let Some(groups) = has_all.and_then(|sequence| self.pages.lies(&sequence.pages, tokens)) else { return };
        let (_, tokens) = self.wanted.of.take().expect("it was there a moment ago");
        self.wanted.saved = save(&*self.executor, groups, tokens).ok();
    }

    /// Where in the prompt of a sequence the prefix ends that is wanted, if it begins with it.
    pub(super) fn wanted_len(&self, sequence: &Sequence) -> Option<usize> {
        let (tenant, tokens) = self.wanted.of.as_ref()?;
        let is_of = sequence.whose == Owner::from(*tenant) && sequence.tokens.starts_with(tokens);
        is_of.then_some(tokens.len())
    }

    /// Caches a saved prefix for this tenant, or for everybody. How many of its tokens are cached: none where there is
    /// no room for them, or rows are missing that the next one would see; fewer than all only where no group keeps a
    /// window or states.
    ///
    /// # Panics
    /// If it has other groups or rows of other lengths than [`saved_bytes`](Self::saved_bytes) says.
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
        // Rows that could not be written are nothing that may be found.
        self.pages.enter_full(&mut held, if loaded.is_ok() { &saved.tokens[..len] } else { &[] });
        self.pages.release(&mut held, if loaded.is_ok() { &saved.tokens[..len] } else { &[] });
        loaded.ok().map(|()| len)
    }
}

/// Copies what lies there of each group.
fn save(executor: &dyn Executor, groups: Vec<Lies>, tokens: Vec<Token>) -> Result<SavedPrefix, ExecutorError> {
    let rows_of = |(group, Lies { table, first }): (usize, Lies)| {
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
