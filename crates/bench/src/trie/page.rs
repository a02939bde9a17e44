//! What `bench trie` prints: tables for people, or one object.

use std::io::Write;

use foretoken::settings::Named;
use foretoken_console::failure::Failure;
use foretoken_console::terminal::standard_output;
use foretoken_drafters::Layout;
use serde_json::{Value, json};

use super::{CAPACITIES, Trie, TrieResult, TrieResults, charts, names};
use crate::replay::draft_us;
use crate::report::Folder;

/// Columns of a report's table: heads and fields.
const COLUMNS: &[(&str, &str)] = &[
    ("what", "what"),
    ("layout", "layout"),
    ("decoding length", "decoding_length"),
    ("branch length", "branch_length"),
    ("capacity", "capacity"),
    ("tokens/pass", "tokens_per_pass"),
    ("rows/pass", "rows_per_pass"),
    ("nodes", "nodes"),
    ("bytes", "bytes"),
];

impl TrieResult {
    /// Rows of drafts over passes.
    pub(super) fn rows_per_pass(&self) -> f64 {
        self.memory.needed().rows as f64 / self.stats.passes.max(1) as f64
    }

    fn object(&self) -> Value {
        let needed = self.memory.needed();
        json!({
            "layout": self.options.layout.name(),
            "decoding_length": self.options.nodes_max,
            "branch_length": self.options.branch_length,
            "tokens_per_pass": self.stats.tokens_per_pass(),
            "rows_per_pass": self.rows_per_pass(),
            "draft_us_per_pass": draft_us(&self.stats),
            "nodes": needed.nodes,
            "bytes": needed.bytes,
        })
    }

    fn named(&self, name: &str, value: Value) -> Value {
        let mut object = self.object();
        object[name] = value;
        object
    }
}

impl TrieResults {
    fn of_lengths(&self) -> Vec<Value> {
        self.lengths.iter().map(TrieResult::object).collect()
    }

    fn of_procedures(&self) -> Vec<Value> {
        names().iter().zip(&self.procedures).map(|(name, found)| found.named("procedure", json!(name))).collect()
    }

    fn of_capacities(&self) -> Vec<Value> {
        CAPACITIES.iter().zip(&self.capacities).map(|(times, found)| found.named("capacity", json!(times))).collect()
    }
}

impl Trie {
    /// Prints all results.
    pub(super) fn print(&self, results: &TrieResults) -> Result<(), Failure> {
        let mut out = standard_output();
        if self.json {
            writeln!(out, "{:#}", self.object(results))?;
        } else {
            let [decoding_length, branch_length] = self.tables_at[..] else { unreachable!("they were checked") };
            writeln!(out, "{}\n", self.head(results))?;
            write!(out, "{}", self.figures(&results.lengths))?;
            writeln!(out, "\nprocedures, decoding length {decoding_length}, branch length {branch_length} (Table 5)")?;
            write!(out, "{}", table(&names(), &results.procedures))?;
            writeln!(out, "\ncapacity of a trie in decoding lengths (Table 6)")?;
            write!(out, "{}", table(&CAPACITIES.map(|times| times.to_string()), &results.capacities))?;
        }
        Ok(out.flush()?)
    }

    /// What was played.
    fn head(&self, results: &TrieResults) -> String {
        let what = format!("{}: {} records, {} tokens", self.records.display(), results.records, results.tokens);
        match (&self.warm_up, results.learned) {
            (Some(path), Some(learned)) => {
                format!("{what}; all are played after {learned} of {} were learned", path.display())
            }
            _ => format!("{what}; each half is played after the other was learned"),
        }
    }

    /// A table for each layout: tokens per pass by decoding length (down) and branch length (across), and then rows per
    /// pass.
    fn figures(&self, lengths: &[TrieResult]) -> String {
        let mut out = String::new();
        let columns = self.branch_length.len();
        for (layout, found) in Layout::ALL.iter().zip(lengths.chunks(columns * self.decoding_length.len())) {
            let what = "tokens a pass and rows a pass, by decoding length and branch length (Figures 4 and 5)";
            out += &format!("{}: {what}\n", layout.name());
            let heads: String = self.branch_length.iter().map(|len| format!(" {len:>7}")).collect();
            out += &format!("{:>8}{heads}  {heads}\n", "");
            for (decoding_length, row) in self.decoding_length.iter().zip(found.chunks(columns)) {
                let tokens: String = row.iter().map(|one| format!(" {:>7.3}", one.stats.tokens_per_pass())).collect();
                let rows: String = row.iter().map(|one| format!(" {:>7.2}", one.rows_per_pass())).collect();
                out += &format!("{decoding_length:>8}{tokens}  {rows}\n");
            }
        }
        out
    }

    fn object(&self, results: &TrieResults) -> Value {
        json!({
            "records": results.records,
            "tokens": results.tokens,
            "learned": results.learned,
            "retrieval": self.trie_retrieval.name(),
            "lengths": results.of_lengths(),
            "procedures": results.of_procedures(),
            "capacities": results.of_capacities(),
        })
    }

    /// Writes a folder of charts with all rows.
    pub(super) fn write_report(&self, folder: &Folder, results: &TrieResults) -> Result<(), Failure> {
        let what = |rows: Vec<Value>, what: fn(&Value) -> String| -> Vec<Value> {
            let named = |mut row: Value| {
                row["what"] = json!(what(&row));
                row
            };
            rows.into_iter().map(named).collect()
        };
        let mut rows = what(results.of_lengths(), |_| "lengths".to_string());
        rows.extend(what(results.of_procedures(), |row| row["procedure"].as_str().unwrap_or_default().to_string()));
        rows.extend(what(results.of_capacities(), |_| "capacities".to_string()));
        let facts = json!({
            "model": format!("trie, {}: {}", self.trie_retrieval.name(), self.head(results)),
            "machine": "recorded answers, without a model",
        });
        folder.finish(facts, (COLUMNS, &rows), &charts::charts(results))
    }
}

/// Tokens and rows per pass and peak memory, a line for each setting.
fn table(names: &[String], found: &[TrieResult]) -> String {
    let line = |(name, found): (&String, &TrieResult)| {
        let needed = found.memory.needed();
        let (mib, each) = (needed.bytes as f64 / (1 << 20) as f64, needed.bytes as f64 / needed.nodes.max(1) as f64);
        let speed = format!("{:>11.3} {:>9.2}", found.stats.tokens_per_pass(), found.rows_per_pass());
        format!("{name:<20} {speed} {:>8.2} {:>9} {mib:>8.2} {each:>10.1}\n", draft_us(&found.stats), needed.nodes)
    };
    let heads = ["tokens/pass", "rows/pass", "us/pass", "nodes", "MiB", "bytes/node"];
    let [tokens, rows, us, nodes, mib, each] = heads;
    let head = format!("{:<20} {tokens:>11} {rows:>9} {us:>8} {nodes:>9} {mib:>8} {each:>10}\n", "");
    head + &names.iter().zip(found).map(line).collect::<String>()
}
