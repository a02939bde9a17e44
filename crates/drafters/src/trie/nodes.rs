//! Trie nodes in one array: twenty bytes each, children as sibling lists.
//!
//! Nearly all lists are short, and the entries of long ones are in one array: scanning lists takes an order of
//! magnitude less memory than a map per node, and little more time. A child that is found or added is put in front of
//! its siblings, so of equally frequent children the one that was seen last comes first. Single nodes are not freed:
//! [`Nodes::prune`] rewrites the array.

use foretoken_speculation::Token;

/// No node.
const NONE: u32 = u32::MAX;
/// Maximum number of children of a node: later ones are not learned. It bounds the time of a draft or an insertion
/// however long texts are, and only matters in contexts so frequent that each continuation is improbable.
pub(super) const FAN_MAX: usize = 256;

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

    /// Both together.
    pub fn total(self) -> u32 {
        self.prompt.saturating_add(self.output)
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

/// Nodes of a trie.
#[derive(Clone, Debug)]
pub(super) struct Nodes(Vec<Node>);

impl Nodes {
    /// The trie of a first token, which is node 0, with counts of 0.
    pub fn new(first: Token) -> Nodes {
        let mut nodes = Nodes(Vec::new());
        nodes.push(first, NONE);
        nodes
    }

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

    /// Counts a node once more, and returns its counts.
    pub fn count(&mut self, node: u32, is_output: bool) -> Counts {
        let counts = &mut self.0[node as usize].counts;
        counts.add(is_output);
        *counts
    }

    /// Adds a node. The capacity grows by half: doubling could leave half of the memory unused.
    fn push(&mut self, token: Token, sibling: u32) -> u32 {
        let node = self.0.len() as u32;
        assert!(node < NONE, "fewer than 2^32 - 1 nodes");
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact((self.0.len() / 2).max(2));
        }
        self.0.push(Node { token, counts: Counts::default(), sibling, child: NONE });
        node
    }

    /// The children of a node, the one added or found last first.
    pub fn children(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let some = |node: u32| (node != NONE).then_some(node);
        std::iter::successors(some(self.node(node).child), move |&child| some(self.node(child).sibling))
    }

    /// The child of a node with this token.
    pub fn child(&self, parent: u32, token: Token) -> Option<u32> {
        self.children(parent).find(|&child| self.0[child as usize].token == token)
    }

    /// The child with this token, added if it is new, and moved in front of its siblings; `None` if the parent has
    /// [`FAN_MAX`] others already.
    pub fn find_or_add(&mut self, parent: u32, token: Token) -> Option<u32> {
        let first = self.0[parent as usize].child;
        let (mut before, mut at, mut fan) = (NONE, first, 0);
        while at != NONE {
            let node = self.0[at as usize];
            if node.token == token {
                if before != NONE {
                    self.0[before as usize].sibling = node.sibling;
                    self.0[at as usize].sibling = first;
                    self.0[parent as usize].child = at;
                }
                return Some(at);
            }
            (before, at, fan) = (at, node.sibling, fan + 1);
        }
        if fan >= FAN_MAX {
            return None;
        }
        let child = self.push(token, first);
        self.0[parent as usize].child = child;
        Some(child)
    }

    /// Keeps the `len` most frequent nodes of the trie; of ties those in front.
    ///
    /// No child is more frequent than its parent, so the kept nodes are a trie; it is rewritten in depth-first order,
    /// so that the nodes of a path are near each other.
    pub fn prune(&mut self, len: usize) {
        if self.len() <= len {
            return;
        }
        let mut counts: Vec<u32> = self.0.iter().map(|node| node.counts.total()).collect();
        let (more, &mut least, _) = counts.select_nth_unstable_by(len - 1, |a, b| b.cmp(a));
        // How many nodes with exactly the least count still fit.
        let mut equals = len - more.iter().filter(|&&count| count > least).count();
        self.rewrite(|node| {
            let count = node.counts.total();
            if count < least || (count == least && equals == 0) {
                return None;
            }
            equals -= usize::from(count == least);
            Some(node.counts)
        });
    }

    /// Halves the counts of outputs and removes nodes that were seen once, as the authors' code does.
    ///
    /// The first token stays, whatever its counts. Counts are whole numbers here, so a node that was seen three times
    /// is removed the next time if it was not seen since; the authors remove it one time later.
    pub fn halve(&mut self) {
        let mut is_first = true;
        self.rewrite(|node| {
            let stays = std::mem::take(&mut is_first) || node.counts.output > 1;
            stays.then_some(Counts { output: node.counts.output / 2, ..node.counts })
        });
    }

    /// Keeps the nodes for which `kept_counts` gives counts, and gives them those; what is below a removed node goes
    /// with it. Nodes are asked in depth-first order, parents first.
    fn rewrite(&mut self, mut kept_counts: impl FnMut(&Node) -> Option<Counts>) {
        // The kept nodes, each with the new number of its parent.
        let mut kept: Vec<(Node, u32)> = Vec::new();
        let mut open = vec![(0, NONE)];
        while let Some((at, parent)) = open.pop() {
            let node = *self.node(at);
            let Some(counts) = kept_counts(&node) else { continue };
            let (new, first) = (kept.len() as u32, open.len());
            kept.push((Node { sibling: NONE, child: NONE, counts, ..node }, parent));
            open.extend(self.children(at).map(|child| (child, new)));
            open[first..].reverse();
        }
        self.0.clear();
        self.0.extend(kept.iter().map(|(node, _)| *node));
        // Each node is put in front of its siblings, the last one first.
        for (new, &(_, parent)) in kept.iter().enumerate().skip(1).rev() {
            self.0[new].sibling = std::mem::replace(&mut self.0[parent as usize].child, new as u32);
        }
    }
}
