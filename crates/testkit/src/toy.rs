//! A table model as an executor of the engine, with a cache whose faults change the output.
//!
//! The cache of a real network holds keys and values; this one holds the token itself, shifted by a hash of the source
//! if there is an encoder, in the slot that the page table names. A row's context is read back through the page table
//! and the tree, as attention would, so a page that is lost, a row that is not moved or a sibling that is attended to
//! gives another context, and therefore another output. Recurrent states are in `state`. A [`Fault`] can be injected.

mod state;
mod watched;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_model::executor::check;
use foretoken_model::{
    Batch, CacheEdit, CacheRows, Capacity, Executor, ExecutorError, Group, HiddenStates, HostOutputs, Keep, Kind,
    Outputs, PageId, PageTable, SavedBytes, Source, SourceCapacity, Span,
};
use foretoken_speculation::Token;

use crate::table::{Table, mix};
use state::State;
pub use watched::Watched;

/// A fault of an executor. Each must make a test fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Accepted rows stay at their places in the tree.
    RowsNotMoved,
    /// A row of a tree attends to the row before it instead of its parent.
    SiblingsSeen,
    /// The logits of a row depend, a little, on the number of rows of the pass.
    RowsDependOnBatch,
    /// The last cached row is ignored if it ends a page.
    PageForgotten,
    /// A recurrent state also advances over the drafted rows of a pass.
    GuessPassed,
    /// A recurrent state advances over the certain rows of a pass that fails, and again when it is repeated.
    PassedTwice,
    /// The first hidden states of a pass are those of the previous pass.
    StaleHiddenRows,
    /// With remote logits, the sum over the row that is fetched with its largest logits is over these alone.
    SumOfLargestAlone,
    /// The second of two ranks does not apply changes of the cache.
    RankNotReached,
    /// The parts of two ranks are gathered in the wrong order.
    PartsSwapped,
    /// A source is read on to the length of the longest one that is open, as in a batch padded to that without a mask.
    RowsOfLongerSource,
}

/// The value of a slot in which no token was stored yet.
const EMPTY: Token = Token::MAX;
/// Maximum number of tokens that a saved state has advanced over.
const SAVED_MAX: usize = 256;

/// A [`Table`] as an [`Executor`].
pub struct ToyExecutor {
    table: Table,
    capacity: Capacity,
    /// The tokens that are stored in the slots, by cache group.
    slots: Vec<Vec<Token>>,
    /// The states by slot, if there is a group of states.
    states: Vec<State>,
    /// Every pass with a multiple of this number fails if it has several sequences.
    fails_every: Option<usize>,
    passes: usize,
    /// The tokens that the encoder has read, by slot.
    source_slots: Vec<Token>,
    /// The open sequences, each with the pages and the length of its source.
    open: BTreeMap<u64, Option<(PageTable, usize)>>,
    /// The number of open sequences, for tests that have moved the toy into an engine.
    open_count: Arc<AtomicUsize>,
    outputs: HostOutputs,
    fault: Fault,
}

impl ToyExecutor {
    /// An executor without a fault, with `pages` pages of `page_len` positions, and passes of up to `rows_max` rows.
    pub fn new(table: Table, page_len: usize, pages: usize, rows_max: usize) -> Self {
        let capacity = Capacity {
            vocabulary: table.vocabulary(),
            context_max: page_len * pages,
            rows_max,
            groups: vec![Group::attention(page_len, pages)],
            sources: None,
            hidden: HiddenStates { layers: HIDDEN_LAYERS, width: HIDDEN_WIDTH },
            hidden_in: None,
        };
        let outputs = HostOutputs { vocabulary: capacity.vocabulary, ..HostOutputs::default() };
        let slots = vec![vec![EMPTY; page_len * pages]];
        let (states, source_slots, open) = (Vec::new(), Vec::new(), BTreeMap::new());
        let (fails_every, passes, open_count, fault) = (None, 0, Arc::default(), Fault::None);
        Self { table, slots, states, fails_every, passes, source_slots, open, open_count, capacity, outputs, fault }
    }

