//! Seeds of several answers to one prompt, derived from the request's seed.
//!
//! The engine derives random numbers from a seed.

use foretoken_engine::Request;

/// The seed of answer `index` to a request with `seed`: the seed itself for the first (0), so that this answer equals
/// that of the request alone, and a hash of both for the others.
///
/// The hash is SplitMix64 (Steele et al. 2014): the seed plus `index` times 2^64 over the golden ratio, mixed. Of its
/// 64 bits the upper 53 are kept, since many readers of JSON hold numbers as doubles.
///
/// ```
/// use foretoken::seed_of_answer;
/// assert_eq!(seed_of_answer(7, 0), 7);
/// assert_ne!(seed_of_answer(7, 1), seed_of_answer(8, 1));
/// ```
pub fn seed_of_answer(seed: u64, index: usize) -> u64 {
    if index == 0 {
        return seed;
    }
    let mut state = seed.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state ^ (state >> 31)) >> 11
}

/// Requests for `count` answers to one prompt, each with a [seed of its own](seed_of_answer). The engine computes their
/// prompt once. A beam search is one request, whatever it returns ([`Answer::each`](crate::Answer::each)).
pub fn n_best(request: &Request, count: usize) -> Vec<Request> {
    let count = if request.beams.is_some() { 1 } else { count };
    let answer = |index| Request { seed: seed_of_answer(request.seed, index), ..request.clone() };
    (0..count).map(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_answers_are_fixed_and_all_different() {
        // They must never change: a recorded seed has to give the same text again.
        let known = [7, 3_511_274_219_185_729, 151_215_513_962_380];
        assert_eq!([0, 1, 2].map(|index| seed_of_answer(7, index)), known);
        let mut all: Vec<u64> =
            (0..20).flat_map(|seed| (0..50).map(move |index| seed_of_answer(seed, index))).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 1000);
        let answers = n_best(&Request { seed: 7, ..Request::new(vec![1]) }, 3);
        assert_eq!(answers.iter().map(|request| request.seed).collect::<Vec<_>>(), known);
    }
}
