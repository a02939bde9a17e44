//! The bookkeeping of pages: which sequence holds which page of the paged cache. The bytes are the executor's.
//!
//! A sequence takes pages as it grows, and there may be none left: then growing fails and changes nothing. When all
//! rows of a page are committed, the page enters a tree of prefixes (`tree`), where a new sequence finds it by its
//! tokens and *adopts* it instead of computing it again (`adopt`). A page is held by as many page tables as share it. A
//! page that none holds stays *cached* until its room is needed; the least recently used page is evicted first, and of
//! one sequence the deepest page.
//!
//! Rows are written only to pages that one table holds and that are not in the tree ([`Pages::assert_own`]): a sequence
//! that differs from a cached prefix inside a page gets a page of its own, to which the rows that agree are copied
//! (copy on write). In a cache group with a sliding window, pages before the window are released when rows are
//! committed, never for a draft; a prefix can be adopted there if its last window is still cached. Recurrent states are
//! cached as *checkpoints* (`checkpoints`), which are copied. Each group has its own pages and prefixes (`group`); a
//! sequence adopts the longest prefix that all groups can continue.
//!
//! Tenants find only their own prefixes and public ones, since the time that a request takes reveals what was computed
//! before. Which sequences get pages first and which are preempted is decided in `step/admission`.

mod adopt;
mod check;
mod checkpoints;
mod group;
mod pool;
mod saved;
mod tree;

#[cfg(test)]
mod reference;

use std::ops::Range;

use foretoken_model::{Capacity, Keep, Kind, PageId, PageTable};
use foretoken_speculation::{Tenant, Token};

use crate::faults::{Fault, is_made};
pub(crate) use adopt::Adopted;
use group::{GroupPages, TreePosition};
use pool::NONE;
pub(crate) use saved::PrefixPages;

/// The pages of every cache group of one executor, with their holders and the cached prefixes.
#[derive(Clone, Debug)]
pub struct Pages {
    groups: Vec<GroupPages>,
    /// Maximum number of rows of one pass.
    rows_max: usize,
    shared_every: Option<usize>,
}

/// The owner of cached rows: only sequences of the same owner find them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The tenant.
    pub tenant: Tenant,
    /// The number of the encoder source that the rows were computed with; 0: none.
    pub source: u64,
}

impl From<Tenant> for Owner {
    fn from(tenant: Tenant) -> Self {
        Self { tenant, source: 0 }
    }
}

/// Which cached prefixes a sequence may use, and the owner of those that it leaves.
#[derive(Clone, Copy, Debug, Default)]
struct View {
    owner: Owner,
    /// How many leading tokens are public.
    public_len: usize,
}

impl View {
    /// The owner of a prefix of `len` tokens of the sequence; `None`: it is public.
    fn prefix_owner(&self, len: usize) -> Option<Owner> {
        (len > self.public_len).then_some(self.owner)
    }

    /// Whether the sequence may use a prefix of `len` tokens of this owner. A prefix that is to be public is looked for
    /// among public ones only.
    fn sees(&self, owner: Option<Owner>, len: usize) -> bool {
        owner.is_none() || owner == self.prefix_owner(len)
    }
}

/// What one sequence holds of the cache: its page tables, and its positions in the trees of prefixes.
#[derive(Debug, Default)]
pub(crate) struct SequencePages {
    /// One for each group; empty before the sequence is opened.
    tables: Vec<PageTable>,
    /// One for each group.
    places: Vec<TreePosition>,
    view: View,
    /// How many of its first tokens its recurrent states have passed, if it has any.
    passed: usize,
}

impl SequencePages {
    /// Its page tables, one for each cache group.
    pub(crate) fn tables(&self) -> &[PageTable] {
        &self.tables
    }

    /// How many of its first tokens its recurrent states have passed.
    pub(crate) fn passed(&self) -> usize {
        self.passed
    }

    /// Notes how many of its first tokens its recurrent states have passed.
    pub(crate) fn set_passed(&mut self, passed: usize) {
        self.passed = passed;
    }
}

impl Pages {
    /// All pages of an executor, free.
    pub(crate) fn new(capacity: &Capacity) -> Self {
        let Capacity { groups, rows_max, .. } = capacity;
        let has_states = groups.iter().any(|group| group.kind == Kind::State);
        let page_len_max = groups.iter().map(|group| group.page_len).max();
        Self {
            groups: groups.iter().map(GroupPages::new).collect(),
            rows_max: *rows_max,
            shared_every: page_len_max.filter(|_| !has_states),
        }
    }