    /// Adds a second cache group, which keeps the last `window` positions; contexts are read from that group. It has as
    /// many pages as `sequences` sequences need.
    pub fn with_window(self, window: usize, sequences: usize) -> Self {
        let page_len = self.capacity.groups[0].page_len;
        self.with_window_in_pages(window, page_len, sequences)
    }

    /// Like [`ToyExecutor::with_window`], with pages of another length.
    pub fn with_window_in_pages(mut self, window: usize, page_len: usize, sequences: usize) -> Self {
        let held = Group::window(window, page_len, 0).pages_held(usize::MAX, self.capacity.rows_max);
        let group = Group::window(window, page_len, held * sequences);
        self.slots.push(vec![EMPTY; page_len * group.pages]);
        self.capacity.groups.push(group);
        self
    }

    /// Adds a cache group of `slots` recurrent states, from which contexts are then read.
    pub fn with_states(mut self, slots: usize) -> Self {
        self.states = vec![State::default(); slots];
        self.slots.push(Vec::new());
        self.capacity.groups.push(Group::state(slots));
        self
    }

    /// Removes all other cache groups: only the state of a sequence is kept.
    pub fn without_rows(mut self) -> Self {
        self.capacity.groups.retain(|group| group.kind == Kind::State);
        self.slots.truncate(self.capacity.groups.len());
        self
    }

    /// Reverses the order of the cache groups, so that states come first.
    pub fn with_groups_reversed(mut self) -> Self {
        self.capacity.groups.reverse();
        self.slots.reverse();
        self
    }

    /// Lets every `every`th pass fail if it has several sequences.
    pub fn with_failing_passes(mut self, every: usize) -> Self {
        self.fails_every = Some(every);
        self
    }

    /// Adds an encoder that reads up to `len_max` tokens, in `pages` pages of `page_len` positions; the logits of a
    /// sequence are those of the table [with its source](Table::with_source).
    pub fn with_encoder(mut self, len_max: usize, page_len: usize, pages: usize) -> Self {
        self.source_slots = vec![EMPTY; page_len * pages];
        self.capacity.sources = Some(SourceCapacity { vocabulary: self.capacity.vocabulary, len_max, page_len, pages });
        self
    }

    /// The source of a sequence, read back from its pages; `None` without an encoder.
    fn source_of(&self, sequence: u64) -> Option<Vec<Token>> {
        let source = self.open.get(&sequence).unwrap_or_else(|| panic!("a span of sequence {sequence}, not open"));
        let ((table, len), room) = source.as_ref().zip(self.capacity.sources.as_ref())?;
        let slot = |at: usize| table[at / room.page_len].0 as usize * room.page_len + at % room.page_len;
        let longest = || self.open.values().flatten().map(|(_, len)| *len).max().unwrap_or(*len);
        let seen = if self.fault == Fault::RowsOfLongerSource { longest() } else { *len };
        Some((0..seen.min(table.len() * room.page_len)).map(|at| self.source_slots[slot(at)]).collect())
    }

    /// The number that is added to the tokens of a sequence in their slots, so that its rows depend on its source.
    fn source_offset(&self, sequence: u64) -> Token {
        let source = self.source_of(sequence).unwrap_or_default();
        let state = source.iter().fold(source.len() as u64, |state, token| mix(state ^ u64::from(*token)));
        (state % self.capacity.vocabulary as u64) as Token
    }

