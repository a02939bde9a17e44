//! Log-probabilities in OpenAI's two forms: that of chats, and the older one of completions.
//!
//! They are those of the model's own law, before temperature and filters. Tokens are shown as the text of their bytes;
//! where that is no text (a part of a character), chats have the bytes too. Left out: the token that ended a text.

use std::collections::BTreeMap;

use foretoken::{Emitted, Prompter, Scored, Token};
use serde::Serialize;
use serde_json::value::RawValue;

/// A token with its log-probability, and with the most probable ones at its place.
pub(crate) struct Told<'a> {
    token: Token,
    /// `None` for the first token of a prompt.
    log_probability: Option<f32>,
    top: &'a [(Token, f32)],
}

impl<'a> Told<'a> {
    /// Those of these tokens that are part of the text.
    pub(crate) fn all(emitted: &'a [Emitted], end_tokens: &'a [Token]) -> impl Iterator<Item = Self> {
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

/// A token as text; where its bytes are none, as OpenAI writes them.
pub(crate) fn text_of(prompter: &Prompter, token: Token) -> String {
    let bytes = bytes(prompter, token);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => bytes.iter().fold("bytes:".to_string(), |text, byte| text + &format!("\\x{byte:02x}")),
    }
}

/// JSON has no infinity; OpenAI says -9999 for what is impossible.
fn number(log_probability: f32) -> f32 {
    log_probability.max(-9999.0)
}

/// A token in the form of chats.
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
        let (token, bytes) = (text_of(prompter, id), bytes(prompter, id));
        Self { token, id, logprob: number(log_probability), bytes, top_logprobs: None }
    }
}

/// The form of chats, as JSON: there may be much of it, so it is written at once.
pub(crate) fn of_chat<'a>(told: impl Iterator<Item = Told<'a>>, prompter: &Prompter) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Form<'a> {
        content: Vec<ChatToken<'a>>,
        refusal: Option<()>,
    }
    let one = |told: Told<'_>| {
        let top = told.top.iter().map(|(token, value)| ChatToken::new(prompter, *token, *value)).collect();
        let own = ChatToken::new(prompter, told.token, told.log_probability.unwrap_or(f32::NEG_INFINITY));
        ChatToken { top_logprobs: Some(top), ..own }
    };
    written(&Form { content: told.map(one).collect(), refusal: None })
}

/// The form of completions, as JSON. `offset`: characters of the text before; moved on.
pub(crate) fn of_completion<'a>(
    told: impl Iterator<Item = Told<'a>>,
    prompter: &Prompter,
    offset: &mut usize,
) -> Box<RawValue> {
    #[derive(Default, Serialize)]
    struct Form {
        tokens: Vec<String>,
        token_logprobs: Vec<Option<f32>>,
        top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
        text_offset: Vec<usize>,
    }
    let mut form = Form::default();
    for told in told {
        let text = text_of(prompter, told.token);
        form.text_offset.push(*offset);
        *offset += text.chars().count();
        form.tokens.push(text);
        form.token_logprobs.push(told.log_probability.map(number));
        let top = told.top.iter().map(|(token, value)| (text_of(prompter, *token), number(*value)));
        form.top_logprobs.push(told.log_probability.map(|_| top.collect()));
    }
    written(&form)
}

fn written(form: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(form).expect("numbers and texts can be written")
}
