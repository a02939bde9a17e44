//! `foretoken bench generate`: several methods of drafting compared with plain decoding, on the same prompts.
//!
//! All variants alternate group by group of prompts, in changing order, so that changes of the machine affect all of
//! them alike ([`measure`]); one engine has the drafters of all, so that every model is loaded once. Speed-ups have
//! confidence intervals ([`interval`]). Where the same text is promised, texts are compared, and a difference is an
//! error. Requests that arrive while others are running are measured by `bench batch` and `bench serve`.

pub mod budget;
pub mod charts;
pub mod interval;
pub mod measure;
pub mod order;
mod remaining;
pub mod rows;
pub mod table;
pub mod timings;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use foretoken::generator::Choices;
use foretoken::settings::{SamplingSettings, SpeculationSettings, check_lenience};
use foretoken::spec_type::DrafterKind;
use foretoken::{Answer, Generator, Promise, Prompter, Settings, SpecType};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::opening::{Notices, open_generator_with};
use foretoken_console::options::{BeamOptions, DraftingOptions, LawOptions, ModelOptions};
use foretoken_console::prompts::{ListOptions, ListedPrompt};
use foretoken_console::terminal::standard_output;
use foretoken_console::values;
use foretoken_engine::{BudgetKind, Token};
use serde_json::{Value, json};

use super::report::{Folder, ReportOptions};
use budget::BudgetChoice;
use measure::Measurement;
use rows::{Method, Runs};
use table::Formatter;

const AFTER_HELP: &str = "\
A repetition continues every prompt by plain decoding and by every method under every promise with every
budget, all of them with one prompt before the next prompt, in changing order and with the same seed.
Repetitions continue until --repeat or --seconds are used up, or from the third on until the intervals of
all speed-ups are narrow: at most 1 % of the value to each side. Of a prompt's repetitions the median time
counts. Before the first, every method generates a few tokens untimed.

Drafters learn texts within their own row and repetition, from prompt to prompt; that is part of their
time. The texts of --lookup-cache-static and --lookup-cache-dynamic are learned by all rows at the start.
Rows share the models, the measured costs, and, with the same drafters, promise and kind of budget and
about the same temperature, the learned acceptance of each drafter.

  tokens/s     tokens after the first pass over the time after the first token
  speed-up     the same over plain decoding's, with its 95 % interval
  verdict      of the speed-up (if answers have one token, of that with the prompt): faster or slower, or
               no difference where the interval holds 1
  with prompt  speed-up of all tokens over all time, prompts included, with its 95 % interval
  first ms     mean milliseconds until the first token: the prompt is read, and a pass writes a token
  a pass       tokens over passes of the target that emitted any
  length       mean accepted length: 1 + accepted tokens over passes that had a draft
  accepted     accepted over drafted tokens
  drafting     time spent drafting over all time
  text         whether all texts are equal to plain decoding's; - where only the distribution is promised,
               or where --lossy-lenience breaks the promise, which its column says

The interval is a bootstrap's: 1000 resamples of prompts, and of repetitions of each. With fewer than
about ten prompts that gain differently it is too narrow; one prompt in one repetition has none. Columns
from \"a pass\" on are of each prompt's repetition with the median time, or of the faster of the two in the
middle.

The prompts of an encoder-decoder are its sources: \"with prompt\" has the encoder's time in it, that of a
draft model's encoder too, and \"first ms\" is this and a pass of the decoder; all else is behind it.

With --parallel N prompts are submitted in groups of N, each of which runs to its end before the next
begins; the last may be smaller. Plain decoding runs the same groups. A group counts as one prompt above:
its time is from submitting it to its last token, and \"after the first token\" is after the moment when all
of its texts have begun; so tokens/s is that of all texts of a group together. At each temperature all texts
are compared with the first ones of plain decoding, with as many at a time as the first number of --parallel.
With --n-best K the list of prompts is used K times, so a short list is enough for large groups:

  foretoken bench generate --prompts FILE --n-best 8 --parallel 1,2,4,8,16 --ignore-eos -n 64

