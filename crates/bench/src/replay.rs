//! `foretoken bench replay`: what each drafter would have saved on recorded texts.
//!
//! A record replaces the target ([`play`]), so that hundreds of texts are replayed in seconds and every drafter is
//! evaluated on the same ones, through the engine itself. Acceptance and passes are exact for greedy decoding: a model
//! that generates the record would have needed these passes. With `--on MODEL` the passes are real ([`real_model`]) and
//! timed ([`timed`]), while the tokens are still the record's. Drafters with a network cannot be replayed.

mod candidate;
pub mod play;
mod real_model;
mod table;
mod timed;

use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use foretoken::drafters::{DrafterInputs, DrafterSettings};
use foretoken::store::{Store, TOKENS_MAX, Vocabulary};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::options::DrafterOptions;
use foretoken_console::progress::say;
use foretoken_console::records::{self, Record};
use foretoken_console::terminal::standard_output;
use foretoken_console::values;
use foretoken_console::vocabulary::VocabularyOptions;
use foretoken_engine::{BudgetKind, Stats};
use foretoken_speculation::DraftSettings;
use serde_json::{Value, json};

use candidate::Candidate;
use play::{RecordedTokens, ReplayEngine};
use real_model::{FittingRecords, RealModel, RealModelOptions};
use table::Formatter;
use timed::{Plan, TimedReplay};

const AFTER_HELP: &str = "\
RECORDS is a list of JSON objects, or one object a line: \"prompt\" with \"output\" or \"completion\" (texts
or token ids), \"prompt_ids\" with \"ids\" (as generate --json prints them), prompt-lookup-decoding's
\"response_mistral7b\" (its greedy answers), or LLMA's \"query\", \"docs\" and \"result\".

Records are replayed in their order, and drafters that learn across texts learn each one that was
replayed. With --warm-up half the odd records are replayed after the even ones were learned, and the even
ones after the odd ones, so that each is replayed once with the other half learned.

Each drafter's own limit of tokens per pass is --spec-draft-n-max here, so that all are compared alike;
with budget auto and without it each keeps its own limit.

  tokens/pass  tokens over passes; the prompt's pass counts, since it emits a token
  length       mean accepted length: 1 + accepted tokens over passes that had a draft
  accepted     accepted over drafted tokens
  us/pass      microseconds of drafting over passes
  @1 @2 @3     the share of drafts whose first, second, third token was accepted

--json prints one object with the options and, for each drafter: drafter, records, tokens, passes,
drafts, drafted, accepted, tokens_per_pass, mean_accepted_length, acceptance_rate, accepted_at (drafts
whose first, second, ... token was accepted), drafted_at (nodes by depth), draft_us_per_pass.

With --on MODEL the same records are replayed, with and without drafts, on an engine whose passes are
MODEL's: embedding, layers and head are computed for every row, then the row's token is replaced by the
recorded one. So the time is that of a hypothetical target that would have generated these texts, and is
labelled so: recorded text, real passes of MODEL. A token that MODEL does not have is replaced by one of
its own for MODEL, and not for drafters. Plain decoding and methods alternate record by record in changing
order; the prompt is computed once for all of them, and not timed. Drafters are auto, the default of other
commands, unless --spec-type names others; the budget is auto, which weighs costs, unless --budget names
another.

  tokens/s     tokens after the first pass over their time
  speed-up     the same over plain decoding's, with the 95 % interval of a bootstrap over records
  ms/pass      milliseconds of the network over passes after the first
  of 8 rows    time of a pass of eight rows over that of one row, medians of the passes of this run

The JSON object then has measured (the label), on, threads, isa, left_out (numbers of records that are too
long for the context), budget, passes_by_rows (rows -> passes, median ms), eight_rows_to_one, and for each
drafter, plain first, also tokens_per_second, speedup, speedup_low, speedup_high, ms_per_pass,
prompt_tokens and those of them whose rows were shared (prompt_tokens_shared), and seconds (of each record
in each repetition); counts are sums over repetitions.";

/// The default of the most tokens drafted in a pass.
const NODES_MAX: usize = 7;

