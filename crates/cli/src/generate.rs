//! `foretoken generate`: goes on with a prompt.
//!
//! One answer to one prompt is streamed as it comes. Several are printed in the order of their prompts, each when it
//! and those before it are complete, because texts that grow at the same time cannot share one output; the engine runs
//! on a thread of its own then, as it does under a server. Left out: conversations.

mod resumed;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use foretoken::prompts::without_tokenizer;
use foretoken::settings::SamplingSettings;
use foretoken::{
    Answer, DecidedBy, EngineThread, Event, Generator, Prompt, Prompter, Record, Request, Settings, n_best,
};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::opening::{Notices, open_generator, tell_failures};
use foretoken_console::options::{
    ModelOptions, PromptCacheOptions, SamplingOptions, SpeculationOptions, TemplateOptions,
};
use foretoken_console::progress::{PromptBar, bar, say};
use foretoken_console::prompts::{ListOptions, Listed, PromptOptions};
use foretoken_console::{report, values};

use crate::printing::{Marks, ShowDrafts, Stream, reliability, table};
use crate::sparkline;
use resumed::ResumedFile;

/// So many texts at a time are generated at most, if nobody says how many.
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
    /// option; each other has a seed that is made of that one and the answer's number.
    #[arg(long, hide_short_help = true, value_name = "K", default_value = "1", value_parser = values::texts,
        allow_negative_numbers = true)]
    n_best: usize,
    /// Show who produced each token: colours, rejected (drafts, too) or table
    ///
    /// colours tells drafted tokens from the target's own (where there are no colours: by brackets); rejected also
    /// shows, struck out, what was drafted and not accepted; table has a line a token behind the text instead: pass,
    /// depth in the draft tree, drafter, p, q and the token.
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "colours",
        hide_possible_values = true, conflicts_with_all = ["json", "output_ids"])]
    show_drafts: Option<ShowDrafts>,
    /// Print one JSON object an answer: text, tokens, times, settings
    ///
    /// It has the answer's index among those to its prompt, its seed, text, ids with who produced each (origins, depths
    /// in the draft tree, numbers of passes, probabilities p of the target and q of the drafter), timings (load_ms and
    /// first_token_ms from the start of the program; cache_n: tokens of the prompt that an earlier text had in common),
    /// speculation and its drafters, and the record of the run: all that decided the text, and who decided it.
    #[arg(long, visible_alias = "jsonl", conflicts_with = "output_ids")]
    json: bool,
    /// Write the JSON objects to this file, behind those of an earlier run, whose prompts are left out
    ///
    /// So a run over many prompts that was stopped goes on by the same line. Answers that are not complete when it is
    /// stopped are asked for again. The file may be new; one of other prompts or another model is refused.
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
    /// Show the speed over the text in a line of bars behind the statistics [default: on a terminal]
    #[arg(long, hide_short_help = true)]
    sparkline: bool,
    /// Print only the continuation, as is the default
    #[arg(long, hide = true)]
    no_display_prompt: bool,
    #[command(flatten)]
    prompt: PromptOptions,
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
    speculation: SpeculationOptions,
}

/// What is asked for.
struct Asked {
    prompts: Vec<Prompt>,
    /// All answers to the first prompt, then those to the second, and so on, but for so many first ones that an earlier
    /// run has written.
    requests: Vec<Request>,
    answered: usize,
    /// Where answers are written; none: to standard output.
    file: Option<ResumedFile>,
}

