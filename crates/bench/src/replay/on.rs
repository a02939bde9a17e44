//! What records are played on: a model whose passes are real while a record stands for what it says.
//!
//! Embedding, layers, head, cache and the search for the likeliest token run as they do for a text of the model's own;
//! only the token of each row is replaced by the recorded one. So a pass takes what it takes, and what is accepted is
//! what the record decides. Tokens keep the records' numbers for engine and drafters; where the model has fewer it is
//! given another of its own, whose row of the embedding costs the same. Left out: what is timed ([`super::timed`]).

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use foretoken::models::{Cpu, Opened};
use foretoken::settings::ModelSettings;
use foretoken::{Tokenizer, WeightType};
use foretoken_console::failure::Failure;
use foretoken_console::options::asked_context;
use foretoken_console::progress::Loading;
use foretoken_console::records::Record;
use foretoken_console::{hub, values};
use foretoken_model::{Batch, CacheEdit, Capacity, Executor, ExecutorError, Outputs, Reading, Source, Span};
use foretoken_speculation::Token;

use super::play::{Player, Script};

/// Options of records that are played on a model. Where none is named the others mean nothing and are not refused:
/// threads and context may stand in a file of defaults, for every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Real passes")]
pub struct OnOptions {
    /// Time real passes of this model while the records stand for what it says (see --help)
    ///
    /// A directory, a .gguf file or a name of the hub. What is timed is the speed of a pretended target, not of its own
    /// texts. Unless another vocabulary is named, the records are read with this model's.
    #[arg(long, value_name = "MODEL")]
    on: Option<PathBuf>,
    /// Longest record in tokens, prompt included; longer ones are left out [default: the model's own context]
    #[arg(short, long, hide_short_help = true, value_name = "N", value_parser = values::context,
        allow_negative_numbers = true)]
    ctx_size: Option<usize>,
    /// Threads [default: one a core]
    #[arg(short, long, hide_short_help = true, value_name = "N", value_parser = values::threads,
        allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Bring the weights from floats to this type as they are loaded: f32, f16, bf16, q8_0, q4_0, q4_k or q6_k
    /// [default: as they are]
    #[arg(long, hide_short_help = true, value_name = "TYPE", value_parser = values::weight_type)]
    dtype: Option<WeightType>,
    /// Repetitions of the records, of which the median counts
    ///
    /// Each begins without the texts of the one before. How often each drafter was right, and what it costs, stays
    /// known.
    #[arg(long, hide_short_help = true, value_name = "N", default_value = "1", value_parser = values::one_up,
        allow_negative_numbers = true)]
    pub repeat: usize,
    /// No further record begins after so many seconds [default: all are played]
    #[arg(long, hide_short_help = true, value_name = "S", value_parser = values::zero_up,
        allow_negative_numbers = true)]
    pub seconds: Option<f32>,
}

/// A model on which records are played, before it is loaded.
pub struct On {
    settings: ModelSettings,
    target: Opened,
    tokenizer: Option<Arc<Tokenizer>>,
}

impl OnOptions {
    /// Opens the model, if one is named.
    ///
    /// # Errors
    /// It cannot be had, or its files cannot be understood.
    pub fn open(&self) -> Result<Option<On>, Failure> {
        let Some(model) = &self.on else { return Ok(None) };
        let Self { ctx_size, threads, dtype, .. } = *self;
        let path = Some(hub::resolved(model)?);
        let settings = ModelSettings { path, ctx_size, threads, dtype, ..ModelSettings::default() };
        let target = settings.open()?;
        let tokenizer = target.tokenizer()?;
        Ok(Some(On { settings, target, tokenizer }))
    }
}

impl On {
    /// As the model is named.
    pub fn name(&self) -> &str {
        &self.target.name
    }

    /// The model's own tokenizer.
    ///
    /// # Errors
    /// It comes without one.
    pub fn tokenizer(&self) -> Result<Arc<Tokenizer>, Failure> {
        let missing = || format!("{}; --model or --vocab names another", self.target.missing_tokenizer());
        self.tokenizer.clone().ok_or_else(|| Failure::Other(missing()))
    }

    /// Tokens that a text may have.
    pub fn context(&self) -> usize {
        asked_context(self.settings.ctx_size, self.target.spec.context_max)
    }

