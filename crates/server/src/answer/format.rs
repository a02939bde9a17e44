//! Answers in the formats of other programs' APIs: what they have in common.
//!
//! The text of an answer is parsed into parts (`parts.rs`), and an [`AnswerFormat`] turns these into its own events or
//! its own object. The formats are in `apis`, OpenAI's is in `complete.rs` and `stream.rs`.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use foretoken::{Answer, Emitted, Event, FinishReason, Stats};
use futures_util::stream::unfold;
use serde_json::{Value, json};

use super::complete::{collect, cut_before_start, failed};
use super::parts::{AnswerParser, AnswerParts, ReportedCalls};
use super::{AnswerContext, combined};
use crate::error::ApiError;
use crate::run::{CutReason, RequestRecord, Run, RunEvent};

/// The media type of server-sent events.
pub(super) const EVENTS: &str = "text/event-stream; charset=utf-8";

/// The format of an API's answers. Returned strings are sent in the stream, complete with the end of each event; empty
/// ones are not sent. `number` is the index of an answer.
pub(crate) trait AnswerFormat: Send {
    /// The beginning of the ids of its answers.
    fn prefix(&self) -> &'static str;

    /// Whether a request may have several answers.
    fn may_have_several(&self) -> bool {
        false
    }

    /// The media type of its streams.
    fn stream_type(&self) -> &'static str {
        EVENTS
    }

    /// The beginning of a stream. For a complete answer it is called, too, and its result is dropped.
    fn begin(&mut self, context: &AnswerContext, records: &[RequestRecord]) -> String;

    /// A chunk of the prompt is computed.
    fn progress(&mut self, _context: &AnswerContext, _number: usize, _progress: Progress) -> String {
        String::new()
    }

    /// A keep-alive message, sent while there are no events.
    fn keep_alive(&mut self) -> String {
        ": nothing new yet\n\n".to_string()
    }

    /// Further parts of an answer, and the tokens that were generated for them.
    fn parts(&mut self, context: &AnswerContext, number: usize, parts: &AnswerParts, emitted: &[Emitted]) -> String;

    /// The end of an answer, after all its parts.
    fn end(&mut self, context: &AnswerContext, number: usize, end: &End) -> String;

    /// An error while answers are streamed.
    fn error(&mut self, error: &ApiError) -> String;

    /// The object with all complete answers.
    fn complete(&mut self, context: &AnswerContext, all: &[CompleteAnswer]) -> Value;

    /// The JSON text of that object, for formats that pass on objects as the model wrote them.
    fn complete_text(&mut self, context: &AnswerContext, all: &[CompleteAnswer]) -> String {
        self.complete(context, all).to_string()
    }
}

/// The progress of prefill: the tokens of the prompt that are computed, all of its tokens, and those from the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) done: usize,
    pub(crate) total: usize,
    pub(crate) shared: usize,
}

impl Progress {
    /// The progress with llama.cpp's names. `time`: since the request began.
    pub(crate) fn object(self, time: Duration) -> Value {
        json!({
            "total": self.total,
            "cache": self.shared,
            "processed": self.done,
            "time_ms": foretoken::report::milliseconds(time),
        })
    }
}

/// How an answer ended.
pub(crate) struct End {
    pub(crate) reason: FinishReason,
    pub(crate) calls: ReportedCalls,
    pub(crate) stats: Stats,
    /// Why it was cut, if it was.
    pub(crate) cut: Option<CutReason>,
    pub(crate) prompt_len: usize,
    pub(crate) seed: u64,
}

impl End {
    /// Whether the answer is incomplete.
    pub(crate) fn is_cut(&self) -> bool {
        self.calls.is_cut || !matches!(self.reason, FinishReason::EndToken(_) | FinishReason::StopString(_))
    }
}

/// An answer that is complete.
pub(crate) struct CompleteAnswer {
    pub(crate) answer: Answer,
    pub(crate) parts: AnswerParts,
    pub(crate) end: End,
}

/// Waits for all answers, and returns their JSON object.
pub(crate) async fn complete(
    context: AnswerContext,
    mut run: Run,
    mut format: Box<dyn AnswerFormat>,
) -> Result<String, ApiError> {
    drop(format.begin(&context, run.records()));
    let all = collect(&context, &mut run).await?;
    let mut answers = Vec::with_capacity(all.len());
    for (number, answer) in all.into_iter().enumerate() {
        let record = &run.records()[number];
        let mut parser = AnswerParser::new(&context.kind);
        let mut parts = parser.push(&answer.text);
        parts.extend(parser.finish());
        let reason = answer.reason.clone().unwrap_or(FinishReason::Cancelled);
        if let FinishReason::Failed(why) = &reason {
            return Err(failed(&context, why, record.forbids));
        }
        let (calls, stats) = (parser.reported_calls(), combined(std::slice::from_ref(&answer.stats)));
        let end = End { reason, calls, stats, cut: run.cut(), prompt_len: record.prompt_len, seed: record.seed };
        answers.push(CompleteAnswer { answer, parts, end });
    }
    // The object may be large.
    let answers = tokio::task::spawn_blocking(move || {
        let text = format.complete_text(&context, &answers);
        with_warnings(text, &context.kind.options().warnings)
    });
    answers.await.map_err(|error| ApiError::bug(format!("answer: expected it to be written, found a bug: {error}")))
}

