//! The formulas of Leviathan et al. 2023, to compare measurements with: what a chain yields if every token is accepted
//! with the same probability, independently of the others.
//!
//! Left out: trees, and wider passes that cost more. The papers' assumption that verifying gamma + 1 tokens takes as
//! long as decoding one is an assumption about the machine; a budget should use the measured curve.

use crate::Law;

/// alpha of one position: the probability that a token drawn from q is accepted, the sum of min(p, q) (Corollary 3.6).
pub fn acceptance(p: &Law, q: &Law) -> f64 {
    p.iter().map(|(token, p)| p.min(q.probability(token))).sum()
}

/// Expected tokens per pass of a chain of `gamma` tokens: (1 - alpha^(gamma + 1)) / (1 - alpha) (Equation 1).
///
/// # Panics
///
/// Panics if alpha is not between 0 and 1.
pub fn expected_tokens(alpha: f64, gamma: u32) -> f64 {
    assert!((0.0..=1.0).contains(&alpha), "alpha {alpha}");
    // As the sum it stands for, which has no hole at alpha = 1.
    (0..=gamma).map(|i| alpha.powi(i as i32)).sum()
}

/// Expected speed-up over plain decoding if a draft step costs `c` target steps and width is free (Theorem 3.8).
///
/// # Panics
///
/// Panics if alpha is not between 0 and 1, or c is negative.
pub fn speedup(alpha: f64, gamma: u32, c: f64) -> f64 {
    assert!(c >= 0.0, "cost ratio {c}");
    expected_tokens(alpha, gamma) / (f64::from(gamma) * c + 1.0)
}

/// The chain length up to `gamma_max` with the best [`speedup`], the shortest of equals; 0 if drafting does not pay.
pub fn best_gamma(alpha: f64, c: f64, gamma_max: u32) -> u32 {
    let mut best = 0;
    for gamma in 1..=gamma_max {
        if speedup(alpha, gamma, c) > speedup(alpha, best, c) {
            best = gamma;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equation_one_in_closed_form_and_at_its_ends() {
        for alpha in [0.1_f64, 0.5, 0.8, 0.99] {
            for gamma in 0..10 {
                let closed = (1.0 - alpha.powi(gamma as i32 + 1)) / (1.0 - alpha);
                assert!((expected_tokens(alpha, gamma) - closed).abs() < 1e-12);
            }
        }
        assert_eq!(expected_tokens(0.0, 7), 1.0);
        assert_eq!(expected_tokens(1.0, 7), 8.0);
    }

    #[test]
    fn theorem_3_8_matches_the_papers_example_and_its_corollary() {
        // Table 1 of the paper: alpha 0.8, gamma 5, c negligible: 3.69 tokens per pass.
        assert!((speedup(0.8, 5, 0.0) - 3.69).abs() < 0.005);
        // Corollary 3.9: alpha > c pays at least (1 + alpha) / (1 + c); otherwise nothing pays.
        assert!((speedup(0.6, 1, 0.2) - 1.6 / 1.2).abs() < 1e-12);
        assert_eq!(best_gamma(0.3, 0.4, 20), 0);
        assert_eq!(best_gamma(1.0, 0.1, 20), 20);
    }

    #[test]
    fn acceptance_is_the_overlap() {
        let p = Law::from_pairs([(0, 0.5), (1, 0.5)]);
        let q = Law::from_pairs([(1, 0.25), (2, 0.75)]);
        assert_eq!(acceptance(&p, &q), 0.25);
        assert_eq!(acceptance(&p, &p), 1.0);
    }
}
