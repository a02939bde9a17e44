//! Settings of the server itself: its address, access control, and limits.
//!
//! Each limit's default is too high to hinder a single user and too low for a stranger to exhaust the machine. Settings
//! of models, sampling and drafting are the library's [`foretoken::Settings`].

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::shown;

/// Settings of a [`Server`](crate::Server), besides those of its generator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// The address to listen on.
    pub host: IpAddr,
    /// The port; 0 is any free one.
    pub port: u16,
    /// API keys, one of which a request must have as `Authorization: Bearer KEY`. Without keys all requests are
    /// served. The drafters and the cache do not share the texts of one key with requests of another.
    #[serde(skip_serializing)]
    pub api_keys: Vec<String>,
    /// Names of the first model in requests; answers have the first of them. Without any it is named after its file or
    /// folder. `*` matches every name that no model has.
    pub aliases: Vec<String>,
    /// Maximum number of requests that wait while others run. Further ones are refused with the status 429.
    pub queue_max: usize,
    /// Maximum number of bytes of a request's body.
    pub body_bytes_max: usize,
    /// Maximum number of answers to one request: prompts times `n` or `best_of`.
    pub answers_max: usize,
    /// Maximum number of connections at a time. A further one takes the place of the one whose client has sent no whole
    /// request for longest, or waits where there is none.
    pub connections_max: usize,
    /// Seconds that a request may take, including the wait; then its answer is cut.
    pub timeout_s: u64,
    /// Seconds that a client may take to send a request's headers, to send its body, and between reads of the answer;
    /// then its connection is closed.
    pub idle_timeout_s: u64,
    /// Seconds after a request for shutdown in which requests are still accepted while `/ready` answers 503, so that
    /// routers send none to a server that refuses them; then the shutdown begins.
    pub drain_delay_s: u64,
    /// Seconds that requests may take to finish once the shutdown has begun; then their answers are cut.
    pub shutdown_timeout_s: u64,
    /// Origins of web pages whose requests are served, or `*` for all. Without any only the server's own page is.
    pub cors_origins: Vec<String>,
    /// Host names that requests may have in the `Host` header, besides those of the loopback device and the address
    /// that the server listens on. Without any, a server that does not listen on the loopback device accepts all.
    pub host_names: Vec<String>,
    /// Whether prompts and answers are logged.
    pub log_prompts: bool,
    /// Whether the page is served.
    pub page: bool,
    /// The beginning of the names of metrics. With `vllm` there are also metrics of vLLM's older names, and each has
    /// the label `model_name`.
    pub metrics_prefix: String,
    /// Default format of a model's reasoning in answers.
    pub reasoning_format: ReasoningFormat,
}

/// How an answer contains the model's reasoning, in llama.cpp's terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningFormat {
    /// As `deepseek`.
    #[default]
    Auto,
    /// The reasoning is separated from the answer, as `reasoning_content`.
    Deepseek,
    /// The reasoning is part of the answer, as the model writes it.
    None,
}

impl ReasoningFormat {
    /// The format of this name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "deepseek" => Some(Self::Deepseek),
            "none" => Some(Self::None),
            _ => None,
        }
    }
}

impl Default for ServerSettings {
    /// Reachable from this machine only, on llama.cpp's port.
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            api_keys: Vec::new(),
            aliases: Vec::new(),
            queue_max: 256,
            body_bytes_max: 8 << 20,
            answers_max: 128,
            connections_max: 4096,
            timeout_s: 600,
            idle_timeout_s: 60,
            drain_delay_s: 0,
            shutdown_timeout_s: 10,
            cors_origins: Vec::new(),
            host_names: Vec::new(),
            log_prompts: false,
            page: true,
            metrics_prefix: "foretoken".to_string(),
            reasoning_format: ReasoningFormat::Auto,
        }
    }
}

