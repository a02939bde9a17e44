//! Which pages belong to whom: integers only. The bytes are the executor's.
//!
//! A sequence takes pages as it grows, and there may be none left: growing can fail, and then nothing has changed.
//! What was computed once is not computed again: when all rows of a page are committed, the page enters a tree of
//! prefixes (`tree`), where a sequence that begins finds it by its tokens and *adopts* it (`adopt`). A page is held by
//! as many page tables as share it; one that none holds stays *cached* until its room is needed, and is evicted when
//! it is the one that was let go of first (of a text the deepest pages first).
//!
//! Rows are only ever written to pages that one table holds and the tree does not know ([`Pages::assert_own`]): a
//! sequence that leaves a prefix inside a page gets a page of its own, to which the rows that agree are copied (copy on
//! write). Of a cache group that keeps a window of the text, pages behind the window are given back when rows are
//! committed, never for a draft; a prefix can be adopted there if its last window is still cached. Of a recurrent state
//! there are *checkpoints* (`checkpoints`), which are copied. Each group has its own pages and prefixes (`group`); what
//! is adopted is the longest prefix that all of them can continue.
//!
//! Tenants see their own prefixes and those that were declared public, since the time that a request takes tells what
//! was computed before.
//!
//! Left out: who gets pages first and who has to give way (`step/admission`).

mod adopt;
mod check;
mod checkpoints;
mod group;
mod pool;
mod saved;
mod tree;

#[cfg(test)]
mod twin;

use std::ops::Range;

use foretoken_model::{Capacity, Keep, Kind, PageId, PageTable};
use foretoken_speculation::{Tenant, Token};

use crate::faults::{Fault, is_made};
pub use adopt::{Adopted, Copied};
use group::{GroupPages, Place};
use pool::NONE;
pub(crate) use saved::Lies;

/// Who holds which page, of every cache group of one executor, and the prefixes that are cached.
#[derive(Clone, Debug)]
pub struct Pages {
    groups: Vec<GroupPages>,
    /// Rows of one pass.
    rows_max: usize,
    shared_every: Option<usize>,
}

/// Whose rows are found by whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// On whose behalf they were computed.
    pub tenant: Tenant,
    /// The number of the source that the text is about, whose rows it sees; 0: none.
    pub source: u64,
}

impl From<Tenant> for Owner {
    fn from(tenant: Tenant) -> Self {
        Self { tenant, source: 0 }
    }
}

/// Whose prefixes a sequence finds, and who finds its own.
#[derive(Clone, Copy, Debug, Default)]
struct View {
    whose: Owner,
    /// Of the tokens so many first ones are everybody's.
    public_len: usize,
}

impl View {
    /// Whose a prefix of so many tokens is; `None`: everybody's.
    fn owner(&self, len: usize) -> Option<Owner> {
        (len > self.public_len).then_some(self.whose)
    }

    /// Whether a prefix of so many tokens that is this owner's is found. What is to be everybody's is looked for among
    /// what is.
    fn sees(&self, owner: Option<Owner>, len: usize) -> bool {
        owner.is_none() || owner == self.owner(len)
    }
}

/// What one sequence holds of the cache: its page tables, and its places in the trees of prefixes.
#[derive(Debug, Default)]
pub struct SequencePages {
    /// One a group; empty before the sequence was opened.
    tables: Vec<PageTable>,
    /// One a group.
    places: Vec<Place>,
    view: View,
    /// So many first tokens its recurrent states have passed, if there are any.
    passed: usize,
}

impl SequencePages {
    /// Its page tables, one a cache group.
    pub fn tables(&self) -> &[PageTable] {
        &self.tables
    }

    /// How many of its first tokens its recurrent states have passed.
    pub fn passed(&self) -> usize {
        self.passed
    }

    /// A pass has brought its recurrent states so far.
    pub fn set_passed(&mut self, passed: usize) {
        self.passed = passed;
    }
}

impl Pages {
    /// All pages of an executor, free.
    pub fn new(capacity: &Capacity) -> Self {
        let Capacity { groups, rows_max, .. } = capacity;
        let has_states = groups.iter().any(|group| group.kind == Kind::State);
        let page_len_max = groups.iter().map(|group| group.page_len).max();
        Self {
            groups: groups.iter().map(GroupPages::new).collect(),
            rows_max: *rows_max,
            shared_every: page_len_max.filter(|_| !has_states),
        }
    }

