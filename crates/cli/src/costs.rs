//! What passes and drafts cost, kept between runs.
//!
//! Drafts are weighed by what they cost on this machine. The first run of a model measures it at the start, in well under a
//! second; what its passes then teach is kept in the cache folder (`$XDG_CACHE_HOME/foretoken` or `~/.cache/foretoken`),
//! one small file for each model, way of running it and machine. A file that is damaged or of something else is measured
//! anew. With `--costs FILE` that file is read and held, so that nothing that is drafted depends on the clock.
//!
//! Left out: what is made of costs, which `speculation` knows.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use foretoken_engine::{Costs, Engine};
use foretoken_kernels::Isa;
use foretoken_speculation::DrafterCosts;
use foretoken_speculation::costs::Curve;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::options::Kind;
use crate::progress::say;

/// The version of the file's form.
const VERSION: u64 = 1;
/// More curves or points than any machine gives are a damaged file.
const MOST: usize = 1024;
/// No pass takes so many seconds.
const SECONDS_MAX: f64 = 1e6;

/// Where costs are kept, if anywhere.
#[derive(Debug, Default)]
pub struct KeptCosts {
    path: Option<PathBuf>,
    key: String,
}

impl KeptCosts {
    /// Gives an engine the costs of earlier runs, or measures them. `names`: of its drafters; `held`: the file of `--costs`;
    /// `key`: all that costs depend on besides the machine.
    ///
    /// # Errors
    /// A file to be held cannot be used.
    pub fn prepare(engine: &mut Engine, names: &[String], held: Option<&Path>, key: &str) -> Result<Self, Failure> {
        let key = format!("{key}; {}; {}", Isa::chosen().name(), machine());
        if let Some(path) = held {
            if !path.exists() {
                engine.measure_costs();
                write(path, &key, engine.costs(), names).map_err(|error| unwritable(path, &error))?;
                say(format_args!("note: --costs {}: was not there and has been measured", path.display()));
            }
            let (found, costs) =
                read(path, names).map_err(|why| Failure::Other(format!("{}: {why}", path.display())))?;
            if found != key {
                say(format_args!("note: --costs {}: measured for {found}", path.display()));
            }
            let missing = names.iter().zip(&costs.drafters).find(|(name, costs)| is_model(name) && costs.step == 0.0);
            if let Some((name, _)) = missing {
                let why = format!("drafters: expected one named {name}, found none; a new file will be measured");
                return Err(Failure::Other(format!("{}: {why}", path.display())));
            }
            engine.set_costs(costs, true);
            return Ok(Self::default());
        }
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let path = folder().map(|folder| folder.join(format!("costs-{:016x}.json", hasher.finish())));
        if let Some(path) = path.as_deref().filter(|path| path.exists()) {
            match read(path, names) {
                Ok((found, costs)) if found == key => engine.set_costs(costs, false),
                Ok((found, _)) => say(format_args!("note: {}: measured anew: it is of {found}", path.display())),
                Err(why) => say(format_args!("note: {}: measured anew: {why}", path.display())),
            }
        }
        engine.measure_costs();
        Ok(Self { path, key })
    }

    /// Keeps what an engine has learned for the next run. It is a cache: where it cannot be written nothing is lost.
    pub fn keep(&self, engine: &Engine, names: &[String]) {
        if let Some(path) = self.path.as_ref().filter(|_| !engine.costs().curves.is_empty()) {
            write(path, &self.key, engine.costs(), names).ok();
        }
    }
}

/// Whether a drafter of this name runs a network.
fn is_model(name: &str) -> bool {
    name.starts_with(Kind::Draft.name())
}

fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("foretoken"))
}

/// The processor, as it names itself.
fn machine() -> String {
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = all.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = named.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {} cores", std::thread::available_parallelism().map_or(1, usize::from))
}

/// Writes a file beside its place and moves it there, so that nobody reads half of it.
fn write(path: &Path, key: &str, costs: &Costs, names: &[String]) -> std::io::Result<()> {
    let curve = |curve: &Curve| json!({ "context_min": curve.context_min, "seconds_by_rows": curve.points() });
    let drafter = |costs: &DrafterCosts| json!({ "call": costs.call, "step": costs.step, "catch_up": costs.catch_up });
    let drafters = names.iter().zip(&costs.drafters).map(|(name, costs)| (name.clone(), drafter(costs)));
    let value = json!({
        "foretoken_costs": VERSION,
        "of": key,
        "passes": costs.curves.iter().map(curve).collect::<Vec<_>>(),
        "drafters": drafters.collect::<serde_json::Map<String, Value>>(),
    });
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&beside, format!("{value:#}\n"))?;
    std::fs::rename(&beside, path)
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Other(format!("{}: cannot be written: {error}", path.display()))
}

