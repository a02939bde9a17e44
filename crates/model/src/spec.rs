//! What a configuration says about a network: its shape, and the closed list of ways in which networks differ.
//!
//! Known before any tensor is read, so a model can be described without being loaded. Where a difference is one of
//! matrices (feed-forward, learned positions), the loaded network has it in its own form (`network.rs`), and what is
//! here is the description. Each difference is matched in one place when it is run: the norm and the inner part of the
//! feed-forward half in `block.rs`, the rotation here. A family that would need a second `match` gets a block file of
//! its own. Left out: everything that a request can choose.

use foretoken_kernels::attention::CacheType;
use foretoken_kernels::rope::Pairing;

/// Normalization of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// Root mean square, weight only.
    Rms {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// Mean and variance, weight and bias.
    Layer {
        /// Added to the variance.
        epsilon: f32,
    },
}

/// How the network learns where a token stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Positions {
    /// Rotary embedding of queries and keys.
    Rope(Rotation),
    /// A table of vectors added to the embedding.
    Learned,
}

impl Positions {
    /// How queries and keys are rotated, if they are.
    pub fn rotation(&self) -> Option<&Rotation> {
        match self {
            Self::Rope(rotation) => Some(rotation),
            Self::Learned => None,
        }
    }
}

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// Angle a position, one a pair; scaling is already applied.
    pub frequencies: Vec<f32>,
    /// Which elements of a head form a pair.
    pub pairing: Pairing,
}

/// The feed-forward half of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// down(silu(gate(x)) * up(x)).
    SiluGated,
    /// down(f(up(x))).
    Plain(Activation),
}

/// An activation without a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU through tanh.
    GeluTanh,
    /// GELU through the error function.
    GeluErf,
    /// max(x, 0).
    Relu,
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
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width inside the feed-forward half.
    pub ffn_width: usize,
    /// Positions the network was made for.
    pub context_max: usize,
    /// Normalization.
    pub norm: Norm,
    /// Positions.
    pub positions: Positions,
    /// Feed-forward.
    pub feed_forward: FeedForward,
    /// Multiplies attention scores.
    pub attention_scale: f32,
    /// Whether the head is the embedding table.
    pub tied_head: bool,
}

impl Spec {
    /// Bytes that the cache needs for one position with these types of keys and values; the largest number if there is
    /// none for it.
    pub fn cache_bytes_per_position(&self, types: [CacheType; 2]) -> usize {
        let head = types.iter().fold(0usize, |all, kind| all.saturating_add(kind.bytes(self.head_dim)));
        head.saturating_mul(self.layers).saturating_mul(self.kv_heads)
    }
}
