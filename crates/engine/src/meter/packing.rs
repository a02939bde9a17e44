//! Which passes took their time for packing experts, and so say nothing of others.
//!
//! An expert is packed once and then used often: what that took is no part of the next pass. Where nearly every pass
//! of about a width packs some, since there is room for few, that is what such passes take, and is learned like
//! everything else: wide passes, whose rows choose many experts, may mostly pack where narrow ones seldom do.

use std::collections::BTreeMap;

use foretoken_model::Reading;

/// Where more than this part of the latest passes of about a width packed experts, packing is usual.
const USUAL: f64 = 0.9;
/// Passes that are the latest in this sense, about.
const LATEST: f64 = 16.0;

/// Which part of the latest passes packed experts, by the logarithm of their rows.
#[derive(Debug, Default)]
pub(super) struct Packing(BTreeMap<u32, f64>);

impl Packing {
    /// Whether a pass of so many rows, at least one, that read this packed experts where most do not.
    pub(super) fn is_unusual(&mut self, rows: usize, read: Reading) -> bool {
        let packed = read.packed > 0;
        let part = self.0.entry(rows.ilog2()).or_default();
        *part += (f64::from(u8::from(packed)) - *part) / LATEST;
        packed && *part <= USUAL
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Made, Meter};
    use super::*;

    #[test]
    fn packing_is_no_cost_unless_nearly_every_pass_packs() {
        let mut meter = Meter::default();
        let mut pass = |rows: usize, seconds: f64, packed: usize| {
            let read = Reading { bytes: 0, experts: 8, packed };
            meter.learn_pass(Made { rows, wanted: rows, seconds, read }, 0);
            meter.costs().pass(rows, 0)
        };
        let unknown = [1, 1, 4].map(|rows| Meter::default().costs().pass(rows, 0));
        assert_eq!([pass(1, 0.9, 8), pass(1, 0.5, 3), pass(4, 0.9, 8)], unknown, "nothing is known yet");
        assert_eq!(pass(1, 0.010, 0), 0.010);
        for i in 0..300 {
            assert_eq!(pass(1, if i % 4 == 0 { 0.010 } else { 0.050 }, i % 4), 0.010, "pass {i}");
        }
        let mut said = (0..200).map(|_| pass(1, 0.050, 2));
        assert_eq!(said.nth(8), Some(0.010), "for a while");
        assert_eq!(said.last(), Some(0.050), "where every pass packs some, that is what passes take");
    }

    #[test]
    fn wide_passes_that_mostly_pack_are_learned_though_narrow_ones_seldom_do() {
        let mut meter = Meter::default();
        for _ in 0..100 {
            for (rows, seconds, packed) in [(1, 0.010, 0), (2, 0.012, 0), (16, 0.200, 9)] {
                let read = Reading { bytes: 0, experts: 8, packed };
                meter.learn_pass(Made { rows, wanted: rows, seconds, read }, 0);
            }
        }
        assert_eq!([1, 2, 16].map(|rows| meter.costs().pass(rows, 0)), [0.010, 0.012, 0.200]);
    }
}
