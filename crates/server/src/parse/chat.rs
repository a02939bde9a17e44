//! `/v1/chat/completions`: the model's next turn in a conversation.
//!
//! Messages are rendered by the model's own chat template, as in transformers. So that templates accept the messages of
//! OpenAI's clients, text parts are joined, the arguments of earlier calls become objects, and the role `developer` is
//! replaced by `system`. Images and audio are not supported.

use foretoken::{
    ChatInput, ChatMessage, Error, Json, Prompter, Request, ThinkingReader, ToolCallReader, ToolFormat, n_best,
};
use serde_json::Value;

use super::tools::Tools;
use super::{RequestOptions, TOP_LOG_PROBABILITIES_MAX, beams};
use crate::error::{ApiError, shown};
use crate::fields::{Fields, READABLE};
use crate::limits::TextLimit;
use crate::settings::{ReasoningFormat, ServerSettings};

/// A chat request.
#[derive(Clone, Debug)]
pub(crate) struct ChatRequest {
    pub(crate) options: RequestOptions,
    pub(crate) input: ChatInput,
    tools: Tools,
    /// Parses tool calls, if the request has tools; each answer has a copy.
    pub(crate) reader: Option<ToolCallReader>,
    /// Separates the reasoning from the answer, if the model reasons and the request does not want both as one text;
    /// each answer has a copy.
    pub(crate) thinking: Option<ThinkingReader>,
    reasoning_format: ReasoningFormat,
    /// Bytes of the template's input.
    bytes: usize,
}

impl ChatRequest {
    /// Parses the fields that only chats have.
    pub(crate) fn parse(
        fields: &mut Fields,
        mut options: RequestOptions,
        limits: &ServerSettings,
    ) -> Result<Self, ApiError> {
        let messages = fields
            .raw("messages")
            .ok_or_else(|| ApiError::field("messages", "expected a list of at least one message, found none"))?;
        let mut bytes = messages.get().len();
        let messages = parse_messages(messages.get())?;
        let tools = Tools::parse(fields, &mut bytes)?;
        if let (Some(guided), true) = (&options.guided, tools.json.is_some()) {
            let why = "calls have a grammar of their own; \"tool_choice\": \"none\" omits it";
            return Err(ApiError::unsupported(guided.field(), format!("expected none beside tools, found one: {why}")));
        }
        let wants_log_probabilities = fields.boolean("logprobs")?.unwrap_or(false);
        let tops = fields.count("top_logprobs", 0, TOP_LOG_PROBABILITIES_MAX)?;
        if !wants_log_probabilities && tops.is_some_and(|tops| tops > 0) {
            return Err(ApiError::field("top_logprobs", "expected \"logprobs\": true beside it, found none"));
        }
        options.log_probabilities = wants_log_probabilities.then(|| tops.unwrap_or(0));
        for name in ["echo", "prompt"] {
            if fields.has(name) {
                return Err(ApiError::field(name, "expected none beside messages, found some"));
            }
        }
        let continues_message = fields.boolean("continue_final_message")?.unwrap_or(false);
        let adds_prompt = fields.boolean("add_generation_prompt")?.unwrap_or(!continues_message);
        if continues_message && adds_prompt {
            let expected = "expected false beside \"continue_final_message\": true, found true";
            return Err(ApiError::field("add_generation_prompt", expected));
        }
        bytes += fields.byte_len("documents") + fields.byte_len("chat_template_kwargs");
        let documents = fields.raw("documents").map(|documents| parse_documents(documents.get())).transpose()?;
        let mut input = ChatInput::new(&messages, adds_prompt);
        input.continue_final_message = continues_message;
        input.tools.clone_from(&tools.json);
        input.documents = documents;
        input.variables = parse_variables(fields)?;
        let reasoning_format = match fields.string("reasoning_format")? {
            None => limits.reasoning_format,
            Some(name) => ReasoningFormat::of_name(&name).ok_or_else(|| {
                let expected = format!("expected auto, deepseek or none, found {:?}", shown(&name));
                ApiError::field("reasoning_format", expected)
            })?,
        };
        Ok(Self { options, input, tools, reader: None, thinking: None, reasoning_format, bytes })
    }

