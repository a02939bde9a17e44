//! The pages of one cache group: how many page tables hold each page, which node it belongs to, and which are free.
//!
//! A page is *free* (no table, no node), *private* (one table, no node: rows may be written to it), *shared* (in the
//! tree of prefixes, held by one table or more) or *cached* (in the tree, held by no table). Cached pages are in a list
//! in the order of their release, and the first is evicted first. All operations take constant time.

use foretoken_model::PageId;

use crate::faults::{Fault, is_made};

/// No node, or no page: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// The state of one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// How many page tables hold it.
    pub(super) holders: u32,
    /// The node of the tree that it belongs to.
    pub(super) node: u32,
    /// The adjacent pages in the list of cached pages.
    older: u32,
    newer: u32,
}

/// The pages of one cache group, with their holders and the order in which cached ones are evicted.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pages: Vec<Page>,
    /// The free pages, of which the last is taken next.
    free: Vec<PageId>,
    /// The ends of the list of cached pages.
    oldest: u32,
    newest: u32,
    cached: usize,
}

impl Pool {
    pub(super) fn new(pages: usize) -> Self {
        let free = (0..pages as u32).rev().map(PageId).collect();
        let page = Page { holders: 0, node: NONE, older: NONE, newer: NONE };
        Self { pages: vec![page; pages], free, oldest: NONE, newest: NONE, cached: 0 }
    }

    pub(super) fn page(&self, page: PageId) -> Page {
        self.pages[page.0 as usize]
    }

    /// All pages.
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Pages that no table holds: free ones and cached ones.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.cached
    }

    /// Pages that are in the tree and held by no table.
    pub(super) fn cached(&self) -> usize {
        self.cached
    }

    /// Takes a free page for one table, if there is any.
    pub(super) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.pages[page.0 as usize].holders = 1;
        Some(page)
    }

    /// Frees the page that has been cached for longest. Returns the page and its node.
    pub(super) fn evict(&mut self) -> Option<(PageId, u32)> {
        let page = PageId(self.oldest);
        if page.0 == NONE {
            return None;
        }
        self.unlink(page);
        let node = std::mem::replace(&mut self.pages[page.0 as usize].node, NONE);
        self.free.push(page);
        Some((page, node))
    }

    /// Makes a cached page private to one table: it leaves its node.
    pub(super) fn take_cached(&mut self, page: PageId) {
        self.hold(page);
        self.pages[page.0 as usize].node = NONE;
    }

    /// Adds a holder to a page of the tree.
    pub(super) fn hold(&mut self, page: PageId) {
        if self.page(page).holders == 0 {
            self.unlink(page);
        }
        self.pages[page.0 as usize].holders += 1;
    }

    /// Removes a holder from a page. A page without holders becomes cached if it is in the tree, otherwise free.
    pub(super) fn release(&mut self, page: PageId) {
        let state = &mut self.pages[page.0 as usize];
        assert!(state.holders > 0, "{page:?} is released, and no table holds it");
        state.holders -= 1;
        let holders = if is_made(Fault::PageGivenBackEarly) { 0 } else { state.holders };
        match (holders, state.node) {
            (0, NONE) => self.free.push(page),
            (0, _) => self.link(page),
            _ => {}
        }
    }

    /// Adds a private page to a node of the tree.
    pub(super) fn enter(&mut self, page: PageId, node: u32) {
        let state = &mut self.pages[page.0 as usize];
        assert!(state.holders == 1 && state.node == NONE, "{page:?} enters the tree: {state:?}");
        state.node = node;
    }

    /// Makes a page the newest of the cached ones.
    fn link(&mut self, page: PageId) {
        let older = std::mem::replace(&mut self.newest, page.0);
        let state = &mut self.pages[page.0 as usize];
        (state.older, state.newer) = (older, NONE);
        match older {
            NONE => self.oldest = page.0,
            older => self.pages[older as usize].newer = page.0,
        }
        self.cached += 1;
    }

    fn unlink(&mut self, page: PageId) {
        let Page { older, newer, .. } = self.page(page);
        match older {
            NONE => self.oldest = newer,
            older => self.pages[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.pages[newer as usize].older = older,
        }
        self.cached -= 1;
    }

    /// The lists of free pages and of cached ones, the oldest first. `None` if the list of cached pages is broken.
    pub(super) fn lists(&self) -> Option<(&[PageId], Vec<PageId>)> {
        let (mut cached, mut older, mut at) = (Vec::new(), NONE, self.oldest);
        while at != NONE && cached.len() <= self.cached {
            let page = self.pages.get(at as usize)?;
            if page.older != older {
                return None;
            }
            cached.push(PageId(at));
            (older, at) = (at, page.newer);
        }
        (at == NONE && older == self.newest && cached.len() == self.cached).then_some((&self.free, cached))
    }
}
