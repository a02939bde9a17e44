//! `foretoken bench compare`: two runs of `bench generate`, compared row by row.
//!
//! A ratio of speeds of two runs includes changes of the machine between them. So a method is judged by its speed-up
//! over plain decoding in its own run, if both runs have that, which cancels what slows a whole run. The interval is a
//! bootstrap's over groups of prompts and, for each run separately, repetitions. Differences of settings, which make
//! two runs hard to compare, are printed first. Records do not have the prompts, so it is not known which of them
//! differ.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use foretoken_console::failure::Failure;
use foretoken_console::progress::warn;
use foretoken_console::records::read_text;
use foretoken_console::terminal::standard_output;
use foretoken_weights::line::escaped;
use serde_json::{Value, json};

use super::generate::interval::{ComparedRun, Estimate, Sample};
use super::generate::table::number_or_dash;

/// The fields that distinguish the rows of a run.
const KEYS: [&str; 7] = ["temperature", "parallel", "kind", "verify", "lossy_lenience", "budget", "method"];
/// The fields that should be the same in both runs.
const SAME: [&str; 6] = ["model", "isa", "threads", "seed", "n_best", "prompts"];
/// Further fields of records of --report, and their names.
const FACTS: [(&str, &str); 3] = [("machine", "machine"), ("version", "version"), ("prompts", "file of prompts")];
/// The field of seconds of each group and repetition.
const SECONDS: &str = "seconds_behind_first_token_by_group";

const AFTER_HELP: &str = "\
  speed        tokens/s of B over those of A
  over plain   the speed-up over plain decoding of B's own run over that of A's
  interval     the 95 % interval of the last of these, from prompts and repetitions within each run
  verdict      by that interval: faster, slower or no difference

Changes of the machine between the runs affect every speed and no interval. They do not affect over plain, by
which methods are judged if both runs have a row of plain decoding; the speed of that row shows how much faster
machine or program have become as a whole.

With --json, differences of settings are printed on standard error; judged_by is speedup or speed.";

/// Options of `foretoken bench compare`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
#[command(after_long_help = AFTER_HELP)]
pub struct Compare {
    /// The earlier record: a folder of --report, its record.json, or the output of --json
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The later record
    #[arg(value_name = "B")]
    after: PathBuf,
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
        let (before, after) = (BenchRecord::read(&self.before)?, BenchRecord::read(&self.after)?);
        let (mut lines, mut alone) = (Vec::new(), Vec::new());
        for row in &after.rows {
            match before.rows.iter().find(|other| name(other) == name(row)) {
                Some(other) => lines.push(self.line(row, &Compared::new((&before, other), (&after, row)))),
                None => alone.push(format!("{}: only in {}", name(row), self.after.display())),
            }
        }
        let missing = before.rows.iter().filter(|row| !after.rows.iter().any(|other| name(other) == name(row)));
        alone.extend(missing.map(|row| format!("{}: only in {}", name(row), self.before.display())));
        if lines.is_empty() {
            let places = format!("{} and {}", self.before.display(), self.after.display());
            return Err(Failure::Other(format!("{places}: expected rows that both have, found none")));
        }
        let mut notes = differences(&before, &after);
        if self.json {
            // Programs that read JSON must not get other lines.
            notes.drain(..).chain(alone.drain(..)).for_each(warn);
        }
        let mut out = standard_output();
        notes.iter().chain(&lines).chain(&alone).try_for_each(|line| writeln!(out, "{line}"))?;
        Ok(out.flush()?)
    }

    /// The line of a row that both have.
    fn line(&self, row: &Value, compared: &Compared) -> String {
        let Compared { speed, speedup } = compared;
        let judged = speedup.or(*speed);
        let interval = judged.and_then(|judged| judged.interval);
        let verdict = judged.map_or("not comparable", |judged| judged.verdict().unwrap_or("-"));
        let value = |found: &Option<Estimate>| found.map(|found| found.value);
        if self.json {
            let mut object = json!({"speed": value(speed), "over_plain": value(speedup),
                "judged_by": if speedup.is_some() { "speedup" } else { "speed" }, "ratio": value(&judged),
                "low": interval.map(|(low, _)| low), "high": interval.map(|(_, high)| high), "verdict": verdict});
            KEYS.iter().for_each(|key| object[*key] = row[*key].clone());
            return object.to_string();
        }
        let speed = number_or_dash(value(speed), 2);
        let over_plain = value(speedup).map_or(String::new(), |speedup| format!(", over plain {speedup:.2}"));
        let interval = interval.map_or(String::new(), |(low, high)| format!(" ({low:.2}-{high:.2})"));
        let whose =
            if over_plain.is_empty() && ["faster", "slower"].contains(&verdict) { ", machine or program" } else { "" };
        format!("{}: speed {speed}{over_plain}{interval} {verdict}{whose}", name(row))
    }
}

