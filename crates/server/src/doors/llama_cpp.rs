//! llama.cpp's own paths: `/completion`, `/apply-template`, `/props` and `/slots`.
//!
//! Fields and answers have the names that llama-server gives them. Each token that is streamed is an event of its own,
//! as its clients count events. What is not there is said as it would be there when it is switched off (a context that
//! is never cut, samplers of no effect). Left out: saving slots, adapters, and changing properties.

use std::time::Instant;

use foretoken::{Emitted, FinishReason, Prompter, Request};
use serde_json::{Map, Value, json};

use crate::answer::form::{End, Form, Progress, Whole};
use crate::answer::log_probabilities::{Told, of_chat};
use crate::answer::pieces::Pieces;
use crate::answer::{Head, Kind};
use crate::app::App;
use crate::ask::Ask;
use crate::doors::{self, Asking};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::run::Asked;
use crate::tokens::spelt;

/// What a request says of the form of its answer.
#[derive(Default)]
struct Wanted {
    tokens: bool,
    timings_per_token: bool,
    /// Which fields of the answer, if not all.
    fields: Vec<String>,
}

/// See the head of this file.
struct LlamaCpp {
    wanted: Wanted,
    /// The prompts as texts, one an answer.
    prompts: Vec<String>,
    settings: Value,
    /// Several answers are a list, however many prompts there were.
    is_list: bool,
    told: Vec<ToldOf>,
    begun: Instant,
}

/// What was told of an answer that is streamed.
#[derive(Clone, Default)]
struct ToldOf {
    tokens: usize,
    has_new_line: bool,
    end_tokens: Vec<foretoken::Token>,
}

/// `/completion`.
pub(crate) fn completion(app: &App, key: u64, fields: &mut Fields) -> Result<Asking, ApiError> {
    fields.rename("n_cmpl", "n")?;
    if fields.truth("post_sampling_probs")?.unwrap_or(false) {
        let why = "log-probabilities are those of the model's own law";
        return Err(ApiError::unsupported("post_sampling_probs", format!("expected false, found true: {why}")));
    }
    let wanted = Wanted {
        tokens: fields.truth("return_tokens")?.unwrap_or(false),
        timings_per_token: fields.truth("timings_per_token")?.unwrap_or(false),
        fields: fields.texts("response_fields")?,
    };
    let mut asking = doors::read(false, app, key, fields, None)?;
    let prompt_of = |request: &Request| match &app.prompter.tokenizer {
        Some(tokenizer) => tokenizer.decode(&request.prompt, false),
        None => String::new(),
    };
    let ask = asking.kind.ask();
    let form = LlamaCpp {
        prompts: asking.requests.iter().map(prompt_of).collect(),
        settings: generation_settings(&app.prompter, Some(ask), &asking.requests[0], &wanted),
        is_list: asking.requests.len() > 1,
        told: vec![ToldOf::default(); asking.requests.len()],
        begun: Instant::now(),
        wanted,
    };
    if ask.best_of > ask.answers {
        return Err(ApiError::unsupported("best_of", "expected n beside this path, found more"));
    }
    asking.form = Some(Box::new(form));
    Ok(asking)
}

/// The settings of a request's law, in llama.cpp's names.
fn generation_settings(prompter: &Prompter, ask: Option<&Ask>, request: &Request, wanted: &Wanted) -> Value {
    let law = &request.sampling;
    let number = |number: f32| number.to_string().parse::<f64>().unwrap_or_default();
    let limit = |limit: Option<usize>| limit.map_or(json!(-1), |limit| json!(limit));
    let log_probabilities = ask.and_then(|ask| ask.log_probabilities).unwrap_or(0);
    json!({
        "n_ctx": prompter.context,
        "n_predict": limit(request.tokens_max),
        "max_tokens": limit(request.tokens_max),
        "seed": request.seed,
        "temperature": number(law.temperature),
        "dynatemp_range": 0.0,
        "top_k": law.top_k,
        "top_p": number(law.top_p),
        "min_p": number(law.min_p),
        "typical_p": number(law.typical_p),
        "xtc_probability": 0.0,
        "repeat_last_n": limit(law.penalty_window),
        "repeat_penalty": number(law.repetition_penalty),
        "presence_penalty": number(law.presence_penalty),
        "frequency_penalty": number(law.frequency_penalty),
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "stop": request.stop,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": ask.is_some_and(|ask| ask.sampling.ignore_eos),
        "stream": ask.is_some_and(|ask| ask.stream.is_some()),
        "n_probs": log_probabilities,
        "min_keep": 0,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p", "typ_p"],
        "timings_per_token": wanted.timings_per_token,
        "post_sampling_probs": false,
        "lora": [],
    })
}

