//! Whether the bookkeeping of pages is in order: everything that is said twice must agree. For tests, at any time.

use foretoken_model::PageId;

use super::pool::NONE;
use super::tree::ROOT;
use super::{Pages, SequencePages};

impl Pages {
    /// Checks that every page is free, cached or held, by as many as hold it; that the tree and the page tables tell
    /// the same; and that nothing is kept that nobody needs. `everybody`: all sequences that hold pages.
    ///
    /// # Errors
    /// The first thing that is not in order.
    pub fn check<'a>(&self, everybody: impl IntoIterator<Item = &'a SequencePages>) -> Result<(), String> {
        let everybody: Vec<&SequencePages> = everybody.into_iter().collect();
        for group in 0..self.groups.len() {
            self.check_group(group, &everybody).map_err(|error| format!("group {group}: {error}"))?;
        }
        for held in &everybody {
            self.check_place(held).map_err(|error| format!("{error}: {held:?}"))?;
        }
        self.check_nodes(&everybody)
    }

    fn check_group(&self, group: usize, everybody: &[&SequencePages]) -> Result<(), String> {
        let (pool, count) = (&self.pools[group], self.groups[group].pages);
        let mut holders = vec![0; count];
        for table in everybody.iter().filter_map(|held| held.tables.get(group)) {
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
            let in_tree = state.node != NONE;
            if holders != state.holders || (is_free, is_cached) != (holders == 0 && !in_tree, holders == 0 && in_tree) {
                return Err(format!("{page:?} is held {holders} times, free {is_free}, cached {is_cached}: {state:?}"));
            }
            if in_tree && self.tree.pages(state.node)[group] != page {
                return Err(format!("{page:?} belongs to node {}, which has another", state.node));
            }
        }
        Ok(())
    }

    /// That the pages of a sequence are those of its place in the tree, then its own.
    fn check_place(&self, held: &SequencePages) -> Result<(), String> {
        let (mut at, mut node) = (held.entered, held.node);
        while at > 0 && node != ROOT {
            at -= 1;
            for (group, table) in held.tables.iter().enumerate() {
                if table[at] != PageId::GONE && table[at] != self.tree.pages(node)[group] {
                    return Err(format!("group {group}, page {at} is not that of node {node}"));
                }
            }
            node = self.tree.node(node).parent;
        }
        if (at, node) != (0, ROOT) {
            return Err(format!("{} pages are in the tree, but not its ancestors", held.entered));
        }
        for (pool, table) in self.pools.iter().zip(&held.tables) {
            let own = table.iter().skip(held.entered).filter(|page| **page != PageId::GONE);
            if let Some(page) = own.copied().find(|page| pool.page(*page).node != NONE) {
                return Err(format!("{page:?} is in the tree, though its rows may be written"));
            }
        }
        Ok(())
    }

    fn check_nodes(&self, everybody: &[&SequencePages]) -> Result<(), String> {
        let nodes = self.tree.in_use();
        if nodes.len() + self.tree.unused() + 1 != self.tree.len() {
            return Err(format!("{} nodes in use, {} not, of {}", nodes.len(), self.tree.unused(), self.tree.len()));
        }
        for number in nodes {
            let node = self.tree.node(number);
            let users = everybody.iter().filter(|held| held.node == number).count();
            if users != node.users as usize {
                return Err(format!("node {number} is continued by {users} sequences: {node:?}"));
            }
            let pages = self.tree.pages(number).iter().enumerate().filter(|(_, page)| **page != PageId::GONE);
            let mut kept = users > 0 || !self.tree.children(number).is_empty();
            if !self.tree.is_in_order(number) {
                return Err(format!("the children of node {number} are not in order"));
            }
            for (group, page) in pages {
                kept = true;
                if self.pools[group].page(*page).node != number {
                    return Err(format!("node {number} has {page:?} of group {group}, which belongs elsewhere"));
                }
            }
            if !kept {
                return Err(format!("node {number} has nothing: {node:?}"));
            }
            let is_full = Some(node.len as usize) == self.page_len;
            if is_full && self.tree.child(node.parent, node.owner, self.tree.tokens(number)) != Some(number) {
                return Err(format!("node {number} is not found by its tokens"));
            }
        }
        Ok(())
    }
}