    /// Like [`Pages::new`], for sequences that may roll back committed rows, as those of draft models do: no pages
    /// before a window are released.
    pub(crate) fn with_rollback(capacity: &Capacity) -> Self {
        let mut pages = Self::new(capacity);
        pages.groups.iter_mut().for_each(|pages| pages.group.keep = Keep::All);
        pages
    }

    /// A sequence without pages. Only sequences of the same owner may use its prefixes, except for those within its
    /// first `public_len` tokens, which all sequences may use.
    pub(crate) fn open(&self, owner: impl Into<Owner>, public_len: usize) -> SequencePages {
        let public_len = if is_made(Fault::PrefixOfAnotherTenant) { usize::MAX } else { public_len };
        SequencePages {
            tables: vec![PageTable::new(); self.groups.len()],
            places: vec![TreePosition::default(); self.groups.len()],
            view: View { owner: owner.into(), public_len },
            passed: 0,
        }
    }

    /// Takes pages until a sequence has room for `positions`, evicting cached ones as needed. Returns false and changes
    /// nothing if there are not enough.
    pub(crate) fn grow(&mut self, sequence: &mut SequencePages, positions: usize) -> bool {
        let mut all = self.groups.iter().zip(&sequence.tables);
        if !all.all(|(pages, table)| pages.missing(table, positions) <= pages.pool.available()) {
            return false;
        }
        for (pages, table) in self.groups.iter_mut().zip(&mut sequence.tables) {
            for _ in 0..pages.missing(table, positions) {
                table.push(pages.take());
            }
        }
        true
    }

    /// The number of positions after which a sequence has another page to share: the longest page length of the groups.
    /// `None` if there are states, which are shared only as checkpoints.
    pub(crate) fn shared_every(&self) -> Option<usize> {
        self.shared_every
    }

    /// How many leading tokens a sequence could adopt.
    pub(crate) fn found(&self, sequence: &SequencePages, tokens: &[Token]) -> usize {
        self.find(sequence.view, tokens, tokens.len()).len
    }

    /// Whether there are recurrent states.
    pub fn has_states(&self) -> bool {
        self.groups.iter().any(|pages| !pages.has_rows())
    }

    /// Positions that a sequence has pages for.
    pub(crate) fn room(&self, sequence: &SequencePages) -> usize {
        let room = |(pages, table): (&GroupPages, &PageTable)| table.len().saturating_mul(pages.group.page_len);
        self.groups.iter().zip(&sequence.tables).map(room).min().unwrap_or(0)
    }

