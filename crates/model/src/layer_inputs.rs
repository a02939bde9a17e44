//! Per-layer embeddings (Gemma 4): inputs of the layers besides the residual stream, for all layers of a pass at once.
//!
//! For each token they are the sum of a row of a second embedding and a projection of the first embedding, each
//! `[layers, width]`; each layer's part of the projection is normalized first. They depend on the token alone, so they
//! are computed before the first block, and stored layer by layer, as blocks read them. How a block reads its part is
//! in `block.rs`.

use crate::batch::Token;
use crate::block::{ELEMENTS_A_TASK, grow_to, normalize};
use crate::linear::Linear;
use crate::network::InputSource;
use crate::products::Products;
use crate::spec::{LayerInputs, Spec};

/// The buffers of one pass, kept between passes.
#[derive(Default)]
pub(crate) struct InputBuffers {
    /// Rows of the second embedding, `[rows, layers, width]`.
    embedded: Vec<f32>,
    /// The projection, of the same shape.
    projected: Vec<f32>,
    /// The per-layer embeddings, `[layers, rows, width]`.
    inputs: Vec<f32>,
}

impl InputBuffers {
    /// The per-layer embeddings of the pass, `[layers, rows, width]`; empty in most networks.
    pub(crate) fn inputs(&self) -> &[f32] {
        &self.inputs
    }
}

impl InputSource<Linear> {
    /// Computes the per-layer embeddings of `tokens`; `x` `[rows, width]` is their input of the first block.
    pub(crate) fn fill(
        &self,
        products: &Products,
        spec: &Spec,
        (tokens, x): (&[Token], &[f32]),
        buffers: &mut InputBuffers,
    ) {
        let Some(LayerInputs { width, multiplier, .. }) = spec.layer_inputs else { return };
        let (rows, layers) = (tokens.len(), spec.layers);
        if rows == 0 {
            return;
        }
        let (elements, compute) = (rows * layers * width, &products.compute);
        let InputBuffers { embedded, projected, inputs } = buffers;
        let (embedded, projected) = (grow_to(embedded, elements), grow_to(projected, elements));
        self.table.embed(tokens, embedded);
        products.one(x, rows, spec.width, self.projection.product(projected, false));
        let scale = 1.0 / (spec.width as f32).sqrt();
        compute.pool.each_chunk(projected, ELEMENTS_A_TASK, &|_, part| part.iter_mut().for_each(|x| *x *= scale));
        let (embedded, projected) = (&*embedded, &*projected);
        compute.pool.each_chunk(grow_to(inputs, elements), rows * width, &|layer, part| {
            for (row, out) in part.chunks_exact_mut(width).enumerate() {
                let first = (row * layers + layer) * width;
                normalize(compute.isa, spec, &self.norm, &projected[first..][..width], out);
                let embedded = &embedded[first..][..width];
                let sum = |(out, embedded): (&mut f32, &f32)| {
                    *out = (*out + embedded * multiplier) * std::f32::consts::FRAC_1_SQRT_2;
                };
                out.iter_mut().zip(embedded).for_each(sum);
            }
        });
    }
}
