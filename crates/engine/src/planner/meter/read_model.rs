//! A model of a pass's time by the weights that it reads, besides its rows.
//!
//! Passes of equal width through a network of experts read more or less of it, since their rows choose different or the
//! same experts. The model is a robust regression: each of the latest passes is compared with the medians of its width,
//! and the *slope*, the seconds of another byte (or expert), is the weighted median of the ratios of the two
//! deviations. It is used if it explains a good part of the deviations of passes that it was not fitted to. The amount
//! that a pass reads, by its number of rows, is fitted to the latest passes of all widths: the first row reads some
//! amount, and each further one a constant fraction of what the one before it read, since more of it was read already.
//! So a width that has few times, or times from when rows read more or less than now, is still estimated.
//!
//! A network whose passes of a width all read the same has no slope, and the model is not used. Networks of drafters
//! have no such model, and it is not kept between runs, since a few dozen passes fit it again.

use std::collections::{BTreeMap, VecDeque};

use foretoken_model::WeightsRead;

use super::{Times, width_class};

/// The latest passes that the model is fitted to: enough for the statistics, few enough to follow a change.
const RECENT_PASSES: usize = 128;
/// Minimum number of passes that the slope is fitted to, of widths whose passes did not all read the same: each half is
/// tested on the other.
const JUDGED_PASSES_MIN: usize = 24;
/// The slope is used if it reduces the median deviation of passes from their widths to at most this fraction.
const RESIDUAL_PART_MAX: f64 = 0.7;
/// Amounts that differ by a smaller fraction count as equal: this is only rounding.
const SAME_PART: f64 = 1e-6;
/// The number of decays that are compared: from 0, where the second row reads all the rest, to nearly 1, where every
/// row reads as much as the one before.
const DECAYS: i32 = 40;
/// The n-th decay is 1 minus this to the power of n, so that they are closest near 1.
const DECAY_BASE: f64 = 0.85;
/// A decay whose distance is at most this times the least one fits as well as the best.
const DISTANCE_RATIO_MAX: f64 = 1.05;

/// A pass whose amount of weights read is known.
#[derive(Clone, Copy, Debug)]
struct ReadSample {
    /// The classes of its context and its width.
    class: (usize, usize),
    /// At the usual speed of the machine.
    seconds: f64,
    /// Bytes or experts.
    read: f64,
}

/// The amounts that the latest passes read.
#[derive(Debug, Default)]
pub(super) struct RecentReads {
    recent: VecDeque<ReadSample>,
    /// Seconds of a byte or an expert, if it explains enough.
    slope: Option<f64>,
}

/// The fitted model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ReadModel {
    /// Seconds of a byte or an expert, at the usual speed of the machine.
    slope: f64,
    /// What a pass of one row reads.
    first_row: f64,
    /// What all further rows together can add.
    further_rows: f64,
    /// Fraction of a row's addition that the next row adds.
    decay: f64,
}

impl RecentReads {
    /// The amount that a pass read as a number, NaN if unknown.
    pub(super) fn amount(read: WeightsRead) -> f64 {
        // Experts may be of different sizes, so bytes are preferred.
        match if read.bytes > 0 { read.bytes } else { read.experts } {
            0 => f64::NAN,
            amount => amount as f64,
        }
    }

    /// Adds a pass of this context and width that took this many seconds, at the usual speed, and read this much.
    pub(super) fn note(&mut self, class: (usize, usize), seconds: f64, read: f64) {
        if read.is_nan() {
            return;
        }
        if self.recent.len() == RECENT_PASSES {
            self.recent.pop_front();
        }
        self.recent.push_back(ReadSample { class, seconds, read });
    }