impl Generate {
    /// Runs the command.
    ///
    /// # Errors
    /// Whatever keeps it from being done.
    pub fn run(&self) -> Result<(), Failure> {
        let listed = self.prompt.read(self.list)?;
        let file = self.resume.as_deref().map(ResumedFile::open).transpose()?;
        let settings = Settings {
            model: self.template.with(self.prompt_cache.with(self.model.settings()?)),
            sampling: SamplingSettings { n_best: self.n_best, ..self.sampling.settings()? },
            speculation: self.speculation.settings()?,
            parallel: self.parallel.unwrap_or(PARALLEL_DEFAULT).min(listed.len() * self.n_best),
        };
        let (mut generator, mut notices) = open_generator(&settings)?;
        if generator.prompter.tokenizer.is_none() && !self.output_ids && !self.json {
            return Err(without_tokenizer(&generator.prompter.target).into());
        }
        let asked = self.requests(&mut generator, listed, file)?;
        if self.n_best > 1 && generator.prompter.decided.sampling.temperature == 0.0 {
            say("note: --n-best: at temperature 0 all answers to a prompt are equal");
        }
        if self.show_drafts == Some(ShowDrafts::Rejected) && (asked.prompts.len() > 1 || self.n_best > 1) {
            say("note: --show-drafts=rejected: of several answers what was rejected is not shown");
        }
        let marks = Marks::new(self.show_drafts);
        let is_guided = generator.prompter.decided.grammar.is_some();
        marks.legend(&generator.prompter.names, is_guided, self.show_drafts);
        // What is to be kept is kept although it was interrupted, and what it took is said.
        let interrupts = Interrupts::listen();
        interrupts.begin();
        let started = Instant::now();
        let answered = asked.answered;
        let (mut generator, answers) = match asked.prompts.as_slice() {
            [_] if self.n_best == 1 && !self.json && !self.output_ids => {
                self.stream(generator, &mut notices, asked, marks, interrupts)?
            }
            _ => self.collect(generator, &mut notices, asked, marks, interrupts)?,
        };
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
        tell_failures(&answers, answered, self.n_best)
    }

    /// The prompts, and the requests for all answers to the first, then those for the second, and so on; without those
    /// whose answers are in the file that an earlier run has left.
    fn requests(
        &self,
        generator: &mut Generator,
        listed: Vec<Listed>,
        file: Option<ResumedFile>,
    ) -> Result<Asked, Failure> {
        let place = self.prompt.prompts.as_ref().map_or(String::new(), |path| path.display().to_string());
        let usable = self.list.requests(&place, listed, &generator.prompter)?;
        let (prompts, requests): (Vec<Prompt>, Vec<Request>) = usable.into_iter().unzip();
        let measure = self.json || self.show_drafts.is_some();
        let report_drafts = self.show_drafts == Some(ShowDrafts::Rejected);
        let asked = |request| Request { log_probabilities: self.logprobs, measure, report_drafts, ..request };
        let answers = generator.prompter.decided.settings.n_best;
        let mut requests: Vec<Request> =
            requests.iter().flat_map(|request| n_best(request, answers)).map(asked).collect();
        let mut answered = 0;
        if let Some(file) = &file {
            let (there, next_request) = file.answered(&requests, answers, &generator.record())?;
            if there > 0 {
                say(format_args!("note: --resume: {there} of {} answers are there", requests.len()));
            }
            requests.drain(..there);
            answered = there;
            // The others have the numbers that they would have had.
            next_request.into_iter().for_each(|number| generator.engine.set_next_request(number));
        }
        Ok(Asked { prompts, requests, answered, file })
    }

    /// One prompt, its text as it comes.
    fn stream(
        &self,
        mut generator: Generator,
        notices: &mut Notices,
        Asked { prompts, requests, .. }: Asked,
        marks: Marks,
        interrupts: Interrupts,
    ) -> Result<(Generator, Vec<Answer>), Failure> {
        let mut stream = Stream::new(marks);
        if self.display_prompt {
            stream.text(prompts.first().and_then(Prompt::text).unwrap_or_default())?;
        }
        let mut prompt_bar = PromptBar::begin(requests.iter().map(|request| request.prompt.len()).sum());
        let tokenizer = generator.prompter.tokenizer.clone();
        let answers = generator.run(requests, &mut |_, event| -> Result<bool, Failure> {
            prompt_bar.watch(event);
            notices.hear(event);
            match event {
                Event::Prompt { .. } | Event::PromptScored { .. } | Event::DrafterFailed { .. } => {}
                Event::Drafts { drafted, .. } => stream.drafts(drafted, tokenizer.as_deref()),
                Event::Tokens { emitted, .. } => stream.tokens(emitted)?,
                Event::Finished { text, .. } => stream.text(text)?,
            }
            Ok(interrupts.go_on())
        })?;
        // What is said of a text that failed stands on a line of its own.
        let has_text = |answer: &Answer| answer.failure.is_none() || self.display_prompt || !answer.text.is_empty();
        if answers.iter().any(has_text) {
            stream.text("\n")?;
        }
        for answer in &answers {
            stream.text(&self.table(&generator.prompter, answer))?;
        }
        Ok((generator, answers))
    }

