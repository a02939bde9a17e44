//! The results of `bench generate`, as a table for people and as JSON for programs.
//!
//! The columns are explained by `foretoken bench generate --help`.

use foretoken::report::{beams, digits, drafter};
use foretoken::settings::Named;
use foretoken_console::report::percent;
use foretoken_engine::Token;
use foretoken_kernels::Isa;
use foretoken_speculation::theory::width::IterationCosts;
use foretoken_speculation::{Costs, theory};
use serde_json::{Map, Value, json};

use super::interval::{Estimate, medians, seconds};
use super::rows::{Figures, Method, Runs, TextCheck, Variant};

/// Columns of a report's table: headings and fields.
pub const COLUMNS: [(&str, &str); 10] = [
    ("temperature", "temperature"),
    ("texts", "parallel"),
    ("kind", "kind"),
    ("promise", "verify"),
    ("budget", "budget"),
    ("method", "method"),
    ("tokens/s", "tokens_per_second"),
    ("speed-up", "speedup"),
    ("from", "speedup_low"),
    ("to", "speedup_high"),
];

/// What all rows share.
pub struct Formatter<'a> {
    /// The target's name.
    pub target: &'a str,
    /// Names of the drafters, by number.
    pub names: &'a [String],
    /// Threads that computed.
    pub threads: usize,
    /// The most repetitions of each prompt.
    pub repeat: usize,
    /// Numbers of texts at a time, each of which has rows.
    pub parallel: &'a [usize],
    /// Answers to each prompt.
    pub n_best: usize,
    /// Seed of every text, or of the first answer to each prompt.
    pub seed: u64,
    /// Kinds of the prompts, if the file names them.
    pub kinds: &'a [Option<String>],
    /// Whether kinds have rows.
    pub by_kind: bool,
}

/// Heads of the table's columns. The first two are shown only if rows differ in them.
const HEADS: [&str; 15] = [
    "texts",
    "kind",
    "promise",
    "budget",
    "method",
    "tokens/s",
    "speed-up",
    "verdict",
    "with prompt",
    "first ms",
    "a pass",
    "length",
    "accepted",
    "drafting",
    "text",
];

/// One line of the table.
struct Row<'a> {
    runs: &'a Runs,
    kind: Option<&'a str>,
    variant: &'a Variant,
    figures: Figures,
    /// Whether its texts are equal to plain decoding's; `None` for plain decoding.
    text: Option<TextCheck>,
}

impl Row<'_> {
    /// The promise's name on the command line; `None` for plain decoding.
    fn promise(&self) -> Option<String> {
        self.variant.method.as_ref().map(|method| method.verify.name())
    }

    /// The lenience of verification if it is lossy.
    fn lossy(&self) -> Option<f32> {
        self.variant.method.as_ref().map(|method| method.lossy_lenience).filter(|lenience| *lenience < 1.0)
    }

    /// The budget; `None` for plain decoding.
    fn budget(&self) -> Option<String> {
        self.variant.method.as_ref().map(|method| method.budget.to_string())
    }

    /// One cell for each column.
    fn cells(&self) -> [String; HEADS.len()] {
        let Self { figures, .. } = self;
        let stats = &figures.stats;
        [
            self.runs.parallel.to_string(),
            self.kind.unwrap_or("all").to_string(),
            or_dash(self.lossy().map(|lenience| format!("lossy {lenience}")).or_else(|| self.promise())),
            or_dash(self.budget()),
            self.variant.name().to_string(),
            number_or_dash(figures.speed, 1),
            or_dash(figures.speedup.map(ratio)),
            or_dash(figures.main_speedup().and_then(|speedup| speedup.verdict()).map(str::to_string)),
            or_dash(figures.speedup_with_prompt.map(ratio)),
            format!("{:.1}", 1e3 * figures.seconds_to_first_token()),
            format!("{:.2}", figures.a_pass()),
            or_dash((stats.beams.steps == 0).then(|| format!("{:.2}", stats.mean_accepted_len()))),
            or_dash(figures.accepted().map(percent)),
            percent(figures.drafting_share),
            match self.text {
                None | Some(TextCheck::NotPromised) => "-".to_string(),
                Some(TextCheck::Equal) => "equal".to_string(),
                Some(TextCheck::Differs(count)) => format!("{count} DIFFER"),
            },
        ]
    }
}

