//! Answers that are told while they are written, as server-sent events.
//!
//! The idea: what a pass wrote is one event, however many tokens that are, so a client sees text as soon as it is
//! certain and a fast model does not drown in headers. Text that may yet turn out to be a stop string, half a character
//! or a call of a tool is held back until it is known. What goes wrong in the middle is told as an `error` event, and
//! what was written before it stands. Left out: what events say (`answer.rs`).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Instant;

use axum::body::Bytes;
use axum::response::Response;
use foretoken::{Drafted, Emitted, Event, FinishReason, Prompt, Prompter, Scored, Stats};
use futures_util::stream::unfold;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::form::{EVENTS, Progress, streamed};
use super::log_probabilities::{Told, of_chat, of_completion};
use super::pieces::{PieceReader, Pieces};
use super::whole::{failed, never_begun};
use super::{ChoiceJson, Head, Kind, call_object, finish_reason, provenance};
use crate::ask::completion::CompletionAsk;
use crate::run::{Next, Run};

/// One answer on its way.
struct Choice {
    reader: PieceReader,
    /// Characters that were told, for log-probabilities.
    offset: usize,
    drafted: Vec<Drafted>,
    /// Scored tokens of a prompt that is told with its text when all of it is known.
    scored: Vec<Scored>,
    stats: Stats,
    /// What was told, if texts are logged.
    text: String,
}

/// See the head of this file.
struct Stream {
    head: Head,
    run: Run,
    choices: Vec<Choice>,
    ready: VecDeque<String>,
    begun: Instant,
    /// Answers that go on.
    open: usize,
    /// Whether anything was written.
    has_begun: bool,
    ended: bool,
}

/// The response that tells the answers.
pub(crate) fn response(head: Head, run: Run) -> Response {
    let mut stream = Stream::new(head, run);
    stream.begin();
    let next = |mut stream: Stream| async move {
        let bytes = stream.next().await?;
        Some((Ok::<Bytes, Infallible>(bytes), stream))
    };
    streamed(EVENTS, unfold(stream, next))
}

/// The text that an echo of a prompt has.
pub(super) fn echoed(completion: &CompletionAsk, prompt: usize, prompter: &Prompter) -> String {
    match (&completion.prompts[prompt], &prompter.tokenizer) {
        (Prompt::Text(text), _) => text.clone(),
        (Prompt::Ids(ids), Some(tokenizer)) => tokenizer.decode(ids, true),
        (Prompt::Ids(_), None) | (Prompt::Chat(_), _) => String::new(),
    }
}

impl Stream {
    fn new(head: Head, run: Run) -> Self {
        let choice = |_: usize| Choice {
            reader: PieceReader::new(&head.kind),
            offset: 0,
            drafted: Vec::new(),
            scored: Vec::new(),
            stats: Stats::default(),
            text: String::new(),
        };
        let open = run.asked().len();
        let choices = (0..open).map(choice).collect();
        Self { head, run, choices, ready: VecDeque::new(), begun: Instant::now(), open, has_begun: false, ended: false }
    }

    /// What stands before the first token: the role, or the prompt.
    fn begin(&mut self) {
        for index in 0..self.choices.len() {
            match &self.head.kind {
                Kind::Chat(_) => self.say(index, json!({ "role": "assistant", "content": "" }), Map::new(), None),
                Kind::Completion(completion) if completion.echo && completion.ask.log_probabilities.is_none() => {
                    let text = echoed(completion, index / completion.ask.best_of, self.head.prompter());
                    self.say(index, json!(text), Map::new(), None);
                }
                Kind::Completion(_) => {}
            }
        }
    }

    /// The next bytes; all that is ready goes out together.
    async fn next(&mut self) -> Option<Bytes> {
        while self.ready.is_empty() && !self.ended {
            match self.run.next().await {
                Next::Nothing => self.ready.push_back(": nothing new yet\n\n".to_string()),
                Next::End => self.end(),
                Next::Event(number, event) => self.take(number, event),
            }
        }
        if self.ready.is_empty() {
            return None;
        }
        Some(Bytes::from(self.ready.drain(..).collect::<String>()))
    }

