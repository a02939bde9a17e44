//! The results of `analyze`: tables in the shape of Tables 2 to 4 of Leviathan et al. 2023 for people, and JSON for
//! programs.
//!
//! Columns and fields are explained by `foretoken analyze --help`.

use foretoken_console::report::percent;
use foretoken_speculation::theory;
use serde_json::{Map, Value, json};

use super::results::{DrafterResult, GammaResult};
use crate::generate::table::{aligned, number_or_dash, or_dash, ratio};

/// Columns of a report's table: headings and fields.
pub const COLUMNS: [(&str, &str); 10] = [
    ("drafter", "drafter"),
    ("temperature", "temperature"),
    ("gamma", "gamma"),
    ("alpha", "alpha"),
    ("c", "c"),
    ("Theorem 3.8", "predicted"),
    ("with widths", "predicted_with_widths"),
    ("measured", "speedup"),
    ("from", "speedup_low"),
    ("to", "speedup_high"),
];

/// All tables, and what explains the predictions that are off.
pub fn text(results: &[DrafterResult]) -> String {
    let parts = [alphas(results), speedups(results), best(results), explanations(results)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// A table whose first column is a name.
fn table<const N: usize>(title: &str, heads: [&str; N], rows: Vec<[String; N]>) -> String {
    let heads = heads.map(str::to_string).to_vec();
    let lines: Vec<Vec<String>> = std::iter::once(heads).chain(rows.into_iter().map(|row| row.to_vec())).collect();
    format!("{title}\n{}", aligned(&lines, 1))
}

/// A speed-up and its draft length.
fn at_gamma(best: Option<(usize, f64)>) -> String {
    or_dash(best.map(|(gamma, speedup)| format!("{speedup:.2} at {gamma}")))
}

/// Table 3: alpha by drafter and temperature.
fn alphas(results: &[DrafterResult]) -> String {
    let row = |result: &DrafterResult| {
        let depths: Vec<String> = result.by_depth.iter().take(10).map(|part| format!("{part:.2}")).collect();
        [
            result.drafter.clone(),
            result.temperature.to_string(),
            format!("{:.3}", result.alpha),
            percent(result.with_law),
            format!("{:.3}", result.c),
            number_or_dash(theory::speedup_reached(result.alpha, result.c), 2),
            depths.join(" "),
        ]
    };
    let heads = ["drafter", "temperature", "alpha", "with law", "c", "at least", "acceptance by depth"];
    table("Acceptance", heads, results.iter().map(row).collect())
}

/// Tables 2 and 4: predicted and measured speed-ups.
fn speedups(results: &[DrafterResult]) -> String {
    let row = |(result, row): (&DrafterResult, &GammaResult)| {
        [
            result.drafter.clone(),
            result.temperature.to_string(),
            row.gamma.to_string(),
            format!("{:.2}", row.expected_tokens),
            format!("{:.2}", row.tokens_per_pass),
            format!("{:.2}", row.predicted),
            format!("{:.2}", row.with_widths),
            or_dash(row.measured.map(ratio)),
            or_dash(row.off().map(|off| format!("{:+.0}%", 100.0 * off))),
        ]
    };
    let heads = [
        "drafter",
        "temperature",
        "gamma",
        "Equation 1",
        "tokens a pass",
        "Theorem 3.8",
        "with widths",
        "measured",
        "off",
    ];
    table("Speed-ups", heads, each_row(results).map(row).collect())
}

/// Section 3.5: the best draft length, by each prediction and as measured.
fn best(results: &[DrafterResult]) -> String {
    let row = |result: &DrafterResult| {
        [
            result.drafter.clone(),
            result.temperature.to_string(),
            at_gamma(result.best(|row| Some(row.predicted))),
            at_gamma(result.best(|row| Some(row.with_widths))),
            at_gamma(result.best(|row| row.measured.map(|measured| measured.value))),
            format!("{:.2}", theory::oracle_speedup(result.alpha, result.c)),
        ]
    };
    let heads = ["drafter", "temperature", "Theorem 3.8", "with widths", "measured", "oracle"];
    table("Best gamma", heads, results.iter().map(row).collect())
}

fn explanations(results: &[DrafterResult]) -> String {
    let line = |(result, row): (&DrafterResult, &GammaResult)| {
        let (why, measured) = (row.explanation()?, row.measured?.value);
        let DrafterResult { drafter, temperature, .. } = result;
        let predicted = row.predicted;
        Some(format!(
            "{drafter}, temperature {temperature}, gamma {}: {measured:.2} for {predicted:.2}: {why}\n",
            row.gamma
        ))
    };
    let lines: String = each_row(results).filter_map(line).collect();
    if lines.is_empty() { lines } else { format!("Theorem 3.8 is off by more than 10 %\n{lines}") }
}

fn each_row(results: &[DrafterResult]) -> impl Iterator<Item = (&DrafterResult, &GammaResult)> {
    results.iter().flat_map(|result| result.rows.iter().map(move |row| (result, row)))
}

/// The JSON of each drafter at each temperature.
pub fn drafters(results: &[DrafterResult]) -> Vec<Value> {
    let best = |found: Option<(usize, f64)>| json!({ "gamma": found.map(|it| it.0), "speedup": found.map(|it| it.1) });
    let object = |result: &DrafterResult| {
        json!({
            "drafter": result.drafter,
            "temperature": result.temperature,
            "alpha": result.alpha,
            "with_law": result.with_law,
            "c": result.c,
            "acceptance_by_depth": result.by_depth,
            "speedup_reached": theory::speedup_reached(result.alpha, result.c),
            "oracle_speedup": theory::oracle_speedup(result.alpha, result.c),
            "best_predicted": best(result.best(|row| Some(row.predicted))),
            "best_predicted_with_widths": best(result.best(|row| Some(row.with_widths))),
            "best_measured": best(result.best(|row| row.measured.map(|measured| measured.value))),
        })
    };
    results.iter().map(object).collect()
}

/// The JSON of each draft length of each drafter at each temperature.
pub fn rows(results: &[DrafterResult]) -> Vec<Value> {
    let object = |(result, row): (&DrafterResult, &GammaResult)| {
        let interval = row.measured.and_then(|measured| measured.interval);
        let causes = row.causes.iter().map(|cause| (cause.name.to_string(), json!(cause.factor)));
        json!({
            "drafter": result.drafter,
            "temperature": result.temperature,
            "gamma": row.gamma,
            "alpha": result.alpha,
            "c": result.c,
            "expected_tokens": row.expected_tokens,
            "tokens_per_pass": row.tokens_per_pass,
            "operations": theory::operations(result.alpha, row.gamma as u32, 0.0),
            "memory_reads": theory::memory_reads(result.alpha, row.gamma as u32),
            "predicted": row.predicted,
            "predicted_with_widths": row.with_widths,
            "speedup": row.measured.map(|measured| measured.value),
            "speedup_low": interval.map(|(low, _)| low),
            "speedup_high": interval.map(|(_, high)| high),
            "off": row.off(),
            "causes": causes.collect::<Map<String, Value>>(),
            "explanation": row.explanation(),
        })
    };
    each_row(results).map(object).collect()
}
