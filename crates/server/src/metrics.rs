//! Prometheus metrics, with vLLM's names and the prefix `foretoken` or another one.
//!
//! With the prefix `vllm`, programs that read vLLM's metrics read these: there are older names, too, and each metric of
//! a model has the label `model_name`.
//!
//! Events are counted on the engine's thread, once each, even if no client reads them; the engine's workload is read
//! when metrics are requested. Speculation is counted when a request ends, from its statistics, with a label for each
//! drafter.

use std::sync::atomic::{AtomicU64, Ordering};

use foretoken::{Event, FinishReason, PassTotals, Stats, Workload};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    finished_reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DrafterLabel {
    drafter: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PositionLabel {
    drafter: String,
    position: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpLabel {
    path: String,
    status: u16,
}

/// The cache's settings by vLLM's names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheLabels {
    block_size: usize,
    num_gpu_blocks: usize,
    enable_prefix_caching: &'static str,
}

/// The metrics of a model.
pub(crate) struct Metrics {
    registry: Registry,
    drafters: Vec<String>,
    running: Gauge,
    waiting: Gauge,
    cache_usage: Gauge<f64, AtomicU64>,
    cache_hit_rate: Gauge<f64, AtomicU64>,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    cached_tokens: Counter,
    preemptions: Counter,
    finished: Family<ReasonLabel, Counter>,
    time_to_first_token: Histogram,
    time_per_output_token: Histogram,
    request_latency: Histogram,
    drafts: Family<DrafterLabel, Counter>,
    drafted: Family<DrafterLabel, Counter>,
    accepted: Family<DrafterLabel, Counter>,
    accepted_at: Family<PositionLabel, Counter>,
    failures: Family<DrafterLabel, Counter>,
    passes: Counter,
    pass_rows: Counter,
    pass_experts: Counter,
    pass_experts_packed: Counter,
    pass_bytes: Counter,
}

/// Counts of HTTP responses, of all models together.
#[derive(Default)]
pub(crate) struct HttpMetrics(Family<HttpLabel, Counter>);

impl HttpMetrics {
    /// Counts a response. `path` is the path of a route.
    pub(crate) fn count_response(&self, path: &str, status: u16) {
        self.0.get_or_create(&HttpLabel { path: path.to_string(), status }).inc();
    }

    /// These metrics after those of a model, if there are any, in OpenMetrics format. `prefix`: that of their names.
    pub(crate) fn text(&self, prefix: &str, model_metrics: Option<String>) -> String {
        let mut registry = Registry::default();
        registry.register(format!("{prefix}:http_requests"), "Answers to HTTP requests", self.0.clone());
        let mut text = model_metrics.unwrap_or_default();
        encode_registry(&mut text, &registry)
            .and_then(|()| encode_eof(&mut text))
            .expect("writing to a string succeeds");
        text
    }
}

/// The prefix of vLLM's names.
const VLLM: &str = "vllm";

/// Bucket bounds of the histograms, in seconds.
const TIME_TO_FIRST_TOKEN_S: [f64; 14] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 40.96];
const TIME_PER_OUTPUT_TOKEN_S: [f64; 13] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0];
const REQUEST_LATENCY_S: [f64; 13] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0];

