//! The results of `bench pass`, as a table for people and as JSON for programs.
//!
//! The fields of the JSON are explained by `foretoken bench pass --help`.

use foretoken_kernels::{Ceilings, Isa};
use foretoken_model::{CacheType, Sent};
use serde_json::{Map, Value, json};

use super::generate::table::number_or_dash;
use super::logits;
use super::roofline::{PassWork, Roofline};
use super::timing::{PassTimes, SourceTimes};

/// What all contexts share.
pub struct Formatter<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Threads that computed.
    pub threads: usize,
    /// Timed passes of each number of rows.
    pub repeat: usize,
    /// The types of keys and values.
    pub cache_types: [CacheType; 2],
    /// The work of a pass.
    pub work: &'a PassWork,
}

/// Reading a source, with its figures.
pub struct SourceRow {
    times: SourceTimes,
    least: Roofline,
}

impl SourceRow {
    fn tokens_per_second(&self) -> f64 {
        1e3 * self.times.len as f64 / self.times.median_ms()
    }

    fn to_roofline(&self) -> f64 {
        self.times.median_ms() / self.least.ms()
    }

    fn gop_s(&self) -> f64 {
        self.least.operations / self.times.median_ms() / 1e6
    }

    fn share_of_operations(&self) -> f64 {
        1e3 * self.least.operation_seconds / self.times.median_ms()
    }

    /// The line for people.
    pub fn line(&self) -> String {
        format!(
            "source of {} tokens: the encoder takes {} ms, {:.0} tokens/s, {:.2} of its roofline, {:.1} GOP/s \
             ({:.0}%)\n",
            self.times.len,
            milliseconds(self.times.median_ms()),
            self.tokens_per_second(),
            self.to_roofline(),
            self.gop_s(),
            100.0 * self.share_of_operations()
        )
    }

    fn object(&self) -> Value {
        json!({
            "tokens": self.times.len,
            "ms": rounded(self.times.median_ms()),
            "least_ms": rounded(self.times.least_ms()),
            "tokens_per_second": rounded(self.tokens_per_second()),
            "roofline_ms": rounded(self.least.ms()),
            "ratio_to_roofline": rounded(self.to_roofline()),
            "gop_s": rounded(self.gop_s()),
            "share_of_operations": rounded(self.share_of_operations()),
        })
    }
}

/// A line of the table: a number of rows, with its figures.
pub struct PassRow {
    rows: usize,
    ms: f64,
    least_ms: f64,
    /// The time over that of one row, if one row was measured.
    to_one: Option<f64>,
    /// Distinct experts that it read, in all layers.
    experts: usize,
    /// Of these, those that it had to pack first.
    packed: usize,
    /// What this process sent to others.
    sent: Sent,
    least: Roofline,
}

impl PassRow {
    fn gb_s(&self) -> f64 {
        self.least.bytes / self.ms / 1e6
    }

    fn gop_s(&self) -> f64 {
        self.least.operations / self.ms / 1e6
    }

    fn share_of_bandwidth(&self) -> f64 {
        1e3 * self.least.memory_seconds / self.ms
    }

    fn share_of_operations(&self) -> f64 {
        1e3 * self.least.operation_seconds / self.ms
    }

    fn to_roofline(&self) -> f64 {
        self.ms / self.least.ms()
    }
}

