//! What a configuration says about a network: its shape, and the closed list of ways in which networks differ.
//!
//! Known before any tensor is read, so a model can be described without being loaded. Where a difference is one of
//! matrices (feed-forward, learned positions), the loaded network has it in its own form (`network.rs`), and what is
//! here is the description. Each difference is matched in one place when it is run, all but a few in `block.rs`. A
//! family that would need a second `match` gets a block file of its own.
//!
//! What is a number and not a choice (a multiplier, a cap) has a value that changes nothing, and is skipped then.
//! Left out: everything that a request can choose.

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

/// How the network learns where a token stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Positions {
    /// Rotary embedding of queries and keys: the rotations of the network, of which each layer has one or none
    /// ([`LayerAttention::rotation`]).
    Rope(Vec<Rotation>),
    /// A table of vectors added to the embedding.
    Learned,
    /// Scores fall with distance (ALiBi): by so much a position, for each query head.
    Alibi(Vec<f32>),
}

impl Positions {
    /// How queries and keys are rotated: in most networks one way or none.
    pub fn rotations(&self) -> &[Rotation] {
        match self {
            Self::Rope(rotations) => rotations,
            Self::Learned | Self::Alibi(_) => &[],
        }
    }

    /// What each head's scores lose a position of distance; empty: nothing.
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
    /// Angle a position, one a pair; scaling is already applied. Where they are fewer than half a head's elements, the
    /// last elements of the head are not rotated.
    pub frequencies: Vec<f32>,
    /// Which elements of a head form a pair.
    pub pairing: Pairing,
    /// Multiplies what is rotated: the attention factor of yarn and longrope, otherwise 1.
    pub magnitude: f32,
    /// The base of the frequencies before any scaling.
    pub base: f32,
    /// How the frequencies came from the base, for files that say this and not the frequencies.
    pub scaling: Scaling,
    /// Of scalings that have frequencies for short texts and others for longer ones: both.
    pub by_length: Option<ByLength>,
}

/// Rows that were saved are known by what is written here, so nothing is written of fields that have nothing to say.
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

/// Frequencies by how long texts may become.
#[derive(Clone, Debug, PartialEq)]
pub struct ByLength {
    /// Tokens of the longest text that has the first ones.
    pub short_max: usize,
    /// Of short texts and of longer ones.
    pub frequencies: [Vec<f32>; 2],
}

/// How the frequencies of a rotation were scaled.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// All were divided.
    Linear {
        /// By this.
        factor: f32,
    },
    /// YaRN.
    Yarn {
        /// How many times longer texts become.
        factor: f32,
        /// Positions that the network was trained with before.
        original: f32,
    },
    /// Each by a number of its own, whatever the length of the text (llama3).
    Divided,
    /// Each by a number of its own, of one list for texts within the trained context and of another for longer ones.
    LongRope {
        /// Positions that the network was trained with before.
        original: f32,
        /// The divisors of short texts and of long ones.
        divisors: [Vec<f32>; 2],
    },
    /// Through a larger base for texts longer than those of the training.
    Dynamic {
        /// Positions of those.
        trained: usize,
        /// How fast it grows.
        factor: f32,
    },
}

/// What the attention of one layer does that that of another may not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerAttention {
    /// Which of the network's rotations; none: queries and keys stay as they are.
    pub rotation: Option<usize>,
    /// A row sees so many positions, the latest, its own included; none: all of them.
    pub window: Option<usize>,
    /// Its heads of keys and values, where they are not those of the network; those of queries are as wide.
    pub heads: Option<Heads>,
    /// Whether there is no matrix of values: they are the keys as they were projected, before their norm.
    pub values_are_keys: bool,
}

impl LayerAttention {
    /// Of a layer that has one of the network's rotations, and perhaps a window.
    pub fn rotated(rotation: usize, window: Option<usize>) -> Self {
        Self { rotation: Some(rotation), window, ..Self::default() }
    }
}

/// Heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// How many.
    pub count: usize,
    /// Width of each.
    pub head_dim: usize,
}

/// The last layers, where they have no keys and values of their own: each attends to those of the last layer before
/// them that has the same attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedKv {
    /// How many layers.
    pub layers: usize,
    /// Width inside their feed-forward half.
    pub ffn_width: usize,
}

