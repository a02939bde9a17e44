//! Requests of batch files: bodies that are parsed, and answers that are written, without a connection.
//!
//! A line of OpenAI's batch files names a path of the API and has a request's body, and a line of their output has the
//! response. Both go through the code that serves the same body over HTTP, so a body means the same and gets the same
//! choices. What belongs to a connection is left out: keys, time limits, the queue's limit, and streams, which are
//! refused. The caller runs the requests, and reads and writes the files.

use std::fmt::Write as _;
use std::sync::Arc;

use foretoken::settings::SamplingSettings;
use foretoken::{Answer, Error, Generator, Prompt, Prompter, Request, RequestError};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::answer::{AnswerContext, RequestKind, complete};
use crate::apis;
use crate::error::{ApiError, shown};
use crate::fields::Fields;
use crate::limits::TextLimit;
use crate::models;
use crate::parse::RequestContext;
use crate::run::RequestRecord;
use crate::settings::ServerSettings;
use crate::shared::seconds_since_1970;

/// The response to a refused body: the status, and OpenAI's error object.
pub type Refusal = (u16, Value);

pub(crate) fn refusal(error: ApiError) -> Refusal {
    (error.status.as_u16(), error.object())
}

/// A request before its body is parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRequest {
    is_chat: bool,
    body: String,
}

impl BatchRequest {
    /// The request of a line in OpenAI's form: an object with `method`, `url` and `body`.
    ///
    /// # Errors
    /// It is no request for a completion or a chat: the field that is wrong, in one line.
    pub fn of_line(line: &str) -> Result<Self, String> {
        Self::of_fields(line).map_err(|error| error.message)
    }

    fn of_fields(line: &str) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(line.as_bytes())?;
        let method = fields.required_string("method")?;
        if method != "POST" {
            return Err(ApiError::field("method", format!("expected \"POST\", found {:?}", shown(&method))));
        }
        let url = fields.required_string("url")?;
        let is_chat = match url.strip_prefix("/v1").unwrap_or(&url) {
            "/chat/completions" => true,
            "/completions" => false,
            _ => {
                let expected = "expected /v1/chat/completions or /v1/completions";
                return Err(ApiError::field("url", format!("{expected}, found {:?}", shown(&url))));
            }
        };
        let body = fields.raw("body").ok_or_else(|| ApiError::field("body", "expected an object, found none"))?;
        Ok(Self { is_chat, body: body.get().to_string() })
    }

    /// The request for the answer to a prompt: for a chat if it is a conversation, else for a completion.
    pub fn of_prompt(prompt: &Prompt) -> Self {
        let body = match prompt {
            Prompt::Text(text) => json!({ "prompt": text }).to_string(),
            Prompt::Ids(ids) => json!({ "prompt": ids }).to_string(),
            Prompt::Chat(messages) => {
                let messages = serde_json::to_string(messages).expect("messages can be written");
                format!("{{\"messages\":{messages}}}")
            }
        };
        Self { is_chat: matches!(prompt, Prompt::Chat(_)), body }
    }

    /// The same request with fields of an object in its body as well, such as `max_tokens`: all but those of the prompt
    /// and those that are `left_out`.
    ///
    /// # Errors
    /// It is no object, or has a name twice: the field that is wrong, in one line.
    pub fn with_fields_of(mut self, object: &str, left_out: &[&str]) -> Result<Self, String> {
        let fields = Fields::of_body(object.as_bytes()).map_err(|error| error.message)?;
        self.body.truncate(self.body.len() - 1);
        for (name, value) in fields.into_values() {
            if !["prompt", "messages"].contains(&name.as_str()) && !left_out.contains(&name.as_str()) {
                let _ = write!(self.body, ",{}:{value}", Value::from(name));
            }
        }
        self.body.push('}');
        Ok(self)
    }
}

/// Parses bodies for one model, as a server of this model would.
pub struct Parser {
    pub(crate) prompter: Arc<Prompter>,
    pub(crate) limit: TextLimit,
    sampling: SamplingSettings,
    settings: Arc<ServerSettings>,
    /// The model's name in answers.
    model: String,
    /// Its further names in bodies.
    aliases: Vec<String>,
    /// A part of all ids, in seconds since 1970.
    created: u64,
}

/// A parsed body, while its requests run.
pub struct ParsedRequest {
    context: AnswerContext,
    records: Vec<RequestRecord>,
    /// The names of fields that are unknown, and ignored.
    pub unknown: Vec<String>,
}

/// What became of a line of a batch file.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It was answered, with this body of the response.
    Answered(String),
    /// The server would refuse its body, or all of its answers failed.
    Refused(Refusal),
    /// It is no request, for this reason.
    NoRequest(String),
}

impl Outcome {
    /// Whether there is no answer for a reason that lies in the machine and not in the line: the server would answer
    /// with a status from 500 up.
    pub fn is_failure_of_machine(&self) -> bool {
        matches!(self, Self::Refused((500.., _)))
    }

    /// Why there is no answer, if there is none.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::Answered(_) => None,
            Self::Refused((_, body)) => Some(body["error"]["message"].as_str().unwrap_or_default()),
            Self::NoRequest(why) => Some(why),
        }
    }
}

