//! `foretoken bench replay`: what each drafter would have saved on texts that are known already.
//!
//! A record plays the target ([`play`]), so that hundreds of texts pass in seconds and every drafter is judged on the
//! same ones, through the engine itself. What is said of acceptance and passes is exact for greedy decoding: a model
//! that writes the record would have needed these passes. With `--on MODEL` the passes are real ([`on`]) and timed
//! ([`timed`]), while the record still says what is written. Left out: drafters with a network.

mod contestant;
mod on;
mod page;
pub mod play;
mod timed;

use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use foretoken::settings::DrafterSettings;
use foretoken::store::{Store, TOKENS_MAX, Vocabulary};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::options::DrafterOptions;
use foretoken_console::progress::say;
use foretoken_console::records::{self, Record};
use foretoken_console::values;
use foretoken_console::vocabulary::VocabularyOptions;
use foretoken_engine::{BudgetKind, Stats};
use foretoken_speculation::DraftSettings;
use serde_json::{Value, json};

use contestant::{Contestant, Equipment};
use on::{Fit, On, OnOptions};
use page::Page;
use play::{Script, Stage};
use timed::{Plan, Timed};

const EXPLAINED: &str = "\
RECORDS is a list of JSON objects, or one object a line: \"prompt\" with \"output\" or \"completion\" (texts
or token ids), \"prompt_ids\" with \"ids\" (as generate --json prints them), prompt-lookup-decoding's
\"response_mistral7b\" (its greedy answers), or LLMA's \"query\", \"docs\" and \"result\".

Records are played in their order, and drafters that learn across texts learn from each one that was
played. With --warm-up half the odd records are played after the even ones were learned and the even
ones after the odd ones, so that each is played once with the other half known.

Each drafter's own limit of tokens a pass is --spec-draft-n-max here, so that all are judged alike;
budget auto without it leaves each its own.

  tokens/pass  tokens over passes; the prompt's pass counts, since it writes a token
  length       mean accepted length: 1 + accepted tokens over passes that had a draft
  accepted     accepted over drafted tokens
  us/pass      microseconds of drafting over passes
  @1 @2 @3     the share of drafts whose first, second, third token was accepted

--json prints one object with the options and, for each drafter: drafter, records, tokens, passes,
drafts, drafted, accepted, tokens_per_pass, mean_accepted_length, acceptance_rate, accepted_at (drafts
whose first, second, ... token was accepted), drafted_at (nodes by depth), draft_us_per_pass.

With --on MODEL the same records are played beside plain decoding on an engine whose passes are MODEL's:
embedding, layers and head are computed for every row, then the row's token is replaced by the recorded
one. What is timed is so the speed of a pretended target, one that would have written these texts, and is
labelled so: recorded text, real passes of MODEL. A token that MODEL does not have is another of its own
to it, and itself to drafters. Ways take turns record by record in changing order; the prompt is computed
once for all of them, and not timed. Drafters are auto, which is what a user gets who names none, unless
--spec-type names others; the budget is auto, which weighs costs, unless --budget names another.

  tokens/s     tokens behind the first pass over their time
  speed-up     the same over plain decoding's, with the 95 % interval of a bootstrap over records
  ms/pass      milliseconds of the network over passes behind the first
  of 8 rows    what a pass of eight rows takes over one of a single row, medians of the passes that were made

The JSON object then has measured (the label), on, threads, isa, left_out (numbers of records that are too
long for the context), budget, passes_by_rows (rows -> passes, median ms), eight_rows_to_one, and for each
drafter, plain first, also tokens_per_second, speedup, speedup_low, speedup_high, ms_per_pass,
prompt_tokens and those of them whose rows were shared (prompt_tokens_shared), and seconds (of each record
in each repetition); counts are sums over repetitions.";

/// Most tokens drafted a pass where nothing else is said.
const NODES_MAX: usize = 7;

