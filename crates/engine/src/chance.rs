//! The random numbers of production: a hash of the address, so that speculation never shifts the noise of a later
//! token.
//!
//! A pick is an exponential race (equivalent to the Gumbel-max trick): each token of the support gets E / p with E =
//! -ln(1 - u), and the smallest wins, which happens with probability p. u comes from a 64-bit hash of (address, token)
//! and has 52 bits and a half, so it is never 0 or 1. Cost: a hash for each token of the support, and a logarithm for
//! the few that can still win, since E is never less than u.

use foretoken_speculation::{Address, Chance, Law, Token};

/// The production source of chance: stateless, addressed by (seed, request, pass, position, purpose, token).
#[derive(Clone, Copy, Debug, Default)]
pub struct Race;

/// A bijection of 64 bits in which every output bit depends on every input bit (Stafford's variant 13 of the
/// finalizer of MurmurHash3, as in splitmix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// One hash of all fields of an address. Request number 0 is left out of it.
fn key(address: &Address) -> u64 {
    let request = Some(address.request).filter(|request| *request != 0);
    let fields = [address.pass, address.position, (address.purpose as u64) << 32 | u64::from(address.index)];
    request
        .into_iter()
        .chain(fields)
        .fold(mix(address.seed ^ GOLDEN), |key, field| mix(key.wrapping_add(GOLDEN) ^ field.wrapping_mul(GOLDEN)))
}