With --num-beams N every row is a beam search. Its tokens are steps of the search, its \"a pass\" are steps
over passes, and \"accepted\" is the inclusion rate: how often all of the next beams were among the drafts.
All N hypotheses and their scores are compared. Only draft models draft for beams. Below the table is what a
step takes without drafts over what its pass of N rows takes; of several texts at a time it is left out.

--json prints one object a row instead, with the same figures unrounded (acceptance_rate, drafting_share;
bookkeeping_share is the time of deciding what to draft and of learning from it, bench_share that of the
measurement itself over all of it; speedup_low and speedup_high are the interval; modelled_speedup is what
costs predict, without the clock; beams and step_over_pass are those of beam searches), with the number
of prompts, tokens and repetitions, per_pass the rows, bytes read and distinct experts of the passes
(prompts' among them), the seconds of each group in each repetition, and for each drafter its
statistics and the reliability of its estimates; its alpha, the mean overlap of its law with the
target's, only under --measure. So is predicted, of a method with one drafter: the speed-up that this
alpha and the costs predict for chains as long as its drafts.";

/// Options of `foretoken bench generate`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
#[command(after_long_help = AFTER_HELP)]
pub struct Generate {
    /// Prompts: objects of a .jsonl file, or one per line; - is standard input
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    #[command(flatten)]
    list: ListOptions,
    /// Only the prompts of these kinds, if the file names kinds ("category" or "kind")
    #[arg(long, hide_short_help = true, value_name = "KIND,..", value_delimiter = ',')]
    kind: Vec<String>,
    /// Answers to each prompt, each with a seed of its own as with generate; at temperature 0 they are equal
    #[arg(long, hide_short_help = true, value_name = "K", default_value = "1", value_parser = values::texts,
        allow_negative_numbers = true)]
    n_best: usize,
    /// Most repetitions of each prompt, of which the median counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = values::one_up, allow_negative_numbers = true)]
    repeat: usize,
    /// No further repetition begins after so many seconds at one temperature with one number of texts at a time
    #[arg(long, hide_short_help = true, value_name = "S", default_value = "120", value_parser = values::zero_up,
        allow_negative_numbers = true)]
    seconds: f32,
    /// Texts generated at a time, one number or several
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1", value_parser = values::texts,
        allow_negative_numbers = true)]
    parallel: Vec<usize>,
    /// Also a row for each kind of prompt, with one text at a time
    ///
    /// The file names kinds ("category" or "kind").
    #[arg(long)]
    by_kind: bool,
    /// Print one JSON object a row (see --help)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportOptions,
    /// Also alpha of drafters with a law, in the JSON; this computes the target's law, which takes time
    #[arg(long, hide_short_help = true, requires = "json")]
    measure: bool,
    /// Methods, each measured by itself, as lookup,draft+lookup [default: auto]
    ///
    /// Drafters are named as for generate, several for one tree joined by a plus.
    #[arg(long, help_heading = "Speculation", value_name = "KIND,..", value_delimiter = ',',
        value_parser = str::parse::<SpecType>)]
    spec_type: Vec<SpecType>,
    /// One or several of exact, rejection, block
    #[arg(
        long,
        help_heading = "Speculation",
        value_name = "PROMISE,..",
        value_delimiter = ',',
        default_value = "exact",
        value_parser = values::one_of::<Promise>(),
        hide_possible_values = true
    )]
    verify: Vec<Promise>,
    /// How much to draft, one budget or several
    ///
    /// As for generate, or oracle, which knows the text of plain decoding and drafts what will be accepted; each also
    /// with limits of its own, KIND:NODES or KIND:NODES:P (fixed:8:0.2), instead of --spec-draft-n-max and
    /// --spec-draft-p-min.
    #[arg(long, help_heading = "Speculation", value_name = "KIND,..", value_delimiter = ',', default_value = "auto",
        value_parser = str::parse::<BudgetChoice>)]
    budget: Vec<BudgetChoice>,
    /// Temperatures; 0 is greedy [default: 0.8]
    #[arg(long, help_heading = "Sampling", visible_alias = "temperature", value_name = "T,..", value_delimiter = ',',
        value_parser = values::zero_up, allow_negative_numbers = true)]
    temp: Vec<f32>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    drafting: DraftingOptions,
    #[command(flatten)]
    law: LawOptions,
    #[command(flatten)]
    beams: BeamOptions,
}

