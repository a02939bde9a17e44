//! The pages of one cache group, and the prefixes that it can continue: a tree of rows, or checkpoints of states.
//!
//! Groups are independent: they may differ in their page length, in which positions they keep, and in the prefixes that
//! they can continue. A group of states has pages of infinite length, so that a sequence has one (its slot) and never
//! fills it; a shared state is copied. What the groups of a sequence have to agree on is in `Pages`; the search for a
//! prefix is in `prefix`.

mod prefix;

use foretoken_model::{Group, Kind, PageId, PageTable};
use foretoken_speculation::Token;

use super::checkpoints::Checkpoints;
use super::pool::{NONE, Pool};
use super::saved::PrefixPages;
use super::tree::{ROOT, Tree};
use super::{Owner, SequencePages, View};
use crate::faults::{Fault, is_made};
pub(super) use prefix::Prefix;
use prefix::{nearest, unseen};

/// The pages and prefixes of one cache group.
#[derive(Clone, Debug)]
pub(super) struct GroupPages {
    pub(super) group: Group,
    pub(super) pool: Pool,
    pub(super) prefixes: Prefixes,
}

/// The prefixes that a group can continue.
#[derive(Clone, Debug)]
pub(super) enum Prefixes {
    Rows(Tree),
    States(Checkpoints),
}

#[cfg(test)]
impl Prefixes {
    pub(super) fn tree(&mut self) -> Option<&mut Tree> {
        match self {
            Self::Rows(tree) => Some(tree),
            Self::States(_) => None,
        }
    }
}

/// The position of a sequence in the tree of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TreePosition {
    /// The node of its last page that is in the tree.
    pub(super) node: u32,
    /// How many of its first pages are in the tree.
    pub(super) entered: usize,
}

impl GroupPages {
    pub(super) fn new(group: &Group) -> Self {
        let prefixes = match group.kind {
            Kind::Rows => Prefixes::Rows(Tree::new(group.page_len)),
            Kind::State => Prefixes::States(Checkpoints::new(group.pages)),
        };
        Self { group: *group, pool: Pool::new(group.pages), prefixes }
    }

    /// Whether it holds rows rather than states.
    pub(super) fn has_rows(&self) -> bool {
        self.group.kind == Kind::Rows
    }

    /// The page of a node.
    fn page(&self, node: u32) -> PageId {
        match &self.prefixes {
            Prefixes::Rows(tree) => tree.page(node),
            Prefixes::States(_) => PageId(node),
        }
    }

    /// How many pages a table lacks for `positions`.
    pub(super) fn missing(&self, table: &PageTable, positions: usize) -> usize {
        self.group.pages_for(positions).saturating_sub(table.len())
    }

    /// Takes a free page, or evicts a cached one. The caller has made sure that there is one.
    pub(super) fn take(&mut self) -> PageId {
        if let Some(page) = self.pool.take() {
            return page;
        }
        let (page, node) = self.pool.evict().expect("the caller counted an available page");
        match &mut self.prefixes {
            Prefixes::Rows(tree) => {
                tree.set_page(node, PageId::GONE);
                tree.prune(node);
            }
            Prefixes::States(checkpoints) => checkpoints.remove(page),
        }
        self.pool.take().expect("one was freed just now")
    }

    /// Releases the pages that hold only positions from `len` on. They are private.
    pub(super) fn truncate_table(&mut self, table: &mut PageTable, len: usize) {
        let needed = self.group.pages_for(len).min(table.len());
        for page in table.drain(needed..).rev() {
            let state = self.pool.page(page);
            assert!((state.holders, state.node) == (1, NONE), "{page:?} after position {len} is shared: {state:?}");
            self.pool.release(page);
        }
    }

