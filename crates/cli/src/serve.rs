//! `foretoken serve`: answers requests over HTTP, as OpenAI's API has them, and serves a page to look at it.
//!
//! Options of models, sampling and drafting mean the same as for other commands, and are defaults for requests. The
//! fields of requests are in the server's crate.

mod further_models;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use foretoken::settings::SamplingSettings;
use foretoken::{Generator, Settings};
use foretoken_console::failure::Failure;
use foretoken_console::hub;
use foretoken_console::names::option;
use foretoken_console::opening::tell_notes;
use foretoken_console::options::{ModelOptions, SamplingOptions, SpeculationOptions, TemplateOptions};
use foretoken_console::progress::{Loading, warn};
use foretoken_console::terminal::standard_error;
use foretoken_console::verbosity::quiet;
use foretoken_console::{records, values};
use foretoken_server::{ReasoningFormat, Server, ServerError, ServerSettings, shutdown_signal};

/// The variable with API keys, separated by commas, which no list of processes shows.
const API_KEY_VARIABLE: &str = "FORETOKEN_API_KEY";

/// The variable of --api-key-file. Unlike those of other options it does not count as unset if it is empty.
const API_KEY_FILE_VARIABLE: &str = "FORETOKEN_API_KEY_FILE";

const AFTER_HELP: &str = "\
Options of models, sampling and drafting mean what they mean for generate, and hold where a request says
nothing. docs/server.md has the fields of requests.

Seeds: under --verify exact, the default, a text depends on the model, the prompt, the settings and the
seed, and on nothing else: not on who else is served, and not on what is drafted. The first of n answers
has the request's seed, each other one that is made of it and the answer's number. Under rejection and
block a text has the model's distribution, but the text of a seed also depends on the number of the
request and on what was drafted. Without a seed one is drawn; each choice has its seed.

Ctrl-C, or SIGTERM, lets texts finish for --shutdown-timeout seconds; a second one ends at once. With
--drain-delay requests are accepted for that long before, while GET /ready answers 503. Behind a router
this loses no request: docs/server.md.";

/// Options of `foretoken serve`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct Serve {
    /// The same as -m, --model
    #[arg(value_name = "MODEL", help_heading = "Model", conflicts_with_all = ["model", "hf_repo"])]
    place: Option<PathBuf>,
    #[command(flatten)]
    model: ModelOptions,
    /// A further -m or --model; the command line is rewritten to this option
    #[arg(long, hide = true, value_name = "MODEL")]
    further_model: Vec<PathBuf>,
    /// Serve all models of the hub's cache that can be run; each is opened when a request first names it
    ///
    /// -m may be given several times, too. If a model does not fit into memory (--memory-limit), those that were not
    /// used for longest are closed.
    #[arg(long, help_heading = "Model")]
    models: bool,
    #[command(flatten)]
    template: TemplateOptions,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
}