impl Generate {
    /// Runs the command.
    ///
    /// # Errors
    /// A text differs from plain decoding's against the promise, or anything else fails.
    pub fn run(&self, interrupts: Interrupts) -> Result<(), Failure> {
        self.check_oracle()?;
        self.check_lenience()?;
        self.check_n_min()?;
        self.check_beams()?;
        let folder = self.report.begin()?;
        let listed = self.chosen(self.list.read(&self.prompts)?)?;
        let parallel = self.parallel(listed.len())?;
        let specs: Vec<Option<SpecType>> = match self.spec_type.is_empty() {
            true => vec![None],
            false => self.spec_type.iter().cloned().map(Some).collect(),
        };
        let limit = self.drafting.spec_draft_n_max;
        let mut speculation = SpeculationSettings {
            // Every request of a method has its own promise.
            verify: self.verify.first().copied().unwrap_or(Promise::Exact),
            ..self.drafting.settings()?
        };
        speculation.memory.shared = true;
        let settings = Settings {
            model: self.model.settings()?,
            // All hypotheses of a search are compared.
            sampling: SamplingSettings {
                n_best: self.beams.num_beams,
                ..self.beams.with(self.law.settings(self.temp.first().copied())?)
            },
            speculation,
            parallel: parallel.iter().copied().max().unwrap_or(1),
        };
        let (mut generator, mut notices) = open_generator_with(&Choices {
            methods: specs.iter().map(|spec| spec.clone().unwrap_or_default()).collect(),
            budget: self.budget.first().map_or(BudgetKind::default(), |budget| budget.kind(limit, None)),
            ..Choices::new(&settings)
        })?;
        let tokens = |listed: ListedPrompt| Ok((listed.usable_tokens(&generator.prompter)?, listed.kind));
        let place = self.prompts.display().to_string();
        let listed = self.list.usable(&place, listed.into_iter().map(tokens).collect())?;
        self.parallel(listed.len())?; // some may have been left out since
        // The list is repeated for each answer, so that a group has as many different prompts as possible.
        let (prompts, kinds): (Vec<_>, Vec<_>) = std::iter::repeat_n(listed, self.n_best).flatten().unzip();
        notices.print_seed();
        let prompter = Arc::clone(&generator.prompter);
        let formatter = Formatter {
            target: &prompter.target.name,
            names: &prompter.names,
            threads: self.model.threads(),
            repeat: self.repeat,
            parallel: &parallel,
            n_best: self.n_best,
            seed: prompter.decided.settings.seed.unwrap_or_default(),
            kinds: &kinds,
            by_kind: self.by_kind,
        };
        interrupts.begin();
        let differences =
            self.measure_all((&mut generator, &mut notices), &specs, &prompts, &formatter, folder.as_ref())?;
        interrupts.end_command()?;
        match differences.as_slice() {
            [] => Ok(()),
            [one] => Err(Failure::Other(one.clone())),
            [first, ..] => Err(Failure::Other(format!("{} texts differ, the first: {first}", differences.len()))),
        }
    }

