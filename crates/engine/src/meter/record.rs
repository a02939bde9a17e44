//! What is known of costs, to be kept between runs.
//!
//! Costs as they are used are smooth: widths that were hardly measured are held near others, and more rows are never
//! cheaper. Kept is what was found instead, with how often it was found, so that a later run can tell what is sure. A
//! time that is not sure is kept by the run that found it alone: what met one bad moment is forgotten unless it is
//! found again.

use std::collections::BTreeMap;

use foretoken_speculation::costs::Curve;
use foretoken_speculation::{Costs, DrafterCosts};

/// What passes of one width take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WidthTime {
    /// Least tokens of context for which it holds.
    pub context_min: usize,
    /// Rows of the pass.
    pub rows: usize,
    /// Their median, in seconds.
    pub seconds: f64,
    /// Of how many passes.
    pub times: usize,
    /// How many passes ago the last of them was made.
    pub age: u64,
}

/// Wider passes are not believed, wherever they come from: curves are drawn through all widths up to the widest.
pub(super) const ROWS_MAX: usize = 1 << 16;

impl WidthTime {
    /// Whether a pass can have taken that.
    pub(super) fn is_sound(&self) -> bool {
        (1..=ROWS_MAX).contains(&self.rows) && self.seconds > 0.0 && self.seconds.is_finite()
    }
}

/// What a drafter takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DrafterTime {
    /// In seconds.
    pub costs: DrafterCosts,
    /// How many passes ago it was last asked.
    pub age: u64,
}

/// All that was measured, as it was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostRecord {
    /// In any order; of a context and width that are there twice the first counts.
    pub widths: Vec<WidthTime>,
    /// By drafter.
    pub drafters: Vec<DrafterTime>,
}

impl CostRecord {
    /// The costs that these times say.
    pub fn costs(&self) -> Costs {
        let mut points: BTreeMap<usize, Vec<(usize, f64)>> = BTreeMap::new();
        for width in &self.widths {
            points.entry(width.context_min).or_default().push((width.rows, width.seconds));
        }
        let curves = points.into_iter().map(|(context_min, points)| Curve::new(context_min, points)).collect();
        Costs { curves, drafters: self.drafters.iter().map(|drafter| drafter.costs).collect() }
    }
}