impl Parser {
    /// A parser of requests to this generator, whose sampling settings are the defaults. Of the server's settings it
    /// heeds the names of the model, the format of reasoning and the most answers to a request.
    pub fn new(generator: &Generator, settings: &ServerSettings) -> Self {
        let prompter = Arc::clone(&generator.prompter);
        let (limit, sampling) = (TextLimit::of(&prompter), prompter.decided.asked.clone());
        let (model, aliases) = models::names_of_first(settings, &prompter);
        let (settings, created) = (Arc::new(settings.clone()), seconds_since_1970());
        Self { prompter, limit, sampling, settings, model, aliases, created }
    }

    /// Parses a body, and makes the engine's requests for it. `line`: the number of its line, which becomes a part of
    /// its ids.
    ///
    /// # Errors
    /// A server would refuse the body, or stream the answer.
    pub fn parse(&self, request: &BatchRequest, line: u64) -> Result<(ParsedRequest, Vec<Request>), Refusal> {
        let BatchRequest { is_chat, body } = request;
        let (kind, requests, unknown) = self.parse_body(*is_chat, body.as_bytes()).map_err(refusal)?;
        if kind.options().stream.is_some() {
            return Err(refusal(ApiError::unsupported("stream", "expected false in a batch file, found true")));
        }
        let context = AnswerContext {
            prompter: Arc::clone(&self.prompter),
            settings: Arc::clone(&self.settings),
            model: self.model.clone(),
            id: format!("{}{}", kind.id_prefix(), self.request_id(line)),
            kind,
            created: seconds_since_1970(),
        };
        let records = requests.iter().map(|request| RequestRecord::of(request, false)).collect();
        Ok((ParsedRequest { context, records, unknown }, requests))
    }

    /// Parses a body. Also returns the names of its unknown fields.
    pub(crate) fn parse_body(
        &self,
        is_chat: bool,
        body: &[u8],
    ) -> Result<(RequestKind, Vec<Request>, Vec<String>), ApiError> {
        let mut fields = Fields::of_body(body)?;
        if let Some(name) = fields.string("model")?.filter(|name| !self.is_named(name)) {
            return Err(ApiError::model(&self.model, &name));
        }
        let Self { prompter, sampling, settings, limit, .. } = self;
        let context = RequestContext { prompter, sampling, settings, limit, key: 0 };
        let parsed = apis::parse_openai(is_chat, &context, &mut fields);
        let (kind, requests) = parsed.map_err(|error| error.renamed(&prompter.target.name, &self.model))?;
        Ok((kind, requests, fields.unknown()))
    }

    /// Whether a body that names this model is for this one.
    fn is_named(&self, name: &str) -> bool {
        let is_own = |name: &str| name == self.model || self.aliases.iter().any(|alias| alias == name);
        is_own(name) || name.strip_suffix(":latest").is_some_and(is_own) || is_own(models::ANY)
    }

    fn request_id(&self, line: u64) -> String {
        format!("{:x}-{line:x}", self.created)
    }

    /// The line of the output file, in OpenAI's form, with its line end.
    pub fn output_line(&self, line: u64, custom_id: &str, outcome: &Outcome) -> String {
        #[derive(Serialize)]
        struct Response<'a> {
            status_code: u16,
            request_id: &'a str,
            body: Box<RawValue>,
        }
        #[derive(Serialize)]
        struct LineError<'a> {
            code: &'static str,
            message: &'a str,
        }
        #[derive(Serialize)]
        struct OutputLine<'a> {
            id: String,
            custom_id: &'a str,
            response: Option<Response<'a>>,
            error: Option<LineError<'a>>,
        }
        let request_id = self.request_id(line);
        let response = |status_code: u16, body: String| Response {
            status_code,
            request_id: &request_id,
            body: RawValue::from_string(body).expect("it was written as JSON"),
        };
        let (response, error) = match outcome {
            Outcome::Answered(body) => (Some(response(200, body.clone())), None),
            Outcome::Refused((status, body)) => (Some(response(*status, body.to_string())), None),
            Outcome::NoRequest(message) => (None, Some(LineError { code: "invalid_request", message })),
        };
        let line = OutputLine { id: format!("batch_req_{request_id}"), custom_id, response, error };
        serde_json::to_string(&line).expect("strings and numbers can be serialized") + "\n"
    }
}

impl ParsedRequest {
    /// What becomes of the line once all its requests are answered: in their order. If the machine could not compute
    /// one of them, there is no answer, and the line can be tried again.
    pub fn answered(&self, answers: &[Answer]) -> Outcome {
        let failed = |(answer, record): (&Answer, &RequestRecord)| {
            Some(complete::failed(&self.context, answer.failure.as_deref()?, record.forbids))
        };
        let mut failures = answers.iter().zip(&self.records).filter_map(failed);
        if let Some(error) = failures.find(|error| error.status.is_server_error()) {
            return Outcome::Refused(refusal(error));
        }
        match complete::check(&self.context, &self.records, answers) {
            Ok(()) => Outcome::Answered(complete::object(&self.context, &self.records, None, answers)),
            Err(error) => Outcome::Refused(refusal(error)),
        }
    }

    /// What becomes of the line if the engine refuses one of its requests.
    pub fn refused(&self, error: RequestError) -> Outcome {
        Outcome::Refused(refusal(self.context.kind.attribute(ApiError::of(&Error::from(error)))))
    }
}
