//! Answers that are told when all of them are complete.
//!
//! Of `best_of` answers those are told whose tokens have the highest mean log-probability, as OpenAI has it.

use std::time::Instant;

use foretoken::{Answer, Drafted, Event, FinishReason, Stats};
use serde_json::{Value, json};

use super::log_probabilities::{Told, of_chat, of_completion};
use super::{Head, Kind, call_object, finish_reason, provenance};
use crate::ask::chat::parted;
use crate::error::ApiError;
use crate::run::{Next, Run};

/// All that is heard of one answer.
#[derive(Default)]
struct Heard {
    answer: Answer,
    drafted: Vec<Drafted>,
}

/// Waits for all answers, and tells them.
pub(crate) async fn tell(head: &Head, mut run: Run) -> Result<Value, ApiError> {
    let mut all: Vec<Heard> =
        run.requests().iter().map(|request| Heard { answer: Answer::to(request), ..Heard::default() }).collect();
    loop {
        match run.next().await {
            Next::End => break,
            Next::Nothing => {}
            Next::Event(number, Event::Drafts { drafted, .. }) => all[number].drafted.extend(drafted),
            Next::Event(number, event) => all[number].answer.take(&event, Instant::now()),
        }
    }
    if let Some(why) = all.iter().find_map(|heard| heard.answer.failure.as_deref()) {
        return Err(failed(why));
    }
    if run.cut.is_some() && all.iter().all(|heard| heard.answer.emitted.is_empty()) {
        return Err(ApiError::busy("request: expected an answer in time, found none: others were before it", 5));
    }
    let stats: Vec<Stats> = all.iter().map(|heard| heard.answer.stats.clone()).collect();
    head.log(&stats, run.cut);
    let (answers, best_of) = (head.kind.ask().answers, head.kind.ask().best_of);
    let mut choices = Vec::new();
    for (prompt, group) in all.chunks(best_of).enumerate() {
        let mut group: Vec<&Heard> = group.iter().collect();
        if best_of > answers {
            group.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        }
        for heard in group.into_iter().take(answers) {
            choices.push(choice(head, &run, prompt, choices.len(), heard));
        }
    }
    if head.app.settings.log_prompts {
        let texts: Vec<&str> = all.iter().map(|heard| heard.answer.text.as_str()).collect();
        tracing::info!(id = head.id, ?texts, "text");
    }
    let mut object = head.object(false, choices);
    object.insert("usage".into(), head.usage(run.requests(), &stats));
    object.insert("timings".into(), head.timings(&stats));
    Ok(Value::Object(object))
}

/// Why a text could not go on, to who asked for it.
pub(super) fn failed(why: &str) -> ApiError {
    // What a request forbids is its own doing: there was no token left.
    if why.starts_with("token ") { ApiError::bad(why) } else { ApiError::bug(why) }
}

/// The mean log-probability of an answer's tokens.
fn mean(heard: &Heard) -> f32 {
    let all = heard.answer.emitted.iter().filter_map(|emitted| emitted.log_probability);
    all.sum::<f32>() / heard.answer.emitted.len().max(1) as f32
}

/// One answer. `prompt`: the number of its prompt.
fn choice(head: &Head, run: &Run, prompt: usize, index: usize, heard: &Heard) -> Value {
    let (answer, prompter) = (&heard.answer, head.prompter());
    let reason = answer.reason.as_ref().unwrap_or(&FinishReason::Cancelled);
    let written = match reason {
        FinishReason::EndToken(_) => &answer.emitted[..answer.emitted.len().saturating_sub(1)],
        _ => &answer.emitted[..],
    };
    let wants = head.kind.ask().log_probabilities.is_some();
    let mut choice = json!({ "index": index, "logprobs": null, "seed": answer.seed });
    match &head.kind {
        Kind::Chat(chat) => {
            let (text, calls) = match chat.reader(prompter) {
                Some(mut reader) => {
                    let mut pieces = reader.push(&answer.text);
                    pieces.extend(reader.finish());
                    parted(pieces)
                }
                None => (answer.text.clone(), Vec::new()),
            };
            let most = if chat.parallel_calls { usize::MAX } else { 1 };
            let calls = calls.iter().take(most).enumerate();
            let calls: Vec<Value> = calls.map(|(number, call)| call_object(head, index, number, call)).collect();
            let silent = text.trim().is_empty() && !calls.is_empty();
            let content = if silent { Value::Null } else { json!(text) };
            choice["message"] = json!({ "role": "assistant", "content": content, "refusal": null });
            choice["finish_reason"] = json!(finish_reason(reason, !calls.is_empty()));
            if !calls.is_empty() {
                choice["message"]["tool_calls"] = Value::Array(calls);
            }
            if wants {
                choice["logprobs"] = of_chat(written.iter().map(Told::emitted), prompter);
            }
        }
        Kind::Completion(completion) => {
            let before =
                if completion.echo { super::stream::echoed(completion, prompt, prompter) } else { String::new() };
            choice["text"] = json!(before + &answer.text);
            choice["finish_reason"] = json!(finish_reason(reason, false));
            if wants {
                let told = answer.scored.iter().map(Told::scored).chain(written.iter().map(Told::emitted));
                choice["logprobs"] = of_completion(told, prompter, &mut 0);
            }
        }
    }
    if let (Some(cut), FinishReason::Cancelled) = (run.cut, reason) {
        choice["cut_by"] = json!(cut.name());
    }
    if head.kind.ask().provenance {
        choice["provenance"] = provenance::of_tokens(&answer.emitted, prompter);
        choice["drafted"] = provenance::of_drafts(&heard.drafted, prompter);
    }
    choice
}
