//! Cross attention: the rows of a decoder attend to the output of the encoder, of which keys and values are made once,
//! when a source is read.
//!
//! Every row sees all positions of its sequence's source, whatever its own position is.

use foretoken_kernels::attention::{Arguments, RowSlots, attention};

use super::{AddedBuffers, AttentionBuffers, Block, SublayerOutput, grow_to, normalize};
use crate::cache::Cache;
use crate::linear::Linear;
use crate::network::CrossAttention;

/// The sources of the rows of a pass.
pub(crate) struct SourceMetadata<'a> {
    /// The keys and values of all sources, for each layer of the decoder.
    pub(crate) cache: &'a Cache,
    /// For each row the slots of its sequence's source.
    pub(crate) row_slots: Vec<RowSlots<'a>>,
}

impl Block<'_> {
    /// Adds cross attention to `x` `[rows, width]`.
    pub(super) fn add_cross(
        &self,
        (number, cross): (usize, &CrossAttention<Linear>),
        (normed, buffers): (&mut Vec<f32>, &mut AttentionBuffers),
        added: &mut AddedBuffers,
        x: &mut [f32],
    ) {
        let Self { products, spec, .. } = *self;
        let sources = self.metadata.sources.as_ref().expect("a decoder with cross attention has sources");
        let (rows, all) = (self.rows(), cross.query.outputs());
        // This rank's heads; their keys and values are in its cache.
        let (elements, heads) = (rows * cross.query.own_outputs(), cross.query.own_outputs() / (all / spec.heads));
        let AttentionBuffers { queries, attended, gathered, scratch, .. } = buffers;
        let (normed, queries) = (grow_to(normed, x.len()), grow_to(queries, elements));
        normalize(self.isa(), spec, &cross.norm, x, normed);
        products.own(normed, rows, spec.width, [cross.query.product(queries, false)]);
        let (keys, values) = (&sources.cache.keys[number], &sources.cache.values[number]);
        let arguments = Arguments::new(heads, spec.attention_scale, keys, values);
        let attended = grow_to(attended, elements);
        if heads > 0 {
            attention(&products.compute, &arguments, queries, &sources.row_slots, scratch, attended);
        }
        let attended = products.gather(attended, [rows, all, cross.query.unit()], cross.output.rounding(), gathered);
        self.add(&SublayerOutput { output: &cross.output, norm: None }, attended, added, x);
    }
}