    /// Each group with the sequence's position in its tree and the sequence's page table.
    fn each<'a>(
        &'a mut self,
        sequence: &'a mut SequencePages,
    ) -> impl Iterator<Item = (&'a mut GroupPages, &'a mut TreePosition, &'a mut PageTable)> {
        let groups = self.groups.iter_mut().zip(&mut sequence.places).zip(&mut sequence.tables);
        groups.map(|((pages, place), table)| (pages, place, table))
    }

    /// Notes that the rows of these tokens, the first of a sequence, are committed and will not be rolled back:
    /// releases the pages that hold only later positions, and those that hold only positions that no later row sees.
    /// Full pages enter the trees of prefixes, as in [`Pages::enter_full`].
    pub(crate) fn commit(&mut self, sequence: &mut SequencePages, tokens: &[Token]) {
        self.commit_within(sequence, tokens, tokens.len());
    }

    /// Like [`Pages::commit`], but pages of later positions, up to `positions` in all, stay the sequence's own.
    pub(crate) fn commit_within(&mut self, sequence: &mut SequencePages, tokens: &[Token], positions: usize) {
        let view = sequence.view;
        for (pages, place, table) in self.each(sequence) {
            pages.truncate_table(table, positions.max(tokens.len()));
            pages.enter_full(place, table, view, tokens);
            pages.release_unseen(table, tokens.len());
        }
    }

    /// Adds the full pages of these tokens, the first of a sequence, to the trees of prefixes. If a tree has a page of
    /// the same prefix already, the sequence uses that one instead of its own.
    pub(crate) fn enter_full(&mut self, sequence: &mut SequencePages, tokens: &[Token]) {
        let view = sequence.view;
        self.each(sequence).for_each(|(pages, place, table)| pages.enter_full(place, table, view, tokens));
    }

    /// Releases everything that a sequence holds; it may then start anew. `tokens`: its first ones, whose rows are
    /// committed. The last page, even if it is partly filled, stays cached like the full ones, and its states stay as
    /// checkpoints. Without tokens, for rows that cannot be relied on, only pages that are in the trees already stay.
    pub(crate) fn release(&mut self, sequence: &mut SequencePages, tokens: &[Token]) {
        let (view, passed) = (sequence.view, std::mem::take(&mut sequence.passed));
        for (pages, place, table) in self.each(sequence) {
            if !tokens.is_empty() {
                pages.truncate_table(table, tokens.len());
                pages.enter_full(place, table, view, tokens);
                pages.keep_rest(*place, table, view, tokens, passed);
            }
            pages.release(place, table);
        }
    }

    /// Keeps a checkpoint of the states of a sequence, which have passed some of these tokens and hold the inputs of
    /// the others, unless there is one; and a copy of the rows of its last page, to which the sequence will write more.
    /// `copy` copies both to the given page tables, rows at the given positions, and returns whether that worked.
    /// Nothing is kept without a free slot: slots of running sequences cannot be used.
    pub(crate) fn keep_checkpoint(
        &mut self,
        sequence: &SequencePages,
        tokens: &[Token],
        copy: impl FnOnce(&[PageTable], Range<usize>) -> bool,
    ) {
        let states = || self.groups.iter().filter(|pages| !pages.has_rows());
        if states().any(|pages| pages.pool.available() == 0)
            || states().all(|pages| pages.find(sequence.view, tokens, tokens.len()).len == tokens.len())
        {
            return;
        }
        let (view, passed) = (sequence.view, sequence.passed);
        let mut groups: Vec<_> = self.groups.iter_mut().zip(&sequence.places).zip(&sequence.tables).collect();
        let taken = groups.iter_mut().map(|((pages, place), table)| pages.take_copy(**place, table, view, tokens));
        let (taken, tables): (Vec<Option<PageId>>, Vec<PageTable>) = taken.unzip();
        let starts = groups.iter().zip(&taken).filter(|(((pages, _), _), taken)| pages.has_rows() && taken.is_some());
        let start = starts.map(|(((pages, _), _), _)| pages.uncopied(tokens.len())).min().unwrap_or(tokens.len());
        let is_copied = copy(&tables, start..tokens.len());
        for ((((pages, place), _), table), page) in groups.into_iter().zip(&tables).zip(taken) {
            if is_copied && page.is_some() {
                pages.keep_rest(*place, table, view, tokens, passed);
            }
            page.into_iter().for_each(|page| pages.pool.release(page));
        }
    }

    /// How many leading tokens the sequence has in common with one that left a checkpoint.
    pub(crate) fn known_len(&self, sequence: &SequencePages, tokens: &[Token]) -> usize {
        self.groups.iter().map(|pages| pages.known_len(sequence.view, tokens)).max().unwrap_or(0)
    }

    /// Asserts that these positions of a sequence may be written: their pages are held by no other sequence and are not
    /// in the tree.
    ///
    /// # Panics
    /// If they may not.
    pub(crate) fn assert_own(&self, sequence: &SequencePages, positions: Range<usize>) {
        for (GroupPages { group, pool, .. }, table) in self.groups.iter().zip(&sequence.tables) {
            for page in &table[positions.start / group.page_len..group.pages_for(positions.end)] {
                let state = pool.page(*page);
                let own = (state.holders, state.node) == (1, NONE);
                assert!(own, "positions {positions:?} are written to {page:?}, which is shared: {state:?}");
            }
        }
    }

    /// The group whose pages are reported: the first that holds rows, if there is one.
    fn first(&self) -> &GroupPages {
        self.groups.iter().find(|pages| pages.has_rows()).unwrap_or(&self.groups[0])
    }

    /// Pages of the first group of rows that no sequence holds: free and cached ones.
    pub fn available(&self) -> usize {
        self.first().pool.available()
    }

    /// All pages of the first group of rows.
    pub(crate) fn len(&self) -> usize {
        self.first().pool.len()
    }

    /// Positions of each of these pages.
    pub fn page_len(&self) -> usize {
        self.first().group.page_len
    }

    /// Nodes of the trees of prefixes: those with a page, cached or held, and their ancestors.
    pub fn nodes(&self) -> usize {
        self.groups.iter().map(GroupPages::nodes).sum()
    }

    /// Checkpoints that are kept.
    pub fn checkpoints(&self) -> usize {
        self.groups.iter().filter(|pages| !pages.has_rows()).map(|pages| pages.pool.cached()).max().unwrap_or(0)
    }
}
