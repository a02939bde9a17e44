//! The pages of one cache group, and the prefixes that it can continue: of rows a tree, of states checkpoints.
//!
//! Groups know nothing of each other: they may differ in how long a page is, in what they keep, and in how far they can
//! go on with a text. A group of states is one with pages without an end, so that a text has one (its slot) and never
//! fills it; what is shared of it is copied.
//!
//! Left out: what all groups of a sequence have to agree in (`Pages`).

use foretoken_model::{Group, Kind, PageId, PageTable};
use foretoken_speculation::Token;

use super::checkpoints::Checkpoints;
use super::pool::{NONE, Pool};
use super::saved::Lies;
use super::tree::{ROOT, Tree};
use super::{Owner, SequencePages, View};
use crate::faults::{Fault, is_made};

/// See the head of this file.
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

/// The place of a sequence in the tree of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// The node of its last page that is in the tree.
    pub(super) node: u32,
    /// Its first pages, so many, are in the tree.
    pub(super) entered: usize,
}

/// A prefix as one group has it.
#[derive(Debug, Default)]
pub(super) struct Prefix {
    /// Tokens of it that can be used.
    pub(super) len: usize,
    /// The pages that hold it, by node; of the last one perhaps only the first rows are meant. Of states the slot.
    nodes: Vec<u32>,
}

impl GroupPages {
    pub(super) fn new(group: &Group) -> Self {
        let prefixes = match group.kind {
            Kind::Rows => Prefixes::Rows(Tree::new(group.page_len)),
            Kind::State => Prefixes::States(Checkpoints::new(group.pages)),
        };
        Self { group: *group, pool: Pool::new(group.pages), prefixes }
    }

    /// Whether it holds rows, and not states.
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

    /// Pages that a table lacks for so many positions.
    pub(super) fn missing(&self, table: &PageTable, positions: usize) -> usize {
        self.group.pages_for(positions).saturating_sub(table.len())
    }

    /// A page, of which one is free or cached.
    pub(super) fn take(&mut self) -> PageId {
        if let Some(page) = self.pool.take() {
            return page;
        }
        let (page, node) = self.pool.evict().expect("somebody counted a page that is available");
        match &mut self.prefixes {
            Prefixes::Rows(tree) => {
                tree.set_page(node, PageId::GONE);
                tree.prune(node);
            }
            Prefixes::States(checkpoints) => checkpoints.remove(page),
        }
        self.pool.take().expect("one was freed just now")
    }

    /// Gives back the pages that hold nothing but positions from `len` on. They are the sequence's own.
    pub(super) fn cut(&mut self, table: &mut PageTable, len: usize) {
        let needed = self.group.pages_for(len).min(table.len());
        for page in table.drain(needed..).rev() {
            let state = self.pool.page(page);
            assert!((state.holders, state.node) == (1, NONE), "{page:?} behind position {len} is shared: {state:?}");
            self.pool.let_go(page);
        }
    }

    /// Lets go of the pages whose positions no row from `len` on sees.
    pub(super) fn give_back_unseen(&mut self, table: &mut PageTable, len: usize) {
        let gone = self.group.pages_gone(len).min(table.len());
        // From the last on: those in front went before.
        let held = table[..gone].iter_mut().rev().take_while(|page| **page != PageId::GONE);
        held.for_each(|page| self.pool.let_go(std::mem::replace(page, PageId::GONE)));
    }

    /// Pages that are full of these tokens, the first of a sequence, enter the tree; where it has a page of the same
    /// prefix already, this one takes the place of the sequence's.
    pub(super) fn enter_full(&mut self, place: &mut Place, table: &mut PageTable, view: View, tokens: &[Token]) {
        let page_len = self.group.page_len;
        while (place.entered + 1).saturating_mul(page_len) <= tokens.len() {
            self.enter(place, table, view.owner((place.entered + 1) * page_len), &tokens[place.entered * page_len..]);
        }
    }

