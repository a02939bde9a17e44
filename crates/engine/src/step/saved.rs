//! Prefixes that are kept beyond an engine: their rows are copied out as bytes, and copied into the pages of another.
//!
//! An engine is told which tokens are wanted. Rows are copied out at the end of the step in which the last of them is
//! committed, before anything can be evicted; nothing of the text is changed by it. What is loaded is cached as if a
//! request had computed it and ended: held by nobody, found by its tokens, evicted when its room is needed.
//!
//! Left out: files, and whether rows were saved by the same network (the library's).

use foretoken_model::{CacheRows, Executor, ExecutorError, PageId, PageTable};
use foretoken_speculation::{Tenant, Token};

use super::Engine;
use crate::output::FinishReason;
use crate::pages::Owner;
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
    /// The position of the first row; the last is that of the last token. More than 0 only where a window is kept.
    pub first: usize,
    /// The rows, [`Engine::saved_bytes`] each.
    pub bytes: Vec<u8>,
}

/// A prefix that is wanted, or was copied.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    of: Option<(Tenant, Vec<Token>)>,
    saved: Option<SavedPrefix>,
}

impl Engine {
    /// Bytes of a saved row in each cache group; `None` if the executor saves none.
    pub fn saved_bytes(&self) -> Option<Vec<usize>> {
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
        let is_sound = |sequence: &Sequence| !matches!(sequence.finished, Some(FinishReason::Failed(_)));
        let own = |sequence: &&Sequence| sequence.whose == Owner::from(*tenant) && is_sound(sequence);
        let mut running = self.running.iter().filter(own);
        let has_all = running.find(|other| other.cached >= len && other.tokens.starts_with(tokens));
        let Some(tables) = has_all.and_then(|sequence| self.pages.prefix_tables(&sequence.pages, len)) else { return };
        let (_, tokens) = self.wanted.of.take().expect("it was there a moment ago");
        self.wanted.saved = save(&*self.executor, &tables, tokens).ok();
    }

    /// Caches a saved prefix for this tenant, or for everybody. How many of its tokens are cached: none where there is
    /// no room for them, or rows are missing that the next one would see; fewer than all only where no group keeps a
    /// window.
    ///
    /// # Panics
    /// If it has other groups or rows of other lengths than [`saved_bytes`](Self::saved_bytes) says.
    pub fn load_prefix(&mut self, owner: Option<Tenant>, saved: &SavedPrefix) -> usize {
        let Some(row_bytes) = self.saved_bytes().filter(|_| self.pages.page_len().is_some()) else { return 0 };
        let all = saved.tokens.len();
        let found: Vec<usize> = saved.groups.iter().map(|rows| rows.bytes.len()).collect();
        let firsts = saved.groups.iter().map(|rows| rows.first);
        let expected: Vec<usize> = firsts.zip(&row_bytes).map(|(first, bytes)| (all - first) * bytes).collect();
        assert!(found == expected && row_bytes.len() == found.len(), "saved rows: {found:?} bytes, not {expected:?}");
        let len = all.min(self.pages.room_for_prefix());
        self.load(owner, saved, &row_bytes, len).unwrap_or(0)
    }

    /// Loads the first `len` positions; `None` if they could not be.
    fn load(&mut self, owner: Option<Tenant>, saved: &SavedPrefix, row_bytes: &[usize], len: usize) -> Option<usize> {
        let page_len = self.pages.page_len()?;
        let first_pages: Vec<usize> = saved.groups.iter().map(|rows| rows.first.div_ceil(page_len)).collect();
        let public_len = if owner.is_none() { usize::MAX } else { 0 };
        let mut held = self.pages.open(owner.unwrap_or_default(), public_len);
        if len == 0 || !self.pages.grow_from(&mut held, &first_pages, len) {
            return None;
        }
        let groups = saved.groups.iter().zip(held.tables()).zip(row_bytes);
        let loaded = groups.enumerate().try_for_each(|(group, ((rows, table), row_bytes))| {
            let first = table.iter().take_while(|page| **page == PageId::GONE).count();
            let positions = (first * page_len).min(len)..len;
            let bytes = [positions.start, positions.end].map(|position| (position - rows.first) * row_bytes);
            self.executor.load_rows(CacheRows { group, table, positions }, &rows.bytes[bytes[0]..bytes[1]])
        });
        // Rows that could not be written are nothing that may be found.
        self.pages.enter_full(&mut held, if loaded.is_ok() { &saved.tokens[..len] } else { &[] });
        self.pages.release(&mut held, if loaded.is_ok() { &saved.tokens[..len] } else { &[] });
        loaded.ok().map(|()| len)
    }
}

/// Copies rows of these page tables, in each group from the first on behind which no page is missing.
fn save(executor: &dyn Executor, tables: &[PageTable], tokens: Vec<Token>) -> Result<SavedPrefix, ExecutorError> {
    let rows_of = |(group, table): (usize, &PageTable)| {
        let first_page = table.iter().rposition(|page| *page == PageId::GONE).map_or(0, |gone| gone + 1);
        let first = (first_page * executor.capacity().groups[group].page_len).min(tokens.len());
        let rows = (tokens.len() - first) * executor.saved_bytes(group).unwrap_or(0);
        let mut bytes = Vec::with_capacity(rows);
        executor.save_rows(CacheRows { group, table, positions: first..tokens.len() }, &mut bytes)?;
        assert_eq!(bytes.len(), rows, "bytes of the rows of group {group}");
        Ok(SavedRows { first, bytes })
    };
    let groups = tables.iter().enumerate().map(rows_of).collect::<Result<_, _>>()?;
    Ok(SavedPrefix { tokens, groups })
}
