//! Who runs a batch: a trait, and how its cache is changed.
//!
//! An executor keeps the bytes of the cache in pages, and knows nothing of whose they are. It may be this machine's
//! processor, a table of a test, or a device or machine that can be lost, so both ways of changing it can fail.
//!
//! Left out: any particular network, what it can hold (`capacity`), and page bookkeeping, which is the engine's.

use std::fmt;
use std::ops::Range;

use crate::batch::{Batch, PageTable, Span, Token};
use crate::capacity::{Capacity, Group};
use crate::outputs::Outputs;

/// A change of the cache's bytes, all groups at once.
#[derive(Clone, Debug)]
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
    /// Copies rows of one sequence to the same positions of another: a prefix that both have. What is seen from there
    /// on is bit-identical to having computed the rows again. Positions of which both have the same page stay as they
    /// are. Of a group of states, where `to` has a slot and another than `from`, the slot is copied: the state and, of
    /// the inputs behind it, those before `positions.end`, which lies between what the state has passed and the last of
    /// them. Where it has the same slot, the text that had it has left it to the other one. Where states alone are
    /// meant, there are no positions.
    Copy {
        /// Page tables of the sequence that has the rows.
        from: &'a [PageTable],
        /// Page tables of the one that gets them, with room for the positions.
        to: &'a [PageTable],
        /// Which rows, by position.
        positions: Range<usize>,
    },
}

/// Rows of one cache group, for saving and loading; of a group of states a state, with the inputs behind it.
#[derive(Clone, Debug)]
pub struct CacheRows<'a> {
    /// The group's number.
    pub group: usize,
    /// The sequence's page table in this group.
    pub table: &'a PageTable,
    /// Which rows, by position. Of a state: the inputs behind it, so that it has passed what lies before.
    pub positions: Range<usize>,
}

/// How many bytes are saved of a cache group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedBytes {
    /// Of the state, in front; 0 where there is none.
    pub state: usize,
    /// Of each position.
    pub row: usize,
}

impl SavedBytes {
    /// Bytes of so many positions in all.
    pub fn of(&self, positions: usize) -> usize {
        self.state.saturating_add(positions.saturating_mul(self.row))
    }
}

/// What an encoder reads for a sequence, and where the rows of it lie that the sequence's own rows see (cross
/// attention).
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its tokens, at least one.
    pub tokens: &'a [Token],
    /// Its pages, in order of position.
    pub table: &'a PageTable,
    /// Whether its rows are there: a sequence with the same source and the same pages was opened before.
    pub is_computed: bool,
}

/// What a pass read of a network's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Bytes of matrices; 0: nothing is said of them.
    pub bytes: usize,
    /// Distinct experts, of all layers together; 0: there are none, or nothing is said of them.
    pub experts: usize,
    /// Of these, experts that the pass had to pack before it could use them, which takes longer than reading them.
    pub packed: usize,
}

/// A network that can be run: the CPU decoder, a toy table, later another machine. Nothing above knows which.
///
/// A sequence is open while spans of it come: from [`open`](Self::open) to [`release`](Self::release). One that gives
/// its pages back and goes on later is released and opened again. Nothing has to be said when rows are committed: those
/// before a span's start are.
pub trait Executor: Send {
    /// A sequence begins, or goes on. `source`: what its encoder reads, if the network has one; its rows are computed
    /// now, unless they are there. Who keeps nothing by sequence has nothing to do.
    ///
    /// # Errors
    /// [`ExecutorError`] if it cannot be done; then the sequence is not open, and of its source nothing is there that
    /// was not before.
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError>;

    /// No span of a sequence comes any more, until it is opened again. Its pages and those of its source are the
    /// engine's, and may be somebody else's from now on.
    fn release(&mut self, sequence: u64);

    /// Scores every row of the batch, stores the rows in the cache, and has [`outputs`](Self::outputs) ready.
    ///
    /// # Errors
    /// [`ExecutorError`] if the batch cannot be run; then nothing of it counts as stored.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError>;

    /// What the latest pass says, for the rows that it was asked for; until the next pass. Changing the cache does not
    /// change it. Of no pass, or of one that failed, nothing is said here.
    fn outputs(&self) -> &dyn Outputs;

    /// Changes rows of the cache.
    ///
    /// # Errors
    /// [`ExecutorError`] if it cannot be done. Then the rows that were to be written hold nothing that can be used, and
    /// all others are as before.
    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError>;

    /// How much there is room for.
    fn capacity(&self) -> &Capacity;

    /// What the latest pass that succeeded read of the network's weights: passes of as many rows that read more take
    /// longer. Who says nothing is known by its rows alone.
    fn read(&self) -> Reading {
        Reading::default()
    }

    /// How many bytes [`save_rows`](Self::save_rows) writes of a cache group; `None` if this executor saves nothing.
    fn saved_bytes(&self, _group: usize) -> Option<SavedBytes> {
        None
    }

    /// Appends rows of the cache as bytes, position by position, in a form of the executor's own that depends neither
    /// on pages nor on anybody else's rows.
    ///
    /// # Errors
    /// [`ExecutorError`] if it cannot be done; then what was appended is nothing that can be used.
    fn save_rows(&self, _rows: CacheRows<'_>, _out: &mut Vec<u8>) -> Result<(), ExecutorError> {
        Err(ExecutorError::Failed { message: "rows of this cache cannot be saved".to_string() })
    }

    /// Writes rows that were saved of the same network, run in the same way. What is seen from there on is
    /// bit-identical to having computed the rows.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    ///
    /// # Panics
    /// If there are not as many as [`saved_bytes`](Self::saved_bytes) says.
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

    fn read(&self) -> Reading {
        (**self).read()
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

/// Why an executor cannot do what was asked.
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
    /// The executor itself failed, whatever it was asked: a device that was lost, a machine that does not answer.
    Failed {
        /// What failed, and how.
        message: String,
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
            Self::Failed { message } => write!(f, "executor: failed: {message}"),
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
/// exist, a page table without room, a page that there is not, or hidden rows that are not those that the network
/// reads.
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

/// That a span makes sense, and has its pages.
fn assert_span(span: &Span<'_>, groups: &[Group]) {
    let (len, parents) = (span.tokens.len(), span.parents);
    assert!(parents.is_empty() || parents.len() == len, "span: {len} tokens, {} parents", parents.len());
    assert!(span.trunk() >= span.certain, "span: {} certain rows are no chain: {parents:?}", span.certain);
    for (i, parent) in parents.iter().enumerate() {
        assert!(parent.is_none_or(|parent| (parent as usize) < i), "span: row {i} has parent {parent:?}");
    }
    let new = span.computed..len;
    for (what, asked) in [("wanted", span.wanted), ("hidden", span.hidden)] {
        let there = asked.iter().all(|row| new.contains(&(*row as usize)));
        assert!(there, "span: {what} rows {asked:?} of {new:?}");
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