    /// Measures and prints everything. Returns differences of texts that should be equal.
    fn measure_all(
        &self,
        (generator, notices): (&mut Generator, &mut Notices),
        specs: &[Option<SpecType>],
        prompts: &[Vec<Token>],
        formatter: &Formatter<'_>,
        folder: Option<&Folder>,
    ) -> Result<Vec<String>, Failure> {
        let mut out = standard_output();
        if !self.json {
            writeln!(out, "{}", formatter.title(prompts))?;
        }
        let default = [generator.prompter.decided.sampling.temperature];
        let temperatures = if self.temp.is_empty() { &default[..] } else { &self.temp };
        let mut measurement = Measurement {
            prompts,
            n_best: self.n_best,
            methods: &self.methods(&generator.prompter, specs),
            generator,
            notices,
            nodes_max: self.drafting.spec_draft_n_max,
            alpha: self.measure,
            repeat: self.repeat,
            seconds: self.seconds,
            cells: (temperatures.len() * formatter.parallel.len(), 0),
            tenants: 0,
        };
        let (mut differences, mut measured) = (Vec::new(), Vec::new());
        for temperature in temperatures {
            measurement.warm_up(*temperature)?;
            let mut plain: Vec<Option<Answer>> = vec![None; prompts.len()];
            let mut all: Vec<Runs> = Vec::new();
            for parallel in formatter.parallel {
                let runs = measurement.run(*temperature, *parallel, &mut plain)?;
                if runs.groups.is_empty() {
                    break;
                }
                if self.json {
                    let costs = measurement.generator.engine.costs();
                    formatter.objects(&runs, costs).iter().try_for_each(|object| writeln!(out, "{object}"))?;
                    out.flush()?;
                }
                let different = prompts.len() / self.n_best;
                differences.extend(runs.variants.iter().flat_map(|variant| variant.differences(different)));
                all.push(runs);
            }
            if !self.json && !all.is_empty() {
                write!(out, "\n{}", formatter.table(&all))?;
                out.flush()?;
            }
            measured.append(&mut all);
        }
        if let (Some(folder), Some(first)) = (folder, measured.first()) {
            // Without kinds the rows of all prompts would be duplicated.
            let formatter = Formatter { by_kind: formatter.kinds.iter().any(Option::is_some), ..*formatter };
            let different = prompts.len() / self.n_best;
            let engine = &measurement.generator.engine;
            let rows: Vec<Value> = measured.iter().flat_map(|runs| formatter.objects(runs, engine.costs())).collect();
            let facts = json!({
                "model": formatter.target,
                "machine": foretoken::machine(),
                "prompts": self.prompts.display().to_string(),
                "bench_share": measured.iter().fold(0.0, |most: f64, runs| most.max(runs.bench_share)),
            });
            let charts = charts::charts(first, &rows, different, formatter.names, &engine.cost_record());
            folder.finish(facts, (&table::COLUMNS, &rows), &charts)?;
        }
        Ok(differences)
    }

    /// The methods, each under each promise with each budget.
    fn methods(&self, prompter: &Prompter, specs: &[Option<SpecType>]) -> Vec<Method> {
        let names = specs.iter().zip(&prompter.methods).map(|(spec, method)| match spec {
            Some(spec) => spec.to_string(),
            None => {
                let names = method.drafters.iter().map(|number| prompter.names[usize::from(*number)].as_str());
                // The grammar's drafter is not named if there is no grammar.
                let is_guided = prompter.decided.grammar.is_some();
                let names = names.filter(|name| is_guided || *name != DrafterKind::Grammar.name());
                names.collect::<Vec<_>>().join("+")
            }
        });
        let names: Vec<String> = names.collect();
        let variants = self.verify.iter().flat_map(|verify| self.budget.iter().map(move |budget| (*verify, *budget)));
        let each = |(verify, budget)| {
            names.iter().zip(&prompter.methods).map(move |(name, method)| {
                let (name, drafters, order) = (name.clone(), method.drafters.clone(), method.order);
                Method { name, drafters, order, verify, lossy_lenience: self.drafting.lossy_lenience, budget }
            })
        };
        variants.flat_map(each).collect()
    }

