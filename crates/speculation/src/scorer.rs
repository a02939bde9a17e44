//! A language model as a drafter sees it: tokens in, the logits after the last of them out, and a cache that goes back.
//!
//! Implemented over an executor in `engine`, and by tables in tests. Batched from the start: one call scores all
//! sequences one step further. A model that has no room for a sequence says so by an empty row; it is then not drafted
//! for, and nothing else happens.
//!
//! Left out: positions inside the draft (a scorer sees chains only) and sampling, which is the drafter's.

use crate::{SequenceId, Token};

/// "Run these tokens of this sequence, and give me the logits after the last."
#[derive(Copy, Clone, Debug)]
pub struct ScoreAsk<'a> {
    /// The sequence, opened before.
    pub sequence: SequenceId,
    /// Number of its tokens that are cached already; the position of `tokens[0]`.
    pub start: usize,
    /// What to run, at least one token.
    pub tokens: &'a [Token],
}

/// Logits, one row per ask, in one block of memory that is used again.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    values: Vec<f32>,
    /// Start and end of each row in `values`; `None` where nothing could be scored.
    spans: Vec<Option<(usize, usize)>>,
}

impl Rows {
    /// No rows.
    pub fn new() -> Rows {
        Rows::default()
    }

    /// Forgets the rows and keeps the memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.spans.clear();
    }

    /// Appends the row of the next ask, `None` if it could not be scored.
    pub fn push(&mut self, row: Option<&[f32]>) {
        self.spans.push(row.map(|row| {
            let start = self.values.len();
            self.values.extend_from_slice(row);
            (start, self.values.len())
        }));
    }

    /// Appends a row of zeros and returns it to be filled in place.
    pub fn push_zeros(&mut self, width: usize) -> &mut [f32] {
        let start = self.values.len();
        self.values.resize(start + width, 0.0);
        self.spans.push(Some((start, start + width)));
        &mut self.values[start..]
    }

    /// The row of the ask at this place, `None` if it could not be scored.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer rows.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.spans[index].map(|(start, end)| &self.values[start..end])
    }

    /// Number of rows, scored or not.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

/// A language model with a cache per sequence.
pub trait Scorer {
    /// Gets ready for a sequence, with nothing cached.
    fn open(&mut self, sequence: SequenceId);

    /// Runs every ask in one pass and writes into `rows` (cleared first) one row per ask: the logits after its last
    /// token, over the target's vocabulary, or `None` if this ask could not be run, in which case its cache is as before.
    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut Rows);

    /// Forgets what is cached of the sequence beyond its first `len` tokens.
    fn keep(&mut self, sequence: SequenceId, len: usize);

    /// Forgets the sequence.
    fn close(&mut self, sequence: SequenceId);

    /// Most tokens of a sequence that can be run.
    fn context_max(&self) -> usize;
}
