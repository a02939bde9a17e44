//! What passes and drafts take on this machine, learned from those that are made anyway.
//!
//! Of all that decides what is drafted the engine alone reads a clock; here its times become the plain numbers of
//! [`Costs`]. Machines are noisy, and mostly in one direction: something else runs, and a pass takes twice its time. So
//! each width and each drafter is known by the median of its last times, a width of which there are few times is held
//! near its neighbours, and what was not measured for long is forgotten, so that a width that once met a bad moment is
//! tried again. When the whole machine becomes slower, all widths do: they are compared as if all had been measured at
//! one speed. Contexts are told apart by powers of two, as attention's part of a pass grows with them. Where passes of
//! as many rows read different amounts of the network, as those of experts do, what they read explains the rest
//! (`read`). A pass that had to pack experts first is no measure of others.
//!
//! Costs that are given and held stay as they are: then nothing here goes by the clock.
//! Left out: what is decided by costs ([`foretoken_speculation::choose`]), and where they are kept between runs.

mod packing;
mod read;
mod record;

use std::collections::BTreeMap;
use std::time::Duration;

use foretoken_model::Reading;
use foretoken_speculation::costs::Curve;
use foretoken_speculation::{Costs, DrafterCosts, Work};

use packing::Packing;
use read::{ByRead, Reads};
pub use record::{CostRecord, DrafterTime, WidthTime};

/// Times of which the median counts.
const TIMES: usize = 9;
/// With fewer times than this, what was found is held near what the neighbours say, which count as so many times: of
/// many widths that were tried once, the one that met a good moment would be chosen.
const TIMES_SURE: usize = 3;
/// As near as this, up or down.
const NEAR: f64 = 1.5;
/// Passes by which the machine's present speed is judged.
const SLOWNESS_TIMES: usize = 5;
/// A machine is hardly ever slower or faster than usual by more; what differs by more was not usual.
const SLOWNESS_MAX: f64 = 2.0;
/// Times older than so many passes are forgotten, whatever they were: a width that looks too dear is not run again, and
/// a drafter that looks too slow is not asked again, so nothing else could correct them.
const AGE_MAX: u64 = 1024;
/// Those of a width that is not sure are forgotten after so many: it may have met one bad moment. After so many passes
/// without a plain one such a pass is made for its time.
const AGE_MAX_UNSURE: u64 = 256;
/// After the first passes so many are learned together: what runs once a pass finds neither its code nor its numbers in
/// the cache, which would take a hundredth of a small model's pass.
const TOGETHER: usize = 16;
/// The first passes, which are learned one by one.
const FIRST: u64 = 64;
/// Contexts shorter than this are not told apart.
const CONTEXT_MIN: usize = 512;
/// Part of a pass that reads which is for the tokens that it reads, however few they are.
const READING_MIN: f64 = 0.05;
/// Passes of more rows than this are told apart by 64 rows.
const WIDE: usize = 128;
/// A drafter's network that reads more tokens of a text than this for each sequence is catching up.
const READ_MAX: f64 = 4.0;

/// A pass that was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    /// Its rows, all sequences together.
    pub(crate) rows: usize,
    /// Those of them whose outputs were wanted.
    pub(crate) wanted: usize,
    /// What it took.
    pub(crate) seconds: f64,
    /// What it read of the network.
    pub(crate) read: Reading,
}

/// The last up to `N` numbers and their median.
#[derive(Clone, Debug, Default)]
struct Last<const N: usize> {
    numbers: Vec<f64>,
    next: usize,
    /// Of an even count the mean of the two in the middle, since the lesser of few looks too good.
    median: f64,
}

impl<const N: usize> Last<N> {
    fn add(&mut self, number: f64) {
        match self.numbers.len() < N {
            true => self.numbers.push(number),
            false => self.numbers[self.next] = number,
        }
        self.next = (self.next + 1) % N;
        let (mut sorted, len) = ([0.0; N], self.numbers.len());
        sorted[..len].copy_from_slice(&self.numbers);
        sorted[..len].sort_by(f64::total_cmp);
        self.median = (sorted[(len - 1) / 2] + sorted[len / 2]) / 2.0;
    }

    fn scale(&mut self, factor: f64) {
        self.numbers.iter_mut().for_each(|number| *number *= factor);
        self.median *= factor;
    }

    fn len(&self) -> usize {
        self.numbers.len()
    }