/// Where to listen, who may ask, and how much.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
struct ServerOptions {
    /// The address to listen on
    ///
    /// One that others can reach needs --api-key or a network to trust.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// The port; 0 is any free one, which is printed
    #[arg(long, value_name = "PORT", default_value = "8080")]
    port: u16,
    /// Texts written at a time; further requests wait
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::texts, allow_negative_numbers = true)]
    parallel: usize,
    /// A key that requests bring; repeatable
    ///
    /// They bring it as "Authorization: Bearer KEY". The variable FORETOKEN_API_KEY may have keys, too, separated by
    /// commas, where no list of processes shows them.
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// A file of such keys, one a line
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// The first model's names in requests, the first of them in answers [default: its file's or folder's, or on the
    /// hub]; * is any name that no other model has
    #[arg(hide_short_help = true, short, long, value_name = "NAME,..", value_delimiter = ',')]
    alias: Vec<String>,
    /// Most requests that wait; more are refused with the status 429
    #[arg(hide_short_help = true, long, value_name = "N", default_value = "256", value_parser = values::one_up,
        allow_negative_numbers = true)]
    queue_max: usize,
    /// Most bytes of a request
    #[arg(hide_short_help = true, long, value_name = "N", default_value = "8388608", value_parser = values::one_up,
        allow_negative_numbers = true)]
    body_max: usize,
    /// Most answers to one request (prompts times n)
    #[arg(hide_short_help = true, long, value_name = "N", default_value = "128", value_parser = values::one_up,
        allow_negative_numbers = true)]
    answers_max: usize,
    /// Most connections at a time
    #[arg(hide_short_help = true, long, value_name = "N", default_value = "4096", value_parser = values::one_up,
        allow_negative_numbers = true)]
    connections_max: usize,
    /// Seconds that a request may take, waiting included; then its text is cut
    #[arg(hide_short_help = true, long, value_name = "SECONDS", default_value = "600", value_parser = values::one_up,
        allow_negative_numbers = true)]
    timeout: usize,
    /// Seconds that a client has to send its request, and to take something of its answer; then its connection is
    /// closed
    #[arg(hide_short_help = true, long, value_name = "SECONDS", default_value = "60", value_parser = values::one_up,
        allow_negative_numbers = true)]
    idle_timeout: usize,
    /// Seconds in which the server still accepts requests after it is asked to end, while /ready answers 503
    ///
    /// Routers notice in these seconds that it ends, and send requests to other servers: longer than the interval of
    /// their checks.
    #[arg(hide_short_help = true, long, value_name = "SECONDS", default_value = "0", value_parser = values::whole,
        allow_negative_numbers = true)]
    drain_delay: usize,
    /// Seconds that texts have to finish when the server is asked to end (Ctrl-C); then they are cut
    #[arg(hide_short_help = true, long, value_name = "SECONDS", default_value = "10", value_parser = values::whole,
        allow_negative_numbers = true)]
    shutdown_timeout: usize,
    /// An origin whose pages may ask from a browser, or * for all; can be repeated [default: only the server's own]
    #[arg(hide_short_help = true, long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// A further name by which browsers may call the server; can be repeated
    #[arg(hide_short_help = true, long, value_name = "NAME")]
    host_name: Vec<String>,
    /// Do not serve the page
    #[arg(hide_short_help = true, long, alias = "no-webui")]
    no_page: bool,
    /// The beginning of the names of metrics; with vllm programs that read vLLM's metrics read these
    #[arg(hide_short_help = true, long, value_name = "NAME", default_value = "foretoken")]
    metrics_prefix: String,
    /// Where a model's thoughts go: auto, deepseek (reasoning_content), none (they stay in the answer)
    ///
    /// auto is deepseek. A request may say reasoning_format itself.
    #[arg(hide_short_help = true, long, value_name = "FORMAT", default_value = "auto", hide_possible_values = true)]
    reasoning_format: Reasoning,
    /// How much is logged to standard error; --quiet makes info warn
    #[arg(hide_short_help = true, long, value_name = "LEVEL", default_value = "info")]
    log_level: LogLevel,
    /// Log in JSON, one object a line
    #[arg(hide_short_help = true, long)]
    log_json: bool,
    /// Log prompts and texts, too
    #[arg(hide_short_help = true, long)]
    log_prompts: bool,
}

/// How thoughts appear in answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reasoning {
    /// As deepseek.
    Auto,
    /// They are separated from the answer.
    Deepseek,
    /// They are part of the answer.
    None,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    /// Nothing.
    Off,
    /// Failures.
    Error,
    /// Unexpected events.
    Warn,
    /// A line a request.
    Info,
    /// Also refusals and connections.
    Debug,
}

impl Serve {
    /// Runs the command.
    ///
    /// # Errors
    /// The server cannot start or fails.
    pub fn run(&self) -> Result<(), Failure> {
        let mut model = self.model.with_model(self.place.as_ref());
        let cached = if self.models { crate::hub::cached_models()? } else { Vec::new() };
        if self.models && model.model.is_none() && model.hub.hf_repo.is_none() {
            let (name, _) = cached.first().ok_or_else(|| {
                Failure::Other("--models: expected models in the hub's cache, found none; foretoken list".to_string())
            })?;
            model.model = Some(PathBuf::from(name));
        }
        let settings = Settings {
            model: self.template.with(model.settings()?),
            sampling: SamplingSettings { n_best: 1, ..self.sampling.settings()? },
            speculation: self.speculation.settings()?,
            parallel: self.server.parallel,
        };
        let server = self.server.settings(hub::requested_name(model.model.as_deref(), &model.hub))?;
        let further_models = further_models::offers(&self.further_model, cached, &settings)?;
        self.server.log();
        let mut loading = Loading::default();
        let generator = Server::open(&settings, &mut |opening| loading.on_event(opening))?;
        drop(loading);
        tell_notes(&generator);
        let server = Server::bind_several(&server, (&settings, generator), further_models).map_err(failure)?;
        // Also under --quiet, since the system may have chosen the port.
        let place = format!("{} at http://{}", server.model(), server.address());
        let is_unprotected = !server.address().ip().is_loopback() && !server.needs_key();
        let on_start = move || {
            warn(place);
            if is_unprotected {
                warn("warning: others can reach this server, and it asks for no key: --api-key");
            }
        };
        let generators: Vec<Generator> = server.run(shutdown_signal(on_start)).map_err(failure)?;
        drop(generators);
        Ok(())
    }
}

