//! The theory of speculative decoding: the formulas of Leviathan, Kalman and Matias 2023 ("Fast Inference from
//! Transformers via Speculative Decoding"), by their numbers in the paper.
//!
//! alpha is the mean probability that a drafted token is accepted, gamma the number of tokens that are drafted for a
//! pass, and c the time of a step of the draft model over that of a pass of the target (Definition 3.7). The paper
//! assumes that tokens are accepted independently of each other with the same probability, and that a pass takes as
//! long over gamma + 1 tokens as over one. [`tree`] does without the first assumption, and is for trees; [`width`] does
//! without the second.
//!
//! Nothing is decided by these formulas: a run decides by measured times and by what it has learned about acceptance
//! ([`crate::choose`]). They are for estimates before a run, and to explain what a run has measured.

pub mod tree;
pub mod width;

use crate::{Law, Token};

/// The divergence D_LK of two laws (Definition 3.2): the sum of |p - m| over all tokens, where m is the mean of p and
/// q. By Lemma 3.3 it is 1 - [`acceptance`]. It is 0 for equal laws and 1 for laws without a common token.
pub fn divergence(p: &Law, q: &Law) -> f64 {
    // |p - m| is half of |p - q|.
    let of_p: f64 = p.iter().map(|(token, own)| (own - q.probability(token)).abs()).sum();
    let of_q_alone: f64 = q.iter().filter(|(token, _)| p.probability(*token) == 0.0).map(|(_, own)| own).sum();
    (of_p + of_q_alone) / 2.0
}

/// The probability that a token drawn from q is accepted: the sum of min(p, q) over all tokens (Theorem 3.5). Its mean
/// over positions is alpha (Corollary 3.6).
pub fn acceptance(p: &Law, q: &Law) -> f64 {
    p.overlap(q)
}

/// Expected tokens per pass of a chain of `gamma` tokens: (1 - alpha^(gamma + 1)) / (1 - alpha) (Equation 1).
///
/// # Panics
///
/// Panics if alpha is not between 0 and 1.
pub fn expected_tokens(alpha: f64, gamma: u32) -> f64 {
    check_probability("alpha", alpha);
    // As the geometric sum, which is also defined at alpha = 1.
    (0..=gamma).map(|i| alpha.powi(i as i32)).sum()
}

/// The expected speedup over plain decoding: (1 - alpha^(gamma + 1)) / ((1 - alpha) (gamma c + 1)) (Theorem 3.8).
///
/// # Panics
///
/// Panics if alpha is not between 0 and 1, or c is negative.
pub fn speedup(alpha: f64, gamma: u32, c: f64) -> f64 {
    check_cost(c);
    expected_tokens(alpha, gamma) / (f64::from(gamma) * c + 1.0)
}

/// A speedup that some gamma reaches at least: (1 + alpha) / (1 + c), which is that of one drafted token, if alpha is
/// greater than c (Corollary 3.9). `None` if it is not: then no gamma is faster than plain decoding.
///
/// # Panics
///
/// As [`speedup`].
pub fn speedup_reached(alpha: f64, c: f64) -> Option<f64> {
    (alpha > c).then(|| speedup(alpha, 1, c))
}

/// The factor by which the number of arithmetic operations per token grows: (1 - alpha) (gamma c + gamma + 1) / (1 -
/// alpha^(gamma + 1)), where c is the ratio of operations of a step of the draft model to those of a token of the
/// target (Theorem 3.11, Definition 3.10).
///
/// # Panics
///
/// As [`speedup`].
pub fn operations(alpha: f64, gamma: u32, c: f64) -> f64 {
    check_cost(c);
    let gamma_tokens = f64::from(gamma);
    (gamma_tokens * c + gamma_tokens + 1.0) / expected_tokens(alpha, gamma)
}

/// How often the target's weights and KV cache are read per token, over plain decoding: once per pass, so (1 - alpha) /
/// (1 - alpha^(gamma + 1)) (section 3.4).
///
/// # Panics
///
/// As [`expected_tokens`].
pub fn memory_reads(alpha: f64, gamma: u32) -> f64 {
    1.0 / expected_tokens(alpha, gamma)
}

/// The best number of drafted tokens, and its speedup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BestGamma {
    /// Drafted tokens per pass.
    pub gamma: u32,
    /// The speedup over plain decoding.
    pub speedup: f64,
}

/// The gamma from 1 to `gamma_max` with the greatest [`speedup`] (section 3.5).
///
/// # Panics
///
/// As [`speedup`].
pub fn best_gamma(alpha: f64, c: f64, gamma_max: u32) -> BestGamma {
    let of = |gamma: u32| BestGamma { gamma, speedup: speedup(alpha, gamma, c) };
    (2..=gamma_max).map(of).fold(of(1), |best, other| if other.speedup >= best.speedup { other } else { best })
}

