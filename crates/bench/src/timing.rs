//! Times repeated passes of several rows after a context that is in the cache, and an encoder's reading of sources.
//!
//! A pass writes its rows after the context and they are not kept, so the next pass finds the same cache. A source is
//! read when its sequence is opened, and opened again to be read again.

use std::time::Instant;

use foretoken_console::interrupts::Interrupts;
use foretoken_console::progress;
use foretoken_model::{
    Batch, Executor, ExecutorError, HiddenInput, PageId, PageTable, Sent, Source, Span, Token, WeightsRead,
};

use super::generate::interval::median;
use super::{ROWS_WITH_LOGITS, logits};

/// The times of passes of one number of rows, ascending.
pub struct PassTimes {
    /// Rows of a pass.
    pub rows: usize,
    /// Seconds, ascending; at least one.
    pub seconds: Vec<f64>,
    /// The weights that each pass read, the same for all, since they had the same tokens; only the experts that had to
    /// be packed are those of the last pass.
    pub read: WeightsRead,
    /// What this process sent to others for a pass.
    pub sent: Sent,
}

impl PassTimes {
    fn of(rows: usize, seconds: Vec<f64>) -> Self {
        Self { rows, seconds, read: WeightsRead::default(), sent: Sent::default() }
    }

    /// The median, in milliseconds.
    pub fn median_ms(&self) -> f64 {
        1e3 * median(self.seconds.clone())
    }

    /// The least, in milliseconds.
    pub fn least_ms(&self) -> f64 {
        1e3 * self.seconds[0]
    }
}

/// The times of reading a source.
pub struct SourceTimes {
    /// Tokens of the source.
    pub len: usize,
    /// Seconds, ascending; at least one.
    pub seconds: Vec<f64>,
}

impl SourceTimes {
    /// The median, in milliseconds.
    pub fn median_ms(&self) -> f64 {
        1e3 * median(self.seconds.clone())
    }

    /// The least, in milliseconds.
    pub fn least_ms(&self) -> f64 {
        1e3 * self.seconds[0]
    }
}

/// A model whose passes are timed.
pub struct Timer {
    model: Box<dyn Executor>,
    tables: Vec<PageTable>,
    /// Positions of the context in the cache.
    cached: usize,
    interrupts: Interrupts,
}

impl Timer {
    /// A model with an empty cache, all of whose pages belong to one sequence.
    pub fn new(model: Box<dyn Executor>, interrupts: Interrupts) -> Self {
        let pages = model.capacity().groups.iter().map(|group| (0..group.pages as u32).map(PageId).collect());
        let tables = pages.collect();
        Self { model, tables, cached: 0, interrupts }
    }

    /// Opens the sequence with a source of `len` tokens, which the encoder reads once untimed and `repeat` times; the
    /// context is empty after it. After Ctrl-C it has only the times until then; `None` if there are none.
    ///
    /// # Errors
    /// The model cannot read the source.
    pub fn read_source(&mut self, len: usize, repeat: usize) -> Result<Option<SourceTimes>, ExecutorError> {
        let capacity = self.model.capacity();
        let pages = capacity.sources.as_ref().map_or(0, |sources| sources.pages_for(len));
        let table: PageTable = (0..pages as u32).map(PageId).collect();
        let tokens: Vec<Token> = (0..len).map(|position| token(position, capacity.vocabulary)).collect();
        let mut seconds = Vec::new();
        let bar = progress::bar("encoder", repeat + 1);
        for repetition in 0..=repeat {
            if !self.interrupts.may_continue() {
                break;
            }
            self.model.release(0);
            self.cached = 0;
            let start = Instant::now();
            self.model.open(0, Some(Source { tokens: &tokens, table: &table, is_computed: false }))?;
            if repetition > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        seconds.sort_by(f64::total_cmp);
        Ok((!seconds.is_empty()).then_some(SourceTimes { len, seconds }))
    }

    /// The times of passes of each number of `rows` after `context` tokens; contexts ascend, from one source to the
    /// next ([`Timer::read_source`]). After Ctrl-C only those that were timed.
    ///
    /// # Errors
    /// The model cannot run the pass.
    pub fn passes(&mut self, context: usize, rows: &[usize], repeat: usize) -> Result<Vec<PassTimes>, ExecutorError> {
        if self.model.capacity().sources.is_none() {
            self.model.open(0, None)?;
        }
        self.fill(context)?;
        let mut all: Vec<PassTimes> = rows.iter().map(|rows| PassTimes::of(*rows, Vec::new())).collect();
        let bar = progress::bar("timing", (repeat + 1) * rows.len());
        for repetition in 0..=repeat {
            for times in &mut all {
                if !self.interrupts.may_continue() {
                    break;
                }
                // Untimed: the first repetition allocates buffers, and short passes are timed after one of their own
                // kind, because a long pass leaves other data in the processor's caches than decoding finds there.
                if repetition == 0 || times.rows <= ROWS_WITH_LOGITS {
                    self.pass(times.rows)?;
                }
                if repetition > 0 {
                    times.seconds.push(self.pass(times.rows)?);
                    (times.read, times.sent) = (self.model.weights_read(), self.model.sent());
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        all.retain(|times| !times.seconds.is_empty());
        all.iter_mut().for_each(|times| times.seconds.sort_by(f64::total_cmp));
        Ok(all)
    }

    /// Computes the context's tokens up to `context`.
    fn fill(&mut self, context: usize) -> Result<(), ExecutorError> {
        assert!(context >= self.cached, "bench: contexts ascend, found {context} after {}", self.cached);
        let bar = progress::bar("context", context - self.cached);
        while self.cached < context && self.interrupts.may_continue() {
            let len = self.model.capacity().rows_max.min(context - self.cached);
            self.forward(len, &[])?;
            self.cached += len;
            bar.inc(len as u64);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Seconds of one pass of `rows` rows after the context.
    fn pass(&mut self, rows: usize) -> Result<f64, ExecutorError> {
        let wanted: Vec<u32> = (rows - logits(rows)..rows).map(|row| row as u32).collect();
        let start = Instant::now();
        self.forward(rows, &wanted)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Runs one pass of `len` rows after the context.
    fn forward(&mut self, len: usize, wanted: &[u32]) -> Result<(), ExecutorError> {
        let vocabulary = self.model.capacity().vocabulary;
        let tokens: Vec<Token> = (self.cached..self.cached + len).map(|at| token(at, vocabulary)).collect();
        let span = Span {
            sequence: 0,
            tables: &self.tables,
            start: self.cached,
            tokens: &tokens,
            parents: &[],
            // The context's rows are kept, those of a timed pass are not.
            certain: if wanted.is_empty() { len } else { 0 },
            computed: 0,
            wanted,
            hidden: &[],
            hidden_in: HiddenInput::None,
        };
        self.model.forward(&Batch { spans: &[span], hidden_layers: &[] })
    }
}

/// The token at a position. It does not matter which, except with experts: these tokens are spread over the embedding,
/// so their rows choose experts independently, while a text's rows would choose more alike.
fn token(position: usize, vocabulary: usize) -> Token {
    (position * 7919 % vocabulary) as Token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_lies_between_the_two() {
        let times = |seconds: &[f64]| PassTimes::of(1, seconds.to_vec());
        assert_eq!(times(&[0.25]).median_ms(), 250.0);
        assert_eq!(times(&[0.25, 0.5, 4.0]).median_ms(), 500.0);
        assert_eq!(times(&[0.25, 0.5, 1.0, 4.0]).median_ms(), 750.0);
        assert_eq!(times(&[0.25, 0.5]).least_ms(), 250.0);
    }
}