    /// The same for sequences that may go back behind what they committed, as those of draft models do: nothing is
    /// given back at the front.
    pub fn that_keep_all(capacity: &Capacity) -> Self {
        let mut pages = Self::new(capacity);
        pages.groups.iter_mut().for_each(|pages| pages.group.keep = Keep::All);
        pages
    }

    /// A sequence without pages. Its prefixes are shown to texts of the same owner alone, those within its first
    /// `public_len` tokens to everybody.
    pub fn open(&self, whose: impl Into<Owner>, public_len: usize) -> SequencePages {
        let public_len = if is_made(Fault::PrefixOfAnotherTenant) { usize::MAX } else { public_len };
        SequencePages {
            tables: vec![PageTable::new(); self.groups.len()],
            places: vec![Place::default(); self.groups.len()],
            view: View { whose: whose.into(), public_len },
            passed: 0,
        }
    }

    /// Takes pages until a sequence has room for so many positions; false, and nothing changed, where there are not
    /// enough. Cached pages are evicted as they are needed.
    pub fn grow(&mut self, held: &mut SequencePages, positions: usize) -> bool {
        let mut all = self.groups.iter().zip(&held.tables);
        if !all.all(|(pages, table)| pages.missing(table, positions) <= pages.pool.available()) {
            return false;
        }
        for (pages, table) in self.groups.iter_mut().zip(&mut held.tables) {
            for _ in 0..pages.missing(table, positions) {
                table.push(pages.take());
            }
        }
        true
    }

    /// The most positions that a page of rows has, so that after as many more some may be shared; `None` if there are
    /// states, of which only checkpoints are.
    pub fn shared_every(&self) -> Option<usize> {
        self.shared_every
    }

    /// How many first ones of these tokens a sequence could adopt.
    pub fn found(&self, held: &SequencePages, tokens: &[Token]) -> usize {
        self.find(held.view, tokens, tokens.len()).len
    }

    /// Whether there are recurrent states.
    pub fn has_states(&self) -> bool {
        self.groups.iter().any(|pages| !pages.has_rows())
    }

    /// Positions that a sequence has pages for.
    pub fn room(&self, held: &SequencePages) -> usize {
        let room = |(pages, table): (&GroupPages, &PageTable)| table.len().saturating_mul(pages.group.page_len);
        self.groups.iter().zip(&held.tables).map(room).min().unwrap_or(0)
    }

