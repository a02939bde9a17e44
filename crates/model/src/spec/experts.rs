//! The description of experts by a configuration: their number, and how a row chooses among them.
//!
//! `router.rs` computes the choice.

/// A mixture of experts: feed-forward networks of which each row chooses a few.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts of a layer.
    pub count: usize,
    /// Number of them that a row chooses.
    pub chosen: usize,
    /// Inner width of an expert.
    pub ffn_width: usize,
    /// How a row chooses.
    pub router: Router,
    /// The shared expert, which all rows go through, if there is one.
    pub shared: Option<SharedExpert>,
    /// Whether their layers also have a dense feed-forward network in parallel, and each of the two has norms of its
    /// own.
    pub beside_dense: bool,
    /// Which layers have experts: layer i has them if element i modulo the length is true. The others are dense.
    pub layers: Vec<bool>,
}

/// How a row chooses its experts and how their outputs are weighted, by the router's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// How logits become scores.
    pub scoring: Scoring,
    /// Whether layers have corrections: for each expert a number that is added to its score for the choice alone.
    pub corrected: bool,
    /// The groups of experts, if a row first chooses among groups.
    pub groups: Option<Groups>,
    /// The divisor by which the scores of the chosen experts become weights; `None` if the scores are the weights.
    pub divided: Option<Sum>,
    /// The factor of the weights.
    pub factor: f32,
}

impl Router {
    /// A router by a softmax over all experts.
    pub const SOFTMAX: Self =
        Self { scoring: Scoring::Softmax, corrected: false, groups: None, divided: None, factor: 1.0 };
    /// A router by a softmax over the chosen experts, whose weights have the sum 1.
    pub const SOFTMAX_OF_CHOSEN: Self = Self { divided: Some(Sum::PLAIN), ..Self::SOFTMAX };
}

/// How the router's logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// The softmax of the logits over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
}

/// Groups of consecutive experts, all of one size: a row chooses among the experts of the best groups only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Number of them that a row chooses.
    pub chosen: usize,
    /// The score by which groups are compared.
    pub by: GroupScore,
}

/// The score of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The score of its best expert (DeepSeek V2).
    Best,
    /// The sum of the scores of its two best experts (DeepSeek V3).
    BestTwo,
}

/// The sum of the scores of the experts that a row chooses, kept above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// The number that is added to the sum.
    pub added: f32,
    /// The minimum of the divisor.
    pub least: f32,
}

impl Sum {
    /// The plain sum.
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
