//! What the theory predicts for what was measured, and which of its assumptions explain the difference.
//!
//! The prediction is Theorem 3.8 of Leviathan et al. 2023 (as all theorems and equations here), with the measured alpha
//! and c. What was measured differs from it by five factors, whose product is the whole difference: in each step one
//! quantity of the theorem is replaced by the measured one. The last factor is what the costs of passes and drafts do
//! not explain: other work, and noise.

use foretoken_console::report::percent;
use foretoken_engine::DrafterStats;
use foretoken_speculation::theory::width::{IterationCosts, cost_coefficient};
use foretoken_speculation::{Costs, theory};

use crate::generate::interval::Estimate;
use crate::generate::rows::{Figures, Runs};

/// A prediction that is off by at most this fraction is not explained.
const OFF_MAX: f64 = 0.1;
/// An assumption that changes the prediction by at most this fraction is not named.
const CAUSE_MIN: f64 = 0.01;

/// What was measured at one temperature.
pub struct Measured<'a> {
    /// Runs from which alpha is computed: plain decoding, then each drafter with long drafts, whose laws q were
    /// compared with the target's p.
    pub alphas: &'a Runs,
    /// Timed runs: plain decoding, then each drafter with each draft length.
    pub runs: &'a Runs,
    /// The draft lengths of `runs`, ascending.
    pub gammas: &'a [usize],
    /// The costs of passes and drafts.
    pub costs: &'a Costs,
}

/// One drafter at one temperature.
pub struct DrafterResult {
    /// The drafter's name.
    pub drafter: String,
    /// The temperature.
    pub temperature: f32,
    /// The mean over positions of the sum of min(p, q); a position where the drafter had no law q counts as 0. Of a
    /// drafter that never has a law, the fraction of positions whose drafted token was accepted.
    pub alpha: f64,
    /// The fraction of the positions where it had a law.
    pub with_law: f64,
    /// The time of a step of the drafter over that of a pass of the target.
    pub c: f64,
    /// For each depth from the first token on: of the drafts of which all tokens before were accepted, the fraction
    /// whose token there was accepted, too.
    pub by_depth: Vec<f64>,
    /// By draft length, ascending.
    pub rows: Vec<GammaResult>,
}

/// One draft length.
pub struct GammaResult {
    /// The draft length.
    pub gamma: usize,
    /// Tokens per pass by Equation 1.
    pub expected_tokens: f64,
    /// Tokens per pass as measured, after the first pass of each text.
    pub tokens_per_pass: f64,
    /// The speed-up by Theorem 3.8.
    pub predicted: f64,
    /// The predicted speed-up with the same `expected_tokens`, but with the measured costs of passes of several rows
    /// and of drafting.
    pub with_widths: f64,
    /// The speed-up as measured; `None` if no text has a second pass.
    pub measured: Option<Estimate>,
    /// The factors by which the measured speed-up differs from Theorem 3.8; empty if it was not measured.
    pub causes: Vec<Cause>,
}

/// An assumption of Theorem 3.8 that does not hold.
pub struct Cause {
    /// Its name in JSON.
    pub name: &'static str,
    /// The factor by which it changes the predicted speed-up.
    pub factor: f64,
    /// What was found instead.
    pub words: String,
}

