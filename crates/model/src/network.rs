//! A network in the one form that is run: what a family reads from its files, and what the decoder computes with.
//!
//! The same structure twice: with matrices as they lie in the file ([`Unpacked`]), which is what families yield and
//! every backend packs in its own way, and with matrices packed for the kernels (`Linear`). Where networks differ in
//! which matrices they have, the difference is said here and nowhere else, so no combination has to be ruled out when
//! it is run; what is done with them is said by the [`Spec`]. Left out: names of tensors (`family/`).

use crate::batch::Token;
use crate::error::ModelError;
use crate::linear::{Linear, Packing, Table, Unpacked};
use crate::spec::{self, Activation, Spec};

/// Called as loading goes on, with how many layers are done and how many there are.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Weight and bias of a normalization; of RMSNorm the bias is empty.
#[derive(Clone)]
pub struct NormWeights {
    /// `[width]`.
    pub weight: Vec<f32>,
    /// `[width]`, or empty: there is none.
    pub bias: Vec<f32>,
}

/// Normalizations of the pieces that a row of queries or keys is made of, over and over: one for every head, one a
/// head, or one of the whole row. Empty: it stays as it is.
pub type PieceNorms = Vec<NormWeights>;

/// What a feed-forward half computes between its norm and its `down` matrix.
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
        /// What is applied.
        activation: Activation,
        /// `[ffn width, width]`.
        up: M,
    },
}

/// A feed-forward half: down(inner(x)).
#[derive(Clone)]
pub struct Dense<M> {
    /// What it does first.
    pub inner: Inner<M>,
    /// `[width, ffn width]`.
    pub down: M,
}

/// The feed-forward half of a layer.
pub enum Feed<M> {
    /// The same for all rows.
    Dense(Dense<M>),
    /// Each row goes through those that it chooses.
    Experts(Experts<M>),
    /// Both, and what they say is added up.
    Both(Box<Both<M>>),
}

/// A dense half and experts beside it: each reads the residual stream in its own way, and has a norm behind it.
pub struct Both<M> {
    /// It reads what the norm before the feed-forward half makes of the stream.
    pub dense: Dense<M>,
    /// Behind the dense half.
    pub dense_post_norm: NormWeights,
    /// The experts.
    pub experts: Experts<M>,
    /// Of the stream, for the router.
    pub router_norm: NormWeights,
    /// Of the stream, for the experts.
    pub experts_norm: NormWeights,
    /// Behind the experts.
    pub experts_post_norm: NormWeights,
}

/// The experts of a layer.
pub struct Experts<M> {
    /// `[experts, width]`: the score of each.
    pub router: M,
    /// What is added to the score of each for the choice alone; empty: nothing.
    pub corrections: Vec<f32>,
    /// What the weight of each is multiplied with, whoever chose it. Empty: it stays as it is.
    pub scales: Vec<f32>,
    /// In order of their numbers; none where they are packed when rows choose them.
    pub all: Vec<Dense<M>>,
    /// The one that all rows go through, and the `[1, width]` of its gate, if it has one.
    pub shared: Option<(Dense<M>, Option<M>)>,
}

/// Where the keys and values of a layer come from.
pub struct KeyValue<M> {
    /// `[key-value heads * head width, width]`.
    pub key: M,
    /// The same shape. None: values are the keys before their norm.
    pub value: Option<M>,
    /// Of the keys.
    pub key_norm: PieceNorms,
    /// Of the values.
    pub value_norm: PieceNorms,
}

/// How a layer reads what it gets beside the residual stream: norm(projection(activation(gate(x)) * input)) is added
/// to the stream, behind the feed-forward half.
pub struct InputReader<M> {
    /// What is applied to the gate.
    pub activation: Activation,
    /// `[input width, width]`.
    pub gate: M,
    /// `[width, input width]`.
    pub projection: M,
    /// Behind the projection.
    pub norm: NormWeights,
}

/// How a draft head begins: what it makes of the hidden rows of its target.
pub struct Fusion<M> {
    /// Before the projection, `[rows of the target's layers]`.
    pub target_norm: Option<NormWeights>,
    /// `[width, layers * target width]`: from the target's hidden rows to one of the head.
    pub projection: M,
    /// Of the hidden row, the head's own or one made of the target's, as the first layer attends by it.
    pub hidden_norm: NormWeights,
}