impl Formatter<'_> {
    /// The first line: what is measured and how.
    pub fn title(&self, prompts: &[Vec<Token>]) -> String {
        let Self { target, threads, repeat, seed, n_best, .. } = self;
        let tokens: usize = prompts.iter().map(Vec::len).sum();
        let repeated = if *repeat > 1 { format!(", medians of up to {repeat}") } else { String::new() };
        let (count, isa) = (prompts.len() / n_best, Isa::chosen().name());
        let tokens = tokens / n_best;
        let answers = if *n_best > 1 { format!(", {n_best} answers each") } else { String::new() };
        let texts: Vec<String> = self.parallel.iter().map(usize::to_string).collect();
        let together = match self.parallel {
            [1] => String::new(),
            _ => format!(", {} texts at a time", texts.join(" or ")),
        };
        format!(
            "{target}: {count} prompts, {tokens} tokens{answers}; {threads} threads, {isa}, seed {seed}\
             {repeated}{together}"
        )
    }

    /// Rows of all prompts together, followed by rows of each kind if they are wanted and one text runs at a time.
    fn rows<'r>(&'r self, runs: &'r Runs) -> Vec<Row<'r>> {
        let mut kinds: Vec<Option<&str>> = vec![None];
        for kind in self.kinds.iter().filter(|_| self.by_kind && runs.parallel == 1) {
            let kind = kind.as_deref().unwrap_or("other");
            if !kinds.contains(&Some(kind)) {
                kinds.push(Some(kind));
            }
        }
        let shown = |kind: Option<&str>, number: usize| {
            kind.is_none_or(|kind| self.kinds[number].as_deref().unwrap_or("other") == kind)
        };
        let row = |kind, variant: &'r Variant| Row {
            runs,
            kind,
            variant,
            figures: runs.figures(variant, &|group| shown(kind, group.start)),
            text: variant.method.as_ref().map(|_| variant.text(&|number| shown(kind, number))),
        };
        kinds
            .into_iter()
            .flat_map(|kind| runs.variants.iter().map(move |variant| (kind, variant)))
            .map(|(kind, variant)| row(kind, variant))
            .collect()
    }

    /// The table of one temperature.
    pub fn table(&self, all: &[Runs]) -> String {
        let mut lines = vec![HEADS.map(str::to_string)];
        lines.extend(all.iter().flat_map(|runs| self.rows(runs)).map(|row| row.cells()));
        let shown = [self.parallel.len() > 1, self.by_kind];
        let lines: Vec<Vec<String>> = lines
            .into_iter()
            .map(|line| {
                let cells = line.into_iter().enumerate();
                cells.filter(|(column, _)| shown.get(*column) != Some(&false)).map(|(_, cell)| cell).collect()
            })
            .collect();
        let names = 3 + shown.iter().filter(|shown| **shown).count();
        let temperature = all.first().map_or(0.0, |runs| runs.temperature);
        let repetitions: Vec<String> = all.iter().map(|runs| runs.repetitions.to_string()).collect();
        let table = aligned(&lines, names);
        format!("temperature {temperature}, repetitions: {}\n{table}{}", repetitions.join(", "), step_cost(all))
    }

    /// The JSON of one temperature and number of texts at a time, an object for each row.
    pub fn objects(&self, runs: &Runs, costs: &Costs) -> Vec<Value> {
        self.rows(runs).iter().map(|row| self.object(row, costs)).collect()
    }

    fn object(&self, row: &Row<'_>, costs: &Costs) -> Value {
        let Row { runs, figures, .. } = row;
        let stats = &figures.stats;
        // All drafters of the method, even those that never drafted.
        let drafters = row.variant.method.iter().flat_map(|method| &method.drafters).map(|number| usize::from(*number));
        let object = |at: usize| Some((self.names[at].clone(), drafter(stats.drafters.get(at)?)));
        let drafters: Map<String, Value> = drafters.filter_map(object).collect();
        let (after_first, with_prompt) = (figures.speedup, figures.speedup_with_prompt);
        let value = |estimate: Option<Estimate>| estimate.map(|estimate| estimate.value);
        let low = |estimate: Option<Estimate>| estimate?.interval.map(|(low, _)| low);
        let high = |estimate: Option<Estimate>| estimate?.interval.map(|(_, high)| high);
        let mut object = json!({
            "model": self.target,
            "threads": self.threads,
            "isa": Isa::chosen().name(),
            "repeat": self.repeat,
            "repetitions": runs.repetitions,
            "seed": self.seed,
            "temperature": runs.temperature,
            "parallel": runs.parallel,
            "n_best": self.n_best,
            "kind": row.kind,
            "verify": row.promise(),
            "lossy_lenience": row.lossy().map(|lenience| digits(f64::from(lenience))),
            "budget": row.budget(),
            "method": row.variant.name(),
            "prompts": figures.prompts,
            "tokens": stats.emitted,
            "passes": stats.passes,
            "seconds": medians(&figures.all),
            "seconds_behind_first_token": medians(&figures.after_first),
            "seconds_by_group": seconds(&figures.all),
            "seconds_behind_first_token_by_group": seconds(&figures.after_first),
            "tokens_per_second": figures.speed,
            "tokens_per_second_with_prompt": figures.speed_with_prompt,
            "speedup": value(after_first),
            "speedup_low": low(after_first),
            "speedup_high": high(after_first),
            "speedup_with_prompt": value(with_prompt),
            "speedup_with_prompt_low": low(with_prompt),
            "speedup_with_prompt_high": high(with_prompt),
            "no_difference": figures.main_speedup().and_then(|estimate| estimate.no_difference()),
            "tokens_per_pass": figures.a_pass(),
            "per_pass": per_pass(figures),
            "modelled_speedup": stats.modelled_speedup(),
            "predicted": row.variant.method.as_ref().and_then(|method| predicted(method, figures, costs)),
            "mean_accepted_length": stats.mean_accepted_len(),
            "acceptance_rate": stats.acceptance_rate(),
            "drafting_share": figures.drafting_share,
            "bookkeeping_share": figures.bookkeeping_share,
            "bench_share": runs.bench_share,
            "equal": match row.text {
                None | Some(TextCheck::NotPromised) => None,
                Some(text) => Some(text == TextCheck::Equal),
            },
            "drafters": drafters,
        });
        // The macro takes no more fields.
        object["seconds_to_first_token"] = json!(figures.seconds_to_first_token());
        if let Some(beams) = beams(&stats.beams) {
            object["beams"] = beams;
            object["step_over_pass"] = figures.step_over_pass().filter(|_| runs.parallel == 1).into();
        }
        object
    }
}