    /// Releases the pages that no row from position `len` on sees.
    pub(super) fn release_unseen(&mut self, table: &mut PageTable, len: usize) {
        let gone = self.group.pages_gone(len).min(table.len());
        // From the last page backwards, up to those that were released before.
        let unseen = table[..gone].iter_mut().rev().take_while(|page| **page != PageId::GONE);
        unseen.for_each(|page| self.pool.release(std::mem::replace(page, PageId::GONE)));
    }

    /// Adds the full pages of these tokens, the first of a sequence, to the tree. If it has a page of the same prefix
    /// already, the sequence uses that one instead of its own.
    pub(super) fn enter_full(&mut self, place: &mut TreePosition, table: &mut PageTable, view: View, tokens: &[Token]) {
        let page_len = self.group.page_len;
        while (place.entered + 1).saturating_mul(page_len) <= tokens.len() {
            let owner = view.prefix_owner((place.entered + 1) * page_len);
            self.enter(place, table, owner, &tokens[place.entered * page_len..]);
        }
    }

    /// Adds the next page of a sequence, which is full of the first of these tokens, to the tree.
    fn enter(&mut self, place: &mut TreePosition, table: &mut PageTable, owner: Option<Owner>, tokens: &[Token]) {
        let Self { group, pool, prefixes: Prefixes::Rows(tree) } = self else { return };
        let (at, parent, tokens) = (place.entered, place.node, &tokens[..group.page_len]);
        let known = tree.child(parent, owner, tokens).or_else(|| tree.child(parent, None, tokens));
        let node = known.unwrap_or_else(|| tree.insert(parent, owner, tokens));
        match (table[at], tree.page(node)) {
            (PageId::GONE, _) => {}
            (own, PageId::GONE) => {
                tree.set_page(node, own);
                pool.enter(own, node);
            }
            (own, known) => {
                pool.hold(known);
                pool.release(own);
                table[at] = known;
            }
        }
        self.go_to(place, at + 1, node);
    }

    /// Moves a sequence to a node, with `entered` pages in the tree.
    fn go_to(&mut self, place: &mut TreePosition, entered: usize, node: u32) {
        let Prefixes::Rows(tree) = &mut self.prefixes else { return };
        let before = std::mem::replace(place, TreePosition { node, entered }).node;
        if node != ROOT {
            tree.use_node(node);
        }
        if before != ROOT {
            tree.leave_node(before);
        }
    }

    /// Caches what a sequence of these tokens has beyond its pages in the tree, unless that is cached already: its last
    /// page, which is partly filled, or its state, which has passed `passed` of the tokens.
    pub(super) fn keep_rest(
        &mut self,
        place: TreePosition,
        table: &PageTable,
        view: View,
        tokens: &[Token],
        passed: usize,
    ) {
        let Some(page) = table.get(place.entered).copied() else { return };
        let owner = view.prefix_owner(tokens.len());
        match &mut self.prefixes {
            Prefixes::Rows(tree) => {
                let rest = &tokens[place.entered * self.group.page_len..];
                let is_cached = || nearest(tree, place.node, owner, rest).is_some_and(|(_, agree)| agree == rest.len());
                if !rest.is_empty() && !is_cached() {
                    let node = tree.insert(place.node, owner, rest);
                    tree.set_page(node, page);
                    self.pool.enter(page, node);
                }
            }
            Prefixes::States(checkpoints) => {
                // A state that has passed more than these tokens cannot be used.
                let is_cached = || checkpoints.longest(view, tokens).is_some_and(|(_, len)| len == tokens.len());
                if passed <= tokens.len() && !is_cached() {
                    checkpoints.insert(page, view, passed, tokens);
                    self.pool.enter(page, page.0);
                }
            }
        }
    }

