//! The order in which variants of decoding run.
//!
//! A variant affects the next one through the processor's caches and temperature. So none must always come first, or
//! always after the same one.

/// The order in which `count` variants run in round number `round`.
///
/// One order is 0, 1, -1, 2, -2, ... around a circle: no two steps in it have the same length. Rotated by one place in
/// each round, it makes each variant follow every other one once in `count` rounds; an odd `count` needs the reverse
/// direction as well.
pub fn order(count: usize, round: usize) -> Vec<usize> {
    let at = |place: usize| if place % 2 == 1 { place.div_ceil(2) } else { count - place / 2 };
    let mut order: Vec<usize> = (0..count).map(|place| (at(place) + round) % count).collect();
    if round / count.max(1) % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_has_every_place_and_follows_every_other_equally_often() {
        for count in 1..9 {
            let mut places = vec![vec![0; count]; count];
            let mut follows = vec![vec![0; count]; count];
            for round in 0..2 * count {
                let order = order(count, round);
                order.iter().enumerate().for_each(|(place, variant)| places[*variant][place] += 1);
                order.windows(2).for_each(|pair| follows[pair[0]][pair[1]] += 1);
            }
            assert!(places.iter().flatten().all(|often| *often == 2), "{count}: {places:?}");
            for (before, row) in follows.iter().enumerate() {
                let expected = |after| if before == after { 0 } else { 2 };
                assert!(row.iter().enumerate().all(|(after, often)| *often == expected(after)), "{count}: {follows:?}");
            }
        }
        assert!(order(0, 3).is_empty());
    }
}
