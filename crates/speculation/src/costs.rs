//! The times of passes and of draft steps, as plain numbers, by which drafts are chosen.
//!
//! This file reads no clock. The engine measures passes and enters the times here; they answer how long a pass takes
//! with a given number of rows and a given length of context, and how long a drafter takes for one more step. The
//! *width* of a pass is its number of rows. Widths that were never measured are interpolated between their measured
//! neighbours. So the cost of a width that begins a new strip of rows is underestimated until the width is tried once,
//! and known from then on; if it were overestimated, the width would never be tried.

/// The seconds of a pass as a function of its width, for contexts from a certain length on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// The shortest context that the curve is for, in tokens.
    pub context_min: usize,
    points: Vec<(usize, f64)>,
}

impl Curve {
    /// Returns a curve through these widths in rows and their seconds. Values that cannot have been measured are left
    /// out (a width of no rows, or a time that is not finite and above 0). Of a width that occurs twice the first
    /// counts, and the times are made to ascend with the rows.
    pub fn new(context_min: usize, mut points: Vec<(usize, f64)>) -> Curve {
        points.retain(|(rows, seconds)| *rows > 0 && *seconds > 0.0 && seconds.is_finite());
        points.sort_by_key(|(rows, _)| *rows);
        points.dedup_by_key(|(rows, _)| *rows);
        let mut highest = 0.0_f64;
        for (_, seconds) in &mut points {
            highest = highest.max(*seconds);
            *seconds = highest;
        }
        Curve { context_min, points }
    }

    /// Measured widths in rows, ascending, with their seconds.
    pub fn points(&self) -> &[(usize, f64)] {
        &self.points
    }

    /// Seconds of a pass of this many rows; they never decrease as rows increase.
    fn seconds(&self, rows: usize) -> f64 {
        let after = self.points.partition_point(|(width, _)| *width < rows);
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (_, Some(&(width, seconds))) if width == rows => seconds,
            (None, Some(&(_, seconds))) => seconds,
            (Some(before), Some(&next)) => on_line(before, next, rows),
            (Some(last), None) => match after.checked_sub(2).map(|earlier| self.points[earlier]) {
                Some(earlier) => on_line(earlier, last, rows),
                None => last.1,
            },
            (None, None) => Costs::UNKNOWN_PASS + (rows.max(1) - 1) as f64 * Costs::UNKNOWN_ROW,
        }
    }
}

/// The value at `rows` of the line through two points.
fn on_line(a: (usize, f64), b: (usize, f64), rows: usize) -> f64 {
    a.1 + (b.1 - a.1) * (rows as f64 - a.0 as f64) / (b.0 as f64 - a.0 as f64)
}

/// The times of one drafter, in seconds.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct DrafterCosts {
    /// The time of a call, whatever it drafts.
    pub call: f64,
    /// The time of a further step of its model, for each sequence that takes part.
    pub step: f64,
    /// The time of reading one token that its model has not read yet.
    pub catch_up: f64,
}

/// The times of a pass of the target and of a step of each drafter, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// The measured passes, one curve for each length of context, the shortest first; without any, a row costs a
    /// twentieth of a pass.
    pub curves: Vec<Curve>,
    /// The times of each drafter, by its number; a drafter beyond the list costs nothing.
    pub drafters: Vec<DrafterCosts>,
}

impl Costs {
    /// Seconds of a pass of one row, as long as nothing was measured. Only ratios matter to a choice.
    const UNKNOWN_PASS: f64 = 0.01;
    /// Seconds of each further row of such a pass: a twentieth, as on a processor limited by memory bandwidth.
    const UNKNOWN_ROW: f64 = 0.0005;

    /// Seconds of a pass with `rows` rows in all, whose sequences have `context` tokens on average.
    pub fn pass(&self, rows: usize, context: usize) -> f64 {
        match self.curve(context) {
            Some(curve) => curve.seconds(rows),
            None => Curve::default().seconds(rows),
        }
    }

    fn curve(&self, context: usize) -> Option<&Curve> {
        let after = self.curves.partition_point(|curve| curve.context_min <= context);
        self.curves.get(after.saturating_sub(1))
    }

    /// The average time of a further row in a pass of `rows` rows, in seconds: the minimum over all numbers of further
    /// rows.
    ///
    /// The curve is linear between measured widths, so the minimum is at a measured width or at infinity.
    pub fn row_min(&self, rows: usize, context: usize) -> f64 {
        let points = self.curve(context).map_or(&[][..], Curve::points);
        let without = self.pass(rows, context);
        let wider = points.iter().filter(|(width, _)| *width > rows);
        let averages = wider.map(|(width, seconds)| (seconds - without) / (width - rows) as f64);
        let last = points.last().map_or(rows, |(width, _)| (*width).max(rows));
        let beyond = self.pass(last + 1, context) - self.pass(last, context);
        averages.fold(beyond, f64::min)
    }

