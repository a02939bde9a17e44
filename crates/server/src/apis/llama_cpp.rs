//! llama.cpp's own paths: `/completion`, `/apply-template`, `/props` and `/slots`.
//!
//! Fields and answers have llama-server's names. Each streamed token is an event of its own, since its clients count
//! events. Unsupported features are reported as switched off (context shift, further samplers). Saving slots, adapters,
//! and changing properties are not supported.

use std::time::Instant;

use foretoken::{Emitted, FinishReason, ParameterKind, Prompter, Request, Sampling};
use serde_json::{Map, Value, json};

use crate::answer::format::{AnswerFormat, CompleteAnswer, End, Progress};
use crate::answer::log_probabilities::{TokenLogProbability, chat_log_probabilities};
use crate::answer::parts::AnswerParts;
use crate::answer::{AnswerContext, RequestKind};
use crate::apis::{self, GenerationRequest};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::law::{decimal, llama_cpp_name};
use crate::parse::RequestOptions;
use crate::run::RequestRecord;
use crate::tokens::lossy_token_text;

/// A request's options for the fields of its answer.
#[derive(Default)]
struct ResponseOptions {
    tokens: bool,
    timings_per_token: bool,
    /// The fields of the answer, if not all.
    fields: Vec<String>,
}

/// The format of llama.cpp's answers.
struct LlamaCppFormat {
    response_options: ResponseOptions,
    /// The prompt of each answer, as text.
    prompts: Vec<String>,
    settings: Value,
    /// Several answers are a list, also those to one prompt.
    is_list: bool,
    states: Vec<StreamState>,
    started: Instant,
}

/// The state of a streamed answer.
#[derive(Clone, Default)]
struct StreamState {
    tokens: usize,
    has_new_line: bool,
    end_tokens: Vec<foretoken::Token>,
}

/// `/completion`.
pub(crate) fn completion(app: &App, key: u64, fields: &mut Fields) -> Result<GenerationRequest, ApiError> {
    fields.rename("n_cmpl", "n")?;
    if fields.boolean("post_sampling_probs")?.unwrap_or(false) {
        let why = "log-probabilities are those of the model's own law";
        return Err(ApiError::unsupported("post_sampling_probs", format!("expected false, found true: {why}")));
    }
    let response_options = ResponseOptions {
        tokens: fields.boolean("return_tokens")?.unwrap_or(false),
        timings_per_token: fields.boolean("timings_per_token")?.unwrap_or(false),
        fields: fields.strings("response_fields")?,
    };
    let mut generation = apis::parse(false, app, key, fields, None)?;
    let prompt_of = |request: &Request| match &app.prompter.tokenizer {
        Some(tokenizer) => tokenizer.decode(&request.prompt, false),
        None => String::new(),
    };
    let options = generation.kind.options();
    let format = LlamaCppFormat {
        prompts: generation.requests.iter().map(prompt_of).collect(),
        settings: generation_settings(&app.prompter, Some(options), &generation.requests[0], &response_options),
        is_list: generation.requests.len() > 1,
        states: vec![StreamState::default(); generation.requests.len()],
        started: Instant::now(),
        response_options,
    };
    if options.best_of > options.answers {
        return Err(ApiError::unsupported("best_of", "expected n beside this path, found more"));
    }
    generation.format = Some(Box::new(format));
    Ok(generation)
}

/// The settings of a request's law, with llama.cpp's names.
fn generation_settings(
    prompter: &Prompter,
    options: Option<&RequestOptions>,
    request: &Request,
    response_options: &ResponseOptions,
) -> Value {
    let law = &request.sampling;
    let numbers = |kind: ParameterKind| {
        let numbers = Sampling::PARAMETERS.iter().filter(move |parameter| parameter.kind == kind);
        numbers.map(move |parameter| (llama_cpp_name(parameter.name), decimal((parameter.get)(law))))
    };
    let filters = numbers(ParameterKind::Filter).map(|(name, _)| if name == "typical_p" { "typ_p" } else { name });
    let samplers: Vec<&str> = ["penalties", "temperature", "top_k"].into_iter().chain(filters).collect();
    let limit = |limit: Option<usize>| limit.map_or(json!(-1), |limit| json!(limit));
    let log_probabilities = options.and_then(|options| options.log_probabilities).unwrap_or(0);
    let before_filters = [
        ("n_ctx", json!(prompter.context)),
        ("n_predict", limit(request.tokens_max)),
        ("max_tokens", limit(request.tokens_max)),
        ("seed", json!(request.seed)),
        ("temperature", decimal(law.temperature)),
        ("dynatemp_range", json!(0.0)),
        ("top_k", json!(law.top_k)),
    ];
    let before_penalties = [("xtc_probability", json!(0.0)), ("repeat_last_n", limit(law.penalty_window))];
    let others = [
        ("dry_multiplier", json!(0.0)),
        ("mirostat", json!(0)),
        ("stop", json!(request.stop)),
        ("n_keep", json!(0)),
        ("n_discard", json!(0)),
        ("ignore_eos", json!(options.is_some_and(|options| options.sampling.ignore_eos))),
        ("stream", json!(options.is_some_and(|options| options.stream.is_some()))),
        ("n_probs", json!(log_probabilities)),
        ("min_keep", json!(0)),
        ("samplers", json!(samplers)),
        ("timings_per_token", json!(response_options.timings_per_token)),
        ("post_sampling_probs", json!(false)),
        ("lora", json!([])),
    ];
    let filters = before_filters.into_iter().chain(numbers(ParameterKind::Filter));
    let penalties = before_penalties.into_iter().chain(numbers(ParameterKind::Penalty));
    filters.chain(penalties).chain(others).collect()
}

