//! How long a measurement still takes, on a terminal.
//!
//! A repetition takes about as long as those before it; none begins once the seconds are used up. Intervals that are
//! narrow early end it sooner, which nobody knows before: so it is "at most". Left out: what comes behind this
//! temperature and number of texts at a time.

use std::time::Instant;

use foretoken_console::progress::bar;
use indicatif::{HumanDuration, ProgressBar};

/// A bar with the time that is left, which goes when it is dropped.
pub struct Left {
    bar: ProgressBar,
    what: String,
    started: Instant,
    prompts: usize,
    repeat: usize,
    seconds: f64,
}

impl Left {
    /// A bar over at most `repeat` repetitions of so many prompts, of which none begins behind `seconds`.
    pub fn begin(what: String, prompts: usize, repeat: usize, seconds: f64) -> Self {
        let bar = bar(what.clone(), prompts * repeat);
        Self { bar, what, started: Instant::now(), prompts, repeat, seconds }
    }

    /// Shows that so many prompts are done, those of earlier repetitions too.
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

impl Drop for Left {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// How many repetitions there will be at most, if they go on as the prompts that took `elapsed` seconds.
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
    fn no_repetition_begins_behind_the_seconds() {
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
