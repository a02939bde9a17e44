//! A progress bar with the remaining time of a measurement.
//!
//! A repetition takes about as long as those before it; none begins once the seconds are used up. Intervals may become
//! narrow earlier, which ends the measurement: so the time is "at most". It is the time of one temperature and number
//! of texts at a time.

use std::time::Instant;

use foretoken_console::progress::bar;
use indicatif::{HumanDuration, ProgressBar};

/// A bar with the remaining time, which is removed when it is dropped.
pub struct RemainingTime {
    bar: ProgressBar,
    what: String,
    started: Instant,
    prompts: usize,
    repeat: usize,
    seconds: f64,
}

impl RemainingTime {
    /// A bar over at most `repeat` repetitions of `prompts` prompts, none of which begins after `seconds`.
    pub fn begin(what: String, prompts: usize, repeat: usize, seconds: f64) -> Self {
        let bar = bar(what.clone(), prompts * repeat);
        Self { bar, what, started: Instant::now(), prompts, repeat, seconds }
    }

    /// Shows that `done` prompts are done, including those of earlier repetitions.
    pub fn show(&mut self, done: usize) {
        if self.bar.is_hidden() {
            return;
        }
        let elapsed = self.started.elapsed();
        let all = self.prompts * repetitions(elapsed.as_secs_f64(), done, self.prompts, self.repeat, self.seconds);
        let left = elapsed.mul_f64(all.saturating_sub(done) as f64 / done.max(1) as f64);
        self.bar.set_length(all as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(format!("{}, at most {} left", self.what, HumanDuration(left)));
    }
}

impl Drop for RemainingTime {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// How many repetitions there will be at most, if they are as fast as the `done` prompts, which took `elapsed` seconds.
fn repetitions(elapsed: f64, done: usize, prompts: usize, repeat: usize, seconds: f64) -> usize {
    let one = elapsed / done.max(1) as f64 * prompts as f64;
    let begun = done.div_ceil(prompts.max(1)).max(1);
    let more = if one > 0.0 { (seconds / one).ceil() as usize } else { repeat };
    more.clamp(begun.min(repeat), repeat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_repetition_begins_after_the_seconds() {
        // Ten prompts a second, twenty prompts: two seconds a repetition, which begin at 0, 2, 4, ...
        assert_eq!(repetitions(1.0, 10, 20, 5, 120.0), 5);
        assert_eq!(repetitions(1.0, 10, 20, 5, 5.0), 3);
        assert_eq!(repetitions(1.0, 10, 20, 5, 4.0), 2);
        assert_eq!(repetitions(1.0, 10, 20, 5, 0.0), 1);
        // One that has begun ends, and the first prompt may take no time at all.
        assert_eq!(repetitions(3.0, 30, 20, 5, 1.0), 2);
        assert_eq!(repetitions(0.0, 1, 20, 5, 1.0), 5);
    }
}
