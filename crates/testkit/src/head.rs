//! A toy draft head: an executor that reads hidden states besides its tokens, and checks that they are the right ones.
//!
//! Its cache holds, in the slot that the page table names, the token of a row, the hidden state that the row read, and
//! whether that was the head's own. From the slots that a row attends to, the head computes the hidden state that the
//! row must be given: for a written token the [`hidden_state`] of the toy target at the position before, which follows
//! from that of the row before and its token; for a drafted token the head's own, which is a function of the parent row
//! and of all that the parent row attends to and read. So it detects a hidden state of the previous pass, of a rejected
//! row or of another sequence, and a drafted row that was committed; then the head panics, its drafter is dropped, and
//! the engine reports that. The first token of a sequence, which no row of a head reads, is found from the first hidden
//! state, unless that is of a later token: then the head's logits are those of a sequence that begins there.
//!
//! Its logits are those of a table; [`near`] returns one that mostly agrees with the target's. The only check of a
//! head's recurrent states is that they advance over written tokens and no drafted ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_drafters::{LogitRows, ScoreAsk, Scorer};
use foretoken_engine::ExecutorScorer;
use foretoken_model::executor::check;
use foretoken_model::{
    Batch, CacheEdit, Capacity, Executor, ExecutorError, Group, HiddenInput, HiddenReads, HiddenStates, HostOutputs,
    Outputs, PageTable, Source, Span,
};
use foretoken_speculation::{Opening, SequenceId, Token};

use crate::table::{Table, mix};
use crate::toy::{HIDDEN_LAYERS, HIDDEN_WIDTH, ToyExecutor, hidden_state, keep_previous, next_hidden_state};

/// Layers of the target that the toy head reads, not sorted.
pub const TARGET_LAYERS: [usize; 3] = [HIDDEN_LAYERS - 1, 0, 3];
/// Number of elements of its own hidden states, which differs from the target's.
const OWN_WIDTH: usize = 2;

/// A fault of a head. Each must make a test fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// No fault.
    None,
    /// The first of its own hidden states are those of the previous pass.
    StaleOwnRows,
}

/// A row of the cache.
#[derive(Clone, Debug)]
struct Row {
    /// The sequence's first token, unless the head's tokens begin after it.
    first: Option<Token>,
    token: Token,
    /// The hidden state that the row read.
    input: Vec<f32>,
    /// Whether that hidden state was the head's own, so that the row is of a drafted token.
    is_drafted: bool,
}

/// A draft head as an [`Executor`] that checks the hidden states that it is given (see the module's documentation).
pub struct ToyHead {
    table: Table,
    capacity: Capacity,
    slots: Vec<Option<Row>>,
    /// Every pass with a multiple of this number fails if it has several sequences.
    fails_every: Option<usize>,
    passes: Arc<AtomicUsize>,
    outputs: HostOutputs,
    fault: HeadFault,
}

impl ToyHead {
    /// A head without a fault, with the logits of this table, with `pages` pages of `page_len` positions, and passes of
    /// up to `rows_max` rows.
    pub fn new(table: Table, page_len: usize, pages: usize, rows_max: usize) -> Self {
        let reads = HiddenReads { target_layers: TARGET_LAYERS.to_vec(), target_width: HIDDEN_WIDTH, own_layer: 0 };
        let capacity = Capacity {
            vocabulary: table.vocabulary(),
            context_max: page_len * pages,
            rows_max,
            groups: vec![Group::attention(page_len, pages)],
            sources: None,
            hidden: HiddenStates { layers: 1, width: OWN_WIDTH },
            hidden_in: Some(reads),
        };
        let outputs = HostOutputs { vocabulary: table.vocabulary(), width: OWN_WIDTH, ..HostOutputs::default() };
        let slots = vec![None; page_len * pages];
        Self { table, capacity, slots, fails_every: None, passes: Arc::default(), outputs, fault: HeadFault::None }
    }

