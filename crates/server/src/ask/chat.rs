//! `/v1/chat/completions`: the model's next turn in a conversation.
//!
//! Messages go to the model's own chat template, as transformers hands them over. So that templates understand what
//! OpenAI's clients send, parts of text become one text, arguments of earlier calls become objects again, and the role
//! `developer` is called `system`. Left out: pictures and sounds.

use foretoken::{
    ChatInput, ChatMessage, Error, Json, Prompter, Request, ThinkingReader, ToolCallReader, ToolFormat, n_best,
};
use serde_json::Value;

use super::tools::Tools;
use super::{Ask, TOPS_MAX};
use crate::error::{ApiError, shown};
use crate::fields::{Fields, READABLE};
use crate::limits::TextLimit;
use crate::settings::{ReasoningFormat, ServerSettings};

/// A request for turns.
#[derive(Clone, Debug)]
pub(crate) struct ChatAsk {
    pub(crate) ask: Ask,
    pub(crate) input: ChatInput,
    tools: Tools,
    /// Finds calls in an answer, if they are looked for; each answer has a copy.
    pub(crate) reader: Option<ToolCallReader>,
    /// Parts what the model thinks from its answer, if it can think and the request does not want it as it is; each
    /// answer has a copy.
    pub(crate) thinking: Option<ThinkingReader>,
    reasoning_format: ReasoningFormat,
    /// Bytes of all that the template is given.
    bytes: usize,
}

impl ChatAsk {
    /// Reads what is only of chats.
    pub(crate) fn read(fields: &mut Fields, mut ask: Ask, limits: &ServerSettings) -> Result<Self, ApiError> {
        let messages = fields
            .raw("messages")
            .ok_or_else(|| ApiError::field("messages", "expected a list of at least one message, found none"))?;
        let mut bytes = messages.get().len();
        let messages = messages_of(messages.get())?;
        let tools = Tools::read(fields, &mut bytes)?;
        if let (Some(guided), true) = (&ask.guided, tools.json.is_some()) {
            let why = "calls have a form of their own; \"tool_choice\": \"none\" leaves it out";
            return Err(ApiError::unsupported(guided.field(), format!("expected none beside tools, found one: {why}")));
        }
        let wanted = fields.truth("logprobs")?.unwrap_or(false);
        let tops = fields.count("top_logprobs", 0, TOPS_MAX)?;
        if !wanted && tops.is_some_and(|tops| tops > 0) {
            return Err(ApiError::field("top_logprobs", "expected \"logprobs\": true beside it, found none"));
        }
        ask.log_probabilities = wanted.then(|| tops.unwrap_or(0));
        for name in ["echo", "prompt"] {
            if fields.has(name) {
                return Err(ApiError::field(name, "expected none beside messages, found some"));
            }
        }
        let continued = fields.truth("continue_final_message")?.unwrap_or(false);
        let answered = fields.truth("add_generation_prompt")?.unwrap_or(!continued);
        if continued && answered {
            let expected = "expected false beside \"continue_final_message\": true, found true";
            return Err(ApiError::field("add_generation_prompt", expected));
        }
        bytes += fields.bytes_of("documents") + fields.bytes_of("chat_template_kwargs");
        let documents = fields.raw("documents").map(|documents| documents_of(documents.get())).transpose()?;
        let mut input = ChatInput::new(&messages, answered);
        input.continue_final_message = continued;
        input.tools.clone_from(&tools.json);
        input.documents = documents;
        input.variables = variables(fields)?;
        let reasoning_format = match fields.text("reasoning_format")? {
            None => limits.reasoning_format,
            Some(word) => ReasoningFormat::of_word(&word).ok_or_else(|| {
                let expected = format!("expected auto, deepseek or none, found {:?}", shown(&word));
                ApiError::field("reasoning_format", expected)
            })?,
        };
        Ok(Self { ask, input, tools, reader: None, thinking: None, reasoning_format, bytes })
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
            let why = "the model's chat template says nothing of tools";
            if self.tools.are_binding() {
                return Err(ApiError::unsupported("tools", format!("expected none, found some: {why}")));
            }
            // Agents offer tools to every model.
            self.input.tools = None;
            self.ask.warnings.push(format!("tools: left out, {why}"));
        }
        let mut decided = self.ask.decide(prompter)?;
        if let Some(format) = format
            && let Some(grammar) = self.tools.grammar(format, prompter)?
        {
            if decided.settings.ignore_eos {
                let expected = "expected tokens that end a text, beside calls that have a form, found none";
                return Err(ApiError::field("ignore_eos", expected));
            }
            decided.grammar = Some(grammar);
        }
        if let (Some(tops), None) = (self.ask.log_probabilities, self.ask.stream) {
            limit.check_values(self.ask.best_of, self.ask.sampling.tokens_max.0, tops)?;
        }
        let mut request = prompter.chat(&self.input, &decided).map_err(|error| match &error {
            Error::Setting(_) => self.ask.named(ApiError::of(&error)),
            _ => unwritten(&error),
        })?;
        limit.check_tokens("messages", request.prompt.len())?;
        self.ask.complete(prompter, key, limit, &mut request)?;
        if let (Some(format), Some(tokenizer), Some(tools)) = (format, &prompter.tokenizer, &self.input.tools) {
            self.reader = Some(ToolCallReader::new(format, tools));
            let marks = tokenizer.special_tokens(format.marks());
            request.shown_special = request.shown_special.iter().copied().chain(marks).collect();
        }
        let thinking = prompter.thinking(&self.input, &request.prompt);
        let thinking = thinking.filter(|_| self.reasoning_format != ReasoningFormat::None);
        self.thinking = thinking.map(|(marks, thinking)| ThinkingReader::new(marks, thinking));
        Ok(n_best(&request, self.ask.best_of))
    }

    /// Most calls of an answer that are told.
    pub(crate) fn calls_max(&self) -> usize {
        if self.tools.parallel { usize::MAX } else { 1 }
    }

    /// Whether an answer is calls and nothing else.
    pub(crate) fn forces_calls(&self) -> bool {
        self.tools.are_forced()
    }

    /// How the model writes calls, if they are looked for.
    fn format(&self, prompter: &Prompter) -> Option<ToolFormat> {
        let template = prompter.chat_template().ok().filter(|_| self.input.tools.is_some())?;
        ToolFormat::of_template(template)
    }
}

/// Why messages could not be written out: what is wrong with a template, or with them, shows only there.
fn unwritten(error: &Error) -> ApiError {
    let expected = "expected what the model's chat template can write, found a problem";
    ApiError::field("messages", format!("{expected}: {error}"))
}

/// The messages as templates want them.
fn messages_of(raw: &str) -> Result<Vec<ChatMessage>, ApiError> {
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

/// Texts to look into.
fn documents_of(raw: &str) -> Result<Vec<Json>, ApiError> {
    let wrong =
        |found: &str| ApiError::field("documents", format!("expected a list of objects, found {}", shown(found)));
    let seen: Vec<Value> = serde_json::from_str(raw).map_err(|_| wrong(raw))?;
    if let Some((at, other)) = seen.iter().enumerate().find(|(_, document)| !document.is_object()) {
        let expected = format!("expected an object, found {}", shown(&other.to_string()));
        return Err(ApiError::field(&format!("documents[{at}]"), expected));
    }
    // Read again, for the order of keys.
    serde_json::from_str(raw).map_err(|_| wrong(raw))
}

/// Further variables of the template.
fn variables(fields: &mut Fields) -> Result<Vec<(String, Json)>, ApiError> {
    let mut variables = Vec::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
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
