//! The times of passes and drafters on this machine, learned from the passes that serve requests.
//!
//! Measured times become the plain numbers of [`Costs`]. Measurements are noisy, mostly in one direction: if another
//! program runs, a pass takes twice its time. So the cost of a *width* (a number of rows of a pass) or of a drafter is
//! the median of its last times; a width with few times is pulled towards its neighbours; and old times are forgotten,
//! so that a width with one outlier is tried again. If the whole machine slows down, all widths do: times are stored as
//! if measured at one speed. Contexts are told apart by powers of two, since attention's part of a pass grows with
//! them. If passes of equal width read different amounts of the weights, as in networks of experts, the amount explains
//! the difference (`read_model`). The time of a pass that had to pack experts first is not learned, unless most passes
//! do (`packing`).
//!
//! Fixed costs ([`Meter::hold`]) do not change, and nothing here depends on the clock then. The library keeps costs
//! between runs.

mod packing;
mod read_model;
mod record;
mod times;

use std::collections::BTreeMap;
use std::time::Duration;

use foretoken_model::WeightsRead;
use foretoken_speculation::costs::Curve;
use foretoken_speculation::{Costs, DrafterCosts, Work};

use packing::Packing;
use read_model::{ReadModel, RecentReads};
pub use record::{CostRecord, DrafterTime, WidthTime};
use times::{DrafterTimes, RecentMedian, Times};

/// Times that are kept of each width and operation: their median ignores up to four outliers.
const TIMES_KEPT: usize = 9;
/// A width with fewer times than this is averaged with its neighbours, which count as this many times. Otherwise, of
/// many widths that were tried once, the one with the luckiest time would be chosen.
const RELIABLE_TIMES_MIN: usize = 3;
/// A time of such a width counts as at most this factor above or below its neighbours.
const NEIGHBOUR_RATIO_MAX: f64 = 1.5;
/// The number of passes whose median is the machine's current slowness: few, so that it changes before the medians of
/// widths do.
const SLOWNESS_PASSES: usize = 5;
/// Largest factor by which a pass counts as slower or faster than usual. Machines hardly ever change by more; a pass
/// that does is an outlier.
const SLOWNESS_FACTOR_MAX: f64 = 2.0;
/// Times older than this many passes are forgotten: a width that seems too slow is not run again, and a drafter that
/// seems too slow is not asked again, so nothing else could correct them.
const AGE_PASSES_MAX: u64 = 1024;
/// Unreliable times are forgotten after this many passes, since one may be an outlier; and after this many passes
/// without a plain one, a plain pass is run to measure it.
const RECHECK_PASSES: u64 = 256;
/// The factor by which the costs of a drafter are lowered each time that it was not asked for [`AGE_PASSES_MAX`]
/// passes, so that it soon gets a trial, which measures it.
const STALE_DRAFTER_FACTOR: f64 = 0.5;
/// After the first passes, this many passes are learned together. Code that runs once per pass finds neither itself nor
/// its data in the processor's cache, which would take a hundredth of a small model's pass.
const BATCHED_PASSES: usize = 16;
/// The first passes, which are learned one by one, since nothing is known before them.
const FIRST_PASSES: u64 = 64;
/// Contexts shorter than this are not told apart: attention is a small part of their passes.
const CONTEXT_TOKENS_MIN: usize = 512;
/// Minimum fraction of a reading call's time that counts for the tokens that it reads: reading is never free, and costs
/// of 0 mean unmeasured.
const CATCH_UP_PART_MIN: f64 = 0.05;
/// Passes of up to this many rows have a class for each width: most passes with drafts have no more.
const NARROW_ROWS: usize = 32;
/// Passes of more rows than this have wide classes: they are mostly prefill.
const WIDE_ROWS: usize = 128;
/// Rows of the classes between the two, and of the wide ones.
const CLASS_ROWS: [usize; 2] = [8, 64];
/// Tokens of a sequence that a draft model reads in a step without taking longer for it, since its passes of so few
/// rows take about the same time. A call that reads more per sequence is catching up.
pub(super) const READ_FREE_TOKENS: usize = 4;

