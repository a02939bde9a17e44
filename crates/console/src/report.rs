//! Statistics of a generation for people: one line of at most 100 characters, and more with `-v`.
//!
//! They are printed if standard error is a terminal, and with `-v`, so that pipes and logs get none. The definitions
//! are those of `Stats`: tokens per pass counts every pass that emitted tokens, mean accepted length only those that
//! had a draft. The library writes JSON for programs ([`foretoken::report`]).

use std::io::IsTerminal;
use std::time::Duration;

use foretoken::report::{milliseconds, total};
use foretoken::{Answer, FinishReason, Stats};
use serde_json::Value;

use crate::clock;
use crate::progress::{detail, say};
use crate::verbosity::{quiet, verbose};

/// The most characters of the line of statistics.
const LINE_MAX: usize = 100;

/// Whether statistics are printed.
pub fn is_wanted() -> bool {
    verbose() || (std::io::stderr().is_terminal() && !quiet())
}

/// Prints the statistics of answers, if they are wanted. `wall`: the elapsed time, if several sequences ran at a time.
pub fn tell(answers: &[Answer], names: &[String], wall: Option<Duration>) {
    if is_wanted() && answers.iter().any(|answer| answer.stats.passes > 0) {
        say(short(answers, wall));
        details(answers, names).iter().for_each(detail);
    }
}

/// Prints which guided texts were cut and may therefore not match their grammar.
pub fn tell_cut(answers: &[Answer], is_guided: bool) {
    for (number, answer) in answers.iter().enumerate().filter(|_| is_guided) {
        let why = match &answer.reason {
            Some(FinishReason::Length) => "-n, --n-predict",
            Some(FinishReason::Context) => "the end of the context",
            Some(FinishReason::StopString(_)) => "a stop string",
            _ => continue,
        };
        let which = if answers.len() > 1 { format!("answer {}: ", number + 1) } else { String::new() };
        say(format!("note: {which}the text was cut by {why} and is not whole: it may not match its grammar"));
    }
}

/// The time from the program's start to the first token of these answers.
fn first_token(answers: &[Answer]) -> Option<Duration> {
    let first = answers.iter().filter_map(|answer| answer.arrivals.first()).map(|(time, _)| *time).min();
    first.map(clock::from_start)
}

/// Adds to the JSON of an answer the times that are measured from the program's start.
pub fn with_times(mut object: Value, answer: &Answer) -> Value {
    if let Some(timings) = object.get_mut("timings").and_then(Value::as_object_mut) {
        timings.insert("load_ms".to_string(), milliseconds(clock::load_time()).into());
        let first = first_token(std::slice::from_ref(answer)).map(milliseconds);
        timings.insert("first_token_ms".to_string(), first.into());
    }
    object
}

/// The line of statistics, without its least important parts if it would be too long.
fn short(answers: &[Answer], wall: Option<Duration>) -> String {
    let stats = total(answers.iter().map(|answer| &answer.stats));
    // Each part with its rank: those of the highest rank are dropped first, those of rank 0 never.
    let mut parts = vec![(0, speed(&stats, wall))];
    if answers.len() > 1 {
        parts.insert(0, (0, format!("{} texts", answers.len())));
    }
    parts.extend(lossy(&stats).map(|lossy| (0, lossy)));
    parts.push((2, format!("load {}", time(clock::load_time()))));
    if let [answer] = answers {
        let tokens = match (stats.prompt_tokens, stats.prompt_tokens_shared) {
            (all, 0) => all.to_string(),
            (all, shared) => format!("{all}, {shared} cached"),
        };
        parts.push((2, format!("prompt ({tokens}) {}", time(answer.stats.time_to_first_token))));
    }
    parts.extend(first_token(answers).map(|first| (1, format!("first token {}", time(first)))));
    parts.push((4, format!("{:.2} a pass", stats.tokens_per_pass())));
    parts.extend(stats.acceptance_rate().map(|rate| (5, format!("drafts {}", percent(rate)))));
    if let [Answer { reason: Some(FinishReason::Context), .. }] = answers {
        parts.push((1, "context full".to_string()));
    }
    loop {
        let line = parts.iter().map(|(_, part)| part.as_str()).collect::<Vec<_>>().join(", ");
        let Some(last) = parts.iter().map(|(rank, _)| *rank).max().filter(|rank| *rank > 0) else { return line };
        if line.chars().count() <= LINE_MAX {
            return line;
        }
        parts.retain(|(rank, _)| *rank != last);
    }
}

/// That verification was lossy, if it was.
fn lossy(stats: &Stats) -> Option<String> {
    stats.lossy_lenience.map(|lenience| format!("lossy (lenience {lenience})"))
}

/// The number of tokens, and tokens a second.
fn speed(stats: &Stats, wall: Option<Duration>) -> String {
    let rate = match wall {
        Some(wall) => Some(stats.emitted as f64 / wall.as_secs_f64().max(1e-9)),
        None => stats.tokens_per_second(),
    };
    let rate = rate.map_or(String::new(), |rate| format!(", {rate:.1} tokens/s"));
    format!("{} tokens{rate}", stats.emitted)
}