    fn take(&mut self, number: usize, event: Event) {
        match event {
            Event::Prompt { done, total, shared, .. } => self.progress(number, Progress { done, total, shared }),
            Event::DrafterFailed { .. } => {}
            Event::PromptScored { scored, .. } => self.score(number, scored),
            Event::Drafts { drafted, .. } => self.choices[number].drafted.extend(drafted),
            Event::Tokens { emitted, .. } => self.write(number, &emitted),
            Event::Finished { reason, text, stats, .. } => {
                self.choices[number].stats = *stats;
                self.finish(number, &reason, &text);
            }
        }
    }

    /// Tells how much of a prompt is read, where that is asked for.
    fn progress(&mut self, number: usize, progress: Progress) {
        if !self.head.kind.ask().progress {
            return;
        }
        let progress = progress.object(self.begun.elapsed());
        let said = if self.head.kind.is_chat() { json!({}) } else { json!("") };
        let choice = self.choice(number, said, Map::new(), None);
        self.push(&[choice], Map::from_iter([("prompt_progress".to_string(), progress)]));
    }

    /// Tells the prompt with its log-probabilities, once all of it is scored.
    fn score(&mut self, number: usize, scored: Vec<Scored>) {
        let Kind::Completion(completion) = &self.head.kind else { return };
        let choice = &mut self.choices[number];
        choice.scored.extend(scored);
        if choice.scored.len() < self.run.asked()[number].prompt_len {
            return;
        }
        let text = echoed(completion, number / completion.ask.best_of, self.head.prompter());
        let told = std::mem::take(&mut choice.scored);
        let told = of_completion(told.iter().map(Told::scored), self.head.prompter(), &mut choice.offset);
        self.say(number, json!(text), Map::new(), Some(told));
    }

    /// Tells what a pass wrote.
    fn write(&mut self, number: usize, emitted: &[Emitted]) {
        self.has_begun = true;
        let text: String = emitted.iter().map(|emitted| emitted.text.as_str()).collect();
        let choice = &mut self.choices[number];
        let mut extras = Map::new();
        let mut told = None;
        if self.head.kind.ask().log_probabilities.is_some() {
            let written = Told::all(emitted, &self.run.asked()[number].end_tokens);
            told = Some(match &self.head.kind {
                Kind::Chat(_) => of_chat(written, &self.head.app.prompter),
                Kind::Completion(_) => of_completion(written, &self.head.app.prompter, &mut choice.offset),
            });
        }
        if self.head.kind.ask().provenance {
            let drafted = std::mem::take(&mut choice.drafted);
            extras.insert("provenance".into(), provenance::of_tokens(emitted, &self.head.app.prompter));
            extras.insert("drafted".into(), provenance::of_drafts(&drafted, &self.head.app.prompter));
        }
        let pieces = self.choices[number].reader.push(&text);
        self.tell(number, pieces, extras, told);
    }

    /// Tells thoughts, text, and calls of tools.
    fn tell(&mut self, number: usize, pieces: Pieces, extras: Map<String, Value>, told: Option<Box<RawValue>>) {
        let Pieces { thoughts, text, calls } = pieces;
        if !thoughts.is_empty() || !text.is_empty() || !extras.is_empty() || told.is_some() {
            match &self.head.kind {
                Kind::Chat(_) => {
                    let mut delta = Map::new();
                    if !text.is_empty() || thoughts.is_empty() {
                        delta.insert("content".to_string(), json!(text));
                    }
                    if !thoughts.is_empty() {
                        delta.insert("reasoning_content".to_string(), json!(thoughts));
                    }
                    self.say(number, Value::Object(delta), extras, told);
                }
                Kind::Completion(_) => self.say(number, json!(text), extras, told),
            }
        }
        for (place, call) in &calls {
            let call = call_object(&self.head, number, *place, call);
            self.say(number, json!({ "tool_calls": [call] }), Map::new(), None);
        }
    }