/// The time of a pass of the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassTiming {
    /// Its rows, all sequences together.
    pub(crate) rows: usize,
    /// The number of rows whose logits were wanted.
    pub(crate) wanted: usize,
    pub(crate) seconds: f64,
    /// The weights that the pass read.
    pub(crate) read: WeightsRead,
}

/// The work of one call of a drafter, and its time.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(crate) struct DrafterCall {
    /// Sequences that were drafted for.
    pub(crate) sequences: usize,
    /// Passes of its network; 0 without a network.
    pub(crate) passes: u64,
    /// Tokens of sequences that these read, drafted ones not counted.
    pub(crate) read: u64,
    pub(crate) seconds: f64,
}

impl DrafterCall {
    /// A call for this many sequences, from the counters of the network before and after it.
    pub(crate) fn between(before: Work, after: Work, sequences: usize, time: Duration) -> Self {
        let (passes, read) = (after.passes.saturating_sub(before.passes), after.read.saturating_sub(before.read));
        Self { sequences, passes, read, seconds: time.as_secs_f64() }
    }

    /// The seconds that it should have taken, by the learned costs. The time of catching up is not included: it is
    /// spent once, and was taken into account before.
    pub(crate) fn expected(&self, costs: DrafterCosts) -> f64 {
        self.sequences as f64 * (costs.call + self.passes as f64 * costs.step)
    }
}

/// Learns [`Costs`].
#[derive(Debug, Default)]
pub(crate) struct Meter {
    costs: Costs,
    is_held: bool,
    /// Passes so far, in this run and the runs before.
    pass_count: u64,
    /// Passes of the runs before.
    resumed_pass_count: u64,
    /// How much slower than usual the machine is now, for all widths alike.
    slowness: Slowness,
    /// Passes that are not learned yet, each with its context.
    unlearned: Vec<(PassTiming, usize)>,
    /// The times by the smallest context of a class, then by rows; at the usual speed.
    passes: BTreeMap<usize, BTreeMap<usize, Times>>,
    reads: RecentReads,
    packing: Packing,
    /// How a pass's time depends on the weights that it reads, if it does.
    read_model: Option<ReadModel>,
    drafters: Vec<DrafterTimes>,
}

impl Meter {
    pub(crate) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Whether costs are fixed.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Whether a pass of about this many rows was measured or given, with a short context.
    pub(crate) fn knows_pass(&self, rows: usize) -> bool {
        let known = self.passes.values().next();
        self.is_held || known.is_some_and(|known| known.range(rows.div_ceil(2)..=rows + rows / 2).next().is_some())
    }

    /// Fixes these costs: from now on nothing is learned.
    pub(crate) fn hold(&mut self, costs: Costs) {
        *self = Self { costs: sanitized(costs), is_held: true, ..Self::default() };
    }

    /// Continues from the record of an earlier run.
    pub(crate) fn resume(&mut self, record: &CostRecord) {
        let ages = record.widths.iter().map(|width| width.age).chain(record.drafters.iter().map(|drafter| drafter.age));
        // A bound on ages from a file; no program makes as many passes.
        let before = ages.max().unwrap_or(0).min(u64::from(u32::MAX));
        let mut meter = Self {
            costs: sanitized(record.costs()),
            pass_count: before,
            resumed_pass_count: before,
            ..Self::default()
        };
        for (costs, of) in meter.costs.drafters.iter_mut().zip(&record.drafters) {
            // The drafter may not have been asked because of a wrong time, so it is measured again.
            if of.age >= AGE_PASSES_MAX {
                *costs = DrafterCosts::default();
            }
        }
        for width in record.widths.iter().filter(|width| width.is_sound()) {
            let known = meter.passes.entry(width.context_min).or_default();
            let times = known.entry(width.rows).or_default();
            // As reliable as before: the machine's current speed is measured on widths with all their times, and the
            // widths that this run does not use are corrected by it.
            (times.seconds.len()..width.times.clamp(1, TIMES_KEPT)).for_each(|_| times.push(width.seconds, f64::NAN));
            times.last_pass = before - width.age.min(before);
        }
        let drafter = |(costs, of): (&DrafterCosts, &DrafterTime)| {
            let known = |seconds: f64| {
                let mut times = Times { last_pass: before - of.age.min(before), ..Times::default() };
                if seconds > 0.0 {
                    times.push(seconds, f64::NAN);
                }
                times
            };
            DrafterTimes { call: known(costs.call), step: known(costs.step), catch_up: known(costs.catch_up) }
        };
        meter.drafters = meter.costs.drafters.iter().zip(&record.drafters).map(drafter).collect();
        *self = meter;
    }

