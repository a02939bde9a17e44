//! Streamed answers, as server-sent events.
//!
//! All tokens of a pass are one event, so clients receive text as soon as it is certain, with little overhead. Text
//! that may be the beginning of a stop string or of a tool call, or an incomplete character, is buffered until that is
//! certain. An error while streaming is sent as an `error` event; the text before it remains valid. The choices of a
//! beam search are known at its end: each is sent whole then.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Instant;

use axum::body::Bytes;
use axum::response::Response;
use foretoken::{Beam, Drafted, Emitted, Event, FinishReason, Prompt, Prompter, Scored, Stats};
use futures_util::stream::unfold;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::complete::{cut_before_start, failed};
use super::format::{EVENTS, Progress, streamed};
use super::log_probabilities::{TokenLogProbability, chat_log_probabilities, completion_log_probabilities};
use super::parts::{AnswerParser, AnswerParts};
use super::{AnswerContext, ChoiceJson, RequestKind, call_object, finish_reason, of_beam, provenance, with_all_beams};
use crate::parse::completion::CompletionRequest;
use crate::run::{Run, RunEvent};

/// The state of one streamed answer.
struct Choice {
    parser: AnswerParser,
    /// Characters that were sent, for the offsets of log-probabilities.
    offset: usize,
    drafted: Vec<Drafted>,
    /// Scored tokens of the prompt, which is sent once all of it is scored.
    scored: Vec<Scored>,
    /// The text that was sent, if it is logged.
    text: String,
}

/// The state of streamed answers.
struct Stream {
    context: AnswerContext,
    run: Run,
    /// Those of the first of the engine's requests, then those of the next.
    choices: Vec<Choice>,
    /// Choices of each of the engine's requests.
    per_request: usize,
    /// Statistics of each request.
    stats: Vec<Stats>,
    /// The hypotheses of the beam search whose end is the next event.
    beams: Vec<Beam>,
    ready: VecDeque<String>,
    started: Instant,
    /// Answers that have not ended.
    open: usize,
    /// Whether any token was generated.
    has_begun: bool,
    has_ended: bool,
}

/// The response that streams the answers.
pub(crate) fn response(context: AnswerContext, run: Run) -> Response {
    let mut stream = Stream::new(context, run);
    stream.begin();
    let next = |mut stream: Stream| async move {
        let bytes = stream.next().await?;
        Some((Ok::<Bytes, Infallible>(bytes), stream))
    };
    streamed(EVENTS, unfold(stream, next))
}

/// The text of an echoed prompt.
pub(super) fn echoed_prompt(completion: &CompletionRequest, prompt: usize, prompter: &Prompter) -> String {
    match (&completion.prompts[prompt], &prompter.tokenizer) {
        (Prompt::Text(text), _) => text.clone(),
        (Prompt::Ids(ids), Some(tokenizer)) => tokenizer.decode(ids, true),
        (Prompt::Ids(_), None) | (Prompt::Chat(_), _) => String::new(),
    }
}

impl Stream {
    fn new(context: AnswerContext, run: Run) -> Self {
        let choice = |_: usize| Choice {
            parser: AnswerParser::new(&context.kind),
            offset: 0,
            drafted: Vec::new(),
            scored: Vec::new(),
            text: String::new(),
        };
        let (per_request, requests) = (context.kind.options().answers_per_request(), run.records().len());
        let open = requests * per_request;
        let choices = (0..open).map(choice).collect();
        Self {
            context,
            run,
            choices,
            per_request,
            stats: vec![Stats::default(); requests],
            beams: Vec::new(),
            ready: VecDeque::new(),
            started: Instant::now(),
            open,
            has_begun: false,
            has_ended: false,
        }
    }

    /// Sends what precedes the first token: the role, or the prompt.
    fn begin(&mut self) {
        for index in 0..self.choices.len() {
            match &self.context.kind {
                RequestKind::Chat(_) => {
                    self.send(index, json!({ "role": "assistant", "content": "" }), Map::new(), None);
                }
                RequestKind::Completion(completion)
                    if completion.echo && completion.options.log_probabilities.is_none() =>
                {
                    let prompt = index / (completion.options.requests_per_prompt() * self.per_request);
                    let text = echoed_prompt(completion, prompt, self.context.prompter());
                    self.send(index, json!(text), Map::new(), None);
                }
                RequestKind::Completion(_) => {}
            }
        }
    }

