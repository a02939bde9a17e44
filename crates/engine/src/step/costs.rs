//! What passes cost, before the first of them: from an earlier run, or measured.
//!
//! Left out: what is learned from the passes that are made anyway (`meter`).

use foretoken_model::{Batch, Capacity, PageId, PageTable, Source, Span};
use foretoken_speculation::{Costs, Tenant};

use super::Engine;
use crate::meter::{CostRecord, Made};

/// Rows of the passes that are measured at the start. The first meets cold caches; that one row looked dear would make
/// all others look free, so it comes last.
const MEASURED: [usize; 3] = [8, 16, 1];
/// The number of the sequence that is measured; no request has it.
const MEASURING: u64 = u64::MAX;
/// The most of them.
const MEASURED_MAX: usize = 16;

impl Engine {
    /// What passes and drafts take, as far as it is known.
    pub fn costs(&self) -> &Costs {
        self.meter.costs()
    }

    /// Goes by these costs, the drafters by number, whatever passes take: then nothing that is drafted depends on the
    /// clock.
    pub fn hold_costs(&mut self, costs: Costs) {
        self.meter.hold(costs);
    }

    /// Goes on from what an earlier run knew ([`Engine::cost_record`]); the passes that are made correct it.
    pub fn resume_costs(&mut self, record: &CostRecord) {
        self.meter.resume(record);
    }

    /// What a later run may go on from.
    pub fn cost_record(&self) -> CostRecord {
        self.meter.record()
    }

    /// Measures what passes of 1, 8 and 16 rows and steps of drafters take, each once, as far as nothing like it is
    /// known. Without it the passes that are made teach the same, a little later. To be called before the first
    /// request.
    pub fn measure_costs(&mut self) {
        if !self.is_idle() || !self.sources.is_empty() {
            return;
        }
        let Capacity { rows_max, vocabulary, hidden, .. } = *self.executor.capacity();
        self.drafters.measure(&mut self.meter, &*self.clock, [vocabulary, hidden.width]);
        let unknown = MEASURED.into_iter().filter(|rows| !self.meter.knows_pass(*rows));
        let unknown: Vec<usize> = unknown.collect();
        if unknown.is_empty() {
            return;
        }
        let len = self.context.min(MEASURED_MAX).min(rows_max);
        let mut pages = self.pages.open(Tenant::default(), 0);
        if !self.pages.grow(&mut pages, len) {
            return;
        }
        // About nothing much, where there is an encoder.
        let table = PageTable::from([PageId(0)]);
        let source = Source { tokens: &[0], table: &table, is_computed: false };
        let source = self.executor.capacity().sources.as_ref().map(|_| source);
        if self.executor.open(MEASURING, source).is_err() {
            return self.pages.release(&mut pages, &[]);
        }
        // From all over the vocabulary, since rows of one token would all choose the same experts. Each twice: rows of
        // a text choose partly like their neighbours, and eight of a trained network read about what four strangers do.
        let tokens: [u32; MEASURED_MAX] = std::array::from_fn(|row| (row / 2 * 2 * vocabulary / MEASURED_MAX) as u32);
        let wanted: Vec<u32> = (0..len as u32).collect();
        for rows in unknown.into_iter().filter(|rows| *rows <= rows_max.min(len)) {
            let span = Span {
                sequence: MEASURING,
                tables: pages.tables(),
                start: 0,
                tokens: &tokens[..rows],
                wanted: &wanted[..rows],
                ..Span::default()
            };
            // Where experts had to be packed, the same pass once more finds them.
            for _ in 0..2 {
                let started = self.clock.now();
                let ran = self.executor.forward(&Batch { spans: &[span], hidden_layers: &[] });
                let (Ok(()), Some(time)) = (ran, self.clock.since(started)) else { break };
                let read = self.executor.read();
                self.meter.learn_pass(Made { rows, wanted: rows, seconds: time.as_secs_f64(), read }, 0);
                if read.packed == 0 {
                    break;
                }
            }
        }
        self.executor.release(MEASURING);
        self.pages.release(&mut pages, &[]);
    }
}
