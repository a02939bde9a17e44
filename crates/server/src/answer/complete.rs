//! Answers that are returned once all of them are complete.
//!
//! With `best_of`, the answers with the highest mean log-probability per token are returned, as with OpenAI. A beam
//! search has several answers, which are in order.

use std::borrow::Cow;
use std::time::Instant;

use foretoken::{Answer, FinishReason, Stats};
use serde_json::{Value, json};

use super::log_probabilities::{TokenLogProbability, chat_log_probabilities, completion_log_probabilities};
use super::parts::{AnswerParser, ReportedCalls};
use super::stream::echoed_prompt;
use super::{AnswerContext, ChoiceJson, RequestKind, call_object, finish_reason, of_beam, provenance, with_all_beams};
use crate::error::ApiError;
use crate::run::{CutReason, RequestRecord, Run, RunEvent};

/// Waits for all answers, and returns their JSON object.
pub(crate) async fn answer(context: AnswerContext, mut run: Run) -> Result<String, ApiError> {
    let all = collect(&context, &mut run).await?;
    // The object may be large.
    let text = tokio::task::spawn_blocking(move || object(&context, run.records(), run.cut(), &all));
    text.await.map_err(|error| ApiError::bug(format!("answer: expected it to be written, found a bug: {error}")))
}

/// Waits for all answers.
///
/// # Errors
/// All of them failed, or they were cut before any token was generated.
pub(super) async fn collect(context: &AnswerContext, run: &mut Run) -> Result<Vec<Answer>, ApiError> {
    let answer = |record: &RequestRecord| Answer { seed: record.seed, ..Answer::default() };
    let mut all: Vec<Answer> = run.records().iter().map(answer).collect();
    loop {
        match run.next().await {
            RunEvent::End => break,
            RunEvent::Idle => {}
            RunEvent::Event(number, event) => all[number].take(&event, Instant::now()),
        }
    }
    check(context, run.records(), &all)?;
    if let (Some(cut), true) = (run.cut(), !all.iter().any(Answer::has_tokens)) {
        return Err(cut_before_start(context, cut));
    }
    let stats: Vec<Stats> = all.iter().map(|answer| with_all_beams(&answer.stats, &answer.beams)).collect();
    context.log(&stats, run.cut());
    if context.settings.log_prompts {
        let texts: Vec<&str> = all.iter().map(|answer| answer.text.as_str()).collect();
        tracing::info!(id = context.id, ?texts, "text");
    }
    Ok(all)
}

/// Checks that not all answers failed.
///
/// # Errors
/// All of them failed.
pub(crate) fn check(context: &AnswerContext, records: &[RequestRecord], all: &[Answer]) -> Result<(), ApiError> {
    match all.iter().find_map(|answer| answer.failure.as_ref()) {
        Some(why) if all.iter().all(|answer| answer.failure.is_some()) => Err(failed(context, why, records[0].forbids)),
        _ => Ok(()),
    }
}

