//! A network as its matrices: what a family reads from its files, and what the decoder computes with.
//!
//! The same structure is used twice: with matrices as they lie in the file ([`Unpacked`]), which is what families make
//! and every backend packs in its own way, and with matrices packed for the kernels (`Linear`). Where networks differ
//! in which matrices they have, only these types say so, and impossible combinations cannot be expressed; the [`Spec`]
//! says what is computed with them.

use crate::batch::Token;
use crate::error::ModelError;
use crate::linear::{Linear, Packing, Table, Unpacked};
use crate::spec::{self, Activation, Spec};

/// Called as layers are loaded, with the number of layers done and of all.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Weight and bias of a normalization; of RMSNorm the bias is empty.
#[derive(Clone)]
pub struct NormWeights {
    /// `[width]`.
    pub weight: Vec<f32>,
    /// `[width]`, or empty: there is none.
    pub bias: Vec<f32>,
}

/// Normalizations of queries, keys or values: one shared by all heads, one a head, or one of the whole row. Empty:
/// none.
pub type QkNorms = Vec<NormWeights>;

/// What a feed-forward network computes between its norm and its `down` matrix.
#[derive(Clone)]
pub enum Inner<M> {
    /// activation(gate(x)) * up(x).
    Gated {
        /// What is applied to the gate.
        activation: Activation,
        /// `[ffn width, width]`.
        gate: M,
        /// `[ffn width, width]`.
        up: M,
    },
    /// activation(up(x)).
    Plain {
        /// What is applied to `up`.
        activation: Activation,
        /// `[ffn width, width]`.
        up: M,
    },
}

/// A dense feed-forward network, or one expert: down(inner(x)).
#[derive(Clone)]
pub struct Dense<M> {
    /// All of it but the `down` matrix.
    pub inner: Inner<M>,
    /// `[width, ffn width]`.
    pub down: M,
}

/// The feed-forward network of a layer.
pub enum Ffn<M> {
    /// The same for all rows.
    Dense(Dense<M>),
    /// Each row goes through the experts that it chooses.
    Experts(Experts<M>),
    /// Both, and their outputs are added.
    DenseWithExperts(Box<DenseWithExperts<M>>),
}

/// A dense feed-forward network and experts beside it: each reads the residual stream through norms of its own, and its
/// output is normalized.
pub struct DenseWithExperts<M> {
    /// It reads the stream through the layer's [`ffn_norm`](Layer::ffn_norm).
    pub dense: Dense<M>,
    /// Applied to the output of the dense network.
    pub dense_post_norm: NormWeights,
    /// The experts.
    pub experts: Experts<M>,
    /// Applied to the stream for the router.
    pub router_norm: NormWeights,
    /// Applied to the stream for the experts.
    pub experts_norm: NormWeights,
    /// Applied to the output of the experts.
    pub experts_post_norm: NormWeights,
}

/// The experts of a layer.
pub struct Experts<M> {
    /// `[experts, width]`: makes the logits of the experts.
    pub router: M,
    /// Added to the score of each expert for the choice alone; empty: none.
    pub corrections: Vec<f32>,
    /// Multiplies the weight of each expert; empty: none.
    pub scales: Vec<f32>,
    /// All of them in order; empty where experts are packed when rows choose them.
    pub all: Vec<Dense<M>>,
    /// The shared expert, which all rows go through, and the `[1, width]` of its gate, if it has one.
    pub shared: Option<(Dense<M>, Option<M>)>,
}

/// Where the keys and values of a layer come from.
pub struct KeyValue<M> {
    /// `[key-value heads * head width, width]`.
    pub key: M,
    /// The same shape. `None` if values are the keys before their norm.
    pub value: Option<M>,
    /// Norms of the keys.
    pub key_norm: QkNorms,
    /// Norms of the values.
    pub value_norm: QkNorms,
}

/// How a layer reads its per-layer embedding: norm(projection(activation(gate(x)) * input)) is added to the stream
/// after the feed-forward network.
pub struct InputReader<M> {
    /// What is applied to the gate.
    pub activation: Activation,
    /// `[input width, width]`.
    pub gate: M,
    /// `[width, input width]`.
    pub projection: M,
    /// Applied to the output of the projection.
    pub norm: NormWeights,
}

