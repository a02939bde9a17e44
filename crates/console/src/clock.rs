//! The time of the program's start, and how long opening its models took.
//!
//! The program starts with `main`; the system's work before takes about a millisecond. The engine measures times from
//! the submission of a request.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

static BEGUN: OnceLock<Instant> = OnceLock::new();
static LOADING: OnceLock<Duration> = OnceLock::new();

/// Records that the program starts now. Only the first call counts.
pub fn begin() {
    let _ = BEGUN.set(Instant::now());
}

/// Records that models were opened from `since` until now. Only the first call counts.
pub fn loaded(since: Instant) {
    let _ = LOADING.set(since.elapsed());
}

/// The time that opening the models took: reading and packing weights, and measuring costs.
pub fn load_time() -> Duration {
    LOADING.get().copied().unwrap_or_default()
}

/// The time from the program's start to `then`.
pub fn from_start(then: Instant) -> Duration {
    BEGUN.get().map_or(Duration::ZERO, |begun| then.saturating_duration_since(*begun))
}
