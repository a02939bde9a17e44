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
//! committed, never for a draft; a prefix can be adopted there if its last window is still cached.
//!
//! Tenants see their own prefixes and those that were declared public, since the time that a request takes tells what
//! was computed before.
//!
//! Left out: who gets pages first and who has to give way (`step/admission`).

mod adopt;
mod check;
mod pool;
mod saved;
mod tree;

#[cfg(test)]
mod twin;

use foretoken_model::{Capacity, Group, Keep, Kind, PageId, PageTable};
use foretoken_speculation::{Tenant, Token};

use crate::faults::{Fault, is_made};
pub use adopt::{Adopted, Copied};
use pool::{NONE, Pool};
use tree::{ROOT, Tree};

/// Who holds which page, of every cache group of one executor, and the prefixes that are cached.
#[derive(Clone, Debug)]
pub struct Pages {
    groups: Vec<Group>,
    /// Rows of one pass.
    rows_max: usize,
    /// One a group.
    pools: Vec<Pool>,
    tree: Tree,
    /// Positions a page, the same in all groups; `None` where they differ, or there are states: then nothing is shared.
    page_len: Option<usize>,
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

/// What one sequence holds of the cache: its page tables, and its place in the tree of prefixes.
#[derive(Debug, Default)]
pub struct SequencePages {
    /// One a group; empty before the sequence was opened.
    tables: Vec<PageTable>,
    /// Whose its prefixes are.
    whose: Owner,
    /// Of the tokens so many first ones are everybody's.
    public_len: usize,
    /// The node of its last page that is in the tree.
    node: u32,
    /// Its first pages, so many, are in the tree.
    entered: usize,
}

impl SequencePages {
    /// Its page tables, one a cache group.
    pub fn tables(&self) -> &[PageTable] {
        &self.tables
    }

    /// Whose a page is that ends behind so many tokens.
    fn owner(&self, len: usize) -> Option<Owner> {
        (len > self.public_len).then_some(self.whose)
    }
}

impl Pages {
    /// All pages of an executor, free.
    pub fn new(capacity: &Capacity) -> Self {
        let Capacity { groups, rows_max, .. } = capacity;
        // A state is of one text: nothing is shared where there is one.
        let first = groups.first().filter(|_| groups.iter().all(|group| group.kind == Kind::Attention));
        let page_len = first.map(|first| first.page_len);
        let page_len = page_len.filter(|len| groups.iter().all(|group| group.page_len == *len));
        Self {
            groups: groups.clone(),
            rows_max: *rows_max,
            pools: groups.iter().map(|group| Pool::new(group.pages)).collect(),
            tree: Tree::new(page_len.unwrap_or(1), groups.len()),
            page_len,
        }
    }

    /// The same for sequences that may go back behind what they committed, as those of draft models do: nothing is
    /// given back at the front.
    pub fn that_keep_all(capacity: &Capacity) -> Self {
        let mut pages = Self::new(capacity);
        pages.groups.iter_mut().for_each(|group| group.keep = Keep::All);
        pages
    }

    /// A sequence without pages. Its prefixes are shown to texts of the same owner alone, those within its first
    /// `public_len` tokens to everybody.
    pub fn open(&self, whose: impl Into<Owner>, public_len: usize) -> SequencePages {
        let tables = vec![PageTable::new(); self.groups.len()];
        let public_len = if is_made(Fault::PrefixOfAnotherTenant) { usize::MAX } else { public_len };
        SequencePages { tables, whose: whose.into(), public_len, node: ROOT, entered: 0 }
    }

    /// Takes pages until a sequence has room for so many positions; false, and nothing changed, where there are not
    /// enough. Cached pages are evicted as they are needed.
    pub fn grow(&mut self, held: &mut SequencePages, positions: usize) -> bool {
        let missing = |group: &Group, table: &PageTable| group.pages_for(positions).saturating_sub(table.len());
        let mut all = self.groups.iter().zip(&held.tables).zip(&self.pools);
        if !all.all(|((group, table), pool)| missing(group, table) <= pool.available()) {
            return false;
        }
        for number in 0..self.groups.len() {
            for _ in 0..missing(&self.groups[number], &held.tables[number]) {
                let page = self.take(number);
                held.tables[number].push(page);
            }
        }
        true
    }

    /// A page of a group that has one free or cached.
    fn take(&mut self, group: usize) -> PageId {
        let pool = &mut self.pools[group];
        if let Some(page) = pool.take() {
            return page;
        }
        let (_, node) = pool.evict().expect("somebody counted a page that is available");
        self.tree.set_page(node, group, PageId::GONE);
        self.tree.prune(node);
        self.pools[group].take().expect("one was freed just now")
    }

    /// Positions a page; `None` if cache groups differ in it, and nothing is shared.
    pub fn page_len(&self) -> Option<usize> {
        self.page_len
    }

    /// Positions that a sequence has pages for.
    pub fn room(&self, held: &SequencePages) -> usize {
        let room = |(group, table): (&Group, &PageTable)| table.len().saturating_mul(group.page_len);
        self.groups.iter().zip(&held.tables).map(room).min().unwrap_or(0)
    }

    /// Notes that the rows of these tokens, the first of a sequence, are committed and will not be taken back: gives
    /// back the pages that hold nothing but positions behind them, or positions that no later row sees. Full pages
    /// enter the tree of prefixes, as [`Pages::enter_full`].
    pub fn commit(&mut self, held: &mut SequencePages, tokens: &[Token]) {
        self.cut(held, tokens.len());
        self.enter_full(held, tokens);
        self.give_back_unseen(held, tokens.len());
    }

