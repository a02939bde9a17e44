//! What layers get beside the residual stream, for all layers of a pass at once (Gemma 4's per-layer embeddings).
//!
//! Of each token a row of a second embedding, and a projection of the first one, each `[layers, width]`; of the latter
//! each layer's part is normalized, and the two are added up. They depend on the token alone, so they are worked out
//! before the first block, and written layer by layer, as blocks read them. Left out: how a block reads its part
//! (`block.rs`).

use crate::batch::Token;
use crate::block::{ELEMENTS_A_TASK, normalize, room};
use crate::linear::Linear;
use crate::network::InputSource;
use crate::products::Products;
use crate::spec::{LayerInputs, Spec};

/// Buffers of one pass, kept between passes.
#[derive(Default)]
pub(crate) struct InputBuffers {
    /// Of the second embedding, `[rows, layers, width]`.
    embedded: Vec<f32>,
    /// Of the projection, the same.
    projected: Vec<f32>,
    /// What layers get, `[layers, rows, width]`.
    inputs: Vec<f32>,
}

impl InputBuffers {
    /// What layers get in the pass: `[layers, rows, width]`, and nothing in most networks.
    pub(crate) fn inputs(&self) -> &[f32] {
        &self.inputs
    }
}

impl InputSource<Linear> {
    /// Works out what layers get of `tokens`, of which `x` `[rows, width]` is what the first block reads.
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
        let (embedded, projected) = (room(embedded, elements), room(projected, elements));
        self.table.embed(tokens, embedded);
        products.one(x, rows, spec.width, self.projection.product(projected, false));
        let scale = 1.0 / (spec.width as f32).sqrt();
        compute.pool.each_chunk(projected, ELEMENTS_A_TASK, &|_, part| part.iter_mut().for_each(|x| *x *= scale));
        let (embedded, projected) = (&*embedded, &*projected);
        compute.pool.each_chunk(room(inputs, elements), rows * width, &|layer, part| {
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
