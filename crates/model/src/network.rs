//! A network as its matrices: what a family reads from its files, and what the decoder computes with.
//!
//! The same structure is used twice: with matrices as they are stored in the file ([`Unpacked`]), which is what
//! families make and every backend packs in its own way, and with matrices packed for the kernels (`network/pack.rs`).
//! Differences in which matrices networks have are in these types alone, so impossible combinations cannot be
//! expressed; the [`Spec`] says what is computed with the matrices.

mod pack;

use std::ops::Range;
use std::sync::Arc;

use foretoken_kernels::attention;

use crate::batch::Token;
use crate::error::ModelError;
use crate::linear::{Table, Unpacked};
use crate::spec::{self, Activation, Spec};
pub(crate) use pack::HeadUnits;

/// A function that is called as layers are loaded, with the number of layers done and of all layers.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// The weight and the bias of a normalization.
#[derive(Clone)]
pub struct NormWeights {
    /// The weight `[width]`.
    pub weight: Vec<f32>,
    /// The bias `[width]`; empty if there is none, as in RMSNorm.
    pub bias: Vec<f32>,
}

/// Normalizations of queries, keys or values: one shared by all heads, one per head, or one of the whole row. Empty if
/// there is none.
pub type QkNorms = Vec<NormWeights>;

/// What a feed-forward network computes between its norm and its `down` matrix.
#[derive(Clone)]
pub enum Inner<M> {
    /// activation(gate(x)) * up(x).
    Gated {
        /// What is applied to the gate.
        activation: Activation,
        /// The gate matrix `[ffn width, width]`.
        gate: M,
        /// The up matrix `[ffn width, width]`.
        up: M,
    },
    /// activation(up(x)).
    Plain {
        /// What is applied to `up`.
        activation: Activation,
        /// The up matrix `[ffn width, width]`.
        up: M,
    },
}

/// A dense feed-forward network, or one expert: down(inner(x)).
#[derive(Clone)]
pub struct Dense<M> {
    /// All of the network but the `down` matrix.
    pub inner: Inner<M>,
    /// The down matrix `[width, ffn width]`.
    pub down: M,
}

/// The feed-forward network of a layer.
pub enum Ffn<M> {
    /// A dense network that all rows go through.
    Dense(Dense<M>),
    /// Each row goes through the experts that it chooses.
    Experts(Experts<M>),
    /// Both in parallel; their outputs are added.
    DenseWithExperts(Box<DenseWithExperts<M>>),
}

/// A dense feed-forward network in parallel with experts: each reads the residual stream through norms of its own, and
/// its output is normalized.
pub struct DenseWithExperts<M> {
    /// The dense network, which reads the stream through the layer's [`ffn_norm`](Layer::ffn_norm).
    pub dense: Dense<M>,
    /// The norm that is applied to the output of the dense network.
    pub dense_post_norm: NormWeights,
    /// The experts.
    pub experts: Experts<M>,
    /// The norm that is applied to the stream for the router.
    pub router_norm: NormWeights,
    /// The norm that is applied to the stream for the experts.
    pub experts_norm: NormWeights,
    /// The norm that is applied to the output of the experts.
    pub experts_post_norm: NormWeights,
}

/// The experts of a layer.
pub struct Experts<M> {
    /// The router `[experts, width]`, which makes the logits of the experts.
    pub router: M,
    /// The corrections that are added to the scores of the experts for the choice alone; empty if there are none.
    pub corrections: Vec<f32>,
    /// The factors of the experts' weights; empty if there are none.
    pub scales: Vec<f32>,
    /// All experts in order; empty if experts are packed only when rows choose them.
    pub all: Vec<Dense<M>>,
    /// The shared expert, which all rows go through, and the `[1, width]` of its gate, if it has one.
    pub shared: Option<(Dense<M>, Option<M>)>,
}

/// The matrices and norms that make the keys and values of a layer.
pub struct KeyValue<M> {
    /// The matrix of keys `[key-value heads * head width, width]`.
    pub key: M,
    /// The matrix of values, of the same shape; `None` if values are the keys before their norm.
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
    /// The gate matrix `[input width, width]`.
    pub gate: M,
    /// The projection `[width, input width]`.
    pub projection: M,
    /// The norm that is applied to the output of the projection.
    pub norm: NormWeights,
}

/// The input of a draft head: how it fuses embeddings and the hidden states of its target.
pub struct Fusion<M> {
    /// The norm that is applied to the target's hidden states before the projection, `[layers * target width]`.
    pub target_norm: Option<NormWeights>,
    /// The projection `[width, layers * target width]` from the target's hidden states to one of the head's width.
    pub projection: M,
    /// The norm that is applied to the hidden state, whether projected or the head's own, for the attention of the
    /// first layer.
    pub hidden_norm: NormWeights,
}