    /// Takes a page for a copy of what a sequence of these tokens has beyond its pages in the tree, if one is available
    /// and the copy is needed: a slot for its state, or a page for rows that are not cached yet. Returns the page and
    /// the page table to copy to.
    pub(super) fn take_copy(
        &mut self,
        place: TreePosition,
        table: &PageTable,
        view: View,
        tokens: &[Token],
    ) -> (Option<PageId>, PageTable) {
        let full = tokens.len() / self.group.page_len;
        let is_needed = self.is_copied(tokens.len()) && place.entered == full && self.pool.available() > 0;
        if !is_needed || self.find(view, tokens, tokens.len()).len == tokens.len() {
            return (None, table.clone());
        }
        let page = self.take();
        (Some(page), table[..full].iter().copied().chain([page]).collect())
    }

    /// How many leading tokens are those of a sequence that left a checkpoint.
    pub(super) fn known_len(&self, view: View, tokens: &[Token]) -> usize {
        match &self.prefixes {
            Prefixes::Rows(_) => 0,
            Prefixes::States(checkpoints) => checkpoints.known_len(view, tokens),
        }
    }

    /// Nodes of its tree besides the root.
    pub(super) fn nodes(&self) -> usize {
        match &self.prefixes {
            Prefixes::Rows(tree) => tree.len() - tree.unused() - 1,
            Prefixes::States(_) => 0,
        }
    }

    /// Releases everything that a sequence holds, the deepest page first, so that it is evicted first.
    pub(super) fn release(&mut self, place: &mut TreePosition, table: &mut PageTable) {
        table.drain(..).rev().filter(|page| *page != PageId::GONE).for_each(|page| self.pool.release(page));
        self.go_to(place, 0, ROOT);
    }

    /// How many pages of a prefix are shared; the rest is copied.
    fn shared(&self, prefix: &Prefix) -> usize {
        if is_made(Fault::SharedPageWritten) && self.has_rows() {
            return prefix.nodes.len();
        }
        prefix.len / self.group.page_len
    }

    /// Whether rows or a state are copied for a sequence that continues a prefix of `len` positions.
    pub(super) fn is_copied(&self, len: usize) -> bool {
        !len.is_multiple_of(self.group.page_len)
    }

    /// The prefix that a sequence can continue instead of one of `len` positions if nothing can be copied.
    pub(super) fn uncopied(&self, len: usize) -> usize {
        len / self.group.page_len * self.group.page_len
    }

    /// Whether there is a page for the copy that a sequence needs that adopts this prefix, if it needs one. If the only
    /// available slot for a state is the checkpoint itself, it is taken over.
    pub(super) fn has_room_to_copy(&self, prefix: &Prefix) -> bool {
        let available = self.pool.available();
        !self.is_copied(prefix.len) || available > self.unheld(prefix) || available == 1 && !self.has_rows()
    }

    /// How many available pages are no longer available when a prefix is adopted.
    pub(super) fn unheld(&self, prefix: &Prefix) -> usize {
        let gone = unseen(&self.group, prefix.len, prefix.nodes.len());
        let pages = prefix.nodes[gone..].iter().map(|node| self.page(*node));
        pages.filter(|page| self.pool.page(*page).holders == 0).count()
    }

    /// How many available pages a new sequence of `positions` needs that adopts this prefix, the prefix's unheld pages
    /// included.
    pub(super) fn needed(&self, prefix: &Prefix, positions: usize, rows_max: usize) -> usize {
        let needed = self.unheld(prefix) + self.group.pages_for(positions) - prefix.len / self.group.page_len;
        // With a window the sequence holds at most this many pages at once. Pages that others hold too are not
        // subtracted, since they do not become available when it releases them.
        needed.min(self.group.pages_held(positions, rows_max))
    }