    /// The next bytes: all that is ready.
    async fn next(&mut self) -> Option<Bytes> {
        while self.ready.is_empty() && !self.has_ended {
            match self.run.next().await {
                RunEvent::Idle => self.ready.push_back(": nothing new yet\n\n".to_string()),
                RunEvent::End => self.end(),
                RunEvent::Event(number, event) => self.handle(number, event),
            }
        }
        if self.ready.is_empty() {
            return None;
        }
        Some(Bytes::from(self.ready.drain(..).collect::<String>()))
    }

    fn handle(&mut self, number: usize, event: Event) {
        match event {
            Event::Prompt { done, total, shared, .. } => self.progress(number, Progress { done, total, shared }),
            Event::DrafterFailed { .. } => {}
            Event::PromptScored { scored, .. } => self.score(number, scored),
            Event::Drafts { drafted, .. } => self.choices[number].drafted.extend(drafted),
            Event::Tokens { emitted, .. } => self.send_tokens(number, &emitted),
            Event::Beams { beams, .. } => (self.beams, self.has_begun) = (beams, true),
            Event::Finished { reason, text, stats, .. } => {
                let beams = std::mem::take(&mut self.beams);
                self.stats[number] = with_all_beams(&stats, &beams);
                let first = number * self.per_request;
                // A search may find fewer hypotheses, and one that failed or was cancelled finds none: it ends once.
                self.open -= self.per_request - beams.len().clamp(1, self.per_request);
                if beams.is_empty() {
                    self.finish(first, &reason, &text, None);
                }
                for (index, beam) in beams.iter().enumerate() {
                    self.finish(first + index, &beam.reason, &beam.text, Some(beam));
                }
            }
        }
    }

    /// Sends the progress of prefill, if the request asks for it.
    fn progress(&mut self, number: usize, progress: Progress) {
        if !self.context.kind.options().progress {
            return;
        }
        let progress = progress.object(self.started.elapsed());
        let content = if self.context.kind.is_chat() { json!({}) } else { json!("") };
        let choice = self.choice(number, content, Map::new(), None);
        self.push_chunk(&[choice], Map::from_iter([("prompt_progress".to_string(), progress)]));
    }

    /// Sends the prompt with its log-probabilities, once all of it is scored.
    fn score(&mut self, number: usize, scored: Vec<Scored>) {
        let RequestKind::Completion(completion) = &self.context.kind else { return };
        let choice = &mut self.choices[number];
        choice.scored.extend(scored);
        if choice.scored.len() < self.run.records()[number].prompt_len {
            return;
        }
        let text = echoed_prompt(completion, number / completion.options.best_of, self.context.prompter());
        let scored = std::mem::take(&mut choice.scored);
        let logprobs = completion_log_probabilities(
            scored.iter().map(TokenLogProbability::scored),
            self.context.prompter(),
            &mut choice.offset,
        );
        self.send(number, json!(text), Map::new(), Some(logprobs));
    }

    /// Sends the tokens of a pass.
    fn send_tokens(&mut self, number: usize, emitted: &[Emitted]) {
        self.has_begun = true;
        let text: String = emitted.iter().map(|emitted| emitted.text.as_str()).collect();
        let choice = &mut self.choices[number];
        let mut extras = Map::new();
        let mut logprobs = None;
        if self.context.kind.options().log_probabilities.is_some() {
            let tokens = TokenLogProbability::without_end_tokens(emitted, &self.run.records()[number].end_tokens);
            logprobs = Some(match &self.context.kind {
                RequestKind::Chat(_) => chat_log_probabilities(tokens, &self.context.prompter),
                RequestKind::Completion(_) => {
                    completion_log_probabilities(tokens, &self.context.prompter, &mut choice.offset)
                }
            });
        }
        if self.context.kind.options().provenance {
            let drafted = std::mem::take(&mut choice.drafted);
            extras.insert("provenance".into(), provenance::tokens_json(emitted, &self.context.prompter));
            extras.insert("drafted".into(), provenance::drafts_json(&drafted, &self.context.prompter));
        }
        let parts = self.choices[number].parser.push(&text);
        self.send_parts(number, parts, extras, logprobs);
    }

    /// Sends reasoning, text, and tool calls.
    fn send_parts(
        &mut self,
        number: usize,
        parts: AnswerParts,
        extras: Map<String, Value>,
        logprobs: Option<Box<RawValue>>,
    ) {
        let AnswerParts { reasoning, text, calls } = parts;
        if !reasoning.is_empty() || !text.is_empty() || !extras.is_empty() || logprobs.is_some() {
            match &self.context.kind {
                RequestKind::Chat(_) => {
                    let mut delta = Map::new();
                    if !text.is_empty() || reasoning.is_empty() {
                        delta.insert("content".to_string(), json!(text));
                    }
                    if !reasoning.is_empty() {
                        delta.insert("reasoning_content".to_string(), json!(reasoning));
                    }
                    self.send(number, Value::Object(delta), extras, logprobs);
                }
                RequestKind::Completion(_) => self.send(number, json!(text), extras, logprobs),
            }
        }
        for (index, call) in &calls {
            let call = call_object(&self.context, number, *index, call);
            self.send(number, json!({ "tool_calls": [call] }), Map::new(), None);
        }
    }

