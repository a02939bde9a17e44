//! Log-probabilities in OpenAI's two forms: that of chats, and the older one of completions.
//!
//! They are those of the model's own law, before temperature and filters. Tokens are shown as the text of their bytes;
//! where that is no text (a part of a character), chats have the bytes too. Left out: the token that ended a text.

use foretoken::{Emitted, Prompter, Scored, Token};
use serde_json::{Map, Value, json};

/// A token with its log-probability, and with the most probable ones at its place.
pub(crate) struct Told<'a> {
    token: Token,
    /// `None` for the first token of a prompt.
    log_probability: Option<f32>,
    top: &'a [(Token, f32)],
}

impl<'a> Told<'a> {
    pub(crate) fn emitted(emitted: &'a Emitted) -> Self {
        Self { token: emitted.token, log_probability: emitted.log_probability, top: &emitted.top }
    }

    pub(crate) fn scored(scored: &'a Scored) -> Self {
        Self { token: scored.token, log_probability: scored.log_probability, top: &scored.top }
    }
}

fn bytes(prompter: &Prompter, token: Token) -> &[u8] {
    prompter.tokenizer.as_deref().map_or(&[], |tokenizer| tokenizer.token_bytes(token))
}

/// A token as text.
pub(crate) fn text_of(prompter: &Prompter, token: Token) -> String {
    String::from_utf8_lossy(bytes(prompter, token)).into_owned()
}

/// JSON has no infinity; OpenAI says -9999 for what is impossible.
fn number(log_probability: f32) -> Value {
    json!(log_probability.max(-9999.0))
}

/// The form of chats.
pub(crate) fn of_chat<'a>(told: impl Iterator<Item = Told<'a>>, prompter: &Prompter) -> Value {
    let one = |token: Token, log_probability: f32| {
        json!({
            "token": text_of(prompter, token),
            "id": token,
            "logprob": number(log_probability),
            "bytes": bytes(prompter, token),
        })
    };
    let content = told.map(|told| {
        let mut object = one(told.token, told.log_probability.unwrap_or(f32::NEG_INFINITY));
        let top: Vec<Value> = told.top.iter().map(|(token, value)| one(*token, *value)).collect();
        object["top_logprobs"] = Value::Array(top);
        object
    });
    json!({ "content": content.collect::<Vec<Value>>(), "refusal": null })
}

/// The form of completions. `offset`: characters of the text before; moved on.
pub(crate) fn of_completion<'a>(
    told: impl Iterator<Item = Told<'a>>,
    prompter: &Prompter,
    offset: &mut usize,
) -> Value {
    let (mut tokens, mut values, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for told in told {
        let text = text_of(prompter, told.token);
        offsets.push(json!(*offset));
        *offset += text.chars().count();
        tokens.push(json!(text));
        values.push(told.log_probability.map_or(Value::Null, number));
        let top = told.top.iter().map(|(token, value)| (text_of(prompter, *token), number(*value)));
        let top: Map<String, Value> = top.collect();
        tops.push(if told.log_probability.is_none() { Value::Null } else { Value::Object(top) });
    }
    json!({ "tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets })
}
