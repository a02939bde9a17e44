//! Trie nodes in one array: twenty bytes each, children as sibling lists.
//!
//! A list has few entries nearly everywhere, and where it has many they lie in one array: a scan beats a map per node by
//! an order of magnitude in memory and loses little time. A new child is put in front of its siblings, so the list says
//! which of two equally frequent children was seen later.
//!
//! Left out: where a trie begins (the roots are the owner's), and freeing of single nodes. The owner either takes back
//! the newest node ([`Nodes::pop`]) or writes the array anew ([`Nodes::prune`]).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::Token;

/// No node.
const NONE: u32 = u32::MAX;

/// A map from first tokens to where their tries begin.
pub(super) type Roots = HashMap<Token, u32, BuildHasherDefault<TokenHasher>>;

/// Bytes that a map of roots holds: per place an entry and a control byte.
pub(super) fn roots_bytes(roots: &Roots) -> usize {
    roots.capacity() * (size_of::<(Token, u32)>() + 1)
}

/// One multiplication: tokens are small numbers of a vocabulary, and no adversary chooses the vocabulary.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(u32::from(byte)));
    }

    fn write_u32(&mut self, token: u32) {
        let product = u128::from(self.0 ^ u64::from(token) ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

/// How often a path of tokens was seen, by where it was seen.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// In prompts.
    pub prompt: u32,
    /// In outputs.
    pub output: u32,
}

impl Counts {
    /// Counts one more.
    pub fn add(&mut self, is_output: bool) {
        let count = if is_output { &mut self.output } else { &mut self.prompt };
        *count = count.saturating_add(1);
    }

    /// Takes one back.
    pub fn take(&mut self, is_output: bool) {
        let count = if is_output { &mut self.output } else { &mut self.prompt };
        *count = count.checked_sub(1).expect("only what was counted is taken back");
    }

    /// Both together.
    pub fn total(self) -> u32 {
        self.prompt.saturating_add(self.output)
    }
}

/// The commonest first tokens of several tries: what follows the empty prefix.
///
/// It depends on the counts alone and not on their history: of equally frequent tokens the smaller number comes first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Common {
    /// Most frequent first.
    top: Vec<(Token, Counts)>,
    /// Of all first tokens.
    total: Counts,
}

/// How many of the commonest tokens are known.
const COMMON_MAX: usize = 32;

impl Common {
    /// Of all first tokens with their counts.
    pub fn of(all: impl Iterator<Item = (Token, Counts)>) -> Common {
        let mut top: Vec<(Token, Counts)> = all.collect();
        let sum = |of: fn(&Counts) -> u32| top.iter().fold(0u32, |sum, (_, counts)| sum.saturating_add(of(counts)));
        let total = Counts { prompt: sum(|counts| counts.prompt), output: sum(|counts| counts.output) };
        top.sort_unstable_by_key(Common::rank);
        top.truncate(COMMON_MAX);
        Common { top, total }
    }

    fn rank(entry: &(Token, Counts)) -> (std::cmp::Reverse<u32>, Token) {
        (std::cmp::Reverse(entry.1.total()), entry.0)
    }

    /// This token was counted once more, and is at these counts now.
    pub fn raise(&mut self, token: Token, counts: Counts, is_output: bool) {
        self.total.add(is_output);
        let entry = (token, counts);
        let full = self.top.len() == COMMON_MAX;
        if full && Common::rank(&entry) > Common::rank(&self.top[COMMON_MAX - 1]) {
            return;
        }
        match self.top.iter().position(|(known, _)| *known == token) {
            Some(place) => drop(self.top.remove(place)),
            None if full => drop(self.top.pop()),
            None => {}
        }
        let place = self.top.partition_point(|known| Common::rank(known) < Common::rank(&entry));
        self.top.insert(place, entry);
    }

    /// The commonest tokens, most frequent first.
    pub fn top(&self) -> &[(Token, Counts)] {
        &self.top
    }

    /// Counts of all first tokens together.
    pub fn total(&self) -> Counts {
        self.total
    }
}

/// One token of a path.
#[derive(Copy, Clone, Debug)]
pub(super) struct Node {
    pub token: Token,
    pub counts: Counts,
    sibling: u32,
    child: u32,
}

/// Nodes of one or several tries.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes(Vec<Node>);

