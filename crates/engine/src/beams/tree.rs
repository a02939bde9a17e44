//! The rows of a beam search behind the text that all hypotheses share: a tree, in the order in which they were added.
//!
//! A row is a token and the row that it continues. The rows are those of one span that grows from pass to pass
//! ([`foretoken_model::Span::computed`]): the first ones are computed and stay in the cache, the last ones are those
//! whose logits the next pass yields. A hypothesis that branches has two children, and one that is dropped leaves rows
//! behind that nothing continues. When these are too many, the rows that are left are moved together
//! ([`BeamTree::compact`]), and rows that all hypotheses share become text.

use foretoken_speculation::Token;

/// Rows that nothing continues are removed when they are more than half of the others and more than this.
const DEAD_ROWS: usize = 16;
/// Rows that all hypotheses share become text when they are more than this.
const SHARED_ROWS: usize = 32;

/// The rows of a beam search.
#[derive(Clone, Debug, Default)]
pub(crate) struct BeamTree {
    tokens: Vec<Token>,
    /// `None`: it continues the shared text.
    parents: Vec<Option<u32>>,
    /// How many of the first rows are computed and cached.
    computed: usize,
    /// The first row whose logits are wanted.
    wanted_from: usize,
}

/// What a compaction does to the cache and the text. Rows are numbered as before it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Compaction {
    /// The rows to move, ascending.
    pub(crate) moved: Vec<usize>,
    /// The row to which the first of them goes.
    pub(crate) to: usize,
    /// The tokens of the first rows, which are removed from the tree and continue the shared text.
    pub(crate) shared: Vec<Token>,
}

impl BeamTree {
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub(crate) fn parents(&self) -> &[Option<u32>] {
        &self.parents
    }

    /// How many of the first rows are computed.
    pub(crate) fn computed(&self) -> usize {
        self.computed
    }

    /// The first row whose logits are wanted; they are wanted of all rows from there on.
    pub(crate) fn wanted_from(&self) -> usize {
        self.wanted_from
    }

    /// Sets how many of the first rows are computed.
    pub(crate) fn set_computed(&mut self, computed: usize) {
        assert!(computed <= self.len(), "{computed} rows computed of {}", self.len());
        self.computed = computed;
    }

    /// From here on rows are added whose logits are wanted.
    pub(crate) fn want_from_here(&mut self) {
        self.wanted_from = self.len();
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, parent: Option<u32>, token: Token) -> u32 {
        self.tokens.push(token);
        self.parents.push(parent);
        (self.len() - 1) as u32
    }

    /// The row of this token after a row, among those whose logits are wanted.
    pub(crate) fn child(&self, parent: Option<u32>, token: Token) -> Option<u32> {
        let rows = self.wanted_from..self.len();
        rows.into_iter().find(|row| self.parents[*row] == parent && self.tokens[*row] == token).map(|row| row as u32)
    }

    /// For each row how many of these leaves it leads to.
    fn leaves_below(&self, leaves: &[u32]) -> Vec<usize> {
        let mut counts = vec![0; self.len()];
        leaves.iter().for_each(|leaf| counts[*leaf as usize] += 1);
        for row in (0..self.len()).rev() {
            if let Some(parent) = self.parents[row] {
                counts[parent as usize] += counts[row];
            }
        }
        counts
    }

    /// Whether many rows lead to none of these leaves, or to all of them. So a row is moved a few times at most.
    pub(crate) fn is_sparse(&self, leaves: &[u32]) -> bool {
        let counts = self.leaves_below(leaves);
        let dead = counts.iter().filter(|count| **count == 0).count();
        let shared = counts.iter().filter(|count| **count == leaves.len()).count();
        dead > DEAD_ROWS && dead > (self.len() - dead) / 2 || shared > SHARED_ROWS
    }

    /// Removes the rows that lead to none of these leaves, and those that all lead through, and renumbers the leaves.
    /// The rows that are left keep their order.
    pub(crate) fn compact(&mut self, leaves: &mut [u32]) -> Compaction {
        let counts = self.leaves_below(leaves);
        let alive: Vec<usize> = (0..self.len()).filter(|row| counts[*row] > 0).collect();
        // A row whose logits are wanted stays, and so does one that is not computed.
        let settled = self.computed.min(self.wanted_from);
        let is_shared = |row: &&usize| counts[**row] == leaves.len() && **row < settled;
        // All rows that lead to all leaves come before every other row that leads to one.
        let shared = alive.iter().take_while(is_shared).count();
        let new: Vec<Option<u32>> = {
            let mut new = vec![None; self.len()];
            alive[shared..].iter().enumerate().for_each(|(to, from)| new[*from] = Some(to as u32));
            new
        };
        let in_cache = alive.iter().take_while(|row| **row < self.computed).count();
        let to = alive[..in_cache].iter().enumerate().take_while(|(to, from)| to == *from).count();
        let compaction = Compaction {
            moved: alive[to..in_cache].to_vec(),
            to,
            shared: alive[..shared].iter().map(|row| self.tokens[*row]).collect(),
        };
        self.wanted_from = alive.iter().take_while(|row| **row < self.wanted_from).count() - shared;
        self.computed = in_cache - shared;
        self.parents = alive[shared..].iter().map(|row| self.parents[*row].and_then(|up| new[up as usize])).collect();
        self.tokens = alive[shared..].iter().map(|row| self.tokens[*row]).collect();
        leaves.iter_mut().for_each(|leaf| *leaf = new[*leaf as usize].expect("a leaf is never shared"));
        compaction
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_nothing_continues_are_removed_and_shared_ones_become_text() {
        let mut tree = BeamTree::default();
        let root = tree.add(None, 10);
        let dead = tree.add(None, 11);
        let shared = tree.add(Some(root), 12);
        tree.add(Some(dead), 13);
        let left = tree.add(Some(shared), 14);
        let right = tree.add(Some(shared), 15);
        tree.set_computed(tree.len());
        tree.want_from_here();
        let mut leaves = [tree.add(Some(right), 16), tree.add(Some(right), 17), tree.add(Some(left), 18)];
        let compaction = tree.compact(&mut leaves);
        assert_eq!(compaction, Compaction { moved: vec![2, 4, 5], to: 1, shared: vec![10, 12] });
        assert_eq!((tree.tokens(), leaves), (&[14, 15, 16, 17, 18][..], [2, 3, 4]));
        assert_eq!(tree.parents(), [None, None, Some(1), Some(1), Some(0)]);
        assert_eq!((tree.computed(), tree.wanted_from()), (2, 2));
        assert_eq!((tree.child(Some(1), 17), tree.child(None, 14)), (Some(3), None));
        // Once more changes nothing.
        let again = tree.compact(&mut leaves);
        assert_eq!((again.moved.len(), again.shared.len(), tree.len()), (0, 0, 5));
    }

    #[test]
    fn one_leaf_leaves_one_row() {
        let mut tree = BeamTree::default();
        let first = tree.add(None, 1);
        tree.add(None, 2);
        let third = tree.add(Some(first), 3);
        tree.set_computed(3);
        tree.want_from_here();
        let mut leaves = [tree.add(Some(third), 4)];
        let compaction = tree.compact(&mut leaves);
        assert_eq!(compaction, Compaction { moved: vec![2], to: 1, shared: vec![1, 3] });
        assert_eq!((tree.tokens(), leaves, tree.computed()), (&[4][..], [0], 0));
    }
}
