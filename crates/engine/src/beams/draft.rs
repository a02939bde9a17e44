//! The drafted steps of a beam search, and what becomes of them.
//!
//! Each step has a number of hypotheses, in rows that follow each other and in the draft's order. When the search makes
//! the step, it is known how many of the first would have been enough; the planner decides by that how many are drafted
//! (`planner/beams.rs`).

/// What became of a drafted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BeamCheck {
    pub(crate) kind: BeamStep,
    /// The beams of the search.
    pub(crate) beams: usize,
    /// How many hypotheses were drafted.
    pub(crate) width: usize,
    /// How many of the first of them contained all of the next hypotheses, if all of them did.
    pub(crate) needed: Option<usize>,
}

/// A kind of drafted steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeamStep {
    /// After hypotheses of which the target's scores are not known.
    First,
    /// As `First`, but the scores after some of the hypotheses are known.
    PartlyKnown,
    /// After hypotheses that are drafted.
    Later,
}

/// The steps of a draft that are not compared yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftedSteps {
    left: usize,
    width: usize,
    /// The kind of the next one.
    kind: BeamStep,
    /// Its first row.
    from: usize,
}

impl DraftedSteps {
    /// No steps.
    pub(crate) const NONE: Self = Self { left: 0, width: 1, kind: BeamStep::First, from: 0 };

    /// This number of rows from row `from` on, `width` of each step.
    pub(crate) fn new(rows: usize, width: usize, kind: BeamStep, from: usize) -> Self {
        Self { left: rows.div_ceil(width), width, kind, from }
    }

    /// Number of steps that are not compared.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Compares the next step with the rows that the next hypotheses of a search of `beams` have, those that were
    /// drafted. `None` if there are no further steps, which says nothing about drafts.
    pub(crate) fn check(&mut self, beams: usize, rows: &[Option<u32>]) -> Option<BeamCheck> {
        let Self { left, width, kind, from } = *self;
        *self = Self { left: left.checked_sub(1)?, width, kind: BeamStep::Later, from: from + width };
        // Rows of other steps are an irregular drafter's.
        let place = |row: u32| (row as usize + 1).saturating_sub(from).clamp(1, width);
        let needed = rows.iter().try_fold(1, |most, row| row.map(|row| place(row).max(most)));
        Some(BeamCheck { kind, beams, width, needed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_needs_as_many_hypotheses_as_its_last_row_is_far() {
        let mut steps = DraftedSteps::new(12, 6, BeamStep::PartlyKnown, 20);
        let check = BeamCheck { kind: BeamStep::PartlyKnown, beams: 4, width: 6, needed: Some(5) };
        assert_eq!(steps.check(4, &[Some(20), Some(24), Some(21)]), Some(check));
        assert_eq!(steps.left(), 1);
        let later = BeamCheck { kind: BeamStep::Later, needed: None, ..check };
        assert_eq!(steps.check(4, &[Some(26), None]), Some(later));
        let mut none = DraftedSteps::NONE;
        assert_eq!((steps.check(4, &[]), none.check(4, &[])), (None, None));
    }
}
