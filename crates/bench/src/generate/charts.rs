//! The charts of what was measured: speed-ups by kind, how one text grows, acceptance by depth, what passes cost, first
//! tokens.
//!
//! What has no figures has no chart, and says why. Left out: how charts are drawn (`bench/report`).

use std::collections::BTreeMap;

use foretoken_engine::CostRecord;
use serde_json::Value;

use super::laps::middle;
use super::measured::named;
use super::rows::{Method, Runs, Way, named as text_named};
use crate::report::{Chart, Line, Mark};

/// A pass of more rows is a prompt's, beside which those of drafts could not be told apart.
const ROWS_MAX: usize = 64;

/// All charts, of the first temperature and number of texts at a time. `rows`: the objects of `runs`, with kinds;
/// `prompts`: how many different ones there are.
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
    // All prompts have no kind, and so another place than those of a kind that somebody calls "all".
    let (mut places, mut lines): (Vec<Option<&str>>, Vec<Line>) = (Vec::new(), Vec::new());
    let rows = rows.iter().filter(|row| Some((&row["temperature"], &row["parallel"])) == first);
    for row in rows.filter(|row| !row["budget"].is_null()) {
        let Some(value) = row["speedup"].as_f64() else { continue };
        let Some(way) = runs.ways.iter().find(|way| is_of(row, way)) else { continue };
        let kind = row["kind"].as_str();
        let x = places.iter().position(|place| *place == kind).unwrap_or_else(|| {
            places.push(kind);
            places.len() - 1
        });
        let name = runs.label(way);
        let interval = row["speedup_low"].as_f64().zip(row["speedup_high"].as_f64());
        let mark = Mark { x: x as f64, y: value, interval };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.marks.push(mark),
            None => lines.push(Line { name, marks: vec![mark] }),
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
        across: "kind of prompt",
        up: "times plain decoding",
        places: places.into_iter().map(|kind| kind.unwrap_or("all prompts").to_string()).collect(),
        joined: false,
        lines,
    })
}

/// Whether a row says what came of this way of drafting.
fn is_of(row: &Value, way: &Way) -> bool {
    let is_same = |method: &Method| {
        row["method"] == *method.name
            && row["verify"] == *named(method.verify)
            && row["budget"] == *method.budget.to_string()
    };
    way.method.as_ref().is_some_and(is_same)
}

/// The text on which the methods gain what is in the middle: neither the best case nor the worst.
fn timeline(runs: &Runs, prompts: usize) -> Result<Chart, String> {
    let alone = |group: &usize| runs.ways.iter().all(|way| middle(&way.laps[*group]).passes.len() > 1);
    let seconds = |group: usize| {
        let own = runs.ways.iter().skip(1).map(|way| middle(&way.laps[group]).all.seconds);
        own.sum::<f64>() / middle(&runs.ways[0].laps[group]).all.seconds.max(f64::MIN_POSITIVE)
    };
    let mut groups: Vec<usize> = (0..runs.groups.len()).filter(alone).collect();
    groups.sort_by(|a, b| seconds(*a).total_cmp(&seconds(*b)));
    let Some(group) = groups.get(groups.len() / 2).copied() else {
        let why = "that takes a text that runs alone and has more than one pass";
        return Err(format!("The timeline of one text is not drawn: {why}."));
    };
    let line = |way: &Way| {
        let mut written = 0;
        let passes = middle(&way.laps[group]).passes.iter().map(|(seconds, tokens)| {
            written += tokens;
            Mark { x: 1e3 * seconds, y: written as f64, interval: None }
        });
        Line { name: runs.label(way), marks: passes.collect() }
    };
    Ok(Chart {
        name: "timeline",
        title: "One text",
        caption: format!(
            "How one text grows ({}), a dot for each pass of the target: a step of more than one token is a \
             draft that was right.",
            text_named(runs.groups[group].start, prompts)
        ),
        across: "ms since the prompt was handed over",
        up: "tokens written",
        places: Vec::new(),
        joined: true,
        lines: runs.ways.iter().map(line).collect(),
    })
}

fn depths(runs: &Runs, names: &[String]) -> Result<Chart, String> {
    let mut lines = Vec::new();
    for way in runs.ways.iter().filter(|way| way.method.is_some()) {
        let stats = runs.figures(way, &|_| true).stats;
        for (name, drafter) in names.iter().zip(&stats.drafters).filter(|(_, drafter)| drafter.drafts > 0) {
            let share = |accepted: &usize| 100.0 * *accepted as f64 / drafter.drafts as f64;
            let marks = drafter.accepted_at.iter().enumerate();
            let mark = |(at, accepted)| Mark { x: (at + 1) as f64, y: share(accepted), interval: None };
            let label = runs.label(way);
            let name = if way.name() == name { label } else { format!("{name} of {label}") };
            lines.push(Line { name, marks: marks.map(mark).collect() });
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
        across: "token of the draft",
        up: "% of drafts",
        places: Vec::new(),
        joined: true,
        lines,
    })
}

fn passes(costs: &CostRecord) -> Result<Chart, String> {
    let mut curves: BTreeMap<usize, BTreeMap<usize, f64>> = BTreeMap::new();
    for width in costs.widths.iter().filter(|width| width.rows <= ROWS_MAX) {
        curves.entry(width.context_min).or_default().entry(width.rows).or_insert(1e3 * width.seconds);
    }
    let knee = curves.values().find_map(|curve| {
        let one = curve.get(&1)?;
        curve.iter().take_while(|(_, ms)| **ms <= 1.2 * one).last().map(|(rows, _)| *rows)
    });
    let line = |(context, curve): (&usize, &BTreeMap<usize, f64>)| Line {
        name: format!("behind {context} tokens"),
        marks: curve.iter().map(|(rows, ms)| Mark { x: *rows as f64, y: *ms, interval: None }).collect(),
    };
    let lines: Vec<Line> = curves.iter().map(line).collect();
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
        across: "rows of a pass",
        up: "ms",
        places: Vec::new(),
        joined: true,
        lines,
    })
}

/// Only of texts that ran alone: others wait for each other.
fn firsts(runs: &Runs) -> Result<Chart, String> {
    let plain = runs.ways.first().map_or(&[][..], |way| &way.laps);
    let stats = plain.iter().filter(|laps| runs.parallel == 1 && !laps.is_empty()).map(|laps| &middle(laps).stats);
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
        across: "tokens of the prompt that were computed",
        up: "ms",
        places: Vec::new(),
        joined: false,
        lines: vec![Line { name: "plain decoding".to_string(), marks }],
    })
}
