//! How much time may be spent on trials: asking drafters that do not pay.
//!
//! A drafter that does not pay now may pay later, and only asking it can show that. It is asked as a trial when a
//! hundredth of the time since it was last asked is as long as the trial takes, so trials take at most a hundredth of
//! the time. A drafter whose trial takes longer than [`TRIAL_SECONDS_MAX`] is never asked as a trial.

/// Fraction of the time that may be spent on trials: the cost of noticing a drafter that begins to pay.
const TRIAL_TIME_PART: f64 = 0.01;
/// Maximum time, in seconds, that is saved up for trials of one drafter, so that no trial stalls the sequences for
/// longer.
const TRIAL_SECONDS_MAX: f64 = 10.0;

/// The time that may be spent on trials of each drafter.
#[derive(Clone, Debug, Default)]
pub(super) struct Trials {
    /// By drafter.
    seconds: Vec<f64>,
}

impl Trials {
    /// Adds for each of these drafters its part of a pass of this many seconds.
    pub(super) fn earn(&mut self, drafters: &[u8], seconds: f64) {
        for drafter in drafters {
            let at = usize::from(*drafter);
            self.seconds.resize(self.seconds.len().max(at + 1), 0.0);
            self.seconds[at] =
                (self.seconds[at] + TRIAL_TIME_PART * seconds / drafters.len() as f64).min(TRIAL_SECONDS_MAX);
        }
    }

    /// Resets the time of a drafter that was asked because it pays: time for trials is counted from there.
    pub(super) fn clear(&mut self, drafter: u8) {
        if let Some(account) = self.seconds.get_mut(usize::from(drafter)) {
            *account = 0.0;
        }
    }

    /// Subtracts the seconds that a trial took beyond its estimate.
    pub(super) fn charge(&mut self, drafter: u8, seconds: f64) {
        if let Some(account) = self.seconds.get_mut(usize::from(drafter)) {
            *account -= seconds.max(0.0);
        }
    }

    /// Whether there is time for a trial of this drafter that takes this many seconds; if so, they are subtracted.
    pub(super) fn spend(&mut self, drafter: u8, seconds: f64) -> bool {
        match self.seconds.get_mut(usize::from(drafter)) {
            Some(account) if *account >= seconds => {
                *account -= seconds;
                true
            }
            _ => false,
        }
    }
}