    /// The prompts of the chosen kinds.
    fn chosen(&self, mut listed: Vec<ListedPrompt>) -> Result<Vec<ListedPrompt>, Failure> {
        let kind_of = |listed: &ListedPrompt| listed.kind.clone().unwrap_or_else(|| "other".to_string());
        let mut kinds: Vec<String> = listed.iter().map(kind_of).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if let Some(unknown) = self.kind.iter().find(|kind| !kinds.contains(kind)) {
            let kinds = kinds.join(", ");
            return Err(Failure::Usage(format!("--kind: expected kinds of the prompts ({kinds}), found {unknown:?}")));
        }
        listed.retain(|listed| self.kind.is_empty() || self.kind.contains(&kind_of(listed)));
        Ok(listed)
    }

    /// Texts at a time, each number once.
    fn parallel(&self, prompts: usize) -> Result<Vec<usize>, Failure> {
        let (mut parallel, most) = (Vec::new(), prompts * self.n_best);
        for texts in &self.parallel {
            if *texts > most {
                let times = if self.n_best > 1 { " times --n-best" } else { "" };
                let message =
                    format!("--parallel: expected at most {most} (the number of prompts{times}), found {texts}");
                return Err(Failure::Usage(message));
            }
            if !parallel.contains(texts) {
                parallel.push(*texts);
            }
        }
        if self.by_kind && !parallel.contains(&1) {
            let why = "since texts of several kinds run together otherwise";
            return Err(Failure::Usage(format!("--by-kind: expected 1 among the numbers of --parallel, {why}")));
        }
        Ok(parallel)
    }

    /// Checks that every budget allows at least `--spec-draft-n-min` tokens.
    fn check_n_min(&self) -> Result<(), Failure> {
        let (found, limit) = (self.drafting.spec_draft_n_min, self.drafting.spec_draft_n_max);
        match self.budget.iter().find(|budget| budget.nodes_max(limit) < found) {
            Some(budget) => {
                let expected = format!("at most the nodes of --budget {budget} ({})", budget.nodes_max(limit));
                Err(Failure::Usage(format!("--spec-draft-n-min: expected {expected}, found {found}")))
            }
            None => Ok(()),
        }
    }

    /// Checks that every promise allows the lenience at every temperature.
    fn check_lenience(&self) -> Result<(), Failure> {
        let each = self.verify.iter().flat_map(|verify| self.temp.iter().map(move |temperature| (verify, temperature)));
        for (verify, temperature) in each {
            check_lenience(self.drafting.lossy_lenience, *verify, *temperature)?;
        }
        Ok(())
    }

    /// Checks what beam searches cannot be measured with; of the temperatures the settings see the first one alone.
    fn check_beams(&self) -> Result<(), Failure> {
        let beams = self.beams.num_beams;
        let hot = self.temp.iter().find(|temperature| **temperature != 0.0);
        if let Some(found) = hot.filter(|_| beams > 1) {
            return Err(Failure::Usage(format!("--temp: expected 0 beside --num-beams {beams}, found {found}")));
        }
        match beams > 1 && self.budget.iter().any(|budget| budget.is_oracle()) {
            true => Err(Failure::Usage(format!("--budget: expected no oracle beside --num-beams {beams}, found one"))),
            false => Ok(()),
        }
    }

    /// Checks that texts do not depend on drafts, if there is an oracle.
    fn check_oracle(&self) -> Result<(), Failure> {
        let exact = self.verify.iter().all(|verify| *verify == Promise::Exact);
        let greedy = !self.temp.is_empty() && self.temp.iter().all(|temperature| *temperature == 0.0);
        let has_oracle = self.budget.iter().any(|budget| budget.is_oracle());
        if has_oracle && self.drafting.lossy_lenience < 1.0 {
            let found = self.drafting.lossy_lenience;
            return Err(Failure::Usage(format!("--budget oracle: expected --lossy-lenience 1, found {found}")));
        }
        match has_oracle && !exact && !greedy {
            true => Err(Failure::Usage("--budget oracle: expected --verify exact alone, or --temp 0 alone".into())),
            false => Ok(()),
        }
    }
}
