//! A conversation, rendered by a model's chat template.
//!
//! The template renders the whole conversation at every turn. The tokens of earlier turns, including the model's own,
//! stay a prefix of the prompt as long as the template writes the same text for them ([`Transcript`]), so the engine
//! finds their rows in its prefix cache and computes only the new ones. The text of users is never a special token. If
//! a conversation exceeds the context window, its oldest turns can be dropped; the rest is then computed again, since
//! cached rows depend on their positions.

mod saved;

use std::sync::Arc;

use foretoken_engine::Request;
use foretoken_text::{ChatInput, Message as ChatMessage, Thinking, ThinkingReader, ThinkingTags, Transcript};

use crate::settings::DecidedSampling;
use crate::{Answer, Error, Prompter};
pub use saved::messages;

/// A conversation, which creates the request for its next turn. It needs no engine and can be on any thread.
#[derive(Clone)]
pub struct Conversation {
    prompter: Arc<Prompter>,
    /// The system prompt.
    system: Option<String>,
    /// All messages, oldest first. A server, which receives whole conversations, replaces them.
    pub messages: Vec<ChatMessage>,
    /// The tokens of the last request's prompt, and of the answer to it once that is known.
    transcript: Transcript,
    /// Whether the answer to the last request begins with thinking, if the model can think.
    thinking: Option<(ThinkingTags, Thinking)>,
}

impl Conversation {
    /// An empty conversation with a generator's target. `system`: the system prompt.
    ///
    /// # Errors
    /// The model has no tokenizer or no chat template.
    pub fn new(prompter: &Arc<Prompter>, system: Option<&str>) -> Result<Self, Error> {
        if prompter.tokenizer.is_none() {
            return Err(Error::input(prompter.target.missing_tokenizer()));
        }
        prompter.chat_template()?;
        let system = system.map(str::to_string);
        let prompter = Arc::clone(prompter);
        let mut conversation =
            Self { prompter, system, messages: Vec::new(), transcript: Transcript::default(), thinking: None };
        conversation.clear();
        Ok(conversation)
    }

    /// The system prompt.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Replaces the system prompt, also in the messages so far; `None` removes it.
    pub fn set_system(&mut self, system: Option<String>) {
        self.messages.retain(|message| message.role().as_deref() != Some("system"));
        let message = system.as_deref().map(|text| ChatMessage::new("system", text));
        self.messages.splice(0..0, message);
        self.system = system;
    }

    /// Replaces the conversation by another one. If the first message has the role `system`, it is the system prompt.
    pub fn resume(&mut self, messages: Vec<ChatMessage>) {
        let first = messages.first().filter(|message| message.role().as_deref() == Some("system"));
        self.system = first.and_then(ChatMessage::content);
        self.messages = messages;
        self.transcript = Transcript::default();
    }

    /// The conversation as JSON, in OpenAI's format, which [`messages`] parses.
    pub fn to_json(&self) -> String {
        saved::to_json(&self.messages)
    }

    /// Drops the oldest turn: a user's message and all that follow up to the next one. The system prompt and the last
    /// turn are kept. Returns how many messages were dropped, 0 if there is only one turn.
    pub fn forget_oldest_turn(&mut self) -> usize {
        let is_user = |message: &ChatMessage| message.role().as_deref() == Some("user");
        let mut turns = self.messages.iter().enumerate().filter(|(_, message)| is_user(message)).map(|(at, _)| at);
        let (Some(first), Some(second)) = (turns.next(), turns.next()) else { return 0 };
        drop(turns);
        self.messages.drain(first..second);
        second - first
    }

    /// Drops all messages but the system prompt.
    pub fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| ChatMessage::new("system", text)).collect();
        self.transcript = Transcript::default();
    }

    /// Adds the user's turn.
    pub fn ask(&mut self, text: impl Into<String>) {
        self.messages.push(ChatMessage::new("user", text));
    }

    /// Adds the model's turn.
    pub fn answer(&mut self, text: impl Into<String>) {
        self.messages.push(ChatMessage::new("assistant", text));
    }

    /// Adds the answer to the last request as the model's turn and keeps its tokens. The thoughts are stored in their
    /// own field (`reasoning_content`); the template decides whether later prompts include them.
    pub fn answer_with(&mut self, answer: &Answer) {
        if let (Some(tokenizer), true) = (&self.prompter.tokenizer, answer.prompt == self.transcript.tokens()) {
            self.transcript.extend(tokenizer, &answer.ids());
        }
        let Some(mut reader) = self.thinking() else { return self.answer(answer.text.as_str()) };
        let (text, rest) = (reader.push(&answer.text), reader.finish());
        self.answer(text.answer + &rest.answer);
        let thoughts = text.thoughts + &rest.thoughts;
        if !thoughts.is_empty() {
            let message = self.messages.pop().map(|message| message.with("reasoning_content", thoughts));
            self.messages.extend(message);
        }
    }

    /// A reader that separates the thoughts from the answer to the last request; `None` if the model never thinks.
    pub fn thinking(&self) -> Option<ThinkingReader> {
        self.thinking.map(|(tags, thinking)| ThinkingReader::new(tags, thinking))
    }

    /// Removes the model's last turn, so that the same prompt can be requested again; false if the last turn is not the
    /// model's.
    pub fn take_back_answer(&mut self) -> bool {
        let is_answer = self.messages.last().is_some_and(|last| last.role().as_deref() == Some("assistant"));
        if is_answer {
            self.messages.pop();
        }
        is_answer
    }

    /// The request for the model's next turn, with the generator's own settings. It ends at an end-of-turn token as
    /// well as at the end of the text, unless [end tokens are ignored](crate::settings::SamplingSettings::ignore_eos).
    ///
    /// # Errors
    /// The template cannot render the conversation.
    pub fn request(&mut self) -> Result<Request, Error> {
        let prompter = Arc::clone(&self.prompter);
        self.request_by(&prompter.decided)
    }

    /// As [`Conversation::request`], with sampling parameters of its own ([`Prompter::decide`]).
    ///
    /// # Errors
    /// As [`Conversation::request`].
    pub fn request_by(&mut self, decided: &DecidedSampling) -> Result<Request, Error> {
        let input = ChatInput::new(&self.messages, true);
        let (request, transcript) = self.prompter.chat_after(&input, decided, &self.transcript)?;
        self.transcript = transcript;
        self.thinking = self.prompter.thinking(&input, &request.prompt);
        Ok(request)
    }
}
