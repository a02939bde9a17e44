//! How the encoder of an encoder-decoder and cross attention are stored.

use super::{Layout, Reader, Up};
use crate::error::ModelError;
use crate::family::tensors::Bias;
use crate::linear::Unpacked;
use crate::network::{CrossAttention, Encoder, RelativeBias};
use crate::spec::Positions;

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
    pub(in crate::family) relative_bias: &'static str,
    pub(in crate::family) ffn_norm: &'static str,
    pub(in crate::family) up: Up,
    pub(in crate::family) down: &'static str,
    pub(in crate::family) output_norm: &'static str,
}

impl Layout {
    /// The layout of the encoder's layers.
    fn of_encoder(&self, names: EncoderNames) -> Self {
        let EncoderNames { layers, relative_bias, ffn_norm, up, down, output_norm } = names;
        let (ffn_norm, output_norm) = (Some(ffn_norm), Some(output_norm));
        Self { layers, relative_bias, ffn_norm, up, down, output_norm, cross: None, encoder: None, ..self.clone() }
    }
}

impl Reader<'_> {
    /// The encoder, if there is one.
    pub(super) fn encoder(&self, prefix: &str) -> Result<Option<Encoder<Unpacked>>, ModelError> {
        let Some((encoder, names)) = self.spec.encoder.zip(self.layout.encoder) else { return Ok(None) };
        let (spec, layout) = (self.spec.of_encoder(encoder), self.layout.of_encoder(names));
        let reader = Reader { layout: &layout, spec: &spec, tensors: self.tensors };
        let mut layers = Vec::new();
        for number in 0..spec.layers {
            layers.push(reader.layer(number, &reader.layer_prefix(prefix, number))?);
        }
        let bias = reader.relative_bias(prefix, true)?;
        let output_norm = reader.norm(&format!("{prefix}{}", names.output_norm), spec.width)?;
        Ok(Some(Encoder { bias, layers, output_norm: Some(output_norm), spec }))
    }

    /// The biases by relative position, if there are any: a table of buckets becomes one of distances, up to that from
    /// which all have the same bucket.
    pub(super) fn relative_bias(&self, prefix: &str, is_encoder: bool) -> Result<Option<RelativeBias>, ModelError> {
        let Positions::Relative(buckets) = self.spec.positions else { return Ok(None) };
        let heads = self.spec.heads;
        let name = format!("{prefix}{}.weight", self.layout.relative_bias);
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
        Ok(Some(RelativeBias { table, before: before as usize }))
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