/// The speedup of an oracle that drafts exactly the tokens that will be accepted (section 3.5), an upper bound of every
/// choice of gamma: alpha / (1 - alpha) tokens are drafted and 1 / (1 - alpha) written per pass, so it is 1 / (1 -
/// alpha + alpha c). Infinite for a free drafter that is always right.
///
/// # Panics
///
/// As [`speedup`].
pub fn oracle_speedup(alpha: f64, c: f64) -> f64 {
    check_probability("alpha", alpha);
    check_cost(c);
    1.0 / (1.0 - alpha + alpha * c)
}

/// The probability that a token drawn from q is accepted by the non-iterative variant of rejection sampling, which
/// accepts with probability p / (M q), where M is the maximum of p / q: 1 / M (Appendix A.2). Never more than
/// [`acceptance`].
pub fn rejection_sampling_acceptance(p: &Law, q: &Law) -> f64 {
    p.iter().map(|(token, own)| q.probability(token) / own).fold(1.0, f64::min)
}

/// The probability that a token drawn from q is accepted if q is multiplied by a lenience l before it is compared with
/// p: the sum of min(p / l, q) (Appendix A.5). Then no token is written with more than 1 / l times its probability
/// under p. No promise allows that, since it changes the law of the text: [`crate::verify_leniently`] does it.
///
/// # Panics
///
/// Panics if the lenience is not above 0 and at most 1.
pub fn lenient_acceptance(p: &Law, q: &Law, lenience: f64) -> f64 {
    check_lenience(lenience);
    p.iter().map(|(token, own)| (own / lenience).min(q.probability(token))).sum()
}

/// Whether a drafted token would be accepted at temperature 0 with a lenience l: its probability is at least l times
/// that of the most probable token (Appendix A.5). `p` is the target's law before it becomes a point mass.
///
/// # Panics
///
/// As [`lenient_acceptance`].
pub fn is_leniently_accepted(p: &Law, token: Token, lenience: f64) -> bool {
    check_lenience(lenience);
    p.probability(token) >= lenience * p.probabilities().iter().copied().fold(0.0, f64::max)
}

fn check_probability(name: &str, found: f64) {
    assert!((0.0..=1.0).contains(&found), "{name} {found}");
}

fn check_cost(c: f64) {
    assert!(c >= 0.0, "a cost ratio of {c}");
}