/// Further statistics, one on each line.
pub fn details(answers: &[Answer], names: &[String]) -> Vec<String> {
    let stats = total(answers.iter().map(|answer| &answer.stats));
    let passes = format!("{} passes of the target ({:.2} tokens a pass)", stats.passes, stats.tokens_per_pass());
    let mut lines = vec![format!("{passes}, mean accepted length {:.2}", stats.mean_accepted_len())];
    if stats.forced > 0 {
        // A forced token takes a pass if its log-probability is requested.
        let without = match stats.skipped {
            0 => String::new(),
            skipped => {
                format!(", {skipped} without a pass ({:.2} a pass of the others)", stats.asked_tokens_per_pass())
            }
        };
        lines.push(format!("{} tokens forced: nothing else was possible{without}", stats.forced));
    }
    let changed = "drafts have changed the law of the text, see --lossy-lenience";
    lines.extend(lossy(&stats).map(|lossy| format!("{lossy}: {changed}")));
    lines.extend(drafters(&stats, names));
    if stats.prompt_tokens_shared > 0 {
        lines.push(format!("{} of {} prompt tokens from the cache", stats.prompt_tokens_shared, stats.prompt_tokens));
    }
    if stats.preemptions > 0 {
        lines.push(format!("{} preemptions", stats.preemptions));
    }
    lines
}

/// Statistics of each drafter.
fn drafters(stats: &Stats, names: &[String]) -> Vec<String> {
    let line = |(name, drafter): (&String, &foretoken::DrafterStats)| {
        let share = percent(drafter.acceptance_rate().unwrap_or(0.0));
        let alpha = drafter.alpha().map_or(String::new(), |alpha| format!(", alpha {alpha:.2}"));
        format!("{name} accepted {share} ({} of {}{alpha})", drafter.accepted, drafter.drafted)
    };
    names.iter().zip(&stats.drafters).map(line).collect()
}

/// All statistics in one line of any length, for a command whose result they are.
pub fn long(answers: &[Answer], names: &[String], wall: Option<Duration>) -> String {
    let stats = total(answers.iter().map(|answer| &answer.stats));
    let mut parts = vec![speed(&stats, wall)];
    parts.extend(details(answers, names));
    if wall.is_none() {
        parts.push(format!("first token after {}", time(stats.time_to_first_token)));
    }
    if let [Answer { reason: Some(FinishReason::Context), .. }] = answers {
        parts.push("the context is full".to_string());
    }
    parts.join(" | ")
}

/// A time with up to three digits.
fn time(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    match ms {
        ..10.0 => format!("{ms:.1} ms"),
        ..1000.0 => format!("{ms:.0} ms"),
        ..100_000.0 => format!("{:.1} s", ms / 1e3),
        _ => format!("{:.0} s", ms / 1e3),
    }
}

/// A fraction in whole percent; never -0%.
pub fn percent(share: f64) -> String {
    format!("{:.0}%", (100.0 * share).round() + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_minus_zero() {
        assert_eq!([0.0, -0.0, -0.001, 0.004, 0.625, 1.0].map(percent), ["0%", "0%", "0%", "0%", "63%", "100%"]);
    }

    #[test]
    fn tokens_per_pass_without_forced_ones_are_printed_if_there_are_any() {
        let lines = |skipped: usize| {
            let stats = Stats { emitted: 33, forced: 9, skipped, passes: 10, ..Stats::default() };
            details(&[Answer { stats, ..Answer::default() }], &[]).remove(1)
        };
        assert_eq!(lines(0), "9 tokens forced: nothing else was possible");
        let expected = "9 tokens forced: nothing else was possible, 8 without a pass (2.50 a pass of the others)";
        assert_eq!(lines(8), expected);
    }

    #[test]
    fn times_have_two_or_three_digits() {
        let found = [4.26, 62.4, 999.0, 2134.0, 61_000.0, 3_600_000.0];
        let found = found.map(|ms| time(Duration::from_secs_f64(ms / 1e3)));
        assert_eq!(found, ["4.3 ms", "62 ms", "999 ms", "2.1 s", "61.0 s", "3600 s"]);
    }

    #[test]
    fn the_line_has_at_most_a_hundred_characters() {
        let answer = |scale: usize| {
            let stats = Stats {
                prompt_tokens: scale,
                prompt_tokens_shared: scale / 2,
                emitted: scale,
                passes: scale / 2 + 1,
                drafted: scale,
                accepted: scale / 2,
                time_to_first_token: Duration::from_millis(scale as u64),
                time: Duration::from_millis(3 * scale as u64),
                ..Stats::default()
            };
            Answer { stats, reason: Some(FinishReason::Context), ..Answer::default() }
        };
        for scale in [1, 7, 1000, 123_456, 99_999_999] {
            let answers = [answer(scale)];
            let line = short(&answers, None);
            assert!(line.chars().count() <= LINE_MAX, "{line}");
            assert!(line.starts_with(&format!("{scale} tokens")), "{line}");
            let several = vec![answer(scale); 256];
            let line = short(&several, Some(Duration::from_secs(3)));
            assert!(line.chars().count() <= LINE_MAX && line.starts_with("256 texts, "), "{line}");
        }
        let line = short(&[answer(40)], None);
        assert!(line.ends_with("1.90 a pass, context full"), "{line}");
        let mut lossy = answer(99_999_999);
        lossy.stats.lossy_lenience = Some(0.3);
        let line = short(&[answer(7), lossy], Some(Duration::from_secs(3)));
        assert!(line.chars().count() <= LINE_MAX && line.contains(", lossy (lenience 0.3), "), "{line}");
    }
}
