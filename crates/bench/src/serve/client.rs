//! Clients that ask for texts one after another: of the engine itself, and of servers over HTTP.

use std::io::{BufRead, BufReader};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use foretoken::{EngineThread, Event, Generator, Request, Tenant};
use foretoken_console::failure::Failure;
use serde_json::{Value, json};

/// What clients ask for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Clients that ask at a time.
    pub clients: usize,
    /// Texts of each.
    pub texts: usize,
    /// Prompts, which take turns.
    pub prompts: &'a [String],
    /// Tokens of each text.
    pub tokens: usize,
    /// Temperature.
    pub temperature: f32,
    /// Seed of the first text; each has another.
    pub seed: u64,
}

impl Asked<'_> {
    /// The seed of a text.
    fn seed_of(&self, number: usize) -> u64 {
        self.seed + number as u64
    }
}

/// What clients saw together.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Tokens written.
    pub tokens: usize,
    /// Seconds from the first question to the last token.
    pub seconds: f64,
    /// Of each text, milliseconds from asking to its first token.
    pub first_ms: Vec<f64>,
}

impl Figures {
    /// Tokens of all texts over the time that they took together.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// One text as its client saw it.
struct Seen {
    tokens: usize,
    first: Duration,
}

/// The system refuses a client its thread.
pub(super) fn no_thread(error: &std::io::Error) -> Failure {
    Failure::Other(format!("expected a thread for each client and for the server, found none: {error}"))
}

/// Lets clients ask, each on a thread of its own. `ask` gets the number of the text.
fn all(asked: &Asked<'_>, ask: impl Fn(usize) -> Result<Seen, Failure> + Sync) -> Result<Figures, Failure> {
    let started = Instant::now();
    let seen: Vec<Result<Vec<Seen>, Failure>> = std::thread::scope(|scope| {
        let ask = &ask;
        let client = |client: usize| {
            let texts = move || (0..asked.texts).map(|text| ask(text * asked.clients + client)).collect();
            std::thread::Builder::new().spawn_scoped(scope, texts).map_err(|error| no_thread(&error))
        };
        let clients: Vec<_> = (0..asked.clients).map(client).collect();
        let texts = |client: std::thread::ScopedJoinHandle<'_, _>| client.join().expect("a client does not panic");
        clients.into_iter().map(|client| client.and_then(texts)).collect()
    });
    let seconds = started.elapsed().as_secs_f64();
    let mut figures = Figures { seconds, ..Figures::default() };
    for client in seen {
        for text in client? {
            figures.tokens += text.tokens;
            figures.first_ms.push(1e3 * text.first.as_secs_f64());
        }
    }
    Ok(figures)
}

/// Clients of the engine itself. Gives the generator back.
///
/// # Errors
/// A request is refused, or the engine stops.
pub fn without_server(generator: Generator, asked: &Asked<'_>) -> Result<(Generator, Figures), Failure> {
    let prompter = generator.prompter.clone();
    let engine = EngineThread::start(generator)?;
    let figures = all(asked, |number| {
        let started = Instant::now();
        let prompt = asked.prompts[number % asked.prompts.len()].as_str();
        // Nothing that was computed or learned for one text is of use for another, here and below.
        let tenant = Tenant(asked.seed_of(number) << 1 | 1);
        let request = Request { seed: asked.seed_of(number), tenant, ..prompter.request(prompt)? };
        let (events, heard) = channel();
        engine.submit(request, &events)?;
        drop(events);
        let mut seen = Seen { tokens: 0, first: Duration::ZERO };
        for event in heard {
            if let Event::Tokens { emitted, .. } = event {
                if seen.tokens == 0 {
                    seen.first = started.elapsed();
                }
                seen.tokens += emitted.len();
            }
        }
        Ok(seen)
    })?;
    Ok((engine.stop()?, figures))
}

/// Clients of a server that speaks OpenAI's API.
///
/// # Errors
/// It does not answer, or not as it should.
pub fn over_http(url: &str, asked: &Asked<'_>) -> Result<Figures, Failure> {
    let failed = |why: String| Failure::Other(format!("{url}: {why}"));
    let config = ureq::Agent::config_builder().max_idle_connections_per_host(asked.clients);
    let config = config.max_idle_connections(asked.clients);
    let agent = config.http_status_as_error(false).build().new_agent();
    all(asked, |number| {
        let body = json!({
            "prompt": asked.prompts[number % asked.prompts.len()],
            "max_tokens": asked.tokens,
            "temperature": asked.temperature,
            "seed": asked.seed_of(number),
            "cache_salt": format!("bench {}", asked.seed_of(number)),
            "cache_prompt": false,
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let started = Instant::now();
        let send =
            || agent.post(format!("{url}/v1/completions")).content_type("application/json").send(body.to_string());
        // Some servers close a connection behind a stream, which shows only when it is used again.
        let answer = send().or_else(|_| send());
        let mut answer = answer.map_err(|error| failed(error.to_string()))?;
        if answer.status() != 200 {
            let said = answer.body_mut().read_to_string().unwrap_or_default();
            return Err(failed(format!("expected status 200, found {}: {said}", answer.status())));
        }
        let mut lines = BufReader::new(answer.body_mut().as_reader());
        let (mut line, mut seen) = (String::new(), Seen { tokens: 0, first: Duration::ZERO });
        while lines.read_line(&mut line).map_err(|error| failed(error.to_string()))? > 0 {
            if seen.first.is_zero() && line.starts_with("data: {") {
                seen.first = started.elapsed();
            }
            // Only the last is looked into.
            if line.contains("\"completion_tokens\":") {
                let last: Option<Value> = line.strip_prefix("data: ").and_then(|last| serde_json::from_str(last).ok());
                let tokens = last.and_then(|last| last.pointer("/usage/completion_tokens").and_then(Value::as_u64));
                seen.tokens = tokens.map_or(seen.tokens, |tokens| tokens as usize);
            }
            line.clear();
        }
        match seen.tokens {
            0 => Err(failed("expected usage with completion_tokens at the end, found none".to_string())),
            _ => Ok(seen),
        }
    })
}
