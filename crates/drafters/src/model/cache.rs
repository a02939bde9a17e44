//! The rows that a draft model has cached of one sequence: committed tokens, and after them its last tree.
//!
//! A row is identified by the tokens that lead to it, so it is valid whatever was accepted: the longest path of rows
//! that equals the tokens written since is kept, and the rest is dropped. The committed tokens are compared with the
//! sequence as well, since they may be drafted themselves, by a draft model that this one drafts for. The bytes of the
//! cache are the scorer's.

use std::borrow::Cow;

use crate::scorer::common_prefix;
use crate::{HiddenInput, ScoreAsk, Scorer};
use foretoken_speculation::{Ask, SequenceId, Token};

/// The rows of one sequence in the order in which the scorer has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cached {
    /// The committed tokens: a chain.
    pub committed: Vec<Token>,
    /// The drafted tokens after them, row by row.
    pub tokens: Vec<Token>,
    /// For each drafted token the row that it continues; `None` is the last committed token.
    pub parents: Vec<Option<u32>>,
    /// How many of the drafted tokens have been run. The others are rows of the next pass, and are dropped if there is
    /// none.
    pub computed: usize,
    /// Whether a pass has begun and not ended: if it never ends, the scorer's rows beyond the computed ones are
    /// unknown.
    pub in_pass: bool,
}

impl Cached {
    /// Rows in all.
    pub(crate) fn len(&self) -> usize {
        self.committed.len() + self.tokens.len()
    }

    /// If nothing is cached, adopts rows that other sequences have computed of these tokens, except the last one.
    pub(crate) fn adopt(&mut self, sequence: SequenceId, tokens: &[Token], scorer: &mut impl Scorer) {
        if self.len() == 0 && !self.in_pass {
            let adopted = scorer.adopt(sequence, &tokens[..tokens.len() - 1]);
            self.committed.extend_from_slice(&tokens[..adopted]);
        }
    }

    /// Keeps the rows that agree with the sequence, leaving at least its last token to be run.
    pub(crate) fn catch_up(&mut self, sequence: SequenceId, tokens: &[Token], scorer: &mut impl Scorer) {
        // After a draft that panicked, of any sequence, there may be rows that were never run.
        self.truncate(self.computed);
        if std::mem::take(&mut self.in_pass) {
            let left = scorer.truncate(sequence, self.len());
            self.committed.truncate(left);
            self.truncate(left.saturating_sub(self.committed.len()));
        }
        let tokens = &tokens[..tokens.len() - 1];
        let same = common_prefix(&self.committed, tokens);
        let path = if same < self.committed.len() { Vec::new() } else { self.path(&tokens[same..]) };
        let kept = same + path.len();
        let mut left = kept;
        if path.iter().enumerate().any(|(i, row)| *row as usize != i) {
            scorer.keep_path(sequence, same, &path);
        } else if kept < self.len() {
            left = scorer.truncate(sequence, kept);
        }
        self.committed.truncate(same);
        self.committed.extend_from_slice(&tokens[same..kept]);
        self.committed.truncate(left);
        self.truncate(0);
    }

    /// Forgets the drafted rows from row `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.parents.truncate(len);
        self.computed = self.computed.min(len);
    }

    /// The row of a token after a row, if there is one.
    fn child(&self, parent: Option<u32>, token: Token) -> Option<u32> {
        let first = parent.map_or(0, |parent| parent as usize + 1);
        (first..self.tokens.len())
            .find(|&row| self.tokens[row] == token && self.parents[row] == parent)
            .map(|row| row as u32)
    }

    /// The row of a token after a row, added if it is new.
    pub(crate) fn row_of(&mut self, parent: Option<u32>, token: Token) -> u32 {
        self.child(parent, token).unwrap_or_else(|| self.add_row(parent, token))
    }

    /// Adds a row for a token after a row.
    pub(crate) fn add_row(&mut self, parent: Option<u32>, token: Token) -> u32 {
        self.tokens.push(token);
        self.parents.push(parent);
        (self.tokens.len() - 1) as u32
    }

    /// The rows of the longest path whose tokens are the first of `next`.
    fn path(&self, next: &[Token]) -> Vec<u32> {
        let mut path: Vec<u32> = Vec::new();
        for &token in next {
            let Some(row) = self.child(path.last().copied(), token) else { break };
            path.push(row);
        }
        path
    }

    /// The span to run. In the first pass of a draft: the tokens of the sequence that are not cached, of which the last
    /// one's logits are wanted, then all drafted tokens, wanted too; later the drafted tokens that are not computed.
    pub(crate) fn span<'a>(&'a self, tokens: &'a [Token], first: bool) -> TreeSpan<'a> {
        let (start, computed, guesses) = (self.committed.len(), self.computed, self.tokens.len() as u32);
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
}

/// The data that a [`ScoreAsk`] borrows.
pub(crate) struct TreeSpan<'a> {
    start: usize,
    tokens: Cow<'a, [Token]>,
    parents: Cow<'a, [Option<u32>]>,
    computed: usize,
    pub wanted: Vec<u32>,
}

impl TreeSpan<'_> {
    /// The scorer's ask for a drafter's ask.
    pub(crate) fn ask_of(&self, ask: &Ask<'_>) -> ScoreAsk<'_> {
        self.ask(ask.sequence, ask.written_len)
    }

    /// `certain`: as [`ScoreAsk::certain`].
    pub(crate) fn ask(&self, sequence: SequenceId, certain: usize) -> ScoreAsk<'_> {
        let TreeSpan { start, tokens, parents, computed, wanted } = self;
        let (start, computed, hidden_in) = (*start, *computed, HiddenInput::None);
        ScoreAsk { sequence, start, tokens, parents, computed, wanted, certain, hidden_in }
    }
}