/// What the passes of a method had and read, on average.
fn per_pass(figures: &Figures) -> Value {
    let totals = figures.totals;
    let a_pass = |sum: usize| (totals.passes > 0).then(|| sum as f64 / totals.passes as f64);
    json!({
        "rows": a_pass(totals.rows),
        "bytes": a_pass(totals.bytes),
        "experts": a_pass(totals.experts),
        "experts_packed": a_pass(totals.packed),
        "experts_per_row": (totals.rows > 0).then(|| totals.experts as f64 / totals.rows as f64),
    })
}

/// A line that compares the steps of beam searches without drafts with their passes; empty if none were measured one
/// at a time.
fn step_cost(all: &[Runs]) -> String {
    let alone = all.iter().find(|runs| runs.parallel == 1);
    let of_plain = |runs: &Runs| runs.figures(runs.variants.first()?, &|_| true).step_over_pass();
    let cost = alone.and_then(of_plain);
    cost.map_or(String::new(), |cost| format!("plain: a step takes {cost:.3} of the time of its pass\n"))
}

/// The speed-up that the measured alpha of a method's only drafter and the costs predict for chains as long as its
/// drafts; `None` if alpha was not measured.
fn predicted(method: &Method, figures: &Figures, costs: &Costs) -> Option<f64> {
    let [number] = method.drafters[..] else { return None };
    let stats = &figures.stats;
    // A sum of probabilities may be above 1 by rounding.
    let alpha = stats.drafters.get(usize::from(number))?.alpha()?.min(1.0);
    let gamma = stats.drafted as f64 / stats.drafts.max(1) as f64;
    let drafting = stats.drafts as f64 / stats.passes.max(1) as f64;
    let iteration = IterationCosts::new(costs, number, figures.context(), gamma, gamma, 0.0);
    let tokens = theory::expected_tokens(alpha, gamma.round() as u32);
    // Passes without a draft write one token.
    Some((1.0 + drafting * (tokens - 1.0)) / (1.0 + drafting * (iteration.total() - 1.0)))
}

/// A speed-up with its interval, if it has one.
pub fn ratio(estimate: Estimate) -> String {
    let interval = estimate.interval.map_or(String::new(), |(low, high)| format!(" ({low:.2}-{high:.2})"));
    format!("{:.2}{interval}", estimate.value)
}

/// A cell that may be empty.
pub fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_string())
}

/// A cell that may be empty: a number with `digits` decimals, or a dash.
pub fn number_or_dash(number: Option<f64>, digits: usize) -> String {
    or_dash(number.map(|number| format!("{number:.digits$}")))
}

/// Aligned lines of cells: the first `names` columns to the left, the others to the right.
pub fn aligned(lines: &[Vec<String>], names: usize) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column < names {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_follows_from_the_interval() {
        let shown = |value: f64, interval| {
            let estimate = Estimate { value, interval };
            (ratio(estimate), estimate.verdict().unwrap_or("-"))
        };
        assert_eq!(shown(1.24, Some((1.2, 1.281))), ("1.24 (1.20-1.28)".to_string(), "faster"));
        assert_eq!(shown(1.01, Some((0.98, 1.03))), ("1.01 (0.98-1.03)".to_string(), "no difference"));
        assert_eq!(shown(0.66, Some((0.6, 0.7))), ("0.66 (0.60-0.70)".to_string(), "slower"));
        assert_eq!(shown(2.0, None), ("2.00".to_string(), "-"));
    }
}
