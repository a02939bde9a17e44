//! The description of a network by its configuration: its shape, and the closed list of ways in which networks differ.
//!
//! A [`Spec`] is known before any tensor is read, so a model can be described without being loaded. Where networks
//! differ in which matrices they have (feed-forward, learned positions), the types of `network.rs`, which hold the
//! matrices, differ in the same way, and the fields here describe them. Each difference is matched in one place when it
//! is run, nearly always in `block.rs`. A family that would need a second `match` gets a block file of its own.
//!
//! Multipliers and caps have neutral values with which their computation is skipped (`Spec::plain`).

mod draft_head;
mod experts;
mod positions;
mod query_growth;

use foretoken_kernels::attention::CacheType;

use crate::batch::Token;
pub use draft_head::{DraftHead, HeadKind};
pub use experts::{Experts, GroupScore, Groups, Router, Scoring, SharedExpert, Sum};
pub use positions::{Buckets, ByLength, Positions, Rotation, Scaling};
pub use query_growth::QueryGrowth;

/// Normalization of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// Root mean square, weight only.
    Rms {
        /// The number that is added to the mean square.
        epsilon: f32,
    },
    /// Mean and variance, weight and, if the network has one, bias.
    Layer {
        /// The number that is added to the variance.
        epsilon: f32,
    },
}

/// The properties of attention in which layers may differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerAttention {
    /// The index of its rotation in the network's list; `None` if queries and keys are not rotated.
    pub rotation: Option<usize>,
    /// The sliding window: how many of the latest positions a row sees, its own included; `None` for full attention.
    pub window: Option<usize>,
    /// Its heads of keys and values, if they differ from those of the network; its query heads have the same width.
    pub heads: Option<Heads>,
    /// Whether there is no matrix of values: values are the projected keys before their norm.
    pub values_are_keys: bool,
}

impl LayerAttention {
    /// A layer with one of the network's rotations, and perhaps a window.
    pub fn rotated(rotation: usize, window: Option<usize>) -> Self {
        Self { rotation: Some(rotation), window, ..Self::default() }
    }
}

/// Number and width of the heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Number of heads.
    pub count: usize,
    /// Width of each head.
    pub head_dim: usize,
}

/// Sharing of keys and values: the last layers have none of their own, and each attends to those of the last layer
/// before them that has the same attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedKv {
    /// Number of layers that share.
    pub layers: usize,
    /// Inner width of the feed-forward networks of these layers.
    pub ffn_width: usize,
}

/// Per-layer embeddings (Gemma 4): besides the residual stream every layer gets inputs of its own, for each token a row
/// of a second embedding and a projection of its first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerInputs {
    /// Number of elements of each row that one layer gets.
    pub width: usize,
    /// Number of rows of the second embedding, at least the number of tokens.
    pub vocabulary: usize,
    /// What the rows of the second embedding are multiplied by.
    pub multiplier: f32,
}

/// How attention and feed-forward network of a block are added to the residual stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// Attention is added first; the feed-forward network reads the sum.
    #[default]
    Sequential,
    /// Both read the input of the block.
    Parallel,
    /// Sequential, with a norm after each sum instead of before each sublayer (post-norm, as in OPT-350m).
    NormedSum,
}

/// The feed-forward network of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForward {
    /// down(f(gate(x)) * up(x)).
    Gated(Activation),
    /// down(f(up(x))).
    Plain(Activation),
}

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// x / (1 + e^-x), also called swish.
    Silu,
    /// GELU through tanh.
    GeluTanh,
    /// GELU through the error function.
    GeluErf,
    /// max(x, 0).
    Relu,
    /// max(x, 0)^2.
    ReluSquared,
    /// min(gate, limit) / (1 + e^(-slope * min(gate, limit))) times 1 + up, with up clamped to ±limit (gpt-oss), for
    /// gated networks only.
    ClampedSwiglu {
        /// The slope of the sigmoid.
        slope: f32,
        /// The bound of gate and up.
        limit: f32,
    },
}

