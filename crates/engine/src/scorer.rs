//! A network as a drafter sees it: an executor and page bookkeeping behind `Scorer`.
//!
//! Draft models have a cache and pages of their own. A draft sequence grows without a known end, so it reserves
//! room as it goes; where there is none it is not scored, and its drafter stays silent. Left out: drafting itself.

use std::collections::BTreeMap;

use foretoken_model::{Batch, Executor, ExecutorError, Outputs, PageTable, Span};
use foretoken_speculation::{Rows, ScoreAsk, Scorer, SequenceId};

use crate::pages::Pages;

/// An executor with one cache of its own, for a drafter.
pub struct ExecutorScorer {
    executor: Box<dyn Executor>,
    pages: Pages,
    sequences: BTreeMap<SequenceId, Held>,
    outputs: Outputs,
}

/// What a sequence has of the cache.
struct Held {
    tables: Vec<PageTable>,
    /// Positions reserved.
    reserved: usize,
}

/// A part of an ask in one pass.
struct Part {
    ask: usize,
    take: usize,
    /// The last row of the part, wanted if it ends the ask.
    wanted: Option<[u32; 1]>,
}

impl ExecutorScorer {
    /// Takes over an executor, all of whose pages are free.
    pub fn new(executor: Box<dyn Executor>) -> Self {
        let pages = Pages::new(&executor.capacity().groups);
        Self { executor, pages, sequences: BTreeMap::new(), outputs: Outputs::default() }
    }

    /// The executor, for questions about it.
    pub fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    /// Makes room for `len` positions of a sequence, if there is any.
    fn make_room(&mut self, sequence: SequenceId, len: usize) -> bool {
        let held = self.sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if len > self.executor.capacity().context_max {
            return false;
        }
        if len > held.reserved {
            if !self.pages.enlarge(held.reserved, len) {
                return false;
            }
            held.reserved = len;
        }
        self.pages.grow(&mut held.tables, len);
        true
    }

    /// Runs the given parts in one pass, or each in one of its own if the executor refuses them together. Appends the
    /// rows of the asks that are complete; asks that cannot be run count as done without one.
    fn run(&mut self, asks: &[ScoreAsk<'_>], done: &mut [usize], parts: &[Part], rows: &mut Rows) {
        match (self.forward(asks, done, parts), parts) {
            (Ok(()), parts) => {
                // Rows are dealt out in order of the asks, so asks are completed in this order too; those that were
                // passed over could not be run.
                for (row, part) in parts.iter().filter(|part| part.wanted.is_some()).enumerate() {
                    (rows.len()..part.ask).for_each(|_| rows.push(None));
                    rows.push(Some(self.outputs.row(row)));
                }
                parts.iter().for_each(|part| done[part.ask] += part.take);
            }
            (Err(_), [part]) => done[part.ask] = asks[part.ask].tokens.len(),
            (Err(_), parts) => parts.iter().for_each(|part| self.run(asks, done, std::slice::from_ref(part), rows)),
        }
    }

    fn forward(&mut self, asks: &[ScoreAsk<'_>], done: &[usize], parts: &[Part]) -> Result<(), ExecutorError> {
        let spans: Vec<Span<'_>> = parts
            .iter()
            .map(|part| {
                let (ask, done) = (&asks[part.ask], done[part.ask]);
                Span {
                    sequence: ask.sequence.0,
                    tables: &self.sequences[&ask.sequence].tables,
                    start: ask.start + done,
                    tokens: &ask.tokens[done..done + part.take],
                    parents: &[],
                    wanted: part.wanted.as_ref().map_or(&[], |row| row.as_slice()),
                }
            })
            .collect();
        self.executor.forward(&Batch { spans: &spans, hidden_layers: &[] }, &mut self.outputs)
    }
}

impl Scorer for ExecutorScorer {
    fn open(&mut self, sequence: SequenceId) {
        self.sequences.insert(sequence, Held { tables: self.pages.tables(), reserved: 0 });
    }

    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut Rows) {
        rows.clear();
        let rows_max = self.executor.capacity().rows_max;
        let mut done: Vec<usize> = vec![0; asks.len()];
        for (ask, done) in asks.iter().zip(&mut done) {
            if !self.make_room(ask.sequence, ask.start + ask.tokens.len()) {
                *done = ask.tokens.len(); // nothing left to do for it, and no row
            }
        }
        loop {
            let (mut left, mut parts) = (rows_max, Vec::new());
            for (i, ask) in asks.iter().enumerate() {
                let rest = ask.tokens.len() - done[i];
                let take = rest.min(left);
                if take > 0 {
                    left -= take;
                    parts.push(Part { ask: i, take, wanted: (take == rest).then_some([take as u32 - 1]) });
                }
            }
            if parts.is_empty() {
                break;
            }
            self.run(asks, &mut done, &parts, rows);
        }
        (rows.len()..asks.len()).for_each(|_| rows.push(None));
    }

    fn keep(&mut self, sequence: SequenceId, len: usize) {
        if let Some(held) = self.sequences.get_mut(&sequence) {
            self.pages.keep(&mut held.tables, len);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if let Some(mut held) = self.sequences.remove(&sequence) {
            self.pages.release(&mut held.tables, held.reserved);
        }
    }

    fn context_max(&self) -> usize {
        self.executor.capacity().context_max
    }
}
