//! The measured costs of passes and drafts, kept between runs.
//!
//! How much to draft depends on what passes and drafts cost on this machine. The first run of a model measures the
//! costs at the start, in well under a second; what its passes teach is kept in the cache folder
//! (`$XDG_CACHE_HOME/foretoken` or `~/.cache/foretoken`), one small file for each model, way of running it and machine.
//! If a file is damaged or has another key, costs are measured again. Costs of a file that the settings name are fixed:
//! they are used unchanged, so that drafts do not depend on the clock. The crate `speculation` decides by the costs.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

use foretoken_engine::{CostRecord, DrafterTime, Engine, WidthTime};
use foretoken_kernels::Isa;
use foretoken_speculation::DrafterCosts;
use foretoken_weights::whole;
use serde_json::{Value, json};

use crate::Error;
use crate::error::{KeptFileError, Message};
use crate::kept_file::{self, excerpt};
use crate::output_file::OutputFile;
use crate::spec_type::DrafterKind;

/// The version of the file's format.
const VERSION: u64 = 2;
/// The most passes, and points of a pass, that a file may have; measuring gives fewer.
const ENTRIES_MAX: usize = 1024;
/// The most bytes that a file may have.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Times in a file are below this number of seconds.
const SECONDS_MAX: f64 = 1e6;

/// The file in which an engine's costs are kept, or its fixed costs. By default neither.
#[derive(Debug, Default)]
pub(crate) struct KeptCosts {
    path: Option<PathBuf>,
    key: String,
    /// The JSON of fixed costs; `None` if costs are measured.
    pub(crate) fixed: Option<Value>,
}

impl KeptCosts {
    /// Gives an engine the fixed costs of `file`, the costs of earlier runs, or measured ones. `names`: of its
    /// drafters; `key`: everything that costs depend on besides the machine; `notes`: receives notes for users.
    ///
    /// # Errors
    /// `file` cannot be used.
    pub(crate) fn prepare(
        engine: &mut Engine,
        names: &[String],
        file: Option<&Path>,
        key: &str,
        notes: &mut Vec<Message>,
    ) -> Result<Self, Error> {
        let key = format!("{key}; {}; {}", Isa::chosen().name(), machine());
        if let Some(path) = file {
            if !kept_file::exists(path)? {
                kept_file::check_writable(path)?;
                engine.measure_costs();
                let written = write(path, &key, &engine.cost_record(), names);
                written.map_err(|error| KeptFileError::io(path, "written", &error))?;
                let measured = format!(" {}: was not there and has been measured", path.display());
                notes.push(Message::setting("costs").and(measured));
            }
            let wrong = |why| Error::input(format!("{}: {why}", path.display()));
            let value = read_value(path).map_err(wrong)?;
            let found = parse(&value).map_err(wrong)?;
            if found.measured_for != key {
                let keys = differing_parts(&found.measured_for, &key);
                notes.push(Message::setting("costs").and(format!(" {}: measured for {keys}", path.display())));
            }
            let missing = names.iter().find(|name| has_network(name) && !found.drafters.contains_key(*name));
            if let Some(name) = missing {
                let why =
                    format!("drafters: expected one named {name}, found none; name a new file to have it measured");
                return Err(wrong(why));
            }
            engine.hold_costs(found.record(names).costs());
            return Ok(Self { fixed: Some(value), ..Self::default() });
        }
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let path = cache_folder().map(|folder| folder.join(format!("costs-{:016x}.json", hasher.finish())));
        if let Some(path) = path.as_deref().filter(|path| path.exists()) {
            match read(path) {
                Ok(found) if found.measured_for == key => engine.resume_costs(&found.record(names)),
                Ok(found) => {
                    let keys = differing_parts(&found.measured_for, &key);
                    notes
                        .push(Message::words(format!("{}: measured anew: it was measured for {keys}", path.display())));
                }
                Err(why) => notes.push(Message::words(format!("{}: measured anew: {why}", path.display()))),
            }
        }
        engine.measure_costs();
        Ok(Self { path, key, fixed: None })
    }

    /// Gives an engine the fixed costs of a record.
    ///
    /// # Errors
    /// They cannot be parsed.
    pub(crate) fn of_record(engine: &mut Engine, names: &[String], costs: &Value) -> Result<Self, Error> {
        let found = parse(costs).map_err(|why| Error::input(format!("record: costs: {why}")))?;
        engine.hold_costs(found.record(names).costs());
        Ok(Self { fixed: Some(costs.clone()), ..Self::default() })
    }