/// Cross attention of a decoder's layer to the source: the layer's second sublayer, between attention and the
/// feed-forward network.
pub struct CrossAttention<M> {
    /// The norm that is applied to its input.
    pub norm: NormWeights,
    /// The matrix of queries `[query heads * head width, width]`.
    pub query: M,
    /// The matrices that make keys and values of the encoder's output when a source is read, of the same shape.
    pub key_value: [M; 2],
    /// The output matrix `[width, query heads * head width]`.
    pub output: M,
}

/// Learned biases of attention scores by relative position.
#[derive(Clone)]
pub struct RelativeBias {
    /// The biases `[query heads, columns]` for keys from `before` positions before the query on; all keys farther away
    /// have the first or the last of them.
    pub table: Vec<f32>,
    /// Number of columns before that of the query's own position.
    pub before: usize,
}

impl RelativeBias {
    /// The biases of some of all query heads, for rows at these positions.
    pub(crate) fn at<'a>(
        &'a self,
        positions: &'a [u32],
        heads: Range<usize>,
        all: usize,
    ) -> attention::RelativeBias<'a> {
        let columns = self.table.len() / all;
        let table = &self.table[heads.start * columns..heads.end * columns];
        attention::RelativeBias { table, before: self.before, positions }
    }
}

/// The encoder of an encoder-decoder, which embeds its tokens as the decoder does.
pub struct Encoder<M> {
    /// What it computes.
    pub spec: Spec,
    /// The blocks, in order.
    pub layers: Vec<Layer<M>>,
    /// The norm that is applied to the output of the last block.
    pub output_norm: Option<NormWeights>,
}

/// The tensors of one block.
pub struct Layer<M> {
    /// The norm that is applied to the input of attention, if there is one. In the first layer of a draft head it is
    /// the norm of the embedding.
    pub attention_norm: Option<NormWeights>,
    /// The matrix of queries `[query heads * head width, width]`; in the first layer of a draft head it has twice as
    /// many columns.
    pub query: M,
    /// Norms of the queries.
    pub query_norm: QkNorms,
    /// `None` if the layer attends to the keys and values of an earlier one.
    pub key_value: Option<KeyValue<M>>,
    /// Attention sinks: for each query head an additional score that takes part in the softmax and has no value. Empty
    /// if there are none.
    pub sinks: Vec<f32>,
    /// The biases of attention by relative position, if there are any; most networks that have them share one table.
    pub bias: Option<Arc<RelativeBias>>,
    /// The output matrix of attention, `[width, query heads * head width]`.
    pub attention_output: M,
    /// The norm that is applied to the output of attention before it is added.
    pub attention_post_norm: Option<NormWeights>,
    /// Cross attention to the source, in the decoder of an encoder-decoder.
    pub cross: Option<CrossAttention<M>>,
    /// The norm that is applied to the input of the feed-forward network. Without it the network reads the input of
    /// attention if the two are parallel, and otherwise the residual stream.
    pub ffn_norm: Option<NormWeights>,
    /// The feed-forward network.
    pub ffn: Ffn<M>,
    /// The norm that is applied to the output of the feed-forward network before it is added.
    pub ffn_post_norm: Option<NormWeights>,
    /// The reader of the per-layer embedding, if there is one.
    pub input: Option<InputReader<M>>,
    /// What the stream is multiplied by after the block.
    pub multiplier: f32,
}

/// The per-layer embeddings of all layers: `[layers, width]` for each token.
pub struct InputSource<M> {
    /// The table `[tokens, layers * input width]`.
    pub table: Table,
    /// The projection `[layers * input width, width]` from the input of the first block.
    pub projection: M,
    /// The norm that is applied to the part of the projection that one layer gets.
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
    /// The embedding `[vocabulary, embedding width]`.
    pub embedding: Table,
    /// Learned positions: a vector for each position that is added to the embedding.
    pub positions: Option<Table>,
    /// The matrix `[width, embedding width]` from the embedding's width to the stream's, if they differ.
    pub embedding_projection: Option<M>,
    /// The norm that is applied to the embedding.
    pub embedding_norm: Option<NormWeights>,
    /// The per-layer embeddings, if there are any.
    pub inputs: Option<InputSource<M>>,
    /// The input of a draft head; `None` for other networks.
    pub fusion: Option<Fusion<M>>,
    /// The encoder, if there is one.
    pub encoder: Option<Encoder<M>>,
    /// The blocks, in order.
    pub layers: Vec<Layer<M>>,
    /// The norm that is applied to the output of the last block.
    pub output_norm: Option<NormWeights>,
    /// The matrix `[embedding width, width]` from the stream's width to the embedding's, if they differ.
    pub output_projection: Option<M>,
    /// The output head `[vocabulary, embedding width]`, or fewer rows ([`Network::with_tokens`]); for a draft head, the
    /// rows of its draft vocabulary.
    pub head: M,
    /// The draft vocabulary of a draft head: the token of each row of the output head, ascending. If empty, row i is
    /// token i.
    pub head_tokens: Vec<Token>,
    /// Names of the tensors of its files that do not belong to the language model, in alphabetical order (vision
    /// towers, multi-token prediction layers). Tensors that no computation needs are not listed.
    pub left_out: Vec<String>,
}

