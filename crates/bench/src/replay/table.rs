//! The results of records that were timed on a model: a table and JSON.
//!
//! Both are labelled as the speed of a hypothetical target. Times are measured in [`super::timed`].

use std::collections::BTreeMap;
use std::path::Path;

use foretoken::report::total;
use foretoken_engine::Stats;
use foretoken_kernels::Isa;
use serde_json::{Value, json};

use super::timed::{RecordTiming, TimedReplay, Variant};
use super::{draft_us, object};
use crate::generate::interval::{Estimate, Sample, median, speed};
use crate::generate::table::{number_or_dash, or_dash};

/// Formats what was measured.
pub struct Formatter<'a> {
    /// The file of the records.
    pub records: &'a Path,
    /// The number of replayed records, and of their answers' tokens.
    pub playable: (usize, usize),
    /// Numbers, from 1, of records that are too long.
    pub left_out: Vec<usize>,
    /// The model whose passes are real.
    pub model: &'a str,
    /// The number of its threads.
    pub threads: usize,
    /// The name of the budget.
    pub budget: String,
    /// The most tokens drafted in a pass.
    pub nodes_max: usize,
}

/// The figures of a variant of decoding.
struct DecodingFigures {
    speed: Option<f64>,
    speedup: Option<Estimate>,
    /// Milliseconds of a pass after the first.
    pass_ms: Option<f64>,
    stats: Stats,
}

impl Formatter<'_> {
    /// The label of all figures.
    fn label(&self) -> String {
        format!("recorded text, real passes of {}: the speed of a hypothetical target, not its texts", self.model)
    }

    /// The lines above the table.
    pub fn title(&self) -> String {
        let (records, tokens) = self.playable;
        let what = format!("{}: {records} records, {tokens} tokens", self.records.display());
        let left_out = match self.left_out.len() {
            0 => String::new(),
            count => format!(", {count} too long and left out"),
        };
        let how = format!("budget {}, up to {} drafted a pass, {} threads", self.budget, self.nodes_max, self.threads);
        format!("{}\n{what}{left_out}; {how}", self.label())
    }

    /// The table, plain decoding first.
    pub fn table(&self, timed: &TimedReplay<'_>) -> String {
        let head = format!(
            "{:<18} {:>8} {:>8} {:>16} {:>11} {:>8} {:>8} {:>8}\n",
            "drafter", "tokens/s", "speed-up", "95 % interval", "tokens/pass", "accepted", "ms/pass", "us/pass"
        );
        let played = played(timed);
        let mut table = format!("\n{head}");
        for variant in &timed.variants {
            let DecodingFigures { speed, speedup, pass_ms, stats } = figures(variant, &timed.variants[0]);
            let interval = speedup.and_then(|speedup| speedup.interval);
            let rate = stats.acceptance_rate().map(|rate| 100.0 * rate);
            table += &format!(
                "{:<18} {:>8} {:>8} {:>16} {:>11.3} {:>8} {:>8} {:>8.2}\n",
                variant.name,
                number_or_dash(speed, 2),
                number_or_dash(speedup.map(|speedup| speedup.value), 3),
                or_dash(interval.map(|(low, high)| format!("{low:.3} to {high:.3}"))),
                stats.tokens_per_pass(),
                or_dash(rate.map(|rate| format!("{rate:.1}%"))),
                number_or_dash(pass_ms, 2),
                draft_us(&stats),
            );
        }
        if played < self.playable.0 {
            table += &format!("{played} of {} records were played\n", self.playable.0);
        }
        table + &rows_line(&timed.passes)
    }

    /// The table as JSON, with further figures.
    pub fn object(&self, timed: &TimedReplay<'_>) -> Value {
        let drafters: Vec<Value> =
            timed.variants.iter().map(|variant| self.variant(variant, &timed.variants[0], played(timed))).collect();
        let passes = timed.passes.iter().map(|(rows, seconds)| {
            (rows.to_string(), json!({ "passes": seconds.len(), "ms": 1e3 * median(seconds.clone()) }))
        });
        json!({
            "measured": self.label(),
            "on": self.model,
            "threads": self.threads,
            "isa": Isa::chosen().name(),
            "records": self.records.display().to_string(),
            "left_out": self.left_out,
            "budget": self.budget,
            "draft_max": self.nodes_max,
            "drafters": drafters,
            "passes_by_rows": passes.collect::<serde_json::Map<_, _>>(),
            "eight_rows_to_one": eight_to_one(&timed.passes),
        })
    }

    /// The JSON of one variant of decoding.
    fn variant(&self, variant: &Variant, plain: &Variant, played: usize) -> Value {
        let DecodingFigures { speed, speedup, pass_ms, stats } = figures(variant, plain);
        let mut value = object(&variant.name, played, &stats);
        let interval = speedup.and_then(|speedup| speedup.interval);
        let seconds =
            |timings: &Vec<RecordTiming>| timings.iter().map(|timing| timing.after_first.seconds).collect::<Vec<_>>();
        let further = [
            ("tokens_per_second", json!(speed)),
            ("speedup", json!(speedup.map(|speedup| speedup.value))),
            ("speedup_low", json!(interval.map(|interval| interval.0))),
            ("speedup_high", json!(interval.map(|interval| interval.1))),
            ("ms_per_pass", json!(pass_ms)),
            ("prompt_tokens", json!(stats.prompt_tokens)),
            ("prompt_tokens_shared", json!(stats.prompt_tokens_shared)),
            ("seconds", json!(variant.timings.iter().map(seconds).collect::<Vec<_>>())),
        ];
        for (name, figure) in further {
            value[name] = figure;
        }
        value
    }
}