    /// Sets the fault of the executor.
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = fault;
        self
    }

    /// The counter of open sequences.
    pub fn open_count(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.open_count)
    }

    /// The fault of the executor.
    pub(crate) fn fault(&self) -> Fault {
        self.fault
    }

    /// The outputs of the latest pass.
    pub(crate) fn host_outputs(&self) -> &HostOutputs {
        &self.outputs
    }

    /// The slot of a position in a cache group.
    fn slot(&self, group: usize, table: &PageTable, position: usize) -> usize {
        let page_len = self.capacity.groups[group].page_len;
        table[position / page_len].0 as usize * page_len + position % page_len
    }

    /// Copies the row of a position in one sequence to a position in another, in all groups that have it.
    fn copy(&mut self, [from, to]: [&[PageTable]; 2], [source, target]: [usize; 2]) {
        for (group, (from, to)) in from.iter().zip(to).enumerate() {
            if self.capacity.groups[group].kind == Kind::State {
                continue;
            }
            let pages = [(from, source), (to, target)];
            let page_len = self.capacity.groups[group].page_len;
            if pages.iter().any(|(table, position)| table[position / page_len] == PageId::GONE) {
                continue;
            }
            let (source, target) = (self.slot(group, from, source), self.slot(group, to, target));
            self.slots[group][target] = self.slots[group][source];
        }
    }

    /// Copies the state of one sequence, up to a position, to the slot of another sequence or of a checkpoint.
    fn copy_state(&mut self, [from, to]: [&[PageTable]; 2], end: usize) {
        let Some(group) = self.group_of_states() else { return };
        if let ([from], [to]) = (&from[group][..], &to[group][..]) {
            let state = &self.states[from.0 as usize];
            self.states[to.0 as usize] = if from == to { state.without_owner() } else { state.up_to(end, self.fault) };
        }
    }

    /// All tokens up to row `i` of a span: from the cache group that keeps all rows, or from its state.
    pub(crate) fn whole_context(&self, span: &Span<'_>, i: usize) -> Vec<Token> {
        let is_whole = |group: &Group| (group.kind, group.keep) == (Kind::Rows, Keep::All);
        let group = self.capacity.groups.iter().position(is_whole);
        group.map_or_else(|| self.visible_context(span, i), |group| self.context(group, span, i))
    }

    /// Advances states by the rows of a batch.
    fn pass_states(&mut self, batch: &Batch<'_>) {
        for span in batch.spans {
            if let Some(slot) = self.state_of(span.tables) {
                self.states[slot].take(span, self.fault);
            }
        }
    }

    /// The slot of a sequence's state, if there are states.
    fn state_of(&self, tables: &[PageTable]) -> Option<usize> {
        Some(tables[self.group_of_states()?][0].0 as usize)
    }

    fn group_of_states(&self) -> Option<usize> {
        self.capacity.groups.iter().position(|group| group.kind == Kind::State)
    }

    /// The tokens that row `i` of a span is computed from: those of its state, if there is one, or of the last cache
    /// group.
    fn visible_context(&self, span: &Span<'_>, i: usize) -> Vec<Token> {
        match self.state_of(span.tables) {
            Some(slot) => self.states[slot].context(span, i),
            None => self.context(self.slots.len() - 1, span, i),
        }
    }

    /// The tokens that row `i` of a span attends to in a cache group, itself included, read from the cache.
    fn context(&self, group: usize, span: &Span<'_>, i: usize) -> Vec<Token> {
        let table = &span.tables[group];
        let mut positions: Vec<usize> = Vec::new();
        let mut at = Some(i);
        while let Some(row) = at {
            positions.push(span.start + row);
            at = if self.fault == Fault::SiblingsSeen { row.checked_sub(1) } else { span.parent(row) };
        }
        positions.extend((0..span.start).rev());
        if self.fault == Fault::PageForgotten
            && span.start > 0
            && span.start.is_multiple_of(self.capacity.groups[group].page_len)
        {
            positions.retain(|position| *position != span.start - 1);
        }
        if let Keep::Window(window) = self.capacity.groups[group].keep {
            positions.truncate(window);
        }
        let (offset, vocabulary) = (self.source_offset(span.sequence), self.capacity.vocabulary as Token);
        let token = |slot: Token| if slot == EMPTY { slot } else { (slot + vocabulary - offset) % vocabulary };
        positions.iter().rev().map(|position| token(self.slots[group][self.slot(group, table, *position)])).collect()
    }
}

/// Number of layers with hidden states.
pub const HIDDEN_LAYERS: usize = 8;
/// Number of elements of a toy's hidden state.
pub const HIDDEN_WIDTH: usize = 3;

/// The hidden state after a layer at the last of these tokens: a hash of all of them.
pub fn hidden_state(layer: usize, tokens: &[Token]) -> [f32; HIDDEN_WIDTH] {
    tokens.iter().fold([0.0, layer as f32, layer as f32], |state, token| next_hidden_state(state, *token))
}

