//! Drafters that exceed a time limit.
//!
//! If drafting takes longer than it could ever save, the drafter is faulty: it hangs, or waits for something else. A
//! call cannot be interrupted, but a drafter that exceeds the limit twice in a row is not asked again in this engine,
//! and the requests that use it get an event. A single such time proves nothing: the machine may have slept, or its
//! clock was set. So it is not learned either, since a drafter that seems so slow would never be asked again. With
//! fixed costs there is no limit, since nothing depends on the clock. Slow drafters below the limit do not pay and are
//! seldom asked (`planner`).

use std::time::Duration;

use super::{DraftPass, Drafters, Member};
use crate::planner::DrafterCall;
use crate::sequence::Sequence;

/// Seconds that a drafter may take per pass of its network, or for a call without a network: longer than any drafter
/// that could save time, and shorter than a user waits for an answer.
const LATE_SECONDS: f64 = 2.0;
/// Passes of the target that it may take instead if these are longer: a draft is never worth this many.
const LATE_PASSES: f64 = 20.0;
/// The number of calls in a row beyond the limit after which a drafter is dropped: a single one may be due to a sleep
/// of the machine or a change of its clock.
const LATE_CALLS: usize = 2;

impl Drafters {
    /// Drops the drafters that are no longer asked for all sequences that still have them.
    pub(super) fn drop_late(&mut self, running: &mut [Sequence], pass: &mut DraftPass<'_>) {
        for number in 0..self.members.len() as u8 {
            let Some(message) = self.members[usize::from(number)].dropped_because.clone() else { continue };
            for sequence in running.iter_mut().filter(|sequence| sequence.draft.drafters.contains(&number)) {
                self.drop_for(number, sequence, message.clone(), pass.events);
            }
        }
    }
}

impl Member {
    /// Counts calls in a row beyond the limit, and decides whether the drafter is asked again.
    pub(super) fn note_time(&mut self, is_late: bool, time: Duration) {
        self.late_calls = if is_late { self.late_calls + 1 } else { 0 };
        if self.late_calls >= LATE_CALLS {
            let found = time.as_secs_f64();
            self.dropped_because =
                Some(format!("expected a draft within {LATE_SECONDS} s a pass, found one of {found:.1} s, again"));
        }
    }
}

impl DraftPass<'_> {
    /// Whether a call exceeded the limit for its work; never with fixed costs.
    pub(super) fn is_late(&self, call: &DrafterCall) -> bool {
        let Some(pass_seconds) = self.plan.seconds_by_clock() else { return false };
        let allowed = LATE_SECONDS.max(LATE_PASSES * pass_seconds);
        let done = call.passes.max(1) + call.read;
        call.seconds > allowed * done as f64
    }
}