impl Nodes {
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<Node>()
    }

    /// A node by its number.
    pub fn node(&self, node: u32) -> &Node {
        &self.0[node as usize]
    }

    /// The counts of a node, to change them.
    pub fn counts_mut(&mut self, node: u32) -> &mut Counts {
        &mut self.0[node as usize].counts
    }

    /// A new node without a parent.
    pub fn root(&mut self, token: Token) -> u32 {
        self.push(token, NONE)
    }

    /// Makes room for as many nodes in all, so that growth by doubling does not go beyond.
    pub fn reserve(&mut self, len_max: usize, more: usize) {
        let (len, capacity) = (self.0.len(), self.0.capacity());
        if capacity < len + more {
            let wanted = (capacity + capacity / 2).min(len_max).max(len + more);
            self.0.reserve_exact(wanted - len);
        }
    }

    fn push(&mut self, token: Token, sibling: u32) -> u32 {
        let node = self.0.len() as u32;
        assert!(node < NONE, "fewer than 2^32 - 1 nodes");
        self.0.push(Node { token, counts: Counts::default(), sibling, child: NONE });
        node
    }

    /// The children of a node, those added or found last first.
    pub fn children(&self, node: u32) -> Children<'_> {
        Children { nodes: &self.0, at: self.0[node as usize].child }
    }

    /// The child of a node with this token.
    pub fn child(&self, parent: u32, token: Token) -> Option<u32> {
        self.children(parent).find(|&child| self.0[child as usize].token == token)
    }

    /// The child with this token, added if it is new; `None` if the parent has `fan_max` others already.
    pub fn enter(&mut self, parent: u32, token: Token, fan_max: usize) -> Option<u32> {
        let mut fan = 0;
        for child in self.children(parent) {
            if self.0[child as usize].token == token {
                return Some(child);
            }
            fan += 1;
        }
        (fan < fan_max).then(|| self.add(parent, token))
    }

    /// The child with this token, added if it is new, and in front of its siblings now.
    pub fn enter_front(&mut self, parent: u32, token: Token) -> u32 {
        let first = self.0[parent as usize].child;
        let (mut before, mut at) = (NONE, first);
        while at != NONE {
            let node = self.0[at as usize];
            if node.token == token {
                if before != NONE {
                    self.0[before as usize].sibling = node.sibling;
                    self.0[at as usize].sibling = first;
                    self.0[parent as usize].child = at;
                }
                return at;
            }
            (before, at) = (at, node.sibling);
        }
        self.add(parent, token)
    }

    fn add(&mut self, parent: u32, token: Token) -> u32 {
        let child = self.push(token, self.0[parent as usize].child);
        self.0[parent as usize].child = child;
        child
    }

    /// Takes back the newest node, whose parent this is.
    ///
    /// # Panics
    ///
    /// Panics if `node` is not the newest, or not the first child of the parent.
    pub fn pop(&mut self, node: u32, parent: Option<u32>) {
        assert!(node as usize + 1 == self.0.len(), "node {node} of {} is not the newest", self.0.len());
        let sibling = self.0[node as usize].sibling;
        if let Some(parent) = parent {
            let child = &mut self.0[parent as usize].child;
            assert!(*child == node, "node {node} does not come first under {parent}, {child} does");
            *child = sibling;
        }
        self.0.pop();
    }

    /// Keeps the `len` most frequent nodes of the trie that begins at node 0; of equals those in front.
    ///
    /// No child is more frequent than its parent, so what stays is a trie; it is written anew in the order of a walk, so
    /// that paths lie together.
    pub fn prune(&mut self, len: usize, scratch: &mut Prune) {
        if self.0.len() <= len {
            return;
        }
        let Prune { counts, nodes, open } = scratch;
        counts.clear();
        counts.extend(self.0.iter().map(|node| node.counts.total()));
        let (more, &mut least, _) = counts.select_nth_unstable_by(len - 1, |a, b| b.cmp(a));
        // How many with exactly the least count still fit.
        let mut equals = len - more.iter().filter(|&&count| count > least).count();
        nodes.clear();
        open.clear();
        open.push((0, NONE));
        // Siblings that stay are linked in the order in which they are met: `last_child` of the new parent.
        let mut last_child: Vec<u32> = Vec::with_capacity(len);
        while let Some((old, parent)) = open.pop() {
            let node = self.0[old as usize];
            if node.sibling != NONE && old != 0 {
                open.push((node.sibling, parent));
            }
            let count = node.counts.total();
            if count < least || (count == least && equals == 0) {
                continue;
            }
            equals -= usize::from(count == least);
            let new = nodes.len() as u32;
            nodes.push(Node { sibling: NONE, child: NONE, ..node });
            last_child.push(NONE);
            if parent != NONE {
                match last_child[parent as usize] {
                    NONE => nodes[parent as usize].child = new,
                    last => nodes[last as usize].sibling = new,
                }
                last_child[parent as usize] = new;
            }
            if node.child != NONE {
                open.push((node.child, new));
            }
        }
        self.0.clear();
        self.0.extend_from_slice(nodes);
    }
}

/// Memory that pruning uses again and again.
#[derive(Clone, Debug, Default)]
pub(super) struct Prune {
    counts: Vec<u32>,
    nodes: Vec<Node>,
    /// Nodes to visit, with the new number of their parent.
    open: Vec<(u32, u32)>,
}

/// A walk over siblings.
pub(super) struct Children<'a> {
    nodes: &'a [Node],
    at: u32,
}

impl Iterator for Children<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let at = (self.at != NONE).then_some(self.at)?;
        self.at = self.nodes[at as usize].sibling;
        Some(at)
    }
}