    /// Writes the costs that an engine has learned for the next run. The file is a cache, so errors are ignored.
    pub(crate) fn write_learned(&self, engine: &Engine, names: &[String]) {
        let record = engine.cost_record();
        // A run that failed before its first pass has measured nothing.
        if let Some(path) = self.path.as_ref().filter(|_| !record.widths.is_empty()) {
            path.parent().map(std::fs::create_dir_all);
            write(path, &self.key, &record, names).ok();
        }
    }
}

/// The costs of a target and a draft model as measured by runs on this machine: seconds of a pass of one row, and of a
/// step of the draft model. `None` if they have not run together.
pub fn measured_costs(target: &Path, draft: &Path) -> Option<(f64, f64)> {
    let draft = format!("drafts [{} (", std::fs::canonicalize(draft).ok()?.display());
    let mut found = of_target(target)?.into_iter().filter(|found| found.measured_for.contains(&draft));
    found.find_map(|found| {
        let pass = found.widths.iter().filter(|width| width.rows == 1).min_by_key(|width| width.context_min)?.seconds;
        let (_, draft) = found.drafters.iter().find(|(name, draft)| has_network(name) && draft.costs.step > 0.0)?;
        Some((pass, draft.costs.step))
    })
}

/// The most rows a second of any pass of a target, as measured by runs on this machine. `None` if it has not run.
pub fn measured_rows_per_second(target: &Path) -> Option<f64> {
    let found = of_target(target)?;
    let widths = found.iter().flat_map(|found| &found.widths);
    widths.map(|width| width.rows as f64 / width.seconds).max_by(f64::total_cmp)
}

/// The files of a target's costs on this machine.
fn of_target(target: &Path) -> Option<Vec<CostFile>> {
    let target = format!("{} (", std::fs::canonicalize(target).ok()?.display());
    let files = std::fs::read_dir(cache_folder()?).ok()?.flatten().filter_map(|entry| read(&entry.path()).ok());
    let is_wanted = |file: &CostFile| file.measured_for.starts_with(&target) && file.measured_for.ends_with(&machine());
    Some(files.filter(is_wanted).collect())
}

/// Whether the drafter of this name runs a network.
fn has_network(name: &str) -> bool {
    DrafterKind::all().any(|kind| kind.has_network() && name.starts_with(kind.name()))
}

/// The cache folder.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("foretoken"))
}

/// The name of the processor and the number of its cores.
pub fn machine() -> String {
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = all.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = named.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {} cores", std::thread::available_parallelism().map_or(1, usize::from))
}

/// The content of a file of costs.
#[derive(Debug)]
pub(crate) struct CostFile {
    /// The key of the run that measured them.
    measured_for: String,
    widths: Vec<WidthTime>,
    /// Times of the drafters, by name.
    drafters: BTreeMap<String, DrafterTime>,
}

impl CostFile {
    /// The costs for an engine with drafters of these names; a drafter that the file lacks costs nothing.
    fn record(&self, names: &[String]) -> CostRecord {
        let drafter = |name: &String| self.drafters.get(name).copied().unwrap_or_default();
        CostRecord { widths: self.widths.clone(), drafters: names.iter().map(drafter).collect() }
    }

    /// Its JSON.
    pub(crate) fn json(&self) -> Value {
        let mut passes: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
        for WidthTime { context_min, rows, seconds, times, age } in &self.widths {
            passes.entry(*context_min).or_default().push(json!([rows, seconds, times, age]));
        }
        let pass = |(context_min, points): (usize, Vec<Value>)| {
            let points = Value::from(points);
            json!({ "context_min": context_min, "rows_seconds_times_age": points })
        };
        let drafter = |(name, time): (&String, &DrafterTime)| {
            let DrafterTime { costs: DrafterCosts { call, step, catch_up }, age } = time;
            (name.clone(), json!({ "call": call, "step": step, "catch_up": catch_up, "age": age }))
        };
        json!({
            "foretoken_costs": VERSION,
            "of": self.measured_for,
            "passes": passes.into_iter().map(pass).collect::<Vec<_>>(),
            "drafters": self.drafters.iter().map(drafter).collect::<serde_json::Map<String, Value>>(),
        })
    }
}

/// Writes a file atomically; times of other drafters in the previous file with this key are kept.
fn write(path: &Path, key: &str, record: &CostRecord, names: &[String]) -> std::io::Result<()> {
    let before = read(path).ok().filter(|found| found.measured_for == key);
    let mut drafters = before.map_or(BTreeMap::new(), |found| found.drafters);
    drafters.extend(names.iter().cloned().zip(record.drafters.iter().copied()));
    let now = CostFile { measured_for: key.to_string(), widths: record.widths.clone(), drafters };
    let mut file = OutputFile::kept(path)?.not_durable();
    writeln!(file, "{:#}", now.json())?;
    file.end()
}

