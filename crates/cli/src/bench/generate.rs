//! `foretoken bench generate`: several ways of drafting next to plain decoding, on the same prompts.
//!
//! All ways take turns prompt by prompt, so that whatever the machine does meanwhile hits all of them alike; one engine
//! has the drafters of all, so that every model is loaded once. Speed is worth nothing if the text is another: wherever
//! the same text is promised it is compared, and a difference is an error. Left out: several texts at a time.

mod page;
mod rows;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use foretoken_engine::{Request, RequestError, Token};
use foretoken_speculation::{Sampling, Tenant};

use crate::answers::{Answer, run};
use crate::assembly::{Assembly, Choices};
use crate::failure::Failure;
use crate::options::{Budget, DraftingOptions, LawOptions, ModelOptions, SpecType, Verify};
use crate::progress::{bar, say};
use crate::prompts::{self, Listed};
use crate::values;
use page::Page;
use rows::{Measured, Method, Runs};

const EXPLAINED: &str = "\
Every prompt is continued by plain decoding and then by every method under every promise, at every
temperature, one text at a time and each with the same seed. Of several repetitions of a prompt the one
with the least time counts. What drafters learn from texts they learn within their own row and repetition,
from prompt to prompt; all rows know the texts of --lookup-cache-static and --lookup-cache-dynamic from the
start, and share the models and what is known of how often each drafter is right.

  tokens/s     tokens behind the first pass over the time behind the first token
  speed-up     the same over plain decoding's
  with prompt  speed-up of all tokens over all time, prompts included
  a pass       tokens over passes of the target that wrote any
  length       mean accepted length: 1 + accepted tokens over passes that had a draft
  accepted     accepted over drafted tokens
  drafting     time spent drafting over all time
  text         whether all texts are equal to plain decoding's; - where only the distribution is promised

--json prints one object a row instead, with the same figures unrounded (acceptance_rate, drafting_share),
with the number of prompts and tokens, and for each drafter what it did; its alpha, the mean overlap of
its law with the target's, only under --measure.";

/// Options of `foretoken bench generate`.
#[derive(Args, Debug)]
#[command(after_long_help = EXPLAINED)]
pub struct Generate {
    /// The prompts: a .jsonl file of objects with "prompt" (or "text", or "turns"), or one a line
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    #[command(flatten)]
    model: ModelOptions,
    /// Repetitions, of which the fastest counts
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::one_up, allow_negative_numbers = true)]
    repeat: usize,
    /// Also a row for each kind of prompt, if the file names kinds ("category" or "kind")
    #[arg(long)]
    by_kind: bool,
    /// Print one JSON object a row (see --help)
    #[arg(long)]
    json: bool,
    /// Also alpha of drafters with a law, in the JSON objects; the target's law is computed for it, which takes time
    #[arg(long, requires = "json")]
    measure: bool,
    /// Methods, each measured by itself: drafters as for generate, several for one tree joined by a plus, as in
    /// draft,lookup,draft+lookup [default: draft if there is a draft model, else lookup]
    #[arg(long, help_heading = "Speculation", value_name = "KIND,..", value_delimiter = ',',
        value_parser = str::parse::<SpecType>)]
    spec_type: Vec<SpecType>,
    /// What speculation promises, one or several
    #[arg(
        long,
        help_heading = "Speculation",
        value_name = "PROMISE,..",
        value_delimiter = ',',
        default_value = "exact"
    )]
    verify: Vec<Verify>,
    /// How much to draft, up to the maximum, in one way or several: as for generate, or oracle, which knows the plain text
    /// and drafts what will be accepted
    #[arg(long, help_heading = "Speculation", value_name = "KIND,..", value_delimiter = ',', default_value = "heuristic",
        value_parser = str::parse::<Measured>)]
    budget: Vec<Measured>,
    #[command(flatten)]
    drafting: DraftingOptions,
    /// Temperatures; 0 is greedy [default: 0.8]
    #[arg(long, help_heading = "Sampling", visible_alias = "temperature", value_name = "T,..", value_delimiter = ',',
        value_parser = values::zero_up, allow_negative_numbers = true)]
    temp: Vec<f32>,
    #[command(flatten)]
    law: LawOptions,
}

