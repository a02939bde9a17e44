//! How the encoder of an encoder-decoder, cross attention and biases by relative position are stored.

use std::sync::Arc;

use super::{Layout, Reader, Up};
use crate::error::ModelError;
use crate::family::tensors::Bias;
use crate::linear::Unpacked;
use crate::network::{CrossAttention, Encoder, Layer, RelativeBias};
use crate::spec::{Buckets, Positions};

/// The names in the cross attention of a layer.
#[derive(Clone, Copy)]
pub(in crate::family) struct CrossNames {
    pub(in crate::family) norm: &'static str,
    /// The matrices of queries, keys and values.
    pub(in crate::family) qkv: [&'static str; 3],
    pub(in crate::family) output: &'static str,
}

/// The names of an encoder that differ from those of its decoder.
#[derive(Clone, Copy)]
pub(in crate::family) struct EncoderNames {
    /// The prefix of a layer's names, before its number.
    pub(in crate::family) layers: &'static str,
    pub(in crate::family) ffn_norm: &'static str,
    pub(in crate::family) up: Up,
    pub(in crate::family) down: &'static str,
    pub(in crate::family) output_norm: &'static str,
}

impl Layout {
    /// The layout of the encoder's layers.
    pub(super) fn of_encoder(&self, names: EncoderNames) -> Self {
        let EncoderNames { layers, ffn_norm, up, down, output_norm } = names;
        let (ffn_norm, output_norm) = (Some(ffn_norm), Some(output_norm));
        Self { layers, ffn_norm, up, down, output_norm, cross: None, encoder: None, ..self.clone() }
    }
}

impl Reader<'_> {
    /// The encoder, if there is one.
    pub(super) fn encoder(&self, prefix: &str) -> Result<Option<Encoder<Unpacked>>, ModelError> {
        let Some((encoder, names)) = self.spec.encoder.zip(self.layout.encoder) else { return Ok(None) };
        let (spec, layout) = (self.spec.of_encoder(encoder), self.layout.of_encoder(names));
        let reader = Reader { layout: &layout, spec: &spec, tensors: self.tensors };
        let layers = reader.layers(prefix, true)?;
        let output_norm = reader.norm(&format!("{prefix}{}", names.output_norm), spec.width)?;
        Ok(Some(Encoder { layers, output_norm: Some(output_norm), spec }))
    }

    /// All layers, with their biases by relative position, if there are any.
    pub(super) fn layers(&self, prefix: &str, is_encoder: bool) -> Result<Vec<Layer<Unpacked>>, ModelError> {
        let (mut layers, mut bias) = (Vec::new(), None);
        for number in 0..self.spec.layers {
            let at = self.layer_prefix(prefix, number);
            if let Positions::Relative(buckets) = self.spec.positions
                && (number == 0 || buckets.in_each_layer)
            {
                bias = Some(Arc::new(self.relative_bias(&at, buckets, is_encoder)?));
            }
            layers.push(Layer { bias: bias.clone(), ..self.layer(number, &at)? });
        }
        Ok(layers)
    }

    /// The biases by relative position of the layer whose names begin with `at`: a table of buckets becomes one of
    /// distances, up to that from which all have the same bucket.
    fn relative_bias(&self, at: &str, buckets: Buckets, is_encoder: bool) -> Result<RelativeBias, ModelError> {
        let heads = self.spec.heads;
        let name = format!("{at}{}.weight", self.layout.relative_bias);
        let by_bucket = self.tensors.matrix(&name, [buckets.count, heads])?;
        let farthest = buckets.distance_max as isize;
        let last = buckets.bucket(-farthest, is_encoder);
        let before = (1..farthest).find(|distance| buckets.bucket(-distance, is_encoder) == last).unwrap_or(farthest);
        let behind = if is_encoder { before } else { 0 };
        let of_head = |head: usize| {
            let bucket = move |offset| buckets.bucket(offset, is_encoder);
            (-before..=behind).map(move |offset| bucket(offset) * heads + head)
        };
        let table = (0..heads).flat_map(of_head).map(|at| by_bucket[at]).collect();
        Ok(RelativeBias { table, before: before as usize })
    }

    /// The cross attention of the layer whose names begin with `at`.
    pub(super) fn cross(&self, at: &str, names: CrossNames) -> Result<CrossAttention<Unpacked>, ModelError> {
        let CrossNames { norm, qkv: [query, key, value], output } = names;
        let (width, inner) = (self.spec.width, self.spec.heads * self.spec.head_dim);
        let matrix = |name: &str| self.linear(at, name, [width, inner], Bias::None);
        Ok(CrossAttention {
            norm: self.norm(&format!("{at}{norm}"), width)?,
            query: matrix(query)?,
            key_value: [matrix(key)?, matrix(value)?],
            output: self.linear(at, output, [inner, width], Bias::None)?,
        })
    }
}
