//! What a pass read of the network, as one more coordinate of its time.
//!
//! Passes of as many rows through a network of experts read more or less of it, as their rows choose different experts
//! or the same. The idea: of the latest passes each is compared with the median of its width: what one more byte (or
//! expert) takes is the median of seconds over what was read, both beyond that. It is believed where it explains a good
//! part of what widths alone leave open, in passes that it was not found from. What a pass of so many rows is expected
//! to read comes from the latest passes of all widths: the first row reads so much, and each further one a constant
//! part of what the one before it read, since it finds more of it read already. So a width that was hardly measured, or
//! was when texts read more or less than they do now, has its time all the same.
//!
//! A network whose passes of a width all read the same shows no slope, and nothing here changes anything. Left out:
//! drafters' networks, and keeping what was found between runs: some dozen passes show it again.

use std::collections::{BTreeMap, VecDeque};

use foretoken_model::Reading;

use super::{Times, width_class};

/// Passes that say what is read now, and what that takes.
const RECENT: usize = 128;
/// With fewer passes than this, of widths of which not all read the same, nothing is judged.
const PASSES_MIN: usize = 24;
/// Of what widths alone leave open, as the median distance of passes, no more than this may be left.
const LEFT_MAX: f64 = 0.7;
/// Amounts that differ by a smaller part count as the same.
const SAME: f64 = 1e-6;
/// Parts of a row's reading that the next row reads, of which the best is taken: so many, from 0, where all is read at
/// once, to nearly 1, where every row reads its own.
const PARTS: i32 = 40;
/// Parts that explain what was read as well as the best but for this are as good.
const AS_GOOD: f64 = 1.05;

/// A pass that said what it read.
#[derive(Clone, Copy, Debug)]
struct Said {
    /// The least context and the width under which it was noted.
    class: (usize, usize),
    /// At the usual speed.
    seconds: f64,
    read: f64,
}

/// What the latest passes read.
#[derive(Debug, Default)]
pub(super) struct Reads {
    recent: VecDeque<Said>,
    /// Seconds of a byte or an expert, as long as that explains something.
    slope: Option<f64>,
}

/// What reading explains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ByRead {
    /// Seconds of a byte or an expert, at the usual speed.
    slope: f64,
    /// What a row alone reads.
    first: f64,
    /// What all further rows could add.
    further: f64,
    /// Part of a row's reading that the next one reads.
    part: f64,
}

impl Reads {
    /// What a pass read as a number, NaN if nothing is said of it.
    pub(super) fn amount(read: Reading) -> f64 {
        // Experts may be of different sizes, so bytes say more.
        match if read.bytes > 0 { read.bytes } else { read.experts } {
            0 => f64::NAN,
            amount => amount as f64,
        }
    }

    /// Notes a pass of this context and width that took so many seconds, at the usual speed, and read so much.
    pub(super) fn note(&mut self, class: (usize, usize), seconds: f64, read: f64) {
        if read.is_nan() {
            return;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Said { class, seconds, read });
    }

    /// What reading explains of the times of passes, by context and width; `None` if it is not more than their rows do.
    pub(super) fn explain(&mut self, passes: &BTreeMap<usize, BTreeMap<usize, Times>>) -> Option<ByRead> {
        let beyond = self.beyond_medians();
        // What is too little to be judged changes no mind: texts may read the same for a while.
        if beyond.len() >= PASSES_MIN {
            // Each half is judged by what was found from the other.
            let slopes = [0, 1].map(|half| slope(beyond.iter().skip(half).step_by(2)));
            let left = |(at, (seconds, read)): (usize, &(f64, f64))| (seconds - slopes[1 - at % 2] * read).abs();
            let median = |distances: Vec<f64>| median(distances).unwrap_or(0.0);
            let alone = median(beyond.iter().map(|(seconds, _)| seconds.abs()).collect());
            let left = median(beyond.iter().enumerate().map(left).collect());
            self.slope = Some(slope(beyond.iter())).filter(|slope| *slope > 0.0 && left <= LEFT_MAX * alone);
        }
        let slope = self.slope?;
        let mut all = passes.values().filter_map(|known| known.get(&1)).filter_map(|times| times.reads.median());
        self.expect(slope, all.rfind(|read| read.is_finite())?)
    }

    /// Seconds and reading of the latest passes beyond the medians of their widths, of those that did not all read the
    /// same.
    fn beyond_medians(&self) -> Vec<(f64, f64)> {
        let mut by_class: BTreeMap<(usize, usize), Vec<&Said>> = BTreeMap::new();
        self.recent.iter().for_each(|said| by_class.entry(said.class).or_default().push(said));
        let mut beyond = Vec::new();
        for all in by_class.values() {
            let reads = || all.iter().map(|said| said.read);
            let (least, most) = (reads().fold(f64::INFINITY, f64::min), reads().fold(0.0, f64::max));
            if most - least <= SAME * most {
                continue;
            }
            let middle = (median(all.iter().map(|said| said.seconds).collect()), median(reads().collect()));
            let (Some(seconds), Some(read)) = middle else { continue };
            beyond.extend(all.iter().map(|said| (said.seconds - seconds, said.read - read)));
        }
        beyond
    }

