//! A conversation in a model's own form.
//!
//! The whole conversation is written out by the model's chat template at every turn. What was computed for the turns
//! before, the model's own tokens included, stays its beginning as far as the template writes it again
//! ([`Transcript`]), so the engine finds the rows of these tokens in its cache, and only what is new is computed. What
//! the engine does not have to know about conversations it does not know. What people say is text and never a special
//! token. A conversation that has outgrown the context can only lose its oldest turns, as a whole: the rest is written
//! out and computed anew, because rows that moved to other places would be those of another text. Left out: tools.

mod saved;

use std::sync::Arc;

use foretoken_engine::Request;
use foretoken_text::{ChatInput, Message as ChatMessage, Thinking, ThinkingMarks, ThinkingReader, Transcript};

use crate::settings::DecidedSampling;
use crate::{Answer, Error, Prompter};
pub use saved::messages;

/// A conversation, and the means to write it out as a prompt. It needs no engine: it lives wherever its user is.
#[derive(Clone)]
pub struct Conversation {
    prompter: Arc<Prompter>,
    /// What is said to the model before the first turn.
    system: Option<String>,
    /// All that was said, oldest first. Who is given whole conversations, as a server is, sets it.
    pub messages: Vec<ChatMessage>,
    /// The prompt of the last request, and the answer to it if that is known.
    computed: Transcript,
    /// What the answer to the last request begins with, if the model can think.
    thinking: Option<(ThinkingMarks, Thinking)>,
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
        let prompter = Arc::clone(prompter);
        let mut conversation =
            Self { prompter, system, messages: Vec::new(), computed: Transcript::default(), thinking: None };
        conversation.clear();
        Ok(conversation)
    }

    /// What the model is told before.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Tells the model something else before, in the conversation so far too; nothing, if it is `None`.
    pub fn set_system(&mut self, system: Option<String>) {
        self.messages.retain(|message| message.role().as_deref() != Some("system"));
        let message = system.as_deref().map(|text| ChatMessage::new("system", text));
        self.messages.splice(0..0, message);
        self.system = system;
    }

    /// Goes on with another conversation instead. A first message of the system's is what the model is told before.
    pub fn resume(&mut self, messages: Vec<ChatMessage>) {
        let first = messages.first().filter(|message| message.role().as_deref() == Some("system"));
        self.system = first.and_then(ChatMessage::content);
        self.messages = messages;
        self.computed = Transcript::default();
    }

    /// The conversation as JSON, in OpenAI's form, which [`messages`] reads again.
    pub fn to_json(&self) -> String {
        saved::to_json(&self.messages)
    }

    /// Forgets the oldest turn: what the user said and all that followed up to what the user said next. What the model
    /// is told before stays, and so does the last turn. Returns how many messages are gone, none if there is only one
    /// turn.
    pub fn forget_oldest_turn(&mut self) -> usize {
        let is_user = |message: &ChatMessage| message.role().as_deref() == Some("user");
        let mut turns = self.messages.iter().enumerate().filter(|(_, message)| is_user(message)).map(|(at, _)| at);
        let (Some(first), Some(second)) = (turns.next(), turns.next()) else { return 0 };
        drop(turns);
        self.messages.drain(first..second);
        second - first
    }

    /// Forgets all but what the model is told before.
    pub fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| ChatMessage::new("system", text)).collect();
        self.computed = Transcript::default();
    }

    /// The user's turn.
    pub fn ask(&mut self, text: impl Into<String>) {
        self.messages.push(ChatMessage::new("user", text));
    }

    /// The model's turn.
    pub fn answer(&mut self, text: impl Into<String>) {
        self.messages.push(ChatMessage::new("assistant", text));
    }

    /// The model's turn, as it was written behind the last request: its tokens are kept. What it thought stands beside
    /// its answer (`reasoning_content`): whether later turns see it is the template's to say.
    pub fn answer_with(&mut self, answer: &Answer) {
        if let (Some(tokenizer), true) = (&self.prompter.tokenizer, answer.prompt == self.computed.tokens()) {
            self.computed.extend(tokenizer, &answer.ids());
        }
        let Some(mut reader) = self.thinking() else { return self.answer(answer.text.as_str()) };
        let (begun, ended) = (reader.push(&answer.text), reader.finish());
        self.answer(begun.answer + &ended.answer);
        let thoughts = begun.thoughts + &ended.thoughts;
        if !thoughts.is_empty() {
            let message = self.messages.pop().map(|message| message.with("reasoning_content", thoughts));
            self.messages.extend(message);
        }
    }

    /// Parts what the model thinks from its answer to the last request; `None` if it never thinks.
    pub fn thinking(&self) -> Option<ThinkingReader> {
        self.thinking.map(|(marks, thinking)| ThinkingReader::new(marks, thinking))
    }

    /// Takes the model's last turn back, so that it can be asked again; false if the last turn is not the model's. The
    /// request has the same prompt then.
    pub fn take_back_answer(&mut self) -> bool {
        let is_answer = self.messages.last().is_some_and(|last| last.role().as_deref() == Some("assistant"));
        if is_answer {
            self.messages.pop();
        }
        is_answer
    }

    /// The request for the model's next turn, by the generator's own settings. It ends with the turn as well as with
    /// the text, unless [end tokens are ignored](crate::settings::SamplingSettings::ignore_eos).
    ///
    /// # Errors
    /// The template cannot write the conversation out.
    pub fn request(&mut self) -> Result<Request, Error> {
        let prompter = Arc::clone(&self.prompter);
        self.request_by(&prompter.decided)
    }

    /// The same, by settings of its own ([`Prompter::decide`]).
    ///
    /// # Errors
    /// As [`Conversation::request`].
    pub fn request_by(&mut self, decided: &DecidedSampling) -> Result<Request, Error> {
        let input = ChatInput::new(&self.messages, true);
        let (request, computed) = self.prompter.chat_behind(&input, decided, &self.computed)?;
        self.computed = computed;
        self.thinking = self.prompter.thinking(&input, &request.prompt);
        Ok(request)
    }
}
