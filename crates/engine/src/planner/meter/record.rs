//! Measured times as they are kept between runs.
//!
//! [`Costs`] are smoothed: widths with few times are averaged with others, and more rows never take less. The record
//! has the measured medians instead, with the number of times, so that a later run can tell which are reliable. An
//! unreliable time is recorded only by the run that measured it: an outlier is forgotten unless it is measured again.

use std::collections::BTreeMap;

use foretoken_speculation::costs::Curve;
use foretoken_speculation::{Costs, DrafterCosts};

/// The time of passes of one width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WidthTime {
    /// The smallest context that it is for, in tokens.
    pub context_min: usize,
    /// Rows of the pass.
    pub rows: usize,
    /// Median time, in seconds.
    pub seconds: f64,
    /// The number of passes of which it is the median.
    pub times: usize,
    /// The number of passes since the last of them.
    pub age: u64,
}

/// Maximum number of rows of a width that is taken from a record, since curves are computed for all widths up to the
/// widest.
pub(super) const ROWS_MAX: usize = 1 << 16;

impl WidthTime {
    /// Whether a pass can have had this width and time.
    pub(super) fn is_sound(&self) -> bool {
        (1..=ROWS_MAX).contains(&self.rows) && self.seconds > 0.0 && self.seconds.is_finite()
    }
}

/// The times of one drafter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DrafterTime {
    /// Its times, in seconds.
    pub costs: DrafterCosts,
    /// The number of passes since it was last asked.
    pub age: u64,
}

/// All measured times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostRecord {
    /// In any order; of a context and width that come twice the first counts.
    pub widths: Vec<WidthTime>,
    /// By drafter.
    pub drafters: Vec<DrafterTime>,
}

impl CostRecord {
    /// The costs by these times, without smoothing.
    pub fn costs(&self) -> Costs {
        let mut points: BTreeMap<usize, Vec<(usize, f64)>> = BTreeMap::new();
        for width in &self.widths {
            points.entry(width.context_min).or_default().push((width.rows, width.seconds));
        }
        let curves = points.into_iter().map(|(context_min, points)| Curve::new(context_min, points)).collect();
        Costs { curves, drafters: self.drafters.iter().map(|drafter| drafter.costs).collect() }
    }
}
