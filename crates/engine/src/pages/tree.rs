//! The tree of prefixes that the cache holds: which tokens the rows of a page were computed from.
//!
//! Each cache group of rows has a tree of its own. A node stands for one page length of tokens behind those of its
//! parent, and has their page, or none where it was given back or evicted. It belongs to a tenant, or to everybody if
//! its tokens were declared public. So two nodes are the same prefix only if all their ancestors are. A node is found
//! by a hash of its parent, its owner and its tokens, and is it only if these are equal: a hash alone proves nothing.
//! The last page of a text that ended may be partly filled; its node is a leaf with fewer tokens.
//!
//! The children of a node are kept in the order of their owners and tokens, so that the one that agrees with a text for
//! the most first tokens is next to the text's place, however many there are.
//!
//! A node lives while it has a page or a child, or a sequence continues it.
//!
//! Left out: who may see what and how much of a prefix can be used (`adopt`), and the pages themselves (`pool`).

use std::collections::HashMap;

use foretoken_model::PageId;
use foretoken_speculation::Token;

use super::Owner;
use super::pool::NONE;
use crate::faults::{Fault, is_made};

/// Where every text begins.
pub(super) const ROOT: u32 = 0;

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) parent: u32,
    /// `None`: everybody's.
    pub(super) owner: Option<Owner>,
    /// Tokens: those of a page, or fewer.
    pub(super) len: u32,
    /// Sequences whose last page in the tree this is.
    pub(super) users: u32,
    /// What it is found by.
    key: u64,
    /// The next node of the same key.
    same_key: u32,
    /// [`PageId::GONE`] where there is none.
    pub(super) page: PageId,
    /// In the order of their owners, then of their tokens, then of their numbers.
    children: Vec<u32>,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    page_len: usize,
    nodes: Vec<Node>,
    /// Nodes that are not in use.
    free: Vec<u32>,
    /// Of each node `page_len`.
    tokens: Vec<Token>,
    /// By key the first node.
    index: HashMap<u64, u32>,
    /// Bits of a key that count: fewer in a test, so that hashes agree where tokens do not.
    pub(super) key_bits: u64,
}

impl Tree {
    /// A tree without prefixes. `page_len`: tokens of a page.
    pub(super) fn new(page_len: usize) -> Self {
        let mut tree = Self {
            page_len,
            nodes: Vec::new(),
            free: Vec::new(),
            tokens: Vec::new(),
            index: HashMap::new(),
            key_bits: if is_made(Fault::PrefixByHashAlone) { 7 } else { u64::MAX },
        };
        let root = tree.make(NONE, None, &[]);
        tree.nodes[root as usize].users = 1;
        tree
    }

    pub(super) fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    pub(super) fn tokens(&self, node: u32) -> &[Token] {
        let from = node as usize * self.page_len;
        &self.tokens[from..from + self.node(node).len as usize]
    }

    pub(super) fn page(&self, node: u32) -> PageId {
        self.node(node).page
    }

    pub(super) fn set_page(&mut self, node: u32, page: PageId) {
        self.nodes[node as usize].page = page;
    }

