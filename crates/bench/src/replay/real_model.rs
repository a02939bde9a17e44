//! Replays records on a model: its passes are real, and its output tokens are replaced by the recorded ones.
//!
//! Embedding, layers, output head, cache and the search for the most probable token run as in generation; only the
//! token of each row is replaced by the recorded one. So the times of passes are real, and the record decides what is
//! accepted. Engine and drafters see the records' tokens; a token that the model does not have is replaced by one of
//! its own for the model, whose row of the embedding costs the same. Times are measured in [`super::timed`].

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use foretoken::models::Opened;
use foretoken::settings::ModelSettings;
use foretoken::{Tokenizer, WeightType, chosen_backend};
use foretoken_console::failure::Failure;
use foretoken_console::options::requested_context;
use foretoken_console::progress::Loading;
use foretoken_console::records::Record;
use foretoken_console::{hub, values};
use foretoken_model::{Batch, CacheEdit, Capacity, Executor, ExecutorError, Outputs, Source, Span, WeightsRead};
use foretoken_speculation::Token;

use super::play::{RecordedTokens, ReplayExecutor};

/// Options of replaying records on a model. Without a model the others are ignored and not refused, since a file of
/// defaults may set threads and context for every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Real passes")]
pub struct RealModelOptions {
    /// Time real passes of this model, with its output replaced by the records (see --help)
    ///
    /// A directory, a .gguf file or a name of the hub. The speed is that of a hypothetical target that would have
    /// generated the records. Unless another vocabulary is named, the records are read with this model's.
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
    /// Convert weights of floats to this type as they are loaded: f32, f16, bf16, q8_0, q4_0, q4_k or q6_k [default: as
    /// they are]
    #[arg(long, hide_short_help = true, value_name = "TYPE", value_parser = values::weight_type)]
    dtype: Option<WeightType>,
    /// Repetitions of the records, of which the median counts
    ///
    /// Each begins without the texts that were learned in the one before. The acceptance of each drafter and its costs
    /// are kept.
    #[arg(long, hide_short_help = true, value_name = "N", default_value = "1", value_parser = values::one_up,
        allow_negative_numbers = true)]
    pub repeat: usize,
    /// No further record begins after so many seconds [default: all are replayed]
    #[arg(long, hide_short_help = true, value_name = "S", value_parser = values::zero_up,
        allow_negative_numbers = true)]
    pub seconds: Option<f32>,
}

/// A model on which records are replayed, before it is loaded.
pub struct RealModel {
    settings: ModelSettings,
    target: Opened,
    tokenizer: Option<Arc<Tokenizer>>,
}

impl RealModelOptions {
    /// Opens the model, if one is named.
    ///
    /// # Errors
    /// It cannot be fetched, or its files cannot be parsed.
    pub fn open(&self) -> Result<Option<RealModel>, Failure> {
        let Some(model) = &self.on else { return Ok(None) };
        let Self { ctx_size, threads, dtype, .. } = *self;
        let path = Some(hub::resolve(model)?);
        let settings = ModelSettings { path, ctx_size, threads, dtype, ..ModelSettings::default() };
        let target = settings.open()?;
        let tokenizer = target.tokenizer()?;
        Ok(Some(RealModel { settings, target, tokenizer }))
    }
}

impl RealModel {
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.target.name
    }

    /// The model's own tokenizer.
    ///
    /// # Errors
    /// The model has no tokenizer.
    pub fn tokenizer(&self) -> Result<Arc<Tokenizer>, Failure> {
        let missing = || format!("{}; --model or --vocab names another", self.target.missing_tokenizer());
        self.tokenizer.clone().ok_or_else(|| Failure::Other(missing()))
    }

    /// The most tokens of a sequence.
    pub fn context(&self) -> usize {
        requested_context(self.settings.ctx_size, self.target.spec.context_max)
    }

    /// Loads the model for sequences of up to `context` tokens, with its output replaced by recorded tokens of a
    /// vocabulary of `vocabulary` tokens. Returns it with the number of its threads.
    ///
    /// # Errors
    /// It cannot be loaded, or there is not enough memory.
    pub fn load(
        &self,
        recorded: RecordedTokens,
        vocabulary: usize,
        context: usize,
    ) -> Result<(Box<dyn Executor>, usize), Failure> {
        // A prompt stays in the cache while sequences continue it.
        let positions = ModelSettings::cache_positions(context, 2);
        let mut options = self.settings.run_with(positions);
        options.context = Some(context);
        options.sequences_max = Some(2);
        options.tokens = Some(self.target.tokens(self.tokenizer.as_deref()));
        let mut loading = Loading::default();
        let loaded = self.target.load(chosen_backend(), options, &mut |done, of| loading.show(done, of))?;
        drop(loading);
        Ok((Box::new(OverriddenExecutor::new(loaded.executor, recorded, vocabulary)), loaded.threads))
    }
}

/// Records that fit into the context, and those that do not, with their numbers from 1.
#[derive(Default)]
pub struct FittingRecords {
    /// Those that fit.
    pub records: Vec<Record>,
    /// The number of each of `records` in the file.
    pub numbers: Vec<usize>,
    /// The numbers of the others, and their tokens.
    pub left_out: Vec<(usize, usize)>,
}

impl FittingRecords {
    /// Splits records by whether they fit into a context of this many tokens.
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

/// A network whose passes are real, and whose output is the recorded tokens.
struct OverriddenExecutor {
    real: Box<dyn Executor>,
    /// The output, in the records' vocabulary.
    player: ReplayExecutor,
}

impl OverriddenExecutor {
    fn new(real: Box<dyn Executor>, recorded: RecordedTokens, vocabulary: usize) -> Self {
        let capacity = Capacity { vocabulary, ..real.capacity().clone() };
        Self { real, player: ReplayExecutor::new(recorded, capacity) }
    }
}

impl Executor for OverriddenExecutor {
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

    fn weights_read(&self) -> WeightsRead {
        self.real.weights_read()
    }
}

impl Outputs for OverriddenExecutor {
    fn row(&self, row: usize) -> &[f32] {
        self.player.outputs().row(row)
    }

    /// The network's own token is searched for, since that takes time, and then ignored.
    fn argmax(&self, row: usize) -> Option<Token> {
        black_box(self.real.outputs().argmax(row));
        self.player.recorded_token(row)
    }

    fn has_nan(&self, row: usize) -> bool {
        self.real.outputs().has_nan(row)
    }

    fn hidden(&self, layer: usize, row: usize) -> &[f32] {
        self.real.outputs().hidden(layer, row)
    }
}
