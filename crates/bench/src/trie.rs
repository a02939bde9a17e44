//! `foretoken bench trie`: trie lookahead over ranges of its settings, as its authors measured them.
//!
//! The experiments of Zhao et al. 2024 (section 5.2) on your own records: their Figures 4 and 5 (decoding length by
//! branch length, for each layout), Table 5 (each procedure switched off), Table 6 (capacity in decoding lengths) and
//! the trie's memory. Each half of the records is replayed after the other was learned, as they warm up with a dev set.
//!
//! Tokens per pass replace their speed: on their hardware a pass of up to the critical decoding length costs as much as
//! a pass of one row. The same number is the effective decoding length of their Figure 5, so one table serves both
//! figures. Times, which depend on a network, are not measured.

mod memory;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::progress;
use foretoken_console::records::{self, Record};
use foretoken_console::terminal::standard_output;
use foretoken_console::values;
use foretoken_console::vocabulary::VocabularyOptions;
use foretoken_drafters::{BRANCH_LENGTH_MAX, Layout};
use foretoken_drafters::{TrieDrafter, TrieOptions};
use foretoken_engine::{BudgetKind, Stats};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::replay::draft_us;
use super::replay::play::{self, ReplayEngine};
use memory::{MeasuredTrie, TrieMemory};

/// Capacities of Table 6, in decoding lengths.
const CAPACITIES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

const AFTER_HELP: &str = "\
RECORDS as in bench replay. Each half of them is played after the other half was learned.

--json prints one object:
  records, tokens      how many were played
  lengths              for each layout, decoding length and branch length: tokens_per_pass, which is the
                       effective decoding length, and draft_us_per_pass (Figures 4 and 5)
  procedures           the same with each procedure off, with nodes and bytes at their most (Table 5)
  capacities           the same by capacity of a trie in decoding lengths (Table 6)
Both tables have the decoding and branch length of --tables-at.";

/// Options of `foretoken bench trie`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
#[command(after_long_help = AFTER_HELP)]
pub struct Trie {
    /// Recorded prompts and answers: a .json or .jsonl file
    #[arg(value_name = "RECORDS")]
    records: PathBuf,
    /// Nodes drafted in a pass
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "8,16,32,64,128",
        value_parser = values::one_up, allow_negative_numbers = true)]
    decoding_length: Vec<usize>,
    /// Tokens of a branch
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "4,8,16,32",
        value_parser = values::branch_length, allow_negative_numbers = true)]
    branch_length: Vec<usize>,
    /// Decoding length and branch length of the tables of procedures and capacities
    #[arg(long, value_name = "N,N", value_delimiter = ',', num_args = 1, default_value = "64,12",
        value_parser = values::one_up, allow_negative_numbers = true)]
    tables_at: Vec<usize>,
    /// Only the first records
    #[arg(long, value_name = "N", value_parser = values::one_up, allow_negative_numbers = true)]
    limit: Option<usize>,
    /// Print JSON (see --help for its fields)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vocabulary: VocabularyOptions,
}

/// The result of one setting.
struct TrieResult {
    options: TrieOptions,
    stats: Stats,
    memory: TrieMemory,
}

/// The records, and how they are replayed.
struct TrieBench<'a> {
    records: &'a [Record],
    vocabulary: usize,
    bar: ProgressBar,
}

impl TrieBench<'_> {
    fn play(&self, options: TrieOptions) -> Result<TrieResult, Failure> {
        // The prefix must not be longer than a branch.
        let prefix_max = options.prefix_max.min(options.branch_length);
        let options = TrieOptions { prefix_max, ..options };
        let (nodes, memory) = (options.nodes_max, TrieMemory::default());
        let engine = || {
            let memory = MeasuredTrie::new(TrieDrafter::new(options), memory.clone());
            Ok(ReplayEngine::new(vec![Box::new(memory)], nodes, play::longest(self.records), self.vocabulary))
        };
        let stats = play::all(self.records, true, engine, |_| BudgetKind::Fixed { nodes })?;
        self.bar.inc(1);
        Ok(TrieResult { options, stats, memory })
    }

    fn all(&self, options: impl IntoIterator<Item = TrieOptions>) -> Result<Vec<TrieResult>, Failure> {
        let mut all = Vec::new();
        for options in options {
            match self.play(options) {
                // Results so far are shown.
                Err(Failure::Interrupted) => break,
                found => all.push(found?),
            }
        }
        Ok(all)
    }
}