/// How much is drafted in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReplayBudget {
    /// As much as pays, by the costs of passes and drafts: only with --on.
    Auto,
    /// Always the maximum.
    Fixed,
    /// Two more after a draft that was accepted completely, one less after any other.
    Heuristic,
    /// A branch stops after a token of low probability.
    Confidence,
    /// A branch stops where its probability as a whole is low.
    Threshold,
    /// Exactly what will be accepted: the most that any budget can save.
    Oracle,
}

impl ReplayBudget {
    /// Its name on the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// The engine's budget for one record.
    fn kind(self, nodes_max: usize, record: &Record) -> BudgetKind {
        match self {
            Self::Auto => BudgetKind::Auto { nodes_max },
            Self::Fixed => BudgetKind::Fixed { nodes: nodes_max },
            Self::Heuristic => BudgetKind::Heuristic { nodes_max },
            Self::Confidence => BudgetKind::Confidence { nodes_max },
            Self::Threshold => BudgetKind::Threshold { nodes_max },
            Self::Oracle => BudgetKind::Oracle { text: record.tokens[record.prompt_len..].into(), nodes_max },
        }
    }
}

/// What drafters learn before the first record.
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
#[command(after_long_help = AFTER_HELP)]
pub struct Replay {
    /// Recorded prompts and answers: a .json or .jsonl file
    #[arg(value_name = "RECORDS")]
    records: PathBuf,
    /// Drafters to evaluate, each alone [default: all that need no model; with --on auto]
    ///
    /// A + combines several in one tree; auto is the default of other commands.
    #[arg(long, value_name = "KIND,..", value_delimiter = ',', value_parser = Candidate::from_str)]
    spec_type: Vec<Candidate>,
    /// Most tokens drafted in a pass [default: 7; with budget auto 32]
    #[arg(long, aliases = ["draft-max", "draft"], value_name = "N",
        value_parser = values::one_up, allow_negative_numbers = true)]
    spec_draft_n_max: Option<usize>,
    /// How much to draft, up to the maximum [default: fixed; with --on auto]
    #[arg(long, value_name = "KIND")]
    budget: Option<ReplayBudget>,
    /// What drafters learn first: none, half (of the records) or a file of texts
    ///
    /// `foretoken lookup build` writes such files.
    #[arg(long, value_name = "WHAT", default_value = "none", value_parser = warm_up)]
    warm_up: WarmUp,
    /// Only the first records
    #[arg(long, value_name = "N", value_parser = values::one_up, allow_negative_numbers = true)]
    limit: Option<usize>,
    /// Only the first tokens of each answer
    #[arg(short, long, visible_alias = "predict", value_name = "N", value_parser = values::one_up,
        allow_negative_numbers = true)]
    n_predict: Option<usize>,
    /// Print JSON (see --help for its fields)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    real: RealModelOptions,
    #[command(flatten)]
    vocabulary: VocabularyOptions,
    #[command(flatten)]
    drafters: DrafterOptions,
}

impl Replay {
    /// Runs the command.
    ///
    /// # Errors
    /// A file cannot be read or parsed, or a drafter needs a model.
    pub fn run(&self, interrupts: Interrupts) -> Result<(), Failure> {
        let real_model = self.real.open()?;
        self.check(real_model.is_some())?;
        let tokenizer = match &real_model {
            Some(real_model) if !self.vocabulary.is_named() => real_model.tokenizer()?,
            _ => self.vocabulary.open()?,
        };
        let mut records = records::read(&self.records, &tokenizer, self.limit)?;
        let answer_max = self.n_predict.unwrap_or(usize::MAX);
        records.iter_mut().for_each(|record| record.tokens.truncate(record.prompt_len.saturating_add(answer_max)));
        let budget = self.budget(real_model.is_some());
        let settings = self.drafter_settings(budget);
        let candidates = match (self.spec_type.is_empty(), &real_model) {
            (false, _) => self.spec_type.clone(),
            (true, Some(_)) => vec![Candidate::auto()],
            (true, None) => Candidate::all(&settings),
        };
        let inputs = DrafterInputs {
            settings: &settings,
            nodes_max: self.nodes_max(budget),
            vocabulary: tokenizer.vocabulary_len(),
            tokenizer: Some(&*tokenizer),
        };
        let store = match &self.warm_up {
            WarmUp::File(path) => Some(Store::load(path, Vocabulary::from(&*tokenizer), TOKENS_MAX)?),
            WarmUp::None | WarmUp::Half => None,
        };
        // Missing files are reported before anything is replayed.
        candidates.iter().try_for_each(|candidate| candidate.drafters(inputs).map(drop))?;
        match real_model {
            Some(real_model) => self.time(&real_model, records, (&candidates, inputs), store.as_ref(), interrupts),
            None => self.count(&records, (&candidates, inputs), store.as_ref(), interrupts),
        }
    }

