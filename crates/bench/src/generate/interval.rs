//! Speed-ups and their confidence intervals: medians over repetitions, and the bootstrap.
//!
//! A speed-up is a ratio of two speeds, each of which is all tokens over all seconds, where a group of texts counts
//! with the median of its repetitions. Its interval is a bootstrap's: groups are drawn with replacement, as if other
//! prompts had been used, and repetitions within each, as if the machine had had other noise; the interval is the
//! middle 95 % of the results. A group's repetitions are drawn for both variants together, because both ran next to
//! each other.
//!
//! If groups differ only by the noise of their repetitions, noise is drawn twice and the interval is somewhat too wide;
//! if groups really differ and are fewer than about ten, it is too narrow. Neither is corrected.

/// The tokens and time of one repetition.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Number of generated tokens.
    pub tokens: usize,
    /// The time that they took.
    pub seconds: f64,
}

/// Samples of one variant of decoding: for each group of texts, one for each repetition.
pub type Samples = [Vec<Sample>];

/// The number of resamples.
const RESAMPLES: usize = 1000;

/// How many of a thousand resamples the interval leaves out at each end.
const LEFT_OUT: usize = 25;

/// An interval is narrow if half of its width is at most this fraction of the value.
const NARROW: f64 = 0.01;

/// A speed-up and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The ratio of the two speeds.
    pub value: f64,
    /// Its 95 % interval; `None` if there is only one repetition of one group.
    pub interval: Option<(f64, f64)>,
}

impl Estimate {
    /// How much faster `own` is than `plain`, which ran the same groups as often; `None` if one of them has no speed.
    pub fn ratio(own: &Samples, plain: &Samples) -> Option<Self> {
        let mut rng = Rng(0);
        let draw = || resampled(own, plain, &mut rng);
        Some(Self::with_resamples(speed(own)? / speed(plain)?, &[own], draw))
    }

    /// How much faster `own` is than `other`, which ran the same groups at another time, so that their repetitions are
    /// independent; `None` if one of them has no speed.
    pub fn of_separate_runs(own: ComparedRun<'_>, other: ComparedRun<'_>) -> Option<Self> {
        let mut rng = Rng(0);
        let count = own.own.len();
        let draw = || {
            let groups: Vec<usize> = (0..count).map(|_| rng.below(count)).collect();
            Some(own.drawn(&groups, &mut rng)? / other.drawn(&groups, &mut rng)?)
        };
        Some(Self::with_resamples(own.value()? / other.value()?, &[own.own, other.own], draw))
    }

    /// A value with the interval of its resamples, if the samples have several groups or repetitions to draw from.
    /// `draw` returns the value of one resample; `None` leaves the resample out.
    fn with_resamples(value: f64, samples: &[&Samples], mut draw: impl FnMut() -> Option<f64>) -> Self {
        let several = |samples: &&Samples| samples.len() > 1 || samples.iter().any(|repetitions| repetitions.len() > 1);
        let resamples = if samples.iter().any(several) { RESAMPLES } else { 0 };
        let mut drawn: Vec<f64> = (0..resamples).filter_map(|_| draw()).collect();
        drawn.sort_by(f64::total_cmp);
        let skipped = drawn.len() * LEFT_OUT / 1000;
        // Resampled medians of few repetitions are biased, so the value can be at the edge; it is never outside.
        let interval = drawn.get(skipped).zip(drawn.get(drawn.len().wrapping_sub(1 + skipped)));
        Self { value, interval: interval.map(|(low, high)| (low.min(value), high.max(value))) }
    }

    /// The verdict of a speed-up, if it has an interval.
    pub fn verdict(&self) -> Option<&'static str> {
        self.no_difference().map(|none| match (none, self.value > 1.0) {
            (true, _) => "no difference",
            (false, true) => "faster",
            (false, false) => "slower",
        })
    }

    /// Whether the interval includes equal speed; `None` if there is no interval.
    pub fn no_difference(&self) -> Option<bool> {
        self.interval.map(|(low, high)| (low..=high).contains(&1.0))
    }

    /// Whether the interval is narrow enough.
    pub fn is_narrow(&self) -> bool {
        self.interval.is_some_and(|(low, high)| (high - low) / 2.0 <= NARROW * self.value)
    }
}

