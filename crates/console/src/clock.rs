//! When the program began, and how long opening its models took: what a person waits for counts from there.
//!
//! A program's beginning is that of `main`; what the system does before takes about a millisecond. Left out: what the
//! engine measures itself, which counts from a request's submission.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

static BEGUN: OnceLock<Instant> = OnceLock::new();
static LOADING: OnceLock<Duration> = OnceLock::new();

/// The program begins now. Only the first call counts.
pub fn begin() {
    let _ = BEGUN.set(Instant::now());
}

/// Models were opened from `since` until now. Only the first call counts.
pub fn loaded(since: Instant) {
    let _ = LOADING.set(since.elapsed());
}

/// How long opening the models took: reading and packing weights, and measuring what passes cost.
pub fn load_time() -> Duration {
    LOADING.get().copied().unwrap_or_default()
}

/// The time from the program's beginning to `then`.
pub fn from_beginning(then: Instant) -> Duration {
    BEGUN.get().map_or(Duration::ZERO, |begun| then.saturating_duration_since(*begun))
}