impl Measured<'_> {
    /// The results of one drafter: `place` is its index among the measured drafters, `number` its number in the engine.
    pub fn drafter(&self, place: usize, name: String, number: u8) -> DrafterResult {
        let Figures { stats, .. } = self.alphas.figures(&self.alphas.variants[1 + place], &|_| true);
        let drafter = stats.drafters.get(usize::from(number)).cloned().unwrap_or_default();
        let (overlaps, with_law) = drafter.overlap;
        // Only positions with a draft count: not the one after a draft that was accepted completely, nor the last of a
        // text.
        let complete = stats.accepted_lens.get(drafter.drafted_at.len()).copied().unwrap_or(0);
        let positions = stats.emitted.saturating_sub(complete + self.alphas.groups.len()).max(with_law).max(1);
        // A token without a law, as a draft model of another vocabulary guesses it, is a point mass: it is accepted
        // with its probability, so the part that is accepted is an unbiased estimate.
        let overlaps = if with_law == 0 { drafter.accepted as f64 } else { overlaps };
        // A sum of probabilities may be above 1 by rounding.
        let alpha = (overlaps / positions as f64).min(1.0);
        let context = self.runs.figures(&self.runs.variants[0], &|_| true).context();
        let c = cost_coefficient(self.costs, number, context);
        let row = |(at, gamma): (usize, &usize)| {
            let variant = &self.runs.variants[1 + place * self.gammas.len() + at];
            self.row(&self.runs.figures(variant, &|_| true), *gamma, number, [alpha, c])
        };
        DrafterResult {
            drafter: name,
            temperature: self.runs.temperature,
            alpha,
            with_law: with_law as f64 / positions as f64,
            c,
            by_depth: by_depth(&drafter),
            rows: self.gammas.iter().enumerate().map(row).collect(),
        }
    }

    /// The results of drafts of `gamma` tokens.
    fn row(&self, figures: &Figures, gamma: usize, number: u8, [alpha, c]: [f64; 2]) -> GammaResult {
        let (stats, length) = (&figures.stats, gamma as f64);
        let expected = theory::expected_tokens(alpha, gamma as u32);
        let iteration = |drafted: f64, complete: f64| {
            IterationCosts::new(self.costs, number, figures.context(), drafted, drafted, complete)
        };
        let per_pass = |count: usize| count as f64 / stats.passes.max(1) as f64;
        let (drafted, complete) =
            (per_pass(stats.drafted), per_pass(stats.accepted_lens.get(gamma).copied().unwrap_or(0)));
        let found = iteration(drafted, complete);
        let later = stats.passes.saturating_sub(figures.prompts).max(1);
        let tokens = (stats.emitted - stats.emitted_first) as f64 / later as f64;
        let mut causes = Vec::new();
        if let Some(Estimate { value: speedup, .. }) = figures.speedup {
            let drafter = stats.drafters.get(usize::from(number)).cloned().unwrap_or_default();
            let depths: Vec<String> = by_depth(&drafter).iter().map(|part| format!("{part:.2}")).collect();
            let mut cause = |name, factor, words| causes.push(Cause { name, factor, words });
            cause(
                "acceptance",
                tokens / expected,
                format!(
                    "{tokens:.2} tokens a pass for {expected:.2}, with acceptance by depth {} for alpha {alpha:.2}",
                    if depths.is_empty() { "0".to_string() } else { depths.join(" ") }
                ),
            );
            // The time of an iteration in passes of one row: by the theorem, then with one quantity after another
            // replaced by the measured one.
            let times = [
                1.0 + length * c,
                found.pass + length * c,
                found.pass + found.drafting,
                found.total(),
                tokens / speedup,
            ];
            let rest = times[4] - times[3];
            let words = [
                format!("a pass over {:.1} rows takes {:.2} times that over one", 1.0 + drafted, found.pass),
                format!("a draft of {drafted:.1} tokens takes {:.2} passes for {:.2}", found.drafting, length * c),
                format!(
                    "the draft model reads a token more after the {} of drafts that were accepted completely",
                    percent(complete)
                ),
                format!(
                    "laws of the rows, verification and noise take {rest:+.2} passes ({} of the time is bookkeeping)",
                    percent(figures.bookkeeping_share)
                ),
            ];
            let names = ["width", "drafting", "catching_up", "rest"];
            for ((name, words), pair) in names.into_iter().zip(words).zip(times.windows(2)) {
                cause(name, pair[0] / pair[1], words);
            }
        }
        GammaResult {
            gamma,
            expected_tokens: expected,
            tokens_per_pass: tokens,
            predicted: theory::speedup(alpha, gamma as u32, c),
            with_widths: iteration(length, alpha.powi(gamma as i32)).speedup(expected),
            measured: figures.speedup,
            causes,
        }
    }
}

/// For each depth: of the drafts of which all tokens before were accepted, the fraction whose token there was, too.
fn by_depth(drafter: &DrafterStats) -> Vec<f64> {
    let reached = std::iter::once(drafter.drafts).chain(drafter.accepted_at.iter().copied());
    drafter.accepted_at.iter().zip(reached).map(|(accepted, reached)| *accepted as f64 / reached as f64).collect()
}