/// The tensors of one block.
pub struct Layer<M> {
    /// Before attention. None: it reads the residual stream as it is. In the first layer of a draft head it is the norm
    /// of the embedding.
    pub attention_norm: Option<NormWeights>,
    /// `[query heads * head width, width]`, in the first layer of a draft head twice as many columns.
    pub query: M,
    /// Of the queries.
    pub query_norm: PieceNorms,
    /// None: the layer attends to those of an earlier one.
    pub key_value: Option<KeyValue<M>>,
    /// For each query head a score that takes part in the softmax beside those of the positions, and has no value.
    /// Empty: none.
    pub sinks: Vec<f32>,
    /// `[width, query heads * head width]`.
    pub attention_output: M,
    /// Behind attention, before it is added.
    pub attention_post_norm: Option<NormWeights>,
    /// Before the feed-forward half. None: it reads what attention reads if the two are parallel, and otherwise the
    /// residual stream as it is.
    pub ffn_norm: Option<NormWeights>,
    /// The feed-forward half.
    pub feed: Feed<M>,
    /// Behind the feed-forward half, before it is added.
    pub ffn_post_norm: Option<NormWeights>,
    /// Only where layers get inputs of their own.
    pub input: Option<InputReader<M>>,
    /// Multiplies the stream behind the block.
    pub multiplier: f32,
}

/// Where the inputs of layers come from, of all layers at once: `[layers, width]` of each token.
pub struct InputSource<M> {
    /// `[rows, layers * input width]`, by token.
    pub table: Table,
    /// `[layers * input width, width]`: from the embedding, as the first block reads it.
    pub projection: M,
    /// Of what one layer gets of the projection.
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
    /// Vectors that are added to the embedding, one a position; only of learned positions.
    pub positions: Option<Table>,
    /// `[width, embedding width]`: from the embedding's width to the stream's, where they differ.
    pub embedding_projection: Option<M>,
    /// Behind the embedding.
    pub embedding_norm: Option<NormWeights>,
    /// Only where layers get inputs of their own.
    pub inputs: Option<InputSource<M>>,
    /// Only of draft heads.
    pub fusion: Option<Fusion<M>>,
    /// The blocks, in order.
    pub layers: Vec<Layer<M>>,
    /// Behind the last block.
    pub output_norm: Option<NormWeights>,
    /// `[embedding width, width]`: from the stream's width to the embedding's, where they differ.
    pub output_projection: Option<M>,
    /// `[vocabulary, embedding width]`, or fewer rows ([`Network::with_tokens`]); of a draft head its own tokens'.
    pub head: M,
    /// Of a draft head that can say some of the tokens only: which token each row of the head is, ascending. Empty: row
    /// i is token i.
    pub head_tokens: Vec<Token>,
    /// Names of tensors of its files that are not the text's, in order of the alphabet (towers of images, layers that
    /// predict further tokens). Those whose absence changes nothing are not among them.
    pub left_out: Vec<String>,
}

impl Network<Unpacked> {
    /// The same with a head of so many first rows ([`Options::tokens`](crate::Options::tokens)); none, or more than
    /// there are: of all.
    pub fn with_tokens(mut self, tokens: Option<usize>) -> Self {
        if let Some(tokens) = tokens.filter(|tokens| (1..self.spec.vocabulary).contains(tokens)) {
            if self.head_tokens.is_empty() && tokens < self.head.shape()[0] {
                self.head = self.head.outputs(0..tokens);
            }
            if self.spec.draft_head.is_some() {
                self.spec.vocabulary = tokens;
                let said = self.head_tokens.partition_point(|token| (*token as usize) < tokens);
                if said < self.head_tokens.len() {
                    // One that can say none of them is left with a row that stands for the first: wrong, and lawful.
                    self.head = self.head.outputs(0..said.max(1));
                    self.head_tokens.truncate(said);
                    self.head_tokens.resize(said.max(1), 0);
                }
            }
        }
        self
    }

    /// Bytes of its files that a token alone reads: all matrices but those of experts that it does not choose. Of
    /// embeddings it reads a row, which is not counted.
    pub fn token_bytes(&self) -> usize {
        let all: usize = self.matrices().chain(self.expert_matrices()).map(Unpacked::file_bytes).sum();
        all - self.not_chosen(Unpacked::file_bytes)
    }

    /// Parameters of the experts that a token does not choose.
    pub fn parameters_not_chosen(&self) -> usize {
        self.not_chosen(|matrix| matrix.shape().iter().product::<usize>() + matrix.bias().map_or(0, <[f32]>::len))
    }

    /// A sum over the matrices of the experts that a token does not choose.
    fn not_chosen(&self, of: impl Fn(&Unpacked) -> usize) -> usize {
        let Some(spec::Experts { count, chosen, .. }) = self.spec.experts else { return 0 };
        self.expert_matrices().map(of).sum::<usize>() / count * (count - chosen)
    }

