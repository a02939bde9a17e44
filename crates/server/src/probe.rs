//! Parses request bodies without a server, for fuzzers and other tests that parse many.
//!
//! It is not part of the documented interface. Errors of the engine itself do not occur here.

use std::sync::Arc;

use foretoken::{Generator, Prompter, Request};
use serde_json::Value;

use crate::answer::RequestKind;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::TextLimit;
use crate::parse::RequestContext;
use crate::settings::ServerSettings;
use crate::tokens;

/// A parser of request bodies.
pub struct Reader {
    prompter: Arc<Prompter>,
    settings: ServerSettings,
    sampling: foretoken::settings::SamplingSettings,
    limit: TextLimit,
}

/// The response to a refused body: the status, and OpenAI's error object.
pub type Refusal = (u16, Value);

impl Reader {
    /// A parser of requests to this generator.
    pub fn new(generator: &Generator, settings: &ServerSettings) -> Self {
        let prompter = Arc::clone(&generator.prompter);
        let (limit, sampling) = (TextLimit::of(&prompter), prompter.decided.asked.clone());
        Self { prompter, settings: settings.clone(), sampling, limit }
    }

    /// The engine's requests for a body at `/v1/completions` or `/v1/chat/completions`.
    ///
    /// # Errors
    /// The server would refuse the body.
    pub fn requests(&self, is_chat: bool, body: &[u8]) -> Result<Vec<Request>, Refusal> {
        let parse = || {
            let mut fields = Fields::of_body(body)?;
            fields.string("model")?;
            let Self { prompter, sampling, settings, limit } = self;
            let (_, requests) = RequestKind::parse(
                is_chat,
                &mut fields,
                &RequestContext { prompter, sampling, settings, limit, key: 0 },
            )?;
            Ok(requests)
        };
        parse().map_err(refusal)
    }

    /// The answer to a body at `/tokenize` or, if `is_detokenize`, at `/detokenize`.
    ///
    /// # Errors
    /// The server would refuse the body.
    pub fn tokens(&self, is_detokenize: bool, body: &[u8]) -> Result<Value, Refusal> {
        let mut fields = Fields::of_body(body).map_err(refusal)?;
        let answer = match is_detokenize {
            true => tokens::detokenize(&mut fields, &self.prompter),
            false => tokens::tokenize(&mut fields, &self.prompter, &self.limit),
        };
        answer.map_err(refusal)
    }
}

fn refusal(error: ApiError) -> Refusal {
    (error.status.as_u16(), error.object())
}
