//! Packing of a described network for the kernels, one matrix after another.

use super::{
    CrossAttention, Dense, DenseWithExperts, Encoder, Experts, Ffn, Fusion, InputReader, InputSource, KeyValue, Layer,
    Network, Progress,
};
use crate::error::ModelError;
use crate::linear::{Linear, Packing, Unpacked};
use crate::spec::{Heads, Spec};

/// Packs the layers of a network in another way than into memory of their own.
pub(crate) type PackLayers<'a> =
    &'a mut dyn FnMut(&Spec, Vec<Layer<Unpacked>>) -> Result<Vec<Layer<Linear>>, ModelError>;

impl Network<Unpacked> {
    /// Packs every matrix for the kernels, layer by layer; `progress` is called after each.
    ///
    /// # Errors
    /// As [`Unpacked::pack`].
    pub(crate) fn pack(self, packing: &Packing<'_>, progress: Progress<'_>) -> Result<Network<Linear>, ModelError> {
        self.pack_with(packing, progress, None)
    }

    /// As [`pack`](Self::pack), with another way to pack the layers, if there is one.
    ///
    /// # Errors
    /// As [`Unpacked::pack`], or the error of the other way.
    pub(crate) fn pack_with(
        self,
        packing: &Packing<'_>,
        progress: Progress<'_>,
        pack_layers: Option<PackLayers<'_>>,
    ) -> Result<Network<Linear>, ModelError> {
        let Self { name, source, spec, embedding, positions, embedding_norm, layers, output_norm, head, .. } = self;
        let projection = |matrix: Option<Unpacked>| matrix.map(|matrix| matrix.pack(packing)).transpose();
        let embedding_projection = projection(self.embedding_projection)?;
        let inputs = match self.inputs {
            None => None,
            Some(InputSource { table, projection, norm }) => {
                Some(InputSource { table, projection: projection.pack(packing)?, norm })
            }
        };
        let fusion = match self.fusion {
            None => None,
            Some(Fusion { target_norm, projection, hidden_norm }) => {
                Some(Fusion { target_norm, projection: projection.pack(packing)?, hidden_norm })
            }
        };
        let of_encoder = self.encoder.as_ref().map_or(0, |encoder| encoder.layers.len());
        let (mut done, count) = (0, of_encoder + layers.len());
        let mut pack_all = |spec: &Spec, layers: Vec<Layer<Unpacked>>| -> Result<Vec<Layer<Linear>>, ModelError> {
            let pack = |(number, layer): (usize, Layer<Unpacked>)| {
                let packed = layer.pack(packing, HeadUnits::of(spec, number))?;
                done += 1;
                progress(done, count);
                Ok(packed)
            };
            layers.into_iter().enumerate().map(pack).collect()
        };
        let encoder = match self.encoder {
            None => None,
            Some(Encoder { spec, layers, output_norm }) => {
                let layers = pack_all(&spec, layers)?;
                Some(Encoder { spec, layers, output_norm })
            }
        };
        let layers = match pack_layers {
            None => pack_all(&spec, layers)?,
            Some(pack_layers) => pack_layers(&spec, layers)?,
        };
        let head = head.pack(&packing.of_head())?;
        Ok(Network {
            name,
            source,
            spec,
            embedding,
            positions,
            embedding_projection,
            embedding_norm,
            inputs,
            fusion,
            encoder,
            layers,
            output_norm,
            output_projection: projection(self.output_projection)?,
            head,
            head_tokens: self.head_tokens,
            left_out: self.left_out,
        })
    }
}

/// Numbers of outputs that belong to one head of keys and values, which are on one rank.
#[derive(Clone, Copy)]
pub(crate) struct HeadUnits {
    /// Of the matrices of keys and values.
    kv: usize,
    /// Of the matrix of queries: all heads that read this one.
    queries: usize,
}

impl HeadUnits {
    /// Those of a layer.
    pub(crate) fn of(spec: &Spec, layer: usize) -> Self {
        let Heads { count, head_dim } = spec.kv_heads_of(layer);
        Self { kv: head_dim, queries: spec.heads / count * head_dim }
    }
}

impl Layer<Unpacked> {
    /// Packs every matrix, always in the same order.
    pub(crate) fn pack(self, packing: &Packing<'_>, units: HeadUnits) -> Result<Layer<Linear>, ModelError> {
        let (of_queries, of_kv) = (packing.in_units(units.queries), packing.in_units(units.kv));
        Ok(Layer {
            attention_norm: self.attention_norm,
            query: self.query.pack(&of_queries)?,
            query_norm: self.query_norm,
            key_value: self.key_value.map(|key_value| key_value.pack(&of_kv)).transpose()?,
            sinks: self.sinks,
            bias: self.bias,
            attention_output: self.attention_output.pack(packing)?,
            attention_post_norm: self.attention_post_norm,
            cross: match self.cross {
                None => None,
                Some(CrossAttention { norm, query, key_value: [key, value], output }) => Some(CrossAttention {
                    norm,
                    query: query.pack(&of_queries)?,
                    // Cross attention has as many heads of keys and values as of queries.
                    key_value: [key.pack(&of_queries)?, value.pack(&of_queries)?],
                    output: output.pack(packing)?,
                }),
            },
            ffn_norm: self.ffn_norm,
            ffn: match self.ffn {
                Ffn::Dense(dense) => Ffn::Dense(dense.pack(packing)?),
                Ffn::Experts(experts) => Ffn::Experts(experts.pack(packing)?),
                Ffn::DenseWithExperts(both) => Ffn::DenseWithExperts(Box::new(DenseWithExperts {
                    dense: both.dense.pack(packing)?,
                    dense_post_norm: both.dense_post_norm,
                    experts: both.experts.pack(packing)?,
                    router_norm: both.router_norm,
                    experts_norm: both.experts_norm,
                    experts_post_norm: both.experts_post_norm,
                })),
            },
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

impl Dense<Unpacked> {
    fn pack(self, packing: &Packing<'_>) -> Result<Dense<Linear>, ModelError> {
        self.map_in_units(packing, &mut |matrix, packing| matrix.pack(packing))
    }

    /// The same structure with other matrices, each made of one of these and its packing: the inner outputs are split
    /// so that each rank can round its own.
    ///
    /// # Errors
    /// As `make`.
    pub(crate) fn map_in_units<N>(
        self,
        packing: &Packing<'_>,
        make: &mut dyn FnMut(Unpacked, &Packing<'_>) -> Result<N, ModelError>,
    ) -> Result<Dense<N>, ModelError> {
        let inner = packing.in_units(self.down.input_unit(packing)?);
        let mut left = self.matrices().count();
        self.map(&mut |matrix| {
            // The last one is `down`.
            left -= 1;
            make(matrix, if left == 0 { packing } else { &inner })
        })
    }
}

impl Experts<Unpacked> {
    fn pack(self, packing: &Packing<'_>) -> Result<Experts<Linear>, ModelError> {
        let Self { router, corrections, scales, all, shared } = self;
        Ok(Experts {
            router: router.pack(&packing.of_router())?,
            corrections,
            scales,
            all: all.into_iter().map(|expert| expert.pack(packing)).collect::<Result<_, _>>()?,
            shared: match shared {
                None => None,
                Some((dense, gate)) => {
                    let gate = gate.map(|gate| gate.pack(&packing.of_router())).transpose()?;
                    Some((dense.pack(packing)?, gate))
                }
            },
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
