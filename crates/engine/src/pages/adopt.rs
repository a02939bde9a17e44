//! Adopting a prefix: the longest beginning of a text whose rows are cached becomes a new sequence's own.
//!
//! Full pages are shared. Where the text leaves a cached prefix inside a page, or the page is partly filled, the rows
//! that agree are copied into a page of the sequence's own. In a group that keeps a window it is enough that the
//! positions are cached which the next row sees.
//!
//! A text begins with pages that are everybody's, as far as there are any, and goes on with pages of its tenant. What a
//! request itself declares public is looked for among what is everybody's alone, so that it gets there.
//!
//! Left out: the copying itself, which is the executor's.

use std::ops::Range;

use foretoken_model::{Group, Kind, PageId, PageTable};
use foretoken_speculation::Token;

use super::pool::Pool;
use super::tree::ROOT;
use super::{Owner, Pages, SequencePages};
use crate::faults::{Fault, is_made};

/// What a new sequence has of a prefix that was computed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Its first positions, so many, are cached once `copied` is done.
    pub len: usize,
    /// Rows to be copied before anything else happens to the pages.
    pub copied: Option<Copied>,
}

/// Rows that are to be copied into a sequence's own page, at the same positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Page tables to copy from.
    pub from: Vec<PageTable>,
    /// Which rows.
    pub positions: Range<usize>,
}

/// A cached prefix.
#[derive(Debug, Default)]
pub(super) struct Prefix {
    /// Tokens of it that can be used.
    len: usize,
    /// A node a page; of the last one perhaps only the first rows are meant.
    nodes: Vec<u32>,
}

impl Pages {
    /// Lets a sequence without pages adopt the longest cached prefix of these tokens, at most `len_max` of them.
    ///
    /// # Panics
    /// If it has pages.
    pub fn adopt(&mut self, held: &mut SequencePages, tokens: &[Token], len_max: usize) -> Adopted {
        assert!(held.tables.iter().all(Vec::is_empty), "a sequence with pages adopts a prefix: {held:?}");
        let nothing = Adopted { len: 0, copied: None };
        let Some(page_len) = self.page_len else { return nothing };
        let mut prefix = self.find(held, tokens, len_max);
        // Rows are copied where there is a page for them.
        let has_room = |prefix: &Prefix| {
            let mut pools = self.pools.iter().enumerate();
            pools.all(|(i, pool)| pool.available() > self.unheld(prefix, i))
        };
        while !prefix.len.is_multiple_of(page_len) && !has_room(&prefix) {
            prefix = self.find(held, tokens, prefix.len / page_len * page_len);
        }
        let Prefix { len, nodes } = prefix;
        let Some(last) = len.checked_sub(1) else { return nothing };
        let full = if is_made(Fault::SharedPageWritten) { nodes.len() } else { len / page_len };
        for (number, (group, pool)) in self.groups.iter().zip(&mut self.pools).enumerate() {
            let gone = unseen(group, len, full);
            let table = &mut held.tables[number];
            table.resize(gone, PageId::GONE);
            table.extend(nodes[gone..full].iter().map(|node| self.tree.pages(*node)[number]));
            table[gone..].iter().for_each(|page| pool.hold(*page));
        }
        held.entered = full;
        self.go_to(held, if full > 0 { nodes[full - 1] } else { ROOT });
        let copied =
            (len > full * page_len).then(|| self.copy_rows(held, nodes[last / page_len], full * page_len..len));
        Adopted { len, copied }
    }

    /// Forgets the rows of a sequence from `len` on, also committed ones, which some may go back behind
    /// ([`Pages::that_keep_all`]). Of a page in the tree that is to be continued elsewhere, rows are copied like those
    /// of a prefix; if there is no page for them, less is left.
    pub fn truncate(&mut self, held: &mut SequencePages, len: usize) -> Adopted {
        let page_len = self.page_len.unwrap_or(1);
        let (full, entered) = (len / page_len, held.entered);
        self.cut(held, len.max(entered * page_len));
        if full >= entered {
            return Adopted { len, copied: None };
        }
        let (mut node, mut source) = (held.node, ROOT);
        for _ in full..entered {
            (source, node) = (node, self.tree.node(node).parent);
        }
        for (pool, table) in self.pools.iter_mut().zip(&mut held.tables) {
            table.drain(full..).rev().for_each(|page| pool.let_go(page));
        }
        held.entered = full;
        self.go_to(held, node);
        let (pools, source_pages) = (self.pools.iter(), self.tree.pages(source));
        let mut both = pools.zip(source_pages);
        let has_room = both.all(|(pool, page)| pool.available() > usize::from(pool.page(*page).holders == 0));
        if len.is_multiple_of(page_len) || !has_room {
            return Adopted { len: full * page_len, copied: None };
        }
        Adopted { len, copied: Some(self.copy_rows(held, source, full * page_len..len)) }
    }

