//! A network as a drafter sees it: an executor and page bookkeeping behind `Scorer`.
//!
//! Draft models have a cache and pages of their own. Where there is no room for a sequence it is not scored, and its
//! drafter stays silent. Left out: drafting itself.

use std::collections::BTreeMap;
use std::ops::Range;

use foretoken_drafters::{LogitRows, ScoreAsk, Scorer};
use foretoken_model::{Batch, CacheEdit, Executor, ExecutorError, Span};
use foretoken_speculation::{SequenceId, Tenant};

use crate::pages::{Pages, SequencePages};

/// An executor with one cache of its own, for a drafter.
pub struct ExecutorScorer {
    executor: Box<dyn Executor>,
    pages: Pages,
    sequences: BTreeMap<SequenceId, Held>,
}

/// What a sequence has of the cache.
struct Held {
    pages: SequencePages,
    /// Why its cache is not to be used any more.
    lost: Option<ExecutorError>,
}

/// A part of an ask in one pass.
struct AskPart {
    ask: usize,
    /// The rows of the span that it computes.
    rows: Range<usize>,
    /// Which of the ask's wanted rows are among them.
    wanted: Range<usize>,
}

impl ExecutorScorer {
    /// Takes over an executor, all of whose pages are free.
    pub fn new(executor: Box<dyn Executor>) -> Self {
        let pages = Pages::that_keep_all(executor.capacity());
        Self { executor, pages, sequences: BTreeMap::new() }
    }

    /// The executor, for questions about it.
    pub fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    /// Makes room for `len` rows of a sequence, if there is any. (A tree may have more rows than the context positions;
    /// the executor itself refuses positions that it does not have.)
    fn make_room(&mut self, sequence: SequenceId, len: usize) -> bool {
        let held = self.sequences.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        held.lost.is_none() && self.pages.grow(&mut held.pages, len)
    }

    /// Runs the given parts in one pass, or each in one of its own if the executor refuses them together. Appends the
    /// wanted rows, the first of all asks being row `first`; an ask that cannot be run counts as done, and its rows are
    /// empty.
    fn run(
        &mut self,
        asks: &[ScoreAsk<'_>],
        done: &mut [usize],
        parts: &[AskPart],
        rows: &mut LogitRows,
        first: usize,
    ) {
        match (self.forward(asks, parts), parts) {
            (Ok(()), parts) => {
                // An ask is only begun when those before it are complete, so rows come in order; what was passed over
                // could not be run.
                let outputs = self.executor.outputs();
                let mut row = 0;
                for part in parts {
                    let before = first + asks[..part.ask].iter().map(|ask| ask.wanted.len()).sum::<usize>();
                    (rows.len()..before + part.wanted.start).for_each(|_| rows.push(None));
                    for _ in part.wanted.clone() {
                        rows.push(Some(outputs.row(row)));
                        row += 1;
                    }
                    done[part.ask] = part.rows.end;
                }
            }
            (Err(_), [part]) => {
                let before = first + asks[..part.ask].iter().map(|ask| ask.wanted.len()).sum::<usize>();
                rows.refuse(before.min(rows.len())..(before + part.wanted.start).min(rows.len()));
                done[part.ask] = asks[part.ask].tokens.len();
            }
            (Err(_), parts) => {
                parts.iter().for_each(|part| self.run(asks, done, std::slice::from_ref(part), rows, first));
            }
        }
    }

    fn forward(&mut self, asks: &[ScoreAsk<'_>], parts: &[AskPart]) -> Result<(), ExecutorError> {
        let spans: Vec<Span<'_>> = parts
            .iter()
            .map(|part| {
                let ask = &asks[part.ask];
                Span {
                    sequence: ask.sequence.0,
                    tables: self.sequences[&ask.sequence].pages.tables(),
                    start: ask.start,
                    tokens: &ask.tokens[..part.rows.end],
                    computed: part.rows.start,
                    parents: &ask.parents[..part.rows.end.min(ask.parents.len())],
                    wanted: &ask.wanted[part.wanted.clone()],
                    hidden: &[],
                }
            })
            .collect();
        self.executor.forward(&Batch { spans: &spans, hidden_layers: &[] })
    }
}

impl Scorer for ExecutorScorer {
    fn open(&mut self, sequence: SequenceId) {
        self.sequences.insert(sequence, Held { pages: self.pages.open(Tenant::default(), 0), lost: None });
    }

    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        let first = rows.len();
        let rows_max = self.executor.capacity().rows_max;
        let mut done: Vec<usize> = asks.iter().map(|ask| ask.computed).collect();
        for (ask, done) in asks.iter().zip(&mut done) {
            if !self.make_room(ask.sequence, ask.start + ask.tokens.len()) {
                *done = ask.tokens.len(); // nothing left to do for it, and no rows
            }
        }
        loop {
            let (mut left, mut parts) = (rows_max, Vec::with_capacity(asks.len()));
            for (i, ask) in asks.iter().enumerate() {
                let end = ask.tokens.len().min(done[i] + left);
                if end > done[i] {
                    left -= end - done[i];
                    let wanted =
                        [done[i], end].map(|row| ask.wanted.partition_point(|wanted| (*wanted as usize) < row));
                    parts.push(AskPart { ask: i, rows: done[i]..end, wanted: wanted[0]..wanted[1] });
                }
            }
            if parts.is_empty() {
                break;
            }
            self.run(asks, &mut done, &parts, rows, first);
        }
        let all = asks.iter().map(|ask| ask.wanted.len()).sum::<usize>();
        (rows.len()..first + all).for_each(|_| rows.push(None));
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        if let Some(held) = self.sequences.get_mut(&sequence) {
            self.pages.cut(&mut held.pages, len);
        }
    }

    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        if let Some(held) = self.sequences.get_mut(&sequence) {
            let from: Vec<usize> = rows.iter().map(|row| start + *row as usize).collect();
            // A path whose rows could not be moved is no state to draft from: from now on nothing of this sequence can
            // be scored, as where there is no room.
            let moved = self.executor.rows(CacheEdit::Move { tables: held.pages.tables(), from: &from, to: start });
            held.lost = held.lost.take().or(moved.err());
            self.pages.cut(&mut held.pages, start + from.len());
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if let Some(mut held) = self.sequences.remove(&sequence) {
            self.pages.release(&mut held.pages, &[]);
        }
    }

    fn context_max(&self) -> usize {
        self.executor.capacity().context_max
    }
}