/// One event of a stream.
fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

impl LlamaCpp {
    /// The fields that all events of an answer have.
    fn beginning(&self, head: &Head, number: usize) -> Map<String, Value> {
        let ToldOf { tokens, .. } = self.told[number];
        let mut object = Map::new();
        object.insert("index".into(), json!(number));
        object.insert("id_slot".into(), json!(-1));
        object.insert("tokens_predicted".into(), json!(tokens));
        object.insert("model".into(), json!(head.app.model));
        object
    }

    /// Tokens with their log-probabilities, where these are asked for.
    fn probabilities(&self, head: &Head, number: usize, emitted: &[Emitted]) -> Option<Value> {
        head.kind.ask().log_probabilities?;
        let told = of_chat(Told::all(emitted, &self.told[number].end_tokens), head.prompter());
        let mut told: Value = serde_json::from_str(told.get()).expect("it was written as JSON");
        Some(told["content"].take())
    }

    /// What is said at the end.
    fn ended(&self, head: &Head, number: usize, content: &str, end: &End) -> Map<String, Value> {
        let (kind, word) = match &end.reason {
            FinishReason::EndToken(_) => ("eos", ""),
            FinishReason::StopString(word) => ("word", word.as_str()),
            FinishReason::Length | FinishReason::Context | FinishReason::Cancelled | FinishReason::Failed(_) => {
                ("limit", "")
            }
        };
        let mut object = self.beginning(head, number);
        let cut = end.cut.filter(|_| end.reason == FinishReason::Cancelled);
        let further = [
            ("content", json!(content)),
            ("stop", json!(true)),
            ("tokens_predicted", json!(end.stats.emitted)),
            ("tokens_evaluated", json!(end.prompt_len)),
            ("tokens_cached", json!(end.stats.prompt_tokens_shared)),
            ("generation_settings", self.settings.clone()),
            ("prompt", json!(self.prompts[number])),
            ("has_new_line", json!(self.told[number].has_new_line || content.contains('\n'))),
            ("truncated", json!(end.reason == FinishReason::Context)),
            ("stop_type", json!(kind)),
            ("stopping_word", json!(word)),
            ("timings", head.timings(std::slice::from_ref(&end.stats))),
        ];
        object.extend(further.map(|(name, value)| (name.to_string(), value)));
        object["generation_settings"]["seed"] = json!(end.seed);
        if let Some(cut) = cut {
            object.insert("cut_by".into(), json!(cut.name()));
        }
        object
    }

    /// The fields of an object that are wanted, those of objects within by `object/field`.
    fn chosen(&self, object: Map<String, Value>) -> Value {
        if self.wanted.fields.is_empty() {
            return Value::Object(object);
        }
        let object = Value::Object(object);
        let found = |name: &String| Some((name.clone(), object.pointer(&format!("/{name}"))?.clone()));
        Value::Object(self.wanted.fields.iter().filter_map(found).collect())
    }
}

