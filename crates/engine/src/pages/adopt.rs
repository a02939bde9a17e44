//! Prefix caching: a new sequence adopts the longest cached prefix of its tokens.
//!
//! Full pages are shared. If the sequence differs from a cached prefix inside a page, or the page is partly filled, the
//! rows that agree are copied into a page of the sequence's own. In a group with a sliding window only the positions
//! that the next row sees need to be cached; of a state a checkpoint is copied. The sequence adopts the longest prefix
//! that every group can continue.
//!
//! A prefix begins with public pages, if there are any, and continues with pages of the tenant. What a request itself
//! declares public is looked for among public pages only, so that it becomes public if it is not.

use std::ops::Range;

use foretoken_model::{Kind, PageId, PageTable};
use foretoken_speculation::Token;

use super::group::{GroupPages, Prefix, Shared};
use super::{Pages, SequencePages, View};

/// A prefix that a sequence has adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Adopted {
    /// How many leading positions are cached once `copied` is done.
    pub len: usize,
    /// The rows to copy before the pages are used in any other way.
    pub copied: Option<Copied>,
}

/// Rows to copy into a sequence's own pages, at the same positions, and states that have passed all of them. In groups
/// where nothing is copied both page tables have the same pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    /// The page tables to copy from.
    pub from: Vec<PageTable>,
    /// The positions of the rows.
    pub positions: Range<usize>,
}

/// A cached prefix in all groups.
pub(super) struct FoundPrefix {
    pub(super) len: usize,
    /// One for each group.
    prefixes: Vec<Prefix>,
}

impl Pages {
    /// Makes a sequence without pages adopt the longest cached prefix of these tokens, at most `len_max` of them.
    ///
    /// # Panics
    /// If it has pages.
    pub(crate) fn adopt(&mut self, sequence: &mut SequencePages, tokens: &[Token], len_max: usize) -> Adopted {
        assert!(
            sequence.tables.iter().all(Vec::is_empty),
            "only a sequence without pages can adopt a prefix: {sequence:?}"
        );
        let mut found = self.find(sequence.view, tokens, len_max);
        // Rows can be copied only if there is a page for them.
        while let Some(shorter) = self.without_room(&found) {
            found = self.find(sequence.view, tokens, shorter);
        }
        let FoundPrefix { len, prefixes } = found;
        if len == 0 {
            return Adopted { len, copied: None };
        }
        let share = |((pages, place, table), prefix): ((&mut GroupPages, _, _), _)| pages.share(prefix, place, table);
        let shared: Vec<Shared> = self.each(sequence).zip(&prefixes).map(share).collect();
        sequence.passed = shared.iter().map(|shared| shared.passed).max().unwrap_or(0);
        let sources: Vec<Option<PageId>> = shared.into_iter().map(|shared| shared.source).collect();
        Adopted { len, copied: self.copy(sequence, &sources, len) }
    }

    /// The length to which a prefix has to be shortened for the first group that has no page to copy to.
    fn without_room(&self, found: &FoundPrefix) -> Option<usize> {
        let mut groups = self.groups.iter().zip(&found.prefixes);
        let scarce = groups.find(|(pages, prefix)| !pages.has_room_to_copy(prefix));
        scarce.map(|(pages, _)| pages.uncopied(found.len))
    }

