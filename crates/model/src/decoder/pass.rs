//! The rows of a pass: their tokens and positions, and the slots in which they are stored and that they attend to.

use foretoken_kernels::attention::RowSlots;
use foretoken_kernels::rope::angles;

use crate::batch::{Batch, Span, Token};
use crate::block::{AttentionMetadata, FusionBuffers, grow_to};
use crate::cache::Cache;
use crate::layer_inputs::InputBuffers;
use crate::spec::Rotation;

/// The rows of a pass and its buffers, kept between passes for their memory.
#[derive(Default)]
pub(super) struct Pass {
    pub(super) tokens: Vec<Token>,
    pub(super) positions: Vec<u32>,
    /// The slots of the rows, for each cache group.
    pub(super) slots: Vec<GroupSlots>,
    /// The ranges of each row in the prefixes and tails, which are the same in all groups.
    pub(super) ranges: Vec<[usize; 4]>,
    /// Rows of the pass whose logits are wanted.
    pub(super) wanted: Vec<usize>,
    /// Rows of the pass whose hidden states are wanted.
    pub(super) hidden: Vec<usize>,
    /// The angles of the rows, for each rotation of the network.
    pub(super) angles: Vec<Vec<f32>>,
    pub(super) x: Vec<f32>,
    /// Embeddings whose width differs from the stream's, or those of a draft head.
    pub(super) embedded: Vec<f32>,
    pub(super) fusion: FusionBuffers,
    pub(super) positional: Vec<f32>,
    pub(super) inputs: InputBuffers,
    pub(super) chosen: Vec<f32>,
    pub(super) normed: Vec<f32>,
    /// The input of the head, if its width is not the stream's.
    pub(super) projected: Vec<f32>,
}

/// The slots of one cache group in which the rows of a pass, and the positions that they see, are stored.
#[derive(Default)]
pub(super) struct GroupSlots {
    /// The slot of each row itself.
    own: Vec<u32>,
    /// The slots of the committed positions and of the trunk of each span, one span after another. Positions whose
    /// pages were given back, which no row sees, get the slot of the first position that is still stored.
    prefixes: Vec<u32>,
    /// For each row of a tree the slots of its ancestors after the trunk, and its own.
    tails: Vec<u32>,
}

impl GroupSlots {
    /// The metadata of rows with these ranges in prefixes and tails.
    pub(super) fn attention_metadata(&self, ranges: &[[usize; 4]]) -> AttentionMetadata<'_> {
        let row_slots =
            |[a, b, c, d]: &[usize; 4]| RowSlots { prefix: &self.prefixes[*a..*b], tail: &self.tails[*c..*d] };
        AttentionMetadata { slots: &self.own, row_slots: ranges.iter().map(row_slots).collect() }
    }
}

impl Pass {
    /// Computes tokens, positions, slots and attended slots of every row of the batch.
    pub(super) fn lay_out(&mut self, batch: &Batch<'_>, cache: &Cache, rotations: &[Rotation]) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.resize_with(cache.groups.len(), GroupSlots::default);
        for GroupSlots { own, prefixes, tails } in &mut self.slots {
            [own, prefixes, tails].into_iter().for_each(Vec::clear);
        }
        self.ranges.clear();
        batch.requested_rows(&mut self.wanted, &mut self.hidden);
        for span in batch.spans {
            self.tokens.extend_from_slice(&span.tokens[span.computed..]);
            self.lay_out_span(span, cache);
        }
        self.angles.resize_with(rotations.len(), Vec::new);
        for (Rotation { frequencies, magnitude, .. }, all) in rotations.iter().zip(&mut self.angles) {
            let len = 2 * frequencies.len();
            let all = grow_to(all, self.positions.len() * len);
            for (position, out) in self.positions.iter().zip(all.chunks_exact_mut(len)) {
                angles(*position as usize, frequencies, *magnitude, out);
            }
        }
    }

    fn lay_out_span(&mut self, span: &Span<'_>, cache: &Cache) {
        let Self { positions, slots, ranges, .. } = self;
        // The rows of the trunk are stored at their logical positions, so they are read together with the committed
        // ones.
        let trunk = span.trunk();
        for (group, (slots, table)) in slots.iter_mut().zip(span.tables).enumerate() {
            let GroupSlots { own, prefixes, tails } = slots;
            let slot = |position| cache.slot(group, table, position).expect("positions that are seen have pages");
            let first_seen = cache.groups[group].first_seen(span.start);
            // Pages before the window may be gone: the slots that stand for their positions are never read.
            prefixes.extend(std::iter::repeat_n(slot(first_seen), first_seen));
            prefixes.extend((first_seen..span.start + trunk).map(slot));
            for i in span.computed..span.tokens.len() {
                own.push(slot(span.start + i));
                let tail = tails.len();
                let mut at = Some(i);
                while let Some(row) = at.filter(|row| *row >= trunk) {
                    tails.push(slot(span.start + row));
                    at = span.parent(row);
                }
                tails[tail..].reverse();
                if group == 0 {
                    let (prefix, first) =
                        (span.start + at.map_or(0, |row| row + 1), prefixes.len() - span.start - trunk);
                    positions.push((prefix + tails.len() - tail - 1) as u32);
                    ranges.push([first, first + prefix, tail, tails.len()]);
                }
            }
        }
    }
}
