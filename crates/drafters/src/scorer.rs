//! A language model as a drafter sees it: tokens in, logits after them out, and a KV cache that goes back. A head reads
//! hidden rows beside the tokens, and says its own beside the logits.
//!
//! Implemented over an executor in `engine`, and by tables in tests. Batched from the start: one call scores the spans
//! of all sequences. A span is a chain or a tree behind what is cached, and may grow: rows that an earlier call has
//! computed are named and not run again. A model that has no room for a sequence says so by empty rows; it is then not
//! drafted for, and nothing else happens.
//!
//! Left out: sampling, which is the drafter's, and what to keep, which it says by [`Scorer::truncate`] and
//! [`Scorer::keep_path`].

use std::ops::Range;
use std::sync::Arc;

use foretoken_speculation::{SequenceId, Tenant, Token};

/// Hidden rows that a network reads beside its tokens, one for each row of a span that is not computed, in order. Each
/// is of the position before the row's: what was known when its token was chosen.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub enum HiddenInput<'a> {
    /// None: the network reads tokens alone.
    #[default]
    None,
    /// The target's, `[rows, width]`: for tokens of the text. A row is the hidden states of the layers that the network
    /// reads ([`Scorer::target_layers`]), one behind the other.
    Target(&'a [f32]),
    /// The network's own, `[rows, width]`: for its guesses. A row is what was said of the row that it continues
    /// ([`LogitRows::hidden`]).
    Own(&'a [f32]),
}

impl<'a> HiddenInput<'a> {
    /// Those of some of the rows, of so many in all.
    ///
    /// # Panics
    ///
    /// Panics if there are not so many rows.
    pub fn part(self, rows: Range<usize>, all: usize) -> HiddenInput<'a> {
        let of = |values: &'a [f32]| {
            let width = values.len() / all.max(1);
            &values[rows.start * width..rows.end * width]
        };
        match self {
            HiddenInput::None => HiddenInput::None,
            HiddenInput::Target(values) => HiddenInput::Target(of(values)),
            HiddenInput::Own(values) => HiddenInput::Own(of(values)),
        }
    }
}

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
    /// The hidden rows that the rows read, for a network that reads them.
    pub hidden_in: HiddenInput<'a>,
}

/// Logits, one row for each wanted one of each ask in turn, in one block of memory that is used again; and the
/// network's own hidden states there, where it reads them for its guesses.
#[derive(Clone, Debug, Default)]
pub struct LogitRows {
    values: Vec<f32>,
    /// Of each row where its logits begin in `values`, where they end and its hidden state begins, and where that ends;
    /// `None` where nothing could be scored.
    spans: Vec<Option<[usize; 3]>>,
    /// The tokens that the rows have logits of, ascending, where these are not all.
    said: Option<Arc<[Token]>>,
}

impl LogitRows {
    /// No rows.
    pub fn new() -> LogitRows {
        LogitRows::default()
    }

    /// Says which tokens the rows have logits of, ascending, where these are not all of the target's.
    pub fn set_said(&mut self, said: Option<Arc<[Token]>>) {
        self.said = said;
    }

    /// The tokens that the rows have logits of, ascending; none: all of the target's, from token 0 on.
    pub fn said(&self) -> Option<&[Token]> {
        self.said.as_deref()
    }

    /// Forgets the rows and keeps the memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.spans.clear();
    }

    /// Appends the next row, `None` if it could not be scored.
    pub fn push(&mut self, row: Option<&[f32]>) {
        match row {
            Some(row) => self.push_with_hidden(row, &[]),
            None => self.spans.push(None),
        }
    }

    /// Appends the next row, with the network's own hidden state there.
    pub fn push_with_hidden(&mut self, row: &[f32], hidden: &[f32]) {
        let start = self.values.len();
        self.values.extend_from_slice(row);
        self.values.extend_from_slice(hidden);
        self.spans.push(Some([start, start + row.len(), self.values.len()]));
    }

    /// Appends a row of zeros and returns it to be filled in place.
    pub fn push_zeros(&mut self, width: usize) -> &mut [f32] {
        let start = self.values.len();
        self.values.resize(start + width, 0.0);
        self.spans.push(Some([start, start + width, start + width]));
        &mut self.values[start..]
    }

    /// Takes back what was said of rows that turned out to belong to an ask that cannot be run.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer rows.
    pub fn refuse(&mut self, rows: Range<usize>) {
        self.spans[rows].fill(None);
    }

    /// The row of this index, `None` if it could not be scored.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer rows.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.spans[index].map(|[start, end, _]| &self.values[start..end])
    }

    /// The network's own hidden state at the row of this index; empty if it could not be scored, and for a network that
    /// reads tokens alone.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer rows.
    pub fn hidden(&self, index: usize) -> &[f32] {
        self.spans[index].map_or(&[], |[_, start, end]| &self.values[start..end])
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
    /// on: logits over the target's vocabulary, or of the tokens that [`LogitRows::said`] names. Rows of an ask that
    /// cannot be run are all `None`, and its cache is as before. A single row may be `None` where nothing can be said
    /// after its token: it is cached like the others of its ask, and the branch is not continued there.
    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows);

    /// Layers of the target whose hidden states it reads beside its tokens, in this order; none by default, for
    /// networks that read tokens alone.
    fn target_layers(&self) -> &[usize] {
        &[]
    }

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