/// One event of a stream.
fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

impl LlamaCppFormat {
    /// The fields that all events of an answer share.
    fn common_fields(&self, context: &AnswerContext, number: usize) -> Map<String, Value> {
        let StreamState { tokens, .. } = self.states[number];
        let mut object = Map::new();
        object.insert("index".into(), json!(number));
        object.insert("id_slot".into(), json!(-1));
        object.insert("tokens_predicted".into(), json!(tokens));
        object.insert("model".into(), json!(context.model));
        object
    }

    /// Tokens with their log-probabilities, if the request asks for them.
    fn probabilities(&self, context: &AnswerContext, number: usize, emitted: &[Emitted]) -> Option<Value> {
        context.kind.options().log_probabilities?;
        let tokens = TokenLogProbability::without_end_tokens(emitted, &self.states[number].end_tokens);
        let logprobs = chat_log_probabilities(tokens, context.prompter());
        let mut logprobs: Value = serde_json::from_str(logprobs.get()).expect("it was written as JSON");
        Some(logprobs["content"].take())
    }

    /// The object at the end of an answer.
    fn end_object(&self, context: &AnswerContext, number: usize, content: &str, end: &End) -> Map<String, Value> {
        let (kind, word) = match &end.reason {
            FinishReason::EndToken(_) => ("eos", ""),
            FinishReason::StopString(word) => ("word", word.as_str()),
            FinishReason::Length | FinishReason::Context | FinishReason::Cancelled | FinishReason::Failed(_) => {
                ("limit", "")
            }
        };
        let mut object = self.common_fields(context, number);
        let cut = end.cut.filter(|_| end.reason == FinishReason::Cancelled);
        let further = [
            ("content", json!(content)),
            ("stop", json!(true)),
            ("tokens_predicted", json!(end.stats.emitted)),
            ("tokens_evaluated", json!(end.prompt_len)),
            ("tokens_cached", json!(end.stats.prompt_tokens_shared)),
            ("generation_settings", self.settings.clone()),
            ("prompt", json!(self.prompts[number])),
            ("has_new_line", json!(self.states[number].has_new_line || content.contains('\n'))),
            ("truncated", json!(end.reason == FinishReason::Context)),
            ("stop_type", json!(kind)),
            ("stopping_word", json!(word)),
            ("timings", context.timings(std::slice::from_ref(&end.stats))),
        ];
        object.extend(further.map(|(name, value)| (name.to_string(), value)));
        object["generation_settings"]["seed"] = json!(end.seed);
        if let Some(cut) = cut {
            object.insert("cut_by".into(), json!(cut.name()));
        }
        object
    }

    /// The requested fields of an object; those of nested objects are requested as `object/field`.
    fn selected(&self, object: Map<String, Value>) -> Value {
        if self.response_options.fields.is_empty() {
            return Value::Object(object);
        }
        let object = Value::Object(object);
        let found = |name: &String| Some((name.clone(), object.pointer(&format!("/{name}"))?.clone()));
        Value::Object(self.response_options.fields.iter().filter_map(found).collect())
    }
}

