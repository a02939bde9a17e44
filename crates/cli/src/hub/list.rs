//! `foretoken list`: which models of the hub lie in the cache, whoever fetched them.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use foretoken::line::plain;
use foretoken_console::failure::Failure;
use foretoken_console::hub::hub;
use foretoken_hub::{Form, Held, Kind, readable};
use serde_json::{Value, json};

use super::family;

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
        let held = hub.held();
        let mut out = std::io::stdout();
        if self.json {
            let all: Vec<Value> = held.iter().flat_map(objects).collect();
            writeln!(out, "{:#}", Value::from(all))?;
            return Ok(out.flush()?);
        }
        let rows: Vec<[String; 5]> = held.iter().flat_map(rows).collect();
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
pub fn held() -> Result<Vec<(String, PathBuf)>, Failure> {
    let held = hub()?.held();
    let forms = held.iter().flat_map(|held| held.forms.iter().map(move |form| (held, form)));
    let usable = forms.filter(|(_, form)| family_of(form).is_some());
    Ok(usable.map(|(held, form)| (held.name_of(form), form.path.clone())).collect())
}

/// The family of a model that is whole.
fn family_of(form: &Form) -> Option<String> {
    if form.lacks.is_some() { None } else { family::opened(&form.path).map(|opened| opened.spec.family.to_string()) }
}

fn rows(held: &Held) -> Vec<[String; 5]> {
    let short = held.commit.chars().take(8).collect::<String>();
    let row = |form: &Form| {
        let kind = match &form.kind {
            Kind::Safetensors => "safetensors".to_string(),
            Kind::Gguf(quant) => format!("gguf {quant}"),
        };
        let family = match &form.lacks {
            Some(file) => format!("incomplete: {file}"),
            None => family_of(form).unwrap_or_else(|| "none that can be run".to_string()),
        };
        [held.name_of(form), short.clone(), readable(form.bytes), kind, family]
    };
    let mut rows: Vec<_> = held.forms.iter().map(row).collect();
    if rows.is_empty() && held.partial_bytes > 0 {
        let partial = "incomplete: pull goes on with it".to_string();
        rows.push([held.repo.clone(), short, readable(held.partial_bytes), "-".to_string(), partial]);
    }
    rows.into_iter().map(|row| row.map(|cell| plain(&cell))).collect()
}

fn objects(held: &Held) -> Vec<Value> {
    let common = |name: String| {
        json!({
            "name": name,
            "repo": held.repo,
            "revision": Some(&held.commit).filter(|commit| !commit.is_empty()),
            "refs": held.refs,
            "partial_bytes": held.partial_bytes,
        })
    };
    let object = |form: &Form| {
        let mut object = common(held.name_of(form));
        let (kind, quant) = match &form.kind {
            Kind::Safetensors => ("safetensors", None),
            Kind::Gguf(quant) => ("gguf", Some(quant)),
        };
        object["kind"] = json!(kind);
        object["quant"] = json!(quant);
        object["path"] = json!(form.path.display().to_string());
        object["bytes"] = json!(form.bytes);
        object["complete"] = json!(form.lacks.is_none());
        object["lacks"] = json!(form.lacks);
        object["family"] = json!(family_of(form));
        object
    };
    let mut all: Vec<Value> = held.forms.iter().map(object).collect();
    if all.is_empty() && held.partial_bytes > 0 {
        let mut object = common(held.repo.clone());
        object["complete"] = json!(false);
        all.push(object);
    }
    all
}