/// The hidden state at one more token, computed from the state before.
pub(crate) fn next_hidden_state(state: [f32; HIDDEN_WIDTH], token: Token) -> [f32; HIDDEN_WIDTH] {
    let [len, layer, of_tokens] = state;
    // The number has 24 bits, which a float represents exactly.
    [len + 1.0, layer, (mix(of_tokens as u64 ^ u64::from(token)) >> 40) as f32]
}

impl Executor for ToyExecutor {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        assert_eq!(
            source.is_some(),
            self.capacity.sources.is_some(),
            "a source if and only if there is an encoder: {source:?}"
        );
        if let (Some(Source { tokens, table, is_computed: false }), Some(room)) = (source, &self.capacity.sources) {
            assert!((1..=room.len_max).contains(&tokens.len()), "a source of {} of {}", tokens.len(), room.len_max);
            for (at, token) in tokens.iter().enumerate() {
                let slot = table[at / room.page_len].0 as usize * room.page_len + at % room.page_len;
                self.source_slots[slot] = *token;
            }
        }
        let before = self.open.insert(sequence, source.map(|source| (source.table.clone(), source.tokens.len())));
        assert!(before.is_none(), "sequence {sequence} was open");
        self.open_count.store(self.open.len(), Ordering::Relaxed);
        Ok(())
    }

    fn release(&mut self, sequence: u64) {
        assert!(self.open.remove(&sequence).is_some(), "sequence {sequence} was not open");
        self.open_count.store(self.open.len(), Ordering::Relaxed);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        check(batch, &self.capacity)?;
        self.passes += 1;
        let fails = self.fails_every.is_some_and(|every| self.passes.is_multiple_of(every) && batch.spans.len() > 1);
        if !fails || self.fault == Fault::PassedTwice {
            self.pass_states(batch);
        }
        if fails {
            return Err(ExecutorError::Failed { message: "a planned failure".to_string() });
        }
        self.outputs.logits.clear();
        self.outputs.width = HIDDEN_WIDTH;
        let before = std::mem::take(&mut self.outputs.hidden);
        self.outputs.hidden.resize_with(batch.hidden_layers.len(), Vec::new);
        let rows: usize = batch.spans.iter().map(|span| span.tokens.len() - span.computed).sum();
        for span in batch.spans {
            let source = self.source_of(span.sequence);
            let table_of_source = source.map_or(self.table.clone(), |source| self.table.with_source(&source));
            let offset = self.source_offset(span.sequence);
            for (i, token) in span.tokens.iter().enumerate().skip(span.computed) {
                for (group, table) in span.tables.iter().enumerate() {
                    if self.capacity.groups[group].kind == Kind::State {
                        continue;
                    }
                    let slot = self.slot(group, table, span.start + i);
                    self.slots[group][slot] = (*token + offset) % self.capacity.vocabulary as Token;
                }
            }
            for row in span.hidden {
                let context = self.whole_context(span, *row as usize);
                for (layer, out) in batch.hidden_layers.iter().zip(&mut self.outputs.hidden) {
                    out.extend(hidden_state(*layer, &context));
                }
            }
            for row in span.wanted {
                let context = self.visible_context(span, *row as usize);
                let whole = self.whole_context(span, *row as usize);
                let is_healthy = self.fault == Fault::None;
                assert!(whole.ends_with(&context) || !is_healthy, "row {row}: {context:?} in the window of {whole:?}");
                let mut logits = table_of_source.logits(&context);
                if self.fault == Fault::RowsDependOnBatch {
                    logits.iter_mut().for_each(|logit| *logit += rows as f32 * 1e-6 * *logit);
                }
                self.outputs.logits.extend(logits);
            }
        }
        if self.fault == Fault::StaleHiddenRows {
            keep_previous(&mut self.outputs.hidden, &before);
        }
        Ok(())
    }

    fn outputs(&self) -> &dyn Outputs {
        &self.outputs
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        match edit {
            CacheEdit::Move { .. } if self.fault == Fault::RowsNotMoved => {}
            CacheEdit::Move { tables, from, to } => {
                for (from, to) in from.iter().zip(to..) {
                    self.copy([tables, tables], [*from, to]);
                }
                if let Some(slot) = self.state_of(tables) {
                    self.states[slot].move_rows(from, to);
                }
            }
            CacheEdit::Copy { from, to, positions } => {
                self.copy_state([from, to], positions.end);
                for position in positions {
                    self.copy([from, to], [position; 2]);
                }
            }
        }
        Ok(())
    }

    fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    fn saved_bytes(&self, group: usize) -> Option<SavedBytes> {
        let is_state = self.capacity.groups[group].kind == Kind::State;
        let passed_max = if is_state { SAVED_MAX } else { 0 };
        Some(SavedBytes { state: passed_max * size_of::<Token>(), row: size_of::<Token>() })
    }

    fn save_rows(&self, rows: CacheRows<'_>, out: &mut Vec<u8>) -> Result<(), ExecutorError> {
        if self.capacity.groups[rows.group].kind == Kind::State {
            let state = self.states[rows.table[0].0 as usize].up_to(rows.positions.end, self.fault);
            state.save(rows.positions.start, SAVED_MAX, out);
            return Ok(());
        }
        let slots = rows.positions.map(|position| self.slot(rows.group, rows.table, position));
        slots.for_each(|slot| out.extend_from_slice(&self.slots[rows.group][slot].to_le_bytes()));
        Ok(())
    }

    fn load_rows(&mut self, rows: CacheRows<'_>, bytes: &[u8]) -> Result<(), ExecutorError> {
        let (all, rest) = bytes.as_chunks();
        if self.capacity.groups[rows.group].kind == Kind::State {
            let tokens: Vec<Token> = all.iter().map(|four| Token::from_le_bytes(*four)).collect();
            let (passed, inputs) = tokens.split_at(SAVED_MAX);
            assert_eq!(inputs.len(), rows.positions.len(), "inputs of {rows:?}");
            self.states[rows.table[0].0 as usize] = State::loaded(&passed[..rows.positions.start], inputs);
            return Ok(());
        }
        assert!(all.len() == rows.positions.len() && rest.is_empty(), "{} bytes of {rows:?}", bytes.len());
        for (position, token) in rows.positions.zip(all) {
            let slot = self.slot(rows.group, rows.table, position);
            self.slots[rows.group][slot] = Token::from_le_bytes(*token);
        }
        Ok(())
    }
}

