//! `foretoken list`: the models in the hub's cache, whichever program fetched them.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use foretoken::line::escaped;
use foretoken::models::Opened;
use foretoken_console::failure::Failure;
use foretoken_console::hub::hub;
use foretoken_console::terminal::standard_output;
use foretoken_hub::{CachedSnapshot, ModelFormat, SnapshotModel, readable};
use serde_json::{Value, json};

/// Options of `foretoken list`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Hub")]
pub struct List {
    /// Print a JSON array with one object a model: name, repo, revision, refs, kind, quant, path, bytes, complete,
    /// lacks (the first file that is missing or of another size), family (null: none that can be run), and
    /// partial_bytes (what interrupted downloads of the repository have left)
    #[arg(long)]
    json: bool,
}

impl List {
    /// Runs the command.
    ///
    /// # Errors
    /// The environment names no cache.
    pub fn run(&self) -> Result<(), Failure> {
        let hub = hub()?;
        let snapshots = hub.snapshots();
        let mut out = standard_output();
        if self.json {
            let all: Vec<Value> = snapshots.iter().flat_map(objects).collect();
            writeln!(out, "{:#}", Value::from(all))?;
            return Ok(out.flush()?);
        }
        let rows: Vec<[String; 5]> = snapshots.iter().flat_map(rows).collect();
        let titles = ["name", "revision", "size", "type", "family"].map(str::to_string);
        let width = |column: usize| std::iter::once(&titles).chain(&rows).map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..titles.len()).map(|column| width(column).unwrap_or(0)).collect();
        for row in std::iter::once(&titles).chain(&rows) {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(out, "{}", cells.join("  ").trim_end())?;
        }
        writeln!(out, "{}", hub.cache().display())?;
        Ok(out.flush()?)
    }
}

/// Names and paths of the models in the cache that can be run.
///
/// # Errors
/// The environment names no cache.
pub fn cached_models() -> Result<Vec<(String, PathBuf)>, Failure> {
    let snapshots = hub()?.snapshots();
    let models = snapshots.iter().flat_map(|snapshot| snapshot.models.iter().map(move |model| (snapshot, model)));
    let usable = models.filter(|(_, model)| family_of(model).is_some());
    Ok(usable.map(|(snapshot, model)| (snapshot.name_of(model), model.path.clone())).collect())
}

/// The family of a complete model.
fn family_of(model: &SnapshotModel) -> Option<String> {
    let opened = model.missing_file.is_none().then(|| Opened::at(&model.path).ok()).flatten()?;
    Some(opened.spec.family.to_string())
}

fn rows(snapshot: &CachedSnapshot) -> Vec<[String; 5]> {
    let short = snapshot.commit.chars().take(8).collect::<String>();
    let row = |model: &SnapshotModel| {
        let kind = match &model.kind {
            ModelFormat::Safetensors => "safetensors".to_string(),
            ModelFormat::Gguf(quant) => format!("gguf {quant}"),
        };
        let family = match &model.missing_file {
            Some(file) => format!("incomplete: {file}"),
            None => family_of(model).unwrap_or_else(|| "none that can be run".to_string()),
        };
        [snapshot.name_of(model), short.clone(), readable(model.bytes), kind, family]
    };
    let mut rows: Vec<_> = snapshot.models.iter().map(row).collect();
    if rows.is_empty() && snapshot.partial_bytes > 0 {
        let partial = "incomplete: pull goes on with it".to_string();
        rows.push([snapshot.repo.clone(), short, readable(snapshot.partial_bytes), "-".to_string(), partial]);
    }
    rows.into_iter().map(|row| row.map(|cell| escaped(&cell))).collect()
}

fn objects(snapshot: &CachedSnapshot) -> Vec<Value> {
    let common = |name: String| {
        json!({
            "name": name,
            "repo": snapshot.repo,
            "revision": Some(&snapshot.commit).filter(|commit| !commit.is_empty()),
            "refs": snapshot.refs,
            "partial_bytes": snapshot.partial_bytes,
        })
    };
    let object = |model: &SnapshotModel| {
        let mut object = common(snapshot.name_of(model));
        let (kind, quant) = match &model.kind {
            ModelFormat::Safetensors => ("safetensors", None),
            ModelFormat::Gguf(quant) => ("gguf", Some(quant)),
        };
        object["kind"] = json!(kind);
        object["quant"] = json!(quant);
        object["path"] = json!(model.path.display().to_string());
        object["bytes"] = json!(model.bytes);
        object["complete"] = json!(model.missing_file.is_none());
        object["lacks"] = json!(model.missing_file);
        object["family"] = json!(family_of(model));
        object
    };
    let mut all: Vec<Value> = snapshot.models.iter().map(object).collect();
    if all.is_empty() && snapshot.partial_bytes > 0 {
        let mut object = common(snapshot.repo.clone());
        object["complete"] = json!(false);
        all.push(object);
    }
    all
}