    fn median(&self) -> Option<f64> {
        (self.len() > 0).then_some(self.median)
    }
}

/// The last times of one thing, in seconds.
#[derive(Clone, Debug, Default)]
struct Times {
    last: Last<TIMES>,
    /// What each of these passes read; NaN where that is not known. Of drafters, always.
    reads: Last<TIMES>,
    /// When the last one was added.
    at: u64,
    /// They are of another context or of a prompt, until there is one of this.
    is_borrowed: bool,
    /// They were old when the last one came, which is to be confirmed.
    is_doubted: bool,
}

impl Times {
    fn add(&mut self, seconds: f64, now: u64) {
        self.add_pass(seconds, f64::NAN, now);
    }

    /// Adds a pass that read so much.
    fn add_pass(&mut self, seconds: f64, read: f64, now: u64) {
        if std::mem::take(&mut self.is_borrowed) {
            (self.last, self.reads) = Default::default();
        }
        let old = self.median().filter(|_| now - self.at >= AGE_MAX_UNSURE);
        if let Some(median) = old {
            // What was long ago is one opinion among others.
            let read = self.reads.median().unwrap_or(f64::NAN);
            (self.last, self.reads) = Default::default();
            self.push(median, read);
        }
        self.push(seconds, read);
        self.is_doubted = self.last.len() < TIMES_SURE && (self.is_doubted || old.is_some());
        self.at = now;
    }

    fn push(&mut self, seconds: f64, read: f64) {
        self.last.add(seconds);
        self.reads.add(read);
    }

    fn median(&self) -> Option<f64> {
        self.last.median()
    }

    fn is_sure(&self) -> bool {
        !self.is_borrowed && self.last.len() >= TIMES_SURE
    }
}

/// Times of one drafter.
#[derive(Clone, Debug, Default)]
struct DrafterTimes {
    call: Times,
    step: Times,
    catch_up: Times,
}

impl DrafterTimes {
    /// When it was last asked.
    fn at(&self) -> u64 {
        self.call.at.max(self.step.at).max(self.catch_up.at)
    }
}

/// What one call of a drafter did.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(crate) struct Call {
    /// Sequences that were drafted for.
    pub(crate) sequences: usize,
    /// Passes of its network; none of a drafter without one.
    pub(crate) passes: u64,
    /// Tokens of texts that these read.
    pub(crate) read: u64,
    /// What it took.
    pub(crate) seconds: f64,
}

impl Call {
    /// A call for so many sequences, from what the network had done before and after it.
    pub(crate) fn between(before: Work, after: Work, sequences: usize, time: Duration) -> Self {
        let (passes, read) = (after.passes.saturating_sub(before.passes), after.read.saturating_sub(before.read));
        Self { sequences, passes, read, seconds: time.as_secs_f64() }
    }

    /// What it should have taken, by what is known: plain numbers, whatever the clock said. Reading what the text
    /// became elsewhere happens once, and is weighed before.
    pub(crate) fn expected(&self, costs: DrafterCosts) -> f64 {
        self.sequences as f64 * (costs.call + self.passes as f64 * costs.step)
    }
}

/// Learns [`Costs`].
#[derive(Debug, Default)]
pub(crate) struct Meter {
    costs: Costs,
    is_held: bool,
    /// Passes so far, here and in the runs before.
    now: u64,
    /// Passes of the runs before.
    before: u64,
    /// How much slower than usual the machine is now: what all widths have in common.
    slowness: Slowness,
    /// Passes that are not learned yet, each with its context.
    made: Vec<(Made, usize)>,
    /// By the least context, then by rows; at the usual speed.
    passes: BTreeMap<usize, BTreeMap<usize, Times>>,
    reads: Reads,
    packing: Packing,
    /// What a pass's reading explains of its time, where it explains something.
    by_read: Option<ByRead>,
    drafters: Vec<DrafterTimes>,
}

impl Meter {
    pub(crate) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Whether costs stay as they are.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Whether a pass of about so many rows was ever measured or given, with a short context.
    pub(crate) fn knows_pass(&self, rows: usize) -> bool {
        let known = self.passes.values().next();
        self.is_held || known.is_some_and(|known| known.range(rows.div_ceil(2)..=rows + rows / 2).next().is_some())
    }

    /// Goes by these costs from now on, and learns nothing.
    pub(crate) fn hold(&mut self, costs: Costs) {
        *self = Self { costs: sound(costs), is_held: true, ..Self::default() };
    }

