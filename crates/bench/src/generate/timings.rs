//! The times of one run of a group of texts with one variant of decoding.
//!
//! A group is the texts that run at the same time, one or several. Its time is elapsed time: from submitting all its
//! prompts to the last token of the last text. A beam search reports its tokens at its end, so its steps count instead
//! of them, the first one at its own time.

use std::borrow::Cow;
use std::time::Instant;

use foretoken::Answer;
use foretoken::report::total;
use foretoken_engine::{PassTotals, Stats};

use super::interval::Sample;

/// The times of a group in one repetition.
#[derive(Clone, Debug, Default)]
pub struct GroupTiming {
    /// All tokens, and the total time.
    pub all: Sample,
    /// The tokens after the moment when every text had begun, and the time after it.
    pub after_first: Sample,
    /// Sums over the texts.
    pub stats: Stats,
    /// The passes of all texts together, including those of prompts.
    pub totals: PassTotals,
    /// For one text that ran alone, its passes: seconds since it was submitted, and the tokens of each pass.
    pub passes: Vec<(f64, usize)>,
}

impl GroupTiming {
    /// The times of a run that began at `started`, with these answers and passes.
    pub fn of(started: Instant, answers: &[Answer], totals: PassTotals) -> Self {
        let each: Vec<Cow<'_, [(Instant, usize)]>> = answers.iter().map(|answer| arrivals(started, answer)).collect();
        let arrivals = || each.iter().flat_map(|arrivals| arrivals.iter());
        let end = arrivals().map(|(time, _)| *time).max().unwrap_or(started);
        let firsts = each.iter().filter_map(|arrivals| arrivals.first());
        let begun = firsts.map(|(time, _)| *time).max().unwrap_or(end);
        let seconds = |from: Instant| end.duration_since(from).as_secs_f64();
        let since_start = |(time, tokens): &(Instant, usize)| (time.duration_since(started).as_secs_f64(), *tokens);
        let passes = match &each[..] {
            [alone] => alone.iter().map(since_start).collect(),
            _ => Vec::new(),
        };
        Self {
            all: Sample { tokens: arrivals().map(|(_, tokens)| tokens).sum(), seconds: seconds(started) },
            after_first: Sample {
                tokens: arrivals().filter(|(time, _)| *time > begun).map(|(_, tokens)| tokens).sum(),
                seconds: seconds(begun),
            },
            stats: total(answers.iter().map(|answer| &answer.stats)),
            totals,
            passes,
        }
    }

    /// Seconds of drafting.
    pub fn drafting(&self) -> f64 {
        // An empty sum would be -0.
        self.stats.drafters.iter().fold(0.0, |sum, drafter| sum + drafter.time.as_secs_f64())
    }
}

/// When tokens of an answer arrived, and how many; of a beam search its first step and all others at its end.
fn arrivals(started: Instant, answer: &Answer) -> Cow<'_, [(Instant, usize)]> {
    let Stats { beams, time, time_to_first_token: first, .. } = &answer.stats;
    match beams.steps.checked_sub(1) {
        None => Cow::Borrowed(&answer.arrivals),
        Some(0) => Cow::Owned(vec![(started + *first, 1)]),
        Some(others) => Cow::Owned(vec![(started + *first, 1), (started + *time, others)]),
    }
}

/// The repetition with the median time, or the faster of the two in the middle.
///
/// # Panics
/// If there are none.
pub fn middle(repetitions: &[GroupTiming]) -> &GroupTiming {
    let mut sorted: Vec<&GroupTiming> = repetitions.iter().collect();
    sorted.sort_by(|a, b| a.all.seconds.total_cmp(&b.all.seconds));
    sorted[(sorted.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_engine::BeamStats;
    use std::time::Duration;

    /// An answer: for each pass the milliseconds after the start, and its number of tokens.
    fn answer(started: Instant, passes: &[(u64, usize)]) -> Answer {
        let arrival = |(milliseconds, tokens): &(u64, usize)| (started + Duration::from_millis(*milliseconds), *tokens);
        let emitted = passes.iter().map(|(_, tokens)| tokens).sum();
        let stats = Stats { emitted, passes: passes.len(), ..Stats::default() };
        Answer { arrivals: passes.iter().map(arrival).collect(), stats, ..Answer::default() }
    }

    #[test]
    fn one_text_is_timed_with_its_prompt_and_after_its_first_pass() {
        let started = Instant::now();
        let timing = GroupTiming::of(started, &[answer(started, &[(10, 2), (20, 1), (60, 3)])], PassTotals::default());
        assert_eq!(timing.all, Sample { tokens: 6, seconds: 0.06 });
        assert_eq!(timing.after_first, Sample { tokens: 4, seconds: 0.05 });
        assert_eq!((timing.stats.passes, timing.drafting().to_bits()), (3, 0.0f64.to_bits()));
        assert_eq!(timing.passes, [(0.01, 2), (0.02, 1), (0.06, 3)]);
    }

    #[test]
    fn several_texts_count_from_when_all_have_begun_to_when_the_last_has_ended() {
        let started = Instant::now();
        let first = answer(started, &[(10, 1), (20, 1), (30, 1)]);
        let late = answer(started, &[(20, 1), (30, 2), (40, 2)]);
        let timing = GroupTiming::of(started, &[first, late], PassTotals::default());
        assert_eq!(timing.all, Sample { tokens: 8, seconds: 0.04 });
        assert_eq!(timing.passes, []);
        // Tokens of the same pass as the late one's first token do not count.
        assert_eq!(timing.after_first, Sample { tokens: 5, seconds: 0.02 });
    }

    #[test]
    fn one_token_or_none_has_nothing_after_the_first() {
        let started = Instant::now();
        let timing = GroupTiming::of(started, &[answer(started, &[(10, 1)])], PassTotals::default());
        assert_eq!((timing.all.tokens, timing.after_first), (1, Sample::default()));
        assert_eq!(GroupTiming::of(started, &[answer(started, &[])], PassTotals::default()).all, Sample::default());
    }

    #[test]
    fn a_beam_search_counts_with_its_steps() {
        let started = Instant::now();
        let (time, time_to_first_token) = (Duration::from_millis(50), Duration::from_millis(10));
        let beams = BeamStats { steps: 5, ..BeamStats::default() };
        let stats = Stats { beams, time, time_to_first_token, ..Stats::default() };
        let timing = GroupTiming::of(started, &[Answer { stats, ..Answer::default() }], PassTotals::default());
        assert_eq!(timing.all, Sample { tokens: 5, seconds: 0.05 });
        assert_eq!(timing.after_first, Sample { tokens: 4, seconds: 0.04 });
    }

    #[test]
    fn the_middle_repetition_is_not_the_fastest() {
        let timing = |milliseconds: u64| {
            let started = Instant::now();
            GroupTiming::of(started, &[answer(started, &[(milliseconds, 1)])], PassTotals::default())
        };
        let found = |all: &[u64]| {
            let timings: Vec<GroupTiming> = all.iter().map(|milliseconds| timing(*milliseconds)).collect();
            (1e3 * middle(&timings).all.seconds).round() as u64
        };
        assert_eq!((found(&[9, 1, 5]), found(&[9, 1, 5, 7]), found(&[3])), (5, 5, 3));
    }
}