    /// Fits the model to the latest passes; `None` if it does not explain enough. `passes`: by context and width.
    pub(super) fn fit(&mut self, passes: &BTreeMap<usize, BTreeMap<usize, Times>>) -> Option<ReadModel> {
        let deviations = self.deviations();
        // With too few deviations the slope stays: passes may read equal amounts for a while.
        if deviations.len() >= JUDGED_PASSES_MIN {
            // The slope of each half is tested on the other.
            let slopes = [0, 1].map(|half| slope(deviations.iter().skip(half).step_by(2)));
            let residual = |(at, (seconds, read)): (usize, &(f64, f64))| (seconds - slopes[1 - at % 2] * read).abs();
            let median = |distances: Vec<f64>| median(distances).unwrap_or(0.0);
            let without = median(deviations.iter().map(|(seconds, _)| seconds.abs()).collect());
            let with = median(deviations.iter().enumerate().map(residual).collect());
            self.slope =
                Some(slope(deviations.iter())).filter(|slope| *slope > 0.0 && with <= RESIDUAL_PART_MAX * without);
        }
        let slope = self.slope?;
        let mut all = passes.values().filter_map(|known| known.get(&1)).filter_map(|times| times.reads.median());
        self.fit_widths(slope, all.rfind(|read| read.is_finite())?)
    }

    /// Deviations of the latest passes from the medians of their widths, in seconds and in amounts read, for widths
    /// whose passes did not all read the same.
    fn deviations(&self) -> Vec<(f64, f64)> {
        let mut by_class: BTreeMap<(usize, usize), Vec<&ReadSample>> = BTreeMap::new();
        self.recent.iter().for_each(|sample| by_class.entry(sample.class).or_default().push(sample));
        let mut deviations = Vec::new();
        for all in by_class.values() {
            let reads = || all.iter().map(|sample| sample.read);
            let (least, most) = (reads().fold(f64::INFINITY, f64::min), reads().fold(0.0, f64::max));
            if most - least <= SAME_PART * most {
                continue;
            }
            let middle = (median(all.iter().map(|sample| sample.seconds).collect()), median(reads().collect()));
            let (Some(seconds), Some(read)) = middle else { continue };
            deviations.extend(all.iter().map(|sample| (sample.seconds - seconds, sample.read - read)));
        }
        deviations
    }

    /// Fits the amounts that widths read to the latest passes, given the amount of one row.
    fn fit_widths(&self, slope: f64, first: f64) -> Option<ReadModel> {
        let wider = || self.recent.iter().map(|sample| (sample.class.1, sample.read)).filter(|(rows, _)| *rows > 1);
        let model = |number: i32| {
            let decay = 1.0 - DECAY_BASE.powi(number);
            // The fraction of all that further rows can add which this many rows reach.
            let reached = |rows: usize| 1.0 - decay.powf(rows as f64 - 1.0);
            let mut estimates: Vec<(f64, f64)> =
                wider().map(|(rows, read)| ((read - first) / reached(rows), reached(rows))).collect();
            let further = weighted_median(&mut estimates)?.max(0.0);
            let distance: f64 = wider().map(|(rows, read)| (read - first - further * reached(rows)).abs()).sum();
            Some((distance, ReadModel { slope, first_row: first, further_rows: further, decay }))
        };
        let all: Vec<(f64, ReadModel)> = (0..DECAYS).filter_map(model).collect();
        let least = all.iter().map(|(distance, _)| *distance).fold(f64::INFINITY, f64::min);
        // A single width fits any decay. Then the one is taken in which the second row adds the same fraction of the
        // first as the third of the second, as if rows chose experts by chance.
        let mismatch = |model: &ReadModel| (model.further_rows * (1.0 - model.decay) - first * model.decay).abs();
        let good =
            all.into_iter().filter(|(distance, _)| *distance <= DISTANCE_RATIO_MAX * least).map(|(_, model)| model);
        good.min_by(|a, b| mismatch(a).total_cmp(&mismatch(b)))
    }
}

impl ReadModel {
    /// The amount that a pass of this many rows is expected to read.
    pub(super) fn expected(&self, rows: usize) -> f64 {
        self.first_row + self.further_rows * (1.0 - self.decay.powf(rows.max(1) as f64 - 1.0))
    }

    /// The median time of passes of a width, at the usual speed, corrected as if each had read this much.
    pub(super) fn seconds(&self, times: &Times, read: f64) -> Option<f64> {
        let samples = times.seconds.numbers.iter().zip(&times.reads.numbers);
        // A pass whose amount is unknown is assumed to have read as much.
        let more = |found: f64| if (read - found).is_finite() { self.slope * (read - found) } else { 0.0 };
        // Times stay above 0, however little was read.
        let mut seconds: Vec<(f64, f64)> =
            samples.map(|(seconds, found)| ((seconds + more(*found)).max(SAME_PART * seconds), 1.0)).collect();
        weighted_median(&mut seconds)
    }

