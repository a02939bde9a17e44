//! The radix tree of cached prefixes: which tokens the rows of a page were computed from.
//!
//! Each cache group of rows has a tree of its own. A node stands for one page length of tokens after those of its
//! parent, and has their page, or none if it was released or evicted. It belongs to a tenant, or is public if its
//! tokens were declared public. So two nodes are the same prefix only if all their ancestors are. A node is looked up
//! by a hash of its parent, its owner and its tokens, which are then compared, since different ones may have the same
//! hash. The last page of a sequence that ended may be partly filled; its node is a leaf with fewer tokens.
//!
//! The children of a node are sorted by owner and tokens, so that the child with the most leading tokens in common with
//! a sequence is found by binary search, however many there are.
//!
//! A node is removed when it has no page and no child, and no sequence continues it.

use std::collections::HashMap;

use foretoken_model::PageId;
use foretoken_speculation::Token;

use super::Owner;
use super::pool::NONE;
use crate::faults::{Fault, is_made};

/// The empty prefix.
pub(super) const ROOT: u32 = 0;

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) parent: u32,
    /// `None`: public.
    pub(super) owner: Option<Owner>,
    /// How many tokens it has: a page length or fewer.
    pub(super) len: u32,
    /// How many sequences have it as their last node.
    pub(super) users: u32,
    /// The hash by which it is looked up.
    key: u64,
    /// The next node with the same key.
    same_key: u32,
    /// [`PageId::GONE`] if it has none.
    pub(super) page: PageId,
    /// Sorted by owner, then by tokens, then by number.
    children: Vec<u32>,
}

/// The tree of the prefixes of one cache group.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    page_len: usize,
    nodes: Vec<Node>,
    /// Nodes that are not in use.
    free: Vec<u32>,
    /// `page_len` for each node.
    tokens: Vec<Token>,
    /// The first node of each key.
    index: HashMap<u64, u32>,
    /// The bits of a key that are used: fewer in a test, so that different tokens have the same key.
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
            let found = self.node(node);
            if (found.parent, found.owner) == (parent, owner) && (self.tokens(node) == tokens || by_hash_alone) {
                return Some(node);
            }
            at = (found.same_key != NONE).then_some(found.same_key);
        }
        None
    }

    /// The children of a node, in order.
    pub(super) fn children(&self, parent: u32) -> &[u32] {
        &self.node(parent).children
    }

    /// The key by which children are sorted.
    fn order(&self, node: u32) -> (Option<Owner>, &[Token], u32) {
        (self.node(node).owner, self.tokens(node), node)
    }

    /// Whether the children of a node are sorted.
    pub(super) fn is_in_order(&self, parent: u32) -> bool {
        self.children(parent).is_sorted_by(|a, b| self.order(*a) < self.order(*b))
    }

    /// The child with the most leading tokens in common, at least one, among the children of this owner that have a
    /// page; and how many.
    pub(super) fn nearest_child(&self, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> Option<(u32, usize)> {
        let children = self.children(parent);
        let (before, after) =
            children.split_at(children.partition_point(|node| self.order(*node) < (owner, tokens, 0)));
        let agree = |node: &u32| {
            let found = if self.node(*node).owner == owner { self.tokens(*node) } else { &[] };
            (*node, found.iter().zip(tokens).take_while(|(a, b)| a == b).count())
        };
        // The further away in the sorted list, the fewer tokens are in common.
        let nearest = |found: &mut dyn Iterator<Item = (u32, usize)>| {
            found.take_while(|(_, agree)| *agree > 0).find(|(node, _)| self.page(*node) != PageId::GONE)
        };
        let found = [nearest(&mut after.iter().map(agree)), nearest(&mut before.iter().rev().map(agree))];
        found.into_iter().flatten().max_by_key(|(_, agree)| *agree)
    }

    /// Adds a child without a page. Its tokens are those of a page, or fewer.
    pub(super) fn insert(&mut self, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> u32 {
        let node = self.make(parent, owner, tokens);
        let at = self.child_index(node);
        self.nodes[parent as usize].children.insert(at, node);
        if tokens.len() == self.page_len {
            let key = self.key(parent, owner, tokens);
            let same_key = self.index.insert(key, node).unwrap_or(NONE);
            let new = &mut self.nodes[node as usize];
            (new.key, new.same_key) = (key, same_key);
        }
        node
    }

    /// The index of a node among the children of its parent, or the one at which it has to be inserted.
    fn child_index(&self, node: u32) -> usize {
        self.children(self.node(node).parent).partition_point(|other| self.order(*other) < self.order(node))
    }

    /// Notes that one more sequence continues this node.
    pub(super) fn use_node(&mut self, node: u32) {
        self.nodes[node as usize].users += 1;
    }

    /// Notes that one sequence fewer continues this node.
    pub(super) fn leave_node(&mut self, node: u32) {
        self.nodes[node as usize].users -= 1;
        self.prune(node);
    }

    /// Removes a node if it is not needed any more, and then those of its ancestors that are not.
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
        let at = self.child_index(node);
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

    /// Makes a node that is neither in the index nor among its parent's children yet.
    fn make(&mut self, parent: u32, owner: Option<Owner>, tokens: &[Token]) -> u32 {
        let free = self.free.pop();
        let node = free.unwrap_or(self.nodes.len() as u32);
        let len = tokens.len() as u32;
        // The node's empty list of children is reused for its memory.
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
        let owner = owner.map_or(mix(1, 0), |Owner { tenant, source }| mix(mix(2, tenant.0), source));
        let key = tokens.iter().fold(mix(owner, u64::from(parent)), |key, token| mix(key, u64::from(*token)));
        (key ^ (key >> 32)) & self.key_bits
    }

    /// The nodes that are reachable from the root, without it: for the integrity check.
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

    /// How many nodes have memory and are not in use.
    pub(super) fn unused(&self) -> usize {
        self.free.len()
    }

    /// How many nodes have memory, the root included.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
}
