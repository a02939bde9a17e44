//! Who runs a batch: a trait, and what it says of its cache.
//!
//! An executor keeps the bytes of the cache in pages, and knows nothing of whose they are. It may be this machine's
//! processor, a table of a test, or a device or machine that can be lost, so both ways of changing it can fail.
//!
//! Left out: any particular network, and page bookkeeping, which is the engine's.

use std::fmt;
use std::ops::Range;

use crate::batch::{Batch, PageTable, Span, Token};
use crate::hidden::{HiddenReads, HiddenStates};
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
    /// them. Where states alone are meant, there are no positions.
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

/// What the rows of a cache group hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One row a position, which later rows read as it is: keys and values of attention, or the inputs of a short
    /// convolution.
    Rows,
    /// A recurrent state. A page is a slot: it holds one text's state, the position that it has come to, and behind it
    /// the inputs of rows that were guesses when they were computed. The state passes the certain rows of a span
    /// ([`Span::certain`](crate::Span::certain)) with the pass, and those of an accepted path at the beginning of the
    /// next one, when they lie before the span's start. It never passes a guess, so it never has to go back.
    ///
    /// What an executor does with a span: a slot begins empty where the span starts at 0 and none of its rows is
    /// computed, whatever the slot held. The inputs of rows before the start are passed, unless they were already. Of
    /// the inputs behind those of the computed rows nothing is left. Rows that are certain *and* computed were passed
    /// by the pass that computed them, and are not passed again. A pass that fails has passed nothing.
    /// [`CacheEdit::Move`] moves inputs of guesses as it moves keys and values. [`CacheEdit::Copy`] copies a slot: the
    /// state with the inputs behind it, up to the last position that is meant. So checkpoints are taken and continued.
    State,
}

/// Which rows of a cache group later rows can still see, so which have to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of them.
    All,
    /// Those of the last positions: a row sees so many, its own included. Pages behind them are given back once the
    /// rows that moved the window on are committed, never for a draft.
    Window(usize),
}

/// One kind of cache, with its own pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// What a row holds.
    pub kind: Kind,
    /// Which rows are kept.
    pub keep: Keep,
    /// Positions a page.
    pub page_len: usize,
    /// Pages there are, numbered from 0.
    pub pages: usize,
}

impl Group {
    /// Keys and values of attention over the whole text.
    pub fn attention(page_len: usize, pages: usize) -> Self {
        Self { kind: Kind::Rows, keep: Keep::All, page_len, pages }
    }

    /// The same of layers that see the last `window` positions.
    pub fn window(window: usize, page_len: usize, pages: usize) -> Self {
        Self { keep: Keep::Window(window.max(1)), ..Self::attention(page_len, pages) }
    }

    /// Recurrent states, one a text that runs.
    pub fn state(slots: usize) -> Self {
        Self { kind: Kind::State, keep: Keep::All, page_len: usize::MAX, pages: slots }
    }

    /// Entries of a page table for so many positions.
    pub fn pages_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.page_len)
    }

    /// Most pages that a sequence of so many positions holds at a time, if a pass has up to `rows_max` rows of it.
    pub fn pages_held(&self, positions: usize, rows_max: usize) -> usize {
        let all = self.pages_for(positions);
        match self.keep {
            Keep::All => all,
            // What the next row sees begins and ends anywhere in a page.
            Keep::Window(window) => {
                all.min((window - 1).saturating_add(rows_max).div_ceil(self.page_len).saturating_add(1))
            }
        }
    }

    /// The first position that a row at this position sees.
    pub fn first_seen(&self, position: usize) -> usize {
        match self.keep {
            Keep::All => 0,
            Keep::Window(window) => (position + 1).saturating_sub(window),
        }
    }

    /// Pages that no later row sees once so many positions are committed, counted from the front.
    pub fn pages_gone(&self, committed: usize) -> usize {
        self.first_seen(committed) / self.page_len
    }

    /// Positions of one text that there is room for.
    pub fn room(&self, rows_max: usize) -> usize {
        match self.pages >= self.pages_held(usize::MAX, rows_max) {
            true => usize::MAX,
            false => self.pages * self.page_len,
        }
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

/// Room for the sources of an encoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceCapacity {
    /// Tokens that the encoder knows.
    pub vocabulary: usize,
    /// Tokens of a source, at most.
    pub len_max: usize,
    /// Positions a page.
    pub page_len: usize,
    /// Pages there are, numbered from 0.
    pub pages: usize,
}

impl SourceCapacity {
    /// Pages of a source of so many tokens.
    pub fn pages_for(&self, len: usize) -> usize {
        len.div_ceil(self.page_len.max(1))
    }

    /// Tokens of the longest source that there is room for.
    pub fn longest(&self) -> usize {
        self.len_max.min(self.pages * self.page_len)
    }
}