    /// Sends the end of an answer. `number`: that of the choice, which is a hypothesis of a search if it has a beam.
    fn finish(&mut self, number: usize, reason: &FinishReason, remaining_text: &str, beam: Option<&Beam>) {
        let request = number / self.per_request;
        let parser = &mut self.choices[number].parser;
        let mut rest = parser.push(remaining_text);
        rest.extend(parser.finish());
        self.send_parts(number, rest, Map::new(), None);
        if let FinishReason::Failed(why) = reason {
            let error = failed(&self.context, why, self.run.records()[request].forbids);
            self.ready.push_back(format!("data: {}\n\n", error.object()));
            return;
        }
        let choice = &self.choices[number];
        if let (Some(cut), FinishReason::Cancelled, false) = (self.run.cut(), reason, self.has_begun) {
            // One error for all answers.
            if number == 0 {
                self.ready.push_back(format!("data: {}\n\n", cut_before_start(&self.context, cut).object()));
            }
            return;
        }
        let mut extras = Map::new();
        extras.insert("finish_reason".into(), json!(finish_reason(reason, choice.parser.reported_calls())));
        extras.insert("seed".into(), json!(self.run.records()[request].seed));
        extras.extend(beam.map(of_beam).into_iter().flatten().map(|(name, value)| (name.to_string(), value)));
        if let (Some(cut), FinishReason::Cancelled) = (self.run.cut(), reason) {
            extras.insert("cut_by".into(), json!(cut.name()));
        }
        let delta = if self.context.kind.is_chat() { json!({}) } else { json!("") };
        let timings = self.context.timings(std::slice::from_ref(&self.stats[request]));
        let choice = self.choice(number, delta, extras, None);
        self.open -= 1;
        let mut further = Map::from_iter([("timings".to_string(), timings)]);
        if self.open == 0 && !self.context.kind.options().stream.is_some_and(|stream| stream.include_usage) {
            // Some clients expect it in the last chunk even without OpenAI's `include_usage`.
            further.insert("usage".to_string(), self.context.usage(self.run.records(), &self.stats));
        }
        self.push_chunk(&[choice], further);
    }

    /// Sends the end of the stream.
    fn end(&mut self) {
        self.has_ended = true;
        self.context.log(&self.stats, self.run.cut());
        if self.context.settings.log_prompts {
            let texts: Vec<&str> = self.choices.iter().map(|choice| choice.text.as_str()).collect();
            tracing::info!(id = self.context.id, ?texts, "text");
        }
        if self.context.kind.options().stream.is_some_and(|stream| stream.include_usage) {
            let (usage, timings) =
                (self.context.usage(self.run.records(), &self.stats), self.context.timings(&self.stats));
            let further = [("usage", usage), ("timings", timings)].map(|(name, value)| (name.to_string(), value));
            self.push_chunk(&[], Map::from_iter(further));
        }
        self.ready.push_back("data: [DONE]\n\n".to_string());
    }

    /// A choice of a chunk. `content`: the delta of a chat, the text of a completion.
    fn choice(
        &self,
        number: usize,
        content: Value,
        extras: Map<String, Value>,
        logprobs: Option<Box<RawValue>>,
    ) -> ChoiceJson {
        let name = if self.context.kind.is_chat() { "delta" } else { "text" };
        let own = [("index", json!(number)), (name, content), ("finish_reason", Value::Null)];
        let own = own.into_iter().map(|(name, value)| (name.to_string(), value));
        ChoiceJson { fields: own.chain(extras).collect(), logprobs }
    }

    fn send(&mut self, number: usize, content: Value, extras: Map<String, Value>, logprobs: Option<Box<RawValue>>) {
        if self.context.settings.log_prompts {
            let texts = [content.as_str(), content["reasoning_content"].as_str(), content["content"].as_str()];
            texts.into_iter().flatten().for_each(|text| self.choices[number].text.push_str(text));
        }
        let choice = self.choice(number, content, extras, logprobs);
        self.push_chunk(&[choice], Map::new());
    }

    fn push_chunk(&mut self, choices: &[ChoiceJson], extras: Map<String, Value>) {
        let object = self.context.object(true, choices, extras);
        self.ready.push_back(format!("data: {object}\n\n"));
    }
}