/// The input of a draft head: how it fuses embeddings and the hidden rows of its target.
pub struct Fusion<M> {
    /// Applied to the target's hidden rows before the projection, `[layers * target width]`.
    pub target_norm: Option<NormWeights>,
    /// `[width, layers * target width]`: from the target's hidden rows to one of the head.
    pub projection: M,
    /// Applied to the hidden row, whether projected or the head's own, for the attention of the first layer.
    pub hidden_norm: NormWeights,
}

/// The tensors of one block.
pub struct Layer<M> {
    /// Applied to the input of attention, if there is one. In the first layer of a draft head it is the norm of the
    /// embedding.
    pub attention_norm: Option<NormWeights>,
    /// `[query heads * head width, width]`, in the first layer of a draft head with twice as many columns.
    pub query: M,
    /// Norms of the queries.
    pub query_norm: QkNorms,
    /// `None` if the layer attends to the keys and values of an earlier one.
    pub key_value: Option<KeyValue<M>>,
    /// Attention sinks: for each query head a score that takes part in the softmax beside those of the positions and
    /// has no value. Empty: none.
    pub sinks: Vec<f32>,
    /// `[width, query heads * head width]`.
    pub attention_output: M,
    /// Applied to the output of attention before it is added.
    pub attention_post_norm: Option<NormWeights>,
    /// Applied to the input of the feed-forward network. `None`: it reads the input of attention if the two are
    /// parallel, and otherwise the residual stream.
    pub ffn_norm: Option<NormWeights>,
    /// The feed-forward network.
    pub ffn: Ffn<M>,
    /// Applied to the output of the feed-forward network before it is added.
    pub ffn_post_norm: Option<NormWeights>,
    /// The reader of the per-layer embedding, if there is one.
    pub input: Option<InputReader<M>>,
    /// Multiplies the stream after the block.
    pub multiplier: f32,
}

/// The per-layer embeddings of all layers: `[layers, width]` for each token.
pub struct InputSource<M> {
    /// `[rows, layers * input width]`, by token.
    pub table: Table,
    /// `[layers * input width, width]`: from the input of the first block.
    pub projection: M,
    /// Applied to the part of the projection that one layer gets.
    pub norm: NormWeights,
}

/// A whole network: what it computes, and its matrices in the form `M`.
pub struct Network<M> {
    /// The model's directory or file, for messages.
    pub name: String,
    /// The file of its tensors or their index, for messages.
    pub source: String,
    /// What is computed with the matrices.
    pub spec: Spec,
    /// `[vocabulary, embedding width]`.
    pub embedding: Table,
    /// Learned positions: a vector for each position that is added to the embedding.
    pub positions: Option<Table>,
    /// `[width, embedding width]`: from the embedding's width to the stream's, where they differ.
    pub embedding_projection: Option<M>,
    /// Applied to the embedding.
    pub embedding_norm: Option<NormWeights>,
    /// The per-layer embeddings, if there are any.
    pub inputs: Option<InputSource<M>>,
    /// The input of a draft head; `None` for other networks.
    pub fusion: Option<Fusion<M>>,
    /// The blocks, in order.
    pub layers: Vec<Layer<M>>,
    /// Applied to the output of the last block.
    pub output_norm: Option<NormWeights>,
    /// `[embedding width, width]`: from the stream's width to the embedding's, where they differ.
    pub output_projection: Option<M>,
    /// `[vocabulary, embedding width]`, or fewer rows ([`Network::with_tokens`]); for a draft head, those of its draft
    /// vocabulary.
    pub head: M,
    /// The draft vocabulary of a draft head: the token of each row of the head, ascending. Empty: row i is token i.
    pub head_tokens: Vec<Token>,
    /// Names of the tensors of its files that do not belong to the language model, in alphabetical order (vision
    /// towers, multi-token prediction layers). Tensors that no computation needs are not listed.
    pub left_out: Vec<String>,
}