    /// The record for a later run: reliable times, and those of this run.
    pub(crate) fn record(&self) -> CostRecord {
        let all =
            self.passes.iter().flat_map(|(context_min, known)| known.iter().map(move |each| (*context_min, each)));
        let kept = all.filter(|(_, (_, times))| {
            times.is_reliable() || !times.is_provisional && times.last_pass > self.resumed_pass_count
        });
        let width = |(context_min, (rows, times)): (usize, (&usize, &Times))| {
            // At the current speed for all widths, with which the next run begins.
            let (seconds, age) = (times.median()? * self.slowness.factor(), self.pass_count - times.last_pass);
            Some(WidthTime { context_min, rows: *rows, seconds, times: times.seconds.len(), age })
        };
        let drafters = self.costs.drafters.iter().zip(&self.drafters);
        let drafters =
            drafters.map(|(costs, times)| DrafterTime { costs: *costs, age: self.pass_count - times.last_pass() });
        CostRecord { widths: kept.filter_map(width).collect(), drafters: drafters.collect() }
    }

    /// Learns the time of a pass over this many tokens of context, at once or together with later passes. A prefill
    /// pass, of which not all rows were wanted, takes less than others of its width: it counts only until there is
    /// another.
    pub(crate) fn learn_pass(&mut self, timing: PassTiming, context: usize) {
        if self.is_held
            || timing.rows == 0
            || !timing.seconds.is_finite()
            || self.packing.is_unusual(timing.rows, timing.read)
        {
            return;
        }
        self.unlearned.push((timing, context));
        // The time of a width that is not reliable, or was run to be measured, is learned at once.
        let times = self.passes.get(&context_class(context)).and_then(|known| known.get(&width_class(timing.rows)));
        let is_known =
            times.is_some_and(|times| times.is_reliable() && self.pass_count - times.last_pass < RECHECK_PASSES);
        if is_known
            && self.unlearned.len() < BATCHED_PASSES
            && self.pass_count - self.resumed_pass_count >= FIRST_PASSES
        {
            return;
        }
        let mut unlearned = std::mem::take(&mut self.unlearned);
        let mut contexts: Vec<usize> = Vec::new();
        for (timing, context) in unlearned.drain(..) {
            let context_min = context_class(context);
            self.note(timing, context_min);
            if !contexts.contains(&context_min) {
                contexts.push(context_min);
            }
        }
        self.unlearned = unlearned;
        contexts.into_iter().for_each(|context_min| self.update_curve(context_min));
    }

    /// Adds the time of a pass to its width.
    fn note(&mut self, timing: PassTiming, context_min: usize) {
        let PassTiming { rows, wanted, seconds, read } = timing;
        // A pass that is much wider than a strip of rows takes a time proportional to its rows, not to their class.
        let seconds = if rows > WIDE_ROWS { seconds * width_class(rows) as f64 / rows as f64 } else { seconds };
        self.pass_count += 1;
        self.discount_stale_drafters();
        if !self.passes.contains_key(&context_min) {
            // A new context has the costs of its nearest neighbour until it is measured.
            let nearest = self.passes.iter().min_by_key(|(other, _)| other.abs_diff(context_min));
            let mut known = nearest.map_or(BTreeMap::new(), |(_, known)| known.clone());
            known.values_mut().for_each(|times| times.is_provisional = true);
            self.passes.insert(context_min, known);
        }
        let (pass_count, known) = (self.pass_count, self.passes.entry(context_min).or_default());
        let times = known.entry(width_class(rows)).or_default();
        if wanted < rows {
            let is_new = times.seconds.len() == 0 || times.is_provisional;
            if is_new {
                times.add(seconds / self.slowness.factor(), pass_count);
                times.is_provisional = true;
            }
        } else {
            let read = RecentReads::amount(read);
            // A width has a usual time only once it has all its times: the first passes of a run find cold caches.
            let is_known = times.seconds.len() == TIMES_KEPT && !times.is_provisional;
            let usual = self.read_model.and_then(|read_model| read_model.seconds(times, read)).or(times.median());
            if let Some(usual) = usual.filter(|_| is_known) {
                self.slowness.0.add((seconds / usual).clamp(1.0 / SLOWNESS_FACTOR_MAX, SLOWNESS_FACTOR_MAX));
            }
            let seconds = seconds / self.slowness.factor();
            times.add_pass(seconds, read, pass_count);
            self.reads.note((context_min, width_class(rows)), seconds, read);
        }
    }