    /// Pages that are full of these tokens, the first of a sequence, enter the tree of prefixes; where it has a page of
    /// the same prefix already, this one takes the place of the sequence's.
    pub fn enter_full(&mut self, held: &mut SequencePages, tokens: &[Token]) {
        let Some(page_len) = self.page_len else { return };
        while (held.entered + 1) * page_len <= tokens.len() {
            self.enter(held, &tokens[held.entered * page_len..][..page_len]);
        }
    }

    /// Gives back the pages that hold nothing but positions from `len` on. They are the sequence's own.
    fn cut(&mut self, held: &mut SequencePages, len: usize) {
        for ((group, pool), table) in self.groups.iter().zip(&mut self.pools).zip(&mut held.tables) {
            let needed = group.pages_for(len).min(table.len());
            for page in table.drain(needed..).rev() {
                let state = pool.page(page);
                assert!(
                    (state.holders, state.node) == (1, NONE),
                    "{page:?} behind position {len} is shared: {state:?}"
                );
                pool.let_go(page);
            }
        }
    }

    /// Lets go of the pages whose positions no row from `len` on sees.
    fn give_back_unseen(&mut self, held: &mut SequencePages, len: usize) {
        for ((group, pool), table) in self.groups.iter().zip(&mut self.pools).zip(&mut held.tables) {
            let gone = group.pages_gone(len).min(table.len());
            // From the last on: those in front went before.
            let held = table[..gone].iter_mut().rev().take_while(|page| **page != PageId::GONE);
            held.for_each(|page| pool.let_go(std::mem::replace(page, PageId::GONE)));
        }
    }

    /// The next page of a sequence, which is full of these tokens, enters the tree.
    fn enter(&mut self, held: &mut SequencePages, tokens: &[Token]) {
        let (at, parent) = (held.entered, held.node);
        let owner = held.owner((at + 1) * tokens.len());
        let known = self.tree.child(parent, owner, tokens).or_else(|| self.tree.child(parent, None, tokens));
        let node = known.unwrap_or_else(|| self.tree.insert(parent, owner, tokens));
        for (number, (pool, table)) in self.pools.iter_mut().zip(&mut held.tables).enumerate() {
            match (table[at], self.tree.pages(node)[number]) {
                (PageId::GONE, _) => {}
                (own, PageId::GONE) => {
                    self.tree.set_page(node, number, own);
                    pool.enter(own, node);
                }
                (own, known) => {
                    pool.hold(known);
                    pool.let_go(own);
                    table[at] = known;
                }
            }
        }
        held.entered += 1;
        self.go_to(held, node);
    }

    /// The place of a sequence in the tree.
    fn go_to(&mut self, held: &mut SequencePages, node: u32) {
        let before = std::mem::replace(&mut held.node, node);
        if node != ROOT {
            self.tree.use_node(node);
        }
        if before != ROOT {
            self.tree.leave_node(before);
        }
    }

    /// Gives back everything that a sequence holds; it may then begin again. `tokens`: its first ones, whose rows are
    /// committed. The last page, if it is partly filled, stays cached like the full ones. Without tokens, where rows
    /// cannot be relied on, only what is in the tree already does.
    pub fn release(&mut self, held: &mut SequencePages, tokens: &[Token]) {
        if !tokens.is_empty() {
            self.cut(held, tokens.len());
            self.keep_rest(held, tokens);
        }
        // The deepest first, so that they are evicted first.
        for (pool, table) in self.pools.iter_mut().zip(&mut held.tables) {
            table.drain(..).rev().filter(|page| *page != PageId::GONE).for_each(|page| pool.let_go(page));
        }
        held.entered = 0;
        self.go_to(held, ROOT);
    }

    /// The page of a sequence that is not full enters the tree, unless its rows are there already.
    fn keep_rest(&mut self, held: &SequencePages, tokens: &[Token]) {
        let Some(page_len) = self.page_len else { return };
        let (at, parent, owner) = (held.entered, held.node, held.owner(tokens.len()));
        let rest = &tokens[at * page_len..];
        if rest.is_empty() || self.nearest(parent, owner, rest).is_some_and(|(_, agree)| agree == rest.len()) {
            return;
        }
        let node = self.tree.insert(parent, owner, rest);
        for (number, (pool, table)) in self.pools.iter_mut().zip(&held.tables).enumerate() {
            self.tree.set_page(node, number, table[at]);
            pool.enter(table[at], node);
        }
    }

    /// That these positions of a sequence may be written: their pages are held by nobody else, and the tree does not
    /// know them.
    ///
    /// # Panics
    /// If that is not so.
    pub fn assert_own(&self, held: &SequencePages, positions: std::ops::Range<usize>) {
        for ((group, pool), table) in self.groups.iter().zip(&self.pools).zip(&held.tables) {
            for page in &table[positions.start / group.page_len..group.pages_for(positions.end)] {
                let state = pool.page(*page);
                let own = (state.holders, state.node) == (1, NONE);
                assert!(own, "positions {positions:?} are written to {page:?}, which is shared: {state:?}");
            }
        }
    }

    /// Pages of the first group that no sequence holds: free and cached ones.
    pub fn available(&self) -> usize {
        self.pools[0].available()
    }

    /// Pages of the first group, whoever has them.
    pub fn len(&self) -> usize {
        self.pools[0].len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nodes of the tree of prefixes: those with a page that is cached or held, and those on the way to one.
    pub fn nodes(&self) -> usize {
        self.tree.len() - self.tree.unused() - 1
    }

    /// Pages of the first group that no sequence holds and that hold a prefix.
    pub fn cached(&self) -> usize {
        self.pools[0].cached()
    }
}