    /// Answers that are printed in their order, each as soon as it and those before it are complete. The engine runs on
    /// a thread of its own.
    fn collect(
        &self,
        mut generator: Generator,
        notices: &mut Notices,
        Asked { prompts, requests, answered, mut file }: Asked,
        marks: Marks,
        interrupts: Interrupts,
    ) -> Result<(Generator, Vec<Answer>), Failure> {
        let done = bar(if self.n_best == 1 { "prompts" } else { "answers" }, requests.len());
        let mut record = generator.record();
        if self.parallel.is_none() {
            record.decided_by.insert("parallel".to_string(), DecidedBy::Program);
        }
        generator.expect(&requests);
        let prompter = Arc::clone(&generator.prompter);
        let engine = EngineThread::start(generator)?;
        let watch = &mut |_, event: &Event| -> Result<bool, Failure> {
            notices.hear(event);
            if matches!(event, Event::Finished { .. }) {
                done.inc(1);
            }
            let goes_on = interrupts.go_on();
            if !goes_on {
                // Those too that nobody has heard of yet.
                engine.tell(|generator: &mut Generator| generator.engine.cancel_all());
            }
            Ok(goes_on)
        };
        let print = &mut |number: usize, answer: &Answer| -> Result<(), Failure> {
            // Of a list each prompt has its place, an empty one if it was refused.
            if prompts.len() == 1 && answer.failure.is_some() && answer.emitted.is_empty() {
                return Ok(());
            }
            let (prompt, index) = ((answered + number) / self.n_best, (answered + number) % self.n_best);
            let mut text = self.header(prompts.len(), (prompt, index), answer.seed);
            text += &self.printed(&prompter, &record, &prompts[prompt], (index, answer), marks);
            if let Some(file) = &mut file {
                return file.add(answer, &text);
            }
            let mut out = std::io::stdout().lock();
            let written = done.suspend(|| writeln!(out, "{text}").and_then(|()| out.flush()));
            Ok(written?)
        };
        let answers = engine.run_in_order(requests, watch, print)?;
        let generator = engine.stop()?;
        done.finish_and_clear();
        Ok((generator, answers))
    }

    /// What tells an answer from the others, in a line above it; nothing where each is a line of its own.
    fn header(&self, prompts: usize, (prompt, index): (usize, usize), seed: u64) -> String {
        if self.json || self.output_ids {
            return String::new();
        }
        let which = match (prompts, self.n_best) {
            (1, answers) => format!("answer {} of {answers}, seed {seed}", index + 1),
            (_, 1) => format!("prompt {} of {prompts}", prompt + 1),
            (_, answers) => {
                format!("prompt {} of {prompts}, answer {} of {answers}, seed {seed}", prompt + 1, index + 1)
            }
        };
        let space = if prompt + index > 0 { "\n" } else { "" };
        format!("{space}{which}:\n")
    }

    /// A whole answer as it is printed. `index`: its number among those to its prompt.
    fn printed(
        &self,
        prompter: &Prompter,
        record: &Record,
        prompt: &Prompt,
        (index, answer): (usize, &Answer),
        marks: Marks,
    ) -> String {
        if self.output_ids {
            let ids: Vec<String> = answer.emitted.iter().map(|emitted| emitted.token.to_string()).collect();
            return ids.join(",");
        }
        if self.json {
            let (has_text, names) = (prompter.tokenizer.is_some(), &prompter.names);
            let object = foretoken::report::object((index, answer), prompt.text(), has_text, record, names);
            return report::with_times(object, answer).to_string();
        }
        let shown = if self.display_prompt { prompt.text().unwrap_or_default() } else { "" };
        let marked = answer.emitted.iter().map(|emitted| marks.marked(&emitted.text, emitted.origin));
        let marked_len: usize = answer.emitted.iter().map(|emitted| emitted.text.len()).sum();
        // What was held back until the end belongs to no single token.
        let text = format!("{shown}{}{}", marked.collect::<String>(), &answer.text[marked_len..]);
        match self.table(prompter, answer).as_str() {
            "" => text,
            table => format!("{text}\n{table}"),
        }
    }

    /// The tokens of an answer behind an empty line, if they are to be listed.
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
