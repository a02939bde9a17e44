//! Adopting a prefix: the longest beginning of a text whose rows are cached becomes a new sequence's own.
//!
//! Full pages are shared. Where the text leaves a cached prefix inside a page, or the page is partly filled, the rows
//! that agree are copied into a page of the sequence's own. In a group that keeps a window it is enough that the
//! positions are cached which the next row sees; of a state a checkpoint is copied. A text is continued from the
//! longest prefix that every group can continue.
//!
//! A text begins with pages that are everybody's, as far as there are any, and goes on with pages of its tenant. What a
//! request itself declares public is looked for among what is everybody's alone, so that it gets there.
//!
//! Left out: the copying itself, which is the executor's, and how a group finds a prefix (`group`).

use std::ops::Range;

use foretoken_model::{Kind, PageId, PageTable};
use foretoken_speculation::Token;

use super::group::{GroupPages, Prefix, Shared};
use super::{Pages, SequencePages, View};

/// What a new sequence has of a prefix that was computed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Its first positions, so many, are cached once `copied` is done.
    pub len: usize,
    /// Rows to be copied before anything else happens to the pages.
    pub copied: Option<Copied>,
}

/// Rows that are to be copied into a sequence's own pages, at the same positions, and states that have come to the end
/// of them. In groups in which nothing is copied the pages are the sequence's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Page tables to copy from.
    pub from: Vec<PageTable>,
    /// Which rows.
    pub positions: Range<usize>,
}

/// A cached prefix, as every group has it.
pub(super) struct Found {
    pub(super) len: usize,
    /// One a group.
    prefixes: Vec<Prefix>,
}

impl Pages {
    /// Lets a sequence without pages adopt the longest cached prefix of these tokens, at most `len_max` of them.
    ///
    /// # Panics
    /// If it has pages.
    pub fn adopt(&mut self, held: &mut SequencePages, tokens: &[Token], len_max: usize) -> Adopted {
        assert!(held.tables.iter().all(Vec::is_empty), "a sequence with pages adopts a prefix: {held:?}");
        let mut found = self.find(held.view, tokens, len_max);
        // Rows are copied where there is a page for them.
        while let Some(shorter) = self.without_room(&found) {
            found = self.find(held.view, tokens, shorter);
        }
        let Found { len, prefixes } = found;
        if len == 0 {
            return Adopted { len, copied: None };
        }
        let share = |((pages, place, table), prefix): ((&mut GroupPages, _, _), _)| pages.share(prefix, place, table);
        let shared: Vec<Shared> = self.each(held).zip(&prefixes).map(share).collect();
        held.passed = shared.iter().map(|shared| shared.passed).max().unwrap_or(0);
        let sources: Vec<Option<PageId>> = shared.into_iter().map(|shared| shared.source).collect();
        Adopted { len, copied: self.copy(held, &sources, len) }
    }

    /// Where a prefix would have to end for the first group that has no page to copy to.
    fn without_room(&self, found: &Found) -> Option<usize> {
        let mut groups = self.groups.iter().zip(&found.prefixes);
        let scarce = groups.find(|(pages, prefix)| !pages.has_room_to_copy(prefix));
        scarce.map(|(pages, _)| pages.uncopied(found.len))
    }

    /// Forgets the rows of a sequence from `len` on, also committed ones, which some may go back behind
    /// ([`Pages::that_keep_all`]). Of a page in the tree that is to be continued elsewhere, rows are copied like those
    /// of a prefix; if there is no page for them, less is left.
    ///
    /// # Panics
    /// If its recurrent states have passed more.
    pub fn truncate(&mut self, held: &mut SequencePages, mut len: usize) -> Adopted {
        loop {
            let mut groups = self.groups.iter().zip(&held.places).zip(&held.tables);
            let scarce = groups.find(|((pages, place), table)| !pages.has_room_to_go_back(place, table, len));
            match scarce {
                Some(((pages, _), _)) => len = pages.uncopied(len),
                None => break,
            }
        }
        assert!(len >= held.passed, "states that have passed {} positions go back to {len}", held.passed);
        let go_back = |(pages, place, table): (&mut GroupPages, _, _)| pages.go_back(place, table, len);
        let sources: Vec<Option<PageId>> = self.each(held).map(go_back).collect();
        Adopted { len, copied: self.copy(held, &sources, len) }
    }

    /// Gives a sequence that is to have `len` positions a page of its own in each group where one is to be copied.
    fn copy(&mut self, held: &mut SequencePages, sources: &[Option<PageId>], len: usize) -> Option<Copied> {
        let of_rows = |(pages, source): (&GroupPages, &Option<PageId>)| {
            source.map(|_| if pages.group.kind == Kind::Rows { pages.uncopied(len) } else { len })
        };
        let start = self.groups.iter().zip(sources).filter_map(of_rows).min()?;
        // What is held is not evicted.
        for (pages, source) in self.groups.iter_mut().zip(sources) {
            source.iter().for_each(|page| pages.pool.hold(*page));
        }
        // A slot that was taken over is the sequence's own already.
        let behind = |(table, source): (&PageTable, &Option<PageId>)| {
            let source = source.filter(|page| table.last() != Some(page));
            table.iter().copied().chain(source).collect()
        };
        let from = held.tables.iter().zip(sources).map(behind).collect();
        let grown = self.grow(held, len);
        assert!(grown, "pages were counted for positions {start}..{len}, and there are none");
        for (pages, source) in self.groups.iter_mut().zip(sources) {
            source.iter().for_each(|page| pages.pool.let_go(*page));
        }
        Some(Copied { from, positions: start..len })
    }

    /// Whether there are pages for a new sequence of these tokens, of which it may adopt `len_max`, and `spare` more of
    /// each group that grows, `without_state` of those that keep states.
    pub fn admits(
        &self,
        held: &SequencePages,
        tokens: &[Token],
        len_max: usize,
        [spare, without_state]: [usize; 2],
    ) -> bool {
        // A text that runs needs pages as it grows, but one state: only those that have none yet will take one.
        let spare = |pages: &GroupPages| if pages.has_rows() { spare } else { without_state };
        // Whoever begins needs a page at least.
        if self.groups.iter().any(|pages| pages.pool.available() <= spare(pages)) {
            return false;
        }
        let found = self.find(held.view, tokens, len_max);
        let fits = |(pages, prefix): (&GroupPages, &Prefix)| {
            pages.needed(prefix, tokens.len(), self.rows_max) + spare(pages) <= pages.pool.available()
        };
        self.groups.iter().zip(&found.prefixes).all(fits)
    }

    /// The longest prefix of these tokens, at most `len_max` of them, that a sequence may see and that every group can
    /// continue. A group may continue a longer one and not this one, so all are asked until they agree.
    pub(super) fn find(&self, view: View, tokens: &[Token], mut len_max: usize) -> Found {
        loop {
            let prefixes: Vec<Prefix> = self.groups.iter().map(|pages| pages.find(view, tokens, len_max)).collect();
            let len = prefixes.iter().map(|prefix| prefix.len).min().unwrap_or(0);
            if len == 0 {
                return Found { len, prefixes: prefixes.iter().map(|_| Prefix::default()).collect() };
            }
            if prefixes.iter().all(|prefix| prefix.len == len) {
                return Found { len, prefixes };
            }
            len_max = len;
        }
    }
}
