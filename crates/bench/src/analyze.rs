//! `foretoken analyze`: what the theory of speculative decoding predicts for a target and its drafters, and what is
//! measured.
//!
//! For each drafter alpha is measured, the mean of the sum of min(p, q) over positions, and c, the cost of a draft step
//! over that of a pass. From these follows the speed-up of each draft length (`foretoken_speculation::theory`), which
//! is then measured by the machinery of `bench generate`: chains of a fixed length, under *rejection*, whose acceptance
//! is what the theory is about. Where the two differ, [`results`] says which assumption fails. The tables are those of
//! Leviathan et al. 2023, for your models and prompts.

mod charts;
mod drafters;
mod results;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use foretoken::generator::Choices;
use foretoken::report::digits;
use foretoken::settings::{Limit, MemorySettings, Named, SpeculationSettings};
use foretoken::spec_type::{DrafterKind, DrafterSpec};
use foretoken::{Answer, Generator, Promise, Settings, SpecType};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::opening::{Notices, open_generator_with};
use foretoken_console::options::{DraftingOptions, LawOptions, ModelOptions};
use foretoken_console::prompts::{ListOptions, ListedPrompt};
use foretoken_console::terminal::standard_output;
use foretoken_console::values;
use foretoken_engine::{BudgetKind, CostRecord, Order, Token};
use foretoken_kernels::Isa;
use serde_json::{Value, json};

use crate::generate;
use crate::generate::budget::BudgetChoice;
use crate::generate::measure::Measurement;
use crate::generate::rows::{Method, Runs};
use crate::report::{Folder, ReportOptions};
use drafters::AnalyzedDrafter;
use results::{DrafterResult, Measured};

/// The longest draft that is measured.
const GAMMA_MAX: usize = 64;
/// Drafts in which alpha is measured have at least this many tokens: the position after one that was accepted
/// completely has no law of the drafter, and so should be rare.
const ALPHA_DEPTH_MIN: usize = 16;
/// Tokens of a text where no limit is given: enough for most estimates, and a minute for small models.
const TEXT_TOKENS: usize = 128;

const AFTER_HELP: &str = "\
alpha is measured first, in one untimed run of long drafts. Then a repetition continues every prompt by
plain decoding and by every drafter with every draft length, in changing order, as bench generate does;
so do the repetitions that follow. Drafts are chains of --gamma tokens under --verify rejection,
whatever else is set. Texts have at most 128 tokens where -n sets no limit. p and q are laws after all
sampling settings; those of the paper need --top-k 0 --top-p 1 --min-p 0. unigram and bigram count the
text so far and the texts of --lookup-cache-static (see --ngram-source); lookup copies what followed the
longest match of the last tokens (see --max-matching-ngram-size) in the text, or in the source of an
encoder-decoder, whose prompts are sources; they are read before the first token. With --lossy-lenience L
drafts are verified with loss, and alpha is the mean of the sum of min(p/L, q), at temperature 0 the part
of drafted tokens that are at least L times as probable as the best (appendix A.5).

  alpha          mean of the sum of min(p, q) over positions; 0 where a drafter has no law (Corollary 3.6);
                 of one that never has any, as a draft model of another vocabulary, what was accepted
  with law       the part of the positions where it has one
  c              time of a draft step over that of a pass of one row; 0 without a network (Definition 3.7)
  at least       the speed-up of one drafted token, if alpha is greater than c (Corollary 3.9)
  by depth       of drafts that were accepted so far, the part whose next token was accepted
  Equation 1     expected tokens a pass, by alpha; beside it as measured, after each text's first pass
  Theorem 3.8    speed-up by alpha and c
  with widths    the same with measured times of wider passes, and of drafting
  measured       speed-up after the first token over plain decoding's, with its 95 % interval
  off            measured over Theorem 3.8
  oracle         speed-up if exactly the tokens that will be accepted were drafted (section 3.5)

Where Theorem 3.8 is off by more than a tenth, a line says why. Each reason is a quantity of the theorem
replaced by the measured one, with the change of the speed-up; together they are the whole difference:
tokens a pass, which differ where acceptance depends on the depth (alpha is taken to be the same everywhere);
the time of a pass of several rows over one; the time of a draft; reading of tokens that the draft model
drafted last; and the rest: laws of the rows, verification, bookkeeping, and noise.