    /// The child of this owner with a page full of these tokens.
    pub(super) fn child(&self, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> Option<u32> {
        let by_hash_alone = is_made(Fault::PrefixByHashAlone);
        let mut at = self.index.get(&self.key(parent, owner, tokens)).copied();
        while let Some(node) = at {
            let Node { parent: found, owner: whose, same_key, .. } = self.node(node);
            if (*found, *whose) == (parent, owner) && (self.tokens(node) == tokens || by_hash_alone) {
                return Some(node);
            }
            at = (*same_key != NONE).then_some(*same_key);
        }
        None
    }

    /// The children of a node, in order.
    pub(super) fn children(&self, parent: u32) -> &[u32] {
        &self.node(parent).children
    }

    /// What children are ordered by.
    fn order(&self, node: u32) -> (Option<Owner>, &[Token], u32) {
        (self.node(node).owner, self.tokens(node), node)
    }

    /// Whether the children of a node are in order.
    pub(super) fn is_in_order(&self, parent: u32) -> bool {
        self.children(parent).is_sorted_by(|a, b| self.order(*a) < self.order(*b))
    }

    /// Of the children of this owner that have a page, the one that agrees with the most first tokens, at least one,
    /// and with how many.
    pub(super) fn nearest_child(&self, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> Option<(u32, usize)> {
        let children = self.children(parent);
        let (before, after) =
            children.split_at(children.partition_point(|node| self.order(*node) < (owner, tokens, 0)));
        let agree = |node: &u32| {
            let found = if self.node(*node).owner == owner { self.tokens(*node) } else { &[] };
            (*node, found.iter().zip(tokens).take_while(|(a, b)| a == b).count())
        };
        // The further away, the less they agree.
        let nearest = |found: &mut dyn Iterator<Item = (u32, usize)>| {
            found.take_while(|(_, agree)| *agree > 0).find(|(node, _)| self.page(*node) != PageId::GONE)
        };
        let found = [nearest(&mut after.iter().map(agree)), nearest(&mut before.iter().rev().map(agree))];
        found.into_iter().flatten().max_by_key(|(_, agree)| *agree)
    }

    /// A new child without a page. Its tokens are those of a page, or fewer.
    pub(super) fn insert(&mut self, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> u32 {
        let node = self.make(parent, owner, tokens);
        let at = self.place(node);
        self.nodes[parent as usize].children.insert(at, node);
        if tokens.len() == self.page_len {
            let key = self.key(parent, owner, tokens);
            let same_key = self.index.insert(key, node).unwrap_or(NONE);
            let new = &mut self.nodes[node as usize];
            (new.key, new.same_key) = (key, same_key);
        }
        node
    }

    /// Where a node is among the children of its parent, or would be.
    fn place(&self, node: u32) -> usize {
        self.children(self.node(node).parent).partition_point(|other| self.order(*other) < self.order(node))
    }

    /// One more sequence continues this node.
    pub(super) fn use_node(&mut self, node: u32) {
        self.nodes[node as usize].users += 1;
    }

    /// One sequence fewer does.
    pub(super) fn leave_node(&mut self, node: u32) {
        self.nodes[node as usize].users -= 1;
        self.prune(node);
    }

    /// Removes a node that nothing needs any more, and the ancestors that were needed for it alone.
    pub(super) fn prune(&mut self, mut node: u32) {
        loop {
            let Node { parent, users, ref children, page, .. } = *self.node(node);
            if users > 0 || !children.is_empty() || page != PageId::GONE {
                return;
            }
            self.remove(node);
            node = parent;
        }
    }

    fn remove(&mut self, node: u32) {
        let Node { parent, key, same_key, len, .. } = *self.node(node);
        let at = self.place(node);
        let removed = self.nodes[parent as usize].children.remove(at);
        assert_eq!(removed, node, "the children of node {parent} are not in order");
        if len as usize == self.page_len {
            match self.index[&key] {
                first if first != node => {
                    let mut at = first;
                    while self.node(at).same_key != node {
                        at = self.node(at).same_key;
                    }
                    self.nodes[at as usize].same_key = same_key;
                }
                _ if same_key == NONE => _ = self.index.remove(&key),
                _ => _ = self.index.insert(key, same_key),
            }
        }
        self.free.push(node);
    }

    /// A node that nobody can find yet.
    fn make(&mut self, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> u32 {
        let free = self.free.pop();
        let node = free.unwrap_or(self.nodes.len() as u32);
        let len = tokens.len() as u32;
        // Its list of children, which is empty, is kept for its memory.
        let children = free.map_or(Vec::new(), |free| std::mem::take(&mut self.nodes[free as usize].children));
        let new = Node { parent, owner, len, users: 0, key: 0, same_key: NONE, page: PageId::GONE, children };
        if free.is_some() {
            self.nodes[node as usize] = new;
        } else {
            self.nodes.push(new);
            self.tokens.resize(self.nodes.len() * self.page_len, 0);
        }
        self.tokens[node as usize * self.page_len..][..tokens.len()].copy_from_slice(tokens);
        node
    }

    fn key(&self, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> u64 {
        let mix = |state: u64, word: u64| {
            let state = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        };
        let whose = owner.map_or(mix(1, 0), |Owner { tenant, source }| mix(mix(2, tenant.0), source));
        let key = tokens.iter().fold(mix(whose, u64::from(parent)), |key, token| mix(key, u64::from(*token)));
        (key ^ (key >> 32)) & self.key_bits
    }

    /// Nodes in use besides the root, as far as they are found from there: for the integrity check.
    pub(super) fn in_use(&self) -> Vec<u32> {
        let mut found = vec![ROOT];
        let mut at = 0;
        while at < found.len() && found.len() <= self.nodes.len() {
            found.extend(self.children(found[at]));
            at += 1;
        }
        found.remove(0);
        found
    }

    /// Nodes that there is memory for and that are not in use.
    pub(super) fn unused(&self) -> usize {
        self.free.len()
    }

    /// All nodes that there is memory for, the root included.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
}