impl Form for LlamaCpp {
    fn prefix(&self) -> &'static str {
        "cmpl-"
    }

    fn may_have_several(&self) -> bool {
        true
    }

    fn begin(&mut self, _: &Head, asked: &[Asked]) -> String {
        for (told, asked) in self.told.iter_mut().zip(asked) {
            told.end_tokens.clone_from(&asked.end_tokens);
        }
        String::new()
    }

    fn progress(&mut self, head: &Head, number: usize, progress: Progress) -> String {
        if !head.kind.ask().progress {
            return String::new();
        }
        let mut object = self.beginning(head, number);
        object.insert("content".into(), json!(""));
        object.insert("tokens".into(), json!([]));
        object.insert("stop".into(), json!(false));
        object.insert("prompt_progress".into(), progress.object(self.begun.elapsed()));
        event(&Value::Object(object))
    }

    fn pieces(&mut self, head: &Head, number: usize, pieces: &Pieces, emitted: &[Emitted]) -> String {
        self.told[number].has_new_line |= pieces.text.contains('\n');
        let ends = self.told[number].end_tokens.clone();
        let one = |this: &mut Self, content: &str, tokens: &[Emitted]| {
            this.told[number].tokens += tokens.len();
            let mut object = this.beginning(head, number);
            object.insert("content".into(), json!(content));
            object.insert("tokens".into(), tokens.iter().map(|emitted| emitted.token).collect());
            object.insert("stop".into(), json!(false));
            if let Some(probabilities) = this.probabilities(head, number, tokens) {
                object.insert("completion_probabilities".into(), probabilities);
            }
            event(&Value::Object(object))
        };
        if emitted.is_empty() {
            return one(self, &pieces.text, &[]);
        }
        let written = emitted.iter().filter(|emitted| !ends.contains(&emitted.token));
        written.map(|token| one(self, &token.text, std::slice::from_ref(token))).collect()
    }

    fn end(&mut self, head: &Head, number: usize, end: &End) -> String {
        let mut object = self.ended(head, number, "", end);
        object.insert("tokens".into(), json!([]));
        event(&self.chosen(object))
    }

    fn error(&mut self, error: &ApiError) -> String {
        event(&error.object())
    }

    fn whole(&mut self, head: &Head, all: &[Whole]) -> Value {
        let one = |(number, whole): (usize, &Whole)| {
            let Whole { answer, end, .. } = whole;
            let mut object = self.ended(head, number, &answer.text, end);
            let tokens = self.wanted.tokens.then(|| answer.emitted.iter().map(|emitted| emitted.token).collect());
            object.insert("tokens".into(), tokens.unwrap_or_else(|| json!([])));
            if let Some(probabilities) = self.probabilities(head, number, &answer.emitted) {
                object.insert("completion_probabilities".into(), probabilities);
            }
            self.chosen(object)
        };
        let mut objects: Vec<Value> = all.iter().enumerate().map(one).collect();
        if self.is_list { Value::Array(objects) } else { objects.remove(0) }
    }
}

/// `/apply-template`: a conversation as its text.
pub(crate) fn apply_template(app: &App, key: u64, fields: &mut Fields) -> Result<Value, ApiError> {
    // What is only of answers is understood like everywhere, and changes nothing.
    let Asking { kind, .. } = doors::read(true, app, key, fields, None)?;
    let Kind::Chat(chat) = kind else { unreachable!("it was read as a chat") };
    let template = app.prompter.chat_template().map_err(|error| ApiError::of(&error))?;
    let text = template.render(&chat.input).map_err(|error| ApiError::of(&error.into()))?;
    Ok(json!({ "prompt": text }))
}

/// `GET /props`.
pub(crate) fn properties(app: &App) -> Value {
    let prompter = &app.prompter;
    let law = Request { sampling: prompter.decided.sampling.clone(), ..Request::new(Vec::new()) };
    let mut settings = generation_settings(prompter, None, &law, &Wanted::default());
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
        // Its folder is nobody's business.
        "model_path": file.map_or(String::new(), |file| file.to_string_lossy().into_owned()),
        "chat_template": prompter.chat_template().map_or("", |template| template.source()),
        "bos_token": spelt(prompter, begin).unwrap_or_default(),
        "eos_token": spelt(prompter, end).unwrap_or_default(),
        "modalities": { "vision": false, "audio": false },
        "build_info": concat!("foretoken ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    })
}

/// `GET /slots`: texts that may be written at a time. As many are busy as texts run.
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
