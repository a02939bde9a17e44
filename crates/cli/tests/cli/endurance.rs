//! Endurance: a server with many concurrent clients, some of which disconnect, while other processes write a store and
//! are killed.
//!
//! Under any load a seeded request has the text of a run without drafters; memory, threads and open files of the server
//! do not grow; the stores can be read. CI runs some seconds of it; `FORETOKEN_ENDURANCE_SECONDS=3600 cargo test -p
//! foretoken-cli --test cli endurance -- --nocapture` runs an hour and prints the state every minute. All kinds of
//! invalid requests are in the server's own tests.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{program, run, words};

/// The default duration.
const SECONDS: u64 = 8;
/// A request that takes longer hangs.
const SECONDS_MAX: u64 = 60;
/// Drafters that a request may name; the server has them all.
const DRAFTERS: [&str; 12] = [
    "auto",
    "none",
    "draft",
    "lookup",
    "trie",
    "suffix",
    "ngram",
    "prediction",
    "jacobi",
    "phrases",
    "random",
    "draft,lookup,trie,suffix,ngram,phrases",
];
const PROMPTS: [&str; 4] = ["Once upon a time", "the the the the", "{\"name\": \"ReserveCar\",", "I would like to"];
/// Capacities are small, so that memories are soon full.
const SERVER: &str = "serve --port 0 -c 256 -np 3 --queue-max 64 --log-level warn --suffix-capacity 5000 \
                      --connections-max 24 \
                      --trie-capacity 200 --lookup-cache-tokens 5000 \
                      --spec-type draft,lookup,llma,trie,suffix,ngram,prediction,jacobi,phrases,random";

/// A server, which ends with the test.
struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
}

impl Server {
    fn start(home: &Path) -> Self {
        let path = |name: &str| home.join(name).display().to_string();
        std::fs::write(path("phrases"), "a little girl\nthank you very much\n").expect("it can be written");
        let mut command = program(home);
        command.args(words(SERVER)).args(["--phrases", &path("phrases"), "-lcd", &path("store")]);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut server = Self { child, stderr, address: String::new() };
        let mut line = String::new();
        while server.address.is_empty() {
            line.clear();
            assert!(server.stderr.read_line(&mut line).expect("it can be read") > 0, "it ended without an address");
            server.address =
                line.trim().split_once(" at http://").map(|(_, address)| address.to_string()).unwrap_or_default();
        }
        server
    }

    /// Kilobytes of memory, threads and open files.
    fn resources(&self) -> [u64; 3] {
        let process = format!("/proc/{}", self.child.id());
        let status = std::fs::read_to_string(format!("{process}/status")).expect("it runs");
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux has it");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        let files = std::fs::read_dir(format!("{process}/fd")).expect("it runs").count() as u64;
        [number("VmRSS:"), number("Threads:"), files]
    }

    /// Sends SIGTERM to the server. Returns the rest of its standard error.
    fn end(mut self) -> String {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().expect("it can be asked to end");
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).expect("it can be read");
        assert!(self.child.wait().expect("it ends").success(), "{rest}");
        rest
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The request of one of the repeated texts, by its number: a prompt, sampling parameters and a seed.
fn body(text: u64) -> Value {
    let prompt = PROMPTS[(text % 4) as usize];
    let sampling = match text / 4 % 3 {
        0 => json!({"temperature": 0}),
        1 => json!({"temperature": 0.9, "top_p": 0.8}),
        _ => json!({"temperature": 1.2, "top_k": 30, "repeat_penalty": 1.1}),
    };
    let mut body = json!({"prompt": prompt, "seed": text, "max_tokens": 4 + text * 7 % 40, "ignore_eos": true});
    body.as_object_mut().expect("an object").extend(sampling.as_object().expect("an object").clone());
    body
}

/// The number of texts.
const TEXTS: u64 = 24;
/// How many idle connections each visitor keeps; together they are more than the server holds.
const IDLE: usize = 20;

/// Sends a request to `/v1/completions`.
fn ask(address: &str, body: &Value) -> TcpStream {
    let mut client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(Duration::from_secs(SECONDS_MAX))).expect("a time can be set");
    let body = body.to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).expect("it takes a request");
    client
}

