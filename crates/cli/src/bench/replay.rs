//! `foretoken bench replay`: what each drafter would have saved on texts that are known already.
//!
//! A record plays the target ([`play`]), so that hundreds of texts pass in seconds and every drafter is judged on the
//! same ones, through the engine itself. What is said of acceptance and passes is exact for greedy decoding: a model
//! that writes the record would have needed these passes. Left out: drafters with a network, and what a pass costs,
//! which `bench pass` measures.

mod contestant;
pub mod play;

use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use foretoken::settings::DrafterSettings;
use foretoken::store::{Store, TOKENS_MAX, Vocabulary};
use foretoken_engine::{BudgetKind, Stats};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::interrupts::Interrupts;
use crate::options::DrafterOptions;
use crate::records::{self, Record};
use crate::values;
use crate::vocabulary::VocabularyOptions;
use contestant::{Contestant, Equipment};
use play::Stage;

const EXPLAINED: &str = "\
RECORDS is a list of JSON objects, or one object a line: \"prompt\" with \"output\" or \"completion\" (texts
or token ids), \"prompt_ids\" with \"ids\" (as generate --json prints them), prompt-lookup-decoding's
\"response_mistral7b\" (its greedy answers), or LLMA's \"query\", \"docs\" and \"result\".

Records are played in their order, and drafters that learn across texts learn from each one that was
played. With --warm-up half the odd records are played after the even ones were learned and the even
ones after the odd ones, so that each is played once with the other half known.

Each drafter's own limit of tokens a pass is --spec-draft-n-max here, so that all are judged alike.

  tokens/pass  tokens over passes; the prompt's pass counts, since it writes a token
  length       mean accepted length: 1 + accepted tokens over passes that had a draft
  accepted     accepted over drafted tokens
  us/pass      microseconds of drafting over passes
  @1 @2 @3     the share of drafts whose first, second, third token was accepted

--json prints one object with the options and, for each drafter: drafter, records, tokens, passes,
drafts, drafted, accepted, tokens_per_pass, mean_accepted_length, acceptance_rate, accepted_at (drafts
whose first, second, ... token was accepted), drafted_at (nodes by depth), draft_us_per_pass.";

/// How much is drafted a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReplayBudget {
    /// Always the maximum.
    Fixed,
    /// Two more after a draft that was right, one less after another.
    Heuristic,
    /// A branch ends where a token looks wrong.
    Confidence,
    /// A branch ends where all of it has become improbable.
    Threshold,
    /// Exactly what will be accepted: the most that any budget can save.
    Oracle,
}

impl ReplayBudget {
    /// As the engine knows it, for one record.
    fn kind(self, nodes_max: usize, record: &Record) -> BudgetKind {
        match self {
            Self::Fixed => BudgetKind::Fixed { nodes: nodes_max },
            Self::Heuristic => BudgetKind::Heuristic { nodes_max },
            Self::Confidence => BudgetKind::Confidence { nodes_max },
            Self::Threshold => BudgetKind::Threshold { nodes_max },
            Self::Oracle => BudgetKind::Oracle { text: record.tokens[record.prompt_len..].into(), nodes_max },
        }
    }
}

/// What drafters know before the first record.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WarmUp {
    /// Nothing.
    None,
    /// The other half of the records.
    Half,
    /// The texts of a store.
    File(PathBuf),
}

/// `none`, `half`, or else a file.
fn warm_up(word: &str) -> Result<WarmUp, String> {
    match word {
        "" => Err("expected none, half or a file".to_string()),
        "none" => Ok(WarmUp::None),
        "half" => Ok(WarmUp::Half),
        path => Ok(WarmUp::File(path.into())),
    }
}

/// Options of `foretoken bench replay`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
#[command(after_long_help = EXPLAINED)]
pub struct Replay {
    /// Recorded prompts and answers: a .json or .jsonl file
    #[arg(value_name = "RECORDS")]
    records: PathBuf,
    /// Drafters to judge, each alone [default: all that need no model]
    ///
    /// A + makes several share a pass.
    #[arg(long, value_name = "KIND,..", value_delimiter = ',', value_parser = Contestant::from_str)]
    spec_type: Vec<Contestant>,
    /// Most tokens drafted a pass
    #[arg(long, aliases = ["draft-max", "draft"], value_name = "N", default_value = "7",
        value_parser = values::one_up, allow_negative_numbers = true)]
    spec_draft_n_max: usize,
    /// How much to draft, up to the maximum
    #[arg(long, value_name = "KIND", default_value = "fixed")]
    budget: ReplayBudget,
    /// What is learned before: none, half (of the records) or a file of texts
    ///
    /// `foretoken lookup build` writes such files.
    #[arg(long, value_name = "WHAT", default_value = "none", value_parser = warm_up)]
    warm_up: WarmUp,
    /// Only the first records
    #[arg(long, value_name = "N", value_parser = values::one_up, allow_negative_numbers = true)]
    limit: Option<usize>,
    /// Print JSON (see --help for its fields)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vocabulary: VocabularyOptions,
    #[command(flatten)]
    drafters: DrafterOptions,
}