/// The number of records that were replayed at least once.
fn played(timed: &TimedReplay<'_>) -> usize {
    timed.variants[0].timings.iter().filter(|timings| !timings.is_empty()).count()
}

/// Samples of the records that were replayed.
fn samples(variant: &Variant) -> Vec<Vec<Sample>> {
    let played = variant.timings.iter().filter(|timings| !timings.is_empty());
    played.map(|timings| timings.iter().map(|timing| timing.after_first).collect()).collect()
}

fn figures(variant: &Variant, plain: &Variant) -> DecodingFigures {
    let (own, plain) = (samples(variant), samples(plain));
    let timings = || variant.timings.iter().flatten();
    let (passes, seconds) = timings().fold((0, 0.0), |(n, s), timing| (n + timing.passes.0, s + timing.passes.1));
    DecodingFigures {
        speed: speed(&own),
        speedup: Estimate::ratio(&own, &plain),
        pass_ms: (passes > 0).then(|| 1e3 * seconds / passes as f64),
        stats: total(timings().map(|timing| &timing.stats)),
    }
}

/// The time of a pass of eight rows over that of one row, by medians.
fn eight_to_one(passes: &BTreeMap<usize, Vec<f64>>) -> Option<f64> {
    Some(median(passes.get(&8)?.clone()) / median(passes.get(&1)?.clone()))
}

/// The line that compares passes of eight rows and of one.
fn rows_line(passes: &BTreeMap<usize, Vec<f64>>) -> String {
    let of = |rows: usize| match passes.get(&rows) {
        Some(seconds) => format!("{:.2} ms (median of {})", 1e3 * median(seconds.clone()), seconds.len()),
        None => "- (no pass)".to_string(),
    };
    let ratio = number_or_dash(eight_to_one(passes), 3);
    format!("a pass of 8 rows takes {ratio} of one row's: {} and {}\n", of(8), of(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_rows_are_compared_by_medians_where_both_were_seen() {
        let mut passes = BTreeMap::from([(1, vec![0.002, 0.001, 0.009]), (3, vec![1.0])]);
        assert_eq!(eight_to_one(&passes), None);
        assert_eq!(
            rows_line(&passes),
            "a pass of 8 rows takes - of one row's: - (no pass) and 2.00 ms (median of 3)\n"
        );
        passes.insert(8, vec![0.003]);
        assert_eq!(eight_to_one(&passes), Some(1.5));
        assert_eq!(
            rows_line(&passes),
            "a pass of 8 rows takes 1.500 of one row's: 3.00 ms (median of 1) and 2.00 ms (median of 3)\n"
        );
    }
}
