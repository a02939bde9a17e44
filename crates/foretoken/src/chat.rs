//! A conversation in a model's own form.
//!
//! The whole conversation is written out by the model's chat template at every turn and computed again; what the engine
//! does not have to know about conversations it does not know. What people say is text and never a special token. Left
//! out: tools, and keeping the cache between turns.

use std::sync::Arc;

use foretoken_engine::Request;
use foretoken_speculation::Token;
use foretoken_text::{ChatInput, ChatTemplate, Message, Tokenizer};

use crate::{Error, Generator};

/// A conversation, and the means to write it out as a prompt.
pub struct Conversation {
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    /// What is said to the model before the first turn.
    system: Option<String>,
    /// All that was said, oldest first.
    pub messages: Vec<Message>,
    /// The tokens that end a turn besides those that end a text.
    turn_end_tokens: Vec<Token>,
}

impl Conversation {
    /// A conversation with the target of a generator that nobody has begun yet. `system`: what the model is told
    /// before.
    ///
    /// # Errors
    /// The model has no tokenizer or no chat template.
    pub fn new(generator: &Generator, system: Option<&str>) -> Result<Self, Error> {
        let target = &generator.target;
        let Some(tokenizer) = generator.tokenizer.clone() else {
            return Err(Error::input(target.missing_tokenizer()));
        };
        let template = target.chat_template()?.ok_or_else(|| {
            let without = "expected one to chat with, found none; generate goes on with a text without one";
            Error::input(format!("{}: chat template: {without}", target.name))
        })?;
        let ignore_eos = generator.decided.settings.ignore_eos;
        let turn_end_tokens = if ignore_eos { Vec::new() } else { tokenizer.turn_end_tokens().to_vec() };
        let system = system.map(str::to_string);
        let mut conversation = Self { tokenizer, template, system, messages: Vec::new(), turn_end_tokens };
        conversation.clear();
        Ok(conversation)
    }

    /// Forgets all but what the model is told before.
    pub fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| Message::new("system", text)).collect();
    }

    /// The user's turn.
    pub fn ask(&mut self, text: impl Into<String>) {
        self.messages.push(Message::new("user", text));
    }

    /// The model's turn.
    pub fn answer(&mut self, text: impl Into<String>) {
        self.messages.push(Message::new("assistant", text));
    }

    /// The request for the model's next turn, a copy of `base` otherwise.
    ///
    /// # Errors
    /// The template cannot write the conversation out.
    pub fn request(&self, base: &Request) -> Result<Request, Error> {
        let prompt = self.template.encode(&self.tokenizer, &ChatInput::new(&self.messages, true))?;
        let mut request = Request { prompt, ..base.clone() };
        request.sampling.end_tokens.extend_from_slice(&self.turn_end_tokens);
        Ok(request)
    }
}
