//! `foretoken bench`: what passes cost compared with the machine's limits, how many of them drafters save, and the
//! resulting speed-up; and `foretoken analyze`, which compares that with the theory.
//!
//! `pass` times one pass over several numbers of rows, after a context that is already in the cache, and compares it
//! with the roofline of the same run: the machine's ceilings are measured first, with the same threads. It runs only
//! the network: no engine, no drafter, no sampling. `replay` is the other half: the engine with its drafters and no
//! network (or one whose outputs are replaced), on recorded texts; `trie` does the same over ranges of one drafter's
//! settings. `generate` runs both together, compared with plain decoding; `batch` runs many sequences at once, `serve`
//! measures servers as their clients see them, also servers of other programs. The scripts in `bench/peers` measure
//! other programs alone.

#![forbid(unsafe_code)]

mod analyze;
mod batch;
mod compare;
mod generate;
mod replay;
mod report;
mod roofline;
mod serve;
mod table;
mod timing;
mod trie;

use std::io::Write;

use clap::{Args, Subcommand};
use foretoken::chosen_backend;
use foretoken::models::Opened;
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::options::ModelOptions;
use foretoken_console::progress::Loading;
use foretoken_console::terminal::standard_output;
use foretoken_console::values;
use foretoken_kernels::{Ceilings, Compute};
use foretoken_model::Options;

pub use analyze::Analyze;
use roofline::PassWork;
use table::Formatter;
use timing::Timer;

/// Numbers of rows that are timed by default, as far as they fit into the context.
const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 64, 512];

/// Passes of up to this many rows compute the logits of each row, as a verify pass does; longer ones, which are
/// prompts, only those of the last.
const ROWS_WITH_LOGITS: usize = 64;

/// Tokens of the source of an encoder-decoder, unless others are asked for; as many as the longest prompt of [`ROWS`].
const SOURCE: usize = 512;

/// Options of `foretoken bench`.
#[derive(Args, Debug)]
pub struct Bench {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,
}

#[derive(Subcommand, Debug)]
enum Benchmark {
    /// Time one pass over several numbers of rows, and compare it with what this machine could do
    Pass(Pass),
    /// Replay recorded texts to see what each drafter without a model would have saved
    Replay(Box<replay::Replay>),
    /// Replay recorded texts with trie lookahead over ranges of its settings
    Trie(trie::Trie),
    /// Time methods of drafting and plain decoding on the same prompts, and compare their texts
    Generate(Box<generate::Generate>),
    /// Compare two runs of bench generate, row by row, and tell differences from noise
    Compare(compare::Compare),
    /// Time many texts that arrive at once: their speed together, and how long each waits
    Batch(Box<batch::BatchBench>),
    /// Time a server as its clients see it, compared with its engine alone and with other servers
    Serve(Box<serve::ServeBench>),
}

impl Bench {
    /// Runs the command.
    ///
    /// # Errors
    /// No benchmark is named, or as each command.
    pub fn run(&self) -> Result<(), Failure> {
        // After Ctrl-C complete lines have been printed; what is printed at the end has fewer results.
        let interrupts = Interrupts::listen();
        match &self.benchmark {
            Some(Benchmark::Pass(pass)) => pass.run(interrupts),
            Some(Benchmark::Replay(replay)) => replay.run(interrupts),
            Some(Benchmark::Trie(trie)) => trie.run(interrupts),
            Some(Benchmark::Generate(generate)) => generate.run(interrupts),
            Some(Benchmark::Compare(compare)) => compare.run(),
            Some(Benchmark::Batch(batch)) => batch.run(),
            Some(Benchmark::Serve(serve)) => serve.run(),
            None => {
                let message =
                    "bench: expected what to measure (pass, replay, trie, generate, compare, batch, serve), found none";
                Err(Failure::Usage(message.into()))
            }
        }
    }
}

const AFTER_HELP: &str = "\
A pass runs over ROWS new tokens of one text, after CONTEXT tokens that are in the cache. Passes of up
to 64 rows compute the logits of every row, as the verification of a draft does; longer ones those of
the last row alone, as a prompt does. Numbers of rows alternate, so that noise affects all alike; passes
of up to 64 rows are timed after an untimed one of their own kind. Times are medians. Weights that stay
in the processor's caches can be read faster than memory delivers.

