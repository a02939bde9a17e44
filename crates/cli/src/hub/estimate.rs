//! The expected speedup by a draft model: Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.8.
//!
//! A chain of gamma drafted tokens gives (1 - alpha^(gamma + 1)) / (1 - alpha) tokens a pass (Equation 1) and takes
//! gamma c + 1 times as long as a plain pass, where c is the cost of a draft step over that of a pass. alpha, the
//! acceptance rate, depends on the text and is assumed here. When a model runs, measured costs decide instead
//! (`speculation/src/choose.rs`).

use foretoken::theory::expected_tokens;

/// The assumed acceptance rate.
pub const ACCEPTANCE: f64 = 0.7;
/// Most tokens of a draft.
const GAMMA_MAX: u32 = 16;

/// An estimate of the speed of decoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Drafted tokens per pass.
    pub gamma: u32,
    /// Speedup over plain decoding.
    pub gain: f64,
}

/// The best estimate over gamma, for a draft model whose step costs `cost` passes of the target.
pub fn best(acceptance: f64, cost: f64) -> Estimate {
    let of =
        |gamma: u32| Estimate { gamma, gain: expected_tokens(acceptance, gamma) / (f64::from(gamma) * cost + 1.0) };
    (1..=GAMMA_MAX).map(of).max_by(|a, b| a.gain.total_cmp(&b.gain)).unwrap_or_else(|| of(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_equal_those_of_the_paper() {
        // Table 1: alpha 0.6, gamma 2, c 0: 1.96 tokens a pass. A step that costs a whole pass gains nothing.
        let free = best(0.6, 0.0);
        assert_eq!(free.gamma, GAMMA_MAX);
        assert!((free.gain - 2.5).abs() < 1e-3);
        assert!(best(0.7, 1.0).gain < 1.0);
        // (1 - 0.8^6) / 0.2 / (5 * 0.05 + 1) = 2.951 is the maximum over gamma.
        let found = best(0.8, 0.05);
        let of = |gamma: u32| expected_tokens(0.8, gamma) / (f64::from(gamma) * 0.05 + 1.0);
        assert!((of(5) - 2.951).abs() < 1e-3);
        assert!((1..=GAMMA_MAX).all(|gamma| of(gamma) <= found.gain) && of(found.gamma) == found.gain);
    }
}
