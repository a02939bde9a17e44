//! The one operation: *score these spans*, and the trait behind which it happens.
//!
//! A span is a run of new tokens of one sequence on top of its cached positions, as a chain or as a tree. The
//! prompt, one decoded token, a draft tree and a draft model's catching up are all spans; nothing here can tell
//! them apart. An executor keeps the bytes of the cache in pages; which pages belong to whom is said by the page
//! tables that come with each span. Logits come back in [`Outputs`], for the rows that were asked for.
//!
//! Left out: sequences' lives (the engine's), and any particular network.

use std::fmt;

/// A token's number in the vocabulary.
pub type Token = u32;

/// A page of the cache: room for a fixed number of positions in every layer of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// The pages of one sequence in one cache group, in order of position.
pub type PageTable = Vec<PageId>;

/// New tokens of one sequence, to be scored on top of what is cached.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Whose tokens they are. Executors that keep nothing but pages ignore it.
    pub sequence: u64,
    /// One page table a cache group, with room for `start + tokens.len()` rows.
    pub tables: &'a [PageTable],
    /// Positions cached before; row i of the span is stored behind them, at `start + i`.
    pub start: usize,
    /// The tokens of the rows.
    pub tokens: &'a [Token],
    /// So many leading rows were computed and stored by earlier passes of the same span, then shorter: they are seen by
    /// the rows that continue them, and not run again. A tree grows this way, a few rows a pass.
    pub computed: usize,
    /// For each row the earlier row of the span that it continues, `None` if it continues the cached positions.
    /// Empty means a chain: each row continues the one before.
    pub parents: &'a [Option<u32>],
    /// Rows of the span whose logits (and hidden states) are wanted, ascending; none of the computed ones.
    pub wanted: &'a [u32],
}

impl Span<'_> {
    /// The row that row `i` continues; `None` for the cached positions.
    pub fn parent(&self, i: usize) -> Option<usize> {
        if self.parents.is_empty() { i.checked_sub(1) } else { self.parents[i].map(|parent| parent as usize) }
    }

    /// Number of leading rows each of which continues the one before: of a chain all.
    pub fn trunk(&self) -> usize {
        if self.parents.is_empty() {
            return self.tokens.len();
        }
        (0..self.parents.len()).take_while(|i| self.parent(*i) == i.checked_sub(1)).count()
    }

    /// Number of ancestors of row `i` within the span; its logical position is `start + depth`.
    pub fn depth(&self, i: usize) -> usize {
        if self.parents.is_empty() {
            return i;
        }
        let (mut depth, mut at) = (0, i);
        while let Some(parent) = self.parent(at) {
            (depth, at) = (depth + 1, parent);
        }
        depth
    }
}

/// Spans of different sequences, to be scored in one pass.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The spans; each sequence at most once.
    pub spans: &'a [Span<'a>],
    /// Layers whose output (the residual stream behind the layer) is wanted for the wanted rows.
    pub hidden_layers: &'a [usize],
}

/// What a pass returns. Rows are in order of the spans, and of `wanted` within a span.
#[derive(Default, Debug)]
pub struct Outputs {
    /// Elements of one row of logits.
    pub vocabulary: usize,
    /// `[wanted rows, vocabulary]`.
    pub logits: Vec<f32>,
    /// For each layer of `hidden_layers`: `[wanted rows, width]`.
    pub hidden: Vec<Vec<f32>>,
}

impl Outputs {
    /// Logits of the `row`th wanted row of the pass.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocabulary..][..self.vocabulary]
    }
}

/// A change of the cache's bytes, all groups at once.
#[derive(Clone, Copy, Debug)]
pub enum CacheEdit<'a> {
    /// Copies the rows at the positions `from` to the positions `to`, `to + 1`, ... of the same sequence. The
    /// positions ascend and none lies before its destination: an accepted path closing its ranks.
    Move {
        /// The sequence's page tables.
        tables: &'a [PageTable],
        /// Where the rows are.
        from: &'a [usize],
        /// Where the first of them goes.
        to: usize,
    },
}

/// One kind of cache, with its own pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Positions a page.
    pub page_len: usize,
    /// Pages there are, numbered from 0.
    pub pages: usize,
}

/// How much an executor can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Tokens there are.
    pub vocabulary: usize,
    /// Positions the network can represent.
    pub context_max: usize,
    /// Rows of one pass.
    pub rows_max: usize,
    /// The cache groups, at least one.
    pub groups: Vec<Group>,
}

