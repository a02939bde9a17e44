//! `foretoken bench compare`: two runs of `bench generate` beside each other, row by row.
//!
//! A ratio of two runs holds the moods of the machine between them. So a method is judged by its speed-up over plain
//! decoding of its own run, where both runs have that: what slows a whole run is not in it. The interval is a
//! bootstrap's over groups of prompts and, apart for each run, repetitions. What makes two runs hard to compare is said
//! first. Left out: which of their prompts differ, which records do not hold.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use foretoken_console::failure::Failure;
use foretoken_console::progress::warn;
use foretoken_console::records::read_text;
use foretoken_weights::line::plain;
use serde_json::{Value, json};

use super::generate::interval::{Estimate, Sample, Side};

/// What tells rows of one run apart.
const KEYS: [&str; 6] = ["temperature", "parallel", "kind", "verify", "budget", "method"];
/// What ought to be the same in both.
const SAME: [&str; 6] = ["model", "isa", "threads", "seed", "n_best", "prompts"];
/// What records of --report say besides, and how it is called.
const FACTS: [(&str, &str); 3] = [("machine", "machine"), ("version", "version"), ("prompts", "file of prompts")];
/// The seconds of each group and repetition.
const SECONDS: &str = "seconds_behind_first_token_by_group";

const EXPLAINED: &str = "\
  speed        tokens/s of B over those of A
  over plain   the speed-up over plain decoding of B's own run over that of A's
  interval     where the last of these lies with 95 %, as far as prompts and repetitions within a run say
  verdict      of that: faster, slower or no difference

What the machine did between the runs is in every speed and in no interval. It is not in what is over plain, by
which methods are judged where both runs have a row of plain decoding; the speed of that row is by how much
machine or program have become faster as a whole.

With --json, what makes the runs hard to compare is said on standard error; judged_by is speedup or speed.";

/// Options of `foretoken bench compare`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
#[command(after_long_help = EXPLAINED)]
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
        let (before, behind) = (Record::read(&self.before)?, Record::read(&self.behind)?);
        let (mut lines, mut alone) = (Vec::new(), Vec::new());
        for row in &behind.rows {
            match before.rows.iter().find(|other| name(other) == name(row)) {
                Some(other) => lines.push(self.line(row, &Compared::new((&before, other), (&behind, row)))),
                None => alone.push(format!("{}: only in {}", name(row), self.behind.display())),
            }
        }
        let missing = before.rows.iter().filter(|row| !behind.rows.iter().any(|other| name(other) == name(row)));
        alone.extend(missing.map(|row| format!("{}: only in {}", name(row), self.before.display())));
        if lines.is_empty() {
            let places = format!("{} and {}", self.before.display(), self.behind.display());
            return Err(Failure::Other(format!("{places}: expected rows that both have, found none")));
        }
        let mut notes = differences(&before, &behind);
        if self.json {
            // A program that reads objects should not meet sentences.
            notes.drain(..).chain(alone.drain(..)).for_each(warn);
        }
        let mut out = std::io::stdout();
        notes.iter().chain(&lines).chain(&alone).try_for_each(|line| writeln!(out, "{line}"))?;
        Ok(out.flush()?)
    }

    /// What is said of a row that both have.
    fn line(&self, row: &Value, compared: &Compared) -> String {
        let Compared { speed, speedup } = compared;
        let judged = speedup.or(*speed);
        let interval = judged.and_then(|judged| judged.interval);
        let verdict = match judged.map(|judged| (judged.no_difference(), judged.value > 1.0)) {
            Some((Some(true), _)) => "no difference",
            Some((Some(false), true)) => "faster",
            Some((Some(false), false)) => "slower",
            Some((None, _)) => "-",
            None => "not comparable",
        };
        let value = |found: &Option<Estimate>| found.map(|found| found.value);
        if self.json {
            let mut object = json!({"speed": value(speed), "over_plain": value(speedup),
                "judged_by": if speedup.is_some() { "speedup" } else { "speed" }, "ratio": value(&judged),
                "low": interval.map(|(low, _)| low), "high": interval.map(|(_, high)| high), "verdict": verdict});
            KEYS.iter().for_each(|key| object[*key] = row[*key].clone());
            return object.to_string();
        }
        let speed = value(speed).map_or("-".to_string(), |speed| format!("{speed:.2}"));
        let over_plain = value(speedup).map_or(String::new(), |speedup| format!(", over plain {speedup:.2}"));
        let interval = interval.map_or(String::new(), |(low, high)| format!(" ({low:.2}-{high:.2})"));
        let whose =
            if over_plain.is_empty() && ["faster", "slower"].contains(&verdict) { ", machine or program" } else { "" };
        format!("{}: speed {speed}{over_plain}{interval} {verdict}{whose}", name(row))
    }
}

/// What `bench generate` has written.
struct Record {
    /// Its rows, at least one.
    rows: Vec<Value>,
    /// What is beside them; null where there is nothing.
    facts: Value,
}