    /// Gives a sequence a page of its own for these positions, whose rows a node has.
    fn copy_rows(&mut self, held: &mut SequencePages, node: u32, positions: Range<usize>) -> Copied {
        let source = self.tree.pages(node).to_vec();
        // What is held is not evicted.
        self.pools.iter_mut().zip(&source).for_each(|(pool, page)| pool.hold(*page));
        let from = held.tables.iter().zip(&source).map(|(table, page)| [table, &[*page][..]].concat()).collect();
        let grown = self.grow(held, positions.end);
        assert!(grown, "pages were counted for positions {positions:?}, and there are none");
        self.pools.iter_mut().zip(&source).for_each(|(pool, page)| pool.let_go(*page));
        Copied { from, positions }
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
        let spare = |group: &Group| if group.kind == Kind::State { without_state } else { spare };
        // Whoever begins needs a page at least.
        if self.groups.iter().zip(&self.pools).any(|(group, pool)| pool.available() <= spare(group)) {
            return false;
        }
        let prefix = self.find(held, tokens, len_max);
        let full = self.page_len.map_or(0, |page_len| prefix.len / page_len);
        let fits = |(i, (group, pool)): (usize, (&Group, &Pool))| {
            // Those of a window that others hold are of no use to it when it gives them back.
            let needed = self.unheld(&prefix, i) + group.pages_for(tokens.len()) - full;
            needed.min(group.pages_held(tokens.len(), self.rows_max)) + spare(group) <= pool.available()
        };
        self.groups.iter().zip(&self.pools).enumerate().all(fits)
    }

    /// Pages of a group that nobody holds and that are no longer available when a prefix is adopted.
    fn unheld(&self, prefix: &Prefix, group: usize) -> usize {
        let gone = unseen(&self.groups[group], prefix.len, prefix.nodes.len());
        let pages = prefix.nodes[gone..].iter().map(|node| self.tree.pages(*node)[group]);
        pages.filter(|page| self.pools[group].page(*page).holders == 0).count()
    }

    /// The longest prefix of these tokens, at most `len_max` of them, that a sequence may see and that is cached as far
    /// as later rows see it.
    pub(super) fn find(&self, held: &SequencePages, tokens: &[Token], len_max: usize) -> Prefix {
        let mut best = Prefix::default();
        let Some(page_len) = self.page_len else { return best };
        let tokens = &tokens[..len_max.min(tokens.len())];
        // Also the page in which the tokens end is looked for, but only by its first rows.
        let pages = || tokens.chunks_exact(page_len);
        let (mut public, mut at) = (Vec::new(), ROOT);
        for page in pages() {
            let Some(next) = self.tree.child(at, None, page) else { break };
            public.push(next);
            at = next;
        }
        // Where the tenant's own pages may begin, from the last place on: mostly it is the only one.
        for shared in (0..=public.len()).rev() {
            let mut nodes = public[..shared].to_vec();
            if (shared + 1) * page_len > held.public_len {
                for page in pages().skip(shared) {
                    let parent = nodes.last().copied().unwrap_or(ROOT);
                    let Some(next) = self.tree.child(parent, Some(held.whose), page) else { break };
                    nodes.push(next);
                }
            }
            if best.len < (nodes.len() + 1) * page_len {
                self.consider(nodes, held.whose, tokens, &mut best);
            }
        }
        best
    }

    /// Goes on from full pages into one that agrees for some rows, and shortens the whole until what is seen from its
    /// end is cached.
    fn consider(&self, mut nodes: Vec<u32>, whose: Owner, tokens: &[Token], best: &mut Prefix) {
        let page_len = self.page_len.expect("prefixes are looked for where there are any");
        loop {
            let mut matched = nodes.len() * page_len;
            let parent = nodes.last().copied().unwrap_or(ROOT);
            // A full page that agrees and is not among the nodes may not be shared, only copied.
            let rest = &tokens[matched..tokens.len().min(matched + page_len - 1)];
            if let Some((node, agree)) = self.nearest(parent, Some(whose), rest) {
                nodes.push(node);
                matched += agree;
            }
            if matched <= best.len {
                return;
            }
            let missing = |(number, group): (usize, &Group)| {
                let gone = unseen(group, matched, nodes.len());
                let is_missing = |node: &u32| self.tree.pages(*node)[number] == PageId::GONE;
                nodes[gone..].iter().position(is_missing).map(|at| gone + at)
            };
            match self.groups.iter().enumerate().filter_map(missing).min() {
                None => {
                    *best = Prefix { len: matched, nodes };
                    return;
                }
                // Any prefix that goes so far needs this page too: a shorter one sees no less of what is before it.
                Some(at) => nodes.truncate(at),
            }
        }
    }

    /// The child of a node, visible to this owner and cached in all groups, that agrees with the most first tokens, and
    /// with how many.
    pub(super) fn nearest(&self, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> Option<(u32, usize)> {
        let is_cached = |node: u32| !self.tree.pages(node).contains(&PageId::GONE);
        let public = self.tree.nearest_child(parent, None, tokens, is_cached);
        let own = owner.and_then(|_| self.tree.nearest_child(parent, owner, tokens, is_cached));
        // What is everybody's is taken where it is as good.
        own.into_iter().chain(public).max_by_key(|(_, agree)| *agree)
    }
}

/// How many of the first pages of a prefix of so many `positions` no later row sees; at most `pages`.
fn unseen(group: &Group, positions: usize, pages: usize) -> usize {
    let unseen = group.pages_gone(positions);
    let one_more = is_made(Fault::WindowNotHeld) && unseen > 0;
    (unseen + usize::from(one_more)).min(pages)
}
