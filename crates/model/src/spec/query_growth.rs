//! Queries that are scaled with their position, so that scores stay sharp in long texts.

/// Scaling of queries with their position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueryGrowth {
    /// By 1 + rate * ln(1 + floor(p / period)) at position p.
    Steps {
        /// The growth rate of the factor.
        rate: f32,
        /// Number of positions between two steps of the factor.
        period: f32,
    },
    /// By the logarithm of the number of tokens up to and including the query's, to the base `trained`, or by 1 if that
    /// is less (logn attention, Qwen 1).
    Logarithm {
        /// Number of positions up to which the factor is 1, at least 2.
        trained: usize,
    },
}

impl QueryGrowth {
    /// The factor of a query at a position.
    pub fn at(&self, position: usize) -> f32 {
        match *self {
            Self::Steps { rate, period } => 1.0 + rate * (1.0 + (position as f32 / period).floor()).ln(),
            Self::Logarithm { trained } if position < trained => 1.0,
            Self::Logarithm { trained } => (((position + 1) as f64).ln() / (trained as f64).ln()) as f32,
        }
    }
}
