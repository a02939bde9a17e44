//! The charts of the results: speed-ups by kind, the timeline of one text, acceptance by depth, costs of passes, and
//! first tokens.
//!
//! A chart without figures is replaced by the reason. Charts are drawn in `bench/report`.

use std::collections::BTreeMap;

use foretoken::settings::Named;
use foretoken_engine::CostRecord;
use serde_json::Value;

use super::rows::{Method, Runs, Variant, text_name};
use super::timings::middle;
use crate::report::{Chart, Mark, Series};

/// Passes of more rows are left out: they are prompts' and would make the others indistinguishable.
const ROWS_MAX: usize = 64;

/// All charts, of the first temperature and number of texts at a time. `rows`: the JSON of `runs`, with kinds;
/// `prompts`: the number of different prompts.
pub fn charts(
    runs: &Runs,
    rows: &[Value],
    prompts: usize,
    names: &[String],
    costs: &CostRecord,
) -> Vec<Result<Chart, String>> {
    vec![speedups(runs, rows), timeline(runs, prompts), depths(runs, names), passes(costs), firsts(runs)]
}

fn speedups(runs: &Runs, rows: &[Value]) -> Result<Chart, String> {
    let first = rows.first().map(|row| (&row["temperature"], &row["parallel"]));
    // The row of all prompts has no kind, so its category differs from a kind that is named "all".
    let (mut categories, mut lines): (Vec<Option<&str>>, Vec<Series>) = (Vec::new(), Vec::new());
    let rows = rows.iter().filter(|row| Some((&row["temperature"], &row["parallel"])) == first);
    for row in rows.filter(|row| !row["budget"].is_null()) {
        let Some(value) = row["speedup"].as_f64() else { continue };
        let Some(variant) = runs.variants.iter().find(|variant| is_of(row, variant)) else { continue };
        let kind = row["kind"].as_str();
        let x = categories.iter().position(|place| *place == kind).unwrap_or_else(|| {
            categories.push(kind);
            categories.len() - 1
        });
        let name = runs.label(variant);
        let interval = row["speedup_low"].as_f64().zip(row["speedup_high"].as_f64());
        let mark = Mark { x: x as f64, y: value, interval };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.marks.push(mark),
            None => lines.push(Series { name, marks: vec![mark] }),
        }
    }
    if lines.is_empty() {
        return Err("Speed-ups are not drawn: no method wrote a token behind the first pass.".to_string());
    }
    Ok(Chart {
        name: "speedup",
        title: "Speed-up",
        caption: "How many times as fast as plain decoding each method writes, by kind of prompt; a bar through a dot \
                  is where the true value lies with 95 % certainty."
            .to_string(),
        x_label: "kind of prompt",
        y_label: "times plain decoding",
        categories: categories.into_iter().map(|kind| kind.unwrap_or("all prompts").to_string()).collect(),
        joined: false,
        lines,
    })
}

/// Whether a row is of this variant.
fn is_of(row: &Value, variant: &Variant) -> bool {
    let is_same = |method: &Method| {
        row["method"] == *method.name
            && row["verify"] == *method.verify.name()
            && row["budget"] == *method.budget.to_string()
    };
    variant.method.as_ref().is_some_and(is_same)
}

/// The timeline of the text with the median speed-up, neither the best case nor the worst.
fn timeline(runs: &Runs, prompts: usize) -> Result<Chart, String> {
    let alone = |group: &usize| runs.variants.iter().all(|variant| middle(&variant.timings[*group]).passes.len() > 1);
    let seconds = |group: usize| {
        let own = runs.variants.iter().skip(1).map(|variant| middle(&variant.timings[group]).all.seconds);
        own.sum::<f64>() / middle(&runs.variants[0].timings[group]).all.seconds.max(f64::MIN_POSITIVE)
    };
    let mut groups: Vec<usize> = (0..runs.groups.len()).filter(alone).collect();
    groups.sort_by(|a, b| seconds(*a).total_cmp(&seconds(*b)));
    let Some(group) = groups.get(groups.len() / 2).copied() else {
        let why = "that takes a text that runs alone and has more than one pass";
        return Err(format!("The timeline of one text is not drawn: {why}."));
    };
    let line = |variant: &Variant| {
        let mut written = 0;
        let passes = middle(&variant.timings[group]).passes.iter().map(|(seconds, tokens)| {
            written += tokens;
            Mark { x: 1e3 * seconds, y: written as f64, interval: None }
        });
        Series { name: runs.label(variant), marks: passes.collect() }
    };
    Ok(Chart {
        name: "timeline",
        title: "One text",
        caption: format!(
            "How one text grows ({}), a dot for each pass of the target: a step of more than one token is a \
             draft that was right.",
            text_name(runs.groups[group].start, prompts)
        ),
        x_label: "ms since the prompt was handed over",
        y_label: "tokens written",
        categories: Vec::new(),
        joined: true,
        lines: runs.variants.iter().map(line).collect(),
    })
}