--json prints one object: model, machine, threads, isa, seed, prompts and lossy_lenience, drafters (an object for
each drafter and temperature) and rows (an object for each draft length as well), with the same figures unrounded.
Of a row causes are the factors of the difference, operations and memory_reads those of Theorem 3.11 (without
the draft model's own) and section 3.4, over plain decoding.";

/// Options of `foretoken analyze`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
#[command(after_long_help = AFTER_HELP)]
pub struct Analyze {
    /// Prompts: objects of a .jsonl file, or one per line; - is standard input
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    #[command(flatten)]
    list: ListOptions,
    /// Draft lengths
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,2,3,4,5,6,7,8,9,10",
        value_parser = gamma, allow_negative_numbers = true)]
    gamma: Vec<usize>,
    /// Most repetitions of each prompt, of which the median counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::one_up, allow_negative_numbers = true)]
    repeat: usize,
    /// No further repetition begins after so many seconds at one temperature
    #[arg(long, hide_short_help = true, value_name = "S", default_value = "120", value_parser = values::zero_up,
        allow_negative_numbers = true)]
    seconds: f32,
    /// Print one JSON object (see --help)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportOptions,
    /// Drafters, some of draft, unigram, bigram, lookup, random
    #[arg(
        long,
        help_heading = "Speculation",
        value_name = "KIND,..",
        value_delimiter = ',',
        default_value = "draft,unigram,bigram,random",
        value_parser = values::one_of::<AnalyzedDrafter>(),
        hide_possible_values = true
    )]
    spec_type: Vec<AnalyzedDrafter>,
    /// Temperatures; 0 is greedy
    #[arg(long, help_heading = "Sampling", visible_alias = "temperature", value_name = "T,..", value_delimiter = ',',
        default_value = "0,1", value_parser = values::zero_up, allow_negative_numbers = true)]
    temp: Vec<f32>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    drafting: DraftingOptions,
    #[command(flatten)]
    law: LawOptions,
}

/// A draft length.
fn gamma(word: &str) -> Result<usize, String> {
    let expected = || format!("expected a whole number from 1 to {GAMMA_MAX}");
    word.parse().ok().filter(|gamma| (1..=GAMMA_MAX).contains(gamma)).ok_or_else(expected)
}

/// The target with the drafters, and their numbers.
struct Subject {
    generator: Generator,
    notices: Notices,
    drafters: Vec<(AnalyzedDrafter, u8)>,
}

/// The results, and what a report needs besides.
#[derive(Default)]
struct Results {
    drafters: Vec<DrafterResult>,
    /// Texts that should be equal to plain decoding's and are not.
    differences: Vec<String>,
    bench_share: f64,
}

impl Analyze {
    /// Runs the command.
    ///
    /// # Errors
    /// A greedy text differs from plain decoding's, or anything else fails.
    pub fn run(&self) -> Result<(), Failure> {
        let interrupts = Interrupts::listen();
        let folder = self.report.begin()?;
        let listed = self.list.read(&self.prompts)?;
        let mut gammas = self.gamma.clone();
        gammas.sort_unstable();
        gammas.dedup();
        let depth_max = gammas.last().copied().unwrap_or(0).max(ALPHA_DEPTH_MIN);
        let mut subject = self.open(depth_max)?;
        let prompter = Arc::clone(&subject.generator.prompter);
        let tokens = |listed: ListedPrompt| listed.usable_tokens(&prompter);
        let place = self.prompts.display().to_string();
        let prompts = self.list.usable(&place, listed.into_iter().map(tokens).collect())?;
        subject.notices.print_seed();
        let formatter = generate::table::Formatter {
            target: &prompter.target.name,
            names: &[],
            threads: self.model.threads(),
            repeat: self.repeat,
            parallel: &[1],
            n_best: 1,
            seed: prompter.decided.settings.seed.unwrap_or_default(),
            kinds: &[],
            by_kind: false,
        };
        let mut out = standard_output();
        if !self.json {
            writeln!(out, "{}", formatter.title(&prompts))?;
            if let Some(lenience) = self.lossy() {
                writeln!(out, "lossy: drafts are verified with lenience {lenience}, which changes the law of texts")?;
            }
            out.flush()?;
        }
        interrupts.begin();
        let results = self.measure(&mut subject, &prompts, &gammas, depth_max)?;
        let facts = json!({
            "model": formatter.target,
            "machine": foretoken::machine(),
            "threads": formatter.threads,
            "isa": Isa::chosen().name(),
            "seed": formatter.seed,
            "prompts": place,
            "lossy_lenience": self.lossy().map(|lenience| digits(f64::from(lenience))),
            "bench_share": results.bench_share,
            "drafters": table::drafters(&results.drafters),
        });
        let costs = subject.generator.engine.cost_record();
        self.write(&results.drafters, facts, folder.as_ref(), &costs)?;
        interrupts.end_command()?;
        results.differences.into_iter().next().map_or(Ok(()), |first| Err(Failure::Other(first)))
    }

    /// The lenience, if verification is lossy.
    fn lossy(&self) -> Option<f32> {
        Some(self.drafting.lossy_lenience).filter(|lenience| *lenience < 1.0)
    }

