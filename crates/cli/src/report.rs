//! What generation took, in one line for a person.
//!
//! The definitions are those of `Stats`: tokens per pass counts every pass that emitted tokens, mean accepted length
//! only those that had a draft. Left out: objects for a program, which the library makes ([`foretoken::report`]).

use std::time::Duration;

use foretoken::report::{milliseconds, total};
use foretoken::{Answer, FinishReason};

/// The line on standard error. `wall` is given if several texts were written at a time.
pub fn line(answers: &[Answer], names: &[String], wall: Option<Duration>) -> String {
    let stats = total(answers.iter().map(|answer| &answer.stats));
    let rate = match wall {
        Some(wall) => Some(stats.emitted as f64 / wall.as_secs_f64().max(1e-9)),
        None => stats.tokens_per_second(),
    };
    let rate = rate.map_or(String::new(), |rate| format!(", {rate:.1} tokens/s"));
    let mut parts = vec![
        format!("{} tokens{rate}", stats.emitted),
        format!("{} passes of the target ({:.2} tokens a pass)", stats.passes, stats.tokens_per_pass()),
        format!("mean accepted length {:.2}", stats.mean_accepted_len()),
    ];
    for (name, drafter) in names.iter().zip(&stats.drafters) {
        let share = percent(drafter.acceptance_rate().unwrap_or(0.0));
        let alpha = drafter.alpha().map_or(String::new(), |alpha| format!(", alpha {alpha:.2}"));
        parts.push(format!("{name} accepted {share} ({} of {}{alpha})", drafter.accepted, drafter.drafted));
    }
    if stats.prompt_tokens_shared > 0 {
        parts.push(format!("{} of {} prompt tokens from the cache", stats.prompt_tokens_shared, stats.prompt_tokens));
    }
    if stats.preemptions > 0 {
        parts.push(format!("{} preemptions", stats.preemptions));
    }
    if wall.is_none() {
        parts.push(format!("first token after {:.1} ms", milliseconds(stats.time_to_first_token)));
    }
    if let [Answer { reason: Some(FinishReason::Context), .. }] = answers {
        parts.push("the context is full".to_string());
    }
    parts.join(" | ")
}

/// A share in whole percent. What rounds to nothing is 0%, never -0%.
pub fn percent(share: f64) -> String {
    format!("{:.0}%", (100.0 * share).round() + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_minus_nothing() {
        assert_eq!([0.0, -0.0, -0.001, 0.004, 0.625, 1.0].map(percent), ["0%", "0%", "0%", "0%", "63%", "100%"]);
    }
}