/// The number of rows that a pass computes.
pub fn rows(batch: &Batch<'_>) -> usize {
    batch.spans.iter().map(|span| span.tokens.len() - span.computed).sum()
}

/// A fault: in each layer the first hidden states stay those of the previous pass.
pub(crate) fn keep_previous(hidden: &mut [Vec<f32>], before: &[Vec<f32>]) {
    for (now, before) in hidden.iter_mut().zip(before) {
        let len = now.len().min(before.len());
        now[..len].copy_from_slice(&before[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_prefix_gives_the_logits_of_a_computed_one() {
        let mut toy = ToyExecutor::new(Table::seeded(7, 40, 3), 4, 20, 32);
        toy.open(0, None).unwrap();
        let tables: [[PageTable; 1]; 3] = [[0, 1, 2], [7, 3, 5], [9, 8, 6]].map(|pages| [pages.map(PageId).to_vec()]);
        let tokens: Vec<Token> = (0..10).map(|i| i * 3 % 7).collect();
        let logits = |toy: &mut ToyExecutor, table: usize, start: usize| {
            let (tables, tokens, wanted) = (&tables[table], &tokens[start..], &[(9 - start) as u32]);
            let span = Span { sequence: 0, tables, start, tokens, wanted, ..Span::default() };
            toy.forward(&Batch { spans: &[span], hidden_layers: &[] }).unwrap();
            toy.outputs().row(0).to_vec()
        };
        let computed = logits(&mut toy, 0, 0);
        toy.rows(CacheEdit::Copy { from: &tables[0], to: &tables[1], positions: 0..9 }).unwrap();
        assert_eq!(logits(&mut toy, 1, 9), computed);
        toy.rows(CacheEdit::Copy { from: &tables[0], to: &tables[2], positions: 0..8 }).unwrap();
        assert_ne!(logits(&mut toy, 2, 9), computed, "one row is missing");
    }
}
