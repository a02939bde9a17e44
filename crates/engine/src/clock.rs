//! The engine's clock: the only source of times, so that tests can set them.
//!
//! Times decide how much is drafted and by which drafters, never which tokens are written. A clock may still do
//! anything: it leaps after the machine slept, and goes back when it is set. So a time is available only if the clock
//! went forward, and a component that has learned from one leap must forget it soon (`planner/meter.rs`, `drafting`).
//! The times in the statistics of requests are the system's.

use std::time::{Duration, Instant};

/// A source of times.
pub trait Clock: Send {
    /// Time since a fixed moment.
    fn now(&self) -> Duration;
}

/// Longer times are cut to this one, so that sums of times do not overflow.
const LONGEST: Duration = Duration::from_secs(1 << 25);

impl dyn Clock + '_ {
    /// Time since then; `None` if the clock went back.
    pub(crate) fn since(&self, then: Duration) -> Option<Duration> {
        Some(self.now().checked_sub(then)?.min(LONGEST))
    }
}

/// The system's clock, which does not go back.
pub(crate) struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
