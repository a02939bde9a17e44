//! `foretoken bench batch`: many requests that arrive at once, as at a server: their speed together, and how long each
//! waits.
//!
//! Prompts are random tokens, so any model can be used, even without a tokenizer; texts end only by their length, so
//! every run has the same work. One request is measured alone first: the time to its first token, times the number of
//! requests, is what their prompts would take one after another. Real prompts and the speed-up of drafts are measured
//! by `bench generate --parallel`, other programs in `bench/peers`.

mod run;

use std::io::Write;

use clap::Args;
use foretoken::generator::Choices;
use foretoken::settings::SamplingSettings;
use foretoken::{Settings, SpecType};
use foretoken_console::failure::Failure;
use foretoken_console::opening::open_generator_with;
use foretoken_console::options::{DraftingOptions, GuidedOptions, ModelOptions};
use foretoken_console::terminal::standard_output;
use foretoken_console::values;
use foretoken_engine::{Request, Token};
use foretoken_speculation::{Sampling, Tenant};
use serde_json::json;

use super::generate::interval::percentile;
use super::generate::table::number_or_dash;
use run::{Run, run};

const AFTER_HELP: &str = "\
All texts of a row are submitted together, and each is generated to its full length. Of several repetitions
the one with the median total time counts.

  texts         how many
  seconds       from submitting them to the last token
  in all        tokens of prompts and texts over these seconds
  writing       tokens/s while all texts were being generated and no prompt was computed; - if never
  of one        the same over that of one text alone
  first token   how long texts waited for it: the median, the 95th percentile, and this over what it would be if
                prompts were processed one after another, each as fast as one alone
  longest wait  of any text for its next token, once it had one
  a step        median milliseconds of a step that generates all texts and computes no prompt
  beside        microseconds of such a step outside passes and drafters: scheduling, pages, sampling, and
                grammars; the median, and the 99th percentile

With a grammar (--json-schema and similar) texts are constrained by it, all or the first --guided of them. It has to
allow texts of --n-predict tokens, as an array of any length does.

--json prints one object a row instead, with the same figures unrounded, times in seconds.";

/// Options of `foretoken bench batch`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
#[command(after_long_help = AFTER_HELP)]
pub struct BatchBench {
    /// Texts at once, one number or several
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,4,16", value_parser = values::texts,
        allow_negative_numbers = true)]
    parallel: Vec<usize>,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value = "200", value_parser = values::one_up, allow_negative_numbers = true)]
    prompt_tokens: usize,
    /// How many first tokens all prompts of a row share
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::whole, allow_negative_numbers = true)]
    shared: usize,
    /// How many texts of a row are constrained by the grammar [default: all]
    #[arg(long, value_name = "N", value_parser = values::whole, allow_negative_numbers = true)]
    guided: Option<usize>,
    /// Tokens to generate for each prompt
    #[arg(short, long, visible_alias = "predict", value_name = "N", default_value = "64",
        value_parser = values::one_up, allow_negative_numbers = true)]
    n_predict: usize,
    /// Repetitions, of which the median counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::one_up, allow_negative_numbers = true)]
    repeat: usize,
    /// Print one JSON object a row (see --help)
    #[arg(long)]
    json: bool,
    /// Drafters, as for generate [default: none, or auto with --model-draft]
    #[arg(long, help_heading = "Speculation", value_name = "KIND,..", value_parser = str::parse::<SpecType>)]
    spec_type: Option<SpecType>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    drafting: DraftingOptions,
    #[command(flatten)]
    form: GuidedOptions,
}

impl BatchBench {
    /// Runs the command.
    ///
    /// # Errors
    /// The model cannot be used, or its context is too short for a text.
    pub fn run(&self) -> Result<(), Failure> {
        if self.shared > self.prompt_tokens {
            let most = format!("at most {} (--prompt-tokens)", self.prompt_tokens);
            return Err(Failure::Usage(format!("--shared: expected {most}, found {}", self.shared)));
        }
        let text_len = self.prompt_tokens + self.n_predict;
        let mut model = self.model.settings()?;
        model.ctx_size.get_or_insert(text_len + 1);
        let speculation =
            foretoken::settings::SpeculationSettings { spec_type: self.spec_type(), ..self.drafting.settings()? };
        let most = self.parallel.iter().copied().max().unwrap_or(1);
        let guided = self.form.settings()?;
        if self.guided.is_some() && guided.source()?.is_none() {
            let expected = "a form beside it, as --json-schema says one, found none";
            return Err(Failure::Usage(format!("--guided: expected {expected}")));
        }
        let sampling = SamplingSettings { temperature: Some(0.0), guided, ..SamplingSettings::default() };
        let settings = Settings { model, sampling, speculation, parallel: most };
        let (mut generator, _) = open_generator_with(&Choices::new(&settings))?;
        let context = generator.engine.context();
        if text_len > context {
            let room = format!("at most {context} together (the longest text)");
            return Err(Failure::Usage(format!("--prompt-tokens and --n-predict: expected {room}, found {text_len}")));
        }
        let vocabulary = generator.prompter.tokens();
        let base = generator.request(vec![0; self.prompt_tokens])?;
        let mut tenants = 0;
        let mut requests = |texts: usize, tokens_max: usize| -> Vec<Request> {
            // Rows and repetitions share no cached prefixes.
            tenants += 1;
            let request = |text: usize| {
                let constraint = base.constraint.clone().filter(|_| text < self.guided.unwrap_or(texts));
                // Only a grammar may end a text.
                let end_tokens = constraint.iter().flat_map(|_| base.sampling.end_tokens.clone()).collect();
                Request {
                    prompt: self.prompt(vocabulary, tenants, text as u64),
                    tokens_max: Some(tokens_max),
                    sampling: Sampling { end_tokens, ..base.sampling.clone() },
                    constraint,
                    tokenizer: None,
                    tenant: Tenant(tenants),
                    ..base.clone()
                }
            };
            (0..texts).map(request).collect()
        };
        run(&mut generator.engine, requests(1, 4))?;
        let mut median = |texts: usize, tokens: usize| -> Result<Run, Failure> {
            let runs = (0..self.repeat).map(|_| run(&mut generator.engine, requests(texts, tokens)));
            let mut runs = runs.collect::<Result<Vec<Run>, Failure>>()?;
            runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
            Ok(runs.swap_remove((runs.len() - 1) / 2))
        };
        let alone = median(1, self.n_predict)?;
        let mut out = standard_output();
        if !self.json {
            writeln!(out, "{}", self.title(&settings))?;
        }
        for texts in &self.parallel {
            let run = if *texts == 1 { alone.clone() } else { median(*texts, self.n_predict)? };
            match self.json {
                true => writeln!(out, "{}", self.object(*texts, &run, &alone))?,
                false => writeln!(out, "{}", self.line(*texts, &run, &alone))?,
            }
            out.flush()?;
        }
        Ok(())
    }

