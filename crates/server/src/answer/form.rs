//! Answers in the forms of other programs' APIs: what telling them has in common.
//!
//! The idea: what the engine says of an answer becomes parts (`pieces.rs`), and a [`Form`] turns these into its own
//! events or its own object. Left out: what the forms are (`doors`), and OpenAI's (`whole.rs`, `stream.rs`).

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use foretoken::{Answer, Emitted, Event, FinishReason, Stats};
use futures_util::stream::unfold;
use serde_json::{Value, json};

use super::pieces::{CallsTold, PieceReader, Pieces};
use super::whole::{failed, heard, never_begun};
use super::{Head, together};
use crate::error::ApiError;
use crate::run::{Asked, Cut, Next, Run};

/// The type of a stream of server-sent events.
pub(super) const EVENTS: &str = "text/event-stream; charset=utf-8";

/// How an API tells answers. Texts are what a stream sends, with whatever ends an event there; empty: nothing. `number`
/// is that of an answer.
pub(crate) trait Form: Send {
    /// What the names of its answers begin with.
    fn prefix(&self) -> &'static str;

    /// Whether a request may have several answers.
    fn may_have_several(&self) -> bool {
        false
    }

    /// The type of its streams.
    fn stream_type(&self) -> &'static str {
        EVENTS
    }

    /// What stands before the answers. Of those that are told at once nothing does, and it is dropped.
    fn begin(&mut self, head: &Head, asked: &[Asked]) -> String;

    /// A part of the prompt is read.
    fn progress(&mut self, _head: &Head, _number: usize, _progress: Progress) -> String {
        String::new()
    }

    /// Nothing happened for a while.
    fn quiet(&mut self) -> String {
        ": nothing new yet\n\n".to_string()
    }

    /// Further parts, and the tokens that were written for them.
    fn pieces(&mut self, head: &Head, number: usize, pieces: &Pieces, emitted: &[Emitted]) -> String;

    /// The end of an answer, behind all its parts.
    fn end(&mut self, head: &Head, number: usize, end: &End) -> String;

    /// What went wrong while answers were streamed.
    fn error(&mut self, error: &ApiError) -> String;

    /// All answers at once.
    fn whole(&mut self, head: &Head, all: &[Whole]) -> Value;

    /// The same as it is sent, for forms that hand on objects as the model wrote them.
    fn whole_text(&mut self, head: &Head, all: &[Whole]) -> String {
        self.whole(head, all).to_string()
    }
}

/// How many tokens of a prompt are read, of how many, and how many of them were there from earlier texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) done: usize,
    pub(crate) total: usize,
    pub(crate) shared: usize,
}

impl Progress {
    /// In llama.cpp's words, so long after the beginning.
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
    pub(crate) calls: CallsTold,
    pub(crate) stats: Stats,
    /// Why it was cut, if it was.
    pub(crate) cut: Option<Cut>,
    pub(crate) prompt_len: usize,
    pub(crate) seed: u64,
}

impl End {
    /// Whether there would have been more.
    pub(crate) fn is_cut(&self) -> bool {
        self.calls.is_cut || !matches!(self.reason, FinishReason::EndToken(_) | FinishReason::StopString(_))
    }
}

/// An answer that is complete.
pub(crate) struct Whole {
    pub(crate) answer: Answer,
    pub(crate) pieces: Pieces,
    pub(crate) end: End,
}

/// The answers, in one object.
pub(crate) async fn tell_whole(head: Head, mut run: Run, mut form: Box<dyn Form>) -> Result<String, ApiError> {
    drop(form.begin(&head, run.asked()));
    let all = heard(&head, &mut run).await?;
    let mut told = Vec::with_capacity(all.len());
    for (number, answer) in all.into_iter().map(|heard| heard.answer).enumerate() {
        let asked = &run.asked()[number];
        let mut reader = PieceReader::new(&head.kind);
        let mut pieces = reader.push(&answer.text);
        pieces.extend(reader.finish());
        let reason = answer.reason.clone().unwrap_or(FinishReason::Cancelled);
        if let FinishReason::Failed(why) = &reason {
            return Err(failed(&head, why, asked.forbids));
        }
        let (calls, stats) = (reader.told(), together(std::slice::from_ref(&answer.stats)));
        let end = End { reason, calls, stats, cut: run.cut(), prompt_len: asked.prompt_len, seed: asked.seed };
        told.push(Whole { answer, pieces, end });
    }
    // There may be much of it to write.
    let told = tokio::task::spawn_blocking(move || {
        let text = form.whole_text(&head, &told);
        with_warnings(text, &head.kind.ask().warnings)
    });
    told.await.map_err(|error| ApiError::bug(format!("answer: expected it to be written, found a bug: {error}")))
}