impl AnswerFormat for LlamaCppFormat {
    fn prefix(&self) -> &'static str {
        "cmpl-"
    }

    fn may_have_several(&self) -> bool {
        true
    }

    fn begin(&mut self, _: &AnswerContext, records: &[RequestRecord]) -> String {
        for (state, record) in self.states.iter_mut().zip(records) {
            state.end_tokens.clone_from(&record.end_tokens);
        }
        String::new()
    }

    fn progress(&mut self, context: &AnswerContext, number: usize, progress: Progress) -> String {
        if !context.kind.options().progress {
            return String::new();
        }
        let mut object = self.common_fields(context, number);
        object.insert("content".into(), json!(""));
        object.insert("tokens".into(), json!([]));
        object.insert("stop".into(), json!(false));
        object.insert("prompt_progress".into(), progress.object(self.started.elapsed()));
        event(&Value::Object(object))
    }

    fn parts(&mut self, context: &AnswerContext, number: usize, parts: &AnswerParts, emitted: &[Emitted]) -> String {
        self.states[number].has_new_line |= parts.text.contains('\n');
        let end_tokens = self.states[number].end_tokens.clone();
        let one = |this: &mut Self, content: &str, tokens: &[Emitted]| {
            this.states[number].tokens += tokens.len();
            let mut object = this.common_fields(context, number);
            object.insert("content".into(), json!(content));
            object.insert("tokens".into(), tokens.iter().map(|emitted| emitted.token).collect());
            object.insert("stop".into(), json!(false));
            if let Some(probabilities) = this.probabilities(context, number, tokens) {
                object.insert("completion_probabilities".into(), probabilities);
            }
            event(&Value::Object(object))
        };
        if emitted.is_empty() {
            return one(self, &parts.text, &[]);
        }
        let text_tokens = emitted.iter().filter(|emitted| !end_tokens.contains(&emitted.token));
        text_tokens.map(|token| one(self, &token.text, std::slice::from_ref(token))).collect()
    }

    fn end(&mut self, context: &AnswerContext, number: usize, end: &End) -> String {
        let mut object = self.end_object(context, number, "", end);
        object.insert("tokens".into(), json!([]));
        event(&self.selected(object))
    }

    fn error(&mut self, error: &ApiError) -> String {
        event(&error.object())
    }

    fn complete(&mut self, context: &AnswerContext, all: &[CompleteAnswer]) -> Value {
        let one = |(number, complete): (usize, &CompleteAnswer)| {
            let CompleteAnswer { answer, end, .. } = complete;
            let mut object = self.end_object(context, number, &answer.text, end);
            let tokens =
                self.response_options.tokens.then(|| answer.emitted.iter().map(|emitted| emitted.token).collect());
            object.insert("tokens".into(), tokens.unwrap_or_else(|| json!([])));
            if let Some(probabilities) = self.probabilities(context, number, &answer.emitted) {
                object.insert("completion_probabilities".into(), probabilities);
            }
            self.selected(object)
        };
        let mut objects: Vec<Value> = all.iter().enumerate().map(one).collect();
        if self.is_list { Value::Array(objects) } else { objects.remove(0) }
    }
}

/// `/apply-template`: the text of a conversation.
pub(crate) fn apply_template(app: &App, key: u64, fields: &mut Fields) -> Result<Value, ApiError> {
    // Options of answers are parsed as usual, and have no effect.
    let GenerationRequest { kind, .. } = apis::parse(true, app, key, fields, None)?;
    let RequestKind::Chat(chat) = kind else { unreachable!("it was parsed as a chat") };
    let template = app.prompter.chat_template().map_err(|error| ApiError::of(&error))?;
    let text = template.render(&chat.input).map_err(|error| ApiError::of(&error.into()))?;
    Ok(json!({ "prompt": text }))
}

/// `GET /props`.
pub(crate) fn properties(app: &App) -> Value {
    let prompter = &app.prompter;
    let law = Request { sampling: prompter.decided.sampling.clone(), ..Request::new(Vec::new()) };
    let mut settings = generation_settings(prompter, None, &law, &ResponseOptions::default());
    settings["seed"] = json!(prompter.decided.asked.seed.map_or(json!(-1), |seed| json!(seed)));
    settings["n_predict"] = json!(prompter.decided.settings.tokens_max.0.map_or(json!(-1), |most| json!(most)));
    let file = std::path::Path::new(&prompter.target.name).file_name();
    let tokenizer = prompter.tokenizer.as_deref();
    let begin = tokenizer.and_then(|tokenizer| tokenizer.bos());
    let end = tokenizer.and_then(|tokenizer| tokenizer.end_tokens().first().copied());
    json!({
        "default_generation_settings": { "id": 0, "n_ctx": prompter.context, "params": settings },
        "total_slots": app.parallel,
        "model_alias": app.model,
        // The path of its folder is not disclosed.
        "model_path": file.map_or(String::new(), |file| file.to_string_lossy().into_owned()),
        "chat_template": prompter.chat_template().map_or("", |template| template.source()),
        "bos_token": lossy_token_text(prompter, begin).unwrap_or_default(),
        "eos_token": lossy_token_text(prompter, end).unwrap_or_default(),
        "modalities": { "vision": false, "audio": false },
        "build_info": concat!("foretoken ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    })
}

/// `GET /slots`: requests that may run at a time. As many slots are busy as requests run.
pub(crate) fn slots(app: &App) -> Value {
    let running = app.engine.workload().running;
    let slot = |number: usize| {
        json!({
            "id": number,
            "n_ctx": app.prompter.context,
            "speculative": !app.prompter.names.is_empty(),
            "is_processing": number < running,
        })
    };
    (0..app.parallel).map(slot).collect()
}
