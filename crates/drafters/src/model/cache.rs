//! What a draft model has cached of one sequence: tokens for good, and behind them the rows of its last tree.
//!
//! A row is known by the tokens that lead to it, so it is right whatever became of the draft: the longest path of rows
//! that says what the sequence came to say is kept, and the rest forgotten. The tokens cached for good are compared
//! with the sequence as well: they may be a draft themselves, of a draft model that this one drafts for. Left out: the
//! bytes, which are the scorer's.

use std::borrow::Cow;

use crate::scorer::common_prefix;
use crate::{HiddenInput, ScoreAsk, Scorer};
use foretoken_speculation::{Ask, SequenceId, Token};

/// The rows of one sequence in the order in which the scorer has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cached {
    /// The tokens that are cached for good.
    pub ran: Vec<Token>,
    /// The guesses behind them, row by row.
    pub tokens: Vec<Token>,
    /// For each the row that it continues, `None`: the last of the tokens cached for good.
    pub parents: Vec<Option<u32>>,
    /// So many of them have been run. The others are there for a pass to come, and go if it does not.
    pub computed: usize,
    /// A pass began and has not ended: if it never does, what the scorer has beyond the computed rows is not known.
    pub in_pass: bool,
}

impl Cached {
    /// Rows in all.
    pub(crate) fn len(&self) -> usize {
        self.ran.len() + self.tokens.len()
    }

    /// Where nothing is cached, takes over what others have computed of these tokens, but for the last one.
    pub(crate) fn adopt(&mut self, sequence: SequenceId, tokens: &[Token], scorer: &mut impl Scorer) {
        if self.len() == 0 && !self.in_pass {
            let adopted = scorer.adopt(sequence, &tokens[..tokens.len() - 1]);
            self.ran.extend_from_slice(&tokens[..adopted]);
        }
    }

    /// Keeps what agrees with the sequence, leaving at least its last token to be run.
    pub(crate) fn catch_up(&mut self, sequence: SequenceId, tokens: &[Token], scorer: &mut impl Scorer) {
        // A draft that ended in a panic, of whichever sequence, left rows that were never run, or perhaps.
        self.truncate(self.computed);
        if std::mem::take(&mut self.in_pass) {
            let left = scorer.truncate(sequence, self.len());
            self.ran.truncate(left);
            self.truncate(left.saturating_sub(self.ran.len()));
        }
        let tokens = &tokens[..tokens.len() - 1];
        let same = common_prefix(&self.ran, tokens);
        let path = if same < self.ran.len() { Vec::new() } else { self.path(&tokens[same..]) };
        let kept = same + path.len();
        let mut left = kept;
        if path.iter().enumerate().any(|(i, row)| *row as usize != i) {
            scorer.keep_path(sequence, same, &path);
        } else if kept < self.len() {
            left = scorer.truncate(sequence, kept);
        }
        self.ran.truncate(same);
        self.ran.extend_from_slice(&tokens[same..kept]);
        self.ran.truncate(left);
        self.truncate(0);
    }

    /// Forgets the guesses from row `len` on.
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
    pub(crate) fn enter(&mut self, parent: Option<u32>, token: Token) -> u32 {
        self.child(parent, token).unwrap_or_else(|| {
            self.tokens.push(token);
            self.parents.push(parent);
            (self.tokens.len() - 1) as u32
        })
    }

    /// The rows of the longest path of guesses that says what comes next.
    fn path(&self, next: &[Token]) -> Vec<u32> {
        let mut path: Vec<u32> = Vec::new();
        for &token in next {
            let Some(row) = self.child(path.last().copied(), token) else { break };
            path.push(row);
        }
        path
    }

    /// What there is to run. In the first pass of a draft: the tokens of the sequence that are not cached, the last of
    /// which is wanted, then all guesses, wanted too; later the guesses that are not computed.
    pub(crate) fn span<'a>(&'a self, tokens: &'a [Token], first: bool) -> TreeSpan<'a> {
        let (start, computed, guesses) = (self.ran.len(), self.computed, self.tokens.len() as u32);
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

/// A [`ScoreAsk`] with what it borrows.
pub(crate) struct TreeSpan<'a> {
    start: usize,
    tokens: Cow<'a, [Token]>,
    parents: Cow<'a, [Option<u32>]>,
    computed: usize,
    pub wanted: Vec<u32>,
}

impl TreeSpan<'_> {
    /// What is asked of the scorer for this ask.
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