    /// Packs every matrix for the kernels, layer by layer; `progress` hears of each.
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
    /// The matrices that all rows go through, in order.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &M> {
        let Layer { query, key_value, attention_output, feed, input, .. } = self;
        let key = key_value.as_ref().map(|key_value| &key_value.key);
        let value = key_value.as_ref().and_then(|key_value| key_value.value.as_ref());
        let of_input = input.as_ref().map(|input| [&input.gate, &input.projection]);
        let own = [Some(query), key, value, Some(attention_output)];
        own.into_iter().flatten().chain(feed.matrices()).chain(of_input.into_iter().flatten())
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
            feed: match self.feed {
                Feed::Dense(dense) => Feed::Dense(dense.pack(packing)?),
                Feed::Experts(experts) => Feed::Experts(experts.pack(packing)?),
                Feed::Both(both) => {
                    let Both { dense, dense_post_norm, experts, router_norm, experts_norm, experts_post_norm } = *both;
                    let (dense, experts) = (dense.pack(packing)?, experts.pack(packing)?);
                    let both = Both { dense, dense_post_norm, experts, router_norm, experts_norm, experts_post_norm };
                    Feed::Both(Box::new(both))
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
    /// The same of other matrices, each made of one of these.
    pub(crate) fn map<N>(self, make: &mut dyn FnMut(M) -> Result<N, ModelError>) -> Result<Dense<N>, ModelError> {
        let inner = match self.inner {
            Inner::Gated { activation, gate, up } => Inner::Gated { activation, gate: make(gate)?, up: make(up)? },
            Inner::Plain { activation, up } => Inner::Plain { activation, up: make(up)? },
        };
        Ok(Dense { inner, down: make(self.down)? })
    }

    /// The same matrices where they are.
    pub(crate) fn as_ref(&self) -> Dense<&M> {
        let inner = match &self.inner {
            Inner::Gated { activation, gate, up } => Inner::Gated { activation: *activation, gate, up },
            Inner::Plain { activation, up } => Inner::Plain { activation: *activation, up },
        };
        Dense { inner, down: &self.down }
    }

    /// As [`matrices`](Self::matrices), to be changed.
    pub(crate) fn matrices_mut(&mut self) -> impl Iterator<Item = &mut M> {
        let (gate, up) = match &mut self.inner {
            Inner::Gated { gate, up, .. } => (Some(gate), up),
            Inner::Plain { up, .. } => (None, up),
        };
        gate.into_iter().chain([up, &mut self.down])
    }

    /// Its matrices: the gate, if there is one, the one beside it, and the last.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &M> {
        let (gate, up) = match &self.inner {
            Inner::Gated { gate, up, .. } => (Some(gate), up),
            Inner::Plain { up, .. } => (None, up),
        };
        gate.into_iter().chain([up, &self.down])
    }
}

impl<M> Feed<M> {
    /// The dense half and the experts, of which it has at least one.
    pub(crate) fn parts(&self) -> (Option<&Dense<M>>, Option<&Experts<M>>) {
        match self {
            Feed::Dense(dense) => (Some(dense), None),
            Feed::Experts(experts) => (None, Some(experts)),
            Feed::Both(both) => (Some(&both.dense), Some(&both.experts)),
        }
    }

    /// The experts, if there are some.
    pub(crate) fn experts_mut(&mut self) -> Option<&mut Experts<M>> {
        match self {
            Feed::Dense(_) => None,
            Feed::Experts(experts) => Some(experts),
            Feed::Both(both) => Some(&mut both.experts),
        }
    }

    /// All matrices of the half, but those of experts that rows choose.
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
    /// The matrices of experts that rows choose from, of all layers.
    pub(crate) fn expert_matrices(&self) -> impl Iterator<Item = &M> {
        let experts = self.layers.iter().filter_map(|layer| layer.feed.parts().1).flat_map(|experts| &experts.all);
        experts.flat_map(Dense::matrices)
    }

    /// The matrices that all rows go through, in order; the head is the last.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &M> {
        let layers = self.layers.iter().flat_map(Layer::matrices);
        let of_inputs = self.inputs.iter().map(|inputs| &inputs.projection);
        let of_fusion = self.fusion.iter().map(|fusion| &fusion.projection);
        let projections = self.embedding_projection.iter().chain(&self.output_projection).chain(of_inputs);
        let projections = projections.chain(of_fusion);
        projections.chain(layers).chain([&self.head])
    }
}