    /// Random tokens, the first of which all texts of a repetition share.
    fn prompt(&self, vocabulary: usize, repetition: u64, text: u64) -> Vec<Token> {
        let token = |at: usize| {
            let of = if at < self.shared { 0 } else { 1 + text };
            let hash = (repetition << 40 | of << 20 | at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            ((hash ^ hash >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 33) as usize % vocabulary
        };
        (0..self.prompt_tokens).map(|at| token(at) as Token).collect()
    }

    fn spec_type(&self) -> SpecType {
        let named = if self.drafting.has_model() { SpecType::default() } else { SpecType::None };
        self.spec_type.clone().unwrap_or(named)
    }

    fn title(&self, settings: &Settings) -> String {
        let Self { prompt_tokens, n_predict, shared, .. } = self;
        let spec_type = self.spec_type();
        let threads = settings.model.threads();
        let common = if *shared > 0 { format!(", {shared} of them in common") } else { String::new() };
        format!(
            "prompts of {prompt_tokens} tokens{common}, {n_predict} tokens each, drafters {spec_type}, \
             {threads} threads\n\n\
             texts  seconds  in all  writing  of one  first token: median    95 %  of b-to-b  longest wait  a step  \
             beside    99 %\n{:>5}  {:>7}  {:>6}  {:>7}  {:>6}  {:>19}  {:>6}  {:>9}  {:>12}  {:>6}  {:>6}  {:>6}",
            "", "s", "t/s", "t/s", "", "s", "s", "", "ms", "ms", "us", "us"
        )
    }

    fn line(&self, texts: usize, run: &Run, alone: &Run) -> String {
        let figures = RunFigures::of(self, texts, run, alone);
        format!(
            "{texts:>5}  {:>7.2}  {:>6.1}  {:>7}  {:>6}  {:>19.3}  {:>6.3}  {:>9.2}  {:>12}  {:>6}  {:>6}  {:>6}",
            run.seconds,
            figures.in_all,
            number_or_dash(run.writing(), 1),
            number_or_dash(figures.of_one, 2),
            figures.first[0],
            figures.first[1],
            figures.of_back_to_back,
            number_or_dash(run.longest_wait.map(|wait| 1e3 * wait), 0),
            number_or_dash(run.step().map(|step| 1e3 * step), 2),
            number_or_dash(run.beside(0.5).map(|beside| 1e6 * beside), 0),
            number_or_dash(run.beside(0.99).map(|beside| 1e6 * beside), 0),
        )
    }

    fn object(&self, texts: usize, run: &Run, alone: &Run) -> serde_json::Value {
        let figures = RunFigures::of(self, texts, run, alone);
        json!({
            "texts": texts,
            "prompt_tokens": self.prompt_tokens,
            "shared": self.shared,
            "tokens": self.n_predict,
            "seconds": run.seconds,
            "tokens_per_second_in_all": figures.in_all,
            "tokens_per_second_writing": run.writing(),
            "writing_of_one": figures.of_one,
            "first_token_median": figures.first[0],
            "first_token_p95": figures.first[1],
            "first_token_p95_of_back_to_back": figures.of_back_to_back,
            "longest_wait": run.longest_wait,
            "step": run.step(),
            "beside": run.beside(0.5),
            "beside_p99": run.beside(0.99),
        })
    }
}

/// Figures of a run of several texts at once, compared with one text alone.
struct RunFigures {
    /// Tokens of all texts per second, those of the prompts included.
    in_all: f64,
    /// The speed of decoding over that of one text alone; `None` if one of them was not measured.
    of_one: Option<f64>,
    /// Seconds to the first token: the median and the 95th percentile.
    first: [f64; 2],
    /// The 95th percentile of `first` over that of the same texts one after another.
    of_back_to_back: f64,
}

impl RunFigures {
    fn of(bench: &BatchBench, texts: usize, run: &Run, alone: &Run) -> Self {
        let tokens = texts * (bench.prompt_tokens + bench.n_predict);
        let one = percentile(&alone.first_tokens, 0.5);
        let back_to_back: Vec<f64> = (1..=texts).map(|place| place as f64 * one).collect();
        let first = [0.5, 0.95].map(|part| percentile(&run.first_tokens, part));
        Self {
            in_all: tokens as f64 / run.seconds,
            of_one: run.writing().zip(alone.writing()).map(|(all, one)| all / one),
            first,
            of_back_to_back: first[1] / percentile(&back_to_back, 0.95),
        }
    }
}
