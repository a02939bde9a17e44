//! How networks encode the positions of tokens: rotations, tables, slopes, or biases by distance.

use std::fmt;

use foretoken_kernels::rope::Pairing;

/// How the network encodes the position of a token.
#[derive(Clone, Debug, PartialEq)]
pub enum Positions {
    /// Rotary embedding of queries and keys: the rotations of the network, of which each layer has one or none
    /// ([`LayerAttention::rotation`](super::LayerAttention::rotation)).
    Rope(Vec<Rotation>),
    /// A table of vectors added to the embedding.
    Learned,
    /// Scores fall with distance (ALiBi): the slope of each query head.
    Alibi(Vec<f32>),
    /// Each head adds to its scores a learned bias for the bucket of the distance between key and query (T5).
    Relative(Buckets),
}

impl Positions {
    /// The rotations of queries and keys: in most networks one or none.
    pub fn rotations(&self) -> &[Rotation] {
        match self {
            Self::Rope(rotations) => rotations,
            Self::Learned | Self::Alibi(_) | Self::Relative(_) => &[],
        }
    }

    /// What is subtracted from the scores of each head per position of distance; empty without ALiBi.
    pub fn slopes(&self) -> &[f32] {
        match self {
            Self::Alibi(slopes) => slopes,
            Self::Learned | Self::Rope(_) | Self::Relative(_) => &[],
        }
    }
}

/// A rotary embedding.
#[derive(Clone, PartialEq)]
pub struct Rotation {
    /// The angle per position of each pair; scaling is already applied. If there are fewer pairs than half of a head's
    /// elements, the last elements of the head are not rotated.
    pub frequencies: Vec<f32>,
    /// Which elements of a head form a pair.
    pub pairing: Pairing,
    /// The factor of the rotated elements: the attention factor of YaRN and LongRoPE, otherwise 1.
    pub magnitude: f32,
    /// The base of the frequencies before any scaling.
    pub base: f32,
    /// How the frequencies were computed from the base, for file formats that store this and not the frequencies.
    pub scaling: Scaling,
    /// Both lists of frequencies, if a scaling has one for short sequences and another for longer ones.
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

/// Frequencies that depend on the length of the longest sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct ByLength {
    /// Length of the longest sequence that uses the first list, in tokens.
    pub short_max: usize,
    /// The frequencies of short sequences and of longer ones.
    pub frequencies: [Vec<f32>; 2],
}

/// How the frequencies of a rotation were scaled.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// The frequencies were not scaled.
    None,
    /// All frequencies were divided by one factor.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// YaRN.
    Yarn {
        /// The factor by which sequences may be longer.
        factor: f32,
        /// Number of positions that the network was trained with before it was extended.
        original: f32,
    },
    /// Each frequency was divided by a number of its own, which is the same for sequences of all lengths (llama3).
    Divided,
    /// Each frequency was divided by a number of its own, from one list for sequences within the trained context and
    /// from another for longer ones.
    LongRope {
        /// Number of positions that the network was trained with before it was extended.
        original: f32,
        /// The divisors of short sequences and of long ones.
        divisors: [Vec<f32>; 2],
    },
    /// A larger base is used for sequences longer than the trained context.
    Dynamic {
        /// Number of positions of the trained context.
        trained: usize,
        /// How fast the base grows.
        factor: f32,
    },
    /// A larger base is used for sequences longer than the trained context: one for those up to twice as long, another
    /// for those up to four times as long, and so on (Qwen 1).
    DynamicByDoubling {
        /// Number of positions of the trained context.
        trained: usize,
    },
}

/// The buckets of distances of which a network with relative positions has biases (Raffel et al. 2020, section 2.1):
/// half of them hold one distance each, the others ranges that grow exponentially.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Number of buckets, at least 4. An encoder uses one half of them for keys behind the query.
    pub count: usize,
    /// The distance from which all distances share the last bucket; more than half of the buckets.
    pub distance_max: usize,
    /// Whether each layer has biases of its own, instead of those of the first one.
    pub in_each_layer: bool,
}

impl Buckets {
    /// The bucket of a key `offset` positions behind the query (negative: before it), for rows that see only earlier
    /// positions or for an encoder, whose rows see all.
    pub fn bucket(&self, offset: isize, is_encoder: bool) -> usize {
        let distance = if is_encoder { offset.unsigned_abs() } else { offset.min(0).unsigned_abs() };
        let count = if is_encoder { self.count / 2 } else { self.count };
        let first = if is_encoder && offset > 0 { count } else { 0 };
        let single = count / 2;
        if distance < single {
            return first + distance;
        }
        // In f32, as transformers computes it: the border of a bucket may depend on the rounding.
        let log = |ratio: f32| f64::from(ratio).ln() as f32;
        let of_range = log(self.distance_max as f32 / single as f32);
        let part = log(distance as f32 / single as f32) / of_range * (count - single) as f32;
        first + (single + part as usize).min(count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distances at which a bucket begins, and the last bucket.
    fn borders(count: usize, distance_max: usize, is_encoder: bool) -> (Vec<usize>, usize) {
        let buckets = Buckets { count, distance_max, in_each_layer: false };
        let of = |distance: usize| buckets.bucket(-(distance as isize), is_encoder);
        for distance in 1..300 {
            let behind = buckets.bucket(distance as isize, is_encoder);
            assert_eq!(behind, if is_encoder { count / 2 + of(distance) } else { 0 });
        }
        ((1..300).filter(|distance| of(*distance) != of(distance - 1)).collect(), of(299))
    }

    /// The expected borders are those of transformers' `_relative_position_bucket`.
    #[test]
    fn buckets_are_those_of_transformers() {
        let singles = |to: usize, rest: &[usize]| (1..=to).chain(rest.iter().copied()).collect::<Vec<_>>();
        let long = [19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113];
        assert_eq!(borders(32, 128, false), (singles(16, &long), 31));
        assert_eq!(borders(32, 128, true), (singles(8, &[12, 16, 23, 32, 46, 64, 91]), 15));
        assert_eq!(borders(8, 20, false), (singles(4, &[6, 9, 14]), 7));
        assert_eq!(borders(8, 20, true), (vec![1, 2, 7], 3));
        assert_eq!(borders(32, 20, true), (singles(9, &[11, 12, 13, 15, 16, 18]), 15));
        assert_eq!(borders(7, 5, true), (vec![1, 3], 2));
    }
}
