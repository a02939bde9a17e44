//! Whether the bookkeeping of pages is in order: everything that is said twice must agree. For tests, at any time.

use foretoken_model::{PageId, PageTable};

use super::group::{GroupPages, Place, Prefixes};
use super::pool::NONE;
use super::tree::{ROOT, Tree};
use super::{Pages, SequencePages};

impl Pages {
    /// Checks that every page is free, cached or held, by as many as hold it; that what is known of prefixes and the
    /// page tables tell the same; and that nothing is kept that nobody needs. `everybody`: all sequences that hold
    /// pages.
    ///
    /// # Errors
    /// The first thing that is not in order.
    pub fn check<'a>(&self, everybody: impl IntoIterator<Item = &'a SequencePages>) -> Result<(), String> {
        let everybody: Vec<&SequencePages> = everybody.into_iter().collect();
        for (number, pages) in self.groups.iter().enumerate() {
            let held = everybody.iter().filter_map(|held| Some((*held.places.get(number)?, held.tables.get(number)?)));
            let held: Vec<(Place, &PageTable)> = held.collect();
            pages.check(&held).map_err(|error| format!("group {number}: {error}"))?;
        }
        Ok(())
    }
}

impl GroupPages {
    fn check(&self, everybody: &[(Place, &PageTable)]) -> Result<(), String> {
        self.check_pages(everybody)?;
        for (place, table) in everybody {
            self.check_place(*place, table).map_err(|error| format!("{error}: {place:?}, {table:?}"))?;
        }
        match &self.prefixes {
            Prefixes::Rows(tree) => self.check_nodes(tree, everybody),
            Prefixes::States(_) => Ok(()),
        }
    }

    /// Whether what is known of prefixes says that a page belongs to this node.
    fn belongs(&self, page: PageId, node: u32) -> bool {
        match &self.prefixes {
            Prefixes::Rows(tree) => tree.page(node) == page,
            Prefixes::States(checkpoints) => node == page.0 && checkpoints.of(page).is_some(),
        }
    }

    fn check_pages(&self, everybody: &[(Place, &PageTable)]) -> Result<(), String> {
        let (pool, count) = (&self.pool, self.group.pages);
        let mut holders = vec![0; count];
        for (_, table) in everybody {
            let held = table.iter().position(|page| *page != PageId::GONE).unwrap_or(table.len());
            for (at, page) in table.iter().enumerate().skip(held) {
                let counted = holders.get_mut(page.0 as usize).ok_or_else(|| format!("{page:?} in a table"))?;
                if table[at + 1..].contains(page) {
                    return Err(format!("{page:?} is twice in a table"));
                }
                *counted += 1;
            }
        }
        let (free, cached) = pool.lists().ok_or("the list of cached pages is broken")?;
        let mut listed = vec![[false; 2]; count];
        free.iter().for_each(|page| listed[page.0 as usize][0] = true);
        cached.iter().for_each(|page| listed[page.0 as usize][1] = true);
        let in_lists = listed.iter().flatten().filter(|listed| **listed).count();
        if in_lists != free.len() + cached.len() {
            return Err("a page is twice in a list".to_string());
        }
        for (at, (holders, [is_free, is_cached])) in holders.into_iter().zip(listed).enumerate() {
            let (page, state) = (PageId(at as u32), pool.page(PageId(at as u32)));
            let is_known = state.node != NONE;
            if holders != state.holders || (is_free, is_cached) != (holders == 0 && !is_known, holders == 0 && is_known)
            {
                return Err(format!("{page:?} is held {holders} times, free {is_free}, cached {is_cached}: {state:?}"));
            }
            if is_known && !self.belongs(page, state.node) {
                return Err(format!("{page:?} belongs to node {}, which has another", state.node));
            }
            if let (false, Prefixes::States(checkpoints)) = (is_known, &self.prefixes)
                && checkpoints.of(page).is_some()
            {
                return Err(format!("{page:?} is taken for a checkpoint"));
            }
        }
        Ok(())
    }

    /// That the pages of a sequence are those of its place in the tree, then its own.
    fn check_place(&self, place: Place, table: &PageTable) -> Result<(), String> {
        let Place { mut node, entered: mut at } = place;
        if let Prefixes::Rows(tree) = &self.prefixes {
            while at > 0 && node != ROOT {
                at -= 1;
                if table[at] != PageId::GONE && table[at] != tree.page(node) {
                    return Err(format!("page {at} is not that of node {node}"));
                }
                node = tree.node(node).parent;
            }
        }
        if (at, node) != (0, ROOT) {
            return Err(format!("{} pages are in the tree, but not its ancestors", place.entered));
        }
        let mut own = table.iter().skip(place.entered).filter(|page| **page != PageId::GONE);
        match own.find(|page| self.pool.page(**page).node != NONE) {
            Some(page) => Err(format!("{page:?} is in the tree, though its rows may be written")),
            None => Ok(()),
        }
    }

    fn check_nodes(&self, tree: &Tree, everybody: &[(Place, &PageTable)]) -> Result<(), String> {
        let nodes = tree.in_use();
        if nodes.len() + tree.unused() + 1 != tree.len() {
            return Err(format!("{} nodes in use, {} not, of {}", nodes.len(), tree.unused(), tree.len()));
        }
        for number in nodes {
            let node = tree.node(number);
            let users = everybody.iter().filter(|(place, _)| place.node == number).count();
            if users != node.users as usize {
                return Err(format!("node {number} is continued by {users} sequences: {node:?}"));
            }
            if !tree.is_in_order(number) {
                return Err(format!("the children of node {number} are not in order"));
            }
            let has_page = node.page != PageId::GONE;
            if has_page && self.pool.page(node.page).node != number {
                return Err(format!("node {number} has {:?}, which belongs elsewhere", node.page));
            }
            if !has_page && users == 0 && tree.children(number).is_empty() {
                return Err(format!("node {number} has nothing: {node:?}"));
            }
            let is_full = node.len as usize == self.group.page_len;
            if is_full && tree.child(node.parent, node.owner, tree.tokens(number)) != Some(number) {
                return Err(format!("node {number} is not found by its tokens"));
            }
        }
        Ok(())
    }
}
