//! Retrieval by frequency: the authors' own rule (Zhao et al. 2024, section 4.3.2), beside the one of `retrieve`.
//!
//! The branches that follow the longest prefix are taken, and if they have fewer nodes than a branch has tokens, those
//! of the next shorter prefix instead. Their nodes are chosen by how often they were seen, one occurrence in the
//! prompt before any number of them in outputs. What the paper does not say is as in its authors' code: if there are
//! more nodes than rows, half of the rows are kept for the most frequent nodes of outputs, and rows are filled branch
//! by branch, the most frequent branch first, so of nodes that were seen equally often those of whole branches are
//! taken and not the first tokens of many. (In the code as it was published, nodes of the prompt alone are left out
//! where there are more nodes than rows and enough of them of outputs, by a slip in its counting; not here.)
//!
//! A node has one count for all tries, those of the sequence and those that it may see, as in the authors' single trie.
//! The authors estimate no probabilities; a node's part of its siblings' occurrences stands for one, so that budgets
//! have something to go by. Of siblings seen equally often the latest comes first, and the sequence's own.

use crate::trie::nodes::{Counts, Nodes};
use crate::trie::options::{BranchSource, Layout, TrieOptions};
use crate::trie::tries::Tries;
use foretoken_speculation::{Ask, Evidence, NodeId, Proposal, Token};

/// A node of the branches that follow a prefix, which may be in several tries.
struct Branch {
    token: Token,
    depth: usize,
    /// How much it was seen, at most as much as what it follows: the last tokens of a prompt are no output, but what
    /// follows them is.
    weight: f32,
    /// Occurrences in outputs, at most those of what it follows.
    outputs: u32,
    /// The part of its siblings' weight that it has.
    share: f32,
    /// The range of its places in the tries.
    places: std::ops::Range<usize>,
    /// The range of its children among all nodes, the most frequent first.
    children: std::ops::Range<usize>,
}

/// All nodes that follow a prefix, parents before children.
struct Branches<'a> {
    nodes: Vec<Branch>,
    /// The first tokens, the most frequent first.
    first: std::ops::Range<usize>,
    /// Where each node is in the tries, and whether these are the sequence's own.
    places: Vec<(bool, &'a Nodes, u32)>,
}

