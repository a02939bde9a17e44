//! The page tables of prefixes that are saved to a file and loaded from one. The bytes are read in `step/saved`.
//!
//! Rows are saved from the pages of a sequence, and from pages that it has released before a window and that are still
//! cached. States are saved from a checkpoint or, if it has passed exactly the saved tokens, from the sequence itself.
//! Both are loaded into unused pages of a temporary sequence; when it is released, they stay cached like computed ones.

use foretoken_model::{Keep, PageId, PageTable};
use foretoken_speculation::Token;

use super::group::GroupPages;
use super::{Pages, SequencePages};

/// The pages of a prefix in one group.
pub(crate) struct PrefixPages {
    /// The pages; those that were evicted are [`PageId::GONE`].
    pub(crate) table: PageTable,
    /// The first position that the pages hold; of a state how many tokens it has passed.
    pub(crate) first: usize,
}

impl Pages {
    /// The pages that hold the rows of these tokens, the first of a sequence, in each group: as far back as they are
    /// held or cached. The rows must be committed. `None` if a row that the next position sees is missing.
    pub(crate) fn prefix_pages(&self, sequence: &SequencePages, tokens: &[Token]) -> Option<Vec<PrefixPages>> {
        let groups = self.groups.iter().zip(&sequence.places).zip(&sequence.tables);
        groups.map(|((pages, place), table)| pages.prefix_pages(*place, table, sequence, tokens)).collect()
    }

    /// How many positions of a prefix there are pages for, in the groups that keep all positions; a group with a
    /// sliding window has room for the window of any prefix, or for none.
    pub(crate) fn room_for_prefix(&self) -> usize {
        let all = self.groups.iter().filter(|pages| pages.group.keep == Keep::All);
        all.map(|pages| pages.pool.available().saturating_mul(pages.group.page_len)).min().unwrap_or(usize::MAX)
    }

    /// Gives a sequence without pages the pages for `len` positions: in each group from the first page that begins at
    /// its position of `firsts` or later, or from a later page if there are not enough. The pages before count as
    /// released. Returns false and changes nothing if a row at position `len` would see a missing page.
    ///
    /// # Panics
    /// If it has pages.
    pub(crate) fn grow_from(&mut self, sequence: &mut SequencePages, firsts: &[usize], len: usize) -> bool {
        assert!(
            sequence.tables.iter().all(Vec::is_empty),
            "only a sequence without pages can load a prefix: {sequence:?}"
        );
        let first = |(pages, first): (&GroupPages, &usize)| {
            let GroupPages { group, pool, .. } = pages;
            let wanted = if pages.has_rows() { first.div_ceil(group.page_len) } else { 0 };
            let first = group.pages_for(len).saturating_sub(pool.available()).max(wanted);
            (first <= group.pages_gone(len)).then_some(first)
        };
        let Some(firsts) = self.groups.iter().zip(firsts).map(first).collect::<Option<Vec<usize>>>() else {
            return false;
        };
        sequence.tables.iter_mut().zip(firsts).for_each(|(table, first)| table.resize(first, PageId::GONE));
        self.grow(sequence, len)
    }
}