    /// The counter of its passes.
    pub fn pass_count(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.passes)
    }

    /// Lets every `every`th pass fail if it has several sequences.
    pub fn with_failing_passes(mut self, every: usize) -> Self {
        self.fails_every = Some(every);
        self
    }

    /// Adds a group of `slots` recurrent states; written rows must then be certain ones.
    pub fn with_states(mut self, slots: usize) -> Self {
        self.capacity.groups.push(Group::state(slots));
        self
    }

    /// Sets the fault of the head.
    pub fn with_fault(mut self, fault: HeadFault) -> Self {
        self.fault = fault;
        self
    }

    fn slot(&self, tables: &[PageTable], position: usize) -> usize {
        let page_len = self.capacity.groups[0].page_len;
        tables[0][position / page_len].0 as usize * page_len + position % page_len
    }

    /// The rows that a child of `parent` attends to, without itself, read from the cache: the committed ones, then its
    /// ancestors in the span.
    fn seen(&self, span: &Span<'_>, parent: Option<usize>) -> Vec<Row> {
        let mut positions: Vec<usize> = std::iter::successors(parent, |row| span.parent(*row)).collect();
        positions.iter_mut().for_each(|row| *row += span.start);
        positions.extend((0..span.start).rev());
        let row = |position: &usize| {
            let row = self.slots[self.slot(span.tables, *position)].clone();
            row.unwrap_or_else(|| panic!("a head attends to position {position}, which is empty: {span:?}"))
        };
        positions.iter().rev().map(row).collect()
    }

    /// The first token of the sequence whose first hidden state this is, unless it is that of a later token.
    fn first_of(&self, input: &[f32]) -> Option<Token> {
        let states = input.as_chunks::<HIDDEN_WIDTH>().0;
        let fits = states
            .iter()
            .zip(TARGET_LAYERS)
            .all(|([len, layer, _], expected)| *len == states[0][0] && *len >= 1.0 && *layer == expected as f32);
        assert!(fits, "the first hidden row is of no token: {input:?}");
        let of_first = |first: Token| TARGET_LAYERS.map(|layer| hidden_state(layer, &[first]));
        let found = (0..self.table.vocabulary() as Token).find(|first| of_first(*first) == states);
        assert!(found.is_some() == (states[0][0] == 1.0), "the first hidden row is of no token: {input:?}");
        found
    }

    /// Stores row `i` of a span, which is given this hidden state, and checks that the state is the right one.
    fn store(&mut self, span: &Span<'_>, i: usize, input: &[f32], is_drafted: bool) {
        let seen = self.seen(span, span.parent(i));
        let has_states = self.capacity.groups.len() > 1;
        assert!(!has_states || is_drafted == (i >= span.certain), "row {i}, certain or drafted: {span:?}");
        let kept = seen[..span.start].iter().position(|row| row.is_drafted);
        assert!(kept.is_none(), "row {kept:?} of a head is committed, and was drafted: {span:?}");
        let (first, expected) = match (seen.last(), is_drafted) {
            (Some(row), true) => (row.first, own_state(&seen).to_vec()),
            (Some(row), false) => (row.first, next_target_row(row)),
            (None, true) => panic!("a drafted token without a written one: {span:?}"),
            (None, false) => (self.first_of(input), input.to_vec()),
        };
        let whose = if is_drafted { "its own" } else { "the target's" };
        assert!(input == expected, "hidden row {i}, {whose}: expected {expected:?}, found {input:?} in {span:?}");
        let slot = self.slot(span.tables, span.start + i);
        self.slots[slot] = Some(Row { first, token: span.tokens[i], input: input.to_vec(), is_drafted });
    }

    fn compute_outputs(&mut self, span: &Span<'_>) {
        for row in span.wanted {
            let seen = self.seen(span, Some(*row as usize));
            let text: Vec<Token> = seen.iter().take(1).filter_map(|row| row.first).collect();
            let text = [text, seen.iter().map(|row| row.token).collect()].concat();
            self.outputs.logits.extend(self.table.logits(&text));
        }
        for row in span.hidden {
            let state = own_state(&self.seen(span, Some(*row as usize)));
            self.outputs.hidden.iter_mut().for_each(|out| out.extend(state));
        }
    }
}