/// Adds the warnings, if there are any, to an object, or to the object of the last event.
fn with_warnings(mut output: String, warnings: &[String]) -> String {
    if let Some(place) = output.rfind('}').filter(|_| !warnings.is_empty()) {
        output.insert_str(place, &format!(",\"warnings\":{}", Value::from(warnings)));
    }
    output
}

/// The state of streamed answers.
struct Stream {
    context: AnswerContext,
    run: Run,
    format: Box<dyn AnswerFormat>,
    /// One per answer.
    parsers: Vec<AnswerParser>,
    stats: Vec<Stats>,
    ready: String,
    has_begun: bool,
    has_ended: bool,
    /// The text that was sent, if it is logged.
    texts: Vec<String>,
}

/// The response that streams the answers.
pub(crate) fn stream(context: AnswerContext, run: Run, mut format: Box<dyn AnswerFormat>) -> Response {
    let ready = format.begin(&context, run.records());
    let (kind, count) = (format.stream_type(), run.records().len());
    let parsers = (0..count).map(|_| AnswerParser::new(&context.kind)).collect();
    let (stats, texts) = (vec![Stats::default(); count], vec![String::new(); count]);
    let stream = Stream { context, run, format, parsers, stats, ready, has_begun: false, has_ended: false, texts };
    let next = |mut stream: Stream| async move {
        let bytes = stream.next().await?;
        Some((Ok::<Bytes, Infallible>(bytes), stream))
    };
    streamed(kind, unfold(stream, next))
}

/// The response that sends bytes of this media type as they come.
pub(super) fn streamed(
    kind: &'static str,
    bytes: impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        // nginx would buffer events.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(bytes)).into_response()
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        while self.ready.is_empty() && !self.has_ended {
            let output = match self.run.next().await {
                RunEvent::Idle => self.format.keep_alive(),
                RunEvent::End => {
                    self.log();
                    String::new()
                }
                RunEvent::Event(number, event) => self.handle(number, event),
            };
            self.ready.push_str(&output);
        }
        (!self.ready.is_empty()).then(|| Bytes::from(std::mem::take(&mut self.ready)))
    }

    fn handle(&mut self, number: usize, event: Event) -> String {
        match event {
            Event::Prompt { done, total, shared, .. } => {
                self.format.progress(&self.context, number, Progress { done, total, shared })
            }
            Event::Tokens { emitted, .. } => {
                self.has_begun = true;
                let text: String = emitted.iter().map(|emitted| emitted.text.as_str()).collect();
                let parts = self.parsers[number].push(&text);
                self.write_parts(number, &parts, &emitted)
            }
            Event::Finished { reason, text, stats, .. } => {
                self.stats[number] = *stats;
                self.finish(number, reason, &text)
            }
            // Beam searches have OpenAI's format only.
            Event::PromptScored { .. } | Event::Drafts { .. } | Event::Beams { .. } | Event::DrafterFailed { .. } => {
                String::new()
            }
        }
    }

    fn write_parts(&mut self, number: usize, parts: &AnswerParts, emitted: &[Emitted]) -> String {
        if self.context.settings.log_prompts {
            [&parts.reasoning, &parts.text].into_iter().for_each(|text| self.texts[number].push_str(text));
        }
        self.format.parts(&self.context, number, parts, emitted)
    }

    fn finish(&mut self, number: usize, reason: FinishReason, remaining_text: &str) -> String {
        let parser = &mut self.parsers[number];
        let mut rest = parser.push(remaining_text);
        rest.extend(parser.finish());
        let calls = parser.reported_calls();
        let mut output = if rest.is_empty() { String::new() } else { self.write_parts(number, &rest, &[]) };
        let (record, cut) = (&self.run.records()[number], self.run.cut());
        output.push_str(&match (reason, cut) {
            (FinishReason::Failed(why), _) => self.format.error(&failed(&self.context, &why, record.forbids)),
            (FinishReason::Cancelled, Some(cut)) if !self.has_begun => {
                self.format.error(&cut_before_start(&self.context, cut))
            }
            (reason, cut) => {
                let stats = combined(std::slice::from_ref(&self.stats[number]));
                let end = End { reason, calls, stats, cut, prompt_len: record.prompt_len, seed: record.seed };
                with_warnings(self.format.end(&self.context, number, &end), &self.context.kind.options().warnings)
            }
        });
        output
    }

    /// Logs the end of the request.
    fn log(&mut self) {
        self.has_ended = true;
        self.context.log(&self.stats, self.run.cut());
        if self.context.settings.log_prompts {
            tracing::info!(id = self.context.id, texts = ?self.texts, "text");
        }
    }
}