    /// Forgets old times, and updates the curve of a context.
    fn update_curve(&mut self, context_min: usize) {
        self.read_model = self.reads.fit(&self.passes);
        let (pass_count, known) = (self.pass_count, self.passes.entry(context_min).or_default());
        let age_max =
            |times: &Times| if times.is_reliable() || times.is_provisional { AGE_PASSES_MAX } else { RECHECK_PASSES };
        known.retain(|rows, times| *rows == 1 || pass_count - times.last_pass < age_max(times));
        let points = curve_points(known, self.read_model, self.slowness.factor());
        match self.costs.curves.iter_mut().find(|curve| curve.context_min == context_min) {
            Some(curve) => *curve = Curve::new(context_min, points),
            None => {
                self.costs.curves.push(Curve::new(context_min, points));
                self.costs.curves.sort_by_key(|curve| curve.context_min);
            }
        }
    }

    /// Lowers the costs of drafters that were not asked for long ([`STALE_DRAFTER_FACTOR`]).
    fn discount_stale_drafters(&mut self) {
        for (times, costs) in self.drafters.iter_mut().zip(&mut self.costs.drafters) {
            let age = self.pass_count - times.last_pass();
            if age > 0 && age.is_multiple_of(AGE_PASSES_MAX) {
                let times = [&mut times.call, &mut times.step, &mut times.catch_up];
                times.into_iter().for_each(|times| times.seconds.scale(STALE_DRAFTER_FACTOR));
                let costs = [&mut costs.call, &mut costs.step, &mut costs.catch_up];
                costs.into_iter().for_each(|seconds| *seconds *= STALE_DRAFTER_FACTOR);
            }
        }
    }

    /// Whether a plain pass is to be run to measure it: there was none before, or none among many passes.
    pub(crate) fn plain_pass_is_due(&self, rows: usize, context: usize) -> bool {
        let times = self.passes.get(&context_class(context)).and_then(|known| known.get(&width_class(rows)));
        !self.is_held
            && times.is_none_or(|times| {
                times.is_provisional || times.needs_confirmation || self.pass_count - times.last_pass >= RECHECK_PASSES
            })
    }

    /// Learns the time of a call of a drafter.
    pub(crate) fn learn_call(&mut self, drafter: u8, call: DrafterCall) {
        let DrafterCall { sequences, passes, read, seconds } = call;
        let at = usize::from(drafter);
        if self.drafters.len() <= at {
            self.drafters.resize(at + 1, DrafterTimes::default());
        }
        if self.costs.drafters.len() <= at {
            self.costs.drafters.resize(at + 1, DrafterCosts::default());
        }
        if self.is_held || sequences == 0 || !seconds.is_finite() {
            return;
        }
        let (times, costs) = (&mut self.drafters[at], &mut self.costs.drafters[at]);
        if passes == 0 {
            times.call.add(seconds / sequences as f64, self.pass_count);
            costs.call = times.call.median().unwrap_or_default();
        } else if read <= (READ_FREE_TOKENS * sequences) as u64 {
            times.step.add(seconds / (passes as f64 * sequences as f64), self.pass_count);
            costs.step = times.step.median().unwrap_or_default();
        } else {
            // No step took longer than this, whatever it read. Without this bound, a drafter that seems too slow would
            // never be corrected: it is seldom asked, and has many tokens to read each time.
            let most = seconds / (passes as f64 * sequences as f64);
            if most < costs.step {
                times.step.add(most, self.pass_count);
                costs.step = times.step.median().unwrap_or_default();
            }
            let steps = passes as f64 * sequences as f64 * costs.step;
            // If no step was measured, all of the time counts as reading.
            times.catch_up.add((seconds - steps).max(CATCH_UP_PART_MIN * seconds) / read as f64, self.pass_count);
            costs.catch_up = times.catch_up.median().unwrap_or_default();
        }
    }
}