    /// Budget auto needs the costs of real passes.
    fn check(&self, is_on: bool) -> Result<(), Failure> {
        match (is_on, self.budget) {
            (false, Some(ReplayBudget::Auto)) => {
                Err(Failure::Usage("--budget auto: expected --on MODEL beside it, found none".into()))
            }
            _ => Ok(()),
        }
    }

    /// The budget, or its default.
    fn budget(&self, is_on: bool) -> ReplayBudget {
        self.budget.unwrap_or(if is_on { ReplayBudget::Auto } else { ReplayBudget::Fixed })
    }

    /// The most nodes of a pass.
    fn nodes_max(&self, budget: ReplayBudget) -> usize {
        let default = if budget == ReplayBudget::Auto { BudgetKind::AUTO_NODES_MAX } else { NODES_MAX };
        self.spec_draft_n_max.unwrap_or(default)
    }

    /// Counts what each candidate saves.
    fn count(
        &self,
        records: &[Record],
        (candidates, inputs): (&[Candidate], DrafterInputs<'_>),
        store: Option<&Store>,
        interrupts: Interrupts,
    ) -> Result<(), Failure> {
        let mut out = standard_output();
        let mut objects = Vec::new();
        if !self.json {
            let what = format!("{}: {} records, {} tokens", self.records.display(), records.len(), answers(records));
            writeln!(out, "{what}, up to {} drafted a pass\n{}", inputs.nodes_max, head())?;
        }
        interrupts.begin();
        for candidate in candidates {
            let stats = match self.replay_all(candidate, records, store, inputs) {
                Err(Failure::Interrupted) => break,
                stats => stats?,
            };
            match self.json {
                true => objects.push(object(&candidate.name(), records.len(), &stats)),
                false => writeln!(out, "{}", line(candidate, &stats))?,
            }
            out.flush()?;
        }
        if self.json {
            let object = json!({
                "records": self.records.display().to_string(),
                "draft_max": inputs.nodes_max,
                "drafters": objects,
            });
            writeln!(out, "{object:#}")?;
        }
        out.flush()?;
        interrupts.end_command()
    }

    /// Times each candidate and plain decoding on a model.
    fn time(
        &self,
        real_model: &RealModel,
        records: Vec<Record>,
        (candidates, inputs): (&[Candidate], DrafterInputs<'_>),
        store: Option<&Store>,
        interrupts: Interrupts,
    ) -> Result<(), Failure> {
        let (budget, nodes_max) = (self.budget(true), inputs.nodes_max);
        let FittingRecords { records, numbers, left_out } = FittingRecords::new(records, real_model.context());
        for (number, found) in &left_out {
            let room = format!("expected at most {} tokens (the context)", real_model.context());
            say(format_args!("note: record {number}: {room}, found {found}: left out"));
        }
        if records.is_empty() {
            let place = self.records.display();
            let expected = format!("expected records of at most {} tokens (the context)", real_model.context());
            return Err(Failure::Other(format!("{place}: {expected}, found none")));
        }
        let context = real_model.context().min(play::longest(&records) + nodes_max + 1);
        let recorded = RecordedTokens::default();
        let (executor, threads) = real_model.load(recorded.clone(), inputs.vocabulary, context)?;
        let formatter = Formatter {
            records: &self.records,
            playable: (records.len(), answers(&records)),
            left_out: left_out.into_iter().map(|(number, _)| number).collect(),
            model: real_model.name(),
            threads,
            budget: budget.name(),
            nodes_max,
        };
        // With other budgets each drafter has its own limit.
        let gain_min = inputs.settings.gain_min.filter(|_| budget == ReplayBudget::Auto);
        let plan = Plan {
            budget: &|record| budget.kind(nodes_max, record),
            draft: DraftSettings { gain_min, ..DraftSettings::default() },
            weighs: budget == ReplayBudget::Auto,
            by_halves: self.warm_up == WarmUp::Half,
            numbers: &numbers,
            repeat: self.real.repeat,
            seconds: self.real.seconds,
        };
        let mut timed = TimedReplay::new((executor, recorded), context, (candidates, inputs), &records, plan)?;
        store.iter().for_each(|store| timed.learn_all(store));
        let mut out = standard_output();
        if !self.json {
            writeln!(out, "{}", formatter.title())?;
            out.flush()?;
        }
        interrupts.begin();
        timed.run()?;
        match self.json {
            true => writeln!(out, "{:#}", formatter.object(&timed))?,
            false => write!(out, "{}", formatter.table(&timed))?,
        }
        out.flush()?;
        interrupts.end_command()
    }

    /// The drafters' settings. `--spec-draft-n-max` sets the limits of all drafters, so that they are compared alike;
    /// with budget auto costs decide, and each drafter keeps its own limits.
    fn drafter_settings(&self, budget: ReplayBudget) -> DrafterSettings {
        let mut settings = self.drafters.settings();
        if budget == ReplayBudget::Auto && self.spec_draft_n_max.is_none() {
            return settings;
        }
        let nodes_max = self.nodes_max(budget);
        if budget != ReplayBudget::Auto {
            settings.gain_min.get_or_insert(0.0);
        }
        settings.limit_nodes(nodes_max);
        settings
    }

    /// Replays all records with one candidate.
    fn replay_all(
        &self,
        candidate: &Candidate,
        records: &[Record],
        store: Option<&Store>,
        inputs: DrafterInputs<'_>,
    ) -> Result<Stats, Failure> {
        let DrafterInputs { nodes_max, vocabulary, .. } = inputs;
        let context = play::longest(records);
        let replay = || {
            let mut replay = ReplayEngine::new(candidate.drafters(inputs)?, nodes_max, context, vocabulary);
            store.iter().for_each(|store| replay.learn_all(store));
            Ok(replay)
        };
        let budget = self.budget(false);
        play::all(records, self.warm_up == WarmUp::Half, replay, |record| budget.kind(nodes_max, record))
    }
}

/// Tokens of all answers.
fn answers(records: &[Record]) -> usize {
    records.iter().map(|record| record.tokens.len() - record.prompt_len).sum()
}

/// Positions of a draft in the table.
const POSITIONS: usize = 8;

fn head() -> String {
    let positions: String = (1..=POSITIONS).map(|i| format!(" {:>4}", format!("@{i}"))).collect();
    format!("{:<18} {:>11} {:>8} {:>8} {:>8} {positions}", "drafter", "tokens/pass", "length", "accepted", "us/pass")
}

fn line(candidate: &Candidate, stats: &Stats) -> String {
    let (accepted, _) = positions(stats);
    let share = |i: usize| accepted.get(i).map_or(0.0, |count| *count as f64 / stats.drafts.max(1) as f64);
    let positions: String = (0..POSITIONS).map(|i| format!(" {:>4.2}", share(i))).collect();
    format!(
        "{:<18} {:>11.3} {:>8.2} {:>7.1}% {:>8.2} {positions}",
        candidate.name(),
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

/// Microseconds of drafting per pass.
pub fn draft_us(stats: &Stats) -> f64 {
    // An empty sum would be -0.
    let seconds = stats.drafters.iter().fold(0.0, |sum, drafter| sum + drafter.time.as_secs_f64());
    1e6 * seconds / stats.passes.max(1) as f64
}

fn object(name: &str, records: usize, stats: &Stats) -> Value {
    let (accepted_at, drafted_at) = positions(stats);
    json!({
        "drafter": name,
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
