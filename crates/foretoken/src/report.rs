//! Answers and statistics as JSON, with the fields that all front ends share.
//!
//! Finish reasons have OpenAI's names, timings have llama.cpp's, and the definitions of speculation are those of
//! [`Stats`]: tokens per pass counts every pass that emitted tokens, mean accepted length only those that had a draft.

use std::time::Duration;

use foretoken_engine::{BeamStats, DrafterStats, Emitted, FinishReason, Origin, Reliability, Stats};
use serde_json::{Map, Value, json};

use crate::{Answer, Record};

/// The sum of the statistics of several answers. Times are added up, so rates are per sequence.
pub fn total<'a>(all: impl Iterator<Item = &'a Stats>) -> Stats {
    let mut total = Stats::default();
    all.for_each(|stats| total.add(stats));
    total
}

/// A time in milliseconds.
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// OpenAI's name of a finish reason, or `context` if the context window was full. `None`, of a refused request, is
/// `failed`.
pub fn finish_reason(reason: Option<&FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::EndToken(_) | FinishReason::StopString(_)) => "stop",
        Some(FinishReason::Length) => "length",
        Some(FinishReason::Context) => "context",
        Some(FinishReason::Cancelled) => "cancelled",
        Some(FinishReason::Failed(_)) | None => "failed",
    }
}

/// The origin of each token: a drafter's name, `target`, or `forced` if the grammar allowed only this token.
pub fn origins<'a>(emitted: &[Emitted], names: &'a [String]) -> Vec<&'a str> {
    emitted.iter().map(|emitted| origin(emitted.origin, names)).collect()
}

/// The origin of a token, as in [`origins`]. `names`: of the drafters, by number.
pub fn origin(origin: Origin, names: &[String]) -> &str {
    match origin {
        Origin::Target => "target",
        Origin::Forced => "forced",
        Origin::Drafted(number) => names.get(usize::from(number)).map_or("unknown", String::as_str),
    }
}

