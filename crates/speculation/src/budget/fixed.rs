//! The budget that never learns: it always allows the same number of nodes, whatever was accepted.

use super::{Budget, Limits, Outcome};

/// A [`Budget`] that always allows the same number of nodes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Fixed(pub usize);

impl Budget for Fixed {
    fn limits(&self) -> Limits {
        Limits::nodes(self.0)
    }

    fn learn(&mut self, _outcome: &Outcome<'_>) {}
}