/// Inputs that every layer gets of its own, beside the residual stream (Gemma 4's per-layer embeddings): of each token
/// a row of a second embedding, and a projection of its first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerInputs {
    /// Elements of a row that one layer gets.
    pub width: usize,
    /// Rows of the second embedding, at least as many as there are tokens.
    pub vocabulary: usize,
    /// Multiplies the second embedding.
    pub multiplier: f32,
}

/// Queries that grow with their position p, by 1 + rate * ln(1 + floor(p / period)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// How fast.
    pub rate: f32,
    /// Positions in which they stay the same.
    pub period: f32,
}

impl QueryGrowth {
    /// What a query at a position is multiplied with.
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.rate * (1.0 + (position as f32 / self.period).floor()).ln()
    }
}

/// How the two halves of a block are added to the residual stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// Attention first; the feed-forward half reads what it has changed.
    #[default]
    Sequential,
    /// Both read what came into the block.
    Parallel,
    /// Sequential, and each sum is normalized, instead of what the halves read (OPT-350m).
    NormedSum,
}

/// The feed-forward half of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForward {
    /// down(f(gate(x)) * up(x)).
    Gated(Activation),
    /// down(f(up(x))).
    Plain(Activation),
}

/// Experts: halves of a block of which each row goes through a few, that it chooses.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// How many a layer has.
    pub count: usize,
    /// How many of them a row chooses.
    pub chosen: usize,
    /// Width inside one.
    pub ffn_width: usize,
    /// How a row chooses.
    pub router: Router,
    /// The one that all rows go through beside those, if there is one.
    pub shared: Option<SharedExpert>,
    /// Whether their layers have a dense half beside them, and each of the two norms of its own.
    pub beside_dense: bool,
    /// Which layers have experts: layer i does as element i modulo the length says. The others are dense.
    pub layers: Vec<bool>,
}

/// How a row chooses its experts and what each of them counts, by the numbers that the router's matrix makes of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// What scores are made of these numbers.
    pub scoring: Scoring,
    /// Whether layers have corrections: a number an expert that is added to its score for the choice alone.
    pub corrected: bool,
    /// Groups of experts of which a row chooses first, if it does.
    pub groups: Option<Groups>,
    /// What the scores of the chosen are divided by to make weights of them; none: they are the weights.
    pub divided: Option<Sum>,
    /// Multiplies the weights.
    pub factor: f32,
}

impl Router {
    /// A softmax over all experts, and no more.
    pub const SOFTMAX: Self =
        Self { scoring: Scoring::Softmax, corrected: false, groups: None, divided: None, factor: 1.0 };
    /// The same, with weights whose sum is 1: a softmax over those that are chosen.
    pub const SOFTMAX_OF_CHOSEN: Self = Self { divided: Some(Sum::PLAIN), ..Self::SOFTMAX };
}

/// How numbers become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Their softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
}

/// Groups of neighbouring experts, all of one size: a row chooses among the experts of the best groups only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// How many of them a row chooses.
    pub chosen: usize,
    /// What makes one better than another.
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

/// The sum of the scores of the experts that a row chooses, kept from being 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// Added to it.
    pub added: f32,
    /// What it is raised to where it is less.
    pub least: f32,
}

impl Sum {
    /// As it is.
    pub const PLAIN: Self = Self { added: 0.0, least: 0.0 };
}

/// An expert that all rows go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Width inside it.
    pub ffn_width: usize,
    /// Whether what it says is multiplied by the sigmoid of a product of its own.
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
    /// x / (1 + e^(-slope * x)) of gates, which are at most `limit`; what they multiply is brought within the limit of
    /// 0 and is one more then (gpt-oss). Of gates alone.
    ClampedSwiglu {
        /// How much steeper than SiLU.
        slope: f32,
        /// What clamps.
        limit: f32,
    },
}

