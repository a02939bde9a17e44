//! The options that commands share, in groups: model, speculation, sampling.
//!
//! Names are llama.cpp's where it has them. A sampling option that is not given is decided by the model's own files,
//! and else by llama.cpp's default, so it has to be told from one that is given: hence the `Option`s. Left out: what
//! only one command knows.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use foretoken_engine::BudgetKind;
use foretoken_model::{CacheType, Options, WeightType};
use foretoken_speculation::{Promise, Sampling, Token};
use foretoken_text::Tokenizer;

use crate::demo;
use crate::failure::Failure;
use crate::models::Opened;
use crate::progress::say;
use crate::values::{self, Limit, Seed};

/// The longest context that is made without being asked for.
const CONTEXT_DEFAULT: usize = 4096;

/// Which model, and how it is run.
#[derive(Args, Clone, Debug)]
pub struct ModelOptions {
    /// The target: a directory or a .gguf file [default: the demo model that is part of this program]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Longest text in tokens, prompt included [default: the model's own, at most 4096]
    #[arg(short, long, value_name = "N", value_parser = values::one_up, allow_negative_numbers = true)]
    pub ctx_size: Option<usize>,
    /// Threads [default: one a core]
    #[arg(short, long, value_name = "N", value_parser = values::threads, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Bring the weights from floats to this type as they are loaded: f32, f16, bf16, q8_0, q4_0, q4_k or q6_k
    /// [default: as they are]
    #[arg(long, value_name = "TYPE", value_parser = values::weight_type)]
    pub dtype: Option<WeightType>,
    #[command(flatten)]
    pub cache: CacheOptions,
}

/// In what form the target's keys and values are kept.
#[derive(Args, Clone, Copy, Debug)]
pub struct CacheOptions {
    /// What cached keys are rounded to: f32, f16, bf16 or q8_0 (also -ctk)
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_k: CacheType,
    /// What cached values are rounded to (also -ctv)
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_v: CacheType,
}

impl ModelOptions {
    /// Opens the model, or the demo if none is given.
    ///
    /// # Errors
    /// As [`Opened::at`]; or none is given and this build has no demo.
    pub fn open(&self) -> Result<Opened, Failure> {
        match (&self.model, demo::target()) {
            (Some(path), _) => Opened::at(path),
            (None, Some(files)) => Opened::embedded(files),
            (None, None) => Err(Failure::Usage("--model: expected a directory or a .gguf file, found none".into())),
        }
    }

    /// How the target is run, with room for `positions` positions.
    pub fn run_with(&self, positions: usize) -> Options {
        let CacheOptions { cache_type_k, cache_type_v } = self.cache;
        let options = Options::for_positions(positions, self.threads());
        Options { key_type: cache_type_k, value_type: cache_type_v, weight_type: self.dtype, ..options }
    }

    /// Threads to compute with.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Tokens that a text may have: what was asked for, but never more than the network can represent.
    pub fn context(&self, model: &Opened) -> usize {
        let own = model.spec.context_max;
        match self.ctx_size {
            None => own.min(CONTEXT_DEFAULT),
            Some(asked) if asked > own => {
                say(format_args!("note: --ctx-size {asked}: {} was made for {own} tokens, which is used", model.name));
                own
            }
            Some(asked) => asked,
        }
    }
}

/// A kind of drafter, as `--spec-type` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpecType {
    /// Plain decoding.
    None,
    /// A draft model.
    #[value(alias = "draft-simple")]
    Draft,
    /// What followed the last time these tokens were written.
    #[value(aliases = ["ngram-simple", "ngram-mod", "ngram-cache"])]
    Lookup,
}

/// What speculation promises, as `--verify` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// The same seed gives the same text as plain decoding, byte for byte.
    Exact,
    /// The same distribution as plain decoding.
    Rejection,
    /// The same distribution, a chain verified as one block.
    Block,
}

impl From<Verify> for Promise {
    fn from(verify: Verify) -> Self {
        match verify {
            Verify::Exact => Self::Exact,
            Verify::Rejection => Self::Rejection,
            Verify::Block => Self::Block,
        }
    }
}

/// How much to draft, as `--budget` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Budget {
    /// Two more after a draft that was right, one less after another.
    Heuristic,
    /// Always the maximum.
    Fixed,
}

