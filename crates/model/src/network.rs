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

/// Weight and, where the family has one, bias of a normalization.
pub(crate) struct NormWeights {
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

/// What a feed-forward half computes between its norm and its `down` matrix.
pub(crate) enum Inner<M> {
    /// silu(gate(x)) * up(x).
    SiluGated { gate: M, up: M },
    /// activation(up(x)).
    Plain { activation: Activation, up: M },
}

/// The tensors of one block.
pub(crate) struct Layer<M> {
    pub(crate) attention_norm: NormWeights,
    pub(crate) query: M,
    pub(crate) key: M,
    pub(crate) value: M,
    pub(crate) attention_output: M,
    pub(crate) ffn_norm: NormWeights,
    pub(crate) inner: Inner<M>,
    pub(crate) down: M,
}

/// A whole network.
pub(crate) struct Network<M> {
    pub(crate) spec: Spec,
    pub(crate) embedding: Table,
    /// Vectors that are added to the embedding, one a position; only of learned positions.
    pub(crate) positions: Option<Table>,
    pub(crate) layers: Vec<Layer<M>>,
    pub(crate) output_norm: NormWeights,
    pub(crate) head: M,
}

impl Network<Unpacked> {
    /// Packs every matrix, layer by layer; `progress` hears of each.
    ///
    /// # Errors
    /// As [`Unpacked::pack`].
    pub(crate) fn pack(self, packing: &Packing<'_>, progress: Progress<'_>) -> Result<Network<Linear>, ModelError> {
        let Self { spec, embedding, positions, layers, output_norm, head } = self;
        let count = layers.len();
        let mut packed = Vec::with_capacity(count);
        for layer in layers {
            packed.push(layer.pack(packing)?);
            progress(packed.len(), count);
        }
        let head = head.pack(&packing.of_head())?;
        Ok(Network { spec, embedding, positions, layers: packed, output_norm, head })
    }
}

impl Layer<Unpacked> {
    fn pack(self, packing: &Packing<'_>) -> Result<Layer<Linear>, ModelError> {
        Ok(Layer {
            attention_norm: self.attention_norm,
            query: self.query.pack(packing)?,
            key: self.key.pack(packing)?,
            value: self.value.pack(packing)?,
            attention_output: self.attention_output.pack(packing)?,
            ffn_norm: self.ffn_norm,
            inner: match self.inner {
                Inner::SiluGated { gate, up } => Inner::SiluGated { gate: gate.pack(packing)?, up: up.pack(packing)? },
                Inner::Plain { activation, up } => Inner::Plain { activation, up: up.pack(packing)? },
            },
            down: self.down.pack(packing)?,
        })
    }
}

impl Network<Linear> {
    /// Every matrix that a pass multiplies with, in order; the head is the last.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let layers = self.layers.iter().flat_map(|layer| {
            let Layer { query, key, value, attention_output, inner, down, .. } = layer;
            let (gate, up) = match inner {
                Inner::SiluGated { gate, up } => (Some(gate), up),
                Inner::Plain { up, .. } => (None, up),
            };
            [Some(query), Some(key), Some(value), Some(attention_output), gate, Some(up), Some(down)]
        });
        layers.flatten().chain([&self.head])
    }
}
