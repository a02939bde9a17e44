//! Prompts: texts, token ids, and conversations for the model's next turn.
//!
//! The special tokens that the model expects, usually the beginning-of-text token, are added to a text; an empty text
//! becomes that token alone. Conversations of several turns are in [`Conversation`](crate::Conversation).

use foretoken_speculation::Token;
use foretoken_text::{Message as ChatMessage, Tokenizer};

use crate::Error;
use crate::error::Message;
use crate::models::Opened;

/// A prompt before it is tokenized.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Token ids as they are.
    Ids(Vec<Token>),
    /// A conversation, oldest message first, which the chat template renders for the model's next turn.
    Chat(Vec<ChatMessage>),
}

/// The error if text is needed and the model has no tokenizer.
pub fn without_tokenizer(model: &Opened) -> Error {
    let words = Message::words(format!("{}; without one, give ", model.missing_tokenizer()));
    Error::Input(words.and_setting("prompt_ids").and(" and ").and_setting("output_ids"))
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_string())
    }
}

impl From<Vec<Token>> for Prompt {
    fn from(tokens: Vec<Token>) -> Self {
        Self::Ids(tokens)
    }
}

impl From<&Prompt> for Prompt {
    fn from(prompt: &Prompt) -> Self {
        prompt.clone()
    }
}

impl Prompt {
    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// The tokens of a text prompt.
///
/// # Errors
/// The model has no tokenizer, or the text is empty and it has no beginning-of-text token.
pub(crate) fn text_tokens(text: &str, model: &Opened, tokenizer: Option<&Tokenizer>) -> Result<Vec<Token>, Error> {
    let tokenizer = tokenizer.ok_or_else(|| without_tokenizer(model))?;
    if !text.is_empty() {
        return Ok(tokenizer.encode(text, true)?);
    }
    let missing = || format!("{}: prompt: expected a text (the model has no beginning-of-text token)", model.name);
    let beginning = model.beginning(Some(tokenizer)).ok_or_else(|| Error::input(missing() + ", found an empty one"))?;
    Ok(vec![beginning])
}