/// A network's shape and its choices.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The family's name, as `general.architecture` spells it.
    pub family: &'static str,
    /// Number of tokens.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the embedding and of the output head's input: that of the residual stream, unless there are matrices in
    /// between.
    pub embedding_width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key-value heads, except in layers that differ ([`Spec::kv_heads_of`]).
    pub kv_heads: usize,
    /// Width of a head, except in layers that differ.
    pub head_dim: usize,
    /// Inner width of the feed-forward network, except in layers that differ ([`Spec::ffn_width_of`]).
    pub ffn_width: usize,
    /// Number of positions that the network was trained for.
    pub context_max: usize,
    /// The normalization of the residual stream.
    pub norm: Norm,
    /// How positions are encoded.
    pub positions: Positions,
    /// The attention of the layers as a repeating pattern: layer i has element i modulo the length.
    pub attention: Vec<LayerAttention>,
    /// The last layers, if they share the keys and values of earlier ones.
    pub shared_kv: Option<SharedKv>,
    /// The per-layer embeddings, if there are any.
    pub layer_inputs: Option<LayerInputs>,
    /// The dense feed-forward network.
    pub feed_forward: FeedForward,
    /// The experts of the layers that have experts.
    pub experts: Option<Experts>,
    /// How the sublayers of a block are added.
    pub residual: Residual,
    /// What the output of a sublayer is multiplied by before it is added to the residual stream.
    pub residual_multiplier: f32,
    /// What the embedding is multiplied by.
    pub embedding_multiplier: f32,
    /// What attention scores are multiplied by.
    pub attention_scale: f32,
    /// Whether queries and keys are normalized after their rotation instead of before it.
    pub norms_after_rotation: bool,
    /// How queries are scaled with their position, if they are.
    pub query_growth: Option<QueryGrowth>,
    /// The soft cap of scaled attention scores: cap * tanh(score / cap).
    pub attention_soft_cap: Option<f32>,
    /// What logits are multiplied by.
    pub logit_multiplier: f32,
    /// The soft cap of logits.
    pub logit_soft_cap: Option<f32>,
    /// Whether the output head (lm_head) is the embedding table.
    pub tied_head: bool,
    /// What the network reads of a target, if it is a draft head.
    pub draft_head: Option<DraftHead>,
    /// The encoder, if the network is the decoder of an encoder-decoder.
    pub encoder: Option<Encoder>,
}

/// The encoder of an encoder-decoder: it reads a source once, and every layer of the decoder attends to its output by
/// cross attention. Heads, widths and feed-forward networks are those of the decoder, and so is the embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoder {
    /// Number of its layers.
    pub layers: usize,
    /// The token that begins the decoder's text.
    pub start: Token,
}

impl Spec {
    /// The network that readers of configurations begin with: each size is 1, and each multiplier and option has the
    /// value that changes nothing.
    pub(crate) fn plain(family: &'static str) -> Self {
        Self {
            family,
            vocabulary: 1,
            width: 1,
            embedding_width: 1,
            layers: 1,
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            ffn_width: 1,
            context_max: 1,
            norm: Norm::Rms { epsilon: 0.0 },
            positions: Positions::Learned,
            attention: vec![LayerAttention::default()],
            shared_kv: None,
            layer_inputs: None,
            feed_forward: FeedForward::Plain(Activation::Silu),
            experts: None,
            residual: Residual::Sequential,
            residual_multiplier: 1.0,
            embedding_multiplier: 1.0,
            attention_scale: 1.0,
            norms_after_rotation: false,
            query_growth: None,
            attention_soft_cap: None,
            logit_multiplier: 1.0,
            logit_soft_cap: None,
            tied_head: false,
            draft_head: None,
            encoder: None,
        }
    }

    /// The encoder as a network of its own, without a head.
    pub(crate) fn of_encoder(&self, encoder: Encoder) -> Self {
        Self { layers: encoder.layers, encoder: None, ..self.clone() }
    }

    /// The attention of a layer.
    pub fn attention_of(&self, layer: usize) -> LayerAttention {
        self.attention[layer % self.attention.len()]
    }