/// A variant of decoding in one of two runs.
#[derive(Clone, Copy)]
pub struct ComparedRun<'s> {
    /// Its samples.
    pub own: &'s Samples,
    /// As many samples of plain decoding in the same run, if the speed-up over that is compared instead of the speed.
    pub plain: Option<&'s Samples>,
}

impl ComparedRun<'_> {
    fn value(self) -> Option<f64> {
        Some(speed(self.own)? / self.plain.map_or(Some(1.0), speed)?)
    }

    /// The value of a resample with these groups, with repetitions drawn for both variants together.
    fn drawn(self, groups: &[usize], rng: &mut Rng) -> Option<f64> {
        let (mut own_sums, mut plain_sums) = (Sums::default(), Sums::default());
        for group in groups {
            let own = &self.own[*group];
            let drawn: Vec<usize> = own.iter().map(|_| rng.below(own.len())).collect();
            own_sums.add(drawn.iter().map(|repetition| &own[*repetition]));
            if let Some(plain) = self.plain {
                plain_sums.add(drawn.iter().map(|repetition| &plain[*group][*repetition]));
            }
        }
        Some(own_sums.speed()? / self.plain.map_or(Some(1.0), |_| plain_sums.speed())?)
    }
}

/// The median; 0 of an empty list.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => 0.0,
        len if len.is_multiple_of(2) => f64::midpoint(numbers[middle - 1], numbers[middle]),
        _ => numbers[middle],
    }
}

/// The seconds of each group and repetition.
pub fn seconds(groups: &[Vec<Sample>]) -> Vec<Vec<f64>> {
    groups.iter().map(|repetitions| repetitions.iter().map(|sample| sample.seconds).collect()).collect()
}

/// The sum of the groups' median seconds.
pub fn medians(groups: &[Vec<Sample>]) -> f64 {
    seconds(groups).into_iter().fold(0.0, |sum, seconds| sum + median(seconds))
}

/// The least of these numbers that at least the fraction `part` of them does not exceed; 0 of an empty list.
pub fn percentile(numbers: &[f64], part: f64) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(place.max(1) - 1).copied().unwrap_or_default()
}

/// Tokens a second: those of all groups over the medians of their seconds; `None` without tokens or without time.
pub fn speed(groups: &Samples) -> Option<f64> {
    let mut sums = Sums::default();
    groups.iter().for_each(|repetitions| sums.add(repetitions.iter()));
    sums.speed()
}

/// Sums over groups.
#[derive(Default)]
struct Sums {
    tokens: f64,
    seconds: f64,
}

impl Sums {
    /// Adds a group: its mean tokens, which hardly ever differ, and its median seconds.
    fn add<'s>(&mut self, repetitions: impl Iterator<Item = &'s Sample> + Clone) {
        let tokens: usize = repetitions.clone().map(|sample| sample.tokens).sum();
        let seconds: Vec<f64> = repetitions.map(|sample| sample.seconds).collect();
        self.tokens += tokens as f64 / seconds.len().max(1) as f64;
        self.seconds += median(seconds);
    }

    fn speed(&self) -> Option<f64> {
        (self.tokens > 0.0 && self.seconds > 0.0).then(|| self.tokens / self.seconds)
    }
}