/// How to guess, and what to do with the guesses.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationOptions {
    /// The draft model: a directory or a .gguf file, with the target's vocabulary (also -md)
    #[arg(long, value_name = "MODEL")]
    pub model_draft: Option<PathBuf>,
    /// Drafters, asked in this order, which share the budget [default: draft if there is a draft model, else lookup]
    #[arg(long, value_name = "KIND,..", value_delimiter = ',')]
    pub spec_type: Vec<SpecType>,
    /// Most tokens drafted a pass
    #[arg(long, aliases = ["draft-max", "draft"], value_name = "N", default_value = "16",
        value_parser = values::whole, allow_negative_numbers = true)]
    pub spec_draft_n_max: usize,
    /// Fewest tokens drafted a pass, however improbable they are (see --spec-draft-p-min)
    #[arg(long, alias = "draft-min", value_name = "N", default_value = "0",
        value_parser = values::whole, allow_negative_numbers = true)]
    pub spec_draft_n_min: usize,
    /// Stop drafting after a token that the draft model finds less probable than this
    #[arg(long, alias = "draft-p-min", value_name = "P", default_value = "0",
        value_parser = values::fraction, allow_negative_numbers = true)]
    pub spec_draft_p_min: f32,
    /// The draft model's own temperature [default: the target's]
    #[arg(long, value_name = "T", value_parser = values::zero_up, allow_negative_numbers = true)]
    pub spec_draft_temp: Option<f32>,
    /// As --dtype, of the draft model
    #[arg(long, value_name = "TYPE", value_parser = values::weight_type)]
    pub dtype_draft: Option<WeightType>,
    /// What the draft model's cached keys are rounded to (also -ctkd)
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_k_draft: CacheType,
    /// What the draft model's cached values are rounded to (also -ctvd)
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_v_draft: CacheType,
    /// Longest run of last tokens that lookup searches for
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::run_len, allow_negative_numbers = true)]
    pub max_matching_ngram_size: usize,
    /// Most tokens that lookup proposes a pass
    #[arg(long, value_name = "N", default_value = "10", value_parser = values::one_up, allow_negative_numbers = true)]
    pub prompt_lookup_num_tokens: usize,
    /// What speculation promises
    #[arg(long, value_name = "PROMISE", default_value = "exact")]
    pub verify: Verify,
    /// How much to draft, up to the maximum
    #[arg(long, value_name = "KIND", default_value = "heuristic")]
    pub budget: Budget,
}

impl SpeculationOptions {
    /// The drafters to use. `demo`: the target is the demo model, which brings a draft model along.
    ///
    /// # Errors
    /// Kinds that exclude one another, twice the same, or a draft without a model.
    pub fn drafters(&self, demo: bool) -> Result<Vec<SpecType>, Failure> {
        let has_draft = self.model_draft.is_some() || demo;
        let all = match self.spec_type.as_slice() {
            [] if has_draft => return Ok(vec![SpecType::Draft]),
            [] => return Ok(vec![SpecType::Lookup]),
            [SpecType::None] => return Ok(Vec::new()),
            given => given,
        };
        if all.contains(&SpecType::None) {
            return Err(Failure::Usage("--spec-type: expected none alone, found it among others".into()));
        }
        if (1..all.len()).any(|i| all[..i].contains(&all[i])) {
            return Err(Failure::Usage("--spec-type: expected each drafter once, found one twice".into()));
        }
        if all.contains(&SpecType::Draft) && !has_draft {
            let message = "--spec-type draft: expected a draft model (-md, --model-draft), found none";
            return Err(Failure::Usage(message.into()));
        }
        Ok(all.to_vec())
    }

    /// Opens the draft model.
    ///
    /// # Errors
    /// As [`Opened::at`].
    pub fn open_draft(&self) -> Result<Opened, Failure> {
        match (&self.model_draft, demo::draft()) {
            (Some(path), _) => Opened::at(path),
            (None, Some(files)) => Opened::embedded(files),
            (None, None) => Err(Failure::Usage("--model-draft: expected a model, found none".into())),
        }
    }

    /// The budget.
    pub fn budget(&self) -> BudgetKind {
        match self.budget {
            Budget::Heuristic => BudgetKind::Heuristic { nodes_max: self.spec_draft_n_max },
            Budget::Fixed => BudgetKind::Fixed { nodes: self.spec_draft_n_max },
        }
    }
}

