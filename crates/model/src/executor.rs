//! The executor: the trait that runs a batch, and changes of its cache.
//!
//! An executor keeps the bytes of the cache in pages, and does not know to which sequence they belong. It may be this
//! machine's CPU, a table in a test, or a device or another machine that can be lost, so every operation on it can
//! fail.
//!
//! The engine allocates the pages; `capacity` describes how much an executor can hold.

use std::fmt;
use std::ops::Range;

use crate::batch::{Batch, PageTable, Span, Token};
use crate::capacity::{Capacity, Group};
use crate::outputs::Outputs;

/// A change of the cache's bytes, in all groups at once.
#[derive(Clone, Debug)]
pub enum CacheEdit<'a> {
    /// Copies the rows at the positions `from` to the positions `to`, `to + 1`, ... of the same sequence. The positions
    /// ascend and none lies before its destination: this compacts an accepted path.
    Move {
        /// The sequence's page tables.
        tables: &'a [PageTable],
        /// The positions of the rows.
        from: &'a [usize],
        /// The position to which the first of them goes.
        to: usize,
    },
    /// Copies rows of one sequence to the same positions of another, as for a shared prefix. Later rows see the same
    /// bits as if the rows had been computed again. Positions for which both have the same page stay unchanged. In a
    /// group of states, if `to` and `from` have different slots, the slot is copied: the state, and the inputs after it
    /// that lie before `positions.end`, which is no earlier than the position of the state and no later than the last
    /// input. If both have the same slot, the sequence that had it has passed it on to the other one. If only states
    /// are copied, `positions` is empty.
    Copy {
        /// Page tables of the sequence that has the rows.
        from: &'a [PageTable],
        /// Page tables of the sequence that gets them, with pages for the positions.
        to: &'a [PageTable],
        /// The positions of the rows.
        positions: Range<usize>,
    },
}

/// Rows of one cache group, for saving and loading; in a group of states, a state and the inputs after it.
#[derive(Clone, Debug)]
pub struct CacheRows<'a> {
    /// The group's number.
    pub group: usize,
    /// The sequence's page table in this group.
    pub table: &'a PageTable,
    /// The positions of the rows. For a state they are the positions of the inputs after it, so the state has advanced
    /// to their start.
    pub positions: Range<usize>,
}

/// The size of saved rows of a cache group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedBytes {
    /// Number of bytes of the state, which comes first; 0 if there is none.
    pub state: usize,
    /// Number of bytes of each position.
    pub row: usize,
}

impl SavedBytes {
    /// Number of bytes of the state and this many positions.
    pub fn of(&self, positions: usize) -> usize {
        self.state.saturating_add(positions.saturating_mul(self.row))
    }
}

/// The input of an encoder for a sequence, and the pages of its rows, which the sequence's rows see by cross attention.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its tokens, at least one.
    pub tokens: &'a [Token],
    /// Its pages, in order of position.
    pub table: &'a PageTable,
    /// Whether its rows are already computed: a sequence with the same source and the same pages was opened before.
    pub is_computed: bool,
}

/// The weights that a pass read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightsRead {
    /// Number of bytes of the matrices; 0 if unknown.
    pub bytes: usize,
    /// Number of distinct experts of all layers; 0 if there are none or it is unknown.
    pub experts: usize,
    /// How many of these experts had to be packed by the pass first, which takes longer than reading them.
    pub packed: usize,
}

/// What a process has sent to the other processes that compute the network with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of messages; a message to several processes counts for each.
    pub messages: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl std::ops::Sub for Sent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { messages: self.messages - before.messages, bytes: self.bytes - before.bytes }
    }
}

/// A network that can be run: by the CPU decoder, by a table in tests, perhaps later by another machine. The engine
/// does not know which it is.
///
/// A sequence is open from [`open`](Self::open) to [`release`](Self::release); its spans are run only in between. A
/// sequence that is preempted and continued later is released and opened again. Commits are not announced: the rows
/// before a span's start are committed.
pub trait Executor: Send {
    /// Begins a sequence, or continues one that was released. `source` is the input of its encoder, if the network has
    /// one; its rows are computed now, unless they are already. An executor without a state per sequence does nothing.
    ///
    /// # Errors
    /// [`ExecutorError`] if it cannot be done; then the sequence is not open, and no further rows of its source are
    /// computed.
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError>;

    /// Ends a sequence until it is opened again. Its pages and those of its source return to the engine, which may give
    /// them to other sequences.
    fn release(&mut self, sequence: u64);

    /// Scores every row of the batch and stores the rows in the cache; [`outputs`](Self::outputs) then returns the
    /// results.
    ///
    /// # Errors
    /// [`ExecutorError`] if the batch cannot be run; then none of its rows counts as stored.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError>;

    /// The outputs of the latest pass for its wanted rows, valid until the next pass. Changes of the cache do not
    /// affect them. They are undefined before the first pass and after one that failed.
    fn outputs(&self) -> &dyn Outputs;

    /// Changes rows of the cache.
    ///
    /// # Errors
    /// [`ExecutorError`] if it cannot be done. Then the rows that were to be written are undefined, and all others
    /// unchanged.
    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError>;

    /// How much the executor can hold.
    fn capacity(&self) -> &Capacity;

    /// The weights that the latest successful pass read: of two passes with equally many rows, the one that reads more
    /// takes longer. By default they are unknown; then the cost of a pass is estimated by its rows alone.
    fn weights_read(&self) -> WeightsRead {
        WeightsRead::default()
    }

    /// What this process sent to others for the latest successful pass; nothing if it computes alone.
    fn sent(&self) -> Sent {
        Sent::default()
    }