/// A number strictly between 0 and 1: the midpoint of one of 2^52 equal intervals.
fn uniform(hash: u64) -> f64 {
    ((hash >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// The uniform number of one token at one address.
fn noise(key: u64, token: Token) -> f64 {
    uniform(mix(key.wrapping_add(u64::from(token).wrapping_mul(GOLDEN))))
}

/// A standard exponential variate from a uniform number.
fn exponential(u: f64) -> f64 {
    -(-u).ln_1p()
}

/// E >= u, up to the rounding of the logarithm, a division and a product: 2e-16 each, far within this margin.
const ROUNDING_MARGIN: f64 = 1.0 - 1e-12;

impl Chance for Race {
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        let key = key(&address);
        out.clear();
        if count == 1 {
            let mut best = (f64::INFINITY, None);
            for (token, p) in law.iter() {
                let u = noise(key, token);
                if u * ROUNDING_MARGIN >= best.0 * p {
                    continue; // it cannot win any more
                }
                let time = exponential(u) / p;
                if time < best.0 {
                    best = (time, Some(token));
                }
            }
            out.extend(best.1);
            return;
        }
        if count >= law.support_len() {
            let mut times: Vec<_> = law.iter().map(|(token, p)| (exponential(noise(key, token)) / p, token)).collect();
            times.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            out.extend(times.iter().map(|(_, token)| *token));
            return;
        }
        // The smallest times so far, in order; of ties the lowest token, which comes first.
        let mut fastest: Vec<(f64, Token)> = Vec::with_capacity(count + 1);
        let mut slowest = f64::INFINITY;
        for (token, p) in law.iter() {
            let u = noise(key, token);
            if u * ROUNDING_MARGIN >= slowest * p {
                continue;
            }
            let time = exponential(u) / p;
            if time < slowest || fastest.len() < count {
                fastest.insert(fastest.partition_point(|other| other.0 <= time), (time, token));
                fastest.truncate(count);
                slowest = if fastest.len() == count { fastest[count - 1].0 } else { f64::INFINITY };
            }
        }
        out.extend(fastest.iter().map(|(_, token)| *token));
    }

    fn coin(&mut self, probability: f64, address: Address) -> bool {
        uniform(mix(key(&address))) < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_speculation::{Address, Pass, Purpose};

    fn law(weights: &[f64]) -> Law {
        let total: f64 = weights.iter().sum();
        Law::from_pairs(weights.iter().enumerate().map(|(i, w)| (i as Token, w / total)))
    }

    /// Share of `n` races that each outcome wins.
    fn shares(n: u64, mut outcome: impl FnMut(u64) -> usize) -> Vec<f64> {
        let mut counts = [0f64; 16];
        (0..n).for_each(|seed| counts[outcome(seed)] += 1.0);
        counts.iter().map(|count| count / n as f64).collect()
    }

    #[test]
    fn uniforms_lie_strictly_between_zero_and_one() {
        assert!(uniform(0) > 0.0 && uniform(u64::MAX) < 1.0);
        let (least, most) = (-(-uniform(0)).ln_1p(), -(-uniform(u64::MAX)).ln_1p());
        assert!(least > 0.0 && most.is_finite(), "{least} {most}");
    }

    #[test]
    fn the_race_follows_the_law_over_seeds_and_over_positions() {
        let p = law(&[0.5, 0.25, 0.2, 0.05]);
        let n = 200_000;
        for by_position in [false, true] {
            let found = shares(n, |i| {
                let (seed, position) = if by_position { (7, i) } else { (i, 7) };
                Race.pick(&p, Address::token(seed, position)) as usize
            });
            for (token, probability) in p.iter() {
                let error = (found[token as usize] - probability).abs();
                // Five standard deviations of a share of n.
                assert!(error < 5.0 * (probability * (1.0 - probability) / n as f64).sqrt(), "{token}: {error}");
            }
        }
    }

    #[test]
    fn two_laws_under_the_same_noise_match_with_the_probability_of_the_closed_form() {
        // P(match at x) = 1 / sum over y of max(p(y)/p(x), q(y)/q(x)).
        let (p, q) = (law(&[0.5, 0.3, 0.2]), law(&[0.3, 0.3, 0.4]));
        let expected: f64 = (0..3u32)
            .map(|x| {
                1.0 / (0..3u32)
                    .map(|y| (p.probability(y) / p.probability(x)).max(q.probability(y) / q.probability(x)))
                    .sum::<f64>()
            })
            .sum();
        let n = 200_000;
        let matches = (0..n)
            .filter(|seed| Race.pick(&p, Address::token(*seed, 3)) == Race.pick(&q, Address::token(*seed, 3)))
            .count();
        let found = matches as f64 / n as f64;
        assert!((found - expected).abs() < 5.0 * (0.25 / n as f64).sqrt(), "found {found}, expected {expected}");
    }

    #[test]
    fn the_first_of_many_is_the_pick_and_the_order_is_successive_sampling() {
        let p = law(&[0.5, 0.3, 0.2]);
        let n = 100_000;
        let mut out = Vec::new();
        let found = shares(n, |seed| {
            let address = Address::token(seed, 0);
            Race.draw(&p, 2, address, &mut out);
            assert_eq!(out[0], Race.pick(&p, address));
            (out[0] * 3 + out[1]) as usize
        });
        for (first, second) in [(0u32, 1u32), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            let expected = p.probability(first) * p.probability(second) / (1.0 - p.probability(first));
            assert!((found[(first * 3 + second) as usize] - expected).abs() < 0.01, "{first} {second}");
        }
    }

    #[test]
    fn skipping_tokens_that_cannot_win_changes_no_winner() {
        // A race that ranks all tokens skips none, so its first tokens are the winners by definition.
        let laws = [law(&[1.0; 50]), law(&[1e-12, 1.0, 1e-3, 1e-300, 0.5]), {
            let weights: Vec<f64> = (0..3000u32).map(|i| f64::from(mix(u64::from(i)) as u32 % 1000 + 1)).collect();
            law(&weights)
        }];
        let mut out = Vec::new();
        for law in &laws {
            for seed in 0..300 {
                let address = Address::token(seed, 5);
                Race.draw(law, usize::MAX, address, &mut out);
                assert_eq!(out.len(), law.support_len());
                for count in [1, 2, 5] {
                    let mut first = Vec::new();
                    Race.draw(law, count, address, &mut first);
                    assert_eq!(first, out[..count.min(out.len())], "seed {seed} of {} tokens", law.support_len());
                }
            }
        }
    }

    #[test]
    fn coins_follow_their_probability_and_are_certain_at_0_and_1() {
        let n = 100_000;
        let address = |seed| Address::coin(Pass { seed, request: 0, start: 1 }, 1, 0);
        let heads = (0..n).filter(|seed| Race.coin(0.3, address(*seed))).count();
        assert!((heads as f64 / n as f64 - 0.3).abs() < 0.01);
        assert!((0..1000).all(|seed| Race.coin(1.0, address(seed))));
        assert!((0..1000).all(|seed| !Race.coin(0.0, address(seed))));
    }

    /// These numbers were recorded before addresses included a request number: a seed's noise has not changed since.
    #[test]
    fn request_0_has_the_noise_of_addresses_without_a_request() {
        for (seed, pass, position, purpose, index, expected) in [
            (0, 0, 0, Purpose::Token, 0, 0x2130_748a_aac8_0268),
            (7, 0, 1000, Purpose::Token, 0, 0x8227_1e95_41dd_54ac),
            (u64::MAX, 5, 6, Purpose::Draft, 3, 0x94fa_81ec_386e_31ab),
            (7, 5, 6, Purpose::Coin, 9, 0x21d1_cc87_2175_8030),
            (12345, 8, 11, Purpose::Residual, 0, 0x6d75_554a_4544_b3a1),
        ] {
            let address = Address { seed, request: 0, pass, position, purpose, index };
            assert_eq!(key(&address), expected, "{address:?}");
        }
        let pass = Pass { seed: 7, request: 0, start: 900 };
        assert_eq!(Address::plain(pass, 1000), Address::token(7, 1000));
    }

    #[test]
    fn requests_with_the_same_seed_have_independent_noise() {
        let p = law(&[0.5, 0.3, 0.2]);
        let n = 100_000;
        // The law holds over request numbers as it does over seeds, and the noise of two requests is independent.
        let address = |request| Address::plain(Pass { seed: 7, request, start: 3 }, 3);
        let pair = |i: u64| [2 * i, 2 * i + 1].map(|request| Race.pick(&p, address(request)));
        let found = shares(n, |i| (pair(i)[0] * 3 + pair(i)[1]) as usize);
        for (first, second) in (0..3u32).flat_map(|first| (0..3u32).map(move |second| (first, second))) {
            let expected = p.probability(first) * p.probability(second);
            let error = (found[(first * 3 + second) as usize] - expected).abs();
            assert!(error < 5.0 * (expected * (1.0 - expected) / n as f64).sqrt(), "{first} {second}: {error}");
        }
    }
}