/// The text of an answer, in one piece or as events; another answer is returned as the error.
fn text(mut client: TcpStream) -> Result<String, String> {
    let mut answer = String::new();
    client.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    if !answer.starts_with("HTTP/1.1 200 ") {
        return Err(answer);
    }
    let text = |json: &str| {
        let value: Value = serde_json::from_str(json).ok()?;
        Some(value["choices"].get(0)?["text"].as_str()?.to_string())
    };
    let mut events = answer.lines().filter_map(|line| line.strip_prefix("data: ")).peekable();
    if events.peek().is_none() {
        let whole = answer.split_once("\r\n\r\n").and_then(|(_, body)| text(body));
        return whole.ok_or(answer);
    }
    Ok(events.filter_map(text).collect())
}

/// Pseudo-random numbers (a linear congruential generator).
struct Rng(u64);

impl Rng {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// A visit of a client: most read the whole answer, some disconnect, or stay and send nothing (`idle`), and some send
/// invalid requests.
fn visit(address: &str, rng: &mut Rng, expected: &HashMap<u64, String>, idle: &mut Vec<TcpStream>) {
    let number = rng.below(TEXTS);
    let mut body = body(number);
    let drafter = DRAFTERS[rng.below(DRAFTERS.len() as u64) as usize];
    body["speculative"] = json!({"type": drafter});
    if rng.below(3) == 0 {
        body["prediction"] = json!({"type": "content", "content": expected[&rng.below(TEXTS)]});
    }
    if rng.below(8) == 0 {
        body["cache_salt"] = json!(rng.below(5).to_string());
    }
    body["stream"] = json!(rng.below(2) == 0);
    match rng.below(10) {
        0 => {
            // Disconnects after some bytes.
            let mut client = ask(address, &body);
            let _ = client.read(&mut vec![0; 1 + rng.below(600) as usize]);
        }
        1 => {
            let mut client = TcpStream::connect(address).expect("it listens");
            let _ =
                client.write_all(&b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-"[..rng.below(48) as usize]);
            // Half of them stay, until they have to make room for others.
            if rng.below(2) == 0 {
                idle.push(client);
            }
        }
        3 => {
            let heads = [
                format!("Host: {address}@evil.example"),
                format!("Host: {address}0000"),
                format!("Host: {address}\r\nTransfer-Encoding: chunked\r\nContent-Length: 5"),
            ];
            let mut client = TcpStream::connect(address).expect("it listens");
            client.set_read_timeout(Some(Duration::from_secs(SECONDS_MAX))).expect("a time can be set");
            let head = &heads[rng.below(3) as usize];
            let request = format!("POST /v1/completions HTTP/1.1\r\nConnection: close\r\n{head}\r\n\r\n0\r\n\r\n");
            client.write_all(request.as_bytes()).expect("it takes a request");
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("it answers and closes the connection");
            assert!(answer.starts_with("HTTP/1.1 400 "), "{head}: {answer}");
        }
        2 => {
            let wrong = [json!({"prompt": 7.5}), json!({"prompt": "a", "max_tokens": "b"}), json!([]), json!(null)];
            let refusal = text(ask(address, &wrong[rng.below(4) as usize])).expect_err("it is refused");
            assert!(refusal.starts_with("HTTP/1.1 4"), "{refusal}");
        }
        _ => {
            let found = text(ask(address, &body));
            assert_eq!(found.as_ref(), Ok(&expected[&number]), "text {number} by {drafter}: {body}");
        }
    }
}

/// Runs another process that keeps its texts in a store: it is killed, or must write the expected text.
fn run_writer(home: &Path, rng: &mut Rng, expected: &str) {
    let mut command = program(home);
    let line = "generate the -n 6 --temp 0 -q --ignore-eos -lcd";
    command.args(words(line)).arg(home.join("kept")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    if rng.below(2) == 0 {
        std::thread::sleep(Duration::from_millis(rng.below(400)));
        let _ = child.kill();
        let _ = child.wait();
        return;
    }
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((String::from_utf8_lossy(&output.stdout).as_ref(), stderr.as_str()), (expected, ""));
}

#[test]
#[cfg(target_os = "linux")]
fn endurance() {
    let seconds = std::env::var("FORETOKEN_ENDURANCE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let duration = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let home = tempfile::tempdir().expect("a folder can be made");
    let server = Server::start(home.path());
    let plain = |number: u64| {
        let mut body = body(number);
        body["speculative"] = json!({"type": "none"});
        (number, text(ask(&server.address, &body)).expect("a text"))
    };
    let expected: HashMap<u64, String> = (0..TEXTS).map(plain).collect();
    let plain_text = run(&words("generate the -n 6 --temp 0 -q --ignore-eos --spec-type none")).ok();
    let (since, visits) = (Instant::now(), AtomicU64::new(0));
    let mut samples = Vec::new();
    std::thread::scope(|scope| {
        for visitor in 0..4 {
            let (visits, expected, address) = (&visits, &expected, &server.address);
            scope.spawn(move || {
                let (mut rng, mut idle) = (Rng(visitor), Vec::new());
                while since.elapsed() < duration {
                    visit(address, &mut rng, expected, &mut idle);
                    idle.drain(..idle.len().saturating_sub(IDLE));
                    visits.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (home, plain_text) = (home.path(), &plain_text);
        scope.spawn(move || {
            let mut rng = Rng(99);
            while since.elapsed() < duration {
                run_writer(home, &mut rng, plain_text);
            }
        });
        while since.elapsed() < duration {
            std::thread::sleep(duration / 60);
            samples.push(server.resources());
            if duration.as_secs() >= 600 {
                let [kilobytes, threads, files] = samples[samples.len() - 1];
                let visits = visits.load(Ordering::Relaxed);
                println!("{:.0?}: {visits} visits, {kilobytes} kB, {threads} threads, {files} files", since.elapsed());
            }
        }
    });
    let visits = visits.load(Ordering::Relaxed);
    assert!(visits > duration.as_secs(), "{visits} visits in {duration:?}");
    // After a quarter all memories are full; then only the requests in flight change the memory.
    let most =
        |range: std::ops::Range<usize>| samples[range].iter().map(|sample| sample[0]).max().expect("it was seen");
    let (early, late) = (most(samples.len() / 4..samples.len() / 2), most(samples.len() * 3 / 4..samples.len()));
    assert!(late < early + early / 20 + 8000, "kB: {early} in the second quarter, {late} in the last; {samples:?}");
    let [_, threads, files] = server.resources();
    assert!(
        threads <= samples[0][1] + 4 && files <= samples[0][2] + 8,
        "{threads} threads, {files} files; {samples:?}"
    );
    let stderr = server.end();
    assert!(!stderr.contains("ERROR") && !stderr.contains("panicked"), "{stderr}");
    for store in ["store", "kept"] {
        let store = home.path().join(store).display().to_string();
        assert_eq!(
            run(&["generate", "the", "-n", "6", "--temp", "0", "-q", "--ignore-eos", "-lcd", &store]).ok(),
            plain_text
        );
    }
    let names = std::fs::read_dir(&home).expect("it is there").flatten().map(|entry| entry.file_name());
    let parts: Vec<_> = names.filter(|name| name.to_string_lossy().ends_with(".part")).collect();
    assert!(parts.is_empty(), "{parts:?}");
    println!("{visits} visits in {duration:?}; {early} kB in the second quarter, {late} kB in the last");
}
