//! Clients that send requests one after another: to the engine itself, and to servers over HTTP.

use std::io::{BufRead, BufReader};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use foretoken::{EngineThread, Event, Generator, Request, Tenant};
use foretoken_console::failure::Failure;
use serde_json::{Value, json};

/// The requests of all clients.
#[derive(Clone, Copy)]
pub struct Workload<'a> {
    /// Number of concurrent clients.
    pub clients: usize,
    /// Number of requests of each client.
    pub texts: usize,
    /// Prompts, which requests use one after another.
    pub prompts: &'a [String],
    /// Number of tokens of each text.
    pub tokens: usize,
    /// Temperature.
    pub temperature: f32,
    /// Seed of the first request; each has another.
    pub seed: u64,
}

impl Workload<'_> {
    /// The seed of a request.
    fn seed_of(&self, number: usize) -> u64 {
        self.seed + number as u64
    }
}

/// The measurements of all clients.
#[derive(Clone, Debug, Default)]
pub struct ClientTimings {
    /// Number of generated tokens.
    pub tokens: usize,
    /// Seconds from the first request to the last token.
    pub seconds: f64,
    /// For each request, milliseconds to its first token.
    pub first_ms: Vec<f64>,
}

impl ClientTimings {
    /// Tokens of all requests over the total time.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// The measurements of one request.
struct TextTiming {
    tokens: usize,
    first: Duration,
}

/// The error if the system refuses a thread.
pub(super) fn no_thread(error: &std::io::Error) -> Failure {
    Failure::Other(format!("expected a thread for each client and for the server, found none: {error}"))
}

/// Runs all clients, each on a thread of its own. `send` gets the number of the request.
fn all(
    workload: &Workload<'_>,
    send: impl Fn(usize) -> Result<TextTiming, Failure> + Sync,
) -> Result<ClientTimings, Failure> {
    let started = Instant::now();
    let timings: Vec<Result<Vec<TextTiming>, Failure>> = std::thread::scope(|scope| {
        let send = &send;
        let client = |client: usize| {
            let texts = move || (0..workload.texts).map(|text| send(text * workload.clients + client)).collect();
            std::thread::Builder::new().spawn_scoped(scope, texts).map_err(|error| no_thread(&error))
        };
        let clients: Vec<_> = (0..workload.clients).map(client).collect();
        let texts = |client: std::thread::ScopedJoinHandle<'_, _>| client.join().expect("a client does not panic");
        clients.into_iter().map(|client| client.and_then(texts)).collect()
    });
    let seconds = started.elapsed().as_secs_f64();
    let mut figures = ClientTimings { seconds, ..ClientTimings::default() };
    for client in timings {
        for text in client? {
            figures.tokens += text.tokens;
            figures.first_ms.push(1e3 * text.first.as_secs_f64());
        }
    }
    Ok(figures)
}

/// Clients of the engine itself. Returns the generator.
///
/// # Errors
/// A request is refused, or the engine stops.
pub fn without_server(generator: Generator, workload: &Workload<'_>) -> Result<(Generator, ClientTimings), Failure> {
    let prompter = generator.prompter.clone();
    let engine = EngineThread::start(generator)?;
    let figures = all(workload, |number| {
        let started = Instant::now();
        let prompt = workload.prompts[number % workload.prompts.len()].as_str();
        // Requests share no cached prefixes and no learned texts, here and below.
        let tenant = Tenant(workload.seed_of(number) << 1 | 1);
        let request = Request { seed: workload.seed_of(number), tenant, ..prompter.request(prompt)? };
        let (events, received) = channel();
        engine.submit(request, &events)?;
        drop(events);
        let mut timing = TextTiming { tokens: 0, first: Duration::ZERO };
        for event in received {
            if let Event::Tokens { emitted, .. } = event {
                if timing.tokens == 0 {
                    timing.first = started.elapsed();
                }
                timing.tokens += emitted.len();
            }
        }
        Ok(timing)
    })?;
    Ok((engine.stop()?, figures))
}

/// Clients of a server that speaks OpenAI's API.
///
/// # Errors
/// It does not respond, or its response is invalid.
pub fn over_http(url: &str, workload: &Workload<'_>) -> Result<ClientTimings, Failure> {
    let failed = |why: String| Failure::Other(format!("{url}: {why}"));
    let config = ureq::Agent::config_builder().max_idle_connections_per_host(workload.clients);
    let config = config.max_idle_connections(workload.clients);
    let agent = config.http_status_as_error(false).build().new_agent();
    all(workload, |number| {
        let body = json!({
            "prompt": workload.prompts[number % workload.prompts.len()],
            "max_tokens": workload.tokens,
            "temperature": workload.temperature,
            "seed": workload.seed_of(number),
            "cache_salt": format!("bench {}", workload.seed_of(number)),
            "cache_prompt": false,
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let started = Instant::now();
        let send =
            || agent.post(format!("{url}/v1/completions")).content_type("application/json").send(body.to_string());
        // Some servers close a connection after a stream, which is noticed only when it is used again.
        let answer = send().or_else(|_| send());
        let mut answer = answer.map_err(|error| failed(error.to_string()))?;
        if answer.status() != 200 {
            let said = answer.body_mut().read_to_string().unwrap_or_default();
            return Err(failed(format!("expected status 200, found {}: {said}", answer.status())));
        }
        let mut lines = BufReader::new(answer.body_mut().as_reader());
        let (mut line, mut timing) = (String::new(), TextTiming { tokens: 0, first: Duration::ZERO });
        while lines.read_line(&mut line).map_err(|error| failed(error.to_string()))? > 0 {
            if timing.first.is_zero() && line.starts_with("data: {") {
                timing.first = started.elapsed();
            }
            // Only the last event is parsed.
            if line.contains("\"completion_tokens\":") {
                let last: Option<Value> = line.strip_prefix("data: ").and_then(|last| serde_json::from_str(last).ok());
                let tokens = last.and_then(|last| last.pointer("/usage/completion_tokens").and_then(Value::as_u64));
                timing.tokens = tokens.map_or(timing.tokens, |tokens| tokens as usize);
            }
            line.clear();
        }
        match timing.tokens {
            0 => Err(failed("expected usage with completion_tokens at the end, found none".to_string())),
            _ => Ok(timing),
        }
    })
}