fn depths(runs: &Runs, names: &[String]) -> Result<Chart, String> {
    let mut lines = Vec::new();
    for variant in runs.variants.iter().filter(|variant| variant.method.is_some()) {
        let stats = runs.figures(variant, &|_| true).stats;
        for (name, drafter) in names.iter().zip(&stats.drafters).filter(|(_, drafter)| drafter.drafts > 0) {
            let share = |accepted: &usize| 100.0 * *accepted as f64 / drafter.drafts as f64;
            let marks = drafter.accepted_at.iter().enumerate();
            let mark = |(at, accepted)| Mark { x: (at + 1) as f64, y: share(accepted), interval: None };
            let label = runs.label(variant);
            let name = if variant.name() == name { label } else { format!("{name} of {label}") };
            lines.push(Series { name, marks: marks.map(mark).collect() });
        }
    }
    lines.retain(|line| !line.marks.is_empty());
    if lines.is_empty() {
        return Err("Acceptance by depth is not drawn: no drafted token was accepted.".to_string());
    }
    Ok(Chart {
        name: "depth",
        title: "Acceptance by depth",
        caption: "Of all drafts of a drafter, the share whose first, second, third token and so on was right."
            .to_string(),
        x_label: "token of the draft",
        y_label: "% of drafts",
        categories: Vec::new(),
        joined: true,
        lines,
    })
}

/// The costs of passes.
///
/// # Errors
/// Nothing was measured.
pub fn passes(costs: &CostRecord) -> Result<Chart, String> {
    let mut curves: BTreeMap<usize, BTreeMap<usize, f64>> = BTreeMap::new();
    for width in costs.widths.iter().filter(|width| width.rows <= ROWS_MAX) {
        curves.entry(width.context_min).or_default().entry(width.rows).or_insert(1e3 * width.seconds);
    }
    let knee = curves.values().find_map(|curve| {
        let one = curve.get(&1)?;
        curve.iter().take_while(|(_, ms)| **ms <= 1.2 * one).last().map(|(rows, _)| *rows)
    });
    let line = |(context, curve): (&usize, &BTreeMap<usize, f64>)| Series {
        name: format!("behind {context} tokens"),
        marks: curve.iter().map(|(rows, ms)| Mark { x: *rows as f64, y: *ms, interval: None }).collect(),
    };
    let lines: Vec<Series> = curves.iter().map(line).collect();
    if lines.is_empty() {
        return Err("The cost of passes is not drawn: nothing drafts, so it was not measured.".to_string());
    }
    let knee = knee.map_or(String::new(), |rows| {
        format!(" The knee is at {rows} rows: up to there a pass takes at most a fifth longer than of one row.")
    });
    Ok(Chart {
        name: "cost",
        title: "What a pass costs",
        caption: format!("The time of a pass of the target against the tokens that it computes at once.{knee}"),
        x_label: "rows of a pass",
        y_label: "ms",
        categories: Vec::new(),
        joined: true,
        lines,
    })
}

/// The first tokens of texts that ran alone, since others wait for each other.
fn firsts(runs: &Runs) -> Result<Chart, String> {
    let plain = runs.variants.first().map_or(&[][..], |variant| &variant.timings);
    let stats =
        plain.iter().filter(|timings| runs.parallel == 1 && !timings.is_empty()).map(|timings| &middle(timings).stats);
    let mark = |stats: &foretoken_engine::Stats| Mark {
        x: (stats.prompt_tokens - stats.prompt_tokens_shared) as f64,
        y: 1e3 * stats.time_to_first_token.as_secs_f64(),
        interval: None,
    };
    let mut marks: Vec<Mark> = stats.map(mark).collect();
    marks.sort_by(|a, b| a.x.total_cmp(&b.x));
    if marks.first().map(|mark| mark.x) == marks.last().map(|mark| mark.x) {
        let why = "that takes prompts of several lengths, one text at a time";
        return Err(format!("The time of the first token is not drawn against the prompt: {why}."));
    }
    Ok(Chart {
        name: "first",
        title: "The first token",
        caption:
            "How long each prompt waited for its first token in plain decoding, against the tokens of it that had \
                  to be computed."
                .to_string(),
        x_label: "tokens of the prompt that were computed",
        y_label: "ms",
        categories: Vec::new(),
        joined: false,
        lines: vec![Series { name: "plain decoding".to_string(), marks }],
    })
}
