//! What was measured, as a table for a person and as objects for a program.
//!
//! The columns are explained by `foretoken bench generate --help`. Left out: how the numbers come about.

use foretoken_engine::Token;
use foretoken_kernels::Isa;
use serde_json::{Map, Value, json};

use super::rows::{Figures, Runs, Text, named};
use crate::answers::Answer;
use crate::report;

/// What is the same for all rows.
pub struct Page<'a> {
    /// The target's name.
    pub target: &'a str,
    /// Names of the drafters, by number.
    pub names: &'a [String],
    /// Threads that computed.
    pub threads: usize,
    /// Repetitions of each prompt.
    pub repeat: usize,
    /// Seed of every text.
    pub seed: u64,
    /// Kinds of the prompts, if the file names them.
    pub kinds: &'a [Option<String>],
    /// Whether kinds have rows.
    pub by_kind: bool,
}

/// One line of the table.
struct Row<'a> {
    kind: Option<&'a str>,
    /// The promise; `None` of plain decoding.
    verify: Option<String>,
    budget: Option<String>,
    method: &'a str,
    figures: Figures,
    /// Plain decoding of the same prompts.
    plain: Figures,
    text: Option<Text>,
}

impl Page<'_> {
    /// The first line: what is measured and how.
    pub fn title(&self, prompts: &[Vec<Token>]) -> String {
        let Self { target, threads, repeat, seed, .. } = self;
        let tokens: usize = prompts.iter().map(Vec::len).sum();
        let repeated = if *repeat > 1 { format!(", fastest of {repeat}") } else { String::new() };
        let (count, isa) = (prompts.len(), Isa::chosen().name());
        format!("{target}: {count} prompts, {tokens} tokens; {threads} threads, {isa}, seed {seed}{repeated}")
    }

    /// Rows of all prompts together, each followed by those of its kinds if they are wanted.
    fn rows<'r>(&'r self, runs: &'r Runs) -> Vec<Row<'r>> {
        let mut kinds: Vec<Option<&str>> = vec![None];
        for kind in self.kinds.iter().filter(|_| self.by_kind) {
            let kind = kind.as_deref().unwrap_or("other");
            if !kinds.contains(&Some(kind)) {
                kinds.push(Some(kind));
            }
        }
        let shown = |kind: Option<&str>, number: usize| {
            kind.is_none_or(|kind| self.kinds[number].as_deref().unwrap_or("other") == kind)
        };
        let figures = |answers: &[Answer], kind| Figures::of(answers, &|number| shown(kind, number));
        let mut rows = Vec::new();
        for kind in kinds {
            let plain = || figures(&runs.plain, kind);
            rows.push(Row {
                kind,
                verify: None,
                budget: None,
                method: "plain",
                figures: plain(),
                plain: plain(),
                text: None,
            });
            rows.extend(runs.methods.iter().map(|method| Row {
                kind,
                verify: Some(named(method.verify)),
                budget: Some(method.budget.to_string()),
                method: &method.name,
                figures: figures(&method.answers, kind),
                plain: plain(),
                text: Some(method.text(&|number| shown(kind, number))),
            }));
        }
        rows
    }

    /// The table of one temperature.
    pub fn table(&self, runs: &Runs) -> String {
        let heads = [
            "kind",
            "promise",
            "budget",
            "method",
            "tokens/s",
            "speed-up",
            "with prompt",
            "a pass",
            "length",
            "accepted",
            "drafting",
            "text",
        ];
        let mut lines: Vec<Vec<String>> = vec![heads.map(str::to_string).to_vec()];
        for row in self.rows(runs) {
            let (behind, with_prompt) = row.figures.speedup(&row.plain);
            let (figures, stats) = (&row.figures, &row.figures.stats);
            let optional = |number: Option<f64>| number.map_or("-".to_string(), |number| format!("{number:.2}"));
            let share = |share: f64| format!("{:.0}%", 100.0 * share);
            lines.push(vec![
                row.kind.unwrap_or("all").to_string(),
                row.verify.unwrap_or_else(|| "-".to_string()),
                row.budget.unwrap_or_else(|| "-".to_string()),
                row.method.to_string(),
                figures.speed.map_or("-".to_string(), |speed| format!("{speed:.1}")),
                optional(behind),
                format!("{with_prompt:.2}"),
                format!("{:.2}", stats.tokens_per_pass()),
                format!("{:.2}", stats.mean_accepted_len()),
                stats.acceptance_rate().map_or("-".to_string(), share),
                share(figures.drafting_share),
                match row.text {
                    None | Some(Text::NotPromised) => "-".to_string(),
                    Some(Text::Equal) => "equal".to_string(),
                    Some(Text::Differs(count)) => format!("{count} DIFFER"),
                },
            ]);
        }
        if !self.by_kind {
            lines.iter_mut().for_each(|line| drop(line.remove(0)));
        }
        let names = if self.by_kind { 4 } else { 3 };
        format!("temperature {}\n{}", runs.temperature, aligned(&lines, names))
    }

    /// The objects of one temperature, one a row.
    pub fn objects(&self, runs: &Runs) -> Vec<Value> {
        let object = |row: &Row<'_>| {
            let (behind, with_prompt) = row.figures.speedup(&row.plain);
            let (figures, stats) = (&row.figures, &row.figures.stats);
            let drafters: Map<String, Value> = self
                .names
                .iter()
                .zip(&stats.drafters)
                .filter(|(_, stats)| stats.drafts > 0 || stats.failures > 0 || !stats.time.is_zero())
                .map(|(name, stats)| (name.clone(), report::drafter(stats)))
                .collect();
            json!({
                "model": self.target,
                "threads": self.threads,
                "isa": Isa::chosen().name(),
                "repeat": self.repeat,
                "seed": self.seed,
                "temperature": runs.temperature,
                "kind": row.kind,
                "verify": row.verify,
                "budget": row.budget,
                "method": row.method,
                "prompts": figures.prompts,
                "tokens": stats.emitted,
                "passes": stats.passes,
                "seconds": stats.time.as_secs_f64(),
                "seconds_behind_first_token": stats.time.saturating_sub(stats.time_to_first_token).as_secs_f64(),
                "tokens_per_second": figures.speed,
                "tokens_per_second_with_prompt": figures.speed_with_prompt,
                "speedup": behind,
                "speedup_with_prompt": with_prompt,
                "tokens_per_pass": stats.tokens_per_pass(),
                "mean_accepted_length": stats.mean_accepted_len(),
                "acceptance_rate": stats.acceptance_rate(),
                "drafting_share": figures.drafting_share,
                "equal": match row.text {
                    None | Some(Text::NotPromised) => None,
                    Some(text) => Some(text == Text::Equal),
                },
                "drafters": drafters,
            })
        };
        self.rows(runs).iter().map(object).collect()
    }
}

/// Lines of cells under each other: the first `names` columns begin where the others end, on the left.
fn aligned(lines: &[Vec<String>], names: usize) -> String {
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
