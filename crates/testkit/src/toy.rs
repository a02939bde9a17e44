//! A table model behind the engine's executor trait, with a cache that can be got wrong.
//!
//! The cache of a real network holds keys and values; this one holds the token itself, in the slot that the page
//! table names. A row's context is read back through the page table and the tree, as attention would, so a page
//! that is lost, a row that is not moved or a sibling that is seen shows up as another context, and another text.
//! [`Fault`] makes such mistakes on purpose.

use foretoken_model::batch::check;
use foretoken_model::{Batch, CacheEdit, Capacity, Executor, ExecutorError, Group, Outputs, PageTable, Span};
use foretoken_speculation::Token;

use crate::table::Table;

/// A mistake that an executor can make. Each must turn a test red.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None: the healthy executor.
    None,
    /// Accepted rows stay where the tree had them.
    RowsNotMoved,
    /// A row of a tree sees the row before it instead of its parent.
    SiblingsSeen,
    /// The logits of a row depend, a little, on how many rows the pass has.
    RowsKnowTheirNeighbours,
    /// The last cached row is forgotten where a page ends.
    PageForgotten,
}

/// What a slot holds before anything is stored there.
const NOTHING: Token = Token::MAX;

/// A [`Table`] as an [`Executor`].
pub struct ToyExecutor {
    table: Table,
    capacity: Capacity,
    slots: Vec<Token>,
    fault: Fault,
}

impl ToyExecutor {
    /// A healthy executor with `pages` pages of `page_len` positions, and passes of up to `rows_max` rows.
    pub fn new(table: Table, page_len: usize, pages: usize, rows_max: usize) -> Self {
        let capacity = Capacity {
            vocabulary: table.vocabulary(),
            context_max: page_len * pages,
            rows_max,
            groups: vec![Group { page_len, pages }],
        };
        Self { table, slots: vec![NOTHING; page_len * pages], capacity, fault: Fault::None }
    }

    /// The same with a mistake.
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = fault;
        self
    }

    fn slot(&self, table: &PageTable, position: usize) -> usize {
        let page_len = self.capacity.groups[0].page_len;
        table[position / page_len].0 as usize * page_len + position % page_len
    }

    /// The tokens that row `i` of a span sees, itself included, read from the cache.
    fn context(&self, span: &Span<'_>, i: usize) -> Vec<Token> {
        let table = &span.tables[0];
        let mut places: Vec<usize> = Vec::new();
        let mut at = Some(i);
        while let Some(row) = at {
            places.push(span.start + row);
            at = if self.fault == Fault::SiblingsSeen { row.checked_sub(1) } else { span.parent(row) };
        }
        places.extend((0..span.start).rev());
        if self.fault == Fault::PageForgotten
            && span.start > 0
            && span.start.is_multiple_of(self.capacity.groups[0].page_len)
        {
            places.retain(|place| *place != span.start - 1);
        }
        places.iter().rev().map(|place| self.slots[self.slot(table, *place)]).collect()
    }
}

impl Executor for ToyExecutor {
    fn forward(&mut self, batch: &Batch<'_>, outputs: &mut Outputs) -> Result<(), ExecutorError> {
        check(batch, &self.capacity)?;
        outputs.vocabulary = self.capacity.vocabulary;
        outputs.logits.clear();
        let rows: usize = batch.spans.iter().map(|span| span.tokens.len() - span.computed).sum();
        for span in batch.spans {
            for (i, token) in span.tokens.iter().enumerate().skip(span.computed) {
                let slot = self.slot(&span.tables[0], span.start + i);
                self.slots[slot] = *token;
            }
            for row in span.wanted {
                let context = self.context(span, *row as usize);
                let mut logits = self.table.logits(&context);
                if self.fault == Fault::RowsKnowTheirNeighbours {
                    logits.iter_mut().for_each(|logit| *logit += rows as f32 * 1e-6 * *logit);
                }
                outputs.logits.extend(logits);
            }
        }
        Ok(())
    }

    fn rows(&mut self, edit: CacheEdit<'_>) {
        let CacheEdit::Move { tables, from, to } = edit;
        for (i, from) in from.iter().enumerate().filter(|_| self.fault != Fault::RowsNotMoved) {
            let (source, target) = (self.slot(&tables[0], *from), self.slot(&tables[0], to + i));
            self.slots[target] = self.slots[source];
        }
    }

    fn capacity(&self) -> &Capacity {
        &self.capacity
    }
}
