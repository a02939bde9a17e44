//! `foretoken batch`: answers the requests of a file, and writes their answers to another.
//!
//! Each line is a request, and each is answered by a line that has its `custom_id`. Bodies are read and answered by the
//! server's code, so they mean what they mean over HTTP. The engine has as many requests as run at a time and as many
//! again that wait. An answer is written when it is complete, so a run that is stopped loses only incomplete answers.

mod answering;
mod lines;

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use foretoken::generator::Choices;
use foretoken::{Answer, Generator, Settings, answers};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::opening::{open_generator_with, tell_sampling_note};
use foretoken_console::options::{ModelOptions, SamplingOptions, SpeculationOptions, TemplateOptions};
use foretoken_console::progress::{detail, say};
use foretoken_console::{hub, report, values};
use foretoken_server::ServerSettings;
use foretoken_server::batch::Parser;
use serde_json::Value;

use crate::line_file::LineFile;
use crate::serve::aliases;
use answering::Answering;
use lines::BatchFile;

/// The default of `--parallel`, if there are as many lines.
const PARALLEL_DEFAULT: usize = 16;

const AFTER_HELP: &str = "\
A line is a request in the form of OpenAI's batch files, for /v1/chat/completions or /v1/completions:

  {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"Hello\"}}

docs/server.md has the fields of bodies. Or it is a prompt, as generate --prompts reads it: an object
with \"prompt\" (a text or token ids) or \"messages\", or a text. An object may have fields of a body beside it,
such as \"max_tokens\", and a \"custom_id\"; the answer to a line without one has line-N, by its number.
Options of models, sampling and drafting mean what they mean for generate, and hold where a line says
nothing.

Each line of the output has OpenAI's form, too: \"custom_id\", \"response\" (with \"status_code\" and
\"body\") and \"error\", in the order in which answers are complete. A body that is refused has the
status and the error of the server; a line that is no request has an error and no response. Both are
printed, the others go on, and the exit code is 1.

The same command continues a run that was stopped: lines whose custom_id is in the output are
skipped, also those with an error. Lines that could not be computed (a disk failed, memory ran out)
are left out of the output. Ctrl-C ends with what is complete.";

/// Options of `foretoken batch`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Output", after_long_help = AFTER_HELP)]
pub struct Batch {
    /// The requests, one a line, in OpenAI's batch form or as prompts; - is standard input
    ///
    /// The file may be compressed by gzip.
    #[arg(value_name = "IN", help_heading = "Prompt")]
    requests: PathBuf,
    /// Use prompts that are texts as a user's messages, in the model's chat template
    #[arg(long, help_heading = "Prompt")]
    chat: bool,
    /// The file that answers are appended to; lines that it answers already are skipped
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Texts generated at a time [default: one for each line, at most 16]
    #[arg(long, value_name = "N", value_parser = values::texts, allow_negative_numbers = true)]
    parallel: Option<usize>,
    /// The model's names in bodies, the first of them in answers [default: its file's or folder's, or on the hub]; * is
    /// any name
    #[arg(short, long, value_name = "NAME,..", value_delimiter = ',', help_heading = "Model", hide_short_help = true)]
    alias: Vec<String>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    template: TemplateOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
}

impl Batch {
    /// Runs the command.
    ///
    /// # Errors
    /// A file or the model cannot be used, Ctrl-C was pressed, or lines have errors for answers.
    pub fn run(&self) -> Result<(), Failure> {
        let mut file = BatchFile::read(&self.requests, self.chat)?;
        let out = LineFile::open("--output", &self.output)?;
        let (all, answered) = (file.lines.len(), answered(&out, &file)?);
        file.lines.retain(|line| !answered.contains(&line.custom_id));
        if !answered.is_empty() {
            say(format_args!("note: --output: {} of {all} answers are there", answered.len()));
        }
        if file.lines.is_empty() {
            return Ok(());
        }
        let settings = Settings {
            model: self.template.with(self.model.settings()?),
            sampling: self.sampling.settings()?,
            speculation: self.speculation.settings()?,
            parallel: self.parallel.unwrap_or(PARALLEL_DEFAULT.min(file.lines.len())),
        };
        let (mut generator, notices) = open_generator_with(&Choices::for_requests(&settings))?;
        tell_sampling_note(&generator);
        // A body without a seed gets one of its own, which its answer names.
        let mut notices = notices.without_seed();
        let names = aliases(&self.alias, hub::requested_name(self.model.model.as_deref(), &self.model.hub));
        let parser = Parser::new(&generator, &ServerSettings { aliases: names, ..ServerSettings::default() });
        let answering = RefCell::new(Answering::new(parser, file, out));
        let interrupts = Interrupts::listen();
        interrupts.begin();
        let started = Instant::now();
        let Generator { engine, kept_texts, .. } = &mut generator;
        answers::run_each::<Failure>(
            engine,
            settings.parallel,
            &mut |engine| answering.borrow_mut().next_request(engine),
            &mut |_, event| {
                notices.on_event(event);
                Ok(interrupts.may_continue())
            },
            &mut |number, answer: Answer| {
                if answer.has_tokens() {
                    kept_texts.add(answer.tenant, &answer.prompt, &answer.ids());
                }
                answering.borrow_mut().complete(number, answer)
            },
        )?;
        generator.keep(&[])?;
        let answering = answering.into_inner();
        let ended = answering.end();
        if report::is_wanted() {
            print_stats(&answering, started.elapsed().as_secs_f64(), &generator.prompter.names);
        }
        interrupts.end_command()?;
        ended
    }
}

/// The ids of lines that the output answers already.
fn answered(out: &LineFile, file: &BatchFile) -> Result<HashSet<String>, Failure> {
    let ids: HashSet<&str> = file.lines.iter().map(|line| line.custom_id.as_str()).collect();
    let mut answered = HashSet::new();
    out.read(|_, object| {
        if object.get("response").is_none() {
            return Err("response: expected that of an answer, found none".to_string());
        }
        let id = object.get("custom_id").and_then(Value::as_str);
        let Some(known) = id.filter(|id| ids.contains(id)) else {
            let found = id.map_or("none".to_string(), |id| format!("{id:?}"));
            return Err(format!("custom_id: expected that of a line of {}, found {found}", file.place));
        };
        answered.insert(known.to_string());
        Ok(())
    })?;
    Ok(answered)
}

/// Prints the statistics of all answers.
fn print_stats(answering: &Answering, seconds: f64, names: &[String]) {
    let (lines, tokens) = (answering.written, answering.stats.emitted);
    say(format_args!("{lines} lines, {tokens} tokens, {:.1} tokens/s", tokens as f64 / seconds.max(1e-9)));
    let total = Answer { stats: answering.stats.clone(), ..Answer::default() };
    report::details(&[total], names).iter().for_each(detail);
}