/// Reads a file.
fn read(path: &Path) -> Result<CostFile, String> {
    parse(&read_value(path)?)
}

/// The JSON of a file.
fn read_value(path: &Path) -> Result<Value, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let text = whole::read_text(path, FILE_BYTES_MAX).map_err(unreadable)?;
    serde_json::from_str(&text).map_err(|error| format!("expected JSON, found: {error}"))
}

/// Parses the JSON of a file.
pub(crate) fn parse(value: &Value) -> Result<CostFile, String> {
    if value["foretoken_costs"] != VERSION {
        return Err(wrong("foretoken_costs", &VERSION.to_string(), &value["foretoken_costs"]));
    }
    let of = value["of"].as_str().ok_or_else(|| wrong("of", "a text", &value["of"]))?;
    let passes = value["passes"].as_array().filter(|all| !all.is_empty() && all.len() <= ENTRIES_MAX);
    let passes = passes.ok_or_else(|| wrong("passes", &format!("a list of 1 to {ENTRIES_MAX}"), &value["passes"]))?;
    let widths = passes.iter().map(widths).collect::<Result<Vec<_>, String>>()?.concat();
    if let Some(pair) = widths.windows(2).find(|pair| pair[0].context_min > pair[1].context_min) {
        let [before, found] = [pair[0].context_min, pair[1].context_min];
        return Err(format!("passes: expected context_min to ascend, found {found} behind {before}"));
    }
    if widths.windows(2).any(|pair| pair[0].context_min == pair[1].context_min && pair[0].rows >= pair[1].rows) {
        return Err("passes: expected each context_min once, found one twice".to_string());
    }
    let seconds = |name: &str, field: &str| {
        let found = &value["drafters"][name][field];
        let valid = found.as_f64().filter(|seconds| (0.0..SECONDS_MAX).contains(seconds));
        let expected = format!("seconds, 0 up to less than {SECONDS_MAX}");
        valid.ok_or_else(|| wrong(&format!("drafters: {}: {field}", excerpt(name)), &expected, found))
    };
    let drafter = |name: &String| {
        let costs = DrafterCosts {
            call: seconds(name, "call")?,
            step: seconds(name, "step")?,
            catch_up: seconds(name, "catch_up")?,
        };
        let age = &value["drafters"][name]["age"];
        let age =
            age.as_u64().ok_or_else(|| wrong(&format!("drafters: {}: age", excerpt(name)), "a whole number", age))?;
        Ok((name.clone(), DrafterTime { costs, age }))
    };
    let named = value["drafters"].as_object().ok_or_else(|| wrong("drafters", "an object", &value["drafters"]))?;
    let drafters = named.keys().map(drafter).collect::<Result<_, String>>()?;
    Ok(CostFile { measured_for: of.to_string(), widths, drafters })
}

/// Parses the times of passes at one context length, by ascending rows.
fn widths(value: &Value) -> Result<Vec<WidthTime>, String> {
    let context = value["context_min"].as_u64().and_then(|context| usize::try_from(context).ok());
    let context_min = context.ok_or_else(|| wrong("passes: context_min", "a whole number", &value["context_min"]))?;
    let points = value["rows_seconds_times_age"].as_array().filter(|all| !all.is_empty() && all.len() <= ENTRIES_MAX);
    let expected = format!("a list of 1 to {ENTRIES_MAX}");
    let points =
        points.ok_or_else(|| wrong("passes: rows_seconds_times_age", &expected, &value["rows_seconds_times_age"]))?;
    let width = |point: &Value| {
        let whole = |at: usize| usize::try_from(point[at].as_u64()?).ok().filter(|number| *number > 0);
        let seconds = point[1].as_f64().filter(|seconds| *seconds > 0.0 && *seconds < SECONDS_MAX)?;
        Some(WidthTime { context_min, rows: whole(0)?, seconds, times: whole(2)?, age: point[3].as_u64()? })
    };
    let expected = format!("rows, seconds (more than 0, less than {SECONDS_MAX}), times and age");
    let widths = points.iter().map(|point| width(point).ok_or_else(|| wrong("passes", &expected, point)));
    let widths = widths.collect::<Result<Vec<WidthTime>, String>>()?;
    match widths.windows(2).find(|pair| pair[0].rows >= pair[1].rows) {
        Some(pair) => Err(format!("passes: expected rows to ascend, found {} behind {}", pair[1].rows, pair[0].rows)),
        None => Ok(widths),
    }
}

