//! `foretoken generate`: continues prompts.
//!
//! One answer to one prompt is streamed as it comes. Several answers are computed at the same time and printed in the
//! order of their prompts, each when it and those before it are complete. Either way the engine waits while text is
//! written. A beam search is one request with several answers, which are there at its end.

mod resumed;

use std::borrow::Cow;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use foretoken::prompts::without_tokenizer;
use foretoken::settings::SamplingSettings;
use foretoken::{Answer, DecidedBy, Event, Generator, Prompt, Prompter, Record, Request, Settings, n_best};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::opening::{Notices, open_generator, tell_failures};
use foretoken_console::options::{
    BeamOptions, ModelOptions, PromptCacheOptions, SamplingOptions, SpeculationOptions, TemplateOptions,
};
use foretoken_console::progress::{PromptBar, bar, say};
use foretoken_console::prompts::{ListOptions, ListedPrompt, PromptOptions, SourceOptions};
use foretoken_console::terminal::standard_output;
use foretoken_console::{report, values};

use crate::printing::{Marks, ShowDrafts, Stream, reliability, table};
use crate::sparkline;
use resumed::{Answered, ResumedFile};

/// The default of `--parallel`, if there are as many texts.
const PARALLEL_DEFAULT: usize = 8;

/// Options of `foretoken generate`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub struct Generate {
    /// Texts generated at a time, of several prompts or answers [default: all of them, at most 8]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = values::texts, allow_negative_numbers = true)]
    parallel: Option<usize>,
    /// Answers to each prompt
    ///
    /// The prompt is computed once for all of them. The first has the seed of --seed and is the text without this
    /// option; each other has a seed that is derived from that one and the answer's number. With --num-beams they are
    /// the best hypotheses of one search.
    #[arg(long, hide_short_help = true, value_name = "K", default_value = "1", value_parser = values::texts,
        allow_negative_numbers = true)]
    n_best: usize,
    /// Show who produced each token: colours, rejected (drafts, too) or table
    ///
    /// colours tells drafted tokens from the target's own (where there are no colours: by brackets); rejected also
    /// shows, struck out, what was drafted and not accepted; table prints a line per token after the text instead:
    /// pass, depth in the draft tree, drafter, p, q and the token.
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "colours",
        hide_possible_values = true, conflicts_with_all = ["json", "output_ids"])]
    show_drafts: Option<ShowDrafts>,
    /// Print one JSON object an answer: text, tokens, times, settings
    ///
    /// It has the answer's index among those to its prompt, its seed, text, ids with who produced each (origins, depths
    /// in the draft tree, numbers of passes, probabilities p of the target and q of the drafter), timings (load_ms and
    /// first_token_ms from the start of the program; cache_n: tokens of the prompt that an earlier text had in common),
    /// speculation and its drafters, and the record of the run: all that decided the text, and who decided it. With
    /// --num-beams it has score and log_probability instead of what single tokens have.
    #[arg(long, visible_alias = "jsonl", conflicts_with = "output_ids")]
    json: bool,
    /// Append the JSON objects to this file, and skip prompts that it has answers to from an earlier run
    ///
    /// The same line continues a run over many prompts that was stopped. Answers that were not complete are computed
    /// again. The file may be new; one of other prompts or another model is refused.
    #[arg(long, value_name = "FILE", requires = "json", hide_short_help = true)]
    resume: Option<PathBuf>,
    /// Log-probabilities of the new tokens under the model's raw law, in the JSON object
    #[arg(long, requires = "json", hide_short_help = true)]
    logprobs: bool,
    /// Print the new token ids, separated by commas, instead of text
    #[arg(long, hide_short_help = true)]
    output_ids: bool,
    /// Print the prompt before its continuation
    #[arg(long, conflicts_with_all = ["json", "output_ids"], overrides_with = "no_display_prompt",
        hide_short_help = true)]
    display_prompt: bool,
    /// Show the speed over the text in a line of bars after the statistics [default: on a terminal]
    #[arg(long, hide_short_help = true)]
    sparkline: bool,
    /// Print only the continuation, as is the default
    #[arg(long, hide = true)]
    no_display_prompt: bool,
    #[command(flatten)]
    prompt: PromptOptions,
    #[command(flatten)]
    source: SourceOptions,
    #[command(flatten)]
    list: ListOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    template: TemplateOptions,
    #[command(flatten)]
    prompt_cache: PromptCacheOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    beams: BeamOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
}