/// An object, or events of which the last has one, with what of the request was not done, if there is something.
fn with_warnings(mut said: String, warnings: &[String]) -> String {
    if let Some(place) = said.rfind('}').filter(|_| !warnings.is_empty()) {
        said.insert_str(place, &format!(",\"warnings\":{}", Value::from(warnings)));
    }
    said
}

/// Answers that are streamed.
struct Stream {
    head: Head,
    run: Run,
    form: Box<dyn Form>,
    /// Of each answer.
    readers: Vec<PieceReader>,
    stats: Vec<Stats>,
    ready: String,
    has_begun: bool,
    has_ended: bool,
    /// What was told, if texts are logged.
    texts: Vec<String>,
}

/// The response that streams the answers.
pub(crate) fn stream(head: Head, run: Run, mut form: Box<dyn Form>) -> Response {
    let ready = form.begin(&head, run.asked());
    let (kind, count) = (form.stream_type(), run.asked().len());
    let readers = (0..count).map(|_| PieceReader::new(&head.kind)).collect();
    let (stats, texts) = (vec![Stats::default(); count], vec![String::new(); count]);
    let stream = Stream { head, run, form, readers, stats, ready, has_begun: false, has_ended: false, texts };
    let next = |mut stream: Stream| async move {
        let bytes = stream.next().await?;
        Some((Ok::<Bytes, Infallible>(bytes), stream))
    };
    streamed(kind, unfold(stream, next))
}

/// The response that sends bytes of this type as they come.
pub(super) fn streamed(
    kind: &'static str,
    bytes: impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        // nginx would hold events back.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(bytes)).into_response()
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        while self.ready.is_empty() && !self.has_ended {
            let said = match self.run.next().await {
                Next::Nothing => self.form.quiet(),
                Next::End => {
                    self.log();
                    String::new()
                }
                Next::Event(number, event) => self.take(number, event),
            };
            self.ready.push_str(&said);
        }
        (!self.ready.is_empty()).then(|| Bytes::from(std::mem::take(&mut self.ready)))
    }

    fn take(&mut self, number: usize, event: Event) -> String {
        match event {
            Event::Prompt { done, total, shared, .. } => {
                self.form.progress(&self.head, number, Progress { done, total, shared })
            }
            Event::Tokens { emitted, .. } => {
                self.has_begun = true;
                let text: String = emitted.iter().map(|emitted| emitted.text.as_str()).collect();
                let pieces = self.readers[number].push(&text);
                self.tell(number, &pieces, &emitted)
            }
            Event::Finished { reason, text, stats, .. } => {
                self.stats[number] = *stats;
                self.finish(number, reason, &text)
            }
            Event::PromptScored { .. } | Event::Drafts { .. } | Event::DrafterFailed { .. } => String::new(),
        }
    }

    fn tell(&mut self, number: usize, pieces: &Pieces, emitted: &[Emitted]) -> String {
        if self.head.app.settings.log_prompts {
            [&pieces.thoughts, &pieces.text].into_iter().for_each(|text| self.texts[number].push_str(text));
        }
        self.form.pieces(&self.head, number, pieces, emitted)
    }

    fn finish(&mut self, number: usize, reason: FinishReason, held: &str) -> String {
        let reader = &mut self.readers[number];
        let mut rest = reader.push(held);
        rest.extend(reader.finish());
        let calls = reader.told();
        let mut said = if rest.is_empty() { String::new() } else { self.tell(number, &rest, &[]) };
        let (asked, cut) = (&self.run.asked()[number], self.run.cut());
        said.push_str(&match (reason, cut) {
            (FinishReason::Failed(why), _) => self.form.error(&failed(&self.head, &why, asked.forbids)),
            (FinishReason::Cancelled, Some(cut)) if !self.has_begun => self.form.error(&never_begun(&self.head, cut)),
            (reason, cut) => {
                let stats = together(std::slice::from_ref(&self.stats[number]));
                let end = End { reason, calls, stats, cut, prompt_len: asked.prompt_len, seed: asked.seed };
                with_warnings(self.form.end(&self.head, number, &end), &self.head.kind.ask().warnings)
            }
        });
        said
    }

    /// All is told.
    fn log(&mut self) {
        self.has_ended = true;
        self.head.log(&self.stats, self.run.cut());
        if self.head.app.settings.log_prompts {
            tracing::info!(id = self.head.id, texts = ?self.texts, "text");
        }
    }
}