    /// Tells the end of an answer.
    fn finish(&mut self, number: usize, reason: &FinishReason, held: &str) {
        let reader = &mut self.choices[number].reader;
        let mut rest = reader.push(held);
        rest.extend(reader.finish());
        self.tell(number, rest, Map::new(), None);
        if let FinishReason::Failed(why) = reason {
            let error = failed(&self.head, why, self.run.asked()[number].forbids);
            self.ready.push_back(format!("data: {}\n\n", error.object()));
            return;
        }
        let choice = &self.choices[number];
        if let (Some(cut), FinishReason::Cancelled, false) = (self.run.cut(), reason, self.has_begun) {
            // Once for all answers.
            if number == 0 {
                self.ready.push_back(format!("data: {}\n\n", never_begun(&self.head, cut).object()));
            }
            return;
        }
        let mut extras = Map::new();
        extras.insert("finish_reason".into(), json!(finish_reason(reason, choice.reader.told())));
        extras.insert("seed".into(), json!(self.run.asked()[number].seed));
        if let (Some(cut), FinishReason::Cancelled) = (self.run.cut(), reason) {
            extras.insert("cut_by".into(), json!(cut.name()));
        }
        let delta = if self.head.kind.is_chat() { json!({}) } else { json!("") };
        let timings = self.head.timings(std::slice::from_ref(&choice.stats));
        let choice = self.choice(number, delta, extras, None);
        self.open -= 1;
        let mut further = Map::from_iter([("timings".to_string(), timings)]);
        if self.open == 0 && !self.head.kind.ask().stream.is_some_and(|stream| stream.include_usage) {
            // Who does not ask for it as OpenAI has it may still look for it at the end.
            further.insert("usage".to_string(), self.head.usage(self.run.asked(), &self.stats()));
        }
        self.push(&[choice], further);
    }

    fn stats(&self) -> Vec<Stats> {
        self.choices.iter().map(|choice| choice.stats.clone()).collect()
    }

    /// Tells that all answers are told.
    fn end(&mut self) {
        self.ended = true;
        let stats = self.stats();
        self.head.log(&stats, self.run.cut());
        if self.head.app.settings.log_prompts {
            let texts: Vec<&str> = self.choices.iter().map(|choice| choice.text.as_str()).collect();
            tracing::info!(id = self.head.id, ?texts, "text");
        }
        if self.head.kind.ask().stream.is_some_and(|stream| stream.include_usage) {
            let (usage, timings) = (self.head.usage(self.run.asked(), &stats), self.head.timings(&stats));
            let further = [("usage", usage), ("timings", timings)].map(|(name, value)| (name.to_string(), value));
            self.push(&[], Map::from_iter(further));
        }
        self.ready.push_back("data: [DONE]\n\n".to_string());
    }

    /// A choice of a chunk. `said`: the delta of a chat, the text of a completion.
    fn choice(
        &self,
        number: usize,
        said: Value,
        extras: Map<String, Value>,
        logprobs: Option<Box<RawValue>>,
    ) -> ChoiceJson {
        let name = if self.head.kind.is_chat() { "delta" } else { "text" };
        let own = [("index", json!(number)), (name, said), ("finish_reason", Value::Null)];
        let own = own.into_iter().map(|(name, value)| (name.to_string(), value));
        ChoiceJson { fields: own.chain(extras).collect(), logprobs }
    }

    fn say(&mut self, number: usize, said: Value, extras: Map<String, Value>, told: Option<Box<RawValue>>) {
        if self.head.app.settings.log_prompts {
            let parts = [said.as_str(), said["reasoning_content"].as_str(), said["content"].as_str()];
            parts.into_iter().flatten().for_each(|text| self.choices[number].text.push_str(text));
        }
        let choice = self.choice(number, said, extras, told);
        self.push(&[choice], Map::new());
    }

    fn push(&mut self, choices: &[ChoiceJson], extras: Map<String, Value>) {
        let object = self.head.object(true, choices, extras);
        self.ready.push_back(format!("data: {object}\n\n"));
    }
}
