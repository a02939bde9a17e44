//! A network in the one form that is run: what a family reads from its files, and what the decoder computes with.
//!
//! The same structure twice: with matrices as they lie in the file ([`Unpacked`]), which is what families yield, and
//! with matrices packed for the kernels ([`Linear`]). Where networks differ in which matrices they have, the difference
//! is said here and nowhere else, so no combination has to be ruled out when it is run. Left out: names of tensors
//! (`family/`).

use crate::error::ModelError;
use crate::linear::{Linear, Packing, Table, Unpacked};
use crate::spec::{Activation, Spec};

/// Called as loading goes on, with how many layers are done and how many there are.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Weight and bias of a normalization; of RMSNorm the bias is empty.
pub(crate) struct NormWeights {
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

/// Normalizations of the pieces that a row of queries or keys is made of, over and over: one for every head, one a
/// head, or one of the whole row. Empty: it stays as it is.
pub(crate) type PieceNorms = Vec<NormWeights>;

/// What a feed-forward half computes between its norm and its `down` matrix.
pub(crate) enum Inner<M> {
    /// activation(gate(x)) * up(x).
    Gated { activation: Activation, gate: M, up: M },
    /// activation(up(x)).
    Plain { activation: Activation, up: M },
}

/// The tensors of one block.
pub(crate) struct Layer<M> {
    /// Before attention. None: it reads the residual stream as it is.
    pub(crate) attention_norm: Option<NormWeights>,
    pub(crate) query: M,
    pub(crate) key: M,
    pub(crate) value: M,
    pub(crate) query_norm: PieceNorms,
    pub(crate) key_norm: PieceNorms,
    pub(crate) attention_output: M,
    /// Behind attention, before it is added.
    pub(crate) attention_post_norm: Option<NormWeights>,
    /// Before the feed-forward half. None: it reads what attention reads if the two are parallel, and otherwise the
    /// residual stream as it is.
    pub(crate) ffn_norm: Option<NormWeights>,
    pub(crate) inner: Inner<M>,
    pub(crate) down: M,
    /// Behind the feed-forward half, before it is added.
    pub(crate) ffn_post_norm: Option<NormWeights>,
}

/// A whole network.
pub(crate) struct Network<M> {
    pub(crate) spec: Spec,
    pub(crate) embedding: Table,
    /// Vectors that are added to the embedding, one a position; only of learned positions.
    pub(crate) positions: Option<Table>,
    /// From the embedding's width to the stream's, where they differ.
    pub(crate) embedding_projection: Option<M>,
    pub(crate) embedding_norm: Option<NormWeights>,
    pub(crate) layers: Vec<Layer<M>>,
    pub(crate) output_norm: Option<NormWeights>,
    /// From the stream's width to the embedding's.
    pub(crate) output_projection: Option<M>,
    pub(crate) head: M,
}

impl Network<Unpacked> {
    /// Packs every matrix, layer by layer; `progress` hears of each.
    ///
    /// # Errors
    /// As [`Unpacked::pack`].
    pub(crate) fn pack(self, packing: &Packing<'_>, progress: Progress<'_>) -> Result<Network<Linear>, ModelError> {
        let Self { spec, embedding, positions, embedding_norm, layers, output_norm, head, .. } = self;
        let projection = |matrix: Option<Unpacked>| matrix.map(|matrix| matrix.pack(packing)).transpose();
        let embedding_projection = projection(self.embedding_projection)?;
        let count = layers.len();
        let mut packed = Vec::with_capacity(count);
        for layer in layers {
            packed.push(layer.pack(packing)?);
            progress(packed.len(), count);
        }
        let head = head.pack(&packing.of_head())?;
        Ok(Network {
            spec,
            embedding,
            positions,
            embedding_projection,
            embedding_norm,
            layers: packed,
            output_norm,
            output_projection: projection(self.output_projection)?,
            head,
        })
    }
}

impl Layer<Unpacked> {
    fn pack(self, packing: &Packing<'_>) -> Result<Layer<Linear>, ModelError> {
        Ok(Layer {
            attention_norm: self.attention_norm,
            query: self.query.pack(packing)?,
            key: self.key.pack(packing)?,
            value: self.value.pack(packing)?,
            query_norm: self.query_norm,
            key_norm: self.key_norm,
            attention_output: self.attention_output.pack(packing)?,
            attention_post_norm: self.attention_post_norm,
            ffn_norm: self.ffn_norm,
            inner: match self.inner {
                Inner::Gated { activation, gate, up } => {
                    Inner::Gated { activation, gate: gate.pack(packing)?, up: up.pack(packing)? }
                }
                Inner::Plain { activation, up } => Inner::Plain { activation, up: up.pack(packing)? },
            },
            down: self.down.pack(packing)?,
            ffn_post_norm: self.ffn_post_norm,
        })
    }
}

impl Network<Linear> {
    /// Every matrix that a pass multiplies with, in order; the head is the last.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let layers = self.layers.iter().flat_map(|layer| {
            let Layer { query, key, value, attention_output, inner, down, .. } = layer;
            let (gate, up) = match inner {
                Inner::Gated { gate, up, .. } => (Some(gate), up),
                Inner::Plain { up, .. } => (None, up),
            };
            [Some(query), Some(key), Some(value), Some(attention_output), gate, Some(up), Some(down)]
        });
        let projections = self.embedding_projection.iter().chain(&self.output_projection);
        projections.chain(layers.flatten()).chain([&self.head])
    }
}