/// Each procedure switched off, and all on, with the authors' names.
fn procedures(all: TrieOptions) -> [(&'static str, TrieOptions); 5] {
    [
        ("without prompt", TrieOptions { insert_prompt: false, ..all }),
        ("without output", TrieOptions { insert_output: false, ..all }),
        ("without pruning", TrieOptions { prune: false, ..all }),
        ("without eliminating", TrieOptions { eliminate: false, ..all }),
        ("all", all),
    ]
}

impl Trie {
    /// Runs the command.
    ///
    /// # Errors
    /// A file cannot be read or parsed.
    pub fn run(&self, interrupts: Interrupts) -> Result<(), Failure> {
        let [decoding_length, branch_length] = self.tables_at[..] else {
            let found = self.tables_at.len();
            return Err(Failure::Usage(format!("--tables-at: expected two lengths, as 64,12, found {found}")));
        };
        if branch_length > BRANCH_LENGTH_MAX {
            let expected = format!("expected a branch length from 1 to {BRANCH_LENGTH_MAX}");
            return Err(Failure::Usage(format!("--tables-at: {expected}, found {branch_length}")));
        }
        let at = TrieOptions { nodes_max: decoding_length, branch_length, ..TrieOptions::default() };
        let tokenizer = self.vocabulary.open()?;
        let records = records::read(&self.records, &tokenizer, self.limit)?;
        let grid = self.grid();
        let steps = grid.len() + procedures(at).len() + CAPACITIES.len();
        let bar = progress::bar("playing", steps);
        let bench = TrieBench { records: &records, vocabulary: tokenizer.vocabulary_len(), bar };
        interrupts.begin();
        let lengths = bench.all(grid)?;
        let procedures = bench.all(procedures(at).map(|(_, options)| options))?;
        let capacity = |times| TrieOptions { capacity: Some(times * at.nodes_max), ..at };
        let capacities = bench.all(CAPACITIES.map(capacity))?;
        bench.bar.finish_and_clear();
        let mut out = standard_output();
        if self.json {
            let object = self.object(&records, &lengths, &procedures, &capacities);
            writeln!(out, "{object:#}")?;
            out.flush()?;
            return interrupts.end_command();
        }
        let tokens: usize = records.iter().map(|record| record.tokens.len() - record.prompt_len).sum();
        let what = format!("{}: {} records, {tokens} tokens", self.records.display(), records.len());
        writeln!(out, "{what}; each half is played after the other was learned\n")?;
        write!(out, "{}", self.figures(&lengths))?;
        writeln!(out, "\nprocedures, decoding length {decoding_length}, branch length {branch_length} (Table 5)")?;
        write!(out, "{}", table(&names(), &procedures))?;
        writeln!(out, "\ncapacity of a trie in decoding lengths (Table 6)")?;
        write!(out, "{}", table(&CAPACITIES.map(|times| times.to_string()), &capacities))?;
        out.flush()?;
        interrupts.end_command()
    }

    /// Settings of the figures, in the order in which they are printed.
    fn grid(&self) -> Vec<TrieOptions> {
        let mut grid = Vec::new();
        for layout in Layout::ALL {
            for &decoding_length in &self.decoding_length {
                for &branch_length in &self.branch_length {
                    grid.push(TrieOptions {
                        layout,
                        nodes_max: decoding_length,
                        branch_length,
                        ..TrieOptions::default()
                    });
                }
            }
        }
        grid
    }

    /// A table for each layout: tokens per pass by decoding length (down) and branch length (across).
    fn figures(&self, lengths: &[TrieResult]) -> String {
        let mut out = String::new();
        let columns = self.branch_length.len();
        for (layout, found) in Layout::ALL.iter().zip(lengths.chunks(columns * self.decoding_length.len())) {
            out +=
                &format!("{}: tokens a pass, by decoding length and branch length (Figures 4 and 5)\n", layout.name());
            let heads: String = self.branch_length.iter().map(|len| format!(" {len:>7}")).collect();
            out += &format!("{:>8}{heads}\n", "");
            for (decoding_length, row) in self.decoding_length.iter().zip(found.chunks(columns)) {
                let cells: String = row.iter().map(|one| format!(" {:>7.3}", one.stats.tokens_per_pass())).collect();
                out += &format!("{decoding_length:>8}{cells}\n");
            }
        }
        out
    }

    fn object(
        &self,
        records: &[Record],
        lengths: &[TrieResult],
        procedures: &[TrieResult],
        capacities: &[TrieResult],
    ) -> Value {
        let named = |name: &str, value: Value, found: &TrieResult| {
            let mut object = object(found);
            object[name] = value;
            object
        };
        let procedures: Vec<Value> =
            names().iter().zip(procedures).map(|(name, found)| named("procedure", json!(name), found)).collect();
        let capacities: Vec<Value> =
            CAPACITIES.iter().zip(capacities).map(|(times, found)| named("capacity", json!(times), found)).collect();
        json!({
            "records": records.len(),
            "tokens": lengths.first().map_or(0, |found| found.stats.emitted),
            "lengths": lengths.iter().map(object).collect::<Vec<_>>(),
            "procedures": procedures,
            "capacities": capacities,
        })
    }
}

fn names() -> [String; 5] {
    procedures(TrieOptions::default()).map(|(name, _)| name.to_string())
}

/// Tokens per pass and peak memory, a line for each setting.
fn table(names: &[String], found: &[TrieResult]) -> String {
    let line = |(name, found): (&String, &TrieResult)| {
        let (nodes, bytes) = found.memory.most();
        let memory =
            format!("{nodes:>9} {:>8.2} {:>10.1}", bytes as f64 / (1 << 20) as f64, bytes as f64 / nodes.max(1) as f64);
        format!("{name:<20} {:>11.3} {:>8.2} {memory}\n", found.stats.tokens_per_pass(), draft_us(&found.stats))
    };
    let head =
        format!("{:<20} {:>11} {:>8} {:>9} {:>8} {:>10}\n", "", "tokens/pass", "us/pass", "nodes", "MiB", "bytes/node");
    head + &names.iter().zip(found).map(line).collect::<String>()
}

fn object(found: &TrieResult) -> Value {
    let (nodes, bytes) = found.memory.most();
    json!({
        "layout": found.options.layout.name(),
        "decoding_length": found.options.nodes_max,
        "branch_length": found.options.branch_length,
        "tokens_per_pass": found.stats.tokens_per_pass(),
        "draft_us_per_pass": draft_us(&found.stats),
        "nodes": nodes,
        "bytes": bytes,
    })
}