impl ServerSettings {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s)
    }

    pub(crate) fn idle_timeout(&self) -> Duration {
        Duration::from_secs(self.idle_timeout_s)
    }

    pub(crate) fn drain_delay(&self) -> Duration {
        Duration::from_secs(self.drain_delay_s)
    }

    pub(crate) fn shutdown_timeout(&self) -> Duration {
        Duration::from_secs(self.shutdown_timeout_s)
    }

    /// The first setting that is out of its range: the expected range and the value found.
    pub(crate) fn problem(&self) -> Option<String> {
        let seconds = [
            ("timeout_s", self.timeout_s),
            ("idle_timeout_s", self.idle_timeout_s),
            ("drain_delay_s", self.drain_delay_s),
            ("shutdown_timeout_s", self.shutdown_timeout_s),
        ];
        let range = |name: &str, found: u64, least: u64, most: u64| {
            let wrong = found < least || found > most;
            wrong.then(|| format!("{name}: expected a whole number from {least} to {most}, found {found}"))
        };
        // A day, which no request needs, keeps sums of times far from overflow.
        let day = 24 * 60 * 60;
        let least = |name: &str| u64::from(!["drain_delay_s", "shutdown_timeout_s"].contains(&name));
        let mut problems = seconds.iter().filter_map(|(name, found)| range(name, *found, least(name), day));
        let sizes = [
            ("queue_max", self.queue_max, 1 << 20),
            ("body_bytes_max", self.body_bytes_max, 1 << 30),
            ("answers_max", self.answers_max, 1 << 20),
            ("connections_max", self.connections_max, 1 << 20),
        ];
        let mut sizes = sizes.iter().filter_map(|(name, found, most)| range(name, *found as u64, 1, *most));
        let any_key = |is_wrong: fn(&str) -> bool| self.api_keys.iter().any(|key| is_wrong(key));
        let wrong_key = || {
            let found = match () {
                () if any_key(|key| key.trim().is_empty()) => "an empty one",
                () if any_key(|key| key.contains(char::is_control)) => "one with a control character",
                () => return None,
            };
            Some(format!("api_keys: expected keys of at least one letter, found {found}"))
        };
        // What decides who is answered is never empty by mistake.
        let names = [("cors_origins", &self.cors_origins), ("host_names", &self.host_names)];
        let empty_name = || {
            let (setting, _) = names.iter().find(|(_, all)| all.iter().any(|name| name.trim().is_empty()))?;
            Some(format!("{setting}: expected names of at least one letter, found an empty one"))
        };
        let prefix = &self.metrics_prefix;
        let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let wrong_prefix = || {
            let is_name = prefix.chars().all(is_letter) && prefix.starts_with(|c: char| !c.is_ascii_digit());
            let expected = "expected letters, digits and underscores, and no digit first";
            (!is_name).then(|| format!("metrics_prefix: {expected}, found {}", shown(prefix)))
        };
        problems.next().or_else(|| sizes.next()).or_else(wrong_key).or_else(empty_name).or_else(wrong_prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        assert_eq!(ServerSettings::default().problem(), None);
        let wrong = ServerSettings { timeout_s: 0, ..ServerSettings::default() };
        let expected = "timeout_s: expected a whole number from 1 to 86400, found 0";
        assert_eq!(wrong.problem().as_deref(), Some(expected));
        let wrong = ServerSettings { queue_max: 0, ..ServerSettings::default() };
        assert!(wrong.problem().is_some_and(|problem| problem.starts_with("queue_max: ")));
        for key in [" ", "", "a\0", "a\nb"] {
            let wrong = ServerSettings { api_keys: vec!["a".into(), key.into()], ..ServerSettings::default() };
            assert!(wrong.problem().is_some_and(|problem| problem.starts_with("api_keys: ")), "{key:?}");
        }
        let wrong = ServerSettings { host_names: vec![String::new()], ..ServerSettings::default() };
        let expected = "host_names: expected names of at least one letter, found an empty one";
        assert_eq!(wrong.problem().as_deref(), Some(expected));
        for prefix in ["", "9a", "a:b", "a b", "\u{e4}"] {
            let wrong = ServerSettings { metrics_prefix: prefix.into(), ..ServerSettings::default() };
            assert!(wrong.problem().is_some_and(|problem| problem.starts_with("metrics_prefix: ")), "{prefix:?}");
        }
        let least = ServerSettings { drain_delay_s: 0, shutdown_timeout_s: 0, ..ServerSettings::default() };
        assert_eq!(least.problem(), None);
    }
}
