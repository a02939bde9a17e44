//! A toy on two ranks: each has half of the cache and computes half of the logits, and nothing is added up across
//! ranks.
//!
//! Real ranks split attention heads; here the token of a slot is split: one rank keeps its low digit, the other the
//! high one, each in a cache of its own to which page tables and edits apply. The context of a row is read from both
//! and gathered; then each rank computes the logits of its half of the vocabulary, and these are gathered. A rank that
//! misses an edit, or parts that are gathered in the wrong order, change the output; these are [`Fault`]s. There are no
//! states, encoders or transfers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_model::executor::check;
use foretoken_model::{
    Batch, CacheEdit, CacheRows, Capacity, Executor, ExecutorError, Group, HiddenStates, HostOutputs, Keep, Outputs,
    PageId, PageTable, SavedBytes, Source, Span,
};
use foretoken_speculation::Token;

use crate::table::Table;
use crate::toy::{Fault, HIDDEN_LAYERS, HIDDEN_WIDTH, hidden_state};

/// Number of ranks.
const RANKS: usize = 2;
/// Tokens are split into two digits in this base, which is so small that both digits vary in the smallest vocabularies.
const BASE: Token = 3;

/// One of the two ranks.
struct Rank {
    /// The digit of a token that the rank keeps: 0 is the low one.
    digit: usize,
    /// The digits that it keeps, by cache group and slot.
    slots: Vec<Vec<Token>>,
    /// The tokens whose logits the rank computes.
    vocabulary: Range<usize>,
}

impl Rank {
    /// The rank's digit of a token.
    fn digit_of(&self, token: Token) -> Token {
        [token % BASE, token / BASE][self.digit]
    }

    fn copy(&mut self, groups: &[Group], [from, to]: [&[PageTable]; 2], [source, target]: [usize; 2]) {
        for ((slots, group), (from, to)) in self.slots.iter_mut().zip(groups).zip(from.iter().zip(to)) {
            if let (Some(source), Some(target)) = (slot(group, from, source), slot(group, to, target)) {
                slots[target] = slots[source];
            }
        }
    }
}

/// The slot of a position, unless its page was freed.
fn slot(group: &Group, table: &PageTable, position: usize) -> Option<usize> {
    let page = table[position / group.page_len];
    (page != PageId::GONE).then(|| page.0 as usize * group.page_len + position % group.page_len)
}

/// A [`Table`] on two ranks, as one [`Executor`].
pub struct RanksExecutor {
    table: Table,
    capacity: Capacity,
    ranks: [Rank; RANKS],
    open_count: Arc<AtomicUsize>,
    outputs: HostOutputs,
    fault: Fault,
}

impl RanksExecutor {
    /// Two ranks with `pages` pages of `page_len` positions each, and passes of up to `rows_max` rows.
    pub fn new(table: Table, page_len: usize, pages: usize, rows_max: usize) -> Self {
        let vocabulary = table.vocabulary();
        let capacity = Capacity {
            vocabulary,
            context_max: page_len * pages,
            rows_max,
            groups: vec![Group::attention(page_len, pages)],
            hidden: HiddenStates { layers: HIDDEN_LAYERS, width: HIDDEN_WIDTH },
            ..Capacity::default()
        };
        let rank = |digit: usize| Rank {
            digit,
            slots: vec![vec![0; page_len * pages]],
            vocabulary: vocabulary * digit / RANKS..vocabulary * (digit + 1) / RANKS,
        };
        let outputs = HostOutputs { vocabulary, ..HostOutputs::default() };
        Self { table, capacity, ranks: [0, 1].map(rank), open_count: Arc::default(), outputs, fault: Fault::None }
    }