impl Generate {
    /// Runs the command.
    ///
    /// # Errors
    /// A text that should be equal to plain decoding's is not, or whatever keeps it from being measured.
    pub fn run(&self) -> Result<(), Failure> {
        self.can_be_foretold()?;
        let listed = prompts::read_listed(&self.prompts)?;
        let specs: Vec<Option<SpecType>> = match self.spec_type.is_empty() {
            true => vec![None],
            false => self.spec_type.iter().cloned().map(Some).collect(),
        };
        let mut assembly = Assembly::new(&Choices {
            model: &self.model,
            drafting: &self.drafting,
            methods: specs.clone(),
            // Every request of a method says its own.
            promise: self.verify.first().copied().unwrap_or(Verify::Exact).into(),
            budget: Budget::Fixed.up_to(self.drafting.spec_draft_n_max),
            law: &self.law,
            temperature: self.temp.first().copied(),
            parallel: 1,
            shared_memory: true,
        })?;
        let names = specs.iter().zip(&assembly.methods).map(|(spec, team)| match spec {
            Some(spec) => spec.to_string(),
            None => team
                .drafters
                .iter()
                .map(|number| assembly.names[usize::from(*number)].as_str())
                .collect::<Vec<_>>()
                .join("+"),
        });
        let methods: Vec<(String, usize)> = names.zip(0..).collect();
        let tokens = |listed: &Listed| listed.prompt.tokens(&assembly.target, assembly.tokenizer.as_deref());
        let tokens: Vec<Vec<Token>> = listed.iter().map(tokens).collect::<Result<_, _>>()?;
        let context = assembly.engine.context();
        if let Some(number) = tokens.iter().position(|tokens| tokens.len() >= context) {
            let error = RequestError::PromptTooLong { found: tokens[number].len(), context };
            return Err(Failure::Other(format!("prompt {}: {error}", number + 1)));
        }
        let kinds: Vec<Option<String>> = listed.into_iter().map(|listed| listed.kind).collect();
        let default = [assembly.request.sampling.temperature];
        let temperatures = if self.temp.is_empty() { &default[..] } else { &self.temp };
        if std::mem::take(&mut assembly.untold_seed) {
            say(format_args!("seed: {}", assembly.request.seed));
        }
        let page = Page {
            target: &assembly.target.name.clone(),
            names: &assembly.names.clone(),
            threads: self.model.threads(),
            repeat: self.repeat,
            seed: assembly.request.seed,
            kinds: &kinds,
            by_kind: self.by_kind,
        };
        let mut differences = Vec::new();
        let mut out = std::io::stdout();
        if !self.json {
            writeln!(out, "{}", page.title(&tokens))?;
        }
        for temperature in temperatures {
            let runs = self.measure(&mut assembly, &methods, &tokens, *temperature)?;
            match self.json {
                true => page.objects(&runs).iter().try_for_each(|object| writeln!(out, "{object}"))?,
                false => write!(out, "\n{}", page.table(&runs))?,
            }
            out.flush()?;
            differences.extend(runs.methods.iter().flat_map(Method::differences));
        }
        match differences.as_slice() {
            [] => Ok(()),
            [one] => Err(Failure::Other(one.clone())),
            [first, ..] => Err(Failure::Other(format!("{} texts differ, the first: {first}", differences.len()))),
        }
    }

    /// An oracle knows only texts that do not depend on what is drafted.
    fn can_be_foretold(&self) -> Result<(), Failure> {
        let exact = self.verify.iter().all(|verify| *verify == Verify::Exact);
        let greedy = !self.temp.is_empty() && self.temp.iter().all(|temperature| *temperature == 0.0);
        match self.budget.contains(&Measured::Oracle) && !exact && !greedy {
            true => Err(Failure::Usage("--budget oracle: expected --verify exact alone, or --temp 0 alone".into())),
            false => Ok(()),
        }
    }

    /// All methods and promises at one temperature, taking turns prompt by prompt.
    fn measure(
        &self,
        assembly: &mut Assembly,
        methods: &[(String, usize)],
        prompts: &[Vec<Token>],
        temperature: f32,
    ) -> Result<Runs, Failure> {
        let sampling = Sampling { temperature, ..assembly.request.sampling.clone() };
        let shared = Request { sampling, measure: self.measure, ..assembly.request.clone() };
        let ways = self.verify.iter().flat_map(|verify| self.budget.iter().map(move |budget| (*verify, *budget)));
        let each = |(verify, budget)| {
            methods.iter().map(move |(name, number)| Method::new(name, *number, verify, budget, temperature))
        };
        let mut runs = Runs { temperature, plain: Vec::new(), methods: ways.flat_map(each).collect() };
        let done = bar("prompts", prompts.len());
        for (number, prompt) in prompts.iter().enumerate() {
            let shared = Request { prompt: prompt.clone(), ..shared.clone() };
            for repetition in 0..self.repeat {
                let plain = Request { drafters: Vec::new(), ..shared.clone() };
                let plain = answer(assembly, plain, number)?;
                for (place, method) in runs.methods.iter_mut().enumerate() {
                    let team = &assembly.methods[method.number];
                    let request = Request {
                        drafters: team.drafters.clone(),
                        order: team.order,
                        promise: method.verify.into(),
                        budget: method.budget.up_to(self.drafting.spec_draft_n_max, &plain),
                        // Drafters that learn from texts must not have seen this one by another method.
                        tenant: tenant(temperature, place, repetition),
                        ..shared.clone()
                    };
                    let answer = answer(assembly, request, number)?;
                    method.compare(number, &plain, &answer, assembly.tokenizer.as_deref());
                    rows::keep_faster(&mut method.answers, number, answer);
                }
                rows::keep_faster(&mut runs.plain, number, plain);
            }
            done.inc(1);
        }
        done.finish_and_clear();
        Ok(runs)
    }
}

/// The answer to one request.
fn answer(assembly: &mut Assembly, request: Request, number: usize) -> Result<Answer, Failure> {
    let answer = run(assembly, vec![request], &mut |_, _| Ok(true))?.pop();
    let answer =
        answer.ok_or_else(|| Failure::Other(format!("prompt {}: expected an answer, found none", number + 1)))?;
    match &answer.failure {
        Some(failure) => Err(Failure::Other(format!("prompt {}: {failure}", number + 1))),
        None => Ok(answer),
    }
}

/// A tenant of its own for each repetition of each row.
fn tenant(temperature: f32, place: usize, repetition: usize) -> Tenant {
    Tenant(u64::from(temperature.to_bits()) << 32 | (place as u64) << 16 | repetition as u64)
}