impl Network<Unpacked> {
    /// Keeps only the first `tokens` rows of the output head ([`Options::tokens`](crate::Options::tokens)); all of them
    /// if it is `None` or more than there are.
    pub fn with_tokens(mut self, tokens: Option<usize>) -> Self {
        if let Some(tokens) = tokens.filter(|tokens| (1..self.spec.vocabulary).contains(tokens)) {
            if self.head_tokens.is_empty() && tokens < self.head.shape()[0] {
                self.head = self.head.outputs(0..tokens);
            }
            if self.spec.draft_head.is_some() {
                self.spec.vocabulary = tokens;
                let kept = self.head_tokens.partition_point(|token| (*token as usize) < tokens);
                if kept < self.head_tokens.len() {
                    // If no row is left, one row stays and stands for token 0: its drafts are wrong, but valid.
                    self.head = self.head.outputs(0..kept.max(1));
                    self.head_tokens.truncate(kept);
                    self.head_tokens.resize(kept.max(1), 0);
                }
            }
        }
        self
    }

    /// Number of bytes of its files that are read to compute one token: all matrices but those of experts that the
    /// token does not choose. The one row that is read of each embedding is not counted.
    pub fn token_bytes(&self) -> usize {
        let all: usize = self.matrices().chain(self.expert_matrices()).map(Unpacked::file_bytes).sum();
        all - self.sum_of_inactive(Unpacked::file_bytes)
    }

    /// Number of parameters of the experts that a token does not choose, which are the model's inactive parameters.
    pub fn inactive_parameters(&self) -> usize {
        self.sum_of_inactive(|matrix| matrix.shape().iter().product::<usize>() + matrix.bias().map_or(0, <[f32]>::len))
    }

    /// The sum of a property over the matrices of the experts that a token does not choose.
    fn sum_of_inactive(&self, property: impl Fn(&Unpacked) -> usize) -> usize {
        let Some(spec::Experts { count, chosen, .. }) = self.spec.experts else { return 0 };
        self.expert_matrices().map(property).sum::<usize>() / count * (count - chosen)
    }
}

impl<M> Layer<M> {
    /// The matrices that all rows are multiplied with, in order.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &M> {
        let Layer { query, key_value, attention_output, cross, ffn, input, .. } = self;
        let key = key_value.as_ref().map(|key_value| &key_value.key);
        let value = key_value.as_ref().and_then(|key_value| key_value.value.as_ref());
        let of_input = input.as_ref().map(|input| [&input.gate, &input.projection]);
        let own = [Some(query), key, value, Some(attention_output)];
        let of_cross = cross.iter().flat_map(|cross| [&cross.query, &cross.output]);
        own.into_iter().flatten().chain(of_cross).chain(ffn.matrices()).chain(of_input.into_iter().flatten())
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

    /// Mutable references to the [`matrices`](Self::matrices).
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
    /// The dense network and the experts; at least one of the two is present.
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

impl<M> Network<M> {
    /// The matrices of the experts that rows choose among, of all layers.
    pub(crate) fn expert_matrices(&self) -> impl Iterator<Item = &M> {
        let experts = self.layers.iter().filter_map(|layer| layer.ffn.parts().1).flat_map(|experts| &experts.all);
        experts.flat_map(Dense::matrices)
    }

    /// The matrices that all rows are multiplied with, in order; the output head is the last. Matrices with which
    /// sources are read are not among them.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &M> {
        let layers = self.layers.iter().flat_map(Layer::matrices);
        let of_inputs = self.inputs.iter().map(|inputs| &inputs.projection);
        let of_fusion = self.fusion.iter().map(|fusion| &fusion.projection);
        let projections = self.embedding_projection.iter().chain(&self.output_projection).chain(of_inputs);
        let projections = projections.chain(of_fusion);
        projections.chain(layers).chain([&self.head])
    }

    /// The matrices with which sources are read: those of the encoder, and those of the keys and values of cross
    /// attention. None without an encoder.
    pub(crate) fn source_matrices(&self) -> impl Iterator<Item = &M> {
        let of_encoder = self.encoder.iter().flat_map(|encoder| &encoder.layers).flat_map(Layer::matrices);
        let of_cross = self.layers.iter().filter_map(|layer| layer.cross.as_ref()).flat_map(|cross| &cross.key_value);
        of_encoder.chain(of_cross)
    }
}
