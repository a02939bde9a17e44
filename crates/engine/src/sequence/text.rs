//! The tokens of a sequence and their text.
//!
//! Only emitted tokens change this state, so nothing is undone when a draft is rejected or rows are computed again.

use foretoken_speculation::Token;
use foretoken_text::{StopMatcher, TextStream};

use crate::request::Request;

/// The tokens of a sequence, prompt included, and the detokenizer of those that were emitted.
pub(crate) struct SequenceText {
    pub(crate) tokens: Vec<Token>,
    /// The number of tokens at which the sequence ends.
    pub(crate) limit: usize,
    stream: Option<TextStream>,
    stop: StopMatcher,
    has_stops: bool,
}

/// The text that a token completes.
pub(super) struct Completed {
    pub(super) text: String,
    /// The stop string that was found, if any.
    pub(super) stopped_by: Option<String>,
}

impl SequenceText {
    pub(super) fn new(request: &Request, context: usize) -> Self {
        let prompt_len = request.prompt.len();
        let stream = request.tokenizer.as_ref().map(|tokenizer| {
            let stream = TextStream::new(tokenizer.clone(), &request.prompt).skip_special(!request.special);
            stream.show_special(request.shown_special.clone())
        });
        Self {
            tokens: request.prompt.clone(),
            limit: request.tokens_max.map_or(context, |tokens| context.min(prompt_len.saturating_add(tokens))),
            stream,
            stop: StopMatcher::new(request.stop.clone()),
            has_stops: !request.stop.is_empty(),
        }
    }

    /// The text of these generated tokens of a request, up to a stop string.
    pub(super) fn whole(request: &Request, tokens: &[Token]) -> String {
        let mut text = Self::new(request, usize::MAX);
        let mut whole = String::new();
        for token in tokens {
            let completed = text.complete(*token);
            whole.push_str(&completed.text);
            if completed.stopped_by.is_some() {
                return whole;
            }
        }
        whole + &text.release_held()
    }

    /// The detokenizer and the stop strings at the beginning of the output, for the hypotheses of a beam search; `None`
    /// without stop strings.
    pub(super) fn searched(&self) -> Option<(TextStream, StopMatcher)> {
        self.stream.clone().filter(|_| self.has_stops).map(|stream| (stream, self.stop.clone()))
    }

    /// Tokens that may still be emitted.
    pub(crate) fn tokens_left(&self) -> usize {
        self.limit - self.tokens.len()
    }

    /// Adds an emitted token and returns the text that it completes.
    pub(super) fn complete(&mut self, token: Token) -> Completed {
        let Some(stream) = &mut self.stream else { return Completed { text: String::new(), stopped_by: None } };
        let pushed = self.stop.push(&stream.push(token));
        let stopped_by = pushed.stopped.then(|| self.stop.matched().map(str::to_string)).flatten();
        Completed { text: pushed.text, stopped_by }
    }

    /// The text that was held back, for a sequence that no stop string has ended.
    pub(super) fn release_held(&mut self) -> String {
        let Some(stream) = &self.stream else { return String::new() };
        let rest = self.stop.push(stream.finish());
        format!("{}{}", rest.text, self.stop.finish())
    }
}