    /// Loads the model for texts of up to `context` tokens, and lets a script speak for it in a vocabulary of so many
    /// tokens. Returns it with the threads that it has.
    ///
    /// # Errors
    /// It cannot be loaded, or there is not memory enough.
    pub fn load(
        &self,
        script: Script,
        vocabulary: usize,
        context: usize,
    ) -> Result<(Box<dyn Executor>, usize), Failure> {
        // A prompt stays in the cache beside the texts that go on from it.
        let positions = ModelSettings::cache_positions(context, 2);
        let mut options = self.settings.run_with(positions);
        options.context = Some(context);
        options.texts = Some(2);
        options.tokens = Some(self.target.tokens(self.tokenizer.as_deref()));
        let mut loading = Loading::default();
        let loaded = self.target.load(&Cpu, options, &mut |done, of| loading.show(done, of))?;
        drop(loading);
        Ok((Box::new(Pretended::new(loaded.executor, script, vocabulary)), loaded.threads))
    }
}

/// Records that a context holds, and those that it does not, with their numbers from 1.
#[derive(Default)]
pub struct Fit {
    /// Those that it holds.
    pub records: Vec<Record>,
    /// Their numbers.
    pub numbers: Vec<usize>,
    /// The numbers of the others, and their tokens.
    pub left_out: Vec<(usize, usize)>,
}

impl Fit {
    /// What of these a context of so many tokens holds.
    pub fn new(records: Vec<Record>, context: usize) -> Self {
        let mut fit = Self::default();
        for (number, record) in (1..).zip(records) {
            match record.tokens.len() <= context {
                true => {
                    fit.records.push(record);
                    fit.numbers.push(number);
                }
                false => fit.left_out.push((number, record.tokens.len())),
            }
        }
        fit
    }
}

/// A network that computes as it does, and says what was recorded.
struct Pretended {
    real: Box<dyn Executor>,
    /// What is said instead, in the records' vocabulary.
    player: Player,
}

impl Pretended {
    fn new(real: Box<dyn Executor>, script: Script, vocabulary: usize) -> Self {
        let capacity = Capacity { vocabulary, ..real.capacity().clone() };
        Self { real, player: Player::new(script, capacity) }
    }
}

impl Executor for Pretended {
    fn open(&mut self, sequence: u64, source: Option<Source<'_>>) -> Result<(), ExecutorError> {
        self.real.open(sequence, source)
    }

    fn release(&mut self, sequence: u64) {
        self.real.release(sequence);
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), ExecutorError> {
        let known = self.real.capacity().vocabulary;
        let is_known = |token: &Token| (*token as usize) < known;
        match batch.spans.iter().all(|span| span.tokens.iter().all(is_known)) {
            true => self.real.forward(batch)?,
            false => {
                let known_of = |span: &Span<'_>| -> Vec<Token> {
                    span.tokens.iter().map(|token| (*token as usize % known) as Token).collect()
                };
                let tokens: Vec<Vec<Token>> = batch.spans.iter().map(known_of).collect();
                let spans = batch.spans.iter().zip(&tokens).map(|(span, tokens)| Span { tokens, ..*span });
                let spans: Vec<Span<'_>> = spans.collect();
                self.real.forward(&Batch { spans: &spans, hidden_layers: batch.hidden_layers })?;
            }
        }
        self.player.forward(batch)
    }

    fn outputs(&self) -> &dyn Outputs {
        self
    }

    fn rows(&mut self, edit: CacheEdit<'_>) -> Result<(), ExecutorError> {
        self.real.rows(edit)
    }

    fn capacity(&self) -> &Capacity {
        self.player.capacity()
    }

    fn read(&self) -> Reading {
        self.real.read()
    }
}

impl Outputs for Pretended {
    fn row(&self, row: usize) -> &[f32] {
        self.player.outputs().row(row)
    }

    /// What the network would have said is looked for, which takes its time, and is not believed.
    fn argmax(&self, row: usize) -> Option<Token> {
        black_box(self.real.outputs().argmax(row));
        self.player.said(row)
    }

    fn has_nan(&self, row: usize) -> bool {
        self.real.outputs().has_nan(row)
    }

    fn hidden(&self, layer: usize, row: usize) -> &[f32] {
        self.real.outputs().hidden(layer, row)
    }
}