    /// Fills in the widths between the points of a curve: the time of reading by the model, the rest of the time by the
    /// line between the neighbours.
    pub(super) fn interpolate(&self, points: &[(usize, f64)], slowness: f64) -> Vec<(usize, f64)> {
        let read = |rows: usize| slowness * self.slope * self.expected(rows);
        let mut all: Vec<(usize, f64)> = points.first().copied().into_iter().collect();
        for pair in points.windows(2) {
            let [(from, first), (to, last)] = [pair[0], pair[1]].map(|(rows, seconds)| (rows, seconds - read(rows)));
            for rows in (from + 1..to).filter(|rows| width_class(*rows) == *rows) {
                let fraction = (rows - from) as f64 / (to - from) as f64;
                all.push((rows, first + (last - first) * fraction + read(rows)));
            }
            all.push(pair[1]);
        }
        all
    }
}

/// The slope of deviations: the median of their ratios, each weighted by the deviation of its amount.
fn slope<'a>(deviations: impl Iterator<Item = &'a (f64, f64)>) -> f64 {
    weighted_median(&mut deviations.map(|(seconds, read)| (seconds / read, read.abs())).collect()).unwrap_or(0.0)
}

fn median(numbers: Vec<f64>) -> Option<f64> {
    weighted_median(&mut numbers.into_iter().map(|number| (number, 1.0)).collect())
}

