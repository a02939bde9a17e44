//! `foretoken bench trie`: trie lookahead over ranges of its settings, as its authors measured them.
//!
//! The experiments of Zhao et al. 2024 (section 5.2) on your own records: their Figures 4 and 5 (decoding length by
//! branch length, for each layout), Table 5 (each procedure switched off), Table 6 (capacity in decoding lengths) and
//! the trie's memory, over capacities and over decoding lengths (as their Figure 6). They warm up with a dev set: so
//! does `--warm-up`, and without it each half of the records is replayed after the other was learned.
//!
//! Tokens per pass replace their speed: on their hardware a pass of up to the critical decoding length costs as much as
//! a pass of one row. The same number is the effective decoding length of their Figure 5, so one table serves both
//! figures. Times, which depend on a network, are not measured; the rows that a pass takes are counted.

mod charts;
mod memory;
mod page;

use std::path::PathBuf;

use clap::Args;
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::progress;
use foretoken_console::records::{self, Record};
use foretoken_console::values;
use foretoken_console::vocabulary::VocabularyOptions;
use foretoken_drafters::{BRANCH_LENGTH_MAX, Layout, RetrievalRule, TrieDrafter, TrieOptions};
use foretoken_engine::{BudgetKind, Stats};
use indicatif::ProgressBar;

use super::replay::play::{self, ReplayEngine};
use super::report::ReportOptions;
use memory::{MeasuredTrie, TrieMemory};

/// Capacities of Table 6, in decoding lengths.
const CAPACITIES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

const AFTER_HELP: &str = "\
RECORDS as in bench replay. Each half of them is played after the other half was learned, or all of them
after those of --warm-up.

--json prints one object:
  records, tokens      how many were played; learned: how many of --warm-up
  retrieval            the rule of --trie-retrieval
  lengths              for each layout, decoding length and branch length: tokens_per_pass, which is the
                       effective decoding length, rows_per_pass, draft_us_per_pass, and nodes and bytes at
                       their most (Figures 4 to 6)
  procedures           the same with each procedure off (Table 5)
  capacities           the same by capacity of a trie in decoding lengths (Table 6)
Both tables have the decoding and branch length of --tables-at. Rows are those of drafts: parallel branches
(par) repeat the tokens that they begin with, and all count.

--report writes charts of the same numbers.";

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
    /// How branches are chosen: by estimated acceptance, or by frequency as the authors do
    #[arg(long, value_name = "RULE", default_value = "interpolated",
        value_parser = values::one_of::<RetrievalRule>())]
    trie_retrieval: RetrievalRule,
    /// Records of another file that are learned before, instead of each half before the other
    #[arg(long, value_name = "RECORDS")]
    warm_up: Option<PathBuf>,
    /// Only the first records
    #[arg(long, value_name = "N", value_parser = values::one_up, allow_negative_numbers = true)]
    limit: Option<usize>,
    /// Print JSON (see --help for its fields)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportOptions,
    #[command(flatten)]
    vocabulary: VocabularyOptions,
}

/// The result of one setting.
struct TrieResult {
    options: TrieOptions,
    stats: Stats,
    memory: TrieMemory,
}

/// All results, and what they are of.
struct TrieResults {
    records: usize,
    /// Tokens of their answers.
    tokens: usize,
    /// Records that were learned before, if not each half before the other.
    learned: Option<usize>,
    lengths: Vec<TrieResult>,
    procedures: Vec<TrieResult>,
    capacities: Vec<TrieResult>,
}

/// The records, and how they are replayed.
struct TrieBench<'a> {
    records: &'a [Record],
    learned: Option<&'a [Record]>,
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
            let context = play::longest(self.records);
            let mut engine = ReplayEngine::new(vec![Box::new(memory)], nodes, context, self.vocabulary);
            self.learned.into_iter().flatten().for_each(|record| engine.learn(&record.tokens, record.prompt_len));
            Ok(engine)
        };
        let stats = play::all(self.records, self.learned.is_none(), engine, |_| BudgetKind::Fixed { nodes })?;
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

/// The names of [`procedures`].
fn names() -> [String; 5] {
    procedures(TrieOptions::default()).map(|(name, _)| name.to_string())
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
        let folder = self.report.begin()?;
        let at = TrieOptions { nodes_max: decoding_length, branch_length, ..TrieOptions::of_rule(self.trie_retrieval) };
        let tokenizer = self.vocabulary.open()?;
        let records = records::read(&self.records, &tokenizer, self.limit)?;
        let learned = self.warm_up.as_ref().map(|path| records::read(path, &tokenizer, None)).transpose()?;
        let grid = self.grid();
        let steps = grid.len() + procedures(at).len() + CAPACITIES.len();
        let bar = progress::bar("playing", steps);
        let vocabulary = tokenizer.vocabulary_len();
        let bench = TrieBench { records: &records, learned: learned.as_deref(), vocabulary, bar };
        interrupts.begin();
        let capacity = |times| TrieOptions { capacity: Some(times * at.nodes_max), ..at };
        let results = TrieResults {
            records: records.len(),
            tokens: records.iter().map(|record| record.tokens.len() - record.prompt_len).sum(),
            learned: learned.as_ref().map(Vec::len),
            lengths: bench.all(grid)?,
            procedures: bench.all(procedures(at).map(|(_, options)| options))?,
            capacities: bench.all(CAPACITIES.map(capacity))?,
        };
        bench.bar.finish_and_clear();
        self.print(&results)?;
        if let Some(folder) = folder {
            self.write_report(&folder, &results)?;
        }
        interrupts.end_command()
    }

    /// Settings of the figures, in the order in which they are printed.
    fn grid(&self) -> Vec<TrieOptions> {
        let rule = TrieOptions::of_rule(self.trie_retrieval);
        let mut grid = Vec::new();
        for layout in Layout::ALL {
            for &nodes_max in &self.decoding_length {
                for &branch_length in &self.branch_length {
                    grid.push(TrieOptions { layout, nodes_max, branch_length, ..rule });
                }
            }
        }
        grid
    }
}