/// A record of `bench generate`.
struct BenchRecord {
    /// Its rows, at least one.
    rows: Vec<Value>,
    /// Its other fields; null if there are none.
    facts: Value,
}

/// The ratios of the second of two rows over the first.
struct Compared {
    /// By their speed.
    speed: Option<Estimate>,
    /// By their speed-up over plain decoding, if both runs have that.
    speedup: Option<Estimate>,
}

impl Compared {
    fn new(before: (&BenchRecord, &Value), after: (&BenchRecord, &Value)) -> Self {
        let plain = before.0.plain_of(before.1).zip(after.0.plain_of(after.1));
        Self {
            speed: ratio((before.1, None), (after.1, None)),
            speedup: plain.and_then(|plain| ratio((before.1, Some(plain.0)), (after.1, Some(plain.1)))),
        }
    }
}

impl BenchRecord {
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

    /// The row of plain decoding of the same prompts as a method's.
    fn plain_of(&self, row: &Value) -> Option<&Value> {
        let same_prompts =
            |other: &&Value| ["temperature", "parallel", "kind"].iter().all(|key| other[*key] == row[*key]);
        let is_plain = |row: &Value| row["budget"].is_null() && row["method"] == "plain";
        self.rows.iter().filter(|other| !is_plain(row) && is_plain(other)).find(same_prompts)
    }
}

/// The name of a row.
fn name(row: &Value) -> String {
    let word = |key: &&str| match &row[*key] {
        Value::Null => None,
        Value::String(text) => Some(escaped(text)),
        // Shortest decimals of an f32, as the user gave a temperature.
        Value::Number(number) => number.as_f64().map(|number| format!("{key} {}", number as f32)),
        other => Some(format!("{key} {other}")),
    };
    KEYS.iter().filter_map(word).collect::<Vec<_>>().join(", ")
}

/// Differences of settings, which make the two hard to compare, a line each.
fn differences(before: &BenchRecord, after: &BenchRecord) -> Vec<String> {
    let different = |what: &str, a: &Value, b: &Value| (a != b).then(|| format!("different {what}: {a} and {b}"));
    let (a, b) = (&before.rows[0], &after.rows[0]);
    let rows = SAME.iter().filter_map(|field| different(field, &a[*field], &b[*field]));
    // The output of --json has no further fields.
    let known = |field: &str| !before.facts[field].is_null() && !after.facts[field].is_null();
    let facts = FACTS.iter().filter(|(field, _)| known(field));
    let facts = facts.filter_map(|(field, what)| different(what, &before.facts[*field], &after.facts[*field]));
    rows.chain(facts).collect()
}

/// Groups with one token each, since a record has only their seconds.
fn samples(row: &Value) -> Option<Vec<Vec<Sample>>> {
    let sample =
        |seconds: &Value| Some(Sample { tokens: 1, seconds: seconds.as_f64().filter(|seconds| *seconds >= 0.0)? });
    let group = |group: &Value| group.as_array().filter(|all| !all.is_empty())?.iter().map(sample).collect();
    row[SECONDS].as_array()?.iter().map(group).collect()
}

/// How much faster the second row is, each over plain decoding of its run if there is one; `None` if they have no
/// speed, or different numbers of groups of prompts.
fn ratio(before: (&Value, Option<&Value>), after: (&Value, Option<&Value>)) -> Option<Estimate> {
    let read = |(row, plain): (&Value, Option<&Value>)| {
        let tokens = |row: &Value| row["tokens"].as_f64().filter(|tokens| *tokens > 0.0);
        let (own, mut written) = (samples(row)?, tokens(row)?);
        let Some(plain) = plain else { return Some((own, None, written)) };
        written /= tokens(plain)?;
        let plain = samples(plain)?;
        let lengths = |all: &[Vec<Sample>]| all.iter().map(Vec::len).collect::<Vec<_>>();
        (lengths(&own) == lengths(&plain)).then_some((own, Some(plain), written))
    };
    let ((a, plain_a, tokens_a), (b, plain_b, tokens_b)) = (read(before)?, read(after)?);
    let (before, after) =
        (ComparedRun { own: &a, plain: plain_a.as_deref() }, ComparedRun { own: &b, plain: plain_b.as_deref() });
    let (found, tokens) =
        ((a.len() == b.len()).then(|| Estimate::of_separate_runs(after, before))??, tokens_b / tokens_a);
    let interval = found.interval.map(|(low, high)| (low * tokens, high * tokens));
    Some(Estimate { value: found.value * tokens, interval })
}
