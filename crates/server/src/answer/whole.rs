//! Answers that are told when all of them are complete.
//!
//! Of `best_of` answers those are told whose tokens have the highest mean log-probability, as OpenAI has it.

use std::time::Instant;

use foretoken::{Answer, Drafted, Event, FinishReason, Stats};
use serde_json::{Value, json};

use super::log_probabilities::{Told, of_chat, of_completion};
use super::pieces::{CallsTold, PieceReader};
use super::stream::echoed;
use super::{ChoiceJson, Head, Kind, call_object, finish_reason, provenance};
use crate::error::ApiError;
use crate::run::{Asked, Cut, Next, Run};

/// All that is heard of one answer.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) answer: Answer,
    drafted: Vec<Drafted>,
}

/// Waits for all answers, and tells them.
pub(crate) async fn tell(head: Head, mut run: Run) -> Result<String, ApiError> {
    let all = heard(&head, &mut run).await?;
    // There may be much of it to write.
    let told = tokio::task::spawn_blocking(move || object(&head, &run, &all));
    told.await.map_err(|error| ApiError::bug(format!("answer: expected it to be written, found a bug: {error}")))
}

/// Waits for all answers.
///
/// # Errors
/// None of them could go on, or they were cut before anything was written.
pub(super) async fn heard(head: &Head, run: &mut Run) -> Result<Vec<Heard>, ApiError> {
    let answer = |asked: &Asked| Answer { seed: asked.seed, ..Answer::default() };
    let mut all: Vec<Heard> =
        run.asked().iter().map(|asked| Heard { answer: answer(asked), drafted: Vec::new() }).collect();
    loop {
        match run.next().await {
            Next::End => break,
            Next::Nothing => {}
            Next::Event(number, Event::Drafts { drafted, .. }) => all[number].drafted.extend(drafted),
            Next::Event(number, event) => all[number].answer.take(&event, Instant::now()),
        }
    }
    let why = |heard: &Heard| heard.answer.failure.clone();
    if let (Some(why), true) = (all.iter().find_map(why), all.iter().all(|heard| heard.answer.failure.is_some())) {
        return Err(failed(head, &why, run.asked()[0].forbids));
    }
    if let (Some(cut), true) = (run.cut(), all.iter().all(|heard| heard.answer.emitted.is_empty())) {
        return Err(never_begun(head, cut));
    }
    let stats: Vec<Stats> = all.iter().map(|heard| heard.answer.stats.clone()).collect();
    head.log(&stats, run.cut());
    if head.app.settings.log_prompts {
        let texts: Vec<&str> = all.iter().map(|heard| heard.answer.text.as_str()).collect();
        tracing::info!(id = head.id, ?texts, "text");
    }
    Ok(all)
}

/// The whole of it, as JSON.
fn object(head: &Head, run: &Run, all: &[Heard]) -> String {
    let stats: Vec<Stats> = all.iter().map(|heard| heard.answer.stats.clone()).collect();
    let (answers, best_of) = (head.kind.ask().answers, head.kind.ask().best_of);
    let mut choices = Vec::new();
    for (prompt, group) in all.chunks(best_of).enumerate() {
        let mut group: Vec<(usize, &Heard)> = group.iter().enumerate().collect();
        if best_of > answers {
            group.sort_by(|(_, a), (_, b)| mean(b).total_cmp(&mean(a)));
        }
        for (place, heard) in group.into_iter().take(answers) {
            let asked = &run.asked()[prompt * best_of + place];
            choices.push(choice(head, run, (prompt, asked), choices.len(), heard));
        }
    }
    let extras = [("usage", head.usage(run.asked(), &stats)), ("timings", head.timings(&stats))];
    head.object(false, &choices, extras.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}

/// Why a text could not go on, to who asked for it. `forbids`: whether the request itself forbids tokens.
pub(super) fn failed(head: &Head, why: &str, forbids: bool) -> ApiError {
    // The engine says so where no token was left, which is then the request's doing.
    match forbids && why.starts_with("token ") {
        true => ApiError::field("logit_bias", why),
        false => head.kind.ask().named(ApiError::of_failure(why)),
    }
}

/// Why nothing was written: whoever asked may ask again.
pub(super) fn never_begun(head: &Head, cut: Cut) -> ApiError {
    match cut {
        Cut::Timeout => {
            let seconds = head.app.settings.timeout_s;
            ApiError::busy(format!("request: expected to begin in time ({seconds} s), found others before it"), 5)
        }
        Cut::Shutdown => {
            let error = ApiError::busy("server: expected one that runs on, found it about to end", 5);
            ApiError { code: Some("shutdown"), ..error }
        }
    }
}

/// The mean log-probability of an answer's tokens; of an empty one less than any.
fn mean(heard: &Heard) -> f32 {
    let tokens = heard.answer.emitted.len();
    let all = heard.answer.emitted.iter().filter_map(|emitted| emitted.log_probability);
    if tokens == 0 { f32::NEG_INFINITY } else { all.sum::<f32>() / tokens as f32 }
}

/// One answer to a prompt of this number.
fn choice(head: &Head, run: &Run, (prompt, asked): (usize, &Asked), index: usize, heard: &Heard) -> ChoiceJson {
    let (answer, prompter) = (&heard.answer, head.prompter());
    let reason = answer.reason.as_ref().unwrap_or(&FinishReason::Cancelled);
    let wants = head.kind.ask().log_probabilities.is_some();
    let written = Told::all(&answer.emitted, &asked.end_tokens);
    let mut fields = json!({ "index": index, "seed": answer.seed });
    let mut logprobs = None;
    match &head.kind {
        Kind::Chat(_) => {
            let (message, calls) = message(head, index, &answer.text);
            fields["message"] = message;
            fields["finish_reason"] = json!(finish_reason(reason, calls));
            logprobs = wants.then(|| of_chat(written, prompter));
        }
        Kind::Completion(completion) => {
            let echo = completion.echo.then(|| echoed(completion, prompt, prompter));
            fields["text"] = json!(echo.unwrap_or_default() + &answer.text);
            fields["finish_reason"] = json!(finish_reason(reason, CallsTold::default()));
            if wants {
                let told = answer.scored.iter().map(Told::scored).chain(written);
                logprobs = Some(of_completion(told, prompter, &mut 0));
            }
        }
    }
    if let (Some(cut), FinishReason::Cancelled) = (run.cut(), reason) {
        fields["cut_by"] = json!(cut.name());
    }
    if let FinishReason::Failed(why) = reason {
        fields["error"] = failed(head, why, asked.forbids).object()["error"].take();
    }
    if head.kind.ask().provenance {
        fields["provenance"] = provenance::of_tokens(&answer.emitted, prompter);
        fields["drafted"] = provenance::of_drafts(&heard.drafted, prompter);
    }
    let Value::Object(fields) = fields else { unreachable!("it was made as an object") };
    ChoiceJson { fields, logprobs }
}

/// A turn's thoughts, text and calls; and what is told of calls.
fn message(head: &Head, index: usize, text: &str) -> (Value, CallsTold) {
    let mut reader = PieceReader::new(&head.kind);
    let mut pieces = reader.push(text);
    pieces.extend(reader.finish());
    let calls = pieces.calls.iter().map(|(number, call)| call_object(head, index, *number, call));
    let calls: Vec<Value> = calls.collect();
    let silent = pieces.text.is_empty() && (!calls.is_empty() || reader.is_forced());
    let content = if silent { Value::Null } else { json!(pieces.text) };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !pieces.thoughts.is_empty() {
        message["reasoning_content"] = json!(pieces.thoughts);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    (message, reader.told())
}
