//! Tries by first token: one for each token that begins a branch.
//!
//! The authors' code keeps a dict of trees by token and counts the nodes of each: a capacity per first token bounds the
//! memory by the vocabulary, and no frequent token can displace the branches of others. Each trie here is one array, so
//! adding a branch touches little memory, however large the others are. A full one is pruned to three quarters, so that
//! the time of pruning is spread over the insertions that follow.

use std::collections::{BTreeSet, HashMap};

use crate::trie::nodes::{Counts, Nodes};
use foretoken_speculation::Token;

/// How many of the most frequent first tokens are listed.
const COMMON_MAX: usize = 32;

/// The end of a branch that may still grow: the number of its trie, and its last node.
pub(super) type End = (u32, u32);

/// Tries by first token.
#[derive(Clone, Debug, Default)]
pub(super) struct Tries {
    roots: HashMap<Token, u32>,
    /// Each begins at its node 0.
    tries: Vec<Nodes>,
    /// The most frequent first tokens, of ties the smallest first: what follows the empty prefix.
    common: Vec<(Token, Counts)>,
    /// Counts of all first tokens together.
    total: Counts,
}

impl Tries {
    /// Adds each window of `window` tokens; the last ones are shorter. `capacity`: maximum number of nodes of a trie,
    /// if bounded; a trie that has more loses the least frequent, or, if `halves`, what [`Nodes::halve`] removes, with
    /// which it may still have more.
    pub fn insert_all(
        &mut self,
        text: &[Token],
        window: usize,
        is_output: bool,
        (capacity, halves): (Option<usize>, bool),
    ) {
        for start in 0..text.len() {
            let (first, rest) = (text[start], &text[start + 1..text.len().min(start + window)]);
            let begun = Some(self.begin(first, is_output));
            rest.iter().fold(begun, |end, &token| end.and_then(|end| self.extend(end, token, is_output)));
            let (Some((number, _)), Some(capacity)) = (begun, capacity) else { continue };
            let nodes = &mut self.tries[number as usize];
            if nodes.len() > capacity && !halves {
                nodes.prune((capacity - capacity / 4).max(1));
            }
        }
        // Halved once for each text, not for each window: what a text has just added would be forgotten before it ends.
        let halved = text.iter().filter(|_| halves).collect::<BTreeSet<_>>();
        for number in halved.into_iter().filter_map(|token| self.roots.get(token)) {
            let nodes = &mut self.tries[*number as usize];
            if capacity.is_some_and(|capacity| nodes.len() > capacity) {
                nodes.halve();
            }
        }
    }

    /// Counts the first token of a branch.
    pub fn begin(&mut self, first: Token, is_output: bool) -> End {
        let next = self.tries.len() as u32;
        let number = *self.roots.entry(first).or_insert(next);
        if number == next {
            self.tries.push(Nodes::new(first));
        }
        let counts = self.tries[number as usize].count(0, is_output);
        self.total.add(is_output);
        self.update_common(first, counts);
        (number, 0)
    }

    /// Counts another token of a branch; `None` if too many others follow there already.
    pub fn extend(&mut self, (number, node): End, token: Token, is_output: bool) -> Option<End> {
        let nodes = &mut self.tries[number as usize];
        let child = nodes.find_or_add(node, token)?;
        nodes.count(child, is_output);
        Some((number, child))
    }

    /// Updates the list of the most frequent first tokens for a token whose counts have grown by one.
    fn update_common(&mut self, token: Token, counts: Counts) {
        let rank = |entry: &(Token, Counts)| (std::cmp::Reverse(entry.1.total()), entry.0);
        let (entry, full) = ((token, counts), self.common.len() == COMMON_MAX);
        if full && rank(&entry) > rank(&self.common[COMMON_MAX - 1]) {
            return;
        }
        match self.common.iter().position(|(known, _)| *known == token) {
            Some(known) => drop(self.common.remove(known)),
            None if full => drop(self.common.pop()),
            None => {}
        }
        let at = self.common.partition_point(|known| rank(known) < rank(&entry));
        self.common.insert(at, entry);
    }

    /// The node at which a run of tokens ends, in the trie of its first token.
    pub fn find(&self, run: &[Token]) -> Option<(&Nodes, u32)> {
        let nodes = &self.tries[*self.roots.get(&run[0])? as usize];
        let end = run[1..].iter().try_fold(0, |at, &token| nodes.child(at, token))?;
        Some((nodes, end))
    }

    /// The most frequent first tokens, and the counts of all.
    pub fn common(&self) -> (&[(Token, Counts)], Counts) {
        (&self.common, self.total)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.tries.iter().map(Nodes::len).sum()
    }

    /// Bytes held; a slot of the map takes an entry and a control byte.
    pub fn bytes(&self) -> usize {
        let tries = self.tries.iter().map(Nodes::bytes).sum::<usize>() + self.tries.capacity() * size_of::<Nodes>();
        self.roots.capacity() * (size_of::<(Token, u32)>() + 1) + tries
    }
}
