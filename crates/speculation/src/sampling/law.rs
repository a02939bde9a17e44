//! A law: which tokens can come next, with what probability.
//!
//! Sparse and sorted by token, so that after top-k or top-p everything that follows costs the few tokens that are left.
//! Probabilities are `f64`: they are added up, subtracted from each other and compared, and tests hold the sums to 1e-12.

use crate::Token;

/// A probability distribution over tokens: those of positive probability in ascending order, summing to 1 up to rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct Law {
    tokens: Vec<Token>,
    probabilities: Vec<f64>,
}

impl Law {
    /// The point mass: this token for certain. What greedy decoding samples from.
    pub fn point(token: Token) -> Law {
        Law { tokens: vec![token], probabilities: vec![1.0] }
    }

    /// The law proportional to these weights, in any order; zero weights are left out.
    ///
    /// # Panics
    ///
    /// Panics if a weight is negative or not finite, if a token comes twice, or if nothing is positive.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (Token, f64)>) -> Law {
        let mut pairs: Vec<(Token, f64)> = pairs.into_iter().collect();
        for &(token, weight) in &pairs {
            assert!(weight.is_finite() && weight >= 0.0, "token {token} has weight {weight}");
        }
        pairs.sort_unstable_by_key(|&(token, _)| token);
        for pair in pairs.windows(2) {
            assert!(pair[0].0 != pair[1].0, "token {} comes twice", pair[0].0);
        }
        let (tokens, weights) = pairs.into_iter().filter(|&(_, weight)| weight > 0.0).unzip();
        Law::from_sorted(tokens, weights)
    }

    /// The law proportional to positive weights of ascending tokens.
    pub(crate) fn from_sorted(tokens: Vec<Token>, mut weights: Vec<f64>) -> Law {
        debug_assert!(tokens.is_sorted_by(|a, b| a < b) && weights.iter().all(|&weight| weight > 0.0));
        let sum: f64 = weights.iter().sum();
        assert!(sum > 0.0 && sum.is_finite(), "the weights of a law sum to {sum}");
        for weight in &mut weights {
            *weight /= sum;
        }
        // Dividing may underflow a weight to zero, and a token of the support has positive probability by definition.
        if weights.contains(&0.0) {
            let (tokens, probabilities) = tokens.into_iter().zip(weights).filter(|&(_, weight)| weight > 0.0).unzip();
            return Law { tokens, probabilities };
        }
        Law { tokens, probabilities: weights }
    }

    /// The tokens of positive probability, ascending.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Their probabilities, in the same order.
    pub fn probabilities(&self) -> &[f64] {
        &self.probabilities
    }

    /// The probability of a token; zero outside the support.
    pub fn probability(&self, token: Token) -> f64 {
        self.tokens.binary_search(&token).map_or(0.0, |i| self.probabilities[i])
    }

    /// Tokens with their probabilities, ascending by token.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Token, f64)> + '_ {
        self.tokens.iter().copied().zip(self.probabilities.iter().copied())
    }

    /// Sum of min(p, q) over all tokens: alpha at one place (Leviathan et al. 2023, Theorem 3.5). 1 for equal laws.
    pub fn overlap(&self, other: &Law) -> f64 {
        let (mut sum, mut at) = (0.0, 0);
        for (token, p) in self.iter() {
            while other.tokens.get(at).is_some_and(|&theirs| theirs < token) {
                at += 1;
            }
            if other.tokens.get(at) == Some(&token) {
                sum += p.min(other.probabilities[at]);
            }
        }
        sum
    }

    /// Number of tokens of positive probability, at least 1.
    pub fn support_len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether only one token is possible.
    pub fn is_point(&self) -> bool {
        self.tokens.len() == 1
    }
}
