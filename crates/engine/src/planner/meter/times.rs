//! The last times of passes and drafters, with their medians and age.

use super::{RECHECK_PASSES, RELIABLE_TIMES_MIN, TIMES_KEPT};

/// The last `N` numbers and their median.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentMedian<const N: usize> {
    pub(super) numbers: Vec<f64>,
    next: usize,
    /// For an even count it is the mean of the two in the middle, since the lower of few would be too low.
    median: f64,
}

impl<const N: usize> RecentMedian<N> {
    pub(super) fn add(&mut self, number: f64) {
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

    pub(super) fn scale(&mut self, factor: f64) {
        self.numbers.iter_mut().for_each(|number| *number *= factor);
        self.median *= factor;
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn median(&self) -> Option<f64> {
        (self.len() > 0).then_some(self.median)
    }
}

/// The last times of a pass of one width, or of one operation of a drafter.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) seconds: RecentMedian<TIMES_KEPT>,
    /// The weights that each of these passes read; NaN if unknown, as for drafters.
    pub(super) reads: RecentMedian<TIMES_KEPT>,
    /// The number of the pass when the last time was added.
    pub(super) last_pass: u64,
    /// Whether they come from another context or a prefill pass, and are replaced by the first own time.
    pub(super) is_provisional: bool,
    /// Whether they were old when the last time was added, which needs a second one to confirm it.
    pub(super) needs_confirmation: bool,
}

impl Times {
    pub(super) fn add(&mut self, seconds: f64, pass_count: u64) {
        self.add_pass(seconds, f64::NAN, pass_count);
    }

    /// Adds the time of a pass that read this much of the weights.
    pub(super) fn add_pass(&mut self, seconds: f64, read: f64, pass_count: u64) {
        if std::mem::take(&mut self.is_provisional) {
            (self.seconds, self.reads) = Default::default();
        }
        let old = self.median().filter(|_| pass_count - self.last_pass >= RECHECK_PASSES);
        if let Some(median) = old {
            // All old times together count as one.
            let read = self.reads.median().unwrap_or(f64::NAN);
            (self.seconds, self.reads) = Default::default();
            self.push(median, read);
        }
        self.push(seconds, read);
        self.needs_confirmation = self.seconds.len() < RELIABLE_TIMES_MIN && (self.needs_confirmation || old.is_some());
        self.last_pass = pass_count;
    }

    pub(super) fn push(&mut self, seconds: f64, read: f64) {
        self.seconds.add(seconds);
        self.reads.add(read);
    }

    pub(super) fn median(&self) -> Option<f64> {
        self.seconds.median()
    }

    pub(super) fn is_reliable(&self) -> bool {
        !self.is_provisional && self.seconds.len() >= RELIABLE_TIMES_MIN
    }
}

/// The last times of one drafter.
#[derive(Clone, Debug, Default)]
pub(super) struct DrafterTimes {
    pub(super) call: Times,
    pub(super) step: Times,
    pub(super) catch_up: Times,
}

impl DrafterTimes {
    /// The number of the pass in which it was last asked.
    pub(super) fn last_pass(&self) -> u64 {
        self.call.last_pass.max(self.step.last_pass).max(self.catch_up.last_pass)
    }
}
