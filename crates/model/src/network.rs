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

/// Where the keys and values of a layer come from.
pub(crate) struct KeyValue<M> {
    pub(crate) key: M,
    /// None: values are the keys before their norm.
    pub(crate) value: Option<M>,
    pub(crate) key_norm: PieceNorms,
    pub(crate) value_norm: PieceNorms,
}

/// How a layer reads what it gets beside the residual stream: norm(projection(activation(gate(x)) * input)) is added
/// to the stream, behind the feed-forward half.
pub(crate) struct InputReader<M> {
    pub(crate) activation: Activation,
    pub(crate) gate: M,
    pub(crate) projection: M,
    pub(crate) norm: NormWeights,
}

/// The tensors of one block.
pub(crate) struct Layer<M> {
    /// Before attention. None: it reads the residual stream as it is.
    pub(crate) attention_norm: Option<NormWeights>,
    pub(crate) query: M,
    pub(crate) query_norm: PieceNorms,
    /// None: the layer attends to those of an earlier one.
    pub(crate) key_value: Option<KeyValue<M>>,
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
    /// Only where layers get inputs of their own.
    pub(crate) input: Option<InputReader<M>>,
    /// Multiplies the stream behind the block.
    pub(crate) multiplier: f32,
}

/// Where the inputs of layers come from, of all layers at once: `[layers, width]` of each token.
pub(crate) struct InputSource<M> {
    pub(crate) table: Table,
    /// From the embedding, as the first block reads it.
    pub(crate) projection: M,
    /// Of what one layer gets of the projection.
    pub(crate) norm: NormWeights,
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
    /// Only where layers get inputs of their own.
    pub(crate) inputs: Option<InputSource<M>>,
    pub(crate) layers: Vec<Layer<M>>,
    pub(crate) output_norm: Option<NormWeights>,
    /// From the stream's width to the embedding's.
    pub(crate) output_projection: Option<M>,
    pub(crate) head: M,
    /// Names of tensors of its files that are not the text's.
    pub(crate) left_out: Vec<String>,
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
        let inputs = match self.inputs {
            None => None,
            Some(InputSource { table, projection, norm }) => {
                Some(InputSource { table, projection: projection.pack(packing)?, norm })
            }
        };
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
            inputs,
            layers: packed,
            output_norm,
            output_projection: projection(self.output_projection)?,
            head,
            left_out: self.left_out,
        })
    }
}

impl Layer<Unpacked> {
    fn pack(self, packing: &Packing<'_>) -> Result<Layer<Linear>, ModelError> {
        Ok(Layer {
            attention_norm: self.attention_norm,
            query: self.query.pack(packing)?,
            query_norm: self.query_norm,
            key_value: self.key_value.map(|key_value| key_value.pack(packing)).transpose()?,
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
            input: match self.input {
                None => None,
                Some(InputReader { activation, gate, projection, norm }) => {
                    let (gate, projection) = (gate.pack(packing)?, projection.pack(packing)?);
                    Some(InputReader { activation, gate, projection, norm })
                }
            },
            multiplier: self.multiplier,
        })
    }
}

impl KeyValue<Unpacked> {
    fn pack(self, packing: &Packing<'_>) -> Result<KeyValue<Linear>, ModelError> {
        Ok(KeyValue {
            key: self.key.pack(packing)?,
            value: self.value.map(|value| value.pack(packing)).transpose()?,
            key_norm: self.key_norm,
            value_norm: self.value_norm,
        })
    }
}

impl Network<Linear> {
    /// Every matrix that a pass multiplies with, in order; the head is the last.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let layers = self.layers.iter().flat_map(|layer| {
            let Layer { query, key_value, attention_output, inner, down, input, .. } = layer;
            let (gate, up) = match inner {
                Inner::Gated { gate, up, .. } => (Some(gate), up),
                Inner::Plain { up, .. } => (None, up),
            };
            let key = key_value.as_ref().map(|key_value| &key_value.key);
            let value = key_value.as_ref().and_then(|key_value| key_value.value.as_ref());
            let of_input = input.as_ref().map(|input| [&input.gate, &input.projection]);
            let own = [Some(query), key, value, Some(attention_output), gate, Some(up), Some(down)];
            own.into_iter().flatten().chain(of_input.into_iter().flatten())
        });
        let of_inputs = self.inputs.iter().map(|inputs| &inputs.projection);
        let projections = self.embedding_projection.iter().chain(&self.output_projection).chain(of_inputs);
        projections.chain(layers).chain([&self.head])
    }
}