    /// Removes the rows of a sequence from `len` on, committed ones included if its pages may be rolled back
    /// ([`Pages::with_rollback`]). If the sequence now ends inside a page of the tree, the page's rows are copied like
    /// those of a prefix; if there is no page for them, fewer rows are left.
    ///
    /// # Panics
    /// If its recurrent states have passed more than `len` tokens.
    pub(crate) fn truncate(&mut self, sequence: &mut SequencePages, mut len: usize) -> Adopted {
        loop {
            let mut groups = self.groups.iter().zip(&sequence.places).zip(&sequence.tables);
            let scarce = groups.find(|((pages, place), table)| !pages.has_room_to_truncate(place, table, len));
            match scarce {
                Some(((pages, _), _)) => len = pages.uncopied(len),
                None => break,
            }
        }
        assert!(
            len >= sequence.passed,
            "states that have passed {} tokens cannot be truncated to {len}",
            sequence.passed
        );
        let truncate = |(pages, place, table): (&mut GroupPages, _, _)| pages.truncate(place, table, len);
        let sources: Vec<Option<PageId>> = self.each(sequence).map(truncate).collect();
        Adopted { len, copied: self.copy(sequence, &sources, len) }
    }

    /// Gives a sequence that is to have `len` positions a page of its own in each group where a page is to be copied.
    fn copy(&mut self, sequence: &mut SequencePages, sources: &[Option<PageId>], len: usize) -> Option<Copied> {
        let of_rows = |(pages, source): (&GroupPages, &Option<PageId>)| {
            source.map(|_| if pages.group.kind == Kind::Rows { pages.uncopied(len) } else { len })
        };
        let start = self.groups.iter().zip(sources).filter_map(of_rows).min()?;
        // Held pages are not evicted while new ones are taken.
        for (pages, source) in self.groups.iter_mut().zip(sources) {
            source.iter().for_each(|page| pages.pool.hold(*page));
        }
        // A slot that was taken over is in the sequence's table already.
        let table_from = |(table, source): (&PageTable, &Option<PageId>)| {
            let source = source.filter(|page| table.last() != Some(page));
            table.iter().copied().chain(source).collect()
        };
        let from = sequence.tables.iter().zip(sources).map(table_from).collect();
        let grown = self.grow(sequence, len);
        assert!(grown, "no pages for positions {start}..{len}, though they were counted");
        for (pages, source) in self.groups.iter_mut().zip(sources) {
            source.iter().for_each(|page| pages.pool.release(*page));
        }
        Some(Copied { from, positions: start..len })
    }

    /// Whether there are pages for a new sequence of these tokens, of which it may adopt `len_max`, and `rows_after`
    /// rows after them, and besides them `spare` in each group of rows and `without_state` in each group of states.
    pub(crate) fn admits(
        &self,
        sequence: &SequencePages,
        tokens: &[Token],
        len_max: usize,
        rows_after: usize,
        [spare, without_state]: [usize; 2],
    ) -> bool {
        // A running sequence needs pages as it grows, but only one state: only sequences without a state take one.
        let spare = |pages: &GroupPages| if pages.has_rows() { spare } else { without_state };
        // A new sequence needs at least one page.
        if self.groups.iter().any(|pages| pages.pool.available() <= spare(pages)) {
            return false;
        }
        let found = self.find(sequence.view, tokens, len_max);
        let fits = |(pages, prefix): (&GroupPages, &Prefix)| {
            pages.needed(prefix, tokens.len() + rows_after, self.rows_max) + spare(pages) <= pages.pool.available()
        };
        self.groups.iter().zip(&found.prefixes).all(fits)
    }

    /// The longest prefix of these tokens, at most `len_max` of them, that a sequence may use and that every group can
    /// continue. A group may be able to continue a longer prefix but not a shorter one, so all are asked until they
    /// agree.
    pub(super) fn find(&self, view: View, tokens: &[Token], mut len_max: usize) -> FoundPrefix {
        loop {
            let prefixes: Vec<Prefix> = self.groups.iter().map(|pages| pages.find(view, tokens, len_max)).collect();
            let len = prefixes.iter().map(|prefix| prefix.len).min().unwrap_or(0);
            if len == 0 {
                return FoundPrefix { len, prefixes: prefixes.iter().map(|_| Prefix::default()).collect() };
            }
            if prefixes.iter().all(|prefix| prefix.len == len) {
                return FoundPrefix { len, prefixes };
            }
            len_max = len;
        }
    }
}
