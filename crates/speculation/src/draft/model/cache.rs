//! What a draft model has cached of one sequence: tokens for good, and behind them the rows of its last tree.
//!
//! A row is known by the tokens that lead to it, so it is right whatever became of the draft: the longest path of rows
//! that says what the sequence came to say is kept, and the rest forgotten. Left out: the bytes, which are the scorer's.

use std::borrow::Cow;

use crate::{ScoreAsk, SequenceId, Token};

/// The rows of one sequence in the order in which the scorer has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cached {
    /// So many first tokens of the sequence are cached for good.
    pub agreed: usize,
    /// The guesses behind them, row by row.
    pub tokens: Vec<Token>,
    /// For each the row that it continues, `None`: the last of the agreed tokens.
    pub parents: Vec<Option<u32>>,
    /// So many of them have been run. The others are there for a pass to come, and go if it does not.
    pub computed: usize,
    /// A pass began and has not ended: if it never does, what the scorer has beyond the computed rows is not known.
    pub in_pass: bool,
}

impl Cached {
    /// Rows in all.
    pub(super) fn len(&self) -> usize {
        self.agreed + self.tokens.len()
    }

    /// Forgets the guesses from row `len` on.
    pub(super) fn truncate_rows(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.parents.truncate(len);
        self.computed = self.computed.min(len);
    }

    /// Forgets last rows that stand for tokens beyond the first `len`; whether there were any.
    pub(super) fn truncate(&mut self, len: usize) -> bool {
        let before = self.len();
        self.truncate_rows(self.computed);
        while self.tokens.last().is_some() && self.agreed + self.depth(self.tokens.len() - 1) > len {
            self.truncate_rows(self.tokens.len() - 1);
        }
        self.agreed = self.agreed.min(len);
        self.len() < before
    }

    /// How many guesses lead to a row, itself included.
    fn depth(&self, row: usize) -> usize {
        std::iter::successors(Some(row as u32), |row| self.parents[*row as usize]).count()
    }

    /// The row of a token after a row, if there is one.
    pub(super) fn child(&self, parent: Option<u32>, token: Token) -> Option<u32> {
        let first = parent.map_or(0, |parent| parent as usize + 1);
        (first..self.tokens.len())
            .find(|&row| self.tokens[row] == token && self.parents[row] == parent)
            .map(|row| row as u32)
    }

    /// Adds a row.
    pub(super) fn push(&mut self, parent: Option<u32>, token: Token) -> u32 {
        self.tokens.push(token);
        self.parents.push(parent);
        (self.tokens.len() - 1) as u32
    }

    /// What there is to run. In the first pass of a draft: the tokens of the sequence that are not cached, the last of
    /// which is wanted, then all guesses, wanted too; later the guesses that are not among the `computed` first ones.
    pub(super) fn span<'a>(&'a self, tokens: &'a [Token], first: bool, computed: usize) -> TreeSpan<'a> {
        let (start, guesses) = (self.agreed, self.tokens.len() as u32);
        if !first {
            let (tokens, parents) = (Cow::Borrowed(&self.tokens[..]), Cow::Borrowed(&self.parents[..]));
            return TreeSpan { start, tokens, parents, computed, wanted: (computed as u32..guesses).collect() };
        }
        let (new, root) = (&tokens[start..], (tokens.len() - start) as u32 - 1);
        if guesses == 0 {
            let (tokens, parents) = (Cow::Borrowed(new), Cow::Borrowed(&[][..]));
            return TreeSpan { start, tokens, parents, computed: 0, wanted: vec![root] };
        }
        let below = self.parents.iter().map(|parent| Some(parent.map_or(root, |parent| root + 1 + parent)));
        let parents = Cow::Owned((0..=root).map(|row| row.checked_sub(1)).chain(below).collect());
        let tokens = Cow::Owned([new, &self.tokens].concat());
        TreeSpan { start, tokens, parents, computed: 0, wanted: (root..=root + guesses).collect() }
    }

    /// The rows of the longest path of guesses that says what comes next.
    pub(super) fn path(&self, next: &[Token]) -> Vec<u32> {
        let mut path: Vec<u32> = Vec::new();
        for &token in next {
            let Some(row) = self.child(path.last().copied(), token) else { break };
            path.push(row);
        }
        path
    }
}

/// A [`ScoreAsk`] with what it borrows.
pub(super) struct TreeSpan<'a> {
    start: usize,
    tokens: Cow<'a, [Token]>,
    parents: Cow<'a, [Option<u32>]>,
    computed: usize,
    pub wanted: Vec<u32>,
}

impl TreeSpan<'_> {
    pub(super) fn ask(&self, sequence: SequenceId) -> ScoreAsk<'_> {
        let TreeSpan { start, tokens, parents, computed, wanted } = self;
        ScoreAsk { sequence, start: *start, tokens, parents, computed: *computed, wanted }
    }
}
