//! Prefixes that outlive their engine: the page tables that their rows are read from, and those they are written to.
//!
//! Rows are saved of the page tables of a sequence, together with pages that it gave back behind a window and that are
//! still cached. They are loaded into pages that nobody holds; a sequence that has them for a moment and is then
//! released leaves them in the tree of prefixes, as one that had computed them would.
//!
//! Left out: the bytes (`step/saved`).

use foretoken_model::{Group, Keep, PageId, PageTable};

use super::pool::Pool;
use super::{Pages, SequencePages};

impl Pages {
    /// Page tables of the first `len` positions of a sequence, whose rows are committed: as far back as its pages are
    /// held or cached, in each group. `None` where not all is there that a row at position `len` sees.
    pub fn prefix_tables(&self, held: &SequencePages, len: usize) -> Option<Vec<PageTable>> {
        let mut node = held.node;
        let mut tables: Vec<PageTable> = self.tables_of(held, len);
        for at in (0..held.entered).rev() {
            for (table, page) in tables.iter_mut().zip(self.tree.pages(node)) {
                if let Some(entry) = table.get_mut(at) {
                    *entry = *page;
                }
            }
            node = self.tree.node(node).parent;
        }
        let is_there = |(group, table): (&Group, &PageTable)| {
            let seen = table.get(group.pages_gone(len)..group.pages_for(len));
            seen.is_some_and(|pages| !pages.contains(&PageId::GONE))
        };
        self.groups.iter().zip(&tables).all(is_there).then_some(tables)
    }

    fn tables_of(&self, held: &SequencePages, len: usize) -> Vec<PageTable> {
        let first = |(group, table): (&Group, &PageTable)| table[..group.pages_for(len).min(table.len())].to_vec();
        self.groups.iter().zip(&held.tables).map(first).collect()
    }

    /// Positions of a prefix that there are pages for, as far as groups keep all of them: those that keep a window have
    /// room for that of any prefix, or for none.
    pub fn room_for_prefix(&self) -> usize {
        let all = self.groups.iter().zip(&self.pools).filter(|(group, _)| group.keep == Keep::All);
        all.map(|(group, pool)| pool.available().saturating_mul(group.page_len)).min().unwrap_or(usize::MAX)
    }

    /// Gives a sequence without pages those of `len` positions, in each group from a page on that is one of
    /// `first_pages` or, where there are not enough, a later one; the pages before count as given back. False, and
    /// nothing changed, where a row at position `len` would see what is missing.
    ///
    /// # Panics
    /// If it has pages.
    pub fn grow_from(&mut self, held: &mut SequencePages, first_pages: &[usize], len: usize) -> bool {
        assert!(held.tables.iter().all(Vec::is_empty), "a sequence with pages begins with a saved prefix: {held:?}");
        let first = |((group, pool), first): ((&Group, &Pool), &usize)| {
            let first = group.pages_for(len).saturating_sub(pool.available()).max(*first);
            (first <= group.pages_gone(len)).then_some(first)
        };
        let firsts: Option<Vec<usize>> = self.groups.iter().zip(&self.pools).zip(first_pages).map(first).collect();
        let Some(firsts) = firsts else { return false };
        held.tables.iter_mut().zip(firsts).for_each(|(table, first)| table.resize(first, PageId::GONE));
        self.grow(held, len)
    }
}