impl DrafterResult {
    /// The row with the greatest of these values, and the value; `None` if no row has one.
    pub fn best(&self, value: impl Fn(&GammaResult) -> Option<f64>) -> Option<(usize, f64)> {
        let values = self.rows.iter().filter_map(|row| Some((row.gamma, value(row)?)));
        values.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl GammaResult {
    /// The measured speed-up over the predicted one, less 1.
    pub fn off(&self) -> Option<f64> {
        self.measured.map(|measured| measured.value / self.predicted - 1.0)
    }

    /// Which assumptions fail, the most important first, if the prediction is off by more than a tenth.
    pub fn explanation(&self) -> Option<String> {
        self.off().filter(|off| off.abs() > OFF_MAX)?;
        let mut causes: Vec<&Cause> =
            self.causes.iter().filter(|cause| (cause.factor - 1.0).abs() > CAUSE_MIN).collect();
        causes.sort_by(|a, b| b.factor.ln().abs().total_cmp(&a.factor.ln().abs()));
        let words = |cause: &&Cause| format!("{} ({:+.0} %)", cause.words, 100.0 * (cause.factor - 1.0));
        Some(causes.iter().map(words).collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::budget::BudgetChoice;
    use crate::generate::interval::Sample;
    use crate::generate::rows::{Method, Variant};
    use crate::generate::timings::GroupTiming;
    use foretoken::Promise;
    use foretoken_engine::{Order, Stats};
    use foretoken_speculation::DrafterCosts;
    use foretoken_speculation::costs::Curve;

    /// One text of 41 tokens, the first of which a pass of its own wrote. Of 20 later passes with drafts of two tokens
    /// 8 accepted both and 4 the first. `seconds`: of the later tokens.
    fn variant(gamma: Option<usize>, seconds: f64) -> Variant {
        let method = |gamma| Method {
            name: "draft".to_string(),
            drafters: vec![0],
            order: Order::Given,
            verify: Promise::Rejection,
            lossy_lenience: 1.0,
            budget: BudgetChoice::fixed(gamma),
        };
        let drafter = DrafterStats {
            drafted: 40,
            accepted: 20,
            drafts: 20,
            drafted_at: vec![20, 20],
            accepted_at: vec![12, 8],
            overlap: (16.0, 32),
            ..DrafterStats::default()
        };
        let passes = if gamma.is_some() { 21 } else { 41 };
        let mut stats = Stats { prompt_tokens: 9, emitted: 41, emitted_first: 1, passes, ..Stats::default() };
        if gamma.is_some() {
            (stats.drafts, stats.drafted, stats.accepted) = (20, 40, 20);
            (stats.accepted_lens, stats.drafters) = (vec![8, 4, 8], vec![drafter]);
        }
        let after_first = Sample { tokens: 40, seconds };
        let all = Sample { tokens: 41, seconds: seconds + 0.1 };
        let timing = GroupTiming { all, after_first, stats, ..GroupTiming::default() };
        let mut variant = Variant::new(gamma.map(method), 1.0, 1);
        variant.timings[0].push(timing);
        variant
    }

    fn runs(variants: Vec<Variant>) -> Runs {
        let groups = (0..1).map(|text| text..text + 1).collect();
        Runs { temperature: 1.0, parallel: 1, groups, repetitions: 1, variants, bench_share: 0.0 }
    }

    #[test]
    fn the_causes_explain_the_whole_difference() {
        let (alphas, timed) = (
            runs(vec![variant(None, 4.0), variant(Some(2), 3.0)]),
            runs(vec![variant(None, 4.0), variant(Some(2), 3.0)]),
        );
        let curve = Curve::new(0, vec![(1, 0.1), (3, 0.12)]);
        let drafter = DrafterCosts { step: 0.01, catch_up: 0.005, ..DrafterCosts::default() };
        let costs = Costs { curves: vec![curve], drafters: vec![drafter] };
        let measured = Measured { alphas: &alphas, runs: &timed, gammas: &[2], costs: &costs };
        let found = measured.drafter(0, "draft".to_string(), 0);
        // 41 tokens, less the last one and 8 that followed whole drafts.
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} for {expected}");
        near(found.alpha, 0.5);
        near(found.with_law, 1.0);
        near(found.c, 0.1);
        assert_eq!(found.by_depth, [0.6, 8.0 / 12.0]);
        let row = &found.rows[0];
        near(row.expected_tokens, 1.75);
        near(row.tokens_per_pass, 2.0);
        near(row.predicted, 1.75 / 1.2);
        near(row.with_widths, 1.75 / (1.2 + 0.2 + 0.25 * 0.05));
        let speedup = row.measured.expect("it was measured").value;
        near(speedup, 4.0 / 3.0);
        let product: f64 = row.causes.iter().map(|cause| cause.factor).product();
        near(product, speedup / row.predicted);
        let names: Vec<&str> = row.causes.iter().map(|cause| cause.name).collect();
        assert_eq!(names, ["acceptance", "width", "drafting", "catching_up", "rest"]);
        assert_eq!((found.best(|row| Some(row.predicted)).map(|best| best.0), row.explanation()), (Some(2), None));
    }

    #[test]
    fn alpha_of_a_drafter_without_laws_is_what_was_accepted() {
        let mut alphas = runs(vec![variant(None, 4.0), variant(Some(2), 3.0)]);
        alphas.variants[1].timings[0][0].stats.drafters[0].overlap = (0.0, 0);
        let curve = Curve::new(0, vec![(1, 0.1)]);
        let costs = Costs { curves: vec![curve], drafters: vec![DrafterCosts::default()] };
        let found =
            Measured { alphas: &alphas, runs: &alphas, gammas: &[2], costs: &costs }.drafter(0, "draft".into(), 0);
        assert_eq!((found.alpha, found.with_law), (20.0 / 32.0, 0.0));
    }

    #[test]
    fn a_prediction_that_is_off_is_explained_by_its_largest_causes() {
        let cause = |name, factor| Cause { name, factor, words: format!("words about {name}") };
        let mut row = GammaResult {
            gamma: 4,
            expected_tokens: 3.0,
            tokens_per_pass: 2.9,
            predicted: 2.0,
            with_widths: 1.5,
            measured: Some(Estimate { value: 1.5, interval: None }),
            causes: vec![cause("acceptance", 0.97), cause("width", 0.78), cause("rest", 0.995)],
        };
        let expected = "words about width (-22 %); words about acceptance (-3 %)";
        assert_eq!(row.explanation().as_deref(), Some(expected));
        row.predicted = 1.55;
        assert_eq!(row.explanation(), None);
    }
}