/// A network that can be run: the CPU decoder, a toy table, later another machine. Nothing above knows which.
pub trait Executor: Send {
    /// Scores every row of the batch, stores the rows in the cache, and fills `outputs` for the wanted rows.
    ///
    /// # Errors
    /// [`ExecutorError`] if the batch cannot be run; then nothing of it counts as stored.
    fn forward(&mut self, batch: &Batch<'_>, outputs: &mut Outputs) -> Result<(), ExecutorError>;

    /// Changes rows of the cache.
    fn rows(&mut self, edit: CacheEdit<'_>);

    /// How much there is room for.
    fn capacity(&self) -> &Capacity;
}

impl<E: Executor + ?Sized> Executor for Box<E> {
    fn forward(&mut self, batch: &Batch<'_>, outputs: &mut Outputs) -> Result<(), ExecutorError> {
        (**self).forward(batch, outputs)
    }

    fn rows(&mut self, edit: CacheEdit<'_>) {
        (**self).rows(edit);
    }

    fn capacity(&self) -> &Capacity {
        (**self).capacity()
    }
}

/// Why a batch cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutorError {
    /// A token that the network does not have.
    Token {
        /// The token.
        found: Token,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// A position behind the last that the network can represent.
    Position {
        /// The position.
        found: usize,
        /// Positions there are.
        context_max: usize,
    },
    /// More rows than one pass can have.
    Rows {
        /// Rows of the batch.
        found: usize,
        /// Rows there is room for.
        rows_max: usize,
    },
}

impl fmt::Display for ExecutorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token { found, vocabulary } => {
                write!(f, "token: expected a number below {vocabulary} (the vocabulary), found {found}")
            }
            Self::Position { found, context_max } => {
                write!(f, "position: expected at most {} (the context), found {found}", context_max.saturating_sub(1))
            }
            Self::Rows { found, rows_max } => write!(f, "rows of one pass: expected at most {rows_max}, found {found}"),
        }
    }
}

impl std::error::Error for ExecutorError {}

/// Checks a batch against a capacity, as every executor must before it touches its cache.
///
/// # Errors
/// The first thing that does not fit.
///
/// # Panics
/// If a span is malformed (a bug of the caller): a parent that is not an earlier row, a wanted row that does not
/// exist, a page table without room, or a page that there is not.
pub fn check(batch: &Batch<'_>, capacity: &Capacity) -> Result<(), ExecutorError> {
    let computed = batch.spans.iter().find(|span| span.computed > span.tokens.len());
    assert!(computed.is_none(), "span: more rows computed than there are: {computed:?}");
    let rows: usize = batch.spans.iter().map(|span| span.tokens.len() - span.computed).sum();
    if rows > capacity.rows_max {
        return Err(ExecutorError::Rows { found: rows, rows_max: capacity.rows_max });
    }
    for span in batch.spans {
        let len = span.tokens.len();
        assert!(
            span.parents.is_empty() || span.parents.len() == len,
            "span: {len} tokens, {} parents",
            span.parents.len()
        );
        for (i, parent) in span.parents.iter().enumerate() {
            assert!(parent.is_none_or(|parent| (parent as usize) < i), "span: row {i} has parent {parent:?}");
        }
        let new = span.computed..len;
        let wanted = span.wanted.iter().all(|row| new.contains(&(*row as usize)));
        assert!(wanted, "span: wanted rows {:?} of {new:?}", span.wanted);
        assert_eq!(span.tables.len(), capacity.groups.len(), "span: page tables, one a cache group");
        for (table, group) in span.tables.iter().zip(&capacity.groups) {
            let room = table.len() * group.page_len;
            assert!(span.start + len <= room, "span: rows up to {} in pages for {room}", span.start + len);
            let beyond = table.iter().find(|page| page.0 as usize >= group.pages);
            assert!(beyond.is_none(), "span: page {beyond:?} of {}", group.pages);
        }
        if let Some(found) = span.tokens[new.clone()].iter().find(|token| **token as usize >= capacity.vocabulary) {
            return Err(ExecutorError::Token { found: *found, vocabulary: capacity.vocabulary });
        }
        let last = new.map(|i| span.start + span.depth(i)).max().unwrap_or(0);
        if last >= capacity.context_max {
            return Err(ExecutorError::Position { found: last, context_max: capacity.context_max });
        }
    }
    Ok(())
}