/// A network's shape and its choices.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The family's name, as `general.architecture` spells it.
    pub family: &'static str,
    /// Tokens.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the embedding and of what the head reads: that of the residual stream, unless matrices lie between.
    pub embedding_width: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads, but in layers that have another number ([`Spec::kv_heads_of`]).
    pub kv_heads: usize,
    /// Width of a head, but in layers that have another.
    pub head_dim: usize,
    /// Width inside the feed-forward half, but in layers that have another ([`Spec::ffn_width_of`]).
    pub ffn_width: usize,
    /// Positions the network was made for.
    pub context_max: usize,
    /// Normalization.
    pub norm: Norm,
    /// Positions.
    pub positions: Positions,
    /// What layers differ in, over and over: layer i does as element i modulo the length says.
    pub attention: Vec<LayerAttention>,
    /// The last layers, if they share the keys and values of earlier ones.
    pub shared_kv: Option<SharedKv>,
    /// What layers get beside the residual stream, if they do.
    pub layer_inputs: Option<LayerInputs>,
    /// Feed-forward.
    pub feed_forward: FeedForward,
    /// The experts of layers that have some.
    pub experts: Option<Experts>,
    /// How the halves of a block are added up.
    pub residual: Residual,
    /// Multiplies what a half of a block adds to the residual stream.
    pub residual_multiplier: f32,
    /// Multiplies the embedding.
    pub embedding_multiplier: f32,
    /// Multiplies attention scores.
    pub attention_scale: f32,
    /// Whether norms of queries and keys are behind their rotation, and not before it.
    pub norms_after_rotation: bool,
    /// How queries grow with their position, if they do.
    pub query_growth: Option<QueryGrowth>,
    /// What scaled scores are softly brought below, as cap * tanh(score / cap).
    pub attention_soft_cap: Option<f32>,
    /// Multiplies logits.
    pub logit_multiplier: f32,
    /// What logits are softly brought below.
    pub logit_soft_cap: Option<f32>,
    /// Whether the head is the embedding table.
    pub tied_head: bool,
    /// What it reads of a target, if it is a draft head.
    pub draft_head: Option<DraftHead>,
}

impl Spec {
    /// What the attention of a layer does.
    pub fn attention_of(&self, layer: usize) -> LayerAttention {
        self.attention[layer % self.attention.len()]
    }

    /// Windows of the network's layers, each named once: a cache group each. A window that no text can fill is none.
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.windows_of(self.layers)
    }

    /// The same of its first layers.
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

    /// How many positions a row of a layer sees, if it does not see all.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.attention_of(layer).window.filter(|window| *window < self.context_max)
    }

    /// The heads of keys and values of a layer.
    pub fn kv_heads_of(&self, layer: usize) -> Heads {
        let network = Heads { count: self.kv_heads, head_dim: self.head_dim };
        self.attention_of(layer).heads.unwrap_or(network)
    }

    /// Layers that have keys and values of their own: the first of all.
    pub fn kv_layers(&self) -> usize {
        self.layers - self.shared_kv.map_or(0, |shared| shared.layers)
    }

    /// The layer whose keys and values a layer attends to; mostly itself.
    ///
    /// # Panics
    /// If no layer has them, which families rule out.
    pub fn kv_layer_of(&self, layer: usize) -> usize {
        if layer < self.kv_layers() {
            return layer;
        }
        let same = |other: &usize| self.attention_of(*other) == self.attention_of(layer);
        (0..self.kv_layers()).rfind(same).unwrap_or_else(|| panic!("layer {layer}: no keys and values to share"))
    }

    /// Elements of a row by which a layer attends: the width, and twice that in the first layer of a draft head.
    pub fn attention_inputs(&self, layer: usize) -> usize {
        if self.draft_head.is_some() && layer == 0 { 2 * self.width } else { self.width }
    }

    /// Tokens that it can say.
    pub fn output_vocabulary(&self) -> usize {
        self.draft_head.as_ref().map_or(self.vocabulary, |head| head.draft_vocabulary)
    }

    /// Width inside the feed-forward half of a layer.
    pub fn ffn_width_of(&self, layer: usize) -> usize {
        self.shared_kv.filter(|_| layer >= self.kv_layers()).map_or(self.ffn_width, |shared| shared.ffn_width)
    }

    /// The experts of a layer, if it has some.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.layers[layer % experts.layers.len()])
    }

    /// Bytes of keys and values of one position that a layer attends to, with these types of them; the largest number
    /// if there is none for it.
    pub fn cache_bytes_of(&self, layer: usize, types: [CacheType; 2]) -> usize {
        let Heads { count, head_dim } = self.kv_heads_of(layer);
        types.iter().fold(0usize, |all, kind| all.saturating_add(kind.bytes(head_dim))).saturating_mul(count)
    }

    /// Bytes that the cache needs for one position with these types of keys and values; the largest number if there is
    /// none for it.
    pub fn cache_bytes_per_position(&self, types: [CacheType; 2]) -> usize {
        (0..self.kv_layers()).fold(0, |all, layer| all.saturating_add(self.cache_bytes_of(layer, types)))
    }
}
