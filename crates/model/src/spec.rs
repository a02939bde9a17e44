//! What a configuration says about a network: its shape, and the closed list of ways in which networks differ.
//!
//! A [`Spec`] is known before any tensor is read, so a model can be described without being loaded. Where networks
//! differ in their matrices (feed-forward, learned positions), the loaded network has a form of its own (`network.rs`),
//! and this is the description. Each difference is matched in one place when it is run, nearly always in `block.rs`. A
//! family that would need a second `match` gets a block file of its own.
//!
//! A number that is no choice (a multiplier, a cap) has a neutral value, with which its computation is skipped.

mod draft_head;

use std::fmt;

use foretoken_kernels::attention::CacheType;
use foretoken_kernels::rope::Pairing;

pub use draft_head::{DraftHead, HeadKind};

/// Normalization of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// Root mean square, weight only.
    Rms {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// Mean and variance, weight and, if the network has one, bias.
    Layer {
        /// Added to the variance.
        epsilon: f32,
    },
}

/// How the network encodes the position of a token.
#[derive(Clone, Debug, PartialEq)]
pub enum Positions {
    /// Rotary embedding of queries and keys: the rotations of the network, of which each layer has one or none
    /// ([`LayerAttention::rotation`]).
    Rope(Vec<Rotation>),
    /// A table of vectors added to the embedding.
    Learned,
    /// Scores fall with distance (ALiBi): the slope of each query head.
    Alibi(Vec<f32>),
}

impl Positions {
    /// The rotations of queries and keys: in most networks one or none.
    pub fn rotations(&self) -> &[Rotation] {
        match self {
            Self::Rope(rotations) => rotations,
            Self::Learned | Self::Alibi(_) => &[],
        }
    }

    /// What the scores of each head lose a position of distance; empty without ALiBi.
    pub fn slopes(&self) -> &[f32] {
        match self {
            Self::Alibi(slopes) => slopes,
            Self::Learned | Self::Rope(_) => &[],
        }
    }
}

/// A rotary embedding.
#[derive(Clone, PartialEq)]
pub struct Rotation {
    /// The angle a position of each pair; scaling is already applied. Where they are fewer than half a head's elements,
    /// the last elements of the head are not rotated.
    pub frequencies: Vec<f32>,
    /// Which elements of a head form a pair.
    pub pairing: Pairing,
    /// Multiplies the rotated elements: the attention factor of yarn and longrope, otherwise 1.
    pub magnitude: f32,
    /// The base of the frequencies before any scaling.
    pub base: f32,
    /// How the frequencies were made of the base, for file formats that store this and not the frequencies.
    pub scaling: Scaling,
    /// Both lists of frequencies, where a scaling has one for short sequences and another for longer ones.
    pub by_length: Option<ByLength>,
}

/// A hash of this output identifies saved cache rows, so an absent `by_length` is not written: the hashes of rotations
/// from before it existed stay valid.
impl fmt::Debug for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frequencies, pairing, magnitude, base, scaling, by_length } = self;
        let mut shown = f.debug_struct("Rotation");
        shown.field("frequencies", frequencies).field("pairing", pairing).field("magnitude", magnitude);
        shown.field("base", base).field("scaling", scaling);
        if let Some(by_length) = by_length {
            shown.field("by_length", by_length);
        }
        shown.finish()
    }
}

/// Frequencies by the length of the longest sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct ByLength {
    /// Tokens of the longest sequence that uses the first list.
    pub short_max: usize,
    /// Those of short sequences and of longer ones.
    pub frequencies: [Vec<f32>; 2],
}

/// How the frequencies of a rotation were scaled.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// They were not scaled.
    None,
    /// All were divided by one factor.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// YaRN.
    Yarn {
        /// How many times longer sequences become.
        factor: f32,
        /// Positions that the network was trained with before it was extended.
        original: f32,
    },
    /// Each was divided by a number of its own, the same for sequences of all lengths (llama3).
    Divided,
    /// Each was divided by a number of its own, from one list for sequences within the trained context and from another
    /// for longer ones.
    LongRope {
        /// Positions that the network was trained with before it was extended.
        original: f32,
        /// The divisors of short sequences and of long ones.
        divisors: [Vec<f32>; 2],
    },
    /// A larger base is used for sequences longer than the trained context.
    Dynamic {
        /// Positions of the trained context.
        trained: usize,
        /// How fast the base grows.
        factor: f32,
    },
}

