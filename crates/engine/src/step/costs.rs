//! The costs of passes and drafters before the first request: given, from an earlier run, or measured.
//!
//! `planner/meter.rs` learns them from the passes that serve requests.

use foretoken_model::{Batch, Capacity, PageId, PageTable, Source, Span};
use foretoken_speculation::{Costs, Tenant};

use super::Engine;
use crate::planner::{CostRecord, PassTiming};

/// Rows of the passes that are measured at the start. The first pass finds cold caches; if it were that of one row, all
/// further rows would seem free, so that comes last.
const MEASURED_ROWS: [usize; 3] = [8, 16, 1];
/// The greatest of them.
const MEASURED_ROWS_MAX: usize = 16;
/// The number of the sequence on which passes are measured; no request has it.
const MEASURED_SEQUENCE: u64 = u64::MAX;

impl Engine {
    /// The learned costs of passes and drafters.
    pub fn costs(&self) -> &Costs {
        self.planner.meter.costs()
    }

    /// Fixes the costs, those of drafters by number, whatever passes take: then no draft depends on the clock.
    pub fn hold_costs(&mut self, costs: Costs) {
        self.planner.meter.hold(costs);
    }

    /// Continues from the record of an earlier run ([`Engine::cost_record`]), which later passes correct.
    pub fn resume_costs(&mut self, record: &CostRecord) {
        self.planner.meter.resume(record);
    }

    /// The measured times, for a later run.
    pub fn cost_record(&self) -> CostRecord {
        self.planner.meter.record()
    }

    /// Measures passes of 1, 8 and 16 rows and steps of drafters, each once, unless similar times are known. Without it
    /// the same is learned from the passes of requests, a little later. To be called before the first request.
    pub fn measure_costs(&mut self) {
        if !self.is_idle() || !self.sources.is_empty() {
            return;
        }
        let Capacity { rows_max, vocabulary, hidden, .. } = *self.executor.capacity();
        self.drafters.measure(&mut self.planner.meter, &*self.clock, [vocabulary, hidden.width]);
        let unknown = MEASURED_ROWS.into_iter().filter(|rows| !self.planner.meter.knows_pass(*rows));
        let unknown: Vec<usize> = unknown.collect();
        if unknown.is_empty() {
            return;
        }
        let len = self.context.min(MEASURED_ROWS_MAX).min(rows_max);
        let mut pages = self.pages.open(Tenant::default(), 0);
        if !self.pages.grow(&mut pages, len) {
            return;
        }
        // A source of one token, if there is an encoder.
        let table = PageTable::from([PageId(0)]);
        let source = Source { tokens: &[0], table: &table, is_computed: false };
        let source = self.executor.capacity().sources.as_ref().map(|_| source);
        if self.executor.open(MEASURED_SEQUENCE, source).is_err() {
            return self.pages.release(&mut pages, &[]);
        }
        // Tokens from the whole vocabulary, since rows of one token would all choose the same experts. Each twice: rows
        // of real sequences partly choose the same experts, and eight rows of a trained network read about as many as
        // four unrelated rows.
        let tokens: [u32; MEASURED_ROWS_MAX] =
            std::array::from_fn(|row| (row / 2 * 2 * vocabulary / MEASURED_ROWS_MAX) as u32);
        let wanted: Vec<u32> = (0..len as u32).collect();
        for rows in unknown.into_iter().filter(|rows| *rows <= rows_max.min(len)) {
            let span = Span {
                sequence: MEASURED_SEQUENCE,
                tables: pages.tables(),
                start: 0,
                tokens: &tokens[..rows],
                wanted: &wanted[..rows],
                ..Span::default()
            };
            // If experts had to be packed, the same pass runs once more and finds them packed.
            for _ in 0..2 {
                let started = self.clock.now();
                let ran = self.executor.forward(&Batch { spans: &[span], hidden_layers: &[] });
                let (Ok(()), Some(time)) = (ran, self.clock.since(started)) else { break };
                let read = self.executor.weights_read();
                self.planner.meter.learn_pass(PassTiming { rows, wanted: rows, seconds: time.as_secs_f64(), read }, 0);
                if read.packed == 0 {
                    break;
                }
            }
        }
        self.executor.release(MEASURED_SEQUENCE);
        self.pages.release(&mut pages, &[]);
    }
}
