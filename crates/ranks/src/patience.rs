//! How a rank waits for a message that it has to poll for.

use std::time::{Duration, Instant};

/// A wait: first a rank polls, which answers within a microsecond, then it lets other processes run, then it
/// sleeps for a sixteenth of the time that it has waited, at most a millisecond. So waiting adds at most a sixteenth to
/// any wait, and a rank that has nothing to do takes next to no processor time.
#[derive(Debug)]
pub(crate) struct Patience {
    since: Instant,
    polls: u32,
}

/// Polls before the processor is offered to others: some microseconds.
const POLLS: u32 = 32;

/// The wait after which a rank sleeps: before it, a sleep would be shorter than the system's timers can do.
const AWAKE: Duration = Duration::from_millis(1);

/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(1);

impl Patience {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), polls: 0 }
    }

    /// How long it has waited.
    pub(crate) fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits until the next poll; whether the limit has passed.
    pub(crate) fn is_over(&mut self, limit: Option<Duration>) -> bool {
        self.polls = self.polls.saturating_add(1);
        if self.polls < POLLS {
            std::hint::spin_loop();
            return false;
        }
        let waited = self.waited();
        match Self::sleep_after(waited) {
            None => std::thread::yield_now(),
            Some(sleep) => std::thread::sleep(sleep),
        }
        limit.is_some_and(|limit| waited > limit)
    }

    /// How long a rank sleeps after this wait; `None` before it sleeps at all.
    fn sleep_after(waited: Duration) -> Option<Duration> {
        (waited >= AWAKE).then(|| (waited / 16).min(SLEEP_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_a_sixteenth_of_the_wait_and_at_most_a_millisecond() {
        let after = |micros| Patience::sleep_after(Duration::from_micros(micros));
        assert_eq!([after(0), after(999)], [None, None]);
        assert_eq!(after(1600), Some(Duration::from_micros(100)));
        assert_eq!(after(10_000_000), Some(SLEEP_MAX));
    }

    #[test]
    fn patience_ends_after_the_limit_and_not_before() {
        let (mut patience, limit) = (Patience::new(), Duration::from_millis(20));
        while !patience.is_over(Some(limit)) {}
        assert!(patience.waited() > limit);
        let mut patience = Patience::new();
        assert!((0..100).all(|_| !patience.is_over(None)));
    }
}
