//! Drafters that take far too long.
//!
//! A draft that is waited for longer than it could ever save is a fault, of a drafter that hangs or of one that waits
//! for something else. A call cannot be interrupted, but who took far too long twice in a row is not asked again in
//! this engine, and whoever drafts with it is told. Twice, because one such time is no sign: the machine may have
//! slept, or its clock was set; so nothing is learned from such a time either, or a drafter that looks so dear would
//! rest for ever. Where costs are held nothing goes by the clock, this neither. Left out: drafters that are slow, which
//! do not pay and rest (`weighing`).

use std::time::Duration;

use super::{DraftPass, Drafters, Member};
use crate::meter::Call;
use crate::sequence::Sequence;

/// A drafter may take so many seconds for a pass of its network, or for all that it does where it has none: longer than
/// any does that could save time, and shorter than somebody who waits for a text gives up.
const LATE_SECONDS: f64 = 2.0;
/// Or so many passes of the target, where these are slow: a draft is never worth as many.
const LATE_PASSES: f64 = 20.0;
/// After so many calls in a row that took longer a drafter is dropped. One alone is no sign: the machine may have
/// slept, or its clock was set.
const LATE_CALLS: usize = 2;

impl Drafters {
    /// Drops the drafters that are not asked any more for all who still have them.
    pub(super) fn drop_late(&mut self, running: &mut [Sequence], pass: &mut DraftPass<'_>) {
        for number in 0..self.members.len() as u8 {
            let Some(message) = self.members[usize::from(number)].out.clone() else { continue };
            for sequence in running.iter_mut().filter(|sequence| sequence.drafters.contains(&number)) {
                self.drop_for(number, sequence, message.clone(), pass.events);
            }
        }
    }
}

impl Member {
    /// Notes whether a call took far too long. It cannot be interrupted, but need not be asked again.
    pub(super) fn note_time(&mut self, is_late: bool, time: Duration) {
        self.late = if is_late { self.late + 1 } else { 0 };
        if self.late >= LATE_CALLS {
            let found = time.as_secs_f64();
            self.out =
                Some(format!("expected a draft within {LATE_SECONDS} s a pass, found one of {found:.1} s, again"));
        }
    }
}

impl DraftPass<'_> {
    /// Whether a call took far too long for what was done in it. Where costs are held nothing goes by the clock.
    pub(super) fn is_late(&self, call: &Call) -> bool {
        let (rows, context) = self.weighing.undrafted();
        let allowed = LATE_SECONDS.max(LATE_PASSES * self.meter.costs().pass(rows, context));
        let done = call.passes.max(1) + call.read;
        !self.meter.is_held() && call.seconds > allowed * done as f64
    }
}
