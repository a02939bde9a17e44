//! The formulas of Leviathan et al. 2023, to compare measurements with: what a chain yields if every token is accepted
//! with the same probability, independently of the others.
//!
//! The paper's formulas for time are not here: they assume that verifying gamma + 1 tokens takes as long as decoding
//! one, and this crate decides by measured times instead ([`crate::Costs`]).

use crate::Law;

/// alpha of one position: the probability that a token drawn from q is accepted, the sum of min(p, q) (Corollary 3.6).
pub fn acceptance(p: &Law, q: &Law) -> f64 {
    p.overlap(q)
}

/// Expected tokens per pass of a chain of `gamma` tokens: (1 - alpha^(gamma + 1)) / (1 - alpha) (Equation 1).
///
/// # Panics
///
/// Panics if alpha is not between 0 and 1.
pub fn expected_tokens(alpha: f64, gamma: u32) -> f64 {
    assert!((0.0..=1.0).contains(&alpha), "alpha {alpha}");
    // As the geometric sum, which is also defined at alpha = 1.
    (0..=gamma).map(|i| alpha.powi(i as i32)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_tokens_are_those_of_the_paper() {
        for alpha in [0.1_f64, 0.5, 0.8, 0.99] {
            for gamma in 0..10 {
                let closed = (1.0 - alpha.powi(gamma as i32 + 1)) / (1.0 - alpha);
                assert!((expected_tokens(alpha, gamma) - closed).abs() < 1e-12);
            }
        }
        assert_eq!(expected_tokens(0.0, 7), 1.0);
        assert_eq!(expected_tokens(1.0, 7), 8.0);
        // Table 1 of the paper: alpha 0.8, gamma 5: 3.69 tokens per pass.
        assert!((expected_tokens(0.8, 5) - 3.69).abs() < 0.005);
    }

    #[test]
    fn acceptance_is_the_overlap_of_two_laws() {
        let p = Law::from_pairs([(0, 0.5), (1, 0.5)]);
        let q = Law::from_pairs([(1, 0.25), (2, 0.75)]);
        assert_eq!(acceptance(&p, &q), 0.25);
        assert_eq!(acceptance(&p, &p), 1.0);
    }
}