    /// Goes on from what an earlier run knew.
    pub(crate) fn resume(&mut self, record: &CostRecord) {
        let ages = record.widths.iter().map(|width| width.age).chain(record.drafters.iter().map(|drafter| drafter.age));
        // Younger than any number of passes that a program makes.
        let before = ages.max().unwrap_or(0).min(u64::from(u32::MAX));
        let mut meter = Self { costs: sound(record.costs()), now: before, before, ..Self::default() };
        for (costs, of) in meter.costs.drafters.iter_mut().zip(&record.drafters) {
            // Resting for so long may be a mistake: it is measured again.
            if of.age >= AGE_MAX {
                *costs = DrafterCosts::default();
            }
        }
        for width in record.widths.iter().filter(|width| width.is_sound()) {
            let known = meter.passes.entry(width.context_min).or_default();
            let times = known.entry(width.rows).or_default();
            // As sure as it was: how fast the machine is now is judged by widths that are known well, and by these are
            // then corrected those that this run does not meet.
            (times.last.len()..width.times.clamp(1, TIMES)).for_each(|_| times.push(width.seconds, f64::NAN));
            times.at = before - width.age.min(before);
        }
        let drafter = |(costs, of): (&DrafterCosts, &DrafterTime)| {
            let known = |seconds: f64| {
                let mut times = Times { at: before - of.age.min(before), ..Times::default() };
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

    /// What a later run may go on from: what is sure, and what was measured in this run.
    pub(crate) fn record(&self) -> CostRecord {
        let all =
            self.passes.iter().flat_map(|(context_min, known)| known.iter().map(move |each| (*context_min, each)));
        let kept = all.filter(|(_, (_, times))| times.is_sure() || !times.is_borrowed && times.at > self.before);
        let width = |(context_min, (rows, times)): (usize, (&usize, &Times))| {
            // At the present speed, all widths alike: there the next run begins.
            let (seconds, age) = (times.median()? * self.slowness.factor(), self.now - times.at);
            Some(WidthTime { context_min, rows: *rows, seconds, times: times.last.len(), age })
        };
        let drafters = self.costs.drafters.iter().zip(&self.drafters);
        let drafters = drafters.map(|(costs, times)| DrafterTime { costs: *costs, age: self.now - times.at() });
        CostRecord { widths: kept.filter_map(width).collect(), drafters: drafters.collect() }
    }

    /// Learns what a pass over so many tokens of context took, soon. One of which not all rows were wanted, as a
    /// prompt's, took less than others of its width: it counts only until there is another.
    pub(crate) fn learn_pass(&mut self, made: Made, context: usize) {
        if self.is_held || made.rows == 0 || !made.seconds.is_finite() || self.packing.is_unusual(made.rows, made.read)
        {
            return;
        }
        self.made.push((made, context));
        // What is hardly known, or was made to be known, is learned at once.
        let times = self.passes.get(&context_class(context)).and_then(|known| known.get(&width_class(made.rows)));
        let is_known = times.is_some_and(|times| times.is_sure() && self.now - times.at < AGE_MAX_UNSURE);
        if is_known && self.made.len() < TOGETHER && self.now - self.before >= FIRST {
            return;
        }
        let mut made = std::mem::take(&mut self.made);
        let mut contexts: Vec<usize> = Vec::new();
        for (made, context) in made.drain(..) {
            let context_min = context_class(context);
            self.note(made, context_min);
            if !contexts.contains(&context_min) {
                contexts.push(context_min);
            }
        }
        self.made = made;
        contexts.into_iter().for_each(|context_min| self.draw_curve(context_min));
    }

    /// Notes what a pass took.
    fn note(&mut self, made: Made, context_min: usize) {
        let Made { rows, wanted, seconds, read } = made;
        // What a pass takes that is much wider than a strip of rows goes with its rows, not with their class.
        let seconds = if rows > WIDE { seconds * width_class(rows) as f64 / rows as f64 } else { seconds };
        self.now += 1;
        self.doubt_drafters();
        if !self.passes.contains_key(&context_min) {
            // A context that is new costs what its nearest neighbour does, until it is measured.
            let nearest = self.passes.iter().min_by_key(|(other, _)| other.abs_diff(context_min));
            let mut known = nearest.map_or(BTreeMap::new(), |(_, known)| known.clone());
            known.values_mut().for_each(|times| times.is_borrowed = true);
            self.passes.insert(context_min, known);
        }
        let (now, known) = (self.now, self.passes.entry(context_min).or_default());
        let times = known.entry(width_class(rows)).or_default();
        if wanted < rows {
            let is_new = times.last.len() == 0 || times.is_borrowed;
            if is_new {
                times.add(seconds / self.slowness.factor(), now);
                times.is_borrowed = true;
            }
        } else {
            let read = Reads::amount(read);
            // Only of a width that is known well can be said what is usual: the first passes of a run meet cold caches.
            let is_known = times.last.len() == TIMES && !times.is_borrowed;
            let usual = self.by_read.and_then(|by_read| by_read.seconds(times, read)).or(times.median());
            if let Some(usual) = usual.filter(|_| is_known) {
                self.slowness.0.add((seconds / usual).clamp(1.0 / SLOWNESS_MAX, SLOWNESS_MAX));
            }
            let seconds = seconds / self.slowness.factor();
            times.add_pass(seconds, read, now);
            self.reads.note((context_min, width_class(rows)), seconds, read);
        }
    }

    /// Forgets what is old, and makes the curve of a context anew.
    fn draw_curve(&mut self, context_min: usize) {
        self.by_read = self.reads.explain(&self.passes);
        let (now, known) = (self.now, self.passes.entry(context_min).or_default());
        let age_max = |times: &Times| if times.is_sure() || times.is_borrowed { AGE_MAX } else { AGE_MAX_UNSURE };
        known.retain(|rows, times| *rows == 1 || now - times.at < age_max(times));
        let points = points(known, self.by_read, self.slowness.factor());
        match self.costs.curves.iter_mut().find(|curve| curve.context_min == context_min) {
            Some(curve) => *curve = Curve::new(context_min, points),
            None => {
                self.costs.curves.push(Curve::new(context_min, points));
                self.costs.curves.sort_by_key(|curve| curve.context_min);
            }
        }
    }

    /// Makes drafters that were not asked for long look half as dear, so that they are tried again before long,
    /// whatever they looked like. The trial says what they take.
    fn doubt_drafters(&mut self) {
        for (times, costs) in self.drafters.iter_mut().zip(&mut self.costs.drafters) {
            let age = self.now - times.at();
            if age > 0 && age.is_multiple_of(AGE_MAX) {
                let times = [&mut times.call, &mut times.step, &mut times.catch_up];
                times.into_iter().for_each(|times| times.last.scale(0.5));
                let costs = [&mut costs.call, &mut costs.step, &mut costs.catch_up];
                costs.into_iter().for_each(|seconds| *seconds *= 0.5);
            }
        }
    }

    /// Whether a pass of just these rows is to be made for its time: there never was one, or none among many passes.
    pub(crate) fn plain_is_due(&self, rows: usize, context: usize) -> bool {
        let times = self.passes.get(&context_class(context)).and_then(|known| known.get(&width_class(rows)));
        !self.is_held
            && times.is_none_or(|times| times.is_borrowed || times.is_doubted || self.now - times.at >= AGE_MAX_UNSURE)
    }

    /// Learns what a drafter took.
    pub(crate) fn learn_call(&mut self, drafter: u8, call: Call) {
        let Call { sequences, passes, read, seconds } = call;
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
            times.call.add(seconds / sequences as f64, self.now);
            costs.call = times.call.median().unwrap_or_default();
        } else if read as f64 <= READ_MAX * sequences as f64 {
            times.step.add(seconds / (passes as f64 * sequences as f64), self.now);
            costs.step = times.step.median().unwrap_or_default();
        } else {
            // Whatever it read, no step took longer than this. (A drafter that looks too dear rests, and whenever it is
            // tried it has much to read.)
            let most = seconds / (passes as f64 * sequences as f64);
            if most < costs.step {
                times.step.add(most, self.now);
                costs.step = times.step.median().unwrap_or_default();
            }
            let steps = passes as f64 * sequences as f64 * costs.step;
            // Where a step was never measured, reading is all that is known; it is no dearer than this.
            // Reading is never free, which would look as if it had not been measured.
            times.catch_up.add((seconds - steps).max(READING_MIN * seconds) / read as f64, self.now);
            costs.catch_up = times.catch_up.median().unwrap_or_default();
        }
    }
}

/// A factor that all times have in common now, 1 in the hour in which they were first measured.
///
/// It is the median of few passes, each next to what its width usually takes: so it follows before the widths' own
/// medians do, which then stay what they were.
#[derive(Clone, Debug, Default)]
struct Slowness(Last<SLOWNESS_TIMES>);

impl Slowness {
    fn factor(&self) -> f64 {
        self.0.median().filter(|_| self.0.len() == SLOWNESS_TIMES).unwrap_or(1.0)
    }
}

/// Costs without what no clock says: no empty curves, contexts ascend, and all times are numbers above 0.
fn sound(mut costs: Costs) -> Costs {
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

/// The least context of those that are measured together.
fn context_class(context: usize) -> usize {
    if context < CONTEXT_MIN { 0 } else { 1 << context.ilog2() }
}

/// The width under which a pass is noted: all narrow ones by themselves.
fn width_class(rows: usize) -> usize {
    match rows {
        0..=32 => rows,
        33..=WIDE => rows.next_multiple_of(8),
        _ => rows.next_multiple_of(64),
    }
}

/// The measured widths with their medians, times the slowness; those of few times held near the line between those of
/// more. Where reading explains something, as if each had read what is expected of it now, and with what is expected of
/// widths between them.
fn points(known: &BTreeMap<usize, Times>, by_read: Option<ByRead>, slowness: f64) -> Vec<(usize, f64)> {
    let count = |times: &Times| if times.is_borrowed { 0 } else { times.last.len() };
    let median = |rows: usize, times: &Times| match by_read {
        Some(by_read) => by_read.seconds(times, by_read.expected(rows)),
        None => times.median(),
    };
    let all = known.iter().filter_map(|(rows, times)| Some((*rows, count(times), median(*rows, times)?)));
    let all: Vec<(usize, usize, f64)> = all.collect();
    let sure = all.iter().filter(|(_, count, _)| *count >= TIMES_SURE).map(|(rows, _, seconds)| (*rows, *seconds));
    let sure = Costs { curves: vec![Curve::new(0, sure.collect())], drafters: Vec::new() };
    let ends = (sure.curves[0].points().first(), sure.curves[0].points().last());
    let (first, last) = (ends.0.map_or(usize::MAX, |point| point.0), ends.1.map_or(0, |point| point.0));
    let held = |&(rows, count, seconds): &(usize, usize, f64)| {
        let near = sure.pass(rows, 0);
        // Beyond the widths that are known well there is no line, only a guess that nobody could correct.
        let between = rows > first && rows < last;
        let (found, own) = (seconds.clamp(near / NEAR, near * NEAR), count as f64);
        let few = (found * own + near * TIMES_SURE as f64) / (own + TIMES_SURE as f64);
        (rows, slowness * if between && count < TIMES_SURE { few } else { seconds })
    };
    let points: Vec<(usize, f64)> = all.iter().map(held).collect();
    match by_read {
        Some(by_read) => by_read.between(&points, slowness),
        None => points,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Meter {
        fn learn(&mut self, rows: usize, wanted: usize, context: usize, seconds: f64) {
            self.learn_pass(Made { rows, wanted, seconds, read: Reading::default() }, context);
        }
    }

    #[test]
    fn a_bad_moment_is_no_cost_and_a_slower_hour_is() {
        let mut meter = Meter::default();
        for i in 0..60 {
            let slow = if i % 5 == 0 { 7.0 } else { 1.0 };
            meter.learn(1, 1, 40, 0.010 * slow);
            meter.learn(8, 8, 40, 0.013 * slow);
        }
        assert_eq!((meter.costs().pass(1, 0), meter.costs().pass(8, 100)), (0.010, 0.013));
        (0..TIMES).for_each(|_| meter.learn(1, 1, 40, 0.020));
        assert_eq!(meter.costs().pass(1, 0), 0.020);
    }

    #[test]
    fn a_wide_pass_takes_no_less_for_being_counted_with_wider_ones() {
        let mut meter = Meter::default();
        meter.learn(130, 3, 40, 0.130);
        assert!((meter.costs().pass(192, 0) - 0.192).abs() < 1e-9);
    }

    #[test]
    fn what_no_clock_says_is_left_out_of_given_costs() {
        let points = vec![(8, 2.0), (1, 1.0), (8, 3.0), (0, 1.0), (4, f64::NAN), (5, 0.0), (6, -1.0)];
        let curves = vec![Curve::new(0, points), Curve::new(9, Vec::new())];
        let drafters = vec![DrafterCosts { call: f64::INFINITY, step: -1.0, catch_up: 0.5 }];
        let mut meter = Meter::default();
        meter.hold(Costs { curves, drafters });
        assert_eq!(meter.costs().curves, [Curve::new(0, vec![(1, 1.0), (8, 2.0)])]);
        assert_eq!(meter.costs().drafters, [DrafterCosts { call: 0.0, step: 0.0, catch_up: 0.5 }]);
    }

    #[test]
    fn beyond_what_is_known_well_a_single_time_is_believed() {
        let mut meter = Meter::default();
        meter.learn(32, 32, 0, 0.040);
        for _ in 0..TIMES_SURE {
            meter.learn(1, 1, 0, 0.010);
            meter.learn(2, 2, 0, 0.010);
        }
        assert_eq!(meter.costs().pass(32, 0), 0.040);
    }

    #[test]
    fn a_width_that_was_measured_in_a_faster_hour_is_no_cheaper() {
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
    fn a_cold_beginning_makes_no_other_width_look_dear() {
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
    fn one_time_of_a_width_is_held_near_its_neighbours() {
        let mut meter = Meter::default();
        for _ in 0..TIMES_SURE {
            meter.learn(1, 1, 0, 0.010);
            meter.learn(8, 8, 0, 0.0135);
        }
        meter.learn(4, 4, 0, 0.100);
        let found = meter.costs().pass(4, 0);
        // Half as much again as the line says, a fourth of which is believed.
        assert!((found - 1.125 * 0.0115).abs() < 1e-9, "{found}");
        (0..3).for_each(|_| meter.learn(4, 4, 0, 0.0125));
        assert_eq!(meter.costs().pass(4, 0), 0.0125);
    }

    #[test]
    fn longer_contexts_have_times_of_their_own() {
        let mut meter = Meter::default();
        meter.learn(1, 1, 100, 0.010);
        meter.learn(8, 8, 100, 0.012);
        meter.learn(1, 1, 3000, 0.015);
        assert_eq!((meter.costs().pass(1, 4000), meter.costs().pass(1, 500)), (0.015, 0.010));
        // What was not measured there is not cheaper than what was.
        assert_eq!(meter.costs().pass(8, 4000), 0.015);
    }

    #[test]
    fn steps_reading_and_calls_are_told_apart() {
        let mut meter = Meter::default();
        meter.learn_call(2, Call { sequences: 2, passes: 5, read: 4, seconds: 0.010 });
        meter.learn_call(2, Call { sequences: 1, passes: 3, read: 100, seconds: 0.013 });
        meter.learn_call(0, Call { sequences: 4, passes: 0, read: 0, seconds: 0.0004 });
        let costs = meter.costs();
        assert!((costs.drafter(2).step - 0.001).abs() < 1e-12);
        assert!((costs.drafter(2).catch_up - 0.0001).abs() < 1e-12);
        assert!((costs.drafter(0).call - 0.0001).abs() < 1e-12);
        assert_eq!(costs.drafter(1), DrafterCosts::default());
    }

    #[test]
    fn held_costs_stay_and_others_are_a_beginning() {
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
            (0..9).for_each(|_| meter.learn_call(0, Call { sequences: 1, passes: 1, read: 1, seconds: 0.7 }));
        }
        assert_eq!(held.costs(), &costs);
        assert_eq!((begun.costs().pass(8, 0), begun.costs().pass(1, 0)), (3.0, 1.0));
        assert_eq!(begun.costs().drafter(0), DrafterCosts { call: 0.0, step: 0.7, catch_up: 0.1 });
    }

    #[test]
    fn widths_that_no_pass_can_have_are_not_resumed() {
        let most = record::ROWS_MAX;
        let width = |rows, seconds| WidthTime { context_min: 0, rows, seconds, times: 9, age: 0 };
        let widths = vec![width(1, 1.0), width(usize::MAX, 2.0), width(most + 1, 2.0), width(8, f64::NAN)];
        let mut meter = Meter::default();
        meter.resume(&CostRecord { widths, drafters: Vec::new() });
        let rows: Vec<usize> = meter.record().widths.iter().map(|width| width.rows).collect();
        assert_eq!(rows, [1]);
    }

    #[test]
    fn what_was_found_once_is_kept_by_the_run_that_found_it_alone() {
        let mut meter = Meter::default();
        (0..TIMES_SURE).for_each(|_| meter.learn(1, 1, 0, 1.0));
        meter.learn(2, 2, 0, 30.0);
        let first = meter.record();
        let seconds = |record: &CostRecord| record.widths.iter().map(|width| width.seconds).collect::<Vec<_>>();
        assert_eq!(seconds(&first), [1.0, 30.0]);
        let mut next = Meter::default();
        next.resume(&first);
        assert!(next.costs().pass(2, 0) > 1.0);
        next.learn(1, 1, 0, 1.0);
        assert_eq!(seconds(&next.record()), [1.0]);
        // And within one run it is forgotten soon.
        (0..AGE_MAX_UNSURE + TOGETHER as u64).for_each(|_| meter.learn(1, 1, 0, 1.0));
        assert_eq!(meter.costs().pass(2, 0), 1.0);
    }

    #[test]
    fn a_prompt_tells_what_a_width_takes_until_a_tree_does() {
        let mut meter = Meter::default();
        meter.learn(1, 1, 0, 1.0);
        meter.learn(20, 1, 0, 2.0);
        assert_eq!(meter.costs().pass(20, 0), 2.0);
        meter.learn(20, 20, 0, 3.0);
        meter.learn(20, 1, 0, 2.0);
        assert_eq!(meter.costs().pass(20, 0), 3.0);
    }

    #[test]
    fn a_step_that_looked_too_dear_is_corrected_by_a_call_that_read_much() {
        let mut meter = Meter::default();
        meter.learn_call(0, Call { sequences: 1, passes: 4, read: 1, seconds: 4.0 });
        for _ in 0..4 {
            meter.learn_call(0, Call { sequences: 1, passes: 1, read: 50, seconds: 0.2 });
        }
        assert!((meter.costs().drafter(0).step - 0.2).abs() < 1e-12, "{:?}", meter.costs());
    }

    #[test]
    fn what_is_believed_is_the_same_after_many_runs_and_what_is_wrong_is_forgotten() {
        let width = |rows, seconds| WidthTime { context_min: 0, rows, seconds, times: 9, age: 0 };
        let costs = DrafterCosts { step: 100.0, ..DrafterCosts::default() };
        let drafters = vec![DrafterTime { costs, age: 0 }];
        let mut record = CostRecord { widths: vec![width(1, 1.0), width(8, 9.0), width(16, 3.0)], drafters };
        for run in 0..9 {
            let mut meter = Meter::default();
            meter.resume(&record);
            // Every run begins cold, with passes that are slow at first.
            for i in 0..AGE_MAX / 4 {
                meter.learn(1, 1, 0, if i < 20 { 1.8 } else { 1.0 });
            }
            record = meter.record();
            let rows: Vec<usize> = record.widths.iter().map(|width| width.rows).collect();
            assert_eq!(rows, if run < 3 { vec![1, 8, 16] } else { vec![1] }, "{run}");
            let found = [meter.costs().pass(1, 0), record.widths[rows.len() - 1].seconds];
            assert_eq!(found, if run < 3 { [1.0, 3.0] } else { [1.0, 1.0] }, "{run}");
        }
        // After a thousand passes without a call it is to be measured again.
        assert_eq!(record.drafters[0].costs.step, 0.0);
    }

    #[test]
    fn a_plain_pass_that_was_due_is_not_due_again_when_it_was_made() {
        let mut meter = Meter::default();
        (0..FIRST + 100).for_each(|_| meter.learn(1, 1, 0, 1.0));
        for (rows, context) in [(3, 0), (1, 600), (7, 600)] {
            assert!(meter.plain_is_due(rows, context));
            meter.learn(rows, rows, context, 1.0);
            assert!(!meter.plain_is_due(rows, context), "{rows} rows, context {context}");
        }
        (0..AGE_MAX_UNSURE + TOGETHER as u64).for_each(|_| meter.learn(2, 2, 0, 1.0));
        // What is found after so long is confirmed once, and counts for more than what was long ago.
        for _ in 0..2 {
            assert!(meter.plain_is_due(1, 0));
            meter.learn(1, 1, 0, 0.5);
        }
        assert!(!meter.plain_is_due(1, 0));
        assert_eq!(meter.costs().pass(1, 0), 0.5);
    }
}