impl Formatter<'_> {
    /// The figures of reading a source.
    pub fn source(&self, times: SourceTimes, ceilings: &Ceilings) -> SourceRow {
        SourceRow { least: self.work.reading(times.len, ceilings), times }
    }

    /// The figures of the passes after a context, behind a source (of 0 tokens without an encoder).
    pub fn lines(&self, [context, source]: [usize; 2], ceilings: &Ceilings, times: &[PassTimes]) -> Vec<PassRow> {
        let one = times.iter().find(|times| times.rows == 1).map(PassTimes::median_ms);
        let line = |times: &PassTimes| PassRow {
            rows: times.rows,
            ms: times.median_ms(),
            least_ms: times.least_ms(),
            to_one: one.map(|one| times.median_ms() / one),
            experts: times.read.experts,
            packed: times.read.packed,
            sent: times.sent,
            least: self.work.pass([context, source], [times.rows, logits(times.rows)], times.read, ceilings),
        };
        times.iter().map(line).collect()
    }

    /// The first line: what is measured and how.
    pub fn title(&self) -> String {
        let Self { model, threads, repeat, work, .. } = self;
        let products = work.products();
        let one = |(name, matrices): (&&str, &super::roofline::Matrices)| {
            format!("{:.1} M weights in {name}", matrices.elements as f64 / 1e6)
        };
        let types: Vec<String> = products.iter().map(one).collect();
        let bytes: usize = products.values().map(|matrices| matrices.bytes).sum();
        let isa = Isa::chosen().name();
        let reads = if work.has_experts() { "chooses from" } else { "reads" };
        format!(
            "{model}: a pass {reads} {}, {:.1} MB; {threads} threads, {isa}, medians of {repeat}",
            types.join(", "),
            bytes as f64 / 1e6
        )
    }

    /// The line of ceilings.
    pub fn ceilings(&self, ceilings: &Ceilings) -> String {
        let Ceilings { bandwidth_gb_s, bandwidth_median_gb_s, fma_gflop_s, int8_gop_s, bf16_gflop_s, .. } = ceilings;
        let bf16 = bf16_gflop_s.map_or("none".to_string(), |rate| format!("{} GFLOP/s", short(rate)));
        format!(
            "this machine: memory {bandwidth_gb_s:.1} GB/s (median {bandwidth_median_gb_s:.1}), int8 dots \
             {} GOP/s, bf16 dots {bf16}, f32 {} GFLOP/s",
            short(*int8_gop_s),
            short(*fma_gflop_s)
        )
    }

    /// The table of one context.
    pub fn table(&self, context: usize, lines: &[PassRow]) -> String {
        let mut out = format!("context {context}\n");
        let mut heads =
            vec!["rows", "logits", "ms", "/ 1 row", "roofline ms", "/ roofline", "GB/s (of memory)", "GOP/s (of dots)"];
        if self.work.has_experts() {
            heads.extend(["experts", "packed", "MB read"]);
        }
        let is_ranked = lines.iter().any(|line| line.sent.messages > 0);
        if is_ranked {
            heads.extend(["messages", "KB sent"]);
        }
        let mut row = |cells: &[String]| {
            let padded = cells.iter().zip(&heads).map(|(cell, head)| format!("{cell:>0$}", head.len().max(8)));
            out += &format!("{}\n", padded.collect::<Vec<_>>().join("  "));
        };
        row(&heads.iter().map(|head| head.to_string()).collect::<Vec<_>>());
        for line in lines {
            let shared = |rate: f64, share: f64| format!("{rate:.1} {:>6}", format!("({:.0}%)", 100.0 * share));
            let mut cells = vec![
                line.rows.to_string(),
                logits(line.rows).to_string(),
                milliseconds(line.ms),
                number_or_dash(line.to_one, 2),
                milliseconds(line.least.ms()),
                format!("{:.2}", line.to_roofline()),
                shared(line.gb_s(), line.share_of_bandwidth()),
                shared(line.gop_s(), line.share_of_operations()),
            ];
            if self.work.has_experts() {
                cells.extend([line.experts.to_string(), line.packed.to_string()]);
                cells.push(format!("{:.1}", line.least.bytes / 1e6));
            }
            if is_ranked {
                cells.extend([line.sent.messages.to_string(), format!("{:.1}", line.sent.bytes as f64 / 1e3)]);
            }
            row(&cells);
        }
        if lines.iter().any(|line| line.share_of_bandwidth() > 1.0) {
            out += "(more than memory delivers: these weights stay in a cache)\n";
        }
        out
    }

    /// The object of one context.
    pub fn object(&self, context: usize, source: Option<&SourceRow>, ceilings: &Ceilings, lines: &[PassRow]) -> Value {
        let by_rows = |value: &dyn Fn(&PassRow) -> Value| -> Map<String, Value> {
            lines.iter().map(|line| (line.rows.to_string(), value(line))).collect()
        };
        let numbers = |value: &dyn Fn(&PassRow) -> f64| by_rows(&|line| json!(rounded(value(line))));
        let mut roofline = numbers(&|line| line.least.ms());
        let rates = [
            ("bandwidth_gb_s", Some(ceilings.bandwidth_gb_s)),
            ("bandwidth_median_gb_s", Some(ceilings.bandwidth_median_gb_s)),
            ("fma_gflop_s", Some(ceilings.fma_gflop_s)),
            ("int8_gop_s", Some(ceilings.int8_gop_s)),
            ("bf16_gflop_s", ceilings.bf16_gflop_s),
        ];
        roofline.extend(rates.map(|(name, rate)| (name.to_string(), json!(rate.map(rounded)))));
        let products: Map<String, Value> = self
            .work
            .products()
            .iter()
            .map(|(name, all)| (name.to_string(), json!({ "weights": all.elements, "bytes": all.bytes })))
            .collect();
        json!({
            "model": self.model,
            "context": context,
            "source": source.map(SourceRow::object),
            "threads": self.threads,
            "isa": Isa::chosen().name(),
            "repeat": self.repeat,
            "cache_types": self.cache_types.map(CacheType::name),
            "logits": by_rows(&|line| json!(logits(line.rows))),
            "ms_per_pass": numbers(&|line| line.ms),
            "least_ms_per_pass": numbers(&|line| line.least_ms),
            "ratio_to_one": by_rows(&|line| json!(line.to_one.map(rounded))),
            "roofline": roofline,
            "ratio_to_roofline": numbers(&PassRow::to_roofline),
            "experts_per_pass": by_rows(&|line| json!(line.experts)),
            "experts_packed_per_pass": by_rows(&|line| json!(line.packed)),
            "experts_per_row": numbers(&|line| line.experts as f64 / line.rows as f64),
            "messages_per_pass": by_rows(&|line| json!(line.sent.messages)),
            "bytes_sent_per_pass": by_rows(&|line| json!(line.sent.bytes)),
            "bytes_per_pass": by_rows(&|line| json!(line.least.bytes)),
            "gb_s": numbers(&PassRow::gb_s),
            "share_of_bandwidth": numbers(&PassRow::share_of_bandwidth),
            "gop_s": numbers(&PassRow::gop_s),
            "share_of_operations": numbers(&PassRow::share_of_operations),
            "products": products,
        })
    }
}

/// Milliseconds with the significant digits.
fn milliseconds(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.3}") } else { format!("{ms:.1}") }
}

/// A rate with the significant digits.
fn short(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// Rounds to four decimals, for files that people read.
fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}