    /// The maximum number of rows that a pass can have within `seconds`, if each row beyond `rows_min` adds
    /// `outside_seconds` outside the pass. It is at most `rows_max`, and at least `rows_min`, however long these take.
    pub fn rows_within(
        &self,
        seconds: f64,
        context: usize,
        outside_seconds: f64,
        rows_min: usize,
        rows_max: usize,
    ) -> usize {
        let fits = |rows: usize| self.pass(rows, context) + outside_seconds * (rows - rows_min) as f64 <= seconds;
        // More rows never take less time, so the last width that fits is found by bisection.
        let (mut fitting, mut beyond) = (rows_min, rows_max.max(rows_min) + 1);
        while fitting + 1 < beyond {
            let middle = fitting.midpoint(beyond);
            if fits(middle) { fitting = middle } else { beyond = middle }
        }
        fitting
    }

    /// The times of this drafter.
    pub fn drafter(&self, source: u8) -> DrafterCosts {
        self.drafters.get(usize::from(source)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_interpolated_between_measured_widths_and_extrapolated_beyond() {
        let curve = Curve::new(0, vec![(1, 1.0), (8, 1.35), (16, 2.15)]);
        let costs = Costs { curves: vec![curve], drafters: Vec::new() };
        for (rows, seconds) in [(1, 1.0), (2, 1.05), (8, 1.35), (9, 1.45), (16, 2.15), (26, 3.15)] {
            assert!((costs.pass(rows, 7) - seconds).abs() < 1e-12, "{rows}: {}", costs.pass(rows, 7));
        }
    }

    #[test]
    fn the_least_time_of_a_row_is_the_minimum_over_all_numbers_of_rows() {
        let curve = Curve::new(0, vec![(1, 1.0), (8, 1.35), (9, 1.85), (16, 1.95)]);
        let costs = Costs { curves: vec![curve], drafters: Vec::new() };
        for rows in 1..20 {
            let average = |more: usize| (costs.pass(rows + more, 0) - costs.pass(rows, 0)) / more as f64;
            let least = (1..4000).map(average).fold(f64::INFINITY, f64::min);
            let found = costs.row_min(rows, 0);
            assert!(found <= least + 1e-12 && found > least - 1e-3, "{rows}: {found}, {least}");
        }
        assert!((Costs::default().row_min(3, 0) - Costs::UNKNOWN_ROW).abs() < 1e-12);
    }

    #[test]
    fn the_widest_pass_within_a_time_is_the_last_that_fits() {
        let curve = Curve::new(0, vec![(1, 1.0), (8, 1.35), (9, 1.85), (16, 1.95)]);
        let costs = Costs { curves: vec![curve], drafters: Vec::new() };
        for tenths in 0..40 {
            for (rows_min, rows_max) in [(1, 30), (4, 12), (20, 10)] {
                let seconds = f64::from(tenths) / 10.0;
                let fits = |rows: &usize| costs.pass(*rows, 0) + 0.01 * (rows - rows_min) as f64 <= seconds;
                let expected = (rows_min..=rows_max).rev().find(fits).unwrap_or(rows_min);
                assert_eq!(costs.rows_within(seconds, 0, 0.01, rows_min, rows_max), expected, "{seconds}");
            }
        }
    }

    #[test]
    fn more_rows_never_look_cheaper_whatever_was_measured() {
        let curve = Curve::new(0, vec![(1, 3.0), (4, 2.0), (8, 2.5)]);
        let costs = Costs { curves: vec![curve], drafters: Vec::new() };
        assert!((1..40).all(|rows| costs.pass(rows, 0) <= costs.pass(rows + 1, 0)));
    }

    #[test]
    fn curves_are_chosen_by_context_and_unmeasured_costs_are_nearly_flat() {
        let curve = |context_min, seconds| Curve::new(context_min, vec![(1, seconds)]);
        let costs = Costs { curves: vec![curve(0, 1.0), curve(512, 2.0)], drafters: Vec::new() };
        let found = [0, 511, 512, 9000].map(|context| costs.pass(3, context));
        assert_eq!(found, [1.0, 1.0, 2.0, 2.0]);
        let unknown = Costs::default();
        assert!(unknown.pass(8, 0) < 1.5 * unknown.pass(1, 0) && unknown.pass(0, 0) > 0.0);
        assert_eq!(unknown.drafter(3), DrafterCosts::default());
    }
}
