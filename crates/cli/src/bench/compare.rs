//! `foretoken bench compare`: two runs of `bench generate` beside each other, row by row.
//!
//! A ratio of two runs holds the moods of the machine between them; its interval is a bootstrap's over groups of
//! prompts and, apart for each run, repetitions. What makes two runs hard to compare is said first. Left out: which
//! of their prompts differ, which records do not hold.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::generate::interval::{Estimate, Sample};
use crate::failure::Failure;
use crate::records::read_text;

/// What tells rows of one run apart.
const KEYS: [&str; 6] = ["temperature", "parallel", "kind", "verify", "budget", "method"];
/// What ought to be the same in both.
const SAME: [&str; 6] = ["model", "isa", "threads", "seed", "n_best", "prompts"];
/// The seconds of each group and repetition.
const SECONDS: &str = "seconds_behind_first_token_by_group";

/// Options of `foretoken bench compare`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
pub struct Compare {
    /// The record before: a folder of --report, its record.json, or what --json printed
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The record behind
    #[arg(value_name = "B")]
    behind: PathBuf,
    /// Print one JSON object a row
    #[arg(long)]
    json: bool,
}

impl Compare {
    /// Runs the command.
    ///
    /// # Errors
    /// A file is no record, or no row is in both.
    pub fn run(&self) -> Result<(), Failure> {
        let (before, behind) = (rows(&self.before)?, rows(&self.behind)?);
        let mut out = std::io::stdout();
        let (mut lines, mut met) = (differences(&before, &behind), 0);
        if self.json {
            lines.clear();
        }
        for row in &behind {
            let Some(other) = before.iter().find(|other| name(other) == name(row)) else {
                lines.push(format!("{}: only in {}", name(row), self.behind.display()));
                continue;
            };
            met += 1;
            let found = ratio(other, row);
            let verdict = match found {
                Some(found) => match found.no_difference() {
                    Some(true) => "no difference",
                    Some(false) if found.value > 1.0 => "faster",
                    Some(false) => "slower",
                    None => "-",
                },
                None => "not comparable",
            };
            let (value, interval) = (found.map(|found| found.value), found.and_then(|found| found.interval));
            if self.json {
                let mut object = json!({"ratio": value, "low": interval.map(|(low, _)| low),
                    "high": interval.map(|(_, high)| high), "verdict": verdict});
                KEYS.iter().for_each(|key| object[*key] = row[*key].clone());
                lines.push(object.to_string());
            } else {
                let value = value.map_or("-".to_string(), |value| format!("{value:.2}"));
                let interval = interval.map_or(String::new(), |(low, high)| format!(" ({low:.2}-{high:.2})"));
                lines.push(format!("{}: {value}{interval} {verdict}", name(row)));
            }
        }
        let missing = before.iter().filter(|row| !behind.iter().any(|other| name(other) == name(row)));
        lines.extend(missing.map(|row| format!("{}: only in {}", name(row), self.before.display())));
        if met == 0 {
            let places = (self.before.display(), self.behind.display());
            return Err(Failure::Other(format!(
                "{} and {}: expected rows that both have, found none",
                places.0, places.1
            )));
        }
        lines.iter().filter(|line| !self.json || line.starts_with('{')).try_for_each(|line| writeln!(out, "{line}"))?;
        Ok(out.flush()?)
    }
}

/// The rows of a record.
fn rows(path: &Path) -> Result<Vec<Value>, Failure> {
    let path = if path.is_dir() { path.join("record.json") } else { path.to_owned() };
    let (text, place) = (read_text(&path)?, path.display());
    let parsed = |place: &str, text: &str| -> Result<Value, Failure> {
        serde_json::from_str(text).map_err(|error| Failure::Other(format!("{place}: expected JSON, found: {error}")))
    };
    let rows = match serde_json::from_str::<Value>(&text) {
        Ok(Value::Object(mut record)) if record.contains_key("rows") => match record.remove("rows") {
            Some(Value::Array(rows)) => rows,
            _ => return Err(Failure::Other(format!("{place}: rows: expected a list, found something else"))),
        },
        _ => {
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            lines.map(|(i, line)| parsed(&format!("{place}: line {}", i + 1), line)).collect::<Result<_, _>>()?
        }
    };
    for (i, row) in rows.iter().enumerate() {
        let wrong = |field: &str, expected: &str| {
            let message = format!("{place}: row {}: {field}: expected {expected}, found {}", i + 1, row[field]);
            Err(Failure::Other(message.chars().take(400).collect()))
        };
        if !row["method"].is_string() {
            return wrong("method", "a name");
        }
        if !row["tokens"].is_u64() {
            return wrong("tokens", "a number");
        }
        if samples(row).is_none() {
            return wrong(SECONDS, "lists of seconds");
        }
    }
    match rows.is_empty() {
        true => Err(Failure::Other(format!("{place}: expected rows of bench generate, found none"))),
        false => Ok(rows),
    }
}

/// What a row is called.
fn name(row: &Value) -> String {
    let word = |key: &&str| match &row[*key] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(format!("{key} {other}")),
    };
    KEYS.iter().filter_map(word).collect::<Vec<_>>().join(", ")
}

/// What makes the two hard to compare, a line each.
fn differences(before: &[Value], behind: &[Value]) -> Vec<String> {
    let (a, b) = (&before[0], &behind[0]);
    let different = SAME.iter().filter(|field| a[**field] != b[**field]);
    different.map(|field| format!("different {field}: {} and {}", a[*field], b[*field])).collect()
}

/// Groups with one token each, since a record has their seconds alone.
fn samples(row: &Value) -> Option<Vec<Vec<Sample>>> {
    let sample =
        |seconds: &Value| Some(Sample { tokens: 1, seconds: seconds.as_f64().filter(|seconds| *seconds >= 0.0)? });
    let group = |group: &Value| group.as_array().filter(|all| !all.is_empty())?.iter().map(sample).collect();
    row[SECONDS].as_array()?.iter().map(group).collect()
}

/// How much faster the second row is; `None` where they have no speed, or not as many groups of prompts.
fn ratio(before: &Value, behind: &Value) -> Option<Estimate> {
    let (a, b) = (samples(before)?, samples(behind)?);
    let tokens = behind["tokens"].as_f64()? / before["tokens"].as_f64().filter(|tokens| *tokens > 0.0)?;
    let found = (a.len() == b.len()).then(|| Estimate::apart(&b, &a))??;
    let interval = found.interval.map(|(low, high)| (low * tokens, high * tokens));
    Some(Estimate { value: found.value * tokens, interval })
}