impl<'a> Branches<'a> {
    /// What follows these places, down to the length of a branch.
    fn below(options: &TrieOptions, places: Vec<(bool, &'a Nodes, u32)>) -> Branches<'a> {
        let matched = 0..places.len();
        let mut branches = Branches { nodes: Vec::new(), first: 0..0, places };
        branches.first = branches.add_children(options, matched, 1, (f32::INFINITY, u32::MAX));
        let mut at = 0;
        while let Some(Branch { places, depth, weight, outputs, .. }) = branches.nodes.get(at) {
            if *depth < options.branch_length {
                let (places, depth, most) = (places.clone(), depth + 1, (*weight, *outputs));
                branches.nodes[at].children = branches.add_children(options, places, depth, most);
            }
            at += 1;
        }
        branches
    }

    /// Adds the tokens that follow at these places and were seen where branches are retrieved from. `most`: weight and
    /// outputs of what they follow.
    fn add_children(
        &mut self,
        options: &TrieOptions,
        places: std::ops::Range<usize>,
        depth: usize,
        most: (f32, u32),
    ) -> std::ops::Range<usize> {
        let mut found: Vec<(Token, usize, bool, &'a Nodes, u32)> = Vec::new();
        for &(is_own, nodes, at) in &self.places[places] {
            let order = found.len();
            let children = nodes.children(at).enumerate();
            found.extend(children.map(|(i, child)| (nodes.node(child).token, order + i, is_own, nodes, child)));
        }
        found.sort_unstable_by_key(|&(token, order, ..)| (token, order));
        // Each token with its first place in the order of the tries, by which ties are decided.
        let mut children: Vec<(usize, Branch)> = Vec::new();
        for group in found.chunk_by(|a, b| a.0 == b.0) {
            let from = self.places.len();
            let (mut weight, mut outputs) = (0.0, 0);
            for &(_, _, is_own, nodes, node) in group {
                let counts: Counts = nodes.node(node).counts;
                weight += options.weight(counts, is_own);
                outputs += counts.output;
                self.places.push((is_own, nodes, node));
            }
            let (weight, outputs) = (weight.min(most.0), outputs.min(most.1));
            let (token, order, ..) = group[0];
            let places = from..self.places.len();
            let branch = Branch { token, depth, weight, outputs, share: 0.0, places, children: 0..0 };
            children.extend((weight > 0.0).then_some((order, branch)));
        }
        children.sort_unstable_by(|(a, x), (b, y)| y.weight.total_cmp(&x.weight).then(a.cmp(b)));
        let total: f32 = children.iter().map(|(_, child)| child.weight).sum();
        let from = self.nodes.len();
        self.nodes.extend(children.into_iter().map(|(_, child)| Branch { share: child.weight / total, ..child }));
        from..self.nodes.len()
    }

    /// Tokens of the branch that goes on with the most frequent token each time.
    fn most_frequent_len(&self) -> usize {
        let next =
            |siblings: &std::ops::Range<usize>| siblings.clone().next().map(|at| self.nodes[at].children.clone());
        std::iter::successors(Some(self.first.clone()), next).count() - 1
    }

    /// Numbers of all nodes branch by branch, the most frequent branch first.
    fn by_branch(&self) -> Vec<usize> {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut open: Vec<usize> = self.first.clone().rev().collect();
        while let Some(at) = open.pop() {
            order.push(at);
            open.extend(self.nodes[at].children.clone().rev());
        }
        order
    }

    /// Which nodes get one of the rows. A node is seen at least as often as what follows it, so whole paths are chosen.
    fn chosen(&self, options: &TrieOptions, rows: usize) -> Vec<bool> {
        let mut is_chosen = vec![self.nodes.len() <= rows; self.nodes.len()];
        if self.nodes.len() > rows {
            let mut order = self.by_branch();
            let mut left = rows;
            if options.source == BranchSource::Mix {
                // Sorting keeps the order of nodes that were seen equally often.
                order.sort_by_key(|at| std::cmp::Reverse(self.nodes[*at].outputs));
                for at in order.iter().filter(|at| self.nodes[**at].outputs > 0).take(rows / 2) {
                    (is_chosen[*at], left) = (true, left - 1);
                }
                order = self.by_branch();
            }
            order.sort_by(|a, b| self.nodes[*b].weight.total_cmp(&self.nodes[*a].weight));
            order.retain(|at| !is_chosen[*at]);
            order.iter().take(left).for_each(|at| is_chosen[*at] = true);
        }
        is_chosen
    }
}

/// Offers the most frequent branches. `own`: the tries of the sequence; `shared`: the others that it may see.
pub(super) fn offer<'a>(
    options: &TrieOptions,
    ask: &mut Ask<'_>,
    own: &'a Tries,
    shared: impl Iterator<Item = &'a Tries> + Clone,
) {
    let enough = if options.layout == Layout::One { options.branch_length / 2 } else { options.branch_length };
    let mut branches: Option<Branches<'_>> = None;
    for prefix_len in (options.prefix_min.max(1)..=options.prefix_max.min(ask.tokens.len())).rev() {
        let run = &ask.tokens[ask.tokens.len() - prefix_len..];
        let tries = [(true, own)].into_iter().chain(shared.clone().map(|tries| (false, tries)));
        let places = tries.filter_map(|(is_own, tries)| tries.find(run).map(|(nodes, at)| (is_own, nodes, at)));
        let found = Branches::below(options, places.collect());
        let len = if options.layout == Layout::One { found.most_frequent_len() } else { found.nodes.len() };
        branches = Some(found);
        // With the token that they follow.
        if len + 1 >= enough {
            break;
        }
    }
    if let Some(branches) = branches {
        Filling::new(options, ask, &branches).fill(ask);
    }
}

/// A draft that is filled branch by branch.
struct Filling<'a, 'b> {
    options: &'a TrieOptions,
    branches: &'a Branches<'b>,
    is_chosen: Vec<bool>,
    rows_left: usize,
}

impl<'a, 'b> Filling<'a, 'b> {
    fn new(options: &'a TrieOptions, ask: &Ask<'_>, branches: &'a Branches<'b>) -> Filling<'a, 'b> {
        let rows = options.nodes_max.min(ask.limits.nodes_max);
        Filling { options, branches, is_chosen: branches.chosen(options, rows), rows_left: rows }
    }

    fn fill(&mut self, ask: &mut Ask<'_>) {
        let gain_min = ask.gain_min(self.options.gain_min);
        let mut last = None;
        // Nodes to be offered, the next one last: number, parent in the draft, gain of the path to the parent.
        let mut open: Vec<(usize, Option<NodeId>, f32)> = Vec::new();
        self.open(&mut open, self.branches.first.clone(), None, 1.0);
        while let Some((at, parent, gain)) = open.pop() {
            let Branch { token, depth, share, ref children, .. } = self.branches.nodes[at];
            if !self.is_chosen[at] || gain * share < gain_min {
                continue; // and so is nothing of what follows it
            }
            // In the parallel layout a branch that forks off repeats the tokens before.
            let forks = self.options.layout == Layout::Par && parent != last;
            let rows = if forks { depth } else { 1 };
            if rows > self.rows_left || !ask.has_room_for(parent, token) {
                return;
            }
            self.rows_left -= rows;
            let evidence = Evidence::estimate(share);
            let node = ask.tree.suggest(parent, token, Proposal::Point, ask.source, evidence);
            last = Some(node);
            if ask.is_confident(share, gain * share) {
                self.open(&mut open, children.clone(), Some(node), gain * share);
            }
        }
    }

    /// Adds siblings to the nodes to be offered.
    fn open(
        &self,
        open: &mut Vec<(usize, Option<NodeId>, f32)>,
        siblings: std::ops::Range<usize>,
        parent: Option<NodeId>,
        gain: f32,
    ) {
        let count = if self.options.layout == Layout::One { 1 } else { usize::MAX };
        let siblings = siblings.start..siblings.end.min(siblings.start.saturating_add(count));
        open.extend(siblings.map(|at| (at, parent, gain)).rev());
    }
}