/// Where the attention of one layer may differ from that of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerAttention {
    /// The index of its rotation in the network's list; `None` if queries and keys are not rotated.
    pub rotation: Option<usize>,
    /// The sliding window: how many of the latest positions a row sees, its own included; `None` for full attention.
    pub window: Option<usize>,
    /// Its heads of keys and values, where they are not those of the network; its query heads have the same width.
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
    /// How many.
    pub count: usize,
    /// Width of each.
    pub head_dim: usize,
}

/// Sharing of keys and values: the last layers have none of their own, and each attends to those of the last layer
/// before them that has the same attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedKv {
    /// How many layers.
    pub layers: usize,
    /// Inner width of their feed-forward networks.
    pub ffn_width: usize,
}

/// Per-layer embeddings (Gemma 4): beside the residual stream every layer gets inputs of its own, for each token a row
/// of a second embedding and a projection of its first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerInputs {
    /// Elements that one layer gets of each row.
    pub width: usize,
    /// Rows of the second embedding, at least as many as there are tokens.
    pub vocabulary: usize,
    /// Multiplies the second embedding.
    pub multiplier: f32,
}

/// Scaling of queries with their position p, by 1 + rate * ln(1 + floor(p / period)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// How fast the factor grows.
    pub rate: f32,
    /// Positions between two steps of the factor.
    pub period: f32,
}

impl QueryGrowth {
    /// The factor of a query at a position.
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.rate * (1.0 + (position as f32 / self.period).floor()).ln()
    }
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

/// A mixture of experts: feed-forward networks of which each row chooses a few.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// How many a layer has.
    pub count: usize,
    /// How many of them a row chooses.
    pub chosen: usize,
    /// Inner width of one.
    pub ffn_width: usize,
    /// How a row chooses.
    pub router: Router,
    /// The shared expert, which all rows go through, if there is one.
    pub shared: Option<SharedExpert>,
    /// Whether their layers have a dense feed-forward network beside them, and each of the two norms of its own.
    pub beside_dense: bool,
    /// Which layers have experts: layer i if element i modulo the length is true. The others are dense.
    pub layers: Vec<bool>,
}

/// How a row chooses its experts and how their outputs are weighted, by the router's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// How logits become scores.
    pub scoring: Scoring,
    /// Whether layers have corrections: a number an expert that is added to its score for the choice alone.
    pub corrected: bool,
    /// Groups of experts, if a row chooses among these first.
    pub groups: Option<Groups>,
    /// What the scores of the chosen experts are divided by to become weights; `None` if they are the weights.
    pub divided: Option<Sum>,
    /// Multiplies the weights.
    pub factor: f32,
}

impl Router {
    /// A softmax over all experts.
    pub const SOFTMAX: Self =
        Self { scoring: Scoring::Softmax, corrected: false, groups: None, divided: None, factor: 1.0 };
    /// The same with weights whose sum is 1: a softmax over the chosen experts.
    pub const SOFTMAX_OF_CHOSEN: Self = Self { divided: Some(Sum::PLAIN), ..Self::SOFTMAX };
}

/// How the router's logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Their softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
}

/// Groups of consecutive experts, all of one size: a row chooses among the experts of the best groups only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// How many of them a row chooses.
    pub chosen: usize,
    /// The score by which groups are compared.
    pub by: GroupScore,
}

/// The score of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// That of its best expert (DeepSeek V2).
    Best,
    /// The sum of its two best ones' (DeepSeek V3).
    BestTwo,
}

/// The sum of the scores of the experts that a row chooses, kept above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// Added to the sum.
    pub added: f32,
    /// The least value of the divisor.
    pub least: f32,
}

