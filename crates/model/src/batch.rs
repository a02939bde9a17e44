//! The input of an executor's only operation, scoring spans.
//!
//! A span is a run of new tokens of one sequence after its cached positions, as a chain or as a tree. A prompt, one
//! decoded token, a draft tree and the tokens that a draft model catches up with are all spans, and treated alike. The
//! page tables of each span say which pages of the cache belong to its sequence.
//!
//! A batch is run by an [`Executor`](crate::Executor), which yields [`Outputs`](crate::Outputs).

use crate::hidden::HiddenInput;

/// A token's number in the vocabulary.
pub type Token = u32;

/// A page of the cache: room for a fixed number of positions in every layer of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

impl PageId {
    /// An entry of a page table whose page was given back, because no later row can see its positions.
    pub const GONE: Self = Self(u32::MAX);
}

/// The pages of one sequence in one cache group, in order of position. In a group with a sliding window, the pages
/// before the window are [`PageId::GONE`].
pub type PageTable = Vec<PageId>;

/// New tokens of one sequence, to be scored after its cached positions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span<'a> {
    /// The sequence, which is open ([`Executor::open`](crate::Executor::open)).
    pub sequence: u64,
    /// One page table per cache group, with room for `start + tokens.len()` rows.
    pub tables: &'a [PageTable],
    /// Number of positions that are cached already; row i of the span is stored at `start + i`.
    pub start: usize,
    /// The tokens of the rows.
    pub tokens: &'a [Token],
    /// Number of leading rows that are certain: they are part of the text, whatever the pass yields (rows of a prompt,
    /// the pending token), and form a chain. The others are drafted. A recurrent state advances over the certain rows
    /// with the pass; other networks ignore this.
    pub certain: usize,
    /// Number of leading rows that earlier passes of the same span, which was shorter then, have computed and stored:
    /// the rows that continue them see them, and they are not run again. In this way a tree grows by a few rows per
    /// pass.
    pub computed: usize,
    /// For each row the earlier row of the span that it continues, `None` if it continues the cached positions.
    /// Empty means a chain: each row continues the one before.
    pub parents: &'a [Option<u32>],
    /// Rows of the span whose logits are wanted, ascending; none of the computed ones.
    pub wanted: &'a [u32],
    /// Rows whose hidden states are wanted, ascending; none of the computed ones. They are separate from `wanted`,
    /// because the logits of a row need a product with the output head, while its hidden states need nothing further.
    pub hidden: &'a [u32],
    /// The hidden states that the rows read besides their tokens, for each row that is not computed; none for networks
    /// that read tokens alone.
    pub hidden_in: HiddenInput<'a>,
}

impl Span<'_> {
    /// The row that row `i` continues; `None` for the cached positions.
    pub fn parent(&self, i: usize) -> Option<usize> {
        if self.parents.is_empty() { i.checked_sub(1) } else { self.parents[i].map(|parent| parent as usize) }
    }

    /// Number of leading rows each of which continues the one before; in a chain these are all rows.
    pub fn trunk(&self) -> usize {
        if self.parents.is_empty() {
            return self.tokens.len();
        }
        (0..self.parents.len()).take_while(|i| self.parent(*i) == i.checked_sub(1)).count()
    }

    /// Number of ancestors of row `i` within the span; its logical position is `start + depth`.
    pub fn depth(&self, i: usize) -> usize {
        if self.parents.is_empty() {
            return i;
        }
        let (mut depth, mut at) = (0, i);
        while let Some(parent) = self.parent(at) {
            (depth, at) = (depth + 1, parent);
        }
        depth
    }
}

/// Spans of different sequences, to be scored in one pass.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The spans; each sequence at most once.
    pub spans: &'a [Span<'a>],
    /// Layers whose output (the residual stream) is wanted for the `hidden` rows of the spans.
    pub hidden_layers: &'a [usize],
}

impl Batch<'_> {
    /// Collects the rows whose logits are wanted and those whose hidden states are wanted, numbered through all spans.
    pub(crate) fn requested_rows(&self, wanted: &mut Vec<usize>, hidden: &mut Vec<usize>) {
        wanted.clear();
        hidden.clear();
        let mut first = 0;
        for span in self.spans {
            let of_pass = |row: &u32| first + *row as usize - span.computed;
            wanted.extend(span.wanted.iter().map(of_pass));
            hidden.extend(span.hidden.iter().map(of_pass));
            first += span.tokens.len() - span.computed;
        }
    }
}