    /// What is expected of widths, by the latest passes, where a row alone reads so much.
    fn expect(&self, slope: f64, first: f64) -> Option<ByRead> {
        let wider = || self.recent.iter().map(|said| (said.class.1, said.read)).filter(|(rows, _)| *rows > 1);
        let of_part = |number: i32| {
            let part = 1.0 - 0.85f64.powi(number);
            // Of all that further rows could add so many parts are read.
            let parts = |rows: usize| 1.0 - part.powf(rows as f64 - 1.0);
            let mut of_all: Vec<(f64, f64)> =
                wider().map(|(rows, read)| ((read - first) / parts(rows), parts(rows))).collect();
            let further = weighted_median(&mut of_all)?.max(0.0);
            let distance: f64 = wider().map(|(rows, read)| (read - first - further * parts(rows)).abs()).sum();
            Some((distance, ByRead { slope, first, further, part }))
        };
        let all: Vec<(f64, ByRead)> = (0..PARTS).filter_map(of_part).collect();
        let least = all.iter().map(|(distance, _)| *distance).fold(f64::INFINITY, f64::min);
        // One width alone fits any part. Then that in which the second row reads the same part of the first as the
        // third of the second, as where rows choose by chance.
        let odd = |by_read: &ByRead| (by_read.further * (1.0 - by_read.part) - first * by_read.part).abs();
        let good = all.into_iter().filter(|(distance, _)| *distance <= AS_GOOD * least).map(|(_, by_read)| by_read);
        good.min_by(|a, b| odd(a).total_cmp(&odd(b)))
    }
}

impl ByRead {
    /// What a pass of so many rows is expected to read.
    pub(super) fn expected(&self, rows: usize) -> f64 {
        self.first + self.further * (1.0 - self.part.powf(rows.max(1) as f64 - 1.0))
    }

    /// What passes of a width would take, at the usual speed, had each of them read so much: their median.
    pub(super) fn seconds(&self, times: &Times, read: f64) -> Option<f64> {
        let known = times.last.numbers.iter().zip(&times.reads.numbers);
        // Of what is not known it is taken to be what is expected.
        let more = |found: f64| if (read - found).is_finite() { self.slope * (read - found) } else { 0.0 };
        // More than nothing, however little was read.
        let mut seconds: Vec<(f64, f64)> =
            known.map(|(seconds, found)| ((seconds + more(*found)).max(SAME * seconds), 1.0)).collect();
        weighted_median(&mut seconds)
    }

    /// Points of a curve, and others between them: what is read lies on its own curve, the rest on the line between its
    /// neighbours.
    pub(super) fn between(&self, points: &[(usize, f64)], slowness: f64) -> Vec<(usize, f64)> {
        let read = |rows: usize| slowness * self.slope * self.expected(rows);
        let mut all: Vec<(usize, f64)> = points.first().copied().into_iter().collect();
        for pair in points.windows(2) {
            let [(from, first), (to, last)] = [pair[0], pair[1]].map(|(rows, seconds)| (rows, seconds - read(rows)));
            for rows in (from + 1..to).filter(|rows| width_class(*rows) == *rows) {
                let way = (rows - from) as f64 / (to - from) as f64;
                all.push((rows, first + (last - first) * way + read(rows)));
            }
            all.push(pair[1]);
        }
        all
    }
}

/// Seconds of what was read, of passes beyond their medians: the median, each counted by how much it read beyond.
fn slope<'a>(beyond: impl Iterator<Item = &'a (f64, f64)>) -> f64 {
    weighted_median(&mut beyond.map(|(seconds, read)| (seconds / read, read.abs())).collect()).unwrap_or(0.0)
}

fn median(numbers: Vec<f64>) -> Option<f64> {
    weighted_median(&mut numbers.into_iter().map(|number| (number, 1.0)).collect())
}