/// The requests of a run, and where their answers go.
struct Workload {
    prompts: Vec<Prompt>,
    /// What the encoder reads, if it is not the prompts themselves.
    source: Option<Prompt>,
    /// Requests for all answers to the first prompt, then for those to the second, and so on, without those that an
    /// earlier run has answered.
    requests: Vec<Request>,
    answered: Answered,
    /// The file for answers; if none, standard output.
    file: Option<ResumedFile>,
}

impl Generate {
    /// Runs the command.
    ///
    /// # Errors
    /// An option, the model or a prompt cannot be used, or the output cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        self.check_beams()?;
        let source = self.source.read()?;
        let listed = self.prompt.read(self.list, source.is_some())?;
        let file = self.resume.as_deref().map(ResumedFile::open).transpose()?;
        let settings = Settings {
            model: self.template.with(self.prompt_cache.with(self.model.settings()?)),
            sampling: SamplingSettings { n_best: self.n_best, ..self.beams.with(self.sampling.settings()?) },
            speculation: self.speculation.settings()?,
            parallel: self.parallel.unwrap_or(PARALLEL_DEFAULT).min(listed.len() * self.requests_per_prompt()),
        };
        let (mut generator, mut notices) = open_generator(&settings)?;
        if generator.prompter.tokenizer.is_none() && !self.output_ids && !self.json {
            return Err(without_tokenizer(&generator.prompter.target).into());
        }
        let workload = self.requests(&mut generator, (listed, source.as_ref()), file)?;
        if self.requests_per_prompt() > 1 && generator.prompter.decided.sampling.temperature == 0.0 {
            say("note: --n-best: at temperature 0 all answers to a prompt are equal");
        }
        if self.show_drafts == Some(ShowDrafts::Rejected) && (workload.prompts.len() > 1 || self.n_best > 1) {
            say("note: --show-drafts=rejected: of several answers what was rejected is not shown");
        }
        let marks = Marks::new(self.show_drafts);
        let is_guided = generator.prompter.decided.grammar.is_some();
        marks.legend(&generator.prompter.names, is_guided, self.show_drafts);
        // After an interrupt, memory files are still written and statistics still printed.
        let interrupts = Interrupts::listen();
        interrupts.begin();
        let started = Instant::now();
        let answered = workload.answered.requests;
        let answers = self.answers(&mut generator, &mut notices, workload, marks, interrupts)?;
        generator.keep(&answers)?;
        let wall = (answers.len() > 1).then(|| started.elapsed());
        report::tell_cut(&answers, generator.prompter.decided.grammar.is_some());
        report::tell(&answers, &generator.prompter.names, wall);
        if let ([answer], true) = (answers.as_slice(), self.sparkline || report::is_wanted())
            && let Some(line) = sparkline::line(&answer.arrivals)
        {
            say(line);
        }
        interrupts.end_command()?;
        tell_failures(&answers, answered, self.requests_per_prompt())
    }

    /// Requests for the answers to a prompt: one for each, or one search for all.
    fn requests_per_prompt(&self) -> usize {
        if self.beams.num_beams > 1 { 1 } else { self.n_best }
    }

    /// Refuses what is told of single tokens beside a beam search, which returns texts.
    fn check_beams(&self) -> Result<(), Failure> {
        let of_tokens = [("--logprobs", self.logprobs), ("--show-drafts", self.show_drafts.is_some())];
        match of_tokens.into_iter().find(|(_, is_given)| *is_given && self.beams.num_beams > 1) {
            Some((option, _)) => {
                let found = format!("found --num-beams {}", self.beams.num_beams);
                Err(Failure::Usage(format!("{option}: expected without --num-beams, {found}")))
            }
            None => Ok(()),
        }
    }

    /// The prompts and their requests, without those whose answers are in the file of an earlier run.
    fn requests(
        &self,
        generator: &mut Generator,
        (listed, source): (Vec<ListedPrompt>, Option<&Prompt>),
        file: Option<ResumedFile>,
    ) -> Result<Workload, Failure> {
        let place = self.prompt.prompts.as_ref().map_or(String::new(), |path| path.display().to_string());
        let usable = self.list.requests(&place, listed, source, &generator.prompter)?;
        let (prompts, requests): (Vec<Prompt>, Vec<Request>) = usable.into_iter().unzip();
        let measure = self.json || self.show_drafts.is_some();
        let report_drafts = self.show_drafts == Some(ShowDrafts::Rejected);
        let with_options = |request| Request { log_probabilities: self.logprobs, measure, report_drafts, ..request };
        let answers = generator.prompter.decided.settings.n_best;
        let mut requests: Vec<Request> =
            requests.iter().flat_map(|request| n_best(request, answers)).map(with_options).collect();
        let mut answered = Answered::default();
        if let Some(file) = &file {
            answered = file.answered(&requests, answers, &generator.record())?;
            if answered.lines > 0 {
                let all = prompts.len() * answers;
                say(format_args!("note: --resume: {} of {all} answers are there", answered.lines));
            }
            requests.drain(..answered.requests);
            // The others keep their numbers.
            answered.next_request.into_iter().for_each(|number| generator.engine.set_next_request(number));
        }
        Ok(Workload { prompts, source: source.cloned(), requests, answered, file })
    }

    /// Generates the answers and prints them: a single one as it comes, several in their order, each as soon as it and
    /// those before it are complete.
    fn answers(
        &self,
        generator: &mut Generator,
        notices: &mut Notices,
        Workload { prompts, source, requests, answered, mut file }: Workload,
        marks: Marks,
        interrupts: Interrupts,
    ) -> Result<Vec<Answer>, Failure> {
        let prompter = Arc::clone(&generator.prompter);
        let mut record = generator.record();
        if self.parallel.is_none() {
            record.decided_by.insert("parallel".to_string(), DecidedBy::Program);
        }
        let is_streamed = prompts.len() == 1 && self.n_best == 1 && !self.json && !self.output_ids;
        let mut stream = Stream::new(marks, prompter.tokenizer.clone());
        if is_streamed && self.display_prompt {
            stream.text(prompts[0].text().unwrap_or_default())?;
        }
        let prompt_len: usize = requests.iter().map(|request| request.prompt.len()).sum();
        let mut prompt_bar = is_streamed.then(|| PromptBar::begin(prompt_len));
        let per_prompt = self.requests_per_prompt();
        let done = (!is_streamed).then(|| bar(if per_prompt == 1 { "prompts" } else { "answers" }, requests.len()));
        let watch = &mut |_, event: &Event| -> Result<bool, Failure> {
            if let Some(prompt_bar) = &mut prompt_bar {
                prompt_bar.watch(event);
            }
            notices.on_event(event);
            match (&done, event) {
                (None, _) => stream.event(event)?,
                (Some(done), Event::Finished { .. }) => done.inc(1),
                (Some(_), _) => {}
            }
            Ok(interrupts.may_continue())
        };
        let print = &mut |number: usize, answer: &Answer| -> Result<(), Failure> {
            let number = answered.requests + number;
            let (prompt, first) = (number / per_prompt, number % per_prompt);
            let text = match is_streamed {
                true => self.ending(&prompter, answer),
                // In a list, a refused prompt still has a place, which is empty.
                false if prompts.len() == 1 && answer.failure.is_some() && !answer.has_tokens() => return Ok(()),
                false => {
                    // Of a search that was being written when an earlier run ended some answers are there.
                    let there = if number == answered.requests { answered.hypotheses } else { 0 };
                    let all = answer.each().into_iter().enumerate().skip(there);
                    let line = |(index, answer): (usize, Cow<'_, Answer>)| {
                        let header = self.header(prompts.len(), (prompt, first + index), &answer);
                        let answer = (first + index, &*answer);
                        let given = (&prompts[prompt], source.as_ref());
                        format!("{header}{}\n", self.printed(&prompter, &record, given, answer, marks))
                    };
                    all.map(line).collect()
                }
            };
            if let Some(file) = &mut file {
                return file.add(answer, &text);
            }
            let write = || {
                let mut out = standard_output();
                // Text with marks is escaped already, around its colours.
                let written = if self.json { out.write_all(text.as_bytes()) } else { out.write_coloured(&text) };
                written.and_then(|()| out.flush())
            };
            Ok(done.as_ref().map_or_else(write, |done| done.suspend(write))?)
        };
        let answers = generator.run_in_order(requests, watch, print)?;
        if let Some(done) = &done {
            done.finish_and_clear();
        }
        Ok(answers)
    }

    /// What follows a streamed answer: the end of its line, and its table.
    fn ending(&self, prompter: &Prompter, answer: &Answer) -> String {
        // The error of a failed text has a line of its own.
        let has_text = answer.failure.is_none() || self.display_prompt || !answer.text.is_empty();
        format!("{}{}", if has_text { "\n" } else { "" }, self.table(prompter, answer))
    }

    /// The header line that says which answer follows; empty where each answer is a line of its own.
    fn header(&self, prompts: usize, (prompt, index): (usize, usize), answer: &Answer) -> String {
        if self.json || self.output_ids {
            return String::new();
        }
        let what = match answer.beams.first() {
            Some(beam) => format!("score {:.4}", beam.score),
            None => format!("seed {}", answer.seed),
        };
        let which = match (prompts, self.n_best) {
            (1, answers) => format!("answer {} of {answers}, {what}", index + 1),
            (_, 1) => format!("prompt {} of {prompts}", prompt + 1),
            (_, answers) => {
                format!("prompt {} of {prompts}, answer {} of {answers}, {what}", prompt + 1, index + 1)
            }
        };
        let space = if prompt + index > 0 { "\n" } else { "" };
        format!("{space}{which}:\n")
    }

    /// A complete answer as it is printed. `index`: its number among those to its prompt.
    fn printed(
        &self,
        prompter: &Prompter,
        record: &Record,
        (prompt, source): (&Prompt, Option<&Prompt>),
        (index, answer): (usize, &Answer),
        marks: Marks,
    ) -> String {
        if self.output_ids {
            let ids: Vec<String> = answer.ids().iter().map(ToString::to_string).collect();
            return ids.join(",");
        }
        if self.json {
            let (has_text, names) = (prompter.tokenizer.is_some(), &prompter.names);
            let (prompt, source) = match (&answer.source, source) {
                // Without a source of their own, the prompts are what the encoder read.
                (Some(_), None) => (None, prompt.text()),
                (_, source) => (prompt.text(), source.and_then(Prompt::text)),
            };
            let object = foretoken::report::object((index, answer), [prompt, source], has_text, record, names);
            return report::with_times(object, answer).to_string();
        }
        let out = standard_output();
        let prompt = if self.display_prompt { prompt.text().unwrap_or_default() } else { "" };
        let marked = answer.emitted.iter().map(|emitted| marks.marked(&out.shown(&emitted.text), emitted.origin));
        let marked_len: usize = answer.emitted.iter().map(|emitted| emitted.text.len()).sum();
        // Text that was held back until the end belongs to no single token.
        let rest = out.shown(&answer.text[marked_len..]);
        let text = format!("{}{}{rest}", out.shown(prompt), marked.collect::<String>());
        match self.table(prompter, answer).as_str() {
            "" => text,
            table => format!("{text}\n{table}"),
        }
    }

    /// The table of an answer's tokens after an empty line, if `--show-drafts=table` was given.
    fn table(&self, prompter: &Prompter, answer: &Answer) -> String {
        match (&prompter.tokenizer, self.show_drafts) {
            (Some(tokenizer), Some(ShowDrafts::Table)) if !answer.emitted.is_empty() => {
                let reliable = reliability(&answer.stats.drafters, &prompter.names);
                format!("\n{}{reliable}", table(&answer.emitted, &prompter.names, tokenizer))
            }
            _ => String::new(),
        }
    }
}
