//! The pages of one cache group: how many page tables hold each, whose node it belongs to, and which can be had.
//!
//! A page is *free* (no table, no node), *private* (one table, no node: rows may be written to it), *shared* (in the
//! tree of prefixes, held by one table or more) or *cached* (in the tree and held by nobody). Cached pages are in a
//! list, the one that was let go of first at its head, which is evicted first. All operations take constant time.
//!
//! Left out: what the pages hold, and that a node forgets an evicted page (`Pages`).

use foretoken_model::PageId;

use crate::faults::{Fault, is_made};

/// No node, or no page: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// What is known of one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// Page tables that hold it.
    pub(super) holders: u32,
    /// The node of the tree that it belongs to.
    pub(super) node: u32,
    /// Its neighbours in the list of cached pages.
    older: u32,
    newer: u32,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pages: Vec<Page>,
    /// The last is taken next.
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

    /// Pages, whoever has them.
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

    /// A free page for one table, if there is any.
    pub(super) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.pages[page.0 as usize].holders = 1;
        Some(page)
    }

    /// Frees the page that has been cached for longest; which it was, and its node.
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

    /// A cached page becomes that of one table, and nothing is known of it any more.
    pub(super) fn take_cached(&mut self, page: PageId) {
        self.hold(page);
        self.pages[page.0 as usize].node = NONE;
    }

    /// Another table holds a page of the tree.
    pub(super) fn hold(&mut self, page: PageId) {
        if self.page(page).holders == 0 {
            self.unlink(page);
        }
        self.pages[page.0 as usize].holders += 1;
    }

    /// A table lets go of a page: held by nobody it is cached if it is in the tree, else free.
    pub(super) fn let_go(&mut self, page: PageId) {
        let state = &mut self.pages[page.0 as usize];
        assert!(state.holders > 0, "{page:?} is given back, and nobody holds it");
        state.holders -= 1;
        let holders = if is_made(Fault::PageGivenBackEarly) { 0 } else { state.holders };
        match (holders, state.node) {
            (0, NONE) => self.free.push(page),
            (0, _) => self.link(page),
            _ => {}
        }
    }

    /// A private page enters the tree.
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

    /// Free pages, and cached ones from the oldest on, as the lists have them. `None`: a list is broken.
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