/// The machine's current slowness: a factor of all times, 1 while they were first measured.
///
/// It is the median over a few passes of each one's time over the usual time of its width. So it changes before the
/// medians of the widths do, and these stay as they were.
#[derive(Clone, Debug, Default)]
struct Slowness(RecentMedian<SLOWNESS_PASSES>);

impl Slowness {
    fn factor(&self) -> f64 {
        self.0.median().filter(|_| self.0.len() == SLOWNESS_PASSES).unwrap_or(1.0)
    }
}

/// Sanitized costs: no empty curves, contexts in ascending order, and all times finite and not negative.
fn sanitized(mut costs: Costs) -> Costs {
    costs.curves.retain(|curve| !curve.points().is_empty());
    costs.curves.sort_by_key(|curve| curve.context_min);
    costs.curves.dedup_by_key(|curve| curve.context_min);
    let number = |seconds: f64| if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
    for DrafterCosts { call, step, catch_up } in &mut costs.drafters {
        for seconds in [call, step, catch_up] {
            *seconds = number(*seconds);
        }
    }
    costs
}

/// The smallest context of the class that a context belongs to.
fn context_class(context: usize) -> usize {
    if context < CONTEXT_TOKENS_MIN { 0 } else { 1 << context.ilog2() }
}

/// The class of a width: its greatest width.
fn width_class(rows: usize) -> usize {
    if rows <= NARROW_ROWS {
        return rows;
    }
    rows.next_multiple_of(CLASS_ROWS[usize::from(rows > WIDE_ROWS)])
}