/// How the next token is chosen, and when to stop.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingOptions {
    /// Seed of all chance [default: random, and told]
    #[arg(short, long, value_name = "N", value_parser = values::seed, allow_negative_numbers = true)]
    pub seed: Option<Seed>,
    /// Temperature; 0 is greedy [default: 0.8]
    #[arg(long, visible_alias = "temperature", value_name = "T", value_parser = values::zero_up, allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// Only the k most probable tokens; 0 is off [default: 40]
    #[arg(long, value_name = "K", value_parser = values::whole, allow_negative_numbers = true)]
    pub top_k: Option<usize>,
    /// Only the most probable tokens of this mass; 1 is off [default: 0.95]
    #[arg(long, value_name = "P", value_parser = values::fraction, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Only tokens this fraction as probable as the best; 0 is off [default: 0.05]
    #[arg(long, value_name = "P", value_parser = values::fraction, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Only the tokens nearest to the entropy, of this mass; 1 is off [default: 1]
    #[arg(long = "typical", alias = "typical-p", value_name = "P", value_parser = values::positive_fraction,
        allow_negative_numbers = true)]
    pub typical: Option<f32>,
    /// Divides the logits of tokens written before; 1 is off [default: 1]
    #[arg(long, alias = "repetition-penalty", value_name = "X", value_parser = values::positive, allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// How many last tokens the penalties look at; 0 is off, -1 is all [default: 64]
    #[arg(long, value_name = "N", value_parser = values::whole_or_unlimited, allow_negative_numbers = true)]
    pub repeat_last_n: Option<Limit>,
    /// Subtracted from the logits of tokens written before
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::finite, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtracted from logits for each time that the token was written before
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::finite, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Added to the logit of a token: TOKEN_ID+BIAS or TOKEN_ID-BIAS; can be repeated
    #[arg(long, value_name = "ID+BIAS", value_parser = values::logit_bias)]
    pub logit_bias: Vec<(Token, f32)>,
    /// Tokens that are never written; can be repeated
    #[arg(long = "ban-token", alias = "ban-tokens", value_name = "ID,..", value_delimiter = ',',
        value_parser = values::token, allow_negative_numbers = true)]
    pub ban_tokens: Vec<Token>,
    /// No end of the text before so many tokens
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::whole, allow_negative_numbers = true)]
    pub min_tokens: usize,
    /// A string that ends the text and is not part of it; can be repeated
    #[arg(long, alias = "reverse-prompt", value_name = "TEXT", value_parser = values::stop, allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Go on past end tokens
    #[arg(long)]
    pub ignore_eos: bool,
    /// Show special tokens in the text
    #[arg(long)]
    pub special: bool,
    /// Tokens to generate; -1 is until the text ends or the context is full
    #[arg(short, long, visible_alias = "predict", value_name = "N", default_value = "-1",
        value_parser = values::whole_or_unlimited, allow_negative_numbers = true)]
    pub n_predict: Limit,
}

impl SamplingOptions {
    /// The seed, drawn if none is given.
    pub fn seed(&self) -> u64 {
        // The standard library seeds its hash tables from the system; 32 bits are easy to type again.
        self.seed.and_then(|Seed(seed)| seed).unwrap_or_else(|| RandomState::new().hash_one(0) >> 32)
    }

    /// Whether the seed is one that the user cannot know.
    pub fn seed_is_random(&self) -> bool {
        self.seed.is_none_or(|Seed(seed)| seed.is_none())
    }

    /// The sampling law: options, then the model's own files, then llama.cpp's defaults.
    ///
    /// # Errors
    /// The model's files hold a value out of its range.
    pub fn sampling(&self, model: &Opened, tokenizer: Option<&Tokenizer>) -> Result<Sampling, Failure> {
        let own = &model.defaults;
        let greedy = (own.sample == Some(false)).then_some(0.0);
        let window = match (self.repeat_last_n, self.repeat_penalty, own.repetition_penalty) {
            (Some(Limit(window)), _, _) => window,
            // A penalty of the model's own is transformers', which looks at everything.
            (None, None, Some(_)) => None,
            _ => Some(64),
        };
        let sampling = Sampling {
            temperature: self.temp.or(greedy).or(own.temperature).unwrap_or(0.8),
            top_k: self.top_k.or(own.top_k).unwrap_or(40),
            top_p: self.top_p.or(own.top_p).unwrap_or(0.95),
            min_p: self.min_p.or(own.min_p).unwrap_or(0.05),
            typical_p: self.typical.or(own.typical_p).unwrap_or(1.0),
            repetition_penalty: self.repeat_penalty.or(own.repetition_penalty).unwrap_or(1.0),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: window,
            logit_bias: self.logit_bias.clone(),
            banned_tokens: self.ban_tokens.clone(),
            tokens_min: self.min_tokens,
            end_tokens: if self.ignore_eos { Vec::new() } else { model.end_tokens(tokenizer) },
        };
        match sampling.problem() {
            // Options were checked one by one, so this value is the file's.
            Some(problem) => Err(Failure::Other(format!("{}: {problem}", own.file))),
            None => Ok(sampling),
        }
    }
}