    /// Each group with what a sequence has of it.
    fn each<'a>(
        &'a mut self,
        held: &'a mut SequencePages,
    ) -> impl Iterator<Item = (&'a mut GroupPages, &'a mut Place, &'a mut PageTable)> {
        let groups = self.groups.iter_mut().zip(&mut held.places).zip(&mut held.tables);
        groups.map(|((pages, place), table)| (pages, place, table))
    }

    /// Notes that the rows of these tokens, the first of a sequence, are committed and will not be taken back: gives
    /// back the pages that hold nothing but positions behind them, or positions that no later row sees. Full pages
    /// enter the trees of prefixes, as [`Pages::enter_full`].
    pub fn commit(&mut self, held: &mut SequencePages, tokens: &[Token]) {
        let view = held.view;
        for (pages, place, table) in self.each(held) {
            pages.cut(table, tokens.len());
            pages.enter_full(place, table, view, tokens);
            pages.give_back_unseen(table, tokens.len());
        }
    }

    /// Pages that are full of these tokens, the first of a sequence, enter the trees of prefixes; where there is a page
    /// of the same prefix already, this one takes the place of the sequence's.
    pub fn enter_full(&mut self, held: &mut SequencePages, tokens: &[Token]) {
        let view = held.view;
        self.each(held).for_each(|(pages, place, table)| pages.enter_full(place, table, view, tokens));
    }

    /// Gives back everything that a sequence holds; it may then begin again. `tokens`: its first ones, whose rows are
    /// committed. The last page, if it is partly filled, stays cached like the full ones, and its states as
    /// checkpoints. Without tokens, where rows cannot be relied on, only what is known already does.
    pub fn release(&mut self, held: &mut SequencePages, tokens: &[Token]) {
        let (view, passed) = (held.view, std::mem::take(&mut held.passed));
        for (pages, place, table) in self.each(held) {
            if !tokens.is_empty() {
                pages.cut(table, tokens.len());
                pages.enter_full(place, table, view, tokens);
                pages.keep_rest(*place, table, view, tokens, passed);
            }
            pages.release(place, table);
        }
    }

    /// Keeps a checkpoint of the states of a sequence, which have passed some of these tokens and have the inputs of
    /// the others behind them, unless there is one; and the rows of the last of its pages, where the sequence will
    /// write on. `copy`: copies both to these page tables, of rows these positions; whether it could. Without a slot
    /// nothing is kept: those of texts that run are not to be had.
    pub fn keep_checkpoint(
        &mut self,
        held: &SequencePages,
        tokens: &[Token],
        copy: impl FnOnce(&[PageTable], Range<usize>) -> bool,
    ) {
        let states = || self.groups.iter().filter(|pages| !pages.has_rows());
        if states().any(|pages| pages.pool.available() == 0)
            || states().all(|pages| pages.find(held.view, tokens, tokens.len()).len == tokens.len())
        {
            return;
        }
        let (view, passed) = (held.view, held.passed);
        let mut groups: Vec<_> = self.groups.iter_mut().zip(&held.places).zip(&held.tables).collect();
        let taken = groups.iter_mut().map(|((pages, place), table)| pages.take_copy(**place, table, view, tokens));
        let (taken, tables): (Vec<Option<PageId>>, Vec<PageTable>) = taken.unzip();
        let starts = groups.iter().zip(&taken).filter(|(((pages, _), _), taken)| pages.has_rows() && taken.is_some());
        let start = starts.map(|(((pages, _), _), _)| pages.uncopied(tokens.len())).min().unwrap_or(tokens.len());
        let is_copied = copy(&tables, start..tokens.len());
        for ((((pages, place), _), table), page) in groups.into_iter().zip(&tables).zip(taken) {
            if is_copied && page.is_some() {
                pages.keep_rest(*place, table, view, tokens, passed);
            }
            page.into_iter().for_each(|page| pages.pool.let_go(page));
        }
    }

    /// So many first tokens of a sequence are those of a text that left a checkpoint.
    pub fn known_len(&self, held: &SequencePages, tokens: &[Token]) -> usize {
        self.groups.iter().map(|pages| pages.known_len(held.view, tokens)).max().unwrap_or(0)
    }

    /// That these positions of a sequence may be written: their pages are held by nobody else, and the tree does not
    /// know them.
    ///
    /// # Panics
    /// If that is not so.
    pub fn assert_own(&self, held: &SequencePages, positions: Range<usize>) {
        for (GroupPages { group, pool, .. }, table) in self.groups.iter().zip(&held.tables) {
            for page in &table[positions.start / group.page_len..group.pages_for(positions.end)] {
                let state = pool.page(*page);
                let own = (state.holders, state.node) == (1, NONE);
                assert!(own, "positions {positions:?} are written to {page:?}, which is shared: {state:?}");
            }
        }
    }

    /// The group that is counted: the first that holds rows, if there is one.
    fn first(&self) -> &GroupPages {
        self.groups.iter().find(|pages| pages.has_rows()).unwrap_or(&self.groups[0])
    }

    /// Pages of the first group of rows that no sequence holds: free and cached ones.
    pub fn available(&self) -> usize {
        self.first().pool.available()
    }

    /// Pages of the first group of rows, whoever has them.
    pub fn len(&self) -> usize {
        self.first().pool.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nodes of the trees of prefixes: those with a page that is cached or held, and those on the way to one.
    pub fn nodes(&self) -> usize {
        self.groups.iter().map(GroupPages::nodes).sum()
    }

    /// Pages of the first group of rows that no sequence holds and that hold a prefix.
    pub fn cached(&self) -> usize {
        self.first().pool.cached()
    }

    /// Checkpoints that are kept.
    pub fn checkpoints(&self) -> usize {
        self.groups.iter().filter(|pages| !pages.has_rows()).map(|pages| pages.pool.cached()).max().unwrap_or(0)
    }
}