/// How much an executor can hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Tokens there are.
    pub vocabulary: usize,
    /// Positions the network can represent.
    pub context_max: usize,
    /// Rows of one pass.
    pub rows_max: usize,
    /// The cache groups, at least one.
    pub groups: Vec<Group>,
    /// Room for what the encoder reads; `None`: there is no encoder.
    pub sources: Option<SourceCapacity>,
    /// The hidden states that it can tell.
    pub hidden: HiddenStates,
    /// The hidden rows that it reads beside tokens; `None`: it reads tokens alone.
    pub hidden_in: Option<HiddenReads>,
}

impl Capacity {
    /// What makes no sense of what an executor says of itself; nothing as a rule.
    pub fn problem(&self) -> Option<CapacityProblem> {
        let Self { vocabulary, context_max, rows_max, groups, sources, hidden, hidden_in } = self;
        let problem = |field: String, expected, found| CapacityProblem::new(&field, expected, found);
        let nothing = |field: String| problem(field, "at least 1", "0".to_string());
        for (field, found) in [("vocabulary", vocabulary), ("context_max", context_max), ("rows_max", rows_max)] {
            if *found == 0 {
                return nothing(field.to_string());
            }
        }
        if groups.is_empty() {
            return problem("groups".to_string(), "at least one", "none".to_string());
        }
        for (number, group) in groups.iter().enumerate() {
            let Group { kind, page_len, pages, .. } = group;
            let of_group = |field: &str| nothing(format!("groups: group {number}: {field}"));
            match (kind, *page_len, *pages) {
                (Kind::State, _, 0) => return of_group("slots"),
                (Kind::State, ..) if *group != Group::state(*pages) => {
                    let field = format!("groups: group {number}");
                    return problem(field, "states as Group::state says", format!("{group:?}"));
                }
                (Kind::Rows, 0, _) => return of_group("page_len"),
                (Kind::Rows, _, 0) => return of_group("pages"),
                _ => {}
            }
        }
        if let Some(problem) = hidden_in.as_ref().and_then(|reads| reads.problem(*hidden)) {
            return Some(problem);
        }
        let nothing = sources.as_ref().filter(|sources| sources.longest() == 0 || sources.vocabulary == 0);
        let expected = "a vocabulary and room for a token";
        nothing.and_then(|found| problem("sources".to_string(), expected, format!("{found:?}")))
    }
}

/// What makes no sense of a [`Capacity`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityProblem {
    /// The field, and of which group.
    pub field: String,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl CapacityProblem {
    pub(crate) fn new(field: &str, expected: &str, found: String) -> Option<Self> {
        Some(Self { field: field.to_string(), expected: expected.to_string(), found })
    }
}

impl std::error::Error for CapacityProblem {}

impl fmt::Display for CapacityProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.field, self.expected, self.found)
    }
}

/// What a pass read of a network's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Bytes of matrices; 0: nothing is said of them.
    pub bytes: usize,
    /// Distinct experts, of all layers together; 0: there are none, or nothing is said of them.
    pub experts: usize,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_named_by_field() {
        let sound = Capacity {
            vocabulary: 5,
            context_max: 8,
            rows_max: 4,
            groups: vec![Group::attention(2, 4), Group::state(1)],
            sources: Some(SourceCapacity { vocabulary: 5, len_max: 3, page_len: 2, pages: 2 }),
            hidden: HiddenStates::default(),
            hidden_in: None,
        };
        assert_eq!(sound.problem(), None);
        let with = |change: fn(&mut Capacity)| {
            let mut capacity = sound.clone();
            change(&mut capacity);
            capacity.problem().map_or(String::new(), |problem| problem.to_string())
        };
        let found = [
            with(|capacity| capacity.rows_max = 0),
            with(|capacity| capacity.groups.clear()),
            with(|capacity| capacity.groups[0].page_len = 0),
            with(|capacity| capacity.groups[0].pages = 0),
            with(|capacity| capacity.groups[1].pages = 0),
            with(|capacity| capacity.groups[1].page_len = 2).split_once(", found").expect("it is found").0.to_string(),
        ];
        let expected = [
            "rows_max: expected at least 1, found 0",
            "groups: expected at least one, found none",
            "groups: group 0: page_len: expected at least 1, found 0",
            "groups: group 0: pages: expected at least 1, found 0",
            "groups: group 1: slots: expected at least 1, found 0",
            "groups: group 1: expected states as Group::state says",
        ];
        assert_eq!(found, expected);
        let no_room = with(|capacity| capacity.sources.as_mut().unwrap().pages = 0);
        assert!(no_room.starts_with("sources: expected a vocabulary and room for a token, found"), "{no_room}");
    }
}