    /// The next page of a sequence, which is full of the first of these tokens, enters the tree.
    fn enter(&mut self, place: &mut Place, table: &mut PageTable, owner: Option<Owner>, tokens: &[Token]) {
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
                pool.let_go(own);
                table[at] = known;
            }
        }
        self.go_to(place, at + 1, node);
    }

    /// The place of a sequence in the tree, behind so many pages.
    fn go_to(&mut self, place: &mut Place, entered: usize, node: u32) {
        let Prefixes::Rows(tree) = &mut self.prefixes else { return };
        let before = std::mem::replace(place, Place { node, entered }).node;
        if node != ROOT {
            tree.use_node(node);
        }
        if before != ROOT {
            tree.leave_node(before);
        }
    }

    /// Keeps what a sequence of these tokens has beyond its pages in the tree, unless that is there already: its page
    /// that is not full, or its state, which has `passed` so many of them.
    pub(super) fn keep_rest(&mut self, place: Place, table: &PageTable, view: View, tokens: &[Token], passed: usize) {
        let Some(page) = table.get(place.entered).copied() else { return };
        let owner = view.owner(tokens.len());
        match &mut self.prefixes {
            Prefixes::Rows(tree) => {
                let rest = &tokens[place.entered * self.group.page_len..];
                let is_there = || nearest(tree, place.node, owner, rest).is_some_and(|(_, agree)| agree == rest.len());
                if !rest.is_empty() && !is_there() {
                    let node = tree.insert(place.node, owner, rest);
                    tree.set_page(node, page);
                    self.pool.enter(page, node);
                }
            }
            Prefixes::States(checkpoints) => {
                // A state that has come further than what is to be kept is of no use.
                let is_there = || checkpoints.longest(view, tokens).is_some_and(|(_, len)| len == tokens.len());
                if passed <= tokens.len() && !is_there() {
                    checkpoints.insert(page, view, passed, tokens);
                    self.pool.enter(page, page.0);
                }
            }
        }
    }

    /// Takes a page to which what a sequence of these tokens has beyond its pages in the tree is to be copied: a slot
    /// for its state, or a page for rows that are not there yet, if one is to be had. The page, and the page table to
    /// copy to.
    pub(super) fn take_copy(
        &mut self,
        place: Place,
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

    /// So many first tokens of a text are those of another that left a checkpoint.
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

    /// Gives back everything that a sequence holds, the deepest first, so that it is evicted first.
    pub(super) fn release(&mut self, place: &mut Place, table: &mut PageTable) {
        table.drain(..).rev().filter(|page| *page != PageId::GONE).for_each(|page| self.pool.let_go(page));
        self.go_to(place, 0, ROOT);
    }

    /// Pages of a prefix of so many positions that are shared; what lies behind them is copied.
    fn shared(&self, prefix: &Prefix) -> usize {
        if is_made(Fault::SharedPageWritten) && self.has_rows() {
            return prefix.nodes.len();
        }
        prefix.len / self.group.page_len
    }

    /// Whether rows or a state are copied where a sequence continues behind so many positions.
    pub(super) fn is_copied(&self, len: usize) -> bool {
        !len.is_multiple_of(self.group.page_len)
    }

    /// Where a sequence continues that was to continue at `len`, if nothing can be copied.
    pub(super) fn uncopied(&self, len: usize) -> usize {
        len / self.group.page_len * self.group.page_len
    }

    /// Whether there is a page for what a sequence that adopts this prefix gets copied, if it does. The only slot for a
    /// state may be that of the checkpoint: then it is taken over.
    pub(super) fn has_room_to_copy(&self, prefix: &Prefix) -> bool {
        let available = self.pool.available();
        !self.is_copied(prefix.len) || available > self.unheld(prefix) || available == 1 && !self.has_rows()
    }

    /// Pages that nobody holds and that are no longer available when a prefix is adopted.
    pub(super) fn unheld(&self, prefix: &Prefix) -> usize {
        let gone = unseen(&self.group, prefix.len, prefix.nodes.len());
        let pages = prefix.nodes[gone..].iter().map(|node| self.page(*node));
        pages.filter(|page| self.pool.page(*page).holders == 0).count()
    }

    /// Pages that a new sequence of so many positions takes which adopts this prefix, those of the prefix included
    /// that nobody holds.
    pub(super) fn needed(&self, prefix: &Prefix, positions: usize, rows_max: usize) -> usize {
        let needed = self.unheld(prefix) + self.group.pages_for(positions) - prefix.len / self.group.page_len;
        // Those of a window that others hold are of no use to it when it gives them back.
        needed.min(self.group.pages_held(positions, rows_max))
    }

    /// Gives a sequence without pages those of a prefix that are shared. The page that is to be copied from, if one is,
    /// and of a state how many tokens it has passed.
    pub(super) fn share(&mut self, prefix: &Prefix, place: &mut Place, table: &mut PageTable) -> Shared {
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
        let passed = checkpoints.of(slot).map_or(0, |checkpoint| checkpoint.from);
        if self.pool.available() == 1 && self.pool.page(slot).holders == 0 {
            checkpoints.remove(slot);
            self.pool.take_cached(slot);
            table.push(slot);
        }
        Shared { source, passed }
    }

    /// Whether there is a page for the rows that are copied if a sequence forgets what it has from `len` on.
    pub(super) fn has_room_to_go_back(&self, place: &Place, table: &PageTable, len: usize) -> bool {
        let full = len / self.group.page_len;
        let freed = |page: &PageId| self.pool.page(*page).holders == 1;
        full >= place.entered
            || !self.is_copied(len)
            || self.pool.available() > 0
            || table[full + 1..].iter().any(freed)
    }

    /// A sequence forgets what it has from `len` on. The page to copy from, where a page in the tree is to be continued
    /// elsewhere.
    pub(super) fn go_back(&mut self, place: &mut Place, table: &mut PageTable, len: usize) -> Option<PageId> {
        let (full, entered) = (len / self.group.page_len, place.entered);
        self.cut(table, len.max(entered.saturating_mul(self.group.page_len)));
        let Prefixes::Rows(tree) = &self.prefixes else { return None };
        if full >= entered {
            return None;
        }
        let node = (full..entered).fold(place.node, |node, _| tree.node(node).parent);
        let source = table[full];
        table.drain(full..).rev().for_each(|page| self.pool.let_go(page));
        self.go_to(place, full, node);
        self.is_copied(len).then_some(source)
    }

    /// Where these tokens, the first of a sequence, lie, if all is there that a row behind them sees.
    pub(super) fn lies(
        &self,
        mut place: Place,
        table: &PageTable,
        held: &SequencePages,
        tokens: &[Token],
    ) -> Option<Lies> {
        let (group, len) = (&self.group, tokens.len());
        match &self.prefixes {
            Prefixes::Rows(tree) => {
                let mut table = table[..group.pages_for(len).min(table.len())].to_vec();
                while let Some(at) = place.entered.checked_sub(1) {
                    if let Some(entry) = table.get_mut(at) {
                        *entry = tree.page(place.node);
                    }
                    place = Place { node: tree.node(place.node).parent, entered: at };
                }
                let seen = table.get(group.pages_gone(len)..group.pages_for(len))?;
                let is_whole = !seen.contains(&PageId::GONE);
                let gone = table.iter().rposition(|page| *page == PageId::GONE).map_or(0, |gone| gone + 1);
                is_whole.then(|| Lies { table, first: (gone * group.page_len).min(len) })
            }
            Prefixes::States(checkpoints) => {
                let kept = checkpoints.longest(held.view, tokens).filter(|(_, found)| *found == len);
                let kept = kept.and_then(|(slot, _)| Some((slot, checkpoints.of(slot)?.from)));
                let own = table.first().filter(|_| held.passed <= len).map(|slot| (*slot, held.passed));
                kept.or(own).map(|(slot, first)| Lies { table: vec![slot], first })
            }
        }
    }

    /// The longest prefix of these tokens, at most `len_max` of them, that a sequence may see and that is cached as far
    /// as later rows see it.
    pub(super) fn find(&self, view: View, tokens: &[Token], len_max: usize) -> Prefix {
        let tokens = &tokens[..len_max.min(tokens.len())];
        let tree = match &self.prefixes {
            Prefixes::Rows(tree) => tree,
            Prefixes::States(checkpoints) => {
                let found = checkpoints.longest(view, tokens);
                return found.map_or_else(Prefix::default, |(slot, len)| Prefix { len, nodes: vec![slot.0] });
            }
        };
        let mut best = Prefix::default();
        let page_len = self.group.page_len;
        // Also the page in which the tokens end is looked for, but only by its first rows.
        let pages = || tokens.chunks_exact(page_len);
        let (mut public, mut at) = (Vec::new(), ROOT);
        for page in pages() {
            let Some(next) = tree.child(at, None, page) else { break };
            public.push(next);
            at = next;
        }
        // Where the tenant's own pages may begin, from the last place on: mostly it is the only one.
        for shared in (0..=public.len()).rev() {
            let mut nodes = public[..shared].to_vec();
            if (shared + 1) * page_len > view.public_len {
                for page in pages().skip(shared) {
                    let parent = nodes.last().copied().unwrap_or(ROOT);
                    let Some(next) = tree.child(parent, Some(view.whose), page) else { break };
                    nodes.push(next);
                }
            }
            if best.len < (nodes.len() + 1) * page_len {
                consider(tree, &self.group, nodes, view, tokens, &mut best);
            }
        }
        best
    }
}

