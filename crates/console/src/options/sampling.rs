//! Options of the sampling parameters, and when a text ends.
//!
//! An option that is not given (`None`) is decided by the model's own files, else by llama.cpp's default.

use clap::Args;
use foretoken::Token;
use foretoken::settings::{Limit, SamplingSettings};

use super::guided::GuidedOptions;
use crate::failure::Failure;
use crate::values::{self, Seed};

/// Sampling parameters, and when a text ends.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingOptions {
    /// Temperature; 0 is greedy [default: 0.8]
    #[arg(long, visible_alias = "temperature", value_name = "T",
        value_parser = values::zero_up, allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// The other sampling parameters.
    #[command(flatten)]
    pub law: LawOptions,
}

/// Sampling parameters without the temperature, of which a benchmark takes several.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct LawOptions {
    /// Seed of all random numbers [default: random, and printed]
    #[arg(short, long, value_name = "N", value_parser = values::seed, allow_negative_numbers = true)]
    pub seed: Option<Seed>,
    /// Only the k most probable tokens; 0 is off [default: 40]
    #[arg(hide_short_help = true, long, value_name = "K", value_parser = values::whole, allow_negative_numbers = true)]
    pub top_k: Option<usize>,
    /// Only the most probable tokens of this mass; 1 is off [default: 0.95]
    #[arg(long, value_name = "P", value_parser = values::fraction, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Only tokens this fraction as probable as the best; 0 is off [default: 0.05]
    #[arg(hide_short_help = true, long, value_name = "P", value_parser = values::fraction,
        allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Only the tokens nearest to the entropy, of this mass; 1 is off [default: 1]
    #[arg(hide_short_help = true, long = "typical", alias = "typical-p", value_name = "P",
        value_parser = values::positive_fraction,
        allow_negative_numbers = true)]
    pub typical: Option<f32>,
    /// Divides the logits of tokens that occurred before; 1 is off [default: 1]
    #[arg(hide_short_help = true, long, alias = "repetition-penalty", value_name = "X",
        value_parser = values::positive, allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// How many of the last tokens are penalized; 0 is off, -1 is all [default: 64]
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = values::whole_or_unlimited,
        allow_negative_numbers = true)]
    pub repeat_last_n: Option<Limit>,
    /// Subtracted from the logits of tokens that occurred before
    #[arg(hide_short_help = true, long, value_name = "X", default_value = "0", value_parser = values::finite,
        allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtracted from logits for each earlier occurrence of the token
    #[arg(hide_short_help = true, long, value_name = "X", default_value = "0", value_parser = values::finite,
        allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Added to the logit of a token: TOKEN_ID+BIAS or TOKEN_ID-BIAS; can be repeated
    #[arg(hide_short_help = true, long, value_name = "ID+BIAS", value_parser = values::logit_bias)]
    pub logit_bias: Vec<(Token, f32)>,
    /// Tokens that are never generated; can be repeated
    #[arg(hide_short_help = true, long = "ban-token", alias = "ban-tokens", value_name = "ID,..", value_delimiter = ',',
        value_parser = values::token, allow_negative_numbers = true)]
    pub ban_tokens: Vec<Token>,
    /// The text does not end before so many tokens
    #[arg(hide_short_help = true, long, value_name = "N", default_value = "0", value_parser = values::whole,
        allow_negative_numbers = true)]
    pub min_tokens: usize,
    /// A string that ends the text and is not part of it; repeatable
    #[arg(long, alias = "reverse-prompt", value_name = "TEXT", value_parser = values::stop, allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Continue after end tokens
    #[arg(hide_short_help = true, long)]
    pub ignore_eos: bool,
    /// Show special tokens in the text
    #[arg(hide_short_help = true, long)]
    pub special: bool,
    /// Tokens to generate [default: -1, until the text or the context ends]
    #[arg(short, long, visible_alias = "predict", value_name = "N", default_value = "-1",
        value_parser = values::whole_or_unlimited, allow_negative_numbers = true)]
    pub n_predict: Limit,
    /// The grammar of the text.
    #[command(flatten)]
    pub guided: GuidedOptions,
}

impl SamplingOptions {
    /// The library's settings.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn settings(&self) -> Result<SamplingSettings, Failure> {
        self.law.settings(self.temp)
    }
}

impl LawOptions {
    /// The library's settings, with this temperature.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn settings(&self, temperature: Option<f32>) -> Result<SamplingSettings, Failure> {
        Ok(SamplingSettings {
            temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            repetition_penalty: self.repeat_penalty,
            penalty_window: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            banned_tokens: self.ban_tokens.clone(),
            tokens_min: self.min_tokens,
            tokens_max: self.n_predict,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            special: self.special,
            seed: self.seed.and_then(|Seed(seed)| seed),
            guided: self.guided.settings()?,
            ..SamplingSettings::default()
        })
    }
}
