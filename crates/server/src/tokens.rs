//! `/tokenize`, `/detokenize` and `/tokenizer_info`, with the fields of llama.cpp and vLLM.

use foretoken::{Prompter, Token, Tokenizer};
use serde_json::{Value, json};

use crate::answer::log_probabilities::token_text;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::TextLimit;

fn tokenizer(prompter: &Prompter) -> Result<&Tokenizer, ApiError> {
    let missing = || ApiError::bad(prompter.target.missing_tokenizer());
    prompter.tokenizer.as_deref().ok_or_else(missing)
}

/// A token's text, if there are a token and a tokenizer; invalid UTF-8 is replaced.
pub(crate) fn lossy_token_text(prompter: &Prompter, token: Option<Token>) -> Option<String> {
    let tokenizer = prompter.tokenizer.as_deref()?;
    token.map(|token| String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned())
}

/// The tokenizer's properties, as in vLLM: lm-evaluation-harness reads its end token and chat template there.
pub(crate) fn info(prompter: &Prompter) -> Result<Value, ApiError> {
    let tokenizer = tokenizer(prompter)?;
    let end = lossy_token_text(prompter, tokenizer.end_tokens().first().copied());
    Ok(json!({
        "tokenizer_class": "Tokenizer",
        "vocab_size": tokenizer.vocabulary_len(),
        "model_max_length": prompter.context,
        "bos_token": lossy_token_text(prompter, tokenizer.bos()),
        "eos_token": end,
        "pad_token": end,
        "add_bos_token": tokenizer.adds_bos(),
        "chat_template": prompter.chat_template().ok().map(|template| template.source()),
    }))
}

/// The tokens of a text.
pub(crate) fn tokenize(fields: &mut Fields, prompter: &Prompter, limit: &TextLimit) -> Result<Value, ApiError> {
    fields.rename("prompt", "content")?;
    fields.rename("add_special_tokens", "add_special")?;
    let text = fields.string("content")?;
    let text = text.ok_or_else(|| ApiError::field("content", "expected a string (also: prompt), found none"))?;
    let add_special = fields.boolean("add_special")?.unwrap_or(false);
    let parse_special = fields.boolean("parse_special")?.unwrap_or(true);
    let with_pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    // Up to four times the context is tokenized: a client may want to know by how much a text is too long.
    limit.check_times(4, "content", text.len())?;
    let tokenizer = tokenizer(prompter)?;
    let tokens = match (parse_special, add_special) {
        (true, _) => tokenizer.encode(&text, add_special),
        (false, false) => tokenizer.encode_plain(&text),
        (false, true) => {
            let expected = "expected true beside \"add_special\": true, found false";
            return Err(ApiError::field("parse_special", expected));
        }
    };
    let tokens = tokens.map_err(|error| ApiError::of(&error.into()))?;
    let count = tokens.len();
    let tokens: Value = match with_pieces {
        true => tokens.iter().map(|token| json!({ "id": token, "piece": token_text(prompter, *token) })).collect(),
        false => json!(tokens),
    };
    Ok(json!({ "tokens": tokens, "count": count, "max_model_len": prompter.context }))
}

/// The text of tokens.
pub(crate) fn detokenize(fields: &mut Fields, prompter: &Prompter) -> Result<Value, ApiError> {
    let tokens: Option<Vec<Token>> = fields.take("tokens", "a list of tokens")?;
    let tokens = tokens.ok_or_else(|| ApiError::field("tokens", "expected a list of tokens, found none"))?;
    let tokens_max = 4 * prompter.context;
    if tokens.len() > tokens_max {
        return Err(ApiError::field(
            "tokens",
            format!("expected at most {tokens_max} of them, found {}", tokens.len()),
        ));
    }
    let vocabulary = prompter.target.spec.vocabulary;
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
        let expected = format!("expected tokens below {vocabulary} (the vocabulary), found {token}");
        return Err(ApiError::field("tokens", expected));
    }
    let text = tokenizer(prompter)?.decode(&tokens, false);
    Ok(json!({ "content": text, "prompt": text }))
}