    /// The size of what [`save_rows`](Self::save_rows) writes for a cache group; `None` if this executor cannot save
    /// rows.
    fn saved_bytes(&self, _group: usize) -> Option<SavedBytes> {
        None
    }

    /// Appends rows of the cache as bytes, position by position, in the executor's own format, which depends neither on
    /// pages nor on rows of other sequences.
    ///
    /// # Errors
    /// [`ExecutorError`] if it cannot be done; then the appended bytes are undefined.
    fn save_rows(&self, _rows: CacheRows<'_>, _out: &mut Vec<u8>) -> Result<(), ExecutorError> {
        Err(ExecutorError::Failed { message: "rows of this cache cannot be saved".to_string() })
    }

    /// Writes rows that were saved from the same network, run in the same way. Later rows see the same bits as if the
    /// rows had been computed.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    ///
    /// # Panics
    /// If the number of bytes differs from that of [`saved_bytes`](Self::saved_bytes).
    fn load_rows(&mut self, _rows: CacheRows<'_>, _bytes: &[u8]) -> Result<(), ExecutorError> {
        Err(ExecutorError::Failed { message: "rows of this cache cannot be loaded".to_string() })
    }
}

impl<E: Executor + ?Sized> Executor for Box<E> {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        (**self).open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        (**self).release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        (**self).forward(batch)
    }

    fn outputs(&self) -> &dyn Outputs {
        (**self).outputs()
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        (**self).rows(edit)
    }

    fn capacity(&self) -> &Capacity {
        (**self).capacity()
    }

    fn weights_read(&self) -> WeightsRead {
        (**self).weights_read()
    }

    fn sent(&self) -> Sent {
        (**self).sent()
    }

    fn saved_bytes(&self, group: usize) -> Option<SavedBytes> {
        (**self).saved_bytes(group)
    }

    fn save_rows(&self, rows: CacheRows<'_>, out: &mut Vec<u8>) -> Result<(), ExecutorError> {
        (**self).save_rows(rows, out)
    }

    fn load_rows(&mut self, rows: CacheRows<'_>, bytes: &[u8]) -> Result<(), ExecutorError> {
        (**self).load_rows(rows, bytes)
    }
}

/// Why an executor failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutorError {
    /// A token that the network does not have.
    Token {
        /// The token.
        found: Token,
        /// Number of tokens in the vocabulary.
        vocabulary: usize,
    },
    /// A position after the last that the network can represent.
    Position {
        /// The position.
        found: usize,
        /// Number of positions.
        context_max: usize,
    },
    /// More rows than one pass can have.
    Rows {
        /// Number of rows of the batch.
        found: usize,
        /// Maximum number of rows of a pass.
        rows_max: usize,
    },
    /// The executor itself failed, independently of the batch: a device was lost, or a machine does not answer.
    Failed {
        /// What failed, and how.
        message: String,
    },
}

impl ExecutorError {
    /// How the message of [`Failed`](Self::Failed) begins, and no other: requests are not to blame for it.
    pub const FAILED: &str = "executor: failed: ";
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
            Self::Failed { message } => write!(f, "{}{message}", Self::FAILED),
        }
    }
}

impl std::error::Error for ExecutorError {}

/// Checks a batch against a capacity, as every executor must before it touches its cache.
///
/// # Errors
/// The first token, position or number of rows that does not fit.
///
/// # Panics
/// If a span is malformed (a bug of the caller): a parent that is not an earlier row, a wanted row that does not exist,
/// a page table that is too short, a page that does not exist, or hidden states that the network does not read.
pub fn check(batch: &Batch<'_>, capacity: &Capacity) -> Result<(), ExecutorError> {
    let beyond = batch.spans.iter().find(|span| span.computed.max(span.certain) > span.tokens.len());
    assert!(beyond.is_none(), "span: more rows computed or certain than there are: {beyond:?}");
    let rows: usize = batch.spans.iter().map(|span| span.tokens.len() - span.computed).sum();
    if rows > capacity.rows_max {
        return Err(ExecutorError::Rows { found: rows, rows_max: capacity.rows_max });
    }
    for span in batch.spans {
        assert_span(span, &capacity.groups);
        let new = span.computed..span.tokens.len();
        capacity.assert_hidden_in(span.hidden_in, new.len());
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

/// Asserts that a span is well-formed and has its pages.
fn assert_span(span: &Span<'_>, groups: &[Group]) {
    let (len, parents) = (span.tokens.len(), span.parents);
    assert!(parents.is_empty() || parents.len() == len, "span: {len} tokens, {} parents", parents.len());
    assert!(span.trunk() >= span.certain, "span: {} certain rows are no chain: {parents:?}", span.certain);
    for (i, parent) in parents.iter().enumerate() {
        assert!(parent.is_none_or(|parent| (parent as usize) < i), "span: row {i} has parent {parent:?}");
    }
    let new = span.computed..len;
    for (what, requested) in [("wanted", span.wanted), ("hidden", span.hidden)] {
        let exist = requested.iter().all(|row| new.contains(&(*row as usize)));
        assert!(exist, "span: {what} rows {requested:?} of {new:?}");
    }
    assert_eq!(span.tables.len(), groups.len(), "span: page tables, one a cache group");
    for (table, group) in span.tables.iter().zip(groups) {
        let positions = span.start + len;
        let room = table.len().saturating_mul(group.page_len);
        assert!(table.len() >= group.pages_for(positions), "span: rows up to {positions} in pages for {room}");
        let seen = &table[group.pages_gone(span.start)..];
        let beyond = seen.iter().find(|page| page.0 as usize >= group.pages);
        assert!(beyond.is_none(), "span: page {beyond:?} of {}", group.pages);
    }
}