impl Network<Unpacked> {
    /// The same with only the first `tokens` rows of the head ([`Options::tokens`](crate::Options::tokens)); with all
    /// of them if it is `None` or more than there are.
    pub fn with_tokens(mut self, tokens: Option<usize>) -> Self {
        if let Some(tokens) = tokens.filter(|tokens| (1..self.spec.vocabulary).contains(tokens)) {
            if self.head_tokens.is_empty() && tokens < self.head.shape()[0] {
                self.head = self.head.outputs(0..tokens);
            }
            if self.spec.draft_head.is_some() {
                self.spec.vocabulary = tokens;
                let kept = self.head_tokens.partition_point(|token| (*token as usize) < tokens);
                if kept < self.head_tokens.len() {
                    // With none of them left, one row stays and stands for token 0: its drafts are wrong, but valid.
                    self.head = self.head.outputs(0..kept.max(1));
                    self.head_tokens.truncate(kept);
                    self.head_tokens.resize(kept.max(1), 0);
                }
            }
        }
        self
    }

    /// Bytes of its files that are read to compute one token: all matrices but those of experts that it does not
    /// choose. The one row that is read of each embedding is not counted.
    pub fn token_bytes(&self) -> usize {
        let all: usize = self.matrices().chain(self.expert_matrices()).map(Unpacked::file_bytes).sum();
        all - self.sum_of_inactive(Unpacked::file_bytes)
    }

    /// Parameters of the experts that a token does not choose: those of the model that are not active.
    pub fn inactive_parameters(&self) -> usize {
        self.sum_of_inactive(|matrix| matrix.shape().iter().product::<usize>() + matrix.bias().map_or(0, <[f32]>::len))
    }

    /// The sum of a property over the matrices of the experts that a token does not choose.
    fn sum_of_inactive(&self, of: impl Fn(&Unpacked) -> usize) -> usize {
        let Some(spec::Experts { count, chosen, .. }) = self.spec.experts else { return 0 };
        self.expert_matrices().map(of).sum::<usize>() / count * (count - chosen)
    }

    /// Packs every matrix for the kernels, layer by layer; `progress` is called after each.
    ///
    /// # Errors
    /// As [`Unpacked::pack`].
    pub(crate) fn pack(self, packing: &Packing<'_>, progress: Progress<'_>) -> Result<Network<Linear>, ModelError> {
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
        let count = layers.len();
        let mut packed = Vec::with_capacity(count);
        for layer in layers {
            packed.push(layer.pack(packing)?);
            progress(packed.len(), count);
        }
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
            layers: packed,
            output_norm,
            output_projection: projection(self.output_projection)?,
            head,
            head_tokens: self.head_tokens,
            left_out: self.left_out,
        })
    }
}

impl<M> Layer<M> {
    /// The matrices that all rows are multiplied with, in order.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &M> {
        let Layer { query, key_value, attention_output, ffn, input, .. } = self;
        let key = key_value.as_ref().map(|key_value| &key_value.key);
        let value = key_value.as_ref().and_then(|key_value| key_value.value.as_ref());
        let of_input = input.as_ref().map(|input| [&input.gate, &input.projection]);
        let own = [Some(query), key, value, Some(attention_output)];
        own.into_iter().flatten().chain(ffn.matrices()).chain(of_input.into_iter().flatten())
    }
}

