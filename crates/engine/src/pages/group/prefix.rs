//! The search for the longest cached prefix that a sequence can continue in one group.

use foretoken_model::{Group, PageId};
use foretoken_speculation::Token;

use super::super::tree::{ROOT, Tree};
use super::super::{Owner, View};
use super::{GroupPages, Prefixes};
use crate::faults::{Fault, is_made};

/// A cached prefix in one group.
#[derive(Debug, Default)]
pub(in crate::pages) struct Prefix {
    /// How many tokens it has.
    pub(in crate::pages) len: usize,
    /// The nodes of its pages, of which the last may be used only in part; in a group of states the slot.
    pub(super) nodes: Vec<u32>,
}

impl GroupPages {
    /// The longest prefix of these tokens, at most `len_max` of them, that a sequence may use and of which all rows are
    /// cached that later rows see.
    pub(in crate::pages) fn find(&self, view: View, tokens: &[Token], len_max: usize) -> Prefix {
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
        // Full pages only; the page in which the tokens end is looked for in `keep_if_longer`.
        let pages = || tokens.chunks_exact(page_len);
        let (mut public, mut at) = (Vec::new(), ROOT);
        for page in pages() {
            let Some(next) = tree.child(at, None, page) else { break };
            public.push(next);
            at = next;
        }
        // The tenant's own pages may begin after any number of public pages. The largest number of public pages is
        // tried first; usually it is the only possibility.
        for shared in (0..=public.len()).rev() {
            let mut nodes = public[..shared].to_vec();
            if (shared + 1) * page_len > view.public_len {
                for page in pages().skip(shared) {
                    let parent = nodes.last().copied().unwrap_or(ROOT);
                    let Some(next) = tree.child(parent, Some(view.owner), page) else { break };
                    nodes.push(next);
                }
            }
            if best.len < (nodes.len() + 1) * page_len {
                keep_if_longer(tree, &self.group, nodes, view, tokens, &mut best);
            }
        }
        best
    }
}

/// Extends a path of full pages by a page that agrees for some rows, shortens it until all rows are cached that its end
/// sees, and keeps it in `best` if it is longer.
fn keep_if_longer(tree: &Tree, group: &Group, mut nodes: Vec<u32>, view: View, tokens: &[Token], best: &mut Prefix) {
    let page_len = group.page_len;
    loop {
        let mut matched = nodes.len() * page_len;
        let parent = nodes.last().copied().unwrap_or(ROOT);
        // A full page that agrees and is not among the nodes must not be shared, only copied.
        let rest = &tokens[matched..tokens.len().min(matched + page_len - 1)];
        if let Some((node, agree)) = nearest(tree, parent, Some(view.owner), rest) {
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
            // Every shorter prefix that includes this page needs it too, since it sees at least as far back.
            Some(at) => nodes.truncate(gone + at),
        }
    }
}

/// The cached child of a node, usable by this owner, that has the most leading tokens in common, and how many.
pub(super) fn nearest(tree: &Tree, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> Option<(u32, usize)> {
    let public = tree.nearest_child(parent, None, tokens);
    let own = owner.and_then(|_| tree.nearest_child(parent, owner, tokens));
    // A public child is preferred if it has as many in common.
    own.into_iter().chain(public).max_by_key(|(_, agree)| *agree)
}

/// How many of the first pages of a prefix of `positions` no later row sees, at most `pages`.
pub(super) fn unseen(group: &Group, positions: usize, pages: usize) -> usize {
    let unseen = group.pages_gone(positions);
    let one_more = is_made(Fault::WindowNotHeld) && unseen > 0;
    (unseen + usize::from(one_more)).min(pages)
}