    /// The distinct windows of the network's layers, each of which is a cache group. A window that no sequence can fill
    /// counts as full attention.
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.windows_of(self.layers)
    }

    /// The distinct windows of the first `layers` layers.
    pub(crate) fn windows_of(&self, layers: usize) -> Vec<Option<usize>> {
        let mut all = Vec::new();
        for layer in 0..layers {
            let window = self.window_of(layer);
            if !all.contains(&window) {
                all.push(window);
            }
        }
        all
    }

    /// The window of a layer; `None` if its rows see all positions.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.attention_of(layer).window.filter(|window| *window < self.context_max)
    }

    /// The heads of keys and values of a layer.
    pub fn kv_heads_of(&self, layer: usize) -> Heads {
        let network = Heads { count: self.kv_heads, head_dim: self.head_dim };
        self.attention_of(layer).heads.unwrap_or(network)
    }

    /// Number of layers that have keys and values of their own; these come first.
    pub fn kv_layers(&self) -> usize {
        self.layers - self.shared_kv.map_or(0, |shared| shared.layers)
    }

    /// The layer whose keys and values a layer attends to, nearly always itself.
    ///
    /// # Panics
    /// If no layer has them; the families check this.
    pub fn kv_layer_of(&self, layer: usize) -> usize {
        if layer < self.kv_layers() {
            return layer;
        }
        let same = |other: &usize| self.attention_of(*other) == self.attention_of(layer);
        (0..self.kv_layers()).rfind(same).unwrap_or_else(|| panic!("layer {layer}: no keys and values to share"))
    }

    /// Width of the input of a layer's attention: the network's width, or twice that in the first layer of a draft
    /// head.
    pub(crate) fn attention_inputs(&self, layer: usize) -> usize {
        if self.draft_head.is_some() && layer == 0 { 2 * self.width } else { self.width }
    }

    /// Number of tokens that the network has logits for.
    pub(crate) fn output_vocabulary(&self) -> usize {
        self.draft_head.as_ref().map_or(self.vocabulary, |head| head.draft_vocabulary)
    }

    /// Inner width of the feed-forward network of a layer.
    pub fn ffn_width_of(&self, layer: usize) -> usize {
        self.shared_kv.filter(|_| layer >= self.kv_layers()).map_or(self.ffn_width, |shared| shared.ffn_width)
    }

    /// The experts of a layer, if it has some.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.layers[layer % experts.layers.len()])
    }

    /// Number of bytes of the keys and values of one position of a layer in these types; it saturates.
    pub fn cache_bytes_of(&self, layer: usize, types: [CacheType; 2]) -> usize {
        self.cache_bytes_of_part(layer, types, 1)
    }

    /// As [`cache_bytes_of`](Self::cache_bytes_of), of the one of several ranks that has most heads.
    fn cache_bytes_of_part(&self, layer: usize, types: [CacheType; 2], ranks: usize) -> usize {
        let Heads { count, head_dim } = self.kv_heads_of(layer);
        let head = types.iter().fold(0usize, |all, kind| all.saturating_add(kind.bytes(head_dim)));
        head.saturating_mul(count.div_ceil(ranks))
    }

    /// Number of bytes of the cache for one position of a source with these types of keys and values; 0 without an
    /// encoder. It saturates.
    pub fn source_bytes_per_position(&self, types: [CacheType; 2]) -> usize {
        self.encoder.map_or(0, |_| self.cache_bytes_per_position(types))
    }

    /// Number of bytes of the cache for one position with these types of keys and values; it saturates.
    pub fn cache_bytes_per_position(&self, types: [CacheType; 2]) -> usize {
        self.cache_bytes_of_rank(types, 1)
    }

    /// As [`cache_bytes_per_position`](Self::cache_bytes_per_position), of the one of several ranks that has most
    /// heads.
    ///
    /// # Panics
    /// If there are no ranks.
    pub fn cache_bytes_of_rank(&self, types: [CacheType; 2], ranks: usize) -> usize {
        (0..self.kv_layers()).fold(0, |all, layer| all.saturating_add(self.cache_bytes_of_part(layer, types, ranks)))
    }
}