impl Sum {
    /// The sum as it is.
    pub const PLAIN: Self = Self { added: 0.0, least: 0.0 };
}

/// An expert that all rows go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Its inner width.
    pub ffn_width: usize,
    /// Whether its output is multiplied by the sigmoid of a gate.
    pub gated: bool,
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
    /// min(gate, limit) / (1 + e^(-slope * min(gate, limit))) times 1 + up, with up clamped to ±limit (gpt-oss). For
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
    /// Width of the embedding and of the head's input: that of the residual stream, unless matrices lie between.
    pub embedding_width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key-value heads, except in layers that have another ([`Spec::kv_heads_of`]).
    pub kv_heads: usize,
    /// Width of a head, except in layers that have another.
    pub head_dim: usize,
    /// Inner width of the feed-forward network, except in layers that have another ([`Spec::ffn_width_of`]).
    pub ffn_width: usize,
    /// Positions that the network was trained for.
    pub context_max: usize,
    /// Normalization.
    pub norm: Norm,
    /// Positions.
    pub positions: Positions,
    /// The attention of the layers as a repeating pattern: layer i has element i modulo the length.
    pub attention: Vec<LayerAttention>,
    /// The last layers, if they share the keys and values of earlier ones.
    pub shared_kv: Option<SharedKv>,
    /// The per-layer embeddings, if there are any.
    pub layer_inputs: Option<LayerInputs>,
    /// The dense feed-forward network.
    pub feed_forward: FeedForward,
    /// The experts of layers that have some.
    pub experts: Option<Experts>,
    /// How the sublayers of a block are added.
    pub residual: Residual,
    /// Multiplies what a sublayer adds to the residual stream.
    pub residual_multiplier: f32,
    /// Multiplies the embedding.
    pub embedding_multiplier: f32,
    /// Multiplies attention scores.
    pub attention_scale: f32,
    /// Whether queries and keys are normalized after their rotation instead of before it.
    pub norms_after_rotation: bool,
    /// How queries are scaled with their position, if they are.
    pub query_growth: Option<QueryGrowth>,
    /// The soft cap of scaled attention scores: cap * tanh(score / cap).
    pub attention_soft_cap: Option<f32>,
    /// Multiplies logits.
    pub logit_multiplier: f32,
    /// The soft cap of logits.
    pub logit_soft_cap: Option<f32>,
    /// Whether the head is the embedding table.
    pub tied_head: bool,
    /// What the network reads of a target, if it is a draft head.
    pub draft_head: Option<DraftHead>,
}

impl Spec {
    /// The attention of a layer.
    pub fn attention_of(&self, layer: usize) -> LayerAttention {
        self.attention[layer % self.attention.len()]
    }

    /// The distinct windows of the network's layers, of which each is a cache group. A window that no sequence can fill
    /// counts as full attention.
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.windows_of(self.layers)
    }

    /// The same for the first layers only.
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

    /// Width of the input of a layer's attention: the network's width, twice that in the first layer of a draft head.
    pub fn attention_inputs(&self, layer: usize) -> usize {
        if self.draft_head.is_some() && layer == 0 { 2 * self.width } else { self.width }
    }

    /// Number of tokens that the network has logits for.
    pub fn output_vocabulary(&self) -> usize {
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

    /// Bytes of the keys and values of one position of a layer in these types, saturating.
    pub fn cache_bytes_of(&self, layer: usize, types: [CacheType; 2]) -> usize {
        let Heads { count, head_dim } = self.kv_heads_of(layer);
        types.iter().fold(0usize, |all, kind| all.saturating_add(kind.bytes(head_dim))).saturating_mul(count)
    }

    /// Bytes of the cache for one position with these types of keys and values, saturating.
    pub fn cache_bytes_per_position(&self, types: [CacheType; 2]) -> usize {
        (0..self.kv_layers()).fold(0, |all, layer| all.saturating_add(self.cache_bytes_of(layer, types)))
    }
}
