//! The one operation, *score these spans*, as it is asked for.
//!
//! A span is a run of new tokens of one sequence on top of its cached positions, as a chain or as a tree. The
//! prompt, one decoded token, a draft tree and a draft model's catching up are all spans; nothing here can tell
//! them apart. Which pages of the cache belong to whom is said by the page tables that come with each span.
//!
//! Left out: who runs a batch ([`Executor`](crate::Executor)), what comes of it ([`Outputs`](crate::Outputs)), and
//! sequences' lives (the engine's).

use crate::hidden::HiddenInput;

/// A token's number in the vocabulary.
pub type Token = u32;

/// A page of the cache: room for a fixed number of positions in every layer of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

impl PageId {
    /// In a page table: the page that was here was given back, because no later row can see its positions.
    pub const GONE: Self = Self(u32::MAX);
}

/// The pages of one sequence in one cache group, in order of position. Where a group keeps a window of the text, those
/// behind the window are [`PageId::GONE`].
pub type PageTable = Vec<PageId>;

/// New tokens of one sequence, to be scored on top of what is cached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span<'a> {
    /// Whose tokens they are: a sequence that is open ([`Executor::open`](crate::Executor::open)).
    pub sequence: u64,
    /// One page table a cache group, with room for `start + tokens.len()` rows.
    pub tables: &'a [PageTable],
    /// Positions cached before; row i of the span is stored behind them, at `start + i`.
    pub start: usize,
    /// The tokens of the rows.
    pub tokens: &'a [Token],
    /// So many leading rows, a chain, are certain: they are the text, and what comes of the pass cannot change them
    /// (rows of a prompt, the pending token). The others are guesses. A recurrent state passes the certain ones with
    /// the pass; networks without one have no use for it.
    pub certain: usize,
    /// So many leading rows were computed and stored by earlier passes of the same span, then shorter: they are seen by
    /// the rows that continue them, and not run again. A tree grows this way, a few rows a pass.
    pub computed: usize,
    /// For each row the earlier row of the span that it continues, `None` if it continues the cached positions.
    /// Empty means a chain: each row continues the one before.
    pub parents: &'a [Option<u32>],
    /// Rows of the span whose logits are wanted, ascending; none of the computed ones.
    pub wanted: &'a [u32],
    /// Rows whose hidden states are wanted, ascending; none of the computed ones. Apart from `wanted`, because logits
    /// cost a product with the head a row, and hidden states nothing.
    pub hidden: &'a [u32],
    /// The hidden rows that the rows read beside their tokens, one for each that is not computed; nothing for networks
    /// that read tokens alone.
    pub hidden_in: HiddenInput<'a>,
}

impl Span<'_> {
    /// The row that row `i` continues; `None` for the cached positions.
    pub fn parent(&self, i: usize) -> Option<usize> {
        if self.parents.is_empty() { i.checked_sub(1) } else { self.parents[i].map(|parent| parent as usize) }
    }

    /// Number of leading rows each of which continues the one before: of a chain all.
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
    /// Layers whose output (the residual stream behind the layer) is wanted for the `hidden` rows of the spans.
    pub hidden_layers: &'a [usize],
}

impl Batch<'_> {
    /// The rows of the pass, counted through all spans, whose logits are wanted, and those whose hidden states are.
    pub(crate) fn asked_rows(&self, wanted: &mut Vec<usize>, hidden: &mut Vec<usize>) {
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