impl Metrics {
    /// Metrics without any events. `prefix`: that of their names; `model`: the model's name; `drafters`: their names,
    /// by number; `cache`: positions of a page of the cache, and its pages.
    pub(crate) fn new(prefix: &str, model: &str, drafters: &[String], cache: [usize; 2]) -> Self {
        let metrics = Self {
            registry: Registry::default(),
            drafters: drafters.to_vec(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            cache_usage: Gauge::default(),
            cache_hit_rate: Gauge::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            preemptions: Counter::default(),
            finished: Family::default(),
            time_to_first_token: Histogram::new(TIME_TO_FIRST_TOKEN_S),
            time_per_output_token: Histogram::new(TIME_PER_OUTPUT_TOKEN_S),
            request_latency: Histogram::new(REQUEST_LATENCY_S),
            drafts: Family::default(),
            drafted: Family::default(),
            accepted: Family::default(),
            accepted_at: Family::default(),
            failures: Family::default(),
            passes: Counter::default(),
            pass_rows: Counter::default(),
            pass_experts: Counter::default(),
            pass_experts_packed: Counter::default(),
            pass_bytes: Counter::default(),
        };
        // A family without a series is not exported, so each begins with series of 0.
        for finished_reason in ["stop", "length", "context", "cancelled", "failed"] {
            drop(metrics.finished.get_or_create(&ReasonLabel { finished_reason }));
        }
        for drafter in drafters {
            drop(metrics.accepted_at.get_or_create(&PositionLabel { drafter: drafter.clone(), position: 0 }));
            let label = DrafterLabel { drafter: drafter.clone() };
            for family in [&metrics.drafts, &metrics.drafted, &metrics.accepted, &metrics.failures] {
                drop(family.get_or_create(&label));
            }
        }
        metrics.register_all(prefix, model, cache)
    }

    fn register_all(mut self, prefix: &str, model: &str, [block_size, num_gpu_blocks]: [usize; 2]) -> Self {
        let is_vllm = prefix == VLLM;
        let labels = is_vllm.then(|| ("model_name".into(), model.to_string().into()));
        self.registry = Registry::with_labels(labels.into_iter());
        let all = &mut self.registry;
        // The library appends `_total` to names of counters.
        macro_rules! register {
            ($($name:literal, $metric:ident, $help:literal;)*) => {
                $(all.register(format!("{prefix}:{}", $name), $help, self.$metric.clone());)*
            };
        }
        if is_vllm {
            let cache: Family<CacheLabels, Gauge> = Family::default();
            cache.get_or_create(&CacheLabels { block_size, num_gpu_blocks, enable_prefix_caching: "True" }).set(1);
            all.register(format!("{prefix}:cache_config_info"), "Settings of the cache", cache);
            register! {
                "gpu_cache_usage_perc", cache_usage, "The older name of kv_cache_usage_perc";
                "gpu_prefix_cache_queries", prompt_tokens, "The older name of prefix_cache_queries";
                "gpu_prefix_cache_hits", cached_tokens, "The older name of prefix_cache_hits";
                "gpu_prefix_cache_hit_rate", cache_hit_rate, "Of the tokens looked up in the cache, those found";
            }
        }
        register! {
            "num_requests_running", running, "Requests that are running";
            "num_requests_waiting", waiting, "Requests that wait in the queue";
            "kv_cache_usage_perc", cache_usage, "Fraction of the cache's pages that are in use, 1 is all";
            "prompt_tokens", prompt_tokens, "Tokens of prompts";
            "generation_tokens", generation_tokens, "Tokens generated";
            "prefix_cache_queries", prompt_tokens, "Tokens of prompts that were looked up in the cache";
            "prefix_cache_hits", cached_tokens, "Tokens of prompts that were found in the cache";
            "num_preemptions", preemptions, "Preemptions of requests";
            "request_success", finished, "Requests that ended, by reason";
            "time_to_first_token_seconds", time_to_first_token, "From submission to the first token";
            "request_time_per_output_token_seconds", time_per_output_token, "Mean time per token after the first";
            "e2e_request_latency_seconds", request_latency, "From submission to the last token";
            "spec_decode_num_drafts", drafts, "Passes in which a drafter was the first to propose tokens";
            "spec_decode_num_draft_tokens", drafted, "Tokens drafted and verified";
            "spec_decode_num_accepted_tokens", accepted, "Of these, accepted ones";
            "spec_decode_num_accepted_tokens_per_pos", accepted_at, "Accepted ones by position in the draft, from 0";
            "spec_decode_drafter_failures", failures, "How often a drafter failed and was disabled for a request";
            "passes", passes, "Passes of the model";
            "pass_rows", pass_rows, "Their rows";
            "pass_experts", pass_experts, "Distinct experts read, summed over passes";
            "pass_experts_packed", pass_experts_packed, "Of these, those that had to be loaded into memory first";
            "pass_bytes", pass_bytes, "Bytes of the model that they read";
        }
        self
    }

    /// Counts an event of a request.
    pub(crate) fn record_event(&self, event: &Event) {
        match event {
            Event::Tokens { emitted, .. } => drop(self.generation_tokens.inc_by(emitted.len() as u64)),
            Event::Beams { beams, .. } => {
                self.generation_tokens.inc_by(beams.iter().map(|beam| beam.tokens.len() as u64).sum());
            }
            Event::Finished { reason, stats, .. } => self.count_finished(reason, stats),
            _ => {}
        }
    }

    fn count_finished(&self, reason: &FinishReason, stats: &Stats) {
        let finished_reason = foretoken::report::finish_reason(Some(reason));
        self.finished.get_or_create(&ReasonLabel { finished_reason }).inc();
        self.prompt_tokens.inc_by(stats.prompt_tokens as u64);
        self.cached_tokens.inc_by(stats.prompt_tokens_shared as u64);
        self.preemptions.inc_by(stats.preemptions as u64);
        if stats.emitted > 0 {
            self.time_to_first_token.observe(stats.time_to_first_token.as_secs_f64());
            self.request_latency.observe(stats.time.as_secs_f64());
        }
        if stats.emitted > stats.emitted_first {
            let time = stats.time.saturating_sub(stats.time_to_first_token).as_secs_f64();
            self.time_per_output_token.observe(time / (stats.emitted - stats.emitted_first) as f64);
        }
        for (name, drafter) in self.drafters.iter().zip(&stats.drafters) {
            let label = DrafterLabel { drafter: name.clone() };
            self.drafts.get_or_create(&label).inc_by(drafter.drafts as u64);
            self.drafted.get_or_create(&label).inc_by(drafter.drafted as u64);
            self.accepted.get_or_create(&label).inc_by(drafter.accepted as u64);
            self.failures.get_or_create(&label).inc_by(drafter.failures as u64);
            for (position, accepted) in drafter.accepted_at.iter().enumerate() {
                let label = PositionLabel { drafter: name.clone(), position };
                self.accepted_at.get_or_create(&label).inc_by(*accepted as u64);
            }
        }
    }

    /// All metrics in OpenMetrics format, without the end marker.
    pub(crate) fn text(&self, workload: Workload, totals: PassTotals) -> String {
        let Workload { running, waiting, pages, pages_held } = workload;
        let (hits, queries) = (self.cached_tokens.get(), self.prompt_tokens.get());
        self.cache_hit_rate.set(if queries == 0 { 0.0 } else { hits as f64 / queries as f64 });
        self.running.set(i64::try_from(running).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        self.cache_usage.set(if pages == 0 { 0.0 } else { pages_held as f64 / pages as f64 });
        let PassTotals { passes, rows, experts, packed, bytes } = totals;
        let Self { pass_rows, pass_experts, pass_experts_packed, pass_bytes, .. } = self;
        let counters = [&self.passes, pass_rows, pass_experts, pass_experts_packed, pass_bytes];
        for (counter, total) in counters.into_iter().zip([passes, rows, experts, packed, bytes]) {
            counter.inner().store(total as u64, Ordering::Relaxed);
        }
        let mut text = String::new();
        encode_registry(&mut text, &self.registry).expect("writing to a string succeeds");
        text
    }
}