The roofline of a pass is the least time that this machine could take, the larger of
  bytes / bandwidth: the weights of all products in the form in which they are multiplied, the head among
    them; keys and values of the context and of the new rows, once. Of experts those that the pass chose,
    which rows of a text choose more or less alike, and here those of meaningless tokens;
  operations / rate, summed over kinds: 2 a weight and row in the dot instruction of the weight's type
    (int8 for blocks, f32 for F32 and F16, for BF16 the faster of f32 and bf16), of the head only for
    rows with logits; and in f32 those of attention: 4 a row, position that it sees, layer, head and
    element of a head.
Bandwidth and rates are measured before each context, with as many threads.

An encoder-decoder is timed once for each source: first its encoder, which reads the whole source and makes
the keys and values of cross attention, then passes of its decoder, each row of which sees the source and
CONTEXT tokens of the output. Their roofline counts the decoder's matrices and the source's keys and values.

--json prints an array with one object a context, contexts ascending, for each source. Keys of \"rows -> ...\"
are numbers of rows as strings.
  model, context, threads, isa, repeat, and cache_types: those of keys and values
  source               null without an encoder; else tokens of the source, and of reading it ms, least_ms,
                       tokens_per_second, roofline_ms, ratio_to_roofline, gop_s and share_of_operations
  logits               rows -> rows whose logits are computed
  ms_per_pass          rows -> median milliseconds
  least_ms_per_pass    rows -> least milliseconds
  ratio_to_one         rows -> ms_per_pass over that of one row; null if one row was not measured
  roofline             rows -> milliseconds of the roofline; beside these bandwidth_gb_s (the best of
                       several runs), bandwidth_median_gb_s, fma_gflop_s, int8_gop_s, and bf16_gflop_s,
                       which is null where there is no such instruction
  ratio_to_roofline    rows -> ms_per_pass over the roofline's
  experts_per_pass     rows -> distinct experts that it read, all layers together; 0 where there are none
  experts_packed_per_pass
                       rows -> of these, those that the last pass had to pack first, where not all
                       experts fit in memory: its time includes that
  experts_per_row      rows -> the same over its rows
  messages_per_pass    rows -> messages that this process sent to others that run the model with it
                       (--backend mpi); 0 where it runs alone
  bytes_sent_per_pass  rows -> their bytes
  bytes_per_pass       rows -> bytes of the roofline
  gb_s                 rows -> bytes a second
  share_of_bandwidth   rows -> the same over the bandwidth
  gop_s                rows -> operations a second
  share_of_operations  rows -> the same over the rates of their kinds
  products             type -> weights and bytes of the matrices of that type";

/// Options of `foretoken bench pass`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
#[command(after_long_help = AFTER_HELP)]
pub struct Pass {
    /// Rows of a pass [default: those of 1,2,4,8,16,64,512 that fit]
    #[arg(long, value_name = "N,..", value_delimiter = ',',
        value_parser = values::one_up, allow_negative_numbers = true)]
    rows: Vec<usize>,
    /// Tokens in the cache before the pass
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "64", value_parser = values::whole,
        allow_negative_numbers = true)]
    context: Vec<usize>,
    /// Tokens of the source that an encoder reads [default: 512, or as many as fit]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = values::one_up,
        allow_negative_numbers = true)]
    source: Vec<usize>,
    /// Timed passes of each number of rows
    #[arg(long, value_name = "N", default_value = "5", value_parser = values::one_up, allow_negative_numbers = true)]
    repeat: usize,
    /// Print JSON (see --help for its fields)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

impl Pass {
    /// Runs the command.
    ///
    /// # Errors
    /// The model cannot be used, or its context is too short for what is to be measured.
    pub fn run(&self, interrupts: Interrupts) -> Result<(), Failure> {
        let opened = self.model.open()?;
        let (contexts, rows) = self.plan(&opened)?;
        let sources = self.sources(&opened)?;
        let rows_max = rows.iter().copied().max().unwrap_or(1).max(512);
        let positions = contexts.iter().copied().max().unwrap_or(0) + rows.iter().copied().max().unwrap_or(1);
        let positions = sources.iter().copied().flatten().fold(positions, usize::max);
        let threads = self.model.threads();
        let options = Options { rows_max, ..self.model.run_with(positions) };
        let cache_types = [options.key_type, options.value_type];
        let mut loading = Loading::default();
        let loaded = opened.load(chosen_backend(), options, &mut |done, of| loading.show(done, of))?;
        let work = PassWork::of(&loaded, cache_types);
        drop(loading);
        interrupts.begin();
        let timer = Timer::new(loaded.executor, interrupts);
        let formatter = Formatter { model: &opened.name, threads, repeat: self.repeat, cache_types, work: &work };
        self.measure(timer, &formatter, &sources, (&contexts, &rows))?;
        interrupts.end_command()
    }