/// The value of which values below weigh at most half of all and those above too; of two the mean.
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

    use super::super::{Made, Meter};
    use super::*;

    /// Numbers from a seed, between 0 and 1.
    struct Dice(u64);

    impl Dice {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Distinct experts of 16 that so many rows choose, four each.
    fn distinct(rows: usize, dice: &mut Dice) -> usize {
        let mut chosen = BTreeSet::new();
        for _ in 0..rows {
            let mut of_row = BTreeSet::new();
            while of_row.len() < 4 {
                of_row.insert((dice.next() * 16.0) as usize);
            }
            chosen.append(&mut of_row);
        }
        chosen.len()
    }

    /// Seconds of a pass, without noise.
    fn seconds(rows: usize, experts: usize) -> f64 {
        0.002 + 0.0001 * rows as f64 + 0.0005 * experts as f64
    }

    fn learn(meter: &mut Meter, rows: usize, seconds: f64, read: Reading) {
        meter.learn_pass(Made { rows, wanted: rows, seconds, read }, 100);
    }

    /// A meter that learned so many passes, of widths in turn; noise is up to a fiftieth.
    fn learned(widths: &[usize], passes: usize, read: impl Fn(usize) -> Reading) -> Meter {
        let (mut meter, mut dice) = (Meter::default(), Dice(7));
        for rows in widths.iter().cycle().take(passes) {
            let experts = distinct(*rows, &mut dice);
            let taken = seconds(*rows, experts) * (1.0 + 0.02 * dice.next());
            learn(&mut meter, *rows, taken, read(experts));
        }
        meter
    }

    /// How far the expected time of a width is from what its passes take on average, as a part of that.
    fn error(costs: &Costs, rows: usize) -> f64 {
        let mut dice = Dice(11);
        let mean = (0..400).map(|_| seconds(rows, distinct(rows, &mut dice))).sum::<f64>() / 400.0;
        (costs.pass(rows, 100) - mean).abs() / mean
    }

    #[test]
    fn widths_that_were_never_run_have_their_time_by_what_they_are_expected_to_read() {
        let of = |read: fn(usize) -> Reading| learned(&[1, 8], 120, read);
        let silent = of(|_| Reading::default());
        for told in [
            of(|experts| Reading { bytes: 0, experts, packed: 0 }),
            of(|experts| Reading { bytes: experts << 20, experts, packed: 0 }),
        ] {
            assert!(told.by_read.is_some());
            for rows in [2, 3, 4, 5, 6, 8] {
                let found = [told.costs(), silent.costs()].map(|costs| error(costs, rows));
                assert!(found[0] < 0.1, "{rows} rows: off by {found:?}");
            }
            // Between one row and eight lies no line.
            let off = |meter: &Meter| [3, 4, 5].map(|rows| error(meter.costs(), rows)).iter().sum::<f64>();
            assert!(off(&told) < off(&silent) / 2.0, "off by {}, and {} by rows alone", off(&told), off(&silent));
        }
    }

    #[test]
    fn reading_that_is_the_same_or_explains_nothing_changes_nothing() {
        let steady = learned(&[1, 2, 8], 200, |_| Reading { bytes: 1 << 30, experts: 0, packed: 0 });
        let silent = learned(&[1, 2, 8], 200, |_| Reading::default());
        assert_eq!(steady.costs(), silent.costs());
        assert_eq!(steady.record(), silent.record());
        // Passes that read more and take no longer.
        let (mut vain, mut alone, mut dice) = (Meter::default(), Meter::default(), Dice(3));
        for i in 0..600 {
            let (rows, taken) = ([1, 3, 8][i % 3], 0.010 * (1.0 + 0.1 * dice.next()));
            let experts = distinct(rows, &mut dice);
            learn(&mut vain, rows, taken, Reading { bytes: 0, experts, packed: 0 });
            learn(&mut alone, rows, taken, Reading::default());
            assert_eq!(vain.costs(), alone.costs(), "pass {i}");
        }
    }

    #[test]
    fn a_bad_moment_is_no_slope() {
        let (mut meter, mut dice) = (Meter::default(), Dice(5));
        for i in 0..300 {
            let rows = [1, 2, 4, 8][i % 4];
            let experts = distinct(rows, &mut dice);
            let slow = if i % 11 == 0 { 3.0 } else { 1.0 };
            learn(&mut meter, rows, slow * seconds(rows, experts), Reading { bytes: 0, experts, packed: 0 });
        }
        let by_read = meter.by_read.expect("what is read says most");
        assert!((by_read.slope - 0.0005).abs() < 0.0001, "{by_read:?}");
    }

    #[test]
    fn what_texts_read_now_is_what_is_expected() {
        let mut meter = learned(&[1, 2, 4, 8], 200, |experts| Reading { bytes: 0, experts, packed: 0 });
        let before = meter.costs().pass(8, 100);
        // From now on all rows choose alike. The width of eight is not run.
        for i in 0..RECENT + 32 {
            let (rows, experts) = ([1, 2, 4][i % 3], 4);
            learn(&mut meter, rows, seconds(rows, experts), Reading { bytes: 0, experts, packed: 0 });
        }
        let after = meter.costs().pass(8, 100);
        assert!(after < 0.6 * before, "{before} s and then {after} s, which takes {} s", seconds(8, 4));
    }

    #[test]
    fn weights_move_the_middle() {
        let median = |values: &[(f64, f64)]| weighted_median(&mut values.to_vec());
        assert_eq!(median(&[(3.0, 1.0), (1.0, 1.0), (2.0, 1.0)]), Some(2.0));
        assert_eq!(median(&[(4.0, 1.0), (1.0, 1.0)]), Some(2.5));
        assert_eq!(median(&[(4.0, 3.0), (1.0, 1.0), (f64::NAN, 9.0)]), Some(4.0));
        assert_eq!(median(&[]), None);
    }
}