/// The second of two rows over the first.
struct Compared {
    /// By their speed.
    speed: Option<Estimate>,
    /// By their speed-up over plain decoding, if both runs have that.
    speedup: Option<Estimate>,
}

impl Compared {
    fn new(before: (&Record, &Value), behind: (&Record, &Value)) -> Self {
        let plain = before.0.plain_beside(before.1).zip(behind.0.plain_beside(behind.1));
        Self {
            speed: ratio((before.1, None), (behind.1, None)),
            speedup: plain.and_then(|plain| ratio((before.1, Some(plain.0)), (behind.1, Some(plain.1)))),
        }
    }
}

impl Record {
    /// Reads a record.
    fn read(path: &Path) -> Result<Self, Failure> {
        let path = if path.is_dir() { path.join("record.json") } else { path.to_owned() };
        let (text, place) = (read_text(&path)?, path.display());
        let parsed = |place: &str, text: &str| -> Result<Value, Failure> {
            serde_json::from_str(text)
                .map_err(|error| Failure::Other(format!("{place}: expected JSON, found: {error}")))
        };
        let mut facts = Value::Null;
        let rows = match serde_json::from_str::<Value>(&text) {
            Ok(Value::Object(mut record)) if record.contains_key("rows") => match record.remove("rows") {
                Some(Value::Array(rows)) => {
                    facts = Value::Object(record);
                    rows
                }
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
            false => Ok(Self { rows, facts }),
        }
    }

    /// Plain decoding beside a method, of the same prompts.
    fn plain_beside(&self, row: &Value) -> Option<&Value> {
        let beside = |other: &&Value| ["temperature", "parallel", "kind"].iter().all(|key| other[*key] == row[*key]);
        let is_plain = |row: &Value| row["budget"].is_null() && row["method"] == "plain";
        self.rows.iter().filter(|other| !is_plain(row) && is_plain(other)).find(beside)
    }
}

/// What a row is called.
fn name(row: &Value) -> String {
    let word = |key: &&str| match &row[*key] {
        Value::Null => None,
        Value::String(text) => Some(plain(text)),
        // As it was given: a temperature is a number of few digits.
        Value::Number(number) => number.as_f64().map(|number| format!("{key} {}", number as f32)),
        other => Some(format!("{key} {other}")),
    };
    KEYS.iter().filter_map(word).collect::<Vec<_>>().join(", ")
}

/// What makes the two hard to compare, a line each.
fn differences(before: &Record, behind: &Record) -> Vec<String> {
    let different = |what: &str, a: &Value, b: &Value| (a != b).then(|| format!("different {what}: {a} and {b}"));
    let (a, b) = (&before.rows[0], &behind.rows[0]);
    let rows = SAME.iter().filter_map(|field| different(field, &a[*field], &b[*field]));
    // What --json printed has no facts.
    let known = |field: &str| !before.facts[field].is_null() && !behind.facts[field].is_null();
    let facts = FACTS.iter().filter(|(field, _)| known(field));
    let facts = facts.filter_map(|(field, what)| different(what, &before.facts[*field], &behind.facts[*field]));
    rows.chain(facts).collect()
}

/// Groups with one token each, since a record has their seconds alone.
fn samples(row: &Value) -> Option<Vec<Vec<Sample>>> {
    let sample =
        |seconds: &Value| Some(Sample { tokens: 1, seconds: seconds.as_f64().filter(|seconds| *seconds >= 0.0)? });
    let group = |group: &Value| group.as_array().filter(|all| !all.is_empty())?.iter().map(sample).collect();
    row[SECONDS].as_array()?.iter().map(group).collect()
}

/// How much faster the second row is, each over plain decoding of its run if that is there; `None` where they have no
/// speed, or not as many groups of prompts.
fn ratio(before: (&Value, Option<&Value>), behind: (&Value, Option<&Value>)) -> Option<Estimate> {
    let read = |(row, plain): (&Value, Option<&Value>)| {
        let tokens = |row: &Value| row["tokens"].as_f64().filter(|tokens| *tokens > 0.0);
        let (own, mut written) = (samples(row)?, tokens(row)?);
        let Some(plain) = plain else { return Some((own, None, written)) };
        written /= tokens(plain)?;
        let plain = samples(plain)?;
        let lengths = |all: &[Vec<Sample>]| all.iter().map(Vec::len).collect::<Vec<_>>();
        (lengths(&own) == lengths(&plain)).then_some((own, Some(plain), written))
    };
    let ((a, plain_a, tokens_a), (b, plain_b, tokens_b)) = (read(before)?, read(behind)?);
    let (before, behind) = (Side { own: &a, plain: plain_a.as_deref() }, Side { own: &b, plain: plain_b.as_deref() });
    let (found, tokens) = ((a.len() == b.len()).then(|| Estimate::apart(behind, before))??, tokens_b / tokens_a);
    let interval = found.interval.map(|(low, high)| (low * tokens, high * tokens));
    Some(Estimate { value: found.value * tokens, interval })
}