/// The hidden states that the next row of a written token must read: the target's at the token of this row.
fn next_target_row(row: &Row) -> Vec<f32> {
    let states = row.input.as_chunks::<HIDDEN_WIDTH>().0;
    states.iter().flat_map(|state| next_hidden_state(*state, row.token)).collect()
}

/// The head's own hidden state at the last of these rows: a hash of all of them and of what they read.
fn own_state(rows: &[Row]) -> [f32; OWN_WIDTH] {
    let fold = |state: u64, row: &Row| {
        let state = mix(state ^ u64::from(row.token));
        row.input.iter().fold(state, |state, value| mix(state ^ u64::from(value.to_bits())))
    };
    [rows.len() as f32, (rows.iter().fold(1, fold) >> 40) as f32]
}

impl Executor for ToyHead {
    fn open(&mut self, _sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        assert!(source.is_none(), "a source for a head: {source:?}");
        Ok(())
    }

    fn release(&mut self, _sequence: u64) {}

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        check(batch, &self.capacity)?;
        let passes = 1 + self.passes.fetch_add(1, Ordering::Relaxed);
        if self.fails_every.is_some_and(|every| passes.is_multiple_of(every) && batch.spans.len() > 1) {
            return Err(ExecutorError::Failed { message: "a planned failure".to_string() });
        }
        assert!(batch.hidden_layers.iter().all(|layer| *layer == 0), "layers {:?} of 1", batch.hidden_layers);
        let before = std::mem::take(&mut self.outputs.hidden);
        self.outputs.logits.clear();
        self.outputs.hidden.resize_with(batch.hidden_layers.len(), Vec::new);
        for span in batch.spans {
            let (rows, is_drafted, width) = match span.hidden_in {
                HiddenInput::Target(rows) => (rows, false, TARGET_LAYERS.len() * HIDDEN_WIDTH),
                HiddenInput::Own(rows) => (rows, true, OWN_WIDTH),
                HiddenInput::None => unreachable!("checked: {span:?}"),
            };
            for (i, input) in (span.computed..).zip(rows.chunks(width)) {
                self.store(span, i, input, is_drafted);
            }
            self.compute_outputs(span);
        }
        if self.fault == HeadFault::StaleOwnRows {
            keep_previous(&mut self.outputs.hidden, &before);
        }
        Ok(())
    }

    fn outputs(&self) -> &dyn Outputs {
        &self.outputs
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        let copied: Vec<(usize, usize)> = match edit {
            CacheEdit::Move { tables, from, to } => {
                from.iter().zip(to..).map(|(from, to)| (self.slot(tables, *from), self.slot(tables, to))).collect()
            }
            CacheEdit::Copy { from, to, positions } => {
                positions.map(|position| (self.slot(from, position), self.slot(to, position))).collect()
            }
        };
        copied.into_iter().for_each(|(from, to)| self.slots[to] = self.slots[from].clone());
        Ok(())
    }

    fn capacity(&self) -> &Capacity {
        &self.capacity
    }
}

/// A table with the logits of this one, except in one context in `once_in`, where they are rotated by one token.
pub fn near(table: &Table, once_in: u64) -> Table {
    let table = table.clone();
    Table::new(table.vocabulary(), move |tokens| {
        let mut row = table.logits(tokens);
        let state = tokens.iter().fold(7, |state, token| mix(state ^ u64::from(*token)));
        row.rotate_right(usize::from(state.is_multiple_of(once_in)));
        row
    })
}

/// The number of calls after which the bookkeeping of pages is checked.
const CALLS_PER_CHECK: usize = 8;