/// What a sequence gets of a prefix in one group.
pub(super) struct Shared {
    /// The page that is to be copied.
    pub(super) source: Option<PageId>,
    /// Tokens that the state has passed.
    pub(super) passed: usize,
}

/// Goes on from full pages into one that agrees for some rows, and shortens the whole until what is seen from its end
/// is cached.
fn consider(tree: &Tree, group: &Group, mut nodes: Vec<u32>, view: View, tokens: &[Token], best: &mut Prefix) {
    let page_len = group.page_len;
    loop {
        let mut matched = nodes.len() * page_len;
        let parent = nodes.last().copied().unwrap_or(ROOT);
        // A full page that agrees and is not among the nodes may not be shared, only copied.
        let rest = &tokens[matched..tokens.len().min(matched + page_len - 1)];
        if let Some((node, agree)) = nearest(tree, parent, Some(view.whose), rest) {
            nodes.push(node);
            matched += agree;
        }
        if matched <= best.len {
            return;
        }
        let gone = unseen(group, matched, nodes.len());
        match nodes[gone..].iter().position(|node| tree.page(*node) == PageId::GONE) {
            None => {
                *best = Prefix { len: matched, nodes };
                return;
            }
            // Any prefix that goes so far needs this page too: a shorter one sees no less of what is before it.
            Some(at) => nodes.truncate(gone + at),
        }
    }
}

/// The child of a node, visible to this owner and cached, that agrees with the most first tokens, and with how many.
fn nearest(tree: &Tree, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> Option<(u32, usize)> {
    let public = tree.nearest_child(parent, None, tokens);
    let own = owner.and_then(|_| tree.nearest_child(parent, owner, tokens));
    // What is everybody's is taken where it is as good.
    own.into_iter().chain(public).max_by_key(|(_, agree)| *agree)
}

/// How many of the first pages of a prefix of so many `positions` no later row sees; at most `pages`.
fn unseen(group: &Group, positions: usize, pages: usize) -> usize {
    let unseen = group.pages_gone(positions);
    let one_more = is_made(Fault::WindowNotHeld) && unseen > 0;
    (unseen + usize::from(one_more)).min(pages)
}