    /// Times everything, and prints it.
    fn measure(
        &self,
        mut timer: Timer,
        formatter: &Formatter<'_>,
        sources: &[Option<usize>],
        (contexts, rows): (&[usize], &[usize]),
    ) -> Result<(), Failure> {
        let mut out = standard_output();
        let mut objects = Vec::new();
        if !self.json {
            writeln!(out, "{}", formatter.title())?;
        }
        'sources: for len in sources {
            let mut source = None;
            for context in contexts {
                let ceilings = Ceilings::measure(&Compute::new(formatter.threads));
                if !self.json {
                    writeln!(out, "\n{}", formatter.ceilings(&ceilings))?;
                    out.flush()?;
                }
                if let Some(len) = len.filter(|_| source.is_none()) {
                    let Some(times) = timer.read_source(len, self.repeat)? else { break 'sources };
                    let read = formatter.source(times, &ceilings);
                    if !self.json {
                        write!(out, "{}", read.line())?;
                    }
                    source = Some(read);
                }
                let times = timer.passes(*context, rows, self.repeat)?;
                if times.is_empty() {
                    break 'sources;
                }
                let lines = formatter.lines([*context, len.unwrap_or(0)], &ceilings, &times);
                match self.json {
                    true => objects.push(formatter.object(*context, source.as_ref(), &ceilings, &lines)),
                    false => write!(out, "{}", formatter.table(*context, &lines))?,
                }
                out.flush()?;
            }
        }
        if self.json {
            writeln!(out, "{:#}", serde_json::Value::Array(objects))?;
        }
        out.flush()?;
        Ok(())
    }

    /// Tokens of each source, as they were given, each number once; one `None` without an encoder.
    fn sources(&self, model: &Opened) -> Result<Vec<Option<usize>>, Failure> {
        let limit = self.model.context(model.spec.context_max);
        match (model.spec.encoder, self.source.first()) {
            (None, None) => return Ok(vec![None]),
            (None, Some(_)) => {
                let message = format!("--source: expected a model with an encoder, found {}", model.name);
                return Err(Failure::Usage(message));
            }
            (Some(_), None) => return Ok(vec![Some(SOURCE.min(limit))]),
            (Some(_), Some(_)) => {}
        }
        let mut sources = Vec::new();
        for len in &self.source {
            if *len > limit {
                let message = format!("--source: expected at most {limit} (the longest text), found {len}");
                return Err(Failure::Usage(message));
            }
            if !sources.contains(&Some(*len)) {
                sources.push(Some(*len));
            }
        }
        Ok(sources)
    }

    /// Contexts, ascending, and numbers of rows in the order in which they were given, each once.
    fn plan(&self, model: &Opened) -> Result<(Vec<usize>, Vec<usize>), Failure> {
        let own = model.spec.context_max;
        let limit = self.model.context(own);
        let mut contexts = self.context.clone();
        contexts.sort_unstable();
        contexts.dedup();
        let longest = contexts.last().copied().unwrap_or(0);
        let Some(room) = limit.checked_sub(longest).filter(|room| *room > 0) else {
            let message = format!("--context: expected less than {limit} (the longest text), found {longest}");
            return Err(Failure::Usage(message));
        };
        if self.rows.is_empty() {
            return Ok((contexts, ROWS.into_iter().filter(|rows| *rows <= room).collect()));
        }
        let mut rows: Vec<usize> = Vec::new();
        for count in &self.rows {
            if *count > room {
                let room = format!("at most {room} (the longest text has {limit} tokens, the context {longest})");
                return Err(Failure::Usage(format!("--rows: expected {room}, found {count}")));
            }
            if !rows.contains(count) {
                rows.push(*count);
            }
        }
        Ok((contexts, rows))
    }
}

/// Rows whose logits a pass of `rows` rows computes.
fn logits(rows: usize) -> usize {
    if rows <= ROWS_WITH_LOGITS { rows } else { 1 }
}