/// A toy head as a [`Scorer`], whose bookkeeping of pages is checked regularly.
pub struct HeadScorer {
    paged: ExecutorScorer,
    calls: usize,
}

impl HeadScorer {
    /// A scorer of a head for the toy target of a table.
    pub fn new(head: ToyHead) -> HeadScorer {
        let target = ToyExecutor::new(head.table.clone(), 1, 1, 1);
        let paged = ExecutorScorer::for_head(Box::new(head), target.capacity());
        HeadScorer { paged: paged.unwrap_or_else(|problem| panic!("{problem}")), calls: 0 }
    }
}

impl Scorer for HeadScorer {
    fn open(&mut self, opening: &Opening<'_>) {
        self.paged.open(opening);
    }

    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        self.paged.score(asks, rows);
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS_PER_CHECK) {
            self.paged.check_pages().unwrap_or_else(|error| panic!("a head's pages: {error}"));
        }
    }

    fn target_layers(&self) -> &[usize] {
        self.paged.target_layers()
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize {
        self.paged.truncate(sequence, len)
    }

    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        self.paged.keep_path(sequence, start, rows);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.paged.close(sequence);
    }

    fn context_max(&self) -> usize {
        self.paged.context_max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_model::PageId;

    const TEXT: [Token; 4] = [3, 1, 4, 1];

    /// A head that has read the second and third token of the text, and then one drafted token.
    struct Read {
        head: ToyHead,
        tables: [PageTable; 1],
    }

    impl Read {
        fn new() -> Read {
            let head = ToyHead::new(Table::seeded(7, 40, 3), 4, 3, 8);
            let mut read = Read { head, tables: [vec![PageId(2), PageId(0)]] };
            let target = [target_row(0), target_row(1)].concat();
            read.run(0, &TEXT[1..3], HiddenInput::Target(&target));
            let own = read.head.outputs().hidden(0, 0).to_vec();
            read.run(2, &[5], HiddenInput::Own(&own));
            read
        }

        fn run(&mut self, start: usize, tokens: &[Token], hidden_in: HiddenInput<'_>) {
            let (tables, last) = (&self.tables, [tokens.len() as u32 - 1]);
            let (wanted, hidden) = (&last, &last);
            let span = Span { tables, start, tokens, wanted, hidden, hidden_in, ..Span::default() };
            self.head.forward(&Batch { spans: &[span], hidden_layers: &[0] }).expect("a sound span");
        }
    }

    /// The hidden states of the target at a position of the text.
    fn target_row(position: usize) -> Vec<f32> {
        TARGET_LAYERS.iter().flat_map(|layer| hidden_state(*layer, &TEXT[..=position])).collect()
    }

    #[test]
    fn with_the_right_hidden_rows_the_logits_are_those_of_its_table() {
        let mut read = Read::new();
        read.run(2, &TEXT[3..], HiddenInput::Target(&target_row(2)));
        assert_eq!(read.head.outputs().row(0), Table::seeded(7, 40, 3).logits(&TEXT), "the first token is known");
    }

    #[test]
    #[should_panic(expected = "hidden row 0, the target's")]
    fn the_hidden_row_of_another_position_is_detected() {
        Read::new().run(2, &TEXT[3..], HiddenInput::Target(&target_row(1)));
    }

    #[test]
    #[should_panic(expected = "hidden row 0, its own")]
    fn an_own_row_of_the_previous_pass_is_detected() {
        let mut read = Read::new();
        let own = read.head.outputs().hidden(0, 0).to_vec();
        read.run(2, &[5], HiddenInput::Own(&own));
    }

    #[test]
    #[should_panic(expected = "row Some(2) of a head is committed, and was drafted")]
    fn a_committed_row_of_a_drafted_token_is_detected() {
        Read::new().run(3, &TEXT[3..], HiddenInput::Target(&target_row(3)));
    }
}
