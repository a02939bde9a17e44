//! A language model as drafters use it: it reads tokens, gives logits after them, and has a KV cache that can be rolled
//! back. A head reads hidden states besides the tokens, and gives its own besides the logits.
//!
//! `engine` implements it over an executor, tests by tables. One call scores the spans of all sequences. A span is a
//! chain or a tree after the committed rows, and may grow: rows that an earlier call has computed are listed and not
//! run again. If the model has no room for a sequence, its rows are empty, and nothing is drafted for it.
//!
//! Sampling is the drafter's part. The drafter also decides which rows are kept, by [`Scorer::truncate`] and
//! [`Scorer::keep_path`].

use std::ops::Range;
use std::sync::Arc;

use foretoken_speculation::{Opening, SequenceId, Token};

/// Hidden states that a network reads besides its tokens, one for each row of a span that is not computed, in order:
/// that of the position before the row's, from which the row's token was chosen.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub enum HiddenInput<'a> {
    /// None: the network reads tokens alone.
    #[default]
    None,
    /// The target's, `[rows, width]`, for written tokens. A row is the hidden states of the layers that the network
    /// reads ([`Scorer::target_layers`]), one after the other.
    Target(&'a [f32]),
    /// The network's own, `[rows, width]`, for drafted tokens. A row is the hidden state of the row that it continues
    /// ([`LogitRows::hidden`]).
    Own(&'a [f32]),
}

impl<'a> HiddenInput<'a> {
    /// The hidden states of a range of rows, of `all` rows.
    ///
    /// # Panics
    ///
    /// Panics if there are not `all` rows.
    pub fn part(self, rows: Range<usize>, all: usize) -> HiddenInput<'a> {
        let part = |values: &'a [f32]| {
            let width = values.len() / all.max(1);
            &values[rows.start * width..rows.end * width]
        };
        match self {
            HiddenInput::None => HiddenInput::None,
            HiddenInput::Target(values) => HiddenInput::Target(part(values)),
            HiddenInput::Own(values) => HiddenInput::Own(part(values)),
        }
    }
}

/// The request to run tokens of a sequence and to give the logits after some of them.
#[derive(Copy, Clone, Debug)]
pub struct ScoreAsk<'a> {
    /// The sequence, opened before.
    pub sequence: SequenceId,
    /// Number of its tokens that are committed; the span's rows follow them, in order.
    pub start: usize,
    /// The tokens of the span, at least one that is not computed.
    pub tokens: &'a [Token],
    /// The earlier row of the span that each row continues; `None` is the last committed token. Empty means a chain.
    pub parents: &'a [Option<u32>],
    /// How many leading rows of the span were computed by earlier calls; none was committed or dropped since.
    pub computed: usize,
    /// The rows whose logits are wanted, ascending, none of the computed ones.
    pub wanted: &'a [u32],
    /// How many leading tokens of the sequence, cached ones included, are taken to be final: a network with a recurrent
    /// state advances it by these and no others. These exclude tokens that a draft model has drafted itself, and the
    /// last tokens of a text that another vocabulary may still split differently.
    pub certain: usize,
    /// The hidden states that the rows read, for a network that reads them.
    pub hidden_in: HiddenInput<'a>,
}

/// Logits, one row for each wanted row of each ask in turn, in one block of reused memory; and the network's own hidden
/// states there, if it reads them for drafted tokens.
#[derive(Clone, Debug, Default)]
pub struct LogitRows {
    values: Vec<f32>,
    /// For each row the start and the end of its logits in `values`, and the end of its hidden state, which follows
    /// them; `None` for a row that could not be scored.
    spans: Vec<Option<[usize; 3]>>,
    /// The tokens that the rows have logits of, ascending, if these are not all.
    row_tokens: Option<Arc<[Token]>>,
}

impl LogitRows {
    /// No rows.
    pub fn new() -> LogitRows {
        LogitRows::default()
    }

    /// Sets the tokens that the rows have logits of, ascending, if these are not all of the target's.
    pub fn set_row_tokens(&mut self, row_tokens: Option<Arc<[Token]>>) {
        self.row_tokens = row_tokens;
    }

    /// The tokens that the rows have logits of, ascending; `None`: all of the target's, from token 0 on.
    pub fn row_tokens(&self) -> Option<&[Token]> {
        self.row_tokens.as_deref()
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
    pub(crate) fn push_zeros(&mut self, width: usize) -> &mut [f32] {
        let start = self.values.len();
        self.values.resize(start + width, 0.0);
        self.spans.push(Some([start, start + width, start + width]));
        &mut self.values[start..]
    }

    /// Marks rows as not scored, because their ask turned out to be one that cannot be run.
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

/// The number of leading tokens that two sequences have in common. Usually one is a prefix of the other, which takes
/// one comparison of memory.
pub(crate) fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    let len = a.len().min(b.len());
    if a[..len] == b[..len] { len } else { a.iter().zip(b).take_while(|(a, b)| a == b).count() }
}

/// A language model with a cache per sequence.
pub trait Scorer: Send {
    /// Opens a sequence, with nothing cached. Rows that were computed for another sequence of the same tenant and
    /// source may be adopted ([`Scorer::adopt`]).
    fn open(&mut self, opening: &Opening<'_>);

    /// Adopts rows that other sequences have computed of these tokens, for a sequence of which nothing is cached;
    /// returns how many leading ones are now committed. 0 by default, for models without a prefix cache.
    fn adopt(&mut self, _sequence: SequenceId, _tokens: &[Token]) -> usize {
        0
    }

    /// Runs every ask in one pass and appends to `rows` the wanted rows of the first ask, then of the second, and so
    /// on: logits over the target's vocabulary, or of [`LogitRows::row_tokens`]. Rows of an ask that cannot be run are
    /// all `None`, and its cache is as before. A single row may be `None` if there are no logits after its token: it is
    /// cached like the others of its ask, and the branch is not continued there.
    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows);

    /// Layers of the target whose hidden states it reads besides its tokens, in this order; none by default, for
    /// networks that read tokens alone.
    fn target_layers(&self) -> &[usize] {
        &[]
    }

    /// Forgets the sequence's cached rows beyond the first `len`, counting committed ones and then those of a span.
    /// Returns how many are left: fewer than `len` if the model cannot roll back to exactly there; the drafter runs
    /// those rows again.
    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize;

    /// Commits these rows of the span after the first `start` tokens, and drops the others. `rows`: from the span's
    /// first level downwards, each the parent of the next.
    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]);

    /// Forgets the sequence.
    fn close(&mut self, sequence: SequenceId);

    /// Maximum number of tokens of a sequence that can be run.
    fn context_max(&self) -> usize;

    /// How many wanted rows so far had a NaN among their logits. Such a row is `None`.
    fn not_numbers(&self) -> u64 {
        0
    }
}
