//! Bodies of requests read without a server, for tests that read many: fuzzers above all.
//!
//! Nobody else needs it, so it is not part of the documented interface. Left out: what the engine itself refuses.

use std::sync::Arc;

use foretoken::{Generator, Prompter, Request};
use serde_json::Value;

use crate::answer::{Kind, Reading};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::TextLimit;
use crate::settings::ServerSettings;
use crate::tokens;

/// What reading a body needs.
pub struct Reader {
    prompter: Arc<Prompter>,
    settings: ServerSettings,
    sampling: foretoken::settings::SamplingSettings,
    limit: TextLimit,
}

/// A body that is refused: the status, and OpenAI's object.
pub type Refusal = (u16, Value);

impl Reader {
    /// A reader of requests to this generator.
    pub fn new(generator: &Generator, settings: &ServerSettings) -> Self {
        let prompter = Arc::clone(&generator.prompter);
        let (limit, sampling) = (TextLimit::of(&prompter), prompter.decided.asked.clone());
        Self { prompter, settings: settings.clone(), sampling, limit }
    }

    /// The requests that a body at `/v1/completions` or `/v1/chat/completions` asks for.
    ///
    /// # Errors
    /// What the server would answer instead.
    pub fn requests(&self, is_chat: bool, body: &[u8]) -> Result<Vec<Request>, Refusal> {
        let read = || {
            let mut fields = Fields::of_body(body)?;
            fields.text("model")?;
            let Self { prompter, sampling, settings, limit } = self;
            let (_, requests) =
                Kind::read(is_chat, &mut fields, &Reading { prompter, sampling, settings, limit, key: 0 })?;
            Ok(requests)
        };
        read().map_err(refusal)
    }

    /// What a body at `/tokenize` is answered with, or one at `/detokenize`.
    ///
    /// # Errors
    /// What the server would answer instead.
    pub fn tokens(&self, is_back: bool, body: &[u8]) -> Result<Value, Refusal> {
        let mut fields = Fields::of_body(body).map_err(refusal)?;
        let answer = match is_back {
            true => tokens::detokenize(&mut fields, &self.prompter),
            false => tokens::tokenize(&mut fields, &self.prompter, &self.limit),
        };
        answer.map_err(refusal)
    }
}

fn refusal(error: ApiError) -> Refusal {
    (error.status.as_u16(), error.object())
}
