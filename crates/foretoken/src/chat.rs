//! A conversation in a model's own form.
//!
//! The whole conversation is written out by the model's chat template at every turn and computed again; what the engine
//! does not have to know about conversations it does not know. What people say is text and never a special token. Left
//! out: tools, and keeping the cache between turns.

use std::sync::Arc;

use foretoken_engine::Request;
use foretoken_text::{ChatInput, Message as ChatMessage};

use crate::settings::DecidedSampling;
use crate::{Error, Prompter};

/// A conversation, and the means to write it out as a prompt. It needs no engine: it lives wherever its user is.
#[derive(Clone)]
pub struct Conversation {
    prompter: Arc<Prompter>,
    /// What is said to the model before the first turn.
    system: Option<String>,
    /// All that was said, oldest first. Who is given whole conversations, as a server is, sets it.
    pub messages: Vec<ChatMessage>,
}

impl Conversation {
    /// A conversation with the target of a generator that nobody has begun yet. `system`: what the model is told
    /// before.
    ///
    /// # Errors
    /// The model has no tokenizer or no chat template.
    pub fn new(prompter: &Arc<Prompter>, system: Option<&str>) -> Result<Self, Error> {
        if prompter.tokenizer.is_none() {
            return Err(Error::input(prompter.target.missing_tokenizer()));
        }
        prompter.chat_template()?;
        let system = system.map(str::to_string);
        let mut conversation = Self { prompter: Arc::clone(prompter), system, messages: Vec::new() };
        conversation.clear();
        Ok(conversation)
    }

    /// Forgets all but what the model is told before.
    pub fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| ChatMessage::new("system", text)).collect();
    }

    /// The user's turn.
    pub fn ask(&mut self, text: impl Into<String>) {
        self.messages.push(ChatMessage::new("user", text));
    }

    /// The model's turn.
    pub fn answer(&mut self, text: impl Into<String>) {
        self.messages.push(ChatMessage::new("assistant", text));
    }

    /// The request for the model's next turn, by the generator's own settings. It ends with the turn as well as with
    /// the text, unless [end tokens are ignored](crate::settings::SamplingSettings::ignore_eos).
    ///
    /// # Errors
    /// The template cannot write the conversation out.
    pub fn request(&self) -> Result<Request, Error> {
        self.request_by(&self.prompter.decided)
    }

    /// The same, by settings of its own ([`Prompter::decide`]).
    ///
    /// # Errors
    /// As [`Conversation::request`].
    pub fn request_by(&self, decided: &DecidedSampling) -> Result<Request, Error> {
        self.prompter.chat(&ChatInput::new(&self.messages, true), decided)
    }
}
