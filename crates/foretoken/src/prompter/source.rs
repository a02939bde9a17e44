//! Requests of encoder-decoders: what the encoder reads, and how the decoder's text begins.
//!
//! A source ends with the tokenizer's end of a text, as transformers' tokenizers of such models add it. The decoder
//! begins with the token that the configuration names; a prompt continues it.

use foretoken_engine::Request;
use foretoken_speculation::Token;

use super::Prompter;
use crate::Error;
use crate::error::Message;
use crate::models::Opened;
use crate::prompts::{Prompt, without_tokenizer};
use crate::settings::DecidedSampling;

impl Prompter {
    /// Whether the target is an encoder-decoder, whose requests need a source ([`Prompter::request_with_source`]).
    pub fn has_encoder(&self) -> bool {
        self.target.spec.encoder.is_some()
    }

    /// A request of an encoder-decoder: its encoder reads `source`, and its text continues `prompt`, or begins if that
    /// is `None` or an empty text.
    ///
    /// # Errors
    /// The target has no encoder; or a text for a model without a tokenizer, an empty source, or a conversation.
    pub fn request_with_source(
        &self,
        source: &Prompt,
        prompt: Option<&Prompt>,
        decided: &DecidedSampling,
    ) -> Result<Request, Error> {
        check(&self.target, true)?;
        let start: Vec<Token> = self.target.spec.encoder.iter().map(|encoder| encoder.start).collect();
        let source = self.source_tokens(source)?;
        let after = match prompt {
            None => Vec::new(),
            Some(Prompt::Ids(ids)) => ids.strip_prefix(&start[..]).unwrap_or(ids).to_vec(),
            Some(Prompt::Text(text)) => self.tokens_of_half("prompt", text, false)?,
            Some(Prompt::Chat(_)) => return Err(self.no_turns()),
        };
        let prompt = [start, after].concat();
        let mut request = Request { prompt, source: Some(source.into()), ..self.base_request(decided) };
        self.constrain(&mut request, decided, None)?;
        Ok(request)
    }

    /// A request with one input, as lists of prompts and completions of the server have it: an encoder-decoder reads it
    /// as its source, any other model continues it.
    ///
    /// # Errors
    /// As [`Prompter::request_with_source`] or [`Prompter::request`].
    pub fn request_of_input(&self, input: &Prompt, decided: &DecidedSampling) -> Result<Request, Error> {
        match self.has_encoder() {
            true => self.request_with_source(input, None, decided),
            false => self.request_by(input, decided),
        }
    }

    /// The tokens of a source.
    fn source_tokens(&self, source: &Prompt) -> Result<Vec<Token>, Error> {
        let tokens = match source {
            Prompt::Ids(ids) => ids.clone(),
            Prompt::Text(text) => {
                let mut tokens = self.tokens_of_half("source", text, true)?;
                let ends = self.target.end_tokens(self.tokenizer.as_deref());
                let is_ended = tokens.last().is_none_or(|last| ends.contains(last));
                tokens.extend(ends.first().filter(|_| !is_ended).copied());
                tokens
            }
            Prompt::Chat(_) => return Err(self.no_turns()),
        };
        let empty = || Error::Input(Message::setting("source").and(": expected a text or tokens, found none"));
        if tokens.is_empty() { Err(empty()) } else { Ok(tokens) }
    }

    /// The tokens of a text of one half; none of an empty text.
    fn tokens_of_half(&self, what: &str, text: &str, adds_special: bool) -> Result<Vec<Token>, Error> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        self.check_bytes(what, text.len())?;
        let tokenizer = self.tokenizer.as_deref().ok_or_else(|| without_tokenizer(&self.target))?;
        Ok(tokenizer.encode(text, adds_special)?)
    }

    /// Encoder-decoders have no conversations.
    pub(super) fn no_turns(&self) -> Error {
        let name = &self.target.name;
        let found = "found an encoder-decoder, which reads a source and has no turns";
        Error::input(format!("{name}: chat: expected a model that continues conversations, {found}"))
    }
}

/// Checks that there is a source if and only if the model has an encoder.
///
/// # Errors
/// There is one for a model without an encoder, or none for one with.
pub(crate) fn check(model: &Opened, has_source: bool) -> Result<(), Error> {
    let name = &model.name;
    let problem = match (model.spec.encoder, has_source) {
        (None, true) => format!(": expected none, since {name} has no encoder that reads one, found one"),
        (Some(_), false) => {
            format!(": expected what the encoder of {name} is to read (a prompt begins its output), found none")
        }
        (None, false) | (Some(_), true) => return Ok(()),
    };
    Err(Error::setting("source", problem))
}
