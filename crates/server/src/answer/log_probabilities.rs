//! Log-probabilities in OpenAI's two formats: that of chats, and the older one of completions.
//!
//! They are those of the model before temperature and filters. A token is shown as the text of its bytes, which may be
//! part of a character; chats have the bytes, too. The token that ended the answer is omitted.

use std::collections::BTreeMap;

use foretoken::{Emitted, Prompter, Scored, Token};
use serde::Serialize;
use serde_json::value::RawValue;

/// A token with its log-probability, and the most probable tokens at its position.
pub(crate) struct TokenLogProbability<'a> {
    token: Token,
    /// `None` for the first token of a prompt.
    log_probability: Option<f32>,
    top: &'a [(Token, f32)],
}

impl<'a> TokenLogProbability<'a> {
    /// The emitted tokens, except end tokens.
    pub(crate) fn without_end_tokens(emitted: &'a [Emitted], end_tokens: &'a [Token]) -> impl Iterator<Item = Self> {
        emitted.iter().filter(|emitted| !end_tokens.contains(&emitted.token)).map(Self::emitted)
    }

    fn emitted(emitted: &'a Emitted) -> Self {
        Self { token: emitted.token, log_probability: emitted.log_probability, top: &emitted.top }
    }

    pub(crate) fn scored(scored: &'a Scored) -> Self {
        Self { token: scored.token, log_probability: scored.log_probability, top: &scored.top }
    }
}

fn bytes(prompter: &Prompter, token: Token) -> &[u8] {
    prompter.tokenizer.as_deref().map_or(&[], |tokenizer| tokenizer.token_bytes(token))
}

/// A token as text; bytes that are not UTF-8 are written as OpenAI does.
pub(crate) fn token_text(prompter: &Prompter, token: Token) -> String {
    let bytes = bytes(prompter, token);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => bytes.iter().fold("bytes:".to_string(), |text, byte| text + &format!("\\x{byte:02x}")),
    }
}

/// JSON has no infinity; OpenAI writes -9999 for impossible tokens.
fn json_number(log_probability: f32) -> f32 {
    log_probability.max(-9999.0)
}

/// A token in the format of chats.
#[derive(Serialize)]
struct ChatToken<'a> {
    token: String,
    id: Token,
    logprob: f32,
    bytes: &'a [u8],
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<ChatToken<'a>>>,
}

impl<'a> ChatToken<'a> {
    fn new(prompter: &'a Prompter, id: Token, log_probability: f32) -> Self {
        let (token, bytes) = (token_text(prompter, id), bytes(prompter, id));
        Self { token, id, logprob: json_number(log_probability), bytes, top_logprobs: None }
    }
}

/// The format of chats, as JSON text, since it may be large.
pub(crate) fn chat_log_probabilities<'a>(
    tokens: impl Iterator<Item = TokenLogProbability<'a>>,
    prompter: &Prompter,
) -> Box<RawValue> {
    #[derive(Serialize)]
    struct ChatLogProbabilities<'a> {
        content: Vec<ChatToken<'a>>,
        refusal: Option<()>,
    }
    let one = |token: TokenLogProbability<'_>| {
        let top = token.top.iter().map(|(token, value)| ChatToken::new(prompter, *token, *value)).collect();
        let own = ChatToken::new(prompter, token.token, token.log_probability.unwrap_or(f32::NEG_INFINITY));
        ChatToken { top_logprobs: Some(top), ..own }
    };
    raw_json(&ChatLogProbabilities { content: tokens.map(one).collect(), refusal: None })
}

/// The format of completions, as JSON text. `offset`: characters of the text so far; updated.
pub(crate) fn completion_log_probabilities<'a>(
    tokens: impl Iterator<Item = TokenLogProbability<'a>>,
    prompter: &Prompter,
    offset: &mut usize,
) -> Box<RawValue> {
    #[derive(Default, Serialize)]
    struct CompletionLogProbabilities {
        tokens: Vec<String>,
        token_logprobs: Vec<Option<f32>>,
        top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
        text_offset: Vec<usize>,
    }
    let mut logprobs = CompletionLogProbabilities::default();
    for token in tokens {
        let text = token_text(prompter, token.token);
        logprobs.text_offset.push(*offset);
        *offset += text.chars().count();
        logprobs.tokens.push(text);
        logprobs.token_logprobs.push(token.log_probability.map(json_number));
        let top = token.top.iter().map(|(token, value)| (token_text(prompter, *token), json_number(*value)));
        logprobs.top_logprobs.push(token.log_probability.map(|_| top.collect()));
    }
    raw_json(&logprobs)
}

fn raw_json(logprobs: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(logprobs).expect("numbers and strings can be serialized")
}
