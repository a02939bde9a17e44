//! The input of a draft head: tokens and hidden states become what its first layer reads.
//!
//! The head's own hidden state, for a drafted token, becomes the residual stream unchanged. The hidden states of
//! several layers of the target are first projected to the head's width (Li et al. 2025, EAGLE-3, section 3.1). The
//! attention of the first layer reads the embedding of the row's token and its hidden state, each normalized,
//! concatenated. Which hidden state a row is given is described in `hidden.rs`; the rest of the layer is an ordinary
//! block.

use super::{Block, grow_to, normalize, normalized};
use crate::batch::Batch;
use crate::hidden::HiddenInput;
use crate::linear::Linear;
use crate::network::{Fusion, NormWeights};
use crate::products::Products;
use crate::spec::Spec;

/// Buffers of one pass, kept between passes.
#[derive(Default)]
pub(crate) struct FusionBuffers {
    /// The target's hidden states of all spans, `[rows, layers * target width]`.
    target: Vec<f32>,
    normed: Vec<f32>,
    /// Their projection, `[rows, width]`.
    projected: Vec<f32>,
}

impl Fusion<Linear> {
    /// Writes the hidden states of the batch to `x` `[rows, width]`; the target's are projected first.
    pub(crate) fn fill(
        &self,
        (products, spec): (&Products, &Spec),
        batch: &Batch<'_>,
        buffers: &mut FusionBuffers,
        x: &mut [f32],
    ) {
        let FusionBuffers { target, normed, projected } = buffers;
        target.clear();
        batch.spans.iter().for_each(|span| match span.hidden_in {
            HiddenInput::Target(rows) => target.extend_from_slice(rows),
            HiddenInput::Own(_) | HiddenInput::None => {}
        });
        let inputs = self.projection.inputs();
        let rows = target.len() / inputs;
        let projected = grow_to(projected, rows * spec.width);
        if rows > 0 {
            let read = normalized(products.compute.isa, spec, self.target_norm.as_ref(), target, normed);
            products.one(read, rows, inputs, self.projection.product(projected, false));
        }
        let (mut projected, mut x) = (&*projected, x);
        for span in batch.spans {
            let from = match span.hidden_in {
                HiddenInput::Own(rows) => rows,
                HiddenInput::Target(rows) => {
                    let (own, rest) = projected.split_at(rows.len() / inputs * spec.width);
                    projected = rest;
                    own
                }
                HiddenInput::None => &[],
            };
            let (own, rest) = x.split_at_mut(from.len());
            own.copy_from_slice(from);
            x = rest;
        }
    }
}

/// What the first layer of a draft head reads besides the residual stream.
pub(crate) struct Fused<'a> {
    /// The embedding of each row's token, `[rows, width]`.
    pub(crate) embedded: &'a [f32],
    /// The norm of the hidden states.
    pub(crate) hidden_norm: &'a NormWeights,
    /// Whether the residual stream continues with the normalized hidden states.
    pub(crate) residual_is_normed: bool,
}

impl Fused<'_> {
    /// The input of the layer's attention, `[rows, 2 * width]`: the embedding, normalized by `embedding_norm`, and the
    /// normalized hidden state, which is the residual stream `x` `[rows, width]`.
    pub(super) fn read<'b>(
        &self,
        block: &Block<'_>,
        embedding_norm: Option<&NormWeights>,
        x: &mut [f32],
        [normed, joined]: [&'b mut Vec<f32>; 2],
    ) -> &'b [f32] {
        let (isa, spec, elements) = (block.isa(), block.spec, x.len());
        let joined = grow_to(joined, 2 * elements);
        let rows = |joined: &mut [f32], from: &[f32], first: usize| {
            for (joined, from) in joined.chunks_exact_mut(2 * spec.width).zip(from.chunks_exact(spec.width)) {
                joined[first..first + spec.width].copy_from_slice(from);
            }
        };
        rows(joined, normalized(isa, spec, embedding_norm, self.embedded, normed), 0);
        let hidden = grow_to(normed, elements);
        normalize(isa, spec, self.hidden_norm, x, hidden);
        rows(joined, hidden, spec.width);
        if self.residual_is_normed {
            x.copy_from_slice(hidden);
        }
        joined
    }
}