    /// The requests for all answers.
    pub(crate) fn requests(
        &mut self,
        prompter: &Prompter,
        key: u64,
        limit: &TextLimit,
    ) -> Result<Vec<Request>, ApiError> {
        limit.check("messages", self.bytes)?;
        let format = self.format(prompter);
        if self.input.tools.is_some() && prompter.chat_template().is_ok() && format.is_none() {
            let why = "the model's chat template does not support tools";
            if self.tools.are_binding() {
                return Err(ApiError::unsupported("tools", format!("expected none, found some: {why}")));
            }
            // Agents send tools to every model.
            self.input.tools = None;
            self.options.warnings.push(format!("tools: left out, {why}"));
        }
        let mut decided = self.options.decide(prompter)?;
        if let Some(format) = format
            && let Some(grammar) = self.tools.grammar(format, prompter)?
        {
            if decided.settings.has_beams() {
                let expected = format!("expected none whose calls are constrained beside {}", beams::FIELD);
                return Err(ApiError::unsupported("tools", format!("{expected}, found some")));
            }
            if decided.settings.ignore_eos {
                let expected = "expected end tokens, beside tools whose calls are constrained, found none";
                return Err(ApiError::field("ignore_eos", expected));
            }
            decided.grammar = Some(grammar);
        }
        if let (Some(tops), None) = (self.options.log_probabilities, self.options.stream) {
            limit.check_log_probabilities(self.options.best_of, self.options.sampling.tokens_max.0, tops)?;
        }
        let mut request = prompter.chat(&self.input, &decided).map_err(|error| match &error {
            Error::Setting(_) => self.options.attribute(ApiError::of(&error)),
            _ => template_error(&error),
        })?;
        limit.check_tokens("messages", request.prompt.len())?;
        self.options.complete(prompter, key, limit, &mut request)?;
        if let (Some(format), Some(tokenizer), Some(tools)) = (format, &prompter.tokenizer, &self.input.tools) {
            self.reader = Some(ToolCallReader::new(format, tools));
            let delimiters = tokenizer.special_tokens(format.delimiters());
            request.shown_special = request.shown_special.iter().copied().chain(delimiters).collect();
        }
        let thinking = prompter.thinking(&self.input, &request.prompt);
        let thinking = thinking.filter(|_| self.reasoning_format != ReasoningFormat::None);
        self.thinking = thinking.map(|(tags, thinking)| ThinkingReader::new(tags, thinking));
        Ok(n_best(&request, self.options.best_of))
    }

    /// Maximum number of calls of an answer that are returned.
    pub(crate) fn calls_max(&self) -> usize {
        if self.tools.parallel { usize::MAX } else { 1 }
    }

    /// Whether an answer consists of calls only.
    pub(crate) fn forces_calls(&self) -> bool {
        self.tools.are_forced()
    }

    /// The model's format of calls, if the request has tools.
    fn format(&self, prompter: &Prompter) -> Option<ToolFormat> {
        let template = prompter.chat_template().ok().filter(|_| self.input.tools.is_some())?;
        ToolFormat::of_template(template)
    }
}

/// An error of the template or the messages, which shows only when they are rendered.
fn template_error(error: &Error) -> ApiError {
    let expected = "expected what the model's chat template can write, found a problem";
    ApiError::field("messages", format!("{expected}: {error}"))
}

/// The messages as templates expect them.
fn parse_messages(raw: &str) -> Result<Vec<ChatMessage>, ApiError> {
    let list: Vec<Json> = serde_json::from_str(raw)
        .map_err(|_| ApiError::field("messages", format!("expected a list of messages, found {}", shown(raw))))?;
    if list.is_empty() {
        return Err(ApiError::field("messages", "expected a list of at least one message, found an empty one"));
    }
    let message = |(at, json): (usize, Json)| {
        let name = format!("messages[{at}]");
        let wrong = |why: String| ApiError::field(&name, why);
        let message = ChatMessage::try_from(json).map_err(wrong)?;
        let role =
            message.role().ok_or_else(|| wrong("expected a role (a string), found none or another".to_string()))?;
        let message = if role == "developer" { message.with("role", "system") } else { message };
        message.as_templates_want().map_err(|(field, why)| ApiError::field(&format!("{name}.{field}"), why))
    };
    list.into_iter().enumerate().map(message).collect()
}

/// The documents for retrieval.
fn parse_documents(raw: &str) -> Result<Vec<Json>, ApiError> {
    let wrong =
        |found: &str| ApiError::field("documents", format!("expected a list of objects, found {}", shown(found)));
    let seen: Vec<Value> = serde_json::from_str(raw).map_err(|_| wrong(raw))?;
    if let Some((at, other)) = seen.iter().enumerate().find(|(_, document)| !document.is_object()) {
        let expected = format!("expected an object, found {}", shown(&other.to_string()));
        return Err(ApiError::field(&format!("documents[{at}]"), expected));
    }
    // Parsed again, to keep the order of keys.
    serde_json::from_str(raw).map_err(|_| wrong(raw))
}

/// The further variables of the template.
fn parse_variables(fields: &mut Fields) -> Result<Vec<(String, Json)>, ApiError> {
    let mut variables = Vec::new();
    if let Some(effort) = fields.string("reasoning_effort")? {
        variables.push(("reasoning_effort".to_string(), Json::from(effort)));
    }
    if let Some(object) = fields.object("chat_template_kwargs")? {
        for (name, raw) in object.into_values() {
            let value = serde_json::from_str(raw.get()).map_err(|_| {
                let found = shown(raw.get());
                ApiError::field(&format!("chat_template_kwargs.{name}"), format!("expected {READABLE}, found {found}"))
            })?;
            variables.push((name, value));
        }
    }
    if fields.has("chat_template") {
        let why = "the template is the model's";
        return Err(ApiError::unsupported("chat_template", format!("expected none, found one: {why}")));
    }
    Ok(variables)
}
