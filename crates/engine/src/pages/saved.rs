//! Prefixes that outlive their engine: the page tables that their rows are read from, and those they are written to.
//!
//! Rows are saved of the page tables of a sequence, together with pages that it gave back behind a window and that are
//! still cached; states of a checkpoint or, where it has come just so far, of the sequence itself. They are loaded into
//! pages that nobody holds; a sequence that has them for a moment and is then released leaves them behind as one that
//! had computed them would.
//!
//! Left out: the bytes (`step/saved`).

use foretoken_model::{Keep, PageId, PageTable};
use foretoken_speculation::Token;

use super::group::GroupPages;
use super::{Pages, SequencePages};

/// Where a prefix lies in one group.
pub(crate) struct Lies {
    /// Its pages; those that were given back and evicted are [`PageId::GONE`].
    pub(crate) table: PageTable,
    /// The first position that is there; of a state how many tokens it has passed.
    pub(crate) first: usize,
}

impl Pages {
    /// Where the rows of these tokens, the first of a sequence, lie in each group: as far back as its pages are held or
    /// cached. They are committed. `None` where not all is there that a row behind them sees.
    pub(crate) fn lies(&self, held: &SequencePages, tokens: &[Token]) -> Option<Vec<Lies>> {
        let groups = self.groups.iter().zip(&held.places).zip(&held.tables);
        groups.map(|((pages, place), table)| pages.lies(*place, table, held, tokens)).collect()
    }

    /// Positions of a prefix that there are pages for, as far as groups keep all of them: those that keep a window have
    /// room for that of any prefix, or for none.
    pub fn room_for_prefix(&self) -> usize {
        let all = self.groups.iter().filter(|pages| pages.group.keep == Keep::All);
        all.map(|pages| pages.pool.available().saturating_mul(pages.group.page_len)).min().unwrap_or(usize::MAX)
    }

    /// Gives a sequence without pages those of `len` positions, in each group from the page on that begins at one of
    /// `firsts` or behind it or, where there are not enough, a later one; the pages before count as given back. False,
    /// and nothing changed, where a row at position `len` would see what is missing.
    ///
    /// # Panics
    /// If it has pages.
    pub fn grow_from(&mut self, held: &mut SequencePages, firsts: &[usize], len: usize) -> bool {
        assert!(held.tables.iter().all(Vec::is_empty), "a sequence with pages begins with a saved prefix: {held:?}");
        let first = |(pages, first): (&GroupPages, &usize)| {
            let GroupPages { group, pool, .. } = pages;
            let wanted = if pages.has_rows() { first.div_ceil(group.page_len) } else { 0 };
            let first = group.pages_for(len).saturating_sub(pool.available()).max(wanted);
            (first <= group.pages_gone(len)).then_some(first)
        };
        let Some(firsts) = self.groups.iter().zip(firsts).map(first).collect::<Option<Vec<usize>>>() else {
            return false;
        };
        held.tables.iter_mut().zip(firsts).for_each(|(table, first)| table.resize(first, PageId::GONE));
        self.grow(held, len)
    }
}