    /// Gives a sequence without pages the shared pages of a prefix. Returns the page to copy from, if there is one, and
    /// how many tokens the state in it has passed.
    pub(super) fn share(&mut self, prefix: &Prefix, place: &mut TreePosition, table: &mut PageTable) -> Shared {
        let shared = self.shared(prefix);
        let gone = unseen(&self.group, prefix.len, shared);
        table.resize(gone, PageId::GONE);
        table.extend(prefix.nodes[gone..shared].iter().map(|node| self.page(*node)));
        table[gone..].iter().for_each(|page| self.pool.hold(*page));
        self.go_to(place, shared, if shared > 0 { prefix.nodes[shared - 1] } else { ROOT });
        let source = prefix.nodes.get(shared).map(|node| self.page(*node));
        let (Prefixes::States(checkpoints), Some(slot)) = (&mut self.prefixes, source) else {
            return Shared { source, passed: 0 };
        };
        let passed = checkpoints.of(slot).map_or(0, |checkpoint| checkpoint.passed);
        if self.pool.available() == 1 && self.pool.page(slot).holders == 0 {
            checkpoints.remove(slot);
            self.pool.take_cached(slot);
            table.push(slot);
        }
        Shared { source, passed }
    }

    /// Whether there is a page for the rows that have to be copied if a sequence is truncated to `len`.
    pub(super) fn has_room_to_truncate(&self, place: &TreePosition, table: &PageTable, len: usize) -> bool {
        let full = len / self.group.page_len;
        let freed = |page: &PageId| self.pool.page(*page).holders == 1;
        full >= place.entered
            || !self.is_copied(len)
            || self.pool.available() > 0
            || table[full + 1..].iter().any(freed)
    }

    /// Removes what a sequence has from position `len` on. Returns the page to copy from, if the sequence now ends
    /// inside a page of the tree.
    pub(super) fn truncate(&mut self, place: &mut TreePosition, table: &mut PageTable, len: usize) -> Option<PageId> {
        let (full, entered) = (len / self.group.page_len, place.entered);
        self.truncate_table(table, len.max(entered.saturating_mul(self.group.page_len)));
        let Prefixes::Rows(tree) = &self.prefixes else { return None };
        if full >= entered {
            return None;
        }
        let node = (full..entered).fold(place.node, |node, _| tree.node(node).parent);
        let source = table[full];
        table.drain(full..).rev().for_each(|page| self.pool.release(page));
        self.go_to(place, full, node);
        self.is_copied(len).then_some(source)
    }

    /// The pages that hold the rows of these tokens, the first of a sequence, if no row that the next position sees is
    /// missing.
    pub(super) fn prefix_pages(
        &self,
        mut place: TreePosition,
        table: &PageTable,
        sequence: &SequencePages,
        tokens: &[Token],
    ) -> Option<PrefixPages> {
        let (group, len) = (&self.group, tokens.len());
        match &self.prefixes {
            Prefixes::Rows(tree) => {
                let mut table = table[..group.pages_for(len).min(table.len())].to_vec();
                while let Some(at) = place.entered.checked_sub(1) {
                    if let Some(entry) = table.get_mut(at) {
                        *entry = tree.page(place.node);
                    }
                    place = TreePosition { node: tree.node(place.node).parent, entered: at };
                }
                let seen = table.get(group.pages_gone(len)..group.pages_for(len))?;
                let is_complete = !seen.contains(&PageId::GONE);
                let gone = table.iter().rposition(|page| *page == PageId::GONE).map_or(0, |gone| gone + 1);
                is_complete.then(|| PrefixPages { table, first: (gone * group.page_len).min(len) })
            }
            Prefixes::States(checkpoints) => {
                let kept = checkpoints.longest(sequence.view, tokens).filter(|(_, found)| *found == len);
                let kept = kept.and_then(|(slot, _)| Some((slot, checkpoints.of(slot)?.passed)));
                let own = table.first().filter(|_| sequence.passed <= len).map(|slot| (*slot, sequence.passed));
                kept.or(own).map(|(slot, first)| PrefixPages { table: vec![slot], first })
            }
        }
    }
}

/// What a sequence gets of a prefix in one group, besides its shared pages.
pub(super) struct Shared {
    /// The page to copy from.
    pub(super) source: Option<PageId>,
    /// How many tokens the state in it has passed.
    pub(super) passed: usize,
}