/// The JSON text of all answers.
pub(crate) fn object(
    context: &AnswerContext,
    records: &[RequestRecord],
    cut: Option<CutReason>,
    all: &[Answer],
) -> String {
    let stats: Vec<Stats> = all.iter().map(|answer| with_all_beams(&answer.stats, &answer.beams)).collect();
    let (answers, per_prompt) = (context.kind.options().answers, context.kind.options().requests_per_prompt());
    let mut choices = Vec::new();
    for (prompt, group) in all.chunks(per_prompt).enumerate() {
        let each = group.iter().enumerate().map(|(index, answer)| (index, answer.each()));
        let mut group: Vec<(usize, Cow<'_, Answer>)> =
            each.flat_map(|(index, all)| all.into_iter().map(move |one| (index, one))).collect();
        if per_prompt > answers {
            group.sort_by(|(_, a), (_, b)| mean_log_probability(b).total_cmp(&mean_log_probability(a)));
        }
        for (index, answer) in group.into_iter().take(answers) {
            let record = &records[prompt * per_prompt + index];
            choices.push(choice(context, cut, (prompt, record), choices.len(), &answer));
        }
    }
    let extras = [("usage", context.usage(records, &stats)), ("timings", context.timings(&stats))];
    context.object(false, &choices, extras.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}

/// The error that the client gets for a failed request. `forbids`: whether the request itself forbids tokens.
pub(crate) fn failed(context: &AnswerContext, why: &str, forbids: bool) -> ApiError {
    // The engine's error if no token is allowed, which is then caused by the request.
    match forbids && why.starts_with("token ") {
        true => ApiError::field("logit_bias", why),
        false => context.kind.options().attribute(ApiError::from_failure(why)),
    }
}

/// The error if no token was generated before the cut; the client may retry.
pub(crate) fn cut_before_start(context: &AnswerContext, cut: CutReason) -> ApiError {
    match cut {
        CutReason::Timeout => {
            let seconds = context.settings.timeout_s;
            ApiError::busy(
                format!("request: expected to begin in time ({seconds} s), found other requests ahead of it"),
                5,
            )
        }
        CutReason::Shutdown => ApiError::shutting_down(),
    }
}

/// The mean log-probability of an answer's tokens; that of an empty answer is the lowest.
fn mean_log_probability(answer: &Answer) -> f32 {
    let tokens = answer.emitted.len();
    let all = answer.emitted.iter().filter_map(|emitted| emitted.log_probability);
    if tokens == 0 { f32::NEG_INFINITY } else { all.sum::<f32>() / tokens as f32 }
}

/// One answer to the prompt with this index.
fn choice(
    context: &AnswerContext,
    cut: Option<CutReason>,
    (prompt, record): (usize, &RequestRecord),
    index: usize,
    answer: &Answer,
) -> ChoiceJson {
    let prompter = context.prompter();
    let reason = answer.reason.as_ref().unwrap_or(&FinishReason::Cancelled);
    let wants_log_probabilities = context.kind.options().log_probabilities.is_some();
    let generated = TokenLogProbability::without_end_tokens(&answer.emitted, &record.end_tokens);
    let mut fields = json!({ "index": index, "seed": answer.seed });
    let mut logprobs = None;
    match &context.kind {
        RequestKind::Chat(_) => {
            let (message, calls) = message(context, index, &answer.text);
            fields["message"] = message;
            fields["finish_reason"] = json!(finish_reason(reason, calls));
            logprobs = wants_log_probabilities.then(|| chat_log_probabilities(generated, prompter));
        }
        RequestKind::Completion(completion) => {
            let echo = completion.echo.then(|| echoed_prompt(completion, prompt, prompter));
            fields["text"] = json!(echo.unwrap_or_default() + &answer.text);
            fields["finish_reason"] = json!(finish_reason(reason, ReportedCalls::default()));
            if wants_log_probabilities {
                let tokens = answer.scored.iter().map(TokenLogProbability::scored).chain(generated);
                logprobs = Some(completion_log_probabilities(tokens, prompter, &mut 0));
            }
        }
    }
    for (name, value) in answer.beams.first().map(of_beam).into_iter().flatten() {
        fields[name] = value;
    }
    if let (Some(cut), FinishReason::Cancelled) = (cut, reason) {
        fields["cut_by"] = json!(cut.name());
    }
    if let FinishReason::Failed(why) = reason {
        fields["error"] = failed(context, why, record.forbids).object()["error"].take();
    }
    if context.kind.options().provenance {
        fields["provenance"] = provenance::tokens_json(&answer.emitted, prompter);
        fields["drafted"] = provenance::drafts_json(&answer.drafted, prompter);
    }
    let Value::Object(fields) = fields else { unreachable!("it was made as an object") };
    ChoiceJson { fields, logprobs }
}

/// The message with reasoning, text and calls; and the calls that it has.
fn message(context: &AnswerContext, index: usize, text: &str) -> (Value, ReportedCalls) {
    let mut parser = AnswerParser::new(&context.kind);
    let mut parts = parser.push(text);
    parts.extend(parser.finish());
    let calls = parts.calls.iter().map(|(number, call)| call_object(context, index, *number, call));
    let calls: Vec<Value> = calls.collect();
    let is_silent = parts.text.is_empty() && (!calls.is_empty() || parser.is_forced());
    let content = if is_silent { Value::Null } else { json!(parts.text) };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !parts.reasoning.is_empty() {
        message["reasoning_content"] = json!(parts.reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    (message, parser.reported_calls())
}