/// The weighted median: values below it weigh at most half, and so do those above; the mean of two if both qualify.
fn weighted_median(values: &mut Vec<(f64, f64)>) -> Option<f64> {
    values.retain(|(value, weight)| value.is_finite() && *weight > 0.0);
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = values.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut below = 0.0;
    for (at, (value, weight)) in values.iter().enumerate() {
        below += weight;
        if below == half && at + 1 < values.len() {
            return Some((value + values[at + 1].0) / 2.0);
        }
        if below >= half {
            return Some(*value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use foretoken_speculation::Costs;

    use super::super::{Meter, PassTiming};
    use super::*;

    /// Pseudo-random numbers between 0 and 1.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// The number of distinct experts of 16 that this many rows choose, four each.
    fn distinct(rows: usize, random: &mut Random) -> usize {
        let mut chosen = BTreeSet::new();
        for _ in 0..rows {
            let mut of_row = BTreeSet::new();
            while of_row.len() < 4 {
                of_row.insert((random.next() * 16.0) as usize);
            }
            chosen.append(&mut of_row);
        }
        chosen.len()
    }

    /// True seconds of a pass.
    fn seconds(rows: usize, experts: usize) -> f64 {
        0.002 + 0.0001 * rows as f64 + 0.0005 * experts as f64
    }

    fn learn(meter: &mut Meter, rows: usize, seconds: f64, read: WeightsRead) {
        meter.learn_pass(PassTiming { rows, wanted: rows, seconds, read }, 100);
    }

    /// A meter that learned this many passes, of these widths in turn, with up to 2 % noise.
    fn learned(widths: &[usize], passes: usize, read: impl Fn(usize) -> WeightsRead) -> Meter {
        let (mut meter, mut random) = (Meter::default(), Random(7));
        for rows in widths.iter().cycle().take(passes) {
            let experts = distinct(*rows, &mut random);
            let taken = seconds(*rows, experts) * (1.0 + 0.02 * random.next());
            learn(&mut meter, *rows, taken, read(experts));
        }
        meter
    }

    /// The relative error of the estimated time of a width.
    fn error(costs: &Costs, rows: usize) -> f64 {
        let mut random = Random(11);
        let mean = (0..400).map(|_| seconds(rows, distinct(rows, &mut random))).sum::<f64>() / 400.0;
        (costs.pass(rows, 100) - mean).abs() / mean
    }

    #[test]
    fn the_time_of_an_unmeasured_width_is_estimated_by_the_amount_that_it_reads() {
        let learned_from = |read: fn(usize) -> WeightsRead| learned(&[1, 8], 120, read);
        let by_rows = learned_from(|_| WeightsRead::default());
        for by_reads in [
            learned_from(|experts| WeightsRead { bytes: 0, experts, packed: 0 }),
            learned_from(|experts| WeightsRead { bytes: experts << 20, experts, packed: 0 }),
        ] {
            assert!(by_reads.read_model.is_some());
            for rows in [2, 3, 4, 5, 6, 8] {
                let found = [by_reads.costs(), by_rows.costs()].map(|costs| error(costs, rows));
                assert!(found[0] < 0.1, "{rows} rows: errors {found:?}");
            }
            // Times between one row and eight are not on a line.
            let errors = |meter: &Meter| [3, 4, 5].map(|rows| error(meter.costs(), rows)).iter().sum::<f64>();
            let found = [&by_reads, &by_rows].map(errors);
            assert!(found[0] < found[1] / 2.0, "errors of {}, and {} by rows alone", found[0], found[1]);
        }
    }

    #[test]
    fn equal_or_unrelated_amounts_do_not_change_costs() {
        let equal = learned(&[1, 2, 8], 200, |_| WeightsRead { bytes: 1 << 30, experts: 0, packed: 0 });
        let unknown = learned(&[1, 2, 8], 200, |_| WeightsRead::default());
        assert_eq!(equal.costs(), unknown.costs());
        assert_eq!(equal.record(), unknown.record());
        // Passes that read more but take no longer.
        let (mut unrelated, mut unknown, mut random) = (Meter::default(), Meter::default(), Random(3));
        for i in 0..600 {
            let (rows, taken) = ([1, 3, 8][i % 3], 0.010 * (1.0 + 0.1 * random.next()));
            let experts = distinct(rows, &mut random);
            learn(&mut unrelated, rows, taken, WeightsRead { bytes: 0, experts, packed: 0 });
            learn(&mut unknown, rows, taken, WeightsRead::default());
            assert_eq!(unrelated.costs(), unknown.costs(), "pass {i}");
        }
    }

    #[test]
    fn outliers_do_not_change_the_slope() {
        let (mut meter, mut random) = (Meter::default(), Random(5));
        for i in 0..300 {
            let rows = [1, 2, 4, 8][i % 4];
            let experts = distinct(rows, &mut random);
            let slow = if i % 11 == 0 { 3.0 } else { 1.0 };
            learn(&mut meter, rows, slow * seconds(rows, experts), WeightsRead { bytes: 0, experts, packed: 0 });
        }
        let read_model = meter.read_model.expect("a model, since the amount explains most of the time");
        assert!((read_model.slope - 0.0005).abs() < 0.0001, "{read_model:?}");
    }

    #[test]
    fn the_model_follows_a_change_of_the_amounts() {
        let mut meter = learned(&[1, 2, 4, 8], 200, |experts| WeightsRead { bytes: 0, experts, packed: 0 });
        let before = meter.costs().pass(8, 100);
        // From now on all rows choose the same experts. The width of eight is not run.
        for i in 0..RECENT_PASSES + 32 {
            let (rows, experts) = ([1, 2, 4][i % 3], 4);
            learn(&mut meter, rows, seconds(rows, experts), WeightsRead { bytes: 0, experts, packed: 0 });
        }
        let after = meter.costs().pass(8, 100);
        assert!(after < 0.6 * before, "{before} s and then {after} s, true: {} s", seconds(8, 4));
    }

    #[test]
    fn the_weighted_median_is_the_middle_by_weight() {
        let median = |values: &[(f64, f64)]| weighted_median(&mut values.to_vec());
        assert_eq!(median(&[(3.0, 1.0), (1.0, 1.0), (2.0, 1.0)]), Some(2.0));
        assert_eq!(median(&[(4.0, 1.0), (1.0, 1.0)]), Some(2.5));
        assert_eq!(median(&[(4.0, 3.0), (1.0, 1.0), (f64::NAN, 9.0)]), Some(4.0));
        assert_eq!(median(&[]), None);
    }
}
