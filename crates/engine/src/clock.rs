//! The engine's clock: the one seam by which times come in, so that tests say what time it is.
//!
//! Times decide how much is drafted and who drafts, never what is written. A clock may still do anything: a machine
//! that slept lets it leap, one that is set lets it go back. So a time is only had where the clock went forward, and
//! whoever learns from one leap must not go by it for long (`meter`, `drafting`). Left out: the times of requests in
//! their statistics, which are the system's.

use std::time::{Duration, Instant};

/// What time it is.
pub trait Clock: Send {
    /// Time since a moment that stays the same.
    fn now(&self) -> Duration;
}

/// The longest time believed: sums of such do not overflow.
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