/// Reads a file: what it is of, and costs with drafters in the order of `names`.
fn read(path: &Path, names: &[String]) -> Result<(String, Costs), String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| format!("expected JSON, found: {error}"))?;
    let wrong = |field: &str, expected: &str, found: &Value| format!("{field}: expected {expected}, found {found}");
    if value["foretoken_costs"] != VERSION {
        return Err(wrong("foretoken_costs", &VERSION.to_string(), &value["foretoken_costs"]));
    }
    let of = value["of"].as_str().ok_or_else(|| wrong("of", "a text", &value["of"]))?;
    let passes = value["passes"].as_array().filter(|all| !all.is_empty() && all.len() <= MOST);
    let passes = passes.ok_or_else(|| wrong("passes", "a list", &value["passes"]))?;
    let mut curves = passes.iter().map(curve).collect::<Result<Vec<Curve>, String>>()?;
    curves.sort_by_key(|curve| curve.context_min);
    let seconds = |name: &str, field: &str| {
        let found = &value["drafters"][name][field];
        let valid = found.as_f64().filter(|seconds| (0.0..SECONDS_MAX).contains(seconds));
        valid.ok_or_else(|| wrong(&format!("drafters: {name}: {field}"), "seconds", found))
    };
    let drafter = |name: &String| match value["drafters"].get(name) {
        None => Ok(DrafterCosts::default()),
        Some(_) => Ok(DrafterCosts {
            call: seconds(name, "call")?,
            step: seconds(name, "step")?,
            catch_up: seconds(name, "catch_up")?,
        }),
    };
    let drafters = names.iter().map(drafter).collect::<Result<Vec<_>, String>>()?;
    Ok((of.to_string(), Costs { curves, drafters }))
}

/// A curve whose widths ascend.
fn curve(value: &Value) -> Result<Curve, String> {
    let point = |point: &Value| {
        let rows = usize::try_from(point[0].as_u64()?).ok().filter(|rows| *rows > 0)?;
        let seconds = point[1].as_f64().filter(|seconds| *seconds > 0.0 && *seconds < SECONDS_MAX)?;
        Some((rows, seconds))
    };
    let context_min = value["context_min"].as_u64().and_then(|context| usize::try_from(context).ok());
    let points = value["seconds_by_rows"].as_array().filter(|points| !points.is_empty() && points.len() <= MOST);
    let points: Option<Vec<(usize, f64)>> = points.and_then(|points| points.iter().map(point).collect());
    let points = points.filter(|points| points.windows(2).all(|pair| pair[0].0 < pair[1].0));
    match (context_min, points) {
        (Some(context_min), Some(points)) => Ok(Curve::new(context_min, points)),
        _ => Err(format!("passes: expected a context and pairs of rows and seconds, rows ascending, found {value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        let points = |scale: f64| vec![(1, 0.01 * scale), (8, 0.0125 * scale)];
        let curves = [(0, 1.0), (512, 1.5)].map(|(context_min, scale)| Curve::new(context_min, points(scale)));
        let drafter = DrafterCosts { call: 1e-6, step: 2e-4, catch_up: 3e-5 };
        Costs { curves: curves.to_vec(), drafters: vec![drafter, DrafterCosts::default()] }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_written_is_read_whatever_the_order_of_drafters_is_now() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("deep/costs.json");
        write(&path, "a key", &costs(), &names(&["draft", "suffix"])).expect("it can be written");
        let (of, found) = read(&path, &names(&["suffix", "trie", "draft"])).expect("it can be read");
        assert_eq!(of, "a key");
        assert_eq!(found.curves, costs().curves);
        assert_eq!(found.drafters, [DrafterCosts::default(), DrafterCosts::default(), costs().drafters[0]]);
    }

    #[test]
    fn damage_is_named_by_field() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("costs.json");
        write(&path, "a key", &costs(), &names(&["draft", "suffix"])).expect("it can be written");
        let whole = std::fs::read_to_string(&path).expect("it is there");
        let damaged = |from: &str, to: &str| {
            std::fs::write(&path, whole.replacen(from, to, 1)).expect("it can be written");
            read(&path, &names(&["draft"])).expect_err(to)
        };
        assert!(damaged("\"foretoken_costs\": 1", "\"foretoken_costs\": 9").starts_with("foretoken_costs: expected 1"));
        assert!(damaged("0.0002", "-1").starts_with("drafters: draft: step: expected seconds, found -1"));
        assert!(damaged("0.0002", "1e300").contains("step: expected seconds"));
        assert!(damaged("0.0125", "null").starts_with("passes: expected"));
        assert!(damaged("\"of\"", "\"off\"").starts_with("of: expected a text"));
        let cut = whole[..whole.len() / 2].to_string();
        std::fs::write(&path, cut).expect("it can be written");
        assert!(read(&path, &[]).expect_err("half a file").starts_with("expected JSON"));
    }
}