/// Rounds to six significant digits; probabilities of f32 logits have fewer.
pub fn digits(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

/// Of drafted tokens with about the same expected acceptance: their number, the mean expected acceptance, and the
/// measured one.
fn reliability(bin: &Reliability) -> Value {
    let judged = bin.judged as f64;
    json!({
        "judged": bin.judged,
        "expected": digits(bin.expected / judged),
        "found": digits(bin.right as f64 / judged),
    })
}

/// Statistics of one drafter.
pub fn drafter(stats: &DrafterStats) -> Value {
    let by_depth = stats.drafted_at.iter().zip(stats.accepted_at.iter().chain(std::iter::repeat(&0)));
    let rate =
        |(drafted, accepted): (&usize, &usize)| (*drafted > 0).then(|| digits(*accepted as f64 / *drafted as f64));
    json!({
        "drafts": stats.drafts,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance_rate": stats.acceptance_rate(),
        "acceptance_rate_by_depth": by_depth.map(rate).collect::<Vec<_>>(),
        "mean_accepted_length": stats.mean_accepted_len(),
        "alpha": stats.alpha(),
        "drafting_ms": milliseconds(stats.time),
        "reliability": stats.reliability.iter().filter(|bin| bin.judged > 0).map(reliability).collect::<Vec<_>>(),
        "failures": stats.failures,
    })
}

/// The lenience of verification if it was lossy, for the field `lossy_lenience`, which other answers do not have.
pub fn lossy_lenience(stats: &Stats) -> Option<f64> {
    stats.lossy_lenience.map(|lenience| digits(f64::from(lenience)))
}

/// Adds the field `lossy_lenience` if verification was lossy.
pub fn tell_lossy(mut object: Value, stats: &Stats) -> Value {
    if let (Some(lenience), Some(fields)) = (lossy_lenience(stats), object.as_object_mut()) {
        fields.insert("lossy_lenience".to_string(), json!(lenience));
    }
    object
}

/// Times of a request, with llama.cpp's names. Of the `prompt_n` tokens of the prompt, the rows of `cache_n` were in
/// the prefix cache and not computed; `prompt_ms` is from the request's admission to its first token,
/// `time_to_first_token_ms` includes the time in the queue; `preemptions` is how often the sequence was preempted.
/// `lossy_lenience` is there only if verification was lossy.
pub fn timings(stats: &Stats) -> Value {
    let prefill = stats.time_to_first_token.saturating_sub(stats.time_waiting);
    let computed = stats.prompt_tokens.saturating_sub(stats.prompt_tokens_shared);
    let timings = json!({
        "prompt_n": stats.prompt_tokens,
        "cache_n": stats.prompt_tokens_shared,
        "preemptions": stats.preemptions,
        "prompt_ms": milliseconds(prefill),
        "prompt_per_second": (!prefill.is_zero()).then(|| computed as f64 / prefill.as_secs_f64()),
        "time_to_first_token_ms": milliseconds(stats.time_to_first_token),
        "predicted_n": stats.emitted,
        "predicted_ms": milliseconds(stats.time.saturating_sub(stats.time_to_first_token)),
        "predicted_per_second": stats.tokens_per_second(),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
    });
    tell_lossy(timings, stats)
}

/// Statistics of speculation, with `lossy_lenience` only if verification was lossy. `names`: of the drafters, by
/// number.
pub fn speculation(stats: &Stats, names: &[String]) -> Value {
    let drafters: Map<String, Value> =
        names.iter().zip(&stats.drafters).map(|(name, stats)| (name.clone(), drafter(stats))).collect();
    let mut speculation = json!({
        "passes": stats.passes,
        "prompt_passes": stats.prompt_passes,
        "drafts": stats.drafts,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "mean_accepted_length": stats.mean_accepted_len(),
        "tokens_per_pass": stats.tokens_per_pass(),
        "forced": stats.forced,
        "tokens_per_pass_without_forced": stats.asked_tokens_per_pass(),
        "modelled_speedup": stats.modelled_speedup(),
        "acceptance_rate": stats.acceptance_rate(),
        "accepted_lens": stats.accepted_lens,
        "drafters": drafters,
    });
    if let Some(beams) = beams(&stats.beams) {
        speculation["beams"] = beams;
    }
    tell_lossy(speculation, stats)
}

/// Statistics of a beam search; `None` if there was none. `inclusion_rate` is how often all of the next beams were
/// among the drafts, so that a step needed no pass of its own; `kept` are rows that passes were spared because some of
/// them were; `passes_ms` is the time of the passes after the first step.
pub fn beams(stats: &BeamStats) -> Option<Value> {
    let object = json!({
        "steps": stats.steps,
        "drafted": stats.drafted,
        "checked": stats.checked,
        "included": stats.included,
        "inclusion_rate": stats.inclusion_rate(),
        "kept": stats.kept,
        "passes_ms": 1e3 * stats.passes_time.as_secs_f64(),
    });
    (stats.steps > 0).then_some(object)
}

/// A whole answer; of a beam search its best hypothesis, with `score` and `log_probability` ([`Answer::each`] has the
/// others). `index`: its number among the answers to its prompt, from 0; `prompt` and `source`: their texts, where they
/// were given as such; `has_text`: whether the model has a tokenizer; `record`: of the run; `names`: of the drafters,
/// by number. What an encoder read is in `source` and `source_ids`, which no other answer has.
pub fn object(
    (index, answer): (usize, &Answer),
    [prompt, source]: [Option<&str>; 2],
    has_text: bool,
    record: &Record,
    names: &[String],
) -> Value {
    let each = |value: fn(&Emitted) -> Value| answer.emitted.iter().map(value).collect::<Vec<Value>>();
    let mut object = json!({
        "index": index,
        "prompt": prompt,
        "prompt_ids": answer.prompt,
        "text": has_text.then_some(&answer.text),
        "ids": answer.ids(),
        "origins": origins(&answer.emitted, names),
        "depths": each(|emitted| json!(emitted.depth)),
        "passes": each(|emitted| json!(emitted.pass)),
        "p": each(|emitted| json!(digits(emitted.p))),
        "q": each(|emitted| json!(emitted.q.map(|q| digits(f64::from(q))))),
        "finish_reason": finish_reason(answer.reason.as_ref()),
        "error": answer.failure,
        "seed": answer.seed,
        "request": answer.request,
        "timings": timings(&answer.stats),
        "speculation": speculation(&answer.stats, names),
        "record": record,
    });
    if let Some(ids) = &answer.source {
        (object["source"], object["source_ids"]) = (json!(source), json!(ids[..]));
    }
    if let Some(beam) = answer.beams.first() {
        (object["score"], object["log_probability"]) = (json!(digits(beam.score)), json!(digits(beam.log_probability)));
    }
    let logprobs: Option<Vec<f32>> = answer.emitted.iter().map(|emitted| emitted.log_probability).collect();
    if let (Some(logprobs), Some(fields), false) = (logprobs, object.as_object_mut(), answer.emitted.is_empty()) {
        fields.insert("logprobs".to_string(), json!(logprobs));
    }
    object
}
