//! Parses request bodies without a server, for fuzz targets and tests that parse many.
//!
//! This module exists only with the feature `fuzzing`, which no program turns on. Errors of the engine itself do not
//! occur here.

use foretoken::{Generator, Request};
use serde_json::Value;

pub use crate::batch::Refusal;
use crate::batch::{Parser, refusal};
use crate::fields::Fields;
use crate::models::ANY;
use crate::settings::ServerSettings;
use crate::tokens;

/// A parser of request bodies.
pub struct Reader(Parser);

impl Reader {
    /// A parser of requests to this generator, under any name of its model.
    pub fn new(generator: &Generator, settings: &ServerSettings) -> Self {
        let settings = ServerSettings { aliases: vec![ANY.to_string()], ..settings.clone() };
        Self(Parser::new(generator, &settings))
    }

    /// The engine's requests for a body at `/v1/completions` or `/v1/chat/completions`.
    ///
    /// # Errors
    /// The server would refuse the body.
    pub fn requests(&self, is_chat: bool, body: &[u8]) -> Result<Vec<Request>, Refusal> {
        self.0.parse_body(is_chat, body).map(|(_, requests, _)| requests).map_err(refusal)
    }

    /// The answer to a body at `/tokenize` or, if `is_detokenize`, at `/detokenize`.
    ///
    /// # Errors
    /// The server would refuse the body.
    pub fn tokens(&self, is_detokenize: bool, body: &[u8]) -> Result<Value, Refusal> {
        let mut fields = Fields::of_body(body).map_err(refusal)?;
        let answer = match is_detokenize {
            true => tokens::detokenize(&mut fields, &self.0.prompter),
            false => tokens::tokenize(&mut fields, &self.0.prompter, &self.0.limit),
        };
        answer.map_err(refusal)
    }
}
