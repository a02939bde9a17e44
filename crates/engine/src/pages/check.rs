//! The integrity check of the bookkeeping of pages: everything that is recorded twice must agree.
//!
//! It is for tests and yet behind no feature: `testkit` and the tests of `engine` and `server` call it after each step,
//! and a feature of so many dependencies would be longer than it is worth. No program calls it, so none contains it.

use foretoken_model::{PageId, PageTable};

use super::group::{GroupPages, Prefixes, TreePosition};
use super::pool::NONE;
use super::tree::{ROOT, Tree};
use super::{Pages, SequencePages};

impl Pages {
    /// Checks that every page is free, cached or held, with the right number of holders; that trees and page tables
    /// agree; and that nothing unneeded is kept. `sequences`: all sequences that hold pages.
    ///
    /// # Errors
    /// The first inconsistency.
    pub(crate) fn check<'a>(&self, sequences: impl IntoIterator<Item = &'a SequencePages>) -> Result<(), String> {
        let sequences: Vec<&SequencePages> = sequences.into_iter().collect();
        for (number, pages) in self.groups.iter().enumerate() {
            let of_group = sequences.iter().filter_map(|sequence| {
                let (place, table) = (*sequence.places.get(number)?, sequence.tables.get(number)?);
                Some((place, table))
            });
            let of_group: Vec<(TreePosition, &PageTable)> = of_group.collect();
            pages.check(&of_group).map_err(|error| format!("group {number}: {error}"))?;
        }
        Ok(())
    }
}

impl GroupPages {
    fn check(&self, sequences: &[(TreePosition, &PageTable)]) -> Result<(), String> {
        self.check_pages(sequences)?;
        for (place, table) in sequences {
            self.check_place(*place, table).map_err(|error| format!("{error}: {place:?}, {table:?}"))?;
        }
        match &self.prefixes {
            Prefixes::Rows(tree) => self.check_nodes(tree, sequences),
            Prefixes::States(_) => Ok(()),
        }
    }

    /// Whether the prefixes agree that a page belongs to this node.
    fn belongs(&self, page: PageId, node: u32) -> bool {
        match &self.prefixes {
            Prefixes::Rows(tree) => tree.page(node) == page,
            Prefixes::States(checkpoints) => node == page.0 && checkpoints.of(page).is_some(),
        }
    }

    fn check_pages(&self, sequences: &[(TreePosition, &PageTable)]) -> Result<(), String> {
        let (pool, count) = (&self.pool, self.group.pages);
        let mut holders = vec![0; count];
        for (_, table) in sequences {
            let first_held = table.iter().position(|page| *page != PageId::GONE).unwrap_or(table.len());
            for (at, page) in table.iter().enumerate().skip(first_held) {
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
                return Err(format!("{page:?} belongs to node {}, which has another page", state.node));
            }
            if let (false, Prefixes::States(checkpoints)) = (is_known, &self.prefixes)
                && checkpoints.of(page).is_some()
            {
                return Err(format!("{page:?} is recorded as a checkpoint, but not in the pool"));
            }
        }
        Ok(())
    }

    /// Checks that the pages of a sequence are those of its nodes in the tree, followed by its own.
    fn check_place(&self, place: TreePosition, table: &PageTable) -> Result<(), String> {
        let TreePosition { mut node, entered: mut at } = place;
        if let Prefixes::Rows(tree) = &self.prefixes {
            while at > 0 && node != ROOT {
                at -= 1;
                if table[at] != PageId::GONE && table[at] != tree.page(node) {
                    return Err(format!("page {at} is not the page of node {node}"));
                }
                node = tree.node(node).parent;
            }
        }
        if (at, node) != (0, ROOT) {
            return Err(format!("{} pages are in the tree, but not their ancestors", place.entered));
        }
        let mut own = table.iter().skip(place.entered).filter(|page| **page != PageId::GONE);
        match own.find(|page| self.pool.page(**page).node != NONE) {
            Some(page) => Err(format!("{page:?} is in the tree, though its rows may be written")),
            None => Ok(()),
        }
    }

    fn check_nodes(&self, tree: &Tree, sequences: &[(TreePosition, &PageTable)]) -> Result<(), String> {
        let nodes = tree.in_use();
        if nodes.len() + tree.unused() + 1 != tree.len() {
            return Err(format!("{} nodes in use, {} not, of {}", nodes.len(), tree.unused(), tree.len()));
        }
        for number in nodes {
            let node = tree.node(number);
            let users = sequences.iter().filter(|(place, _)| place.node == number).count();
            if users != node.users as usize {
                return Err(format!("node {number} is continued by {users} sequences: {node:?}"));
            }
            if !tree.is_in_order(number) {
                return Err(format!("the children of node {number} are not in order"));
            }
            let has_page = node.page != PageId::GONE;
            if has_page && self.pool.page(node.page).node != number {
                return Err(format!("node {number} has {:?}, which belongs to another node", node.page));
            }
            if !has_page && users == 0 && tree.children(number).is_empty() {
                return Err(format!("node {number} has no page, child or user: {node:?}"));
            }
            let is_full = node.len as usize == self.group.page_len;
            if is_full && tree.child(node.parent, node.owner, tree.tokens(number)) != Some(number) {
                return Err(format!("node {number} is not found by its tokens"));
            }
        }
        Ok(())
    }
}