    /// Adds a second cache group, like [`ToyExecutor::with_window`](crate::toy::ToyExecutor::with_window).
    pub fn with_window(mut self, window: usize, sequences: usize) -> Self {
        let page_len = self.capacity.groups[0].page_len;
        let held = Group::window(window, page_len, 0).pages_held(usize::MAX, self.capacity.rows_max);
        let group = Group::window(window, page_len, held * sequences);
        self.ranks.iter_mut().for_each(|rank| rank.slots.push(vec![0; page_len * group.pages]));
        self.capacity.groups.push(group);
        self
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

    /// Applies a change to the cache of each rank.
    fn each(&mut self, mut change: impl FnMut(&mut Rank, &[Group])) {
        // With this fault the change does not reach the second rank.
        let reached = if self.fault == Fault::RankNotReached { 1 } else { RANKS };
        self.ranks.iter_mut().take(reached).for_each(|rank| change(rank, &self.capacity.groups));
    }

    /// The tokens that row `i` of a span attends to in a cache group, gathered from both ranks' digits.
    fn context(&self, group: usize, span: &Span<'_>, i: usize) -> Vec<Token> {
        let path = std::iter::successors(Some(i), |row| span.parent(*row)).map(|row| span.start + row);
        let mut positions: Vec<usize> = path.chain((0..span.start).rev()).collect();
        if let Keep::Window(window) = self.capacity.groups[group].keep {
            positions.truncate(window);
        }
        positions.reverse();
        let of_rank = |rank: &Rank| -> Vec<Token> {
            let slot = |position| slot(&self.capacity.groups[group], &span.tables[group], position);
            positions.iter().map(|position| rank.slots[group][slot(*position).expect("a page that is held")]).collect()
        };
        let [low, high] = [0, 1].map(|rank| of_rank(&self.ranks[rank]));
        low.into_iter().zip(high).map(|(low, high)| high * BASE + low).collect()
    }
}

impl Executor for RanksExecutor {
    fn open(&mut self, _sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        assert!(source.is_none(), "a source without an encoder: {source:?}");
        self.open_count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn release(&mut self, sequence: u64) {
        let before = self.open_count.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "sequence {sequence} was not open");
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        check(batch, &self.capacity)?;
        for span in batch.spans {
            for (i, token) in span.tokens.iter().enumerate().skip(span.computed) {
                for rank in &mut self.ranks {
                    let digit = rank.digit_of(*token);
                    for ((slots, group), table) in rank.slots.iter_mut().zip(&self.capacity.groups).zip(span.tables) {
                        slots[slot(group, table, span.start + i).expect("a new row has its page")] = digit;
                    }
                }
            }
        }
        let (mut logits, mut hidden) = (Vec::new(), vec![Vec::new(); batch.hidden_layers.len()]);
        for span in batch.spans {
            for row in span.hidden {
                let context = self.context(0, span, *row as usize);
                for (layer, out) in batch.hidden_layers.iter().zip(&mut hidden) {
                    out.extend(hidden_state(*layer, &context));
                }
            }
            for row in span.wanted {
                let context = self.context(self.capacity.groups.len() - 1, span, *row as usize);
                let part = |rank: &Rank| self.table.logits(&context)[rank.vocabulary.clone()].to_vec();
                let mut parts = [0, 1].map(|rank| part(&self.ranks[rank]));
                if self.fault == Fault::PartsSwapped {
                    parts.reverse();
                }
                logits.extend(parts.concat());
            }
        }
        let (vocabulary, width) = (self.capacity.vocabulary, HIDDEN_WIDTH);
        self.outputs = HostOutputs { vocabulary, logits, width, hidden, row_tokens: None };
        Ok(())
    }

    fn outputs(&self) -> &dyn Outputs {
        &self.outputs
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        self.each(|rank, groups| match &edit {
            CacheEdit::Move { tables, from, to } => {
                for (from, to) in from.iter().zip(*to..) {
                    rank.copy(groups, [tables, tables], [*from, to]);
                }
            }
            CacheEdit::Copy { from, to, positions } => {
                for position in positions.clone() {
                    rank.copy(groups, [from, to], [position; 2]);
                }
            }
        });
        Ok(())
    }

    fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    fn saved_bytes(&self, _group: usize) -> Option<SavedBytes> {
        Some(SavedBytes { state: 0, row: RANKS * size_of::<Token>() })
    }

    fn save_rows(&self, rows: CacheRows<'_>, out: &mut Vec<u8>) -> Result<(), ExecutorError> {
        for position in rows.positions {
            let at = slot(&self.capacity.groups[rows.group], rows.table, position).expect("a row that is there");
            self.ranks.iter().for_each(|rank| out.extend(rank.slots[rows.group][at].to_le_bytes()));
        }
        Ok(())
    }

    fn load_rows(&mut self, rows: CacheRows<'_>, bytes: &[u8]) -> Result<(), ExecutorError> {
        let (all, rest) = bytes.as_chunks();
        assert!(all.len() == RANKS * rows.positions.len() && rest.is_empty(), "{} bytes of {rows:?}", bytes.len());
        for (position, digits) in rows.positions.clone().zip(all.chunks_exact(RANKS)) {
            self.each(|rank, groups| {
                let at = slot(&groups[rows.group], rows.table, position).expect("a page for a loaded row");
                rank.slots[rows.group][at] = Token::from_le_bytes(digits[rank.digit]);
            });
        }
        Ok(())
    }
}