impl Replay {
    /// Runs the command.
    ///
    /// # Errors
    /// A file cannot be read or understood, or a drafter needs a model.
    pub fn run(&self, interrupts: Interrupts) -> Result<(), Failure> {
        let tokenizer = self.vocabulary.open()?;
        let records = records::read(&self.records, &tokenizer, self.limit)?;
        let settings = self.drafter_settings();
        let contestants = if self.spec_type.is_empty() { Contestant::all(&settings) } else { self.spec_type.clone() };
        let equipment = Equipment { settings: &settings, nodes_max: self.spec_draft_n_max, tokenizer: &tokenizer };
        let known = match &self.warm_up {
            WarmUp::File(path) => Some(Store::load(path, Vocabulary::from(&*tokenizer), TOKENS_MAX)?),
            WarmUp::None | WarmUp::Half => None,
        };
        // What is missing is told before anything is played.
        contestants.iter().try_for_each(|contestant| contestant.drafters(equipment).map(drop))?;
        let mut out = std::io::stdout();
        let mut objects = Vec::new();
        if !self.json {
            let tokens: usize = records.iter().map(|record| record.tokens.len() - record.prompt_len).sum();
            let what = format!("{}: {} records, {tokens} tokens", self.records.display(), records.len());
            writeln!(out, "{what}, up to {} drafted a pass\n{}", self.spec_draft_n_max, head())?;
        }
        interrupts.begin();
        for contestant in contestants {
            let stats = match self.judge(&contestant, &records, known.as_ref(), equipment) {
                Err(Failure::Interrupted) => break,
                judged => judged?,
            };
            match self.json {
                true => objects.push(object(&contestant, records.len(), &stats)),
                false => writeln!(out, "{}", line(&contestant, &stats))?,
            }
            out.flush()?;
        }
        if self.json {
            let object = json!({
                "records": self.records.display().to_string(),
                "draft_max": self.spec_draft_n_max,
                "drafters": objects,
            });
            writeln!(out, "{object:#}")?;
        }
        out.flush()?;
        interrupts.end_command()
    }

    /// The drafters' settings. How much is drafted is said by `--spec-draft-n-max` alone, so that all are judged alike.
    fn drafter_settings(&self) -> DrafterSettings {
        let mut settings = self.drafters.settings();
        settings.gain_min.get_or_insert(0.0);
        settings.lookup.nodes_max = self.spec_draft_n_max;
        settings.trie.nodes_max = self.spec_draft_n_max;
        settings.suffix.nodes_max = self.spec_draft_n_max;
        settings.ngram.depth_max = self.spec_draft_n_max;
        settings
    }

    /// Plays all records with one drafter, or several that share a pass.
    fn judge(
        &self,
        contestant: &Contestant,
        records: &[Record],
        known: Option<&Store>,
        equipment: Equipment<'_>,
    ) -> Result<Stats, Failure> {
        let (nodes_max, vocabulary) = (equipment.nodes_max, equipment.tokenizer.vocabulary_len());
        let context = play::longest(records);
        let stage = || {
            let mut stage = Stage::new(contestant.drafters(equipment)?, nodes_max, context, vocabulary);
            known.iter().for_each(|known| stage.learn_all(known));
            Ok(stage)
        };
        play::all(records, self.warm_up == WarmUp::Half, stage, |record| self.budget.kind(nodes_max, record))
    }
}

/// Positions of a draft that are shown in the table.
const POSITIONS: usize = 8;

fn head() -> String {
    let positions: String = (1..=POSITIONS).map(|i| format!(" {:>4}", format!("@{i}"))).collect();
    format!("{:<18} {:>11} {:>8} {:>8} {:>8} {positions}", "drafter", "tokens/pass", "length", "accepted", "us/pass")
}

fn line(contestant: &Contestant, stats: &Stats) -> String {
    let (accepted, _) = positions(stats);
    let share = |i: usize| accepted.get(i).map_or(0.0, |count| *count as f64 / stats.drafts.max(1) as f64);
    let positions: String = (0..POSITIONS).map(|i| format!(" {:>4.2}", share(i))).collect();
    format!(
        "{:<18} {:>11.3} {:>8.2} {:>7.1}% {:>8.2} {positions}",
        contestant.name(),
        stats.tokens_per_pass(),
        stats.mean_accepted_len(),
        100.0 * stats.acceptance_rate().unwrap_or(0.0),
        draft_us(stats)
    )
}

/// Accepted and drafted nodes by depth, of all drafters.
fn positions(stats: &Stats) -> (Vec<usize>, Vec<usize>) {
    let sum = |counts: &dyn Fn(usize) -> Vec<usize>| {
        let mut sums: Vec<usize> = Vec::new();
        for counts in (0..stats.drafters.len()).map(counts) {
            sums.resize(sums.len().max(counts.len()), 0);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        sums
    };
    (sum(&|i| stats.drafters[i].accepted_at.clone()), sum(&|i| stats.drafters[i].drafted_at.clone()))
}

/// Microseconds that drafting took a pass.
pub fn draft_us(stats: &Stats) -> f64 {
    // A sum over nothing would be -0.
    let seconds = stats.drafters.iter().fold(0.0, |sum, drafter| sum + drafter.time.as_secs_f64());
    1e6 * seconds / stats.passes.max(1) as f64
}

fn object(contestant: &Contestant, records: usize, stats: &Stats) -> Value {
    let (accepted_at, drafted_at) = positions(stats);
    json!({
        "drafter": contestant.name(),
        "records": records,
        "tokens": stats.emitted,
        "passes": stats.passes,
        "drafts": stats.drafts,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "tokens_per_pass": stats.tokens_per_pass(),
        "mean_accepted_length": stats.mean_accepted_len(),
        "acceptance_rate": stats.acceptance_rate(),
        "accepted_at": accepted_at,
        "drafted_at": drafted_at,
        "draft_us_per_pass": draft_us(stats),
    })
}
