//! `foretoken check`: compares speculative with plain decoding, byte for byte.
//!
//! The same engine continues every prompt twice: alone and without drafters, then with drafters and, under
//! `--parallel`, in a batch. Tokens, text, log-probabilities (to the bit) and the finish reason must be the same. Under
//! *rejection* only the distribution is the same, so only greedy texts can be compared; the tests compute distributions
//! by enumeration. Under a lossy option nothing is the same, so there is nothing to check.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use foretoken::{Answer, Generator, Promise, Request, Settings, Tenant, difference};
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::opening::{Notices, named_failure, open_generator};
use foretoken_console::options::{ModelOptions, SamplingOptions, SpeculationOptions};
use foretoken_console::prompts::ListOptions;
use foretoken_console::terminal::standard_output;
use foretoken_console::{report, values};

/// The tenant of the plain texts; the speculative ones have the default, tenant 0.
const PLAIN_TENANT: Tenant = Tenant(u64::MAX);

/// Prompts of a round, per text that runs at a time, so that texts also begin while others are running.
const ROUND: usize = 4;

/// Options of `foretoken check`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Comparison")]
pub struct Check {
    /// The prompts: objects of a .jsonl file, or one a line; - is standard input
    ///
    /// An encoder-decoder reads each of them as a source.
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    #[command(flatten)]
    list: ListOptions,
    /// Speculative texts generated at a time
    ///
    /// Plain ones are always generated alone.
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::texts, allow_negative_numbers = true)]
    parallel: usize,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
}

impl Check {
    /// Runs the command.
    ///
    /// # Errors
    /// The first difference, or an error that prevents the comparison.
    pub fn run(&self) -> Result<(), Failure> {
        check_lossless(self.speculation.drafting.lossy_lenience)?;
        let listed = self.list.read(&self.prompts)?;
        let parallel = self.parallel.min(listed.len());
        let settings = Settings {
            model: self.model.settings()?,
            sampling: self.sampling.settings()?,
            speculation: self.speculation.settings()?,
            parallel,
        };
        let (mut generator, mut notices) = open_generator(&settings)?;
        let prompter = Arc::clone(&generator.prompter);
        check_comparable(settings.speculation.verify, prompter.decided.sampling.temperature)?;
        let requests = self.list.requests(&self.prompts.display().to_string(), listed, None, &prompter)?.into_iter();
        let requests = requests.map(|(_, request)| Request { log_probabilities: true, ..request });
        let requests: Vec<Request> = requests.collect();
        let interrupts = Interrupts::listen();
        interrupts.begin();
        let (mut plain, mut speculative) = (DecodingRun::new(interrupts), DecodingRun::new(interrupts));
        let mut failed = 0;
        let round = if parallel == 1 { 1 } else { ROUND * parallel };
        for (number, requests) in requests.chunks(round).enumerate() {
            let first = number * round;
            let before = [plain.seconds, speculative.seconds];
            // One after another, so that a plain text never shares a pass; and as another tenant, so that the second
            // run does not reuse the prompts' KV cache, which would make it look faster.
            for request in requests {
                let request = Request { drafters: Vec::new(), tenant: PLAIN_TENANT, ..request.clone() };
                plain.run(&mut generator, &mut notices, vec![request])?;
            }
            speculative.run(&mut generator, &mut notices, requests.to_vec())?;
            if !interrupts.may_continue() {
                // Interrupted texts cannot be compared.
                for (run, seconds) in [&mut plain, &mut speculative].into_iter().zip(before) {
                    (run.seconds, _) = (seconds, run.answers.truncate(first));
                }
                break;
            }
            for number in first..first + requests.len() {
                let (plain, speculative) = (&plain.answers[number], &speculative.answers[number]);
                if let Some(difference) = difference(plain, speculative, prompter.tokenizer.as_deref()) {
                    return Err(Failure::Other(format!("prompt {}: {difference}", number + 1)));
                }
                let (tokens, passes) = (plain.stats.emitted, speculative.stats.passes);
                let mut out = standard_output();
                match &plain.failure {
                    None => writeln!(out, "prompt {}: ok, {tokens} tokens in {passes} passes", number + 1)?,
                    Some(failure) => {
                        failed += 1;
                        // The engine's number is the position in the sequence, prompt included.
                        let counted = if failure.starts_with("token ") { ", counted with the prompt" } else { "" };
                        let why = named_failure(failure);
                        writeln!(out, "prompt {}: {tokens} tokens are the same, then{counted}: {why}", number + 1)?;
                    }
                }
                out.flush()?;
            }
        }
        let mut out = standard_output();
        writeln!(out, "{}", summary(&plain, &speculative, parallel))?;
        writeln!(out, "{}", report::long(&speculative.answers, &prompter.names, Some(speculative.time())))?;
        out.flush()?;
        interrupts.end_command()?;
        match failed {
            0 => Ok(()),
            _ => Err(Failure::Other(format!("{failed} of {} prompts could not be continued", plain.answers.len()))),
        }
    }
}

/// Refuses a lossy verification, whose texts differ.
fn check_lossless(lenience: f32) -> Result<(), Failure> {
    if lenience == 1.0 {
        return Ok(());
    }
    Err(Failure::Usage(format!("--lossy-lenience: expected 1, which is lossless, found {lenience}")))
}

/// Refuses promises under which two texts need not be equal.
fn check_comparable(promise: Promise, temperature: f32) -> Result<(), Failure> {
    if promise == Promise::Exact || temperature == 0.0 {
        return Ok(());
    }
    let reason = "which promises the same distribution and not the same text";
    Err(Failure::Usage(format!("--verify: expected exact, or --temp 0, found rejection or block, {reason}")))
}

/// The answers of plain or speculative decoding, and their time.
struct DecodingRun {
    answers: Vec<Answer>,
    seconds: f64,
    interrupts: Interrupts,
}

impl DecodingRun {
    fn new(interrupts: Interrupts) -> Self {
        Self { answers: Vec::new(), seconds: 0.0, interrupts }
    }

    fn run(&mut self, generator: &mut Generator, notices: &mut Notices, requests: Vec<Request>) -> Result<(), Failure> {
        let started = Instant::now();
        let answers = generator.run(requests, &mut |_, event| -> Result<bool, Failure> {
            notices.on_event(event);
            Ok(self.interrupts.may_continue())
        })?;
        self.answers.extend(answers);
        self.seconds += started.elapsed().as_secs_f64();
        Ok(())
    }

    fn tokens(&self) -> usize {
        self.answers.iter().map(|answer| answer.stats.emitted).sum()
    }

    fn time(&self) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.seconds)
    }
}

fn summary(plain: &DecodingRun, speculative: &DecodingRun, parallel: usize) -> String {
    let speed = |run: &DecodingRun| run.tokens() as f64 / run.seconds.max(1e-9);
    // A prompt that could not be continued is only compared up to its end.
    let whole = plain.answers.iter().filter(|answer| answer.failure.is_none()).count();
    let of = if whole < plain.answers.len() { format!(" of {}", plain.answers.len()) } else { String::new() };
    let concurrency = if parallel > 1 { format!(" with {parallel} texts at a time") } else { String::new() };
    format!(
        "{whole}{of} prompts, {} tokens: speculative equals plain, byte for byte (tokens, text, log-probabilities); \
         plain {:.1} tokens/s, speculative {:.1} tokens/s{concurrency}",
        plain.tokens(),
        speed(plain),
        speed(speculative),
    )
}
