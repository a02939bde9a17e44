//! Which passes spent time on packing experts, so that their times do not predict the next pass.
//!
//! An expert is packed once and then used often. But if there is memory for few experts, nearly every pass of about a
//! width packs some; then packing is part of the cost of such passes, and their times are learned. Wide passes, whose
//! rows choose many experts, may pack in most passes while narrow ones seldom do.

use std::collections::BTreeMap;

use foretoken_model::WeightsRead;

/// Packing is usual for a width if more than this fraction of its latest passes packed experts: nearly all, since one
/// pass without packing shows what the width takes.
const USUAL_PART: f64 = 0.9;
/// The number of passes that this fraction averages over, by exponential decay.
const AVERAGED_PASSES: f64 = 16.0;

/// The fraction of the latest passes that packed experts, by the binary logarithm of their rows.
#[derive(Debug, Default)]
pub(super) struct Packing(BTreeMap<u32, f64>);

impl Packing {
    /// Whether a pass of this many rows, at least one, packed experts although few passes of its width do.
    pub(super) fn is_unusual(&mut self, rows: usize, read: WeightsRead) -> bool {
        let packed = read.packed > 0;
        let part = self.0.entry(rows.ilog2()).or_default();
        *part += (f64::from(u8::from(packed)) - *part) / AVERAGED_PASSES;
        packed && *part <= USUAL_PART
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Meter, PassTiming};
    use super::*;

    #[test]
    fn packing_is_no_cost_unless_nearly_every_pass_packs() {
        let mut meter = Meter::default();
        let mut pass = |rows: usize, seconds: f64, packed: usize| {
            let read = WeightsRead { bytes: 0, experts: 8, packed };
            meter.learn_pass(PassTiming { rows, wanted: rows, seconds, read }, 0);
            meter.costs().pass(rows, 0)
        };
        let unknown = [1, 1, 4].map(|rows| Meter::default().costs().pass(rows, 0));
        assert_eq!([pass(1, 0.9, 8), pass(1, 0.5, 3), pass(4, 0.9, 8)], unknown, "nothing was learned yet");
        assert_eq!(pass(1, 0.010, 0), 0.010);
        for i in 0..300 {
            assert_eq!(pass(1, if i % 4 == 0 { 0.010 } else { 0.050 }, i % 4), 0.010, "pass {i}");
        }
        let mut costs = (0..200).map(|_| pass(1, 0.050, 2));
        assert_eq!(costs.nth(8), Some(0.010), "packing is not usual after a few passes");
        assert_eq!(costs.last(), Some(0.050), "packing is usual after many passes");
    }

    #[test]
    fn wide_passes_that_always_pack_are_learned_although_narrow_ones_never_do() {
        let mut meter = Meter::default();
        for _ in 0..100 {
            for (rows, seconds, packed) in [(1, 0.010, 0), (2, 0.012, 0), (16, 0.200, 9)] {
                let read = WeightsRead { bytes: 0, experts: 8, packed };
                meter.learn_pass(PassTiming { rows, wanted: rows, seconds, read }, 0);
            }
        }
        assert_eq!([1, 2, 16].map(|rows| meter.costs().pass(rows, 0)), [0.010, 0.012, 0.200]);
    }
}