impl ServerOptions {
    /// The server's settings. `name`: the model's name, if it has a better one than its path.
    fn settings(&self, name: Option<String>) -> Result<ServerSettings, Failure> {
        let host = if self.host == "localhost" { "127.0.0.1" } else { &self.host };
        let host: IpAddr = host.parse().map_err(|_| {
            Failure::Usage(format!("--host: expected an IP address (127.0.0.1, 0.0.0.0, ::1), found {}", self.host))
        })?;
        Ok(ServerSettings {
            host,
            port: self.port,
            api_keys: self.keys()?,
            aliases: aliases(&self.alias, name),
            queue_max: self.queue_max,
            body_bytes_max: self.body_max,
            answers_max: self.answers_max,
            connections_max: self.connections_max,
            timeout_s: self.timeout as u64,
            idle_timeout_s: self.idle_timeout as u64,
            drain_delay_s: self.drain_delay as u64,
            shutdown_timeout_s: self.shutdown_timeout as u64,
            cors_origins: self.cors_origin.clone(),
            host_names: self.host_name.clone(),
            log_prompts: self.log_prompts,
            page: !self.no_page,
            metrics_prefix: self.metrics_prefix.clone(),
            reasoning_format: match self.reasoning_format {
                Reasoning::Auto => ReasoningFormat::Auto,
                Reasoning::Deepseek => ReasoningFormat::Deepseek,
                Reasoning::None => ReasoningFormat::None,
            },
        })
    }

    /// The API keys of the options, the variable and the file. Each of these that is given has at least one key: a
    /// server whose keys are lost on the way must not answer everybody.
    fn keys(&self) -> Result<Vec<String>, Failure> {
        let mut keys = usable_keys("--api-key", self.api_key.iter().map(String::as_str)).map_err(Failure::Usage)?;
        if let Some(found) = std::env::var_os(API_KEY_VARIABLE) {
            let found = found.into_string();
            let found =
                found.map_err(|_| Failure::Usage(format!("{API_KEY_VARIABLE}: expected text, found other bytes")))?;
            keys.extend(usable_keys(API_KEY_VARIABLE, found.split(',')).map_err(Failure::Usage)?);
        }
        if let Some(path) = &self.api_key_file {
            let (place, text) = (path.display(), records::read_text(path)?);
            // Some editors put a byte order mark before a text.
            let lines = text.strip_prefix('\u{feff}').unwrap_or(&text).lines();
            let found = usable_keys(&place.to_string(), lines.filter(|line| !line.trim().is_empty()));
            let found = found.map_err(Failure::Other)?;
            if found.is_empty() {
                return Err(Failure::Other(format!("{place}: expected keys, one a line, found none")));
            }
            keys.extend(found);
        } else if std::env::var_os(API_KEY_FILE_VARIABLE).is_some_and(|path| path.is_empty()) {
            return Err(Failure::Usage(format!("{API_KEY_FILE_VARIABLE}: expected a file of keys, found none")));
        }
        Ok(keys)
    }

    /// Starts logging.
    fn log(&self) {
        use tracing_subscriber::filter::LevelFilter;
        let level = match self.log_level {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info if quiet() => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
        };
        let log = tracing_subscriber::fmt().with_max_level(level).with_writer(standard_error).with_target(false);
        // A line that cannot be written is lost; reporting it on standard error would panic.
        let log = log.log_internal_errors(false);
        match self.log_json {
            true => log.json().init(),
            false => log.with_ansi(false).init(),
        }
    }
}

/// The keys of a place without white space around them, which a client cannot send.
///
/// # Errors
/// A key is empty or cannot be sent.
fn usable_keys<'a>(place: &str, found: impl Iterator<Item = &'a str>) -> Result<Vec<String>, String> {
    let keys: Vec<String> = found.map(|key| key.trim().to_string()).collect();
    let problem = if keys.iter().any(String::is_empty) {
        "an empty one"
    } else if keys.iter().any(|key| key.contains(char::is_control)) {
        "one with a control character"
    } else {
        return Ok(keys);
    };
    Err(format!("{place}: expected keys of at least one letter, found {problem}"))
}

/// The names of a model in requests: the given ones, after its name on the hub if none of them is its own.
pub fn aliases(given: &[String], hub_name: Option<String>) -> Vec<String> {
    match hub_name.filter(|_| given.iter().all(|alias| alias == "*")) {
        Some(name) => [vec![name], given.to_vec()].concat(),
        None => given.to_vec(),
    }
}

/// The error of the server, with its settings named as options.
fn failure(error: ServerError) -> Failure {
    match error {
        ServerError::Library(error) => error.into(),
        ServerError::System(message) => Failure::Other(message),
        ServerError::Setting(message) => match message.split_once(": ") {
            Some((setting, rest)) => Failure::Usage(format!("{}: {rest}", option_of(setting))),
            None => Failure::Usage(message),
        },
    }
}

/// The option of one of the server's settings.
fn option_of(setting: &str) -> String {
    match setting {
        "body_bytes_max" => "--body-max".to_string(),
        "api_keys" => "--api-key".to_string(),
        "cors_origins" => "--cors-origin".to_string(),
        "host_names" => "--host-name".to_string(),
        timeout => option(timeout.strip_suffix("_s").unwrap_or(timeout)),
    }
}