impl Layer<Unpacked> {
    fn pack(self, packing: &Packing<'_>) -> Result<Layer<Linear>, ModelError> {
        Ok(Layer {
            attention_norm: self.attention_norm,
            query: self.query.pack(packing)?,
            query_norm: self.query_norm,
            key_value: self.key_value.map(|key_value| key_value.pack(packing)).transpose()?,
            sinks: self.sinks,
            attention_output: self.attention_output.pack(packing)?,
            attention_post_norm: self.attention_post_norm,
            ffn_norm: self.ffn_norm,
            ffn: match self.ffn {
                Ffn::Dense(dense) => Ffn::Dense(dense.pack(packing)?),
                Ffn::Experts(experts) => Ffn::Experts(experts.pack(packing)?),
                Ffn::DenseWithExperts(both) => {
                    let DenseWithExperts {
                        dense,
                        dense_post_norm,
                        experts,
                        router_norm,
                        experts_norm,
                        experts_post_norm,
                    } = *both;
                    let (dense, experts) = (dense.pack(packing)?, experts.pack(packing)?);
                    let both = DenseWithExperts {
                        dense,
                        dense_post_norm,
                        experts,
                        router_norm,
                        experts_norm,
                        experts_post_norm,
                    };
                    Ffn::DenseWithExperts(Box::new(both))
                }
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
        self.map(&mut |matrix| matrix.pack(packing))
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

impl<M> Dense<M> {
    /// The same structure with other matrices, each made of one of these.
    pub(crate) fn map<N>(self, make: &mut dyn FnMut(M) -> Result<N, ModelError>) -> Result<Dense<N>, ModelError> {
        let inner = match self.inner {
            Inner::Gated { activation, gate, up } => Inner::Gated { activation, gate: make(gate)?, up: make(up)? },
            Inner::Plain { activation, up } => Inner::Plain { activation, up: make(up)? },
        };
        Ok(Dense { inner, down: make(self.down)? })
    }

    /// The same structure with references to the matrices.
    pub(crate) fn as_ref(&self) -> Dense<&M> {
        let inner = match &self.inner {
            Inner::Gated { activation, gate, up } => Inner::Gated { activation: *activation, gate, up },
            Inner::Plain { activation, up } => Inner::Plain { activation: *activation, up },
        };
        Dense { inner, down: &self.down }
    }

    /// As [`matrices`](Self::matrices), mutable.
    pub(crate) fn matrices_mut(&mut self) -> impl Iterator<Item = &mut M> {
        let (gate, up) = match &mut self.inner {
            Inner::Gated { gate, up, .. } => (Some(gate), up),
            Inner::Plain { up, .. } => (None, up),
        };
        gate.into_iter().chain([up, &mut self.down])
    }

    /// Its matrices: the gate, if there is one, up and down.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &M> {
        let (gate, up) = match &self.inner {
            Inner::Gated { gate, up, .. } => (Some(gate), up),
            Inner::Plain { up, .. } => (None, up),
        };
        gate.into_iter().chain([up, &self.down])
    }
}

impl<M> Ffn<M> {
    /// The dense network and the experts, of which at least one is there.
    pub(crate) fn parts(&self) -> (Option<&Dense<M>>, Option<&Experts<M>>) {
        match self {
            Ffn::Dense(dense) => (Some(dense), None),
            Ffn::Experts(experts) => (None, Some(experts)),
            Ffn::DenseWithExperts(both) => (Some(&both.dense), Some(&both.experts)),
        }
    }

    /// The experts, if there are some.
    pub(crate) fn experts_mut(&mut self) -> Option<&mut Experts<M>> {
        match self {
            Ffn::Dense(_) => None,
            Ffn::Experts(experts) => Some(experts),
            Ffn::DenseWithExperts(both) => Some(&mut both.experts),
        }
    }

    /// All its matrices, but those of experts that rows choose.
    fn matrices(&self) -> impl Iterator<Item = &M> {
        let (dense, experts) = self.parts();
        let of_experts = experts.into_iter().flat_map(|Experts { router, shared, .. }| {
            let shared = shared.iter().flat_map(|(dense, gate)| dense.matrices().chain(gate));
            [router].into_iter().chain(shared)
        });
        dense.into_iter().flat_map(Dense::matrices).chain(of_experts)
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

impl<M> Network<M> {
    /// The matrices of the experts that rows choose among, of all layers.
    pub(crate) fn expert_matrices(&self) -> impl Iterator<Item = &M> {
        let experts = self.layers.iter().filter_map(|layer| layer.ffn.parts().1).flat_map(|experts| &experts.all);
        experts.flat_map(Dense::matrices)
    }

    /// The matrices that all rows are multiplied with, in order; the head is the last.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &M> {
        let layers = self.layers.iter().flat_map(Layer::matrices);
        let of_inputs = self.inputs.iter().map(|inputs| &inputs.projection);
        let of_fusion = self.fusion.iter().map(|fusion| &fusion.projection);
        let projections = self.embedding_projection.iter().chain(&self.output_projection).chain(of_inputs);
        let projections = projections.chain(of_fusion);
        projections.chain(layers).chain([&self.head])
    }
}
