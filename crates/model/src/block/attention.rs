//! The attention of a block: projections, norms and rotations of heads, their rows of the cache, and what they see.
//!
//! A rank computes the heads of keys and values that it has, with the queries that read them, and gets the outputs of
//! the other heads from the other ranks; in one process these are all heads.

use std::ops::Range;

use foretoken_kernels::attention::{Arguments, attention};

use super::{AttentionBuffers, Block, RotaryAngles, grow_to, normalize};
use crate::cache::Cache;
use crate::linear::Linear;
use crate::network::{KeyValue, Layer, NormWeights};
use crate::spec::Heads;

/// Heads that are normalized: those of this rank, which are split by units.
struct NormedHeads {
    own: Range<usize>,
    unit: usize,
    head_dim: usize,
}

impl Block<'_> {
    /// Computes attention for rows `input` `[rows, inputs]`; returns the outputs of the heads, `[rows, heads,
    /// head_dim]`.
    pub(super) fn attend<'b>(
        &self,
        (number, layer): (usize, &Layer<Linear>),
        input: &[f32],
        cache: &mut Cache,
        buffers: &'b mut AttentionBuffers,
    ) -> &'b [f32] {
        let Self { products, spec, .. } = *self;
        let (rows, Heads { count, head_dim }) = (self.rows(), spec.kv_heads_of(number));
        // This rank's heads, of keys and values and of the queries that read them.
        let (own, group) = (products.share().of(count, 1), spec.heads / count);
        let of_queries = own.start * group..own.end * group;
        let (query_width, kv_width) = (of_queries.len() * head_dim, own.len() * head_dim);
        let AttentionBuffers { queries, keys, values, raw, whole, attended, gathered, scratch } = buffers;
        let queries = grow_to(queries, rows * query_width);
        let keys = grow_to(keys, rows * kv_width);
        let values = grow_to(values, rows * kv_width);
        self.project(layer, input, [queries, keys, values]);
        let choices = spec.attention_of(number);
        let mut rotated = choices.rotation.map(|rotation| &self.metadata.rotations[rotation]);
        if let Some(rotated) = rotated.take_if(|_| spec.norms_after_rotation) {
            for row in 0..rows {
                rotated.rotate(self.isa(), row, head_dim, &mut queries[row * query_width..][..query_width]);
                rotated.rotate(self.isa(), row, head_dim, &mut keys[row * kv_width..][..kv_width]);
            }
        }
        let query_heads = NormedHeads { own: of_queries.clone(), unit: group, head_dim };
        self.normalize_heads(&layer.query_norm, &query_heads, queries, (raw, whole));
        if let Some(KeyValue { key_norm, value_norm, .. }) = &layer.key_value {
            let kv_heads = NormedHeads { own: own.clone(), unit: 1, head_dim };
            self.normalize_heads(key_norm, &kv_heads, keys, (raw, whole));
            self.normalize_heads(value_norm, &kv_heads, values, (raw, whole));
        }
        // The layer whose keys and values are attended to.
        let source = spec.kv_layer_of(number);
        let metadata = &self.metadata.attention[cache.group_of[source]];
        if let Some(growth) = spec.query_growth {
            for (position, query) in self.metadata.positions.iter().zip(queries.chunks_exact_mut(query_width.max(1))) {
                let factor = growth.at(*position as usize);
                query.iter_mut().for_each(|x| *x *= factor);
            }
        }
        for row in 0..rows {
            if let Some(rotated) = rotated {
                rotated.rotate(self.isa(), row, head_dim, &mut queries[row * query_width..][..query_width]);
            }
        }
        if layer.key_value.is_some() {
            self.store((number, &own, rotated), keys, values, cache);
        }
        // What each head has its own of, if the network has it.
        let of_heads = |all: &[f32]| if all.is_empty() { 0..0 } else { of_queries.clone() };
        let slopes = spec.positions.slopes();
        let arguments = Arguments {
            soft_cap: spec.attention_soft_cap,
            slopes: &slopes[of_heads(slopes)],
            bias: layer.bias.as_ref().map(|bias| bias.at(self.metadata.positions, of_queries.clone(), spec.heads)),
            sinks: &layer.sinks[of_heads(&layer.sinks)],
            window: spec.window_of(number),
            ..Arguments::new(of_queries.len(), spec.attention_scale, &cache.keys[source], &cache.values[source])
        };
        let attended = grow_to(attended, rows * query_width);
        if !of_queries.is_empty() {
            attention(&products.compute, &arguments, queries, &metadata.row_slots, scratch, attended);
        }
        let shape = [rows, spec.heads * head_dim, group * head_dim];
        products.gather(attended, shape, layer.attention_output.rounding(), gathered)
    }

    /// Rotates the keys of all rows and stores them with their values: this rank's heads of a layer.
    fn store(
        &self,
        (number, own, rotated): (usize, &Range<usize>, Option<&RotaryAngles<'_>>),
        keys: &mut [f32],
        values: &[f32],
        cache: &mut Cache,
    ) {
        let head_dim = self.spec.kv_heads_of(number).head_dim;
        let width = own.len() * head_dim;
        for (row, slot) in self.metadata.attention[cache.group_of[number]].slots.iter().enumerate() {
            let key = &mut keys[row * width..][..width];
            if let Some(rotated) = rotated {
                rotated.rotate(self.isa(), row, head_dim, key);
            }
            cache.store(number, *slot, key, &values[row * width..][..width]);
        }
    }

    /// Projects rows `input` `[rows, inputs]` to this rank's queries, and to keys and values if the layer has its own.
    fn project(&self, layer: &Layer<Linear>, input: &[f32], [queries, keys, values]: [&mut [f32]; 3]) {
        let (products, rows, width) = (self.products, self.rows(), layer.query.inputs());
        let query = layer.query.product(queries, false);
        match &layer.key_value {
            None => products.own(input, rows, width, [query]),
            Some(KeyValue { key, value: None, .. }) => {
                products.own(input, rows, width, [query, key.product(keys, false)]);
                values.copy_from_slice(keys);
            }
            Some(KeyValue { key, value: Some(value), .. }) => {
                let three = [query, key.product(keys, false), value.product(values, false)];
                products.own(input, rows, width, three);
            }
        }
    }

    /// Normalizes this rank's queries, keys or values head by head or as whole rows, if the network does that.
    fn normalize_heads(
        &self,
        norms: &[NormWeights],
        heads: &NormedHeads,
        x: &mut [f32],
        (raw, [whole, normed]): (&mut Vec<f32>, &mut [Vec<f32>; 2]),
    ) {
        let Some(first) = norms.first() else { return };
        let NormedHeads { own, unit, head_dim } = heads;
        let raw = grow_to(raw, x.len());
        raw.copy_from_slice(x);
        let width = first.weight.len();
        if norms.len() == 1 && width > *head_dim && !self.products.share().is_whole() {
            // The norm of a whole row reads the heads of all ranks.
            let whole = self.products.gather(raw, [self.rows(), width, unit * head_dim], None, whole);
            let normed = grow_to(normed, whole.len());
            normalize(self.isa(), self.spec, first, whole, normed);
            let columns = own.start * head_dim..own.end * head_dim;
            let rows = x.chunks_exact_mut(columns.len().max(1)).zip(normed.chunks_exact(width));
            return rows.for_each(|(x, row)| x.copy_from_slice(&row[columns.clone()]));
        }
        if norms.len() == 1 {
            return normalize(self.isa(), self.spec, first, raw, x);
        }
        let heads = raw.chunks_exact(width).zip(x.chunks_exact_mut(width));
        for ((raw, x), norm) in heads.zip(norms[own.clone()].iter().cycle()) {
            normalize(self.isa(), self.spec, norm, raw, x);
        }
    }
}