/// How much is drafted a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReplayBudget {
    /// What pays, by what passes and drafts cost: only with --on.
    Auto,
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
    /// As the command line names it.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// As the engine knows it, for one record.
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
    /// Drafters to judge, each alone [default: all that need no model; with --on auto]
    ///
    /// A + makes several share a pass; auto is what is taken elsewhere where none is named.
    #[arg(long, value_name = "KIND,..", value_delimiter = ',', value_parser = Contestant::from_str)]
    spec_type: Vec<Contestant>,
    /// Most tokens drafted a pass [default: 7; of budget auto 32]
    #[arg(long, aliases = ["draft-max", "draft"], value_name = "N",
        value_parser = values::one_up, allow_negative_numbers = true)]
    spec_draft_n_max: Option<usize>,
    /// How much to draft, up to the maximum [default: fixed; with --on auto]
    #[arg(long, value_name = "KIND")]
    budget: Option<ReplayBudget>,
    /// What is learned before: none, half (of the records) or a file of texts
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
    real: OnOptions,
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
        let on = self.real.open()?;
        self.check(on.is_some())?;
        let tokenizer = match &on {
            Some(on) if !self.vocabulary.is_named() => on.tokenizer()?,
            _ => self.vocabulary.open()?,
        };
        let mut records = records::read(&self.records, &tokenizer, self.limit)?;
        let answer_max = self.n_predict.unwrap_or(usize::MAX);
        records.iter_mut().for_each(|record| record.tokens.truncate(record.prompt_len.saturating_add(answer_max)));
        let budget = self.budget(on.is_some());
        let settings = self.drafter_settings(budget);
        let contestants = match (self.spec_type.is_empty(), &on) {
            (false, _) => self.spec_type.clone(),
            (true, Some(_)) => vec![Contestant::auto()],
            (true, None) => Contestant::all(&settings),
        };
        let equipment = Equipment { settings: &settings, nodes_max: self.nodes_max(budget), tokenizer: &tokenizer };
        let known = match &self.warm_up {
            WarmUp::File(path) => Some(Store::load(path, Vocabulary::from(&*tokenizer), TOKENS_MAX)?),
            WarmUp::None | WarmUp::Half => None,
        };
        // What is missing is told before anything is played.
        contestants.iter().try_for_each(|contestant| contestant.drafters(equipment).map(drop))?;
        match on {
            Some(on) => self.time(&on, records, (&contestants, equipment), known.as_ref(), interrupts),
            None => self.count(&records, (&contestants, equipment), known.as_ref(), interrupts),
        }
    }

    /// What a pass costs only real ones tell.
    fn check(&self, is_on: bool) -> Result<(), Failure> {
        match (is_on, self.budget) {
            (false, Some(ReplayBudget::Auto)) => {
                Err(Failure::Usage("--budget auto: expected --on MODEL beside it, found none".into()))
            }
            _ => Ok(()),
        }
    }

    /// The budget that is meant.
    fn budget(&self, is_on: bool) -> ReplayBudget {
        self.budget.unwrap_or(if is_on { ReplayBudget::Auto } else { ReplayBudget::Fixed })
    }

    /// Most nodes of a pass.
    fn nodes_max(&self, budget: ReplayBudget) -> usize {
        let default = if budget == ReplayBudget::Auto { BudgetKind::AUTO_NODES_MAX } else { NODES_MAX };
        self.spec_draft_n_max.unwrap_or(default)
    }

    /// Counts what each contestant saves.
    fn count(
        &self,
        records: &[Record],
        (contestants, equipment): (&[Contestant], Equipment<'_>),
        known: Option<&Store>,
        interrupts: Interrupts,
    ) -> Result<(), Failure> {
        let mut out = std::io::stdout();
        let mut objects = Vec::new();
        if !self.json {
            let what = format!("{}: {} records, {} tokens", self.records.display(), records.len(), answers(records));
            writeln!(out, "{what}, up to {} drafted a pass\n{}", equipment.nodes_max, head())?;
        }
        interrupts.begin();
        for contestant in contestants {
            let stats = match self.judge(contestant, records, known, equipment) {
                Err(Failure::Interrupted) => break,
                judged => judged?,
            };
            match self.json {
                true => objects.push(object(&contestant.name(), records.len(), &stats)),
                false => writeln!(out, "{}", line(contestant, &stats))?,
            }
            out.flush()?;
        }
        if self.json {
            let object = json!({
                "records": self.records.display().to_string(),
                "draft_max": equipment.nodes_max,
                "drafters": objects,
            });
            writeln!(out, "{object:#}")?;
        }
        out.flush()?;
        interrupts.end_command()
    }

    /// Times each contestant beside plain decoding on a model.
    fn time(
        &self,
        on: &On,
        records: Vec<Record>,
        (contestants, equipment): (&[Contestant], Equipment<'_>),
        known: Option<&Store>,
        interrupts: Interrupts,
    ) -> Result<(), Failure> {
        let (budget, nodes_max) = (self.budget(true), equipment.nodes_max);
        let Fit { records, numbers, left_out } = Fit::new(records, on.context());
        for (number, found) in &left_out {
            let room = format!("expected at most {} tokens (the context)", on.context());
            say(format_args!("note: record {number}: {room}, found {found}: left out"));
        }
        if records.is_empty() {
            let place = self.records.display();
            let expected = format!("expected records of at most {} tokens (the context)", on.context());
            return Err(Failure::Other(format!("{place}: {expected}, found none")));
        }
        let context = on.context().min(play::longest(&records) + nodes_max + 1);
        let script = Script::default();
        let (executor, threads) = on.load(script.clone(), equipment.tokenizer.vocabulary_len(), context)?;
        let page = Page {
            records: &self.records,
            playable: (records.len(), answers(&records)),
            left_out: left_out.into_iter().map(|(number, _)| number).collect(),
            model: on.name(),
            threads,
            budget: budget.name(),
            nodes_max,
        };
        // Other budgets go by what each drafter has of its own.
        let gain_min = self.drafters.spec_gain_min.filter(|_| budget == ReplayBudget::Auto);
        let plan = Plan {
            budget: &|record| budget.kind(nodes_max, record),
            draft: DraftSettings { gain_min, ..DraftSettings::default() },
            weighs: budget == ReplayBudget::Auto,
            by_halves: self.warm_up == WarmUp::Half,
            numbers: &numbers,
            repeat: self.real.repeat,
            seconds: self.real.seconds,
        };
        let mut timed = Timed::new((executor, script), context, (contestants, equipment), &records, plan)?;
        known.iter().for_each(|known| timed.learn_all(known));
        let mut out = std::io::stdout();
        if !self.json {
            writeln!(out, "{}", page.title())?;
            out.flush()?;
        }
        interrupts.begin();
        timed.run()?;
        match self.json {
            true => writeln!(out, "{:#}", page.object(&timed))?,
            false => write!(out, "{}", page.table(&timed))?,
        }
        out.flush()?;
        interrupts.end_command()
    }

    /// The drafters' settings. How much is drafted is said by `--spec-draft-n-max` alone, so that all are judged alike;
    /// where costs are weighed they decide, and each drafter has the limits that it has elsewhere.
    fn drafter_settings(&self, budget: ReplayBudget) -> DrafterSettings {
        let mut settings = self.drafters.settings();
        if budget == ReplayBudget::Auto && self.spec_draft_n_max.is_none() {
            return settings;
        }
        let nodes_max = self.nodes_max(budget);
        if budget != ReplayBudget::Auto {
            settings.gain_min.get_or_insert(0.0);
        }
        settings.lookup.nodes_max = nodes_max;
        settings.llma.nodes_max = nodes_max;
        settings.trie.nodes_max = nodes_max;
        settings.suffix.nodes_max = nodes_max;
        settings.ngram.depth_max = nodes_max;
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
        let budget = self.budget(false);
        play::all(records, self.warm_up == WarmUp::Half, stage, |record| budget.kind(nodes_max, record))
    }
}

/// Tokens that all records write.
fn answers(records: &[Record]) -> usize {
    records.iter().map(|record| record.tokens.len() - record.prompt_len).sum()
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
