//! A language model as a drafter sees it: tokens in, logits after them out, and a KV cache that goes back.
//!
//! Implemented over an executor in `engine`, and by tables in tests. Batched from the start: one call scores the spans
//! of all sequences. A span is a chain or a tree behind what is cached, and may grow: rows that an earlier call has
//! computed are named and not run again. A model that has no room for a sequence says so by empty rows; it is then not
//! drafted for, and nothing else happens.
//!
//! Left out: sampling, which is the drafter's, and what to keep, which it says by [`Scorer::truncate`] and
//! [`Scorer::keep_path`].

use foretoken_speculation::{SequenceId, Tenant, Token};

/// "Run these tokens of this sequence, and give me the logits after some of them."
#[derive(Copy, Clone, Debug)]
pub struct ScoreAsk<'a> {
    /// The sequence, opened before.
    pub sequence: SequenceId,
    /// Number of its tokens that are cached for good; the span's rows lie behind them, in order.
    pub start: usize,
    /// The tokens of the span, at least one that is not computed.
    pub tokens: &'a [Token],
    /// For each row the earlier row of the span that it continues, `None`: what is cached for good. Empty means a
    /// chain.
    pub parents: &'a [Option<u32>],
    /// So many leading rows of the span were computed by earlier calls, and nothing was kept or forgotten since.
    pub computed: usize,
    /// The rows whose logits are wanted, ascending, none of the computed ones.
    pub wanted: &'a [u32],
    /// So many first tokens of the sequence, cached ones included, are final as far as anybody knows: a network with a
    /// recurrent state brings it forward by these and no others. Not what a draft model has drafted itself, and not the
    /// end of a text that another vocabulary may cut into other tokens yet.
    pub certain: usize,
}

/// Logits, one row for each wanted one of each ask in turn, in one block of memory that is used again.
#[derive(Clone, Debug, Default)]
pub struct LogitRows {
    values: Vec<f32>,
    /// Start and end of each row in `values`; `None` where nothing could be scored.
    spans: Vec<Option<(usize, usize)>>,
}

impl LogitRows {
    /// No rows.
    pub fn new() -> LogitRows {
        LogitRows::default()
    }

    /// Forgets the rows and keeps the memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.spans.clear();
    }

    /// Appends the next row, `None` if it could not be scored.
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

    /// Takes back what was said of rows that turned out to belong to an ask that cannot be run.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer rows.
    pub fn refuse(&mut self, rows: std::ops::Range<usize>) {
        self.spans[rows].fill(None);
    }

    /// The row of this index, `None` if it could not be scored.
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

/// How many first tokens two texts have in common. Mostly one of them is the beginning of the other, which is one
/// comparison of memory.
pub(crate) fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    let len = a.len().min(b.len());
    if a[..len] == b[..len] { len } else { a.iter().zip(b).take_while(|(a, b)| a == b).count() }
}

/// A language model with a cache per sequence.
pub trait Scorer: Send {
    /// Gets ready for a sequence, with nothing cached. `tenant`: on whose behalf. What was computed for another
    /// sequence of the same tenant may be taken over ([`Scorer::adopt`]).
    fn open(&mut self, sequence: SequenceId, tenant: Tenant);

    /// Takes over what was computed elsewhere of these tokens, for a sequence of which nothing is cached; how many
    /// first ones are now cached for good. None by default, for models that share nothing.
    fn adopt(&mut self, _sequence: SequenceId, _tokens: &[Token]) -> usize {
        0
    }

    /// Runs every ask in one pass and appends to `rows` the wanted rows of the first ask, then of the second, and so
    /// on: logits over the target's vocabulary. Rows of an ask that cannot be run are all `None`, and its cache is as
    /// before. A single row may be `None` where nothing can be said after its token: it is cached like the others of
    /// its ask, and the branch is not continued there.
    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows);

    /// Forgets what is cached of the sequence beyond its first `len` rows: tokens cached for good, then rows of a span.
    /// How many are left: fewer where it cannot go back just so far, and the drafter runs the others again.
    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize;

    /// Of the span behind the first `start` tokens, keeps these rows for good and forgets the others. `rows`: from the
    /// span's first level downwards, each the parent of the next.
    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]);

    /// Forgets the sequence.
    fn close(&mut self, sequence: SequenceId);

    /// Most tokens of a sequence that can be run.
    fn context_max(&self) -> usize;

    /// How many wanted rows so far had a logit that is NaN. Such a row is `None`.
    fn not_numbers(&self) -> u64 {
        0
    }
}