/// The measured widths with their medians, times the slowness. A width with few times is averaged with the line between
/// its reliable neighbours. With a read model, times are those of passes that read the expected amount, and the widths
/// between the measured ones are filled in by it.
fn curve_points(known: &BTreeMap<usize, Times>, read_model: Option<ReadModel>, slowness: f64) -> Vec<(usize, f64)> {
    let count = |times: &Times| if times.is_provisional { 0 } else { times.seconds.len() };
    let median = |rows: usize, times: &Times| match read_model {
        Some(read_model) => read_model.seconds(times, read_model.expected(rows)),
        None => times.median(),
    };
    let all = known.iter().filter_map(|(rows, times)| Some((*rows, count(times), median(*rows, times)?)));
    let all: Vec<(usize, usize, f64)> = all.collect();
    let reliable =
        all.iter().filter(|(_, count, _)| *count >= RELIABLE_TIMES_MIN).map(|(rows, _, seconds)| (*rows, *seconds));
    let reliable = Costs { curves: vec![Curve::new(0, reliable.collect())], drafters: Vec::new() };
    let ends = (reliable.curves[0].points().first(), reliable.curves[0].points().last());
    let (first, last) = (ends.0.map_or(usize::MAX, |point| point.0), ends.1.map_or(0, |point| point.0));
    let smoothed = |&(rows, count, seconds): &(usize, usize, f64)| {
        let near = reliable.pass(rows, 0);
        // Outside the reliable widths there is no line, only an extrapolation that no pass would correct.
        let is_between = rows > first && rows < last;
        let (found, own) = (seconds.clamp(near / NEIGHBOUR_RATIO_MAX, near * NEIGHBOUR_RATIO_MAX), count as f64);
        let averaged = (found * own + near * RELIABLE_TIMES_MIN as f64) / (own + RELIABLE_TIMES_MIN as f64);
        (rows, slowness * if is_between && count < RELIABLE_TIMES_MIN { averaged } else { seconds })
    };
    let points: Vec<(usize, f64)> = all.iter().map(smoothed).collect();
    match read_model {
        Some(read_model) => read_model.interpolate(&points, slowness),
        None => points,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Meter {
        fn learn(&mut self, rows: usize, wanted: usize, context: usize, seconds: f64) {
            self.learn_pass(PassTiming { rows, wanted, seconds, read: WeightsRead::default() }, context);
        }
    }

    #[test]
    fn outliers_are_ignored_and_lasting_changes_are_learned() {
        let mut meter = Meter::default();
        for i in 0..60 {
            let slow = if i % 5 == 0 { 7.0 } else { 1.0 };
            meter.learn(1, 1, 40, 0.010 * slow);
            meter.learn(8, 8, 40, 0.013 * slow);
        }
        assert_eq!((meter.costs().pass(1, 0), meter.costs().pass(8, 100)), (0.010, 0.013));
        (0..TIMES_KEPT).for_each(|_| meter.learn(1, 1, 40, 0.020));
        assert_eq!(meter.costs().pass(1, 0), 0.020);
    }

    #[test]
    fn the_time_of_a_wide_pass_is_scaled_to_the_width_of_its_class() {
        let mut meter = Meter::default();
        meter.learn(130, 3, 40, 0.130);
        assert!((meter.costs().pass(192, 0) - 0.192).abs() < 1e-9);
    }

    #[test]
    fn times_that_cannot_be_measured_are_removed_from_given_costs() {
        let points = vec![(8, 2.0), (1, 1.0), (8, 3.0), (0, 1.0), (4, f64::NAN), (5, 0.0), (6, -1.0)];
        let curves = vec![Curve::new(0, points), Curve::new(9, Vec::new())];
        let drafters = vec![DrafterCosts { call: f64::INFINITY, step: -1.0, catch_up: 0.5 }];
        let mut meter = Meter::default();
        meter.hold(Costs { curves, drafters });
        assert_eq!(meter.costs().curves, [Curve::new(0, vec![(1, 1.0), (8, 2.0)])]);
        assert_eq!(meter.costs().drafters, [DrafterCosts { call: 0.0, step: 0.0, catch_up: 0.5 }]);
    }

    #[test]
    fn outside_the_reliable_widths_a_single_time_is_not_averaged() {
        let mut meter = Meter::default();
        meter.learn(32, 32, 0, 0.040);
        for _ in 0..RELIABLE_TIMES_MIN {
            meter.learn(1, 1, 0, 0.010);
            meter.learn(2, 2, 0, 0.010);
        }
        assert_eq!(meter.costs().pass(32, 0), 0.040);
    }

    #[test]
    fn a_width_that_was_measured_at_another_speed_of_the_machine_is_rescaled() {
        let mut meter = Meter::default();
        for _ in 0..9 {
            meter.learn(1, 1, 0, 0.010);
            meter.learn(4, 4, 0, 0.012);
        }
        (0..60).for_each(|_| meter.learn(1, 1, 0, 0.020));
        let found = meter.costs().pass(4, 0) / meter.costs().pass(1, 0);
        assert!((found - 1.2).abs() < 0.1, "{found}");
    }

    #[test]
    fn slow_first_passes_of_a_width_raise_no_other_width() {
        let mut meter = Meter::default();
        for i in 0..200 {
            meter.learn(1, 1, 0, if i < 5 { 0.100 } else { 0.001 });
            if i % 4 == 3 {
                meter.learn(20, 20, 0, 0.006);
            }
        }
        assert_eq!((meter.costs().pass(1, 0), meter.costs().pass(20, 0)), (0.001, 0.006));
        let mut once = Meter::default();
        (0..6).for_each(|_| once.learn(1, 1, 0, 0.100));
        (0..3).for_each(|_| once.learn(1, 1, 0, 0.001));
        once.learn(20, 20, 0, 0.006);
        (0..9).for_each(|_| once.learn(1, 1, 0, 0.001));
        assert!(once.costs().pass(20, 0) <= 0.012, "{:?}", once.costs());
    }

    #[test]
    fn a_width_with_one_time_is_averaged_with_its_neighbours() {
        let mut meter = Meter::default();
        for _ in 0..RELIABLE_TIMES_MIN {
            meter.learn(1, 1, 0, 0.010);
            meter.learn(8, 8, 0, 0.0135);
        }
        meter.learn(4, 4, 0, 0.100);
        let found = meter.costs().pass(4, 0);
        // The time counts as 1.5 times the line, with a weight of a fourth.
        assert!((found - 1.125 * 0.0115).abs() < 1e-9, "{found}");
        (0..3).for_each(|_| meter.learn(4, 4, 0, 0.0125));
        assert_eq!(meter.costs().pass(4, 0), 0.0125);
    }

    #[test]
    fn longer_contexts_have_their_own_times() {
        let mut meter = Meter::default();
        meter.learn(1, 1, 100, 0.010);
        meter.learn(8, 8, 100, 0.012);
        meter.learn(1, 1, 3000, 0.015);
        assert_eq!((meter.costs().pass(1, 4000), meter.costs().pass(1, 500)), (0.015, 0.010));
        // A width that was not measured there is not faster than one that was.
        assert_eq!(meter.costs().pass(8, 4000), 0.015);
    }

    #[test]
    fn calls_steps_and_reading_have_separate_times() {
        let mut meter = Meter::default();
        meter.learn_call(2, DrafterCall { sequences: 2, passes: 5, read: 4, seconds: 0.010 });
        meter.learn_call(2, DrafterCall { sequences: 1, passes: 3, read: 100, seconds: 0.013 });
        meter.learn_call(0, DrafterCall { sequences: 4, passes: 0, read: 0, seconds: 0.0004 });
        let costs = meter.costs();
        assert!((costs.drafter(2).step - 0.001).abs() < 1e-12);
        assert!((costs.drafter(2).catch_up - 0.0001).abs() < 1e-12);
        assert!((costs.drafter(0).call - 0.0001).abs() < 1e-12);
        assert_eq!(costs.drafter(1), DrafterCosts::default());
    }

    #[test]
    fn fixed_costs_stay_and_resumed_costs_are_updated() {
        let costs = Costs {
            curves: vec![Curve::new(0, vec![(1, 1.0), (8, 2.0)])],
            drafters: vec![DrafterCosts { call: 0.0, step: 0.5, catch_up: 0.1 }],
        };
        let mut held = Meter::default();
        held.hold(costs.clone());
        let width = |rows, seconds| WidthTime { context_min: 0, rows, seconds, times: 1, age: 0 };
        let drafters = vec![DrafterTime { costs: costs.drafters[0], age: 0 }];
        let record = CostRecord { widths: vec![width(8, 2.0), width(1, 1.0)], drafters };
        let mut begun = Meter::default();
        begun.resume(&record);
        assert_eq!(begun.costs(), &costs);
        for meter in [&mut held, &mut begun] {
            (0..9).for_each(|_| meter.learn(8, 8, 0, 3.0));
            (0..9).for_each(|_| meter.learn_call(0, DrafterCall { sequences: 1, passes: 1, read: 1, seconds: 0.7 }));
        }
        assert_eq!(held.costs(), &costs);
        assert_eq!((begun.costs().pass(8, 0), begun.costs().pass(1, 0)), (3.0, 1.0));
        assert_eq!(begun.costs().drafter(0), DrafterCosts { call: 0.0, step: 0.7, catch_up: 0.1 });
    }

    #[test]
    fn impossible_widths_are_not_resumed() {
        let most = record::ROWS_MAX;
        let width = |rows, seconds| WidthTime { context_min: 0, rows, seconds, times: 9, age: 0 };
        let widths = vec![width(1, 1.0), width(usize::MAX, 2.0), width(most + 1, 2.0), width(8, f64::NAN)];
        let mut meter = Meter::default();
        meter.resume(&CostRecord { widths, drafters: Vec::new() });
        let rows: Vec<usize> = meter.record().widths.iter().map(|width| width.rows).collect();
        assert_eq!(rows, [1]);
    }

    #[test]
    fn a_time_that_was_measured_once_is_recorded_only_by_the_run_that_measured_it() {
        let mut meter = Meter::default();
        (0..RELIABLE_TIMES_MIN).for_each(|_| meter.learn(1, 1, 0, 1.0));
        meter.learn(2, 2, 0, 30.0);
        let first = meter.record();
        let seconds = |record: &CostRecord| record.widths.iter().map(|width| width.seconds).collect::<Vec<_>>();
        assert_eq!(seconds(&first), [1.0, 30.0]);
        let mut next = Meter::default();
        next.resume(&first);
        assert!(next.costs().pass(2, 0) > 1.0);
        next.learn(1, 1, 0, 1.0);
        assert_eq!(seconds(&next.record()), [1.0]);
        // Within one run it is forgotten after `RECHECK_PASSES`.
        (0..RECHECK_PASSES + BATCHED_PASSES as u64).for_each(|_| meter.learn(1, 1, 0, 1.0));
        assert_eq!(meter.costs().pass(2, 0), 1.0);
    }

    #[test]
    fn a_prefill_pass_counts_for_its_width_until_a_decode_pass_does() {
        let mut meter = Meter::default();
        meter.learn(1, 1, 0, 1.0);
        meter.learn(20, 1, 0, 2.0);
        assert_eq!(meter.costs().pass(20, 0), 2.0);
        meter.learn(20, 20, 0, 3.0);
        meter.learn(20, 1, 0, 2.0);
        assert_eq!(meter.costs().pass(20, 0), 3.0);
    }

    #[test]
    fn a_step_that_seemed_too_slow_is_corrected_by_a_call_that_reads_many_tokens() {
        let mut meter = Meter::default();
        meter.learn_call(0, DrafterCall { sequences: 1, passes: 4, read: 1, seconds: 4.0 });
        for _ in 0..4 {
            meter.learn_call(0, DrafterCall { sequences: 1, passes: 1, read: 50, seconds: 0.2 });
        }
        assert!((meter.costs().drafter(0).step - 0.2).abs() < 1e-12, "{:?}", meter.costs());
    }

    #[test]
    fn right_times_stay_over_many_runs_and_wrong_times_are_forgotten() {
        let width = |rows, seconds| WidthTime { context_min: 0, rows, seconds, times: 9, age: 0 };
        let costs = DrafterCosts { step: 100.0, ..DrafterCosts::default() };
        let drafters = vec![DrafterTime { costs, age: 0 }];
        let mut record = CostRecord { widths: vec![width(1, 1.0), width(8, 9.0), width(16, 3.0)], drafters };
        for run in 0..9 {
            let mut meter = Meter::default();
            meter.resume(&record);
            // Every run begins with slow passes, because caches are cold.
            for i in 0..AGE_PASSES_MAX / 4 {
                meter.learn(1, 1, 0, if i < 20 { 1.8 } else { 1.0 });
            }
            record = meter.record();
            let rows: Vec<usize> = record.widths.iter().map(|width| width.rows).collect();
            assert_eq!(rows, if run < 3 { vec![1, 8, 16] } else { vec![1] }, "{run}");
            let found = [meter.costs().pass(1, 0), record.widths[rows.len() - 1].seconds];
            assert_eq!(found, if run < 3 { [1.0, 3.0] } else { [1.0, 1.0] }, "{run}");
        }
        // After a thousand passes without a call the drafter is measured again.
        assert_eq!(record.drafters[0].costs.step, 0.0);
    }

    #[test]
    fn a_plain_pass_that_was_due_is_not_due_again_after_it_was_made() {
        let mut meter = Meter::default();
        (0..FIRST_PASSES + 100).for_each(|_| meter.learn(1, 1, 0, 1.0));
        for (rows, context) in [(3, 0), (1, 600), (7, 600)] {
            assert!(meter.plain_pass_is_due(rows, context));
            meter.learn(rows, rows, context, 1.0);
            assert!(!meter.plain_pass_is_due(rows, context), "{rows} rows, context {context}");
        }
        (0..RECHECK_PASSES + BATCHED_PASSES as u64).for_each(|_| meter.learn(2, 2, 0, 1.0));
        // A time after this many passes needs a second one to confirm it; together they outweigh the old times.
        for _ in 0..2 {
            assert!(meter.plain_pass_is_due(1, 0));
            meter.learn(1, 1, 0, 0.5);
        }
        assert!(!meter.plain_pass_is_due(1, 0));
        assert_eq!(meter.costs().pass(1, 0), 0.5);
    }
}