    /// Prints the results, and writes the report if there are any.
    fn write(
        &self,
        results: &[DrafterResult],
        facts: Value,
        folder: Option<&Folder>,
        costs: &CostRecord,
    ) -> Result<(), Failure> {
        let mut out = standard_output();
        let rows = table::rows(results);
        if self.json {
            let mut object = facts.clone();
            object["rows"] = json!(rows);
            writeln!(out, "{object:#}")?;
        } else {
            write!(out, "\n{}", table::text(results))?;
        }
        out.flush()?;
        let Some(folder) = folder.filter(|_| !rows.is_empty()) else { return Ok(()) };
        let charts = [
            Ok(charts::alphas(results)),
            Ok(charts::speedups(results)),
            charts::depths(results),
            generate::charts::passes(costs),
        ];
        folder.finish(facts, (&table::COLUMNS, &rows), &charts)
    }

    /// Opens the target, with drafters of chains of up to `depth_max` tokens.
    fn open(&self, depth_max: usize) -> Result<Subject, Failure> {
        let mut wanted: Vec<AnalyzedDrafter> = Vec::new();
        for drafter in &self.spec_type {
            if !wanted.contains(drafter) {
                wanted.push(*drafter);
            }
        }
        let mut speculation = SpeculationSettings { verify: Promise::Rejection, ..self.drafting.settings()? };
        let memory = MemorySettings { shared: true, ..std::mem::take(&mut speculation.memory) };
        let draft = &mut speculation.draft;
        (draft.n_max, draft.n_min, draft.p_min, draft.p_split) = (Some(depth_max), 0, None, Some(1.0));
        let mut sampling = self.law.settings(self.temp.first().copied())?;
        sampling.tokens_max = Limit(sampling.tokens_max.0.or(Some(TEXT_TOKENS)));
        let settings = Settings { model: self.model.settings()?, sampling, speculation, parallel: 1 };
        let method = match wanted.contains(&AnalyzedDrafter::Draft) {
            true => SpecType::Drafters(vec![DrafterSpec::new(DrafterKind::Draft)]),
            false => SpecType::None,
        };
        let (mut generator, notices) = open_generator_with(&Choices {
            methods: vec![method],
            budget: BudgetKind::Fixed { nodes: depth_max },
            ..Choices::new(&settings)
        })?;
        let numbers = drafters::add(&mut generator, &wanted, depth_max, &settings.speculation.drafters, &memory)?;
        Ok(Subject { generator, notices, drafters: wanted.into_iter().zip(numbers).collect() })
    }

    /// Measures every drafter at every temperature. After Ctrl-C the results are those that are complete.
    fn measure(
        &self,
        subject: &mut Subject,
        prompts: &[Vec<Token>],
        gammas: &[usize],
        depth_max: usize,
    ) -> Result<Results, Failure> {
        let Subject { generator, notices, drafters } = subject;
        let method = |(drafter, number): &(AnalyzedDrafter, u8), nodes: usize| Method {
            name: drafter.name(),
            drafters: vec![*number],
            order: Order::Given,
            verify: Promise::Rejection,
            lossy_lenience: self.drafting.lossy_lenience,
            budget: BudgetChoice::fixed(nodes),
        };
        let long: Vec<Method> = drafters.iter().map(|drafter| method(drafter, depth_max)).collect();
        let of_gammas = |drafter| gammas.iter().map(move |gamma| method(drafter, *gamma));
        let timed: Vec<Method> = drafters.iter().flat_map(of_gammas).collect();
        let mut measurement = Measurement {
            generator,
            notices,
            prompts,
            n_best: 1,
            methods: &long,
            nodes_max: None,
            alpha: true,
            repeat: 1,
            seconds: self.seconds,
            cells: (2 * self.temp.len(), 0),
            tenants: 0,
        };
        let mut results = Results::default();
        for temperature in &self.temp {
            let mut plain: Vec<Option<Answer>> = vec![None; prompts.len()];
            (measurement.methods, measurement.alpha, measurement.repeat) = (&long, true, 1);
            measurement.warm_up(*temperature)?;
            let alphas = measurement.run(*temperature, 1, &mut plain)?;
            (measurement.methods, measurement.alpha, measurement.repeat) = (&timed, false, self.repeat);
            let runs = measurement.run(*temperature, 1, &mut plain)?;
            if alphas.groups.is_empty() || runs.groups.is_empty() {
                break;
            }
            let costs = measurement.generator.engine.costs();
            let measured = Measured { alphas: &alphas, runs: &runs, gammas, costs };
            let each = drafters.iter().enumerate();
            let result = |(place, (drafter, number)): (usize, &(AnalyzedDrafter, u8))| {
                measured.drafter(place, drafter.name(), *number)
            };
            results.drafters.extend(each.map(result));
            results.bench_share = results.bench_share.max(runs.bench_share);
            let differences = |runs: &Runs| -> Vec<String> {
                runs.variants.iter().flat_map(|variant| variant.differences(prompts.len())).collect()
            };
            results.differences.extend([&alphas, &runs].into_iter().flat_map(differences));
        }
        Ok(results)
    }
}