/// The error of an invalid field.
fn wrong(field: &str, expected: &str, found: &Value) -> String {
    format!("{field}: expected {expected}, found {}", excerpt(&found.to_string()))
}

/// The parts in which two keys differ: `of` is the file's, `key` this run's.
fn differing_parts(of: &str, key: &str) -> String {
    let parts = |one: &str, other: &str| {
        let other: Vec<&str> = other.split("; ").collect();
        one.split("; ").filter(|part| !other.contains(part)).collect::<Vec<_>>().join("; ")
    };
    format!("{}; this is {}", excerpt(&parts(of, key)), excerpt(&parts(key, of)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> CostRecord {
        let width = |context_min, rows, seconds| WidthTime { context_min, rows, seconds, times: 3, age: 7 };
        let widths = vec![width(0, 1, 0.01), width(0, 8, 0.0125), width(512, 1, 0.015)];
        let costs = DrafterCosts { call: 1e-6, step: 2e-4, catch_up: 3e-5 };
        CostRecord { widths, drafters: vec![DrafterTime { costs, age: 5 }, DrafterTime::default()] }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn drafters_are_found_by_name_whatever_their_order() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("costs.json");
        write(&path, "a key", &record(), &names(&["draft", "suffix"])).expect("it can be written");
        let found = read(&path).expect("it can be read");
        assert_eq!((found.measured_for.as_str(), &found.widths), ("a key", &record().widths));
        let draft = record().drafters[0];
        let drafters = |names_now: &[&str]| read(&path).expect("it can be read").record(&names(names_now)).drafters;
        assert_eq!(drafters(&["suffix", "trie", "draft"]), [DrafterTime::default(), DrafterTime::default(), draft]);
        // A run with other drafters keeps these, a run with another key does not.
        let other = CostRecord { drafters: vec![DrafterTime { age: 9, ..draft }], ..record() };
        write(&path, "a key", &other, &names(&["trie"])).expect("it can be written");
        assert_eq!(drafters(&["draft", "trie"]), [draft, other.drafters[0]]);
        write(&path, "another key", &other, &names(&["trie"])).expect("it can be written");
        assert_eq!(drafters(&["draft"]), [DrafterTime::default()]);
    }

    #[test]
    fn damage_is_named_by_field() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("costs.json");
        write(&path, "a key", &record(), &names(&["draft", "suffix"])).expect("it can be written");
        let whole = std::fs::read_to_string(&path).expect("it is there");
        let damaged = |from: &str, to: &str| {
            std::fs::write(&path, whole.replacen(from, to, 1)).expect("it can be written");
            read(&path).expect_err(to)
        };
        assert!(damaged("\"foretoken_costs\": 2", "\"foretoken_costs\": 9").starts_with("foretoken_costs: expected 2"));
        assert!(damaged("0.0002", "-1").starts_with("drafters: draft: step: expected seconds, 0 up to"));
        assert!(damaged("0.0002", "1e300").contains("step: expected seconds"));
        assert!(damaged("0.0125", "null").starts_with("passes: expected rows, seconds (more than 0"));
        assert!(damaged("512", "0").starts_with("passes: expected each context_min once, found one twice"));
        assert!(
            damaged("\"context_min\": 0", "\"context_min\": 900").starts_with("passes: expected context_min to ascend")
        );
        assert!(damaged("8,", "1,").starts_with("passes: expected rows to ascend, found 1 behind 1"));
        let bell = damaged("\"foretoken_costs\": 2", "\"foretoken_costs\": \"\\u0007\\u009b\"");
        assert!(bell.ends_with(r#"found "\u0007\u{9b}""#), "{bell}");
        let long = damaged("0.0002", &format!("\"{}\"", "9".repeat(5000)));
        assert!(long.len() < 400 && long.ends_with("..."), "{long}");
        assert!(damaged("\"of\"", "\"off\"").starts_with("of: expected a text"));
        let cut = whole[..whole.len() / 2].to_string();
        std::fs::write(&path, cut).expect("it can be written");
        assert!(read(&path).expect_err("half a file").starts_with("expected JSON"));
        assert!(read(folder.path()).expect_err("a folder").ends_with("expected a regular file, found a folder"));
        std::fs::write(&path, " ".repeat(FILE_BYTES_MAX as usize + 1)).expect("it can be written");
        assert!(read(&path).expect_err("a large file").ends_with("expected at most 1048576 bytes, found 1048577"));
        assert_eq!(differing_parts("a; 1 threads; here", "a; 2 threads; here"), "1 threads; this is 2 threads");
    }
}