fn check_lenience(lenience: f64) {
    assert!(lenience > 0.0 && lenience <= 1.0, "a lenience of {lenience}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Chance, DraftTree, NodeId, Pass, Promise, Proposal, verify};

    #[track_caller]
    fn near(found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() <= tolerance, "{found} for {expected}");
    }

    /// Pairs of laws: overlapping, equal, without a common token, and point masses.
    fn pairs() -> Vec<(Law, Law)> {
        let law = |weights: &[f64]| Law::from_pairs((0..).zip(weights.iter().copied()));
        vec![
            (law(&[0.5, 0.3, 0.2]), law(&[0.2, 0.2, 0.6])),
            (law(&[0.5, 0.5, 0.0, 0.0]), law(&[0.0, 0.25, 0.75, 0.0])),
            (law(&[0.9, 0.1]), law(&[0.9, 0.1])),
            (law(&[1.0, 0.0]), law(&[0.0, 1.0])),
            (law(&[0.25, 0.75]), law(&[1.0, 0.0])),
        ]
    }

    /// Chance from a counter. It ignores addresses, so all answers are independent.
    pub(super) struct Dice(pub(super) u64);

    impl Dice {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = self.0;
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    impl Chance for Dice {
        fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
            assert_eq!(count, 1, "{address:?}");
            let mut at = self.uniform();
            let found = law.iter().find(|(_, own)| {
                at -= own;
                at < 0.0
            });
            out.clear();
            out.push(found.map_or(law.tokens()[0], |(token, _)| token));
        }

        fn coin(&mut self, probability: f64, _: Address) -> bool {
            self.uniform() < probability
        }
    }

    /// Mean tokens per pass of the verify function, for chains drawn from q where all laws of the target are p.
    fn tokens_per_pass(p: &Law, q: &Law, gamma: u32, passes: u32) -> f64 {
        let mut dice = Dice(u64::from(gamma));
        let pass = Pass { seed: 0, request: 0, start: 1 };
        let mut written = 0;
        for _ in 0..passes {
            let (mut tree, mut parent, mut drawn) = (DraftTree::new(), None, Vec::new());
            for _ in 0..gamma {
                let id = tree.add_law(q.clone());
                dice.draw(q, 1, Address::draft(pass, 1, id), &mut drawn);
                parent = Some(tree.offer(parent, drawn[0], Proposal::Drawn(id), 0));
            }
            let mut target = |_: Option<NodeId>| p.clone();
            written += verify(&tree, &mut target, Promise::Rejection, pass, &mut dice).tokens.len();
        }
        written as f64 / f64::from(passes)
    }

    #[test]
    fn acceptance_is_the_overlap_of_two_laws_and_the_rest_is_their_divergence() {
        let p = Law::from_pairs([(0, 0.5), (1, 0.5)]);
        let q = Law::from_pairs([(1, 0.25), (2, 0.75)]);
        assert_eq!((acceptance(&p, &q), divergence(&p, &q)), (0.25, 0.75));
        assert_eq!((acceptance(&p, &p), divergence(&p, &p)), (1.0, 0.0));
        for (p, q) in pairs() {
            // Definition 3.2 word for word, Lemma 3.3, and the symmetry of Corollary 3.4.
            let mean = |token: Token| (p.probability(token) + q.probability(token)) / 2.0;
            let by_definition: f64 = (0..9).map(|token| (p.probability(token) - mean(token)).abs()).sum();
            near(divergence(&p, &q), by_definition, 1e-12);
            near(acceptance(&p, &q), 1.0 - divergence(&p, &q), 1e-12);
            near(divergence(&q, &p), divergence(&p, &q), 1e-12);
        }
    }

    #[test]
    fn expected_tokens_are_those_of_the_paper_and_of_the_verify_function() {
        for alpha in [0.1_f64, 0.5, 0.8, 0.99] {
            for gamma in 0..10 {
                let closed = (1.0 - alpha.powi(gamma as i32 + 1)) / (1.0 - alpha);
                near(expected_tokens(alpha, gamma), closed, 1e-12);
            }
        }
        assert_eq!((expected_tokens(0.0, 7), expected_tokens(1.0, 7)), (1.0, 8.0));
        for (p, q) in pairs() {
            for gamma in [1, 4] {
                // Five standard deviations of a mean of 40 000 numbers between 1 and 5.
                near(tokens_per_pass(&p, &q, gamma, 40_000), expected_tokens(acceptance(&p, &q), gamma), 0.05);
            }
        }
    }

    #[test]
    fn speedups_and_operations_are_those_of_table_1() {
        // alpha, gamma, operations, speedup; c is 0.
        for (alpha, gamma, more, faster) in [
            (0.6, 2, 1.53, 1.96),
            (0.7, 3, 1.58, 2.53),
            (0.8, 2, 1.23, 2.44),
            (0.8, 5, 1.63, 3.69),
            (0.9, 2, 1.11, 2.71),
            (0.9, 10, 1.60, 6.86),
        ] {
            near(speedup(alpha, gamma, 0.0), faster, 0.0051);
            near(operations(alpha, gamma, 0.0), more, 0.0051);
            near(memory_reads(alpha, gamma) * expected_tokens(alpha, gamma), 1.0, 1e-12);
        }
        // The draft model's own operations: 2 steps of a tenth each.
        near(operations(0.6, 2, 0.1), 3.2 / 1.96, 1e-12);
    }

    #[test]
    fn speedups_are_those_of_the_other_tables_and_of_the_text() {
        // T5-small for T5-XXL (Table 4): alpha, gamma, speedup; a step costs a fiftieth of a pass.
        for (alpha, gamma, expected) in [(0.75, 7, 3.2), (0.62, 7, 2.3), (0.65, 5, 2.4), (0.53, 5, 1.9)] {
            near(speedup(alpha, gamma, 0.02), expected, 0.051);
        }
        // A bigram model, which costs nothing (section 3.6), whose limit is 1 / (1 - alpha).
        near(speedup(0.2, 3, 0.0), 1.25, 0.0051);
        near(speedup(0.2, 60, 0.0), 1.0 / 0.8, 1e-9);
        // Lenience at temperature 0 (Appendix A.5).
        for (alpha, expected) in [(0.75, 3.3), (0.8, 3.9), (0.87, 4.9)] {
            near(speedup(alpha, 8, 0.015), expected, 0.051);
        }
    }

    #[test]
    fn a_draft_gains_exactly_if_alpha_exceeds_the_cost() {
        for alpha in (0..20).map(|twentieths| f64::from(twentieths) / 20.0) {
            for c in (0..20).map(|twentieths| (f64::from(twentieths) + 0.5) / 20.0) {
                let best = best_gamma(alpha, c, 200);
                match speedup_reached(alpha, c) {
                    Some(reached) => {
                        near(reached, (1.0 + alpha) / (1.0 + c), 1e-12);
                        assert!(best.speedup >= reached && reached > 1.0, "{alpha} {c}: {best:?}");
                    }
                    None => assert!(best.speedup < 1.0, "{alpha} {c}: {best:?}"),
                }
            }
        }
    }

    #[test]
    fn the_best_gamma_is_the_maximum() {
        // (1 - 0.6^17) / 0.4 tokens for nothing; a step that costs a whole pass gains nothing.
        let free = best_gamma(0.6, 0.0, 16);
        assert_eq!(free.gamma, 16);
        near(free.speedup, 2.5, 1e-3);
        assert!(best_gamma(0.7, 1.0, 16).speedup < 1.0);
        let found = best_gamma(0.8, 0.05, 16);
        near(speedup(0.8, 5, 0.05), 2.951, 1e-3);
        assert!((1..=16).all(|gamma| speedup(0.8, gamma, 0.05) <= found.speedup));
        assert_eq!(found.speedup, speedup(0.8, found.gamma, 0.05));
        assert_eq!(best_gamma(0.8, 0.05, 1).gamma, 1);
    }

    #[test]
    fn the_oracle_drafts_what_will_be_accepted() {
        // The number of tokens that will be accepted is geometric.
        let sums = |alpha: f64, c: f64| {
            let each = (0..4000).map(|accepted| (f64::from(accepted), alpha.powi(accepted) * (1.0 - alpha)));
            let (tokens, time) = each.fold((0.0, 0.0), |(tokens, time), (accepted, probability)| {
                (tokens + probability * (accepted + 1.0), time + probability * (accepted * c + 1.0))
            });
            tokens / time
        };
        let mut most = 0.0_f64;
        for alpha in (1..99).map(|hundredths| f64::from(hundredths) / 100.0) {
            for c in (1..20).map(|hundredths| f64::from(hundredths) / 100.0) {
                near(oracle_speedup(alpha, c), sums(alpha, c), 1e-6);
                let ratio = oracle_speedup(alpha, c) / best_gamma(alpha, c, 100).speedup.max(1.0);
                assert!(ratio >= 1.0 - 1e-9 || alpha <= c, "{alpha} {c}: {ratio}");
                most = most.max(ratio);
            }
        }
        // "Up to 60 % higher" than with one gamma.
        assert!(most > 1.5 && most < 1.6, "{most}");
    }

    #[test]
    fn rejection_sampling_never_accepts_more() {
        for (p, q) in pairs() {
            let found = rejection_sampling_acceptance(&p, &q);
            assert!(found <= acceptance(&p, &q) + 1e-12, "{found}");
            if found > 0.0 {
                // A token drawn from q is accepted with probability p / (M q).
                let accepted: f64 = q.iter().map(|(token, own)| own * p.probability(token) * found / own).sum();
                near(accepted, found, 1e-12);
            }
        }
        let (p, q) = &pairs()[0];
        near(rejection_sampling_acceptance(p, q), 0.4, 1e-12);
    }

    #[test]
    fn lenience_bounds_the_probability_of_every_token() {
        for (p, q) in pairs() {
            near(lenient_acceptance(&p, &q, 1.0), acceptance(&p, &q), 1e-12);
            for lenience in [0.9, 0.5, 0.1] {
                let accepted = lenient_acceptance(&p, &q, lenience);
                assert!(accepted >= acceptance(&p, &q) - 1e-12 && accepted <= 1.0 + 1e-12, "{accepted}");
                // All forms of the paper are equal.
                let forms = [
                    p.iter().map(|(token, own)| own.min(lenience * q.probability(token)) / lenience).sum::<f64>(),
                    p.iter()
                        .map(|(token, own)| own * q.probability(token) / own.max(lenience * q.probability(token)))
                        .sum(),
                ];
                forms.iter().for_each(|form| near(*form, accepted, 1e-12));
                // The law of the output: what is accepted, and the residual norm((p - l q)+).
                let residual = |token: Token| (p.probability(token) - lenience * q.probability(token)).max(0.0);
                let left: f64 = (0..9).map(residual).sum();
                let mut all = 0.0;
                for token in 0..9 {
                    let own = (p.probability(token) / lenience).min(q.probability(token));
                    let own = own + if left > 0.0 { (1.0 - accepted) * residual(token) / left } else { 0.0 };
                    assert!(own <= p.probability(token) / lenience + 1e-12, "token {token}: {own}");
                    all += own;
                }
                near(all, 1.0, 1e-12);
            }
        }
    }

    #[test]
    fn greedy_lenience_accepts_what_is_nearly_as_probable() {
        let p = Law::from_pairs([(3, 0.5), (5, 0.3), (8, 0.2)]);
        let accepted = |lenience: f64| [3, 5, 8, 9].map(|token| is_leniently_accepted(&p, token, lenience));
        assert_eq!(accepted(1.0), [true, false, false, false]);
        assert_eq!(accepted(0.5), [true, true, false, false]);
        assert_eq!(accepted(0.1), [true, true, true, false]);
    }

    #[test]
    #[should_panic(expected = "alpha 1.5")]
    fn a_probability_above_one_is_a_mistake() {
        speedup(1.5, 3, 0.1);
    }
}