/// The ratio of one resample; `None` if it has no speed.
fn resampled(own: &Samples, plain: &Samples, rng: &mut Rng) -> Option<f64> {
    let (mut own_sums, mut plain_sums) = (Sums::default(), Sums::default());
    for _ in own {
        let group = rng.below(own.len());
        let (own, plain) = (&own[group], &plain[group]);
        assert_eq!(own.len(), plain.len(), "group {group}: repetitions of both variants of decoding");
        let drawn: Vec<usize> = own.iter().map(|_| rng.below(own.len())).collect();
        own_sums.add(drawn.iter().map(|repetition| &own[*repetition]));
        plain_sums.add(drawn.iter().map(|repetition| &plain[*repetition]));
    }
    Some(own_sums.speed()? / plain_sums.speed()?)
}

/// A random-number generator with a fixed seed (splitmix64), so that the same measurements give the same interval.
struct Rng(u64);

impl Rng {
    /// A number from 0 up to but not including `count`.
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        ((u128::from(x) * count as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of ten tokens with these seconds.
    fn groups(seconds: &[&[f64]]) -> Vec<Vec<Sample>> {
        let group = |seconds: &&[f64]| seconds.iter().map(|seconds| Sample { tokens: 10, seconds: *seconds }).collect();
        seconds.iter().map(group).collect()
    }

    /// Seconds around 1 with noise: up to a tenth more or less.
    fn noisy(groups: usize, repetitions: usize, seed: u64) -> Vec<Vec<Sample>> {
        let mut rng = Rng(seed);
        let mut sample = || Sample { tokens: 10, seconds: 0.9 + 0.2 * rng.below(1000) as f64 / 1000.0 };
        (0..groups).map(|_| (0..repetitions).map(|_| sample()).collect()).collect()
    }

    #[test]
    fn a_median_is_the_middle_or_lies_between_the_two() {
        let medians = [vec![], vec![3.0], vec![3.0, 1.0], vec![9.0, 1.0, 2.0]].map(median);
        assert_eq!(medians, [0.0, 3.0, 2.0, 2.0]);
    }

    #[test]
    fn a_percentile_is_the_least_number_that_so_many_do_not_exceed() {
        let numbers: Vec<f64> = (1..=16).rev().map(f64::from).collect();
        assert_eq!([0.5, 0.95, 1.0, 0.0].map(|part| percentile(&numbers, part)), [8.0, 16.0, 16.0, 1.0]);
        assert_eq!((percentile(&[3.0], 0.95), percentile(&[], 0.5)), (3.0, 0.0));
    }

    #[test]
    fn a_speed_is_all_tokens_over_median_seconds() {
        let groups = groups(&[&[1.0, 9.0, 2.0], &[3.0]]);
        assert_eq!(speed(&groups), Some(20.0 / 5.0));
        assert_eq!(speed(&[vec![Sample { tokens: 0, seconds: 1.0 }]]), None);
        assert_eq!(speed(&[]), None);
        // Texts of several lengths count with their mean.
        let lengths = [vec![Sample { tokens: 4, seconds: 1.0 }, Sample { tokens: 8, seconds: 1.0 }]];
        assert_eq!(speed(&lengths), Some(6.0));
    }

    #[test]
    fn a_constant_ratio_has_no_width() {
        let plain = noisy(6, 4, 1);
        let halved = |sample: &Sample| Sample { seconds: sample.seconds / 2.0, ..*sample };
        let own: Vec<Vec<Sample>> = plain.iter().map(|group| group.iter().map(halved).collect()).collect();
        let estimate = Estimate::ratio(&own, &plain).expect("both have speeds");
        let (low, high) = estimate.interval.expect("an interval");
        assert!([low, estimate.value, high].iter().all(|ratio| (ratio - 2.0).abs() < 1e-12), "{estimate:?}");
        assert!(estimate.is_narrow() && estimate.no_difference() == Some(false));
    }

    #[test]
    fn noise_is_almost_always_no_difference() {
        let found = |seed: u64| Estimate::ratio(&noisy(10, 3, seed), &noisy(10, 3, seed + 1000)).expect("speeds");
        let all: Vec<Estimate> = (0..60).map(found).collect();
        let held = all.iter().filter(|estimate| estimate.no_difference() == Some(true)).count();
        assert!(held >= 57, "{held} of {}", all.len());
        assert!(all.iter().all(|estimate| {
            estimate.interval.is_some_and(|(low, high)| (low..=high).contains(&estimate.value) && high - low < 0.2)
        }));
    }

    #[test]
    fn speed_ups_do_not_depend_on_the_speed_of_a_whole_run() {
        let slower = |all: &[Vec<Sample>], times: f64| -> Vec<Vec<Sample>> {
            let slower = |sample: &Sample| Sample { seconds: sample.seconds * times, ..*sample };
            all.iter().map(|group| group.iter().map(slower).collect()).collect()
        };
        let (own, plain) = (noisy(6, 4, 1), noisy(6, 4, 2));
        let (slow, slow_plain) = (slower(&own, 1.5), slower(&plain, 1.5));
        let found = |own, plain| ComparedRun { own, plain: Some(plain) };
        let same = Estimate::of_separate_runs(found(&slow, &slow_plain), found(&own, &plain)).expect("speeds");
        assert_eq!(same.no_difference(), Some(true), "{same:?}");
        let changed = Estimate::of_separate_runs(found(&slow, &plain), found(&own, &plain)).expect("speeds");
        assert_eq!(changed.no_difference(), Some(false), "{changed:?}");
        let speeds =
            Estimate::of_separate_runs(ComparedRun { own: &slow, plain: None }, ComparedRun { own: &own, plain: None });
        assert_eq!(speeds.and_then(|speeds| speeds.no_difference()), Some(false));
    }

    #[test]
    fn a_small_difference_is_detected_in_noise() {
        let faster = |seed: u64| {
            let quicker = |sample: &Sample| Sample { seconds: sample.seconds * 0.9, ..*sample };
            let own: Vec<Vec<Sample>> =
                noisy(20, 3, seed).iter().map(|group| group.iter().map(quicker).collect()).collect();
            Estimate::ratio(&own, &noisy(20, 3, seed + 1000)).and_then(|estimate| estimate.no_difference())
        };
        assert!((0..10).all(|seed| faster(seed) == Some(false)));
    }

    #[test]
    fn the_same_measurements_give_the_same_interval() {
        let found = || Estimate::ratio(&noisy(5, 3, 7), &noisy(5, 3, 8));
        assert_eq!(found(), found());
    }

    #[test]
    fn one_group_has_an_interval_from_its_repetitions_and_one_repetition_has_none() {
        let plain = groups(&[&[1.0, 1.0, 1.0]]);
        let estimate = Estimate::ratio(&groups(&[&[0.4, 0.5, 0.8]]), &plain).expect("both have speeds");
        assert_eq!((estimate.value, estimate.interval), (2.0, Some((1.25, 2.5))));
        let alone = Estimate::ratio(&groups(&[&[0.5]]), &groups(&[&[1.0]])).expect("both have speeds");
        assert_eq!((alone.value, alone.interval), (2.0, None));
        assert!(!alone.is_narrow() && alone.no_difference().is_none());
        // Several groups, each once.
        let several = Estimate::ratio(&groups(&[&[0.5], &[1.0]]), &groups(&[&[1.0], &[1.0]])).expect("speeds");
        assert_eq!(several.interval, Some((1.0, 2.0)));
    }

    #[test]
    fn texts_without_tokens_have_no_speed_up() {
        let nothing = vec![vec![Sample { tokens: 0, seconds: 0.0 }; 2]; 2];
        assert_eq!(Estimate::ratio(&nothing, &nothing), None);
        assert_eq!(Estimate::ratio(&groups(&[&[1.0]]), &nothing[..1]), None);
        // One text of two has tokens: resamples without it are left out.
        let mut half = groups(&[&[1.0, 1.0], &[1.0, 1.0]]);
        half[1] = nothing[0].clone();
        assert_eq!(Estimate::ratio(&half, &half).and_then(|estimate| estimate.interval), Some((1.0, 1.0)));
    }
}
