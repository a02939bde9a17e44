//! Faults of the server and of downloads: in calls about files and about connections.
//!
//! A running server continues: the request that is hit by a fault may get an error or a closed connection, and the next
//! one gets its usual text. The server still ends when asked, and its store can be read. Files that `pull` has put in
//! the cache equal the hub's, whatever failed, and the next `pull` completes the model; also if several `pull` and `rm`
//! run at once and some are killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::{EAGAIN, EINTR, ENOSPC, FAULTS, SECONDS_MAX, WRONG_MAX, shim};
use crate::hub::server::Server as Hub;
use crate::{demo, golden, program, words};

const EPIPE: i32 = 32;
const EMFILE: i32 = 24;
const EINVAL: i32 = 22;
const ECONNABORTED: i32 = 103;
const ECONNRESET: i32 = 104;
const ECONNREFUSED: i32 = 111;

/// Kinds of calls about connections with the errors that they return; 0 is a call that does half of its work.
const CONNECTIONS: [(&str, &[i32]); 7] = [
    ("receive", &[ECONNRESET, EINTR, 0]),
    ("send", &[EPIPE, ECONNRESET, EINTR, 0]),
    ("accept", &[EMFILE, ECONNABORTED, EINTR]),
    ("poll", &[EINTR]),
    ("connect", &[ECONNREFUSED, EINTR, EAGAIN]),
    ("socket", &[EMFILE]),
    ("option", &[EINVAL]),
];
/// Requests in one run of a server.
const REQUESTS: usize = 3;

/// A fault, as the library in C is configured.
#[derive(Clone, Copy, Debug)]
struct Fault {
    kind: &'static str,
    error: i32,
    at: u64,
}

impl Fault {
    /// Whether the fault must have no visible effect. (A call that does not block is never interrupted, so a server
    /// need not repeat it.)
    fn is_harmless(self) -> bool {
        matches!((self.kind, self.error), ("receive" | "send", 0) | ("poll", EINTR))
    }
}

/// A folder with a model and a store, and one for other files of a run.
struct Sandbox {
    folder: tempfile::TempDir,
    outside: tempfile::TempDir,
}

impl Sandbox {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), outside: tempfile::tempdir().expect("a folder") }
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn has_fired(&self) -> bool {
        self.outside.path().join("fired").exists()
    }

    /// The program with a fault.
    fn program(&self, fault: Option<Fault>) -> Command {
        let fired = self.outside.path().join("fired");
        let _ = std::fs::remove_file(&fired);
        let mut command = program(self.outside.path());
        if let Some(Fault { kind, error, at }) = fault {
            command.env("LD_PRELOAD", shim().expect("it was compiled"));
            command.env("FAULT_UNDER", self.folder.path()).env("FAULT_SAID", fired);
            command.env("FAULT_KIND", kind).env("FAULT_ERROR", error.to_string()).env("FAULT_AT", at.to_string());
        }
        command
    }
}

/// A run of the program, which is killed at the end of the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    /// Waits for its end, which must come, and returns its exit code.
    fn ends(&mut self, context: &str) -> Option<i32> {
        let started = std::time::Instant::now();
        while started.elapsed() < Duration::from_secs(SECONDS_MAX) {
            if let Some(status) = self.0.try_wait().expect("it can be asked") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("{context}: it hangs");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The exit code must be 0 without an error or 1 with one error.
fn check_exit(context: &str, code: Option<i32>, err: &str) {
    let errors = err.lines().filter(|line| line.starts_with("error: ")).count();
    assert!(!err.contains("panicked") && !err.contains("thread '"), "{context}: {err}");
    assert!(code == Some(0) && errors == 0 || code == Some(1) && errors == 1, "{context}: {code:?}: {err}");
}

/// Runs with the faults of these kinds until none fires any more. Returns the number of runs. `all_fire`: each kind
/// must fire at least once.
fn all_faults(
    kinds: &[(&'static str, &[i32])],
    step: impl Fn(u64) -> u64,
    all_fire: bool,
    run: impl Fn(Fault) -> bool,
) -> usize {
    let (mut runs, mut wrong) = (0, 0);
    for &(kind, errors) in kinds {
        for &error in errors {
            let mut at = 1;
            let mut run_fault = |fault| {
                runs += 1;
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(fault))).unwrap_or_else(|_| {
                    wrong += 1;
                    wrong < WRONG_MAX
                })
            };
            while run_fault(Fault { kind, error, at }) {
                at += step(at);
            }
            assert!(at > 1 || !all_fire, "{kind} {error} never fires");
        }
    }
    assert_eq!(wrong, 0, "this many of {runs} runs with a fault went wrong");
    runs
}

/// The text of an answer, or the error.
fn ask(address: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut client = TcpStream::connect(address).map_err(failed)?;
    client.set_read_timeout(Some(Duration::from_secs(SECONDS_MAX))).map_err(failed)?;
    let body = r#"{"prompt": "the", "max_tokens": 3, "seed": 1, "ignore_eos": true}"#;
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).map_err(failed)?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).map_err(|error| {
        assert!(error.kind() != std::io::ErrorKind::WouldBlock, "no answer comes");
        error.to_string()
    })?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("no head: {answer}"))?;
    let value: serde_json::Value = serde_json::from_str(body).map_err(|error| format!("{error}: {answer}"))?;
    if head.starts_with("HTTP/1.1 200 ") {
        return Ok(value["choices"][0]["text"].as_str().expect("a text").to_string());
    }
    let message = value["error"]["message"].as_str().expect("an error in words");
    assert!(!message.contains('\n'), "{message}");
    Err(message.to_string())
}

/// Starts a server with a fault, sends some requests and ends it. Returns whether the fault fired, and a text.
fn serve(sandbox: &Sandbox, fault: Option<Fault>, expected: Option<&str>) -> (bool, String) {
    let context = format!("{fault:?}");
    let mut command = sandbox.program(fault);
    command.args(words("serve --port 0 -c 64 -np 1 -t 2 --log-level warn -m")).arg(demo("demo-target"));
    command.arg("-lcd").arg(sandbox.at("store")).arg("--costs").arg(sandbox.at("costs"));
    command.arg("--config").arg(sandbox.at("config.toml"));
    let mut server = Running::start(&mut command);
    let (sender, lines) = mpsc::channel();
    let err = BufReader::new(server.0.stderr.take().expect("it is piped"));
    std::thread::spawn(move || err.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line))));
    let (mut stderr, mut text) = (String::new(), String::new());
    let mut listening = None;
    while listening.is_none() {
        let Ok(line) = lines.recv_timeout(Duration::from_secs(SECONDS_MAX)) else { break };
        listening = line.trim().split_once(" at http://").map(|(_, address)| address.to_string());
        stderr += &(line + "\n");
    }
    if let Some(address) = &listening {
        for _ in 0..REQUESTS {
            let had_fired = sandbox.has_fired();
            match ask(address) {
                Ok(answer) => {
                    assert!(expected.is_none_or(|text| text == answer), "{context}: {answer:?}, not {expected:?}");
                    text = answer;
                }
                // The fault fired before this request or not at all, or does not explain the error.
                Err(error) if had_fired || !sandbox.has_fired() || fault.is_none_or(Fault::is_harmless) => {
                    panic!("{context}: {error}\n{stderr}")
                }
                Err(_) => {}
            }
        }
        Command::new("kill").args(["-TERM", &server.0.id().to_string()]).status().expect("it can be asked to end");
    }
    let code = server.ends(&context);
    lines.iter().for_each(|line| stderr += &(line + "\n"));
    check_exit(&context, code, &stderr);
    assert!(listening.is_some() || code == Some(1), "{context}: it ended without an address and an error: {stderr}");
    if std::fs::exists(sandbox.at("store")).expect("it can be asked") {
        let read = crate::run(&["generate", "x", "-n", "1", "-lcs", &sandbox.at("store")]);
        assert_eq!(read.code, 0, "{context}: {}", read.err);
    }
    let count = std::fs::read_dir(sandbox.folder.path()).expect("a folder").count();
    assert!(count <= 5, "{context}: {count} files");
    (sandbox.has_fired(), text)
}

/// Runs a server with the faults of these kinds.
fn serve_all(kinds: &[(&'static str, &[i32])], step: impl Fn(u64) -> u64, all_fire: bool) -> usize {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.at("config.toml"), "seed = 1\n").expect("written");
    let (_, text) = serve(&sandbox, None, None);
    assert!(!text.is_empty());
    all_faults(kinds, step, all_fire, |fault| serve(&sandbox, Some(fault), Some(&text)).0)
}

#[test]
fn a_server_survives_faults_of_connections() {
    if shim().is_some() {
        let kinds: [(&str, &[i32]); 3] = [("receive", &[ECONNRESET]), ("send", &[EPIPE]), ("accept", &[EMFILE])];
        serve_all(&kinds, |at| at.max(2) * 2, true);
    }
}

#[test]
#[ignore = "minutes: every call of a server"]
fn a_server_survives_every_call_that_fails() {
    if shim().is_some() {
        let kinds = [&CONNECTIONS[..], &FAULTS[..]].concat();
        let runs = serve_all(&kinds, |at| if at < 60 { 1 } else { at / 7 }, false);
        println!("serve: {runs} runs with a fault");
    }
}

/// Fetches a model with a fault. Returns whether the fault fired.
fn pull(hub: &Hub, fault: Option<Fault>) -> bool {
    let sandbox = Sandbox::new();
    let fetch = |fault: Option<Fault>| {
        let mut command = sandbox.program(fault);
        command.args(["pull", "golden/llama"]).env("HF_HUB_OFFLINE", "0").env("HF_ENDPOINT", hub.url());
        command.env("HF_HOME", sandbox.at("hub"));
        let mut child = Running::start(&mut command);
        let mut err = child.0.stderr.take().expect("it is piped");
        let code = child.ends(&format!("{fault:?}"));
        let mut stderr = String::new();
        err.read_to_string(&mut stderr).expect("UTF-8");
        check_exit(&format!("{fault:?}"), code, &stderr);
        is_complete(&sandbox.at("hub"), &format!("{fault:?}: {stderr}")) || code == Some(1)
    };
    assert!(fetch(fault), "{fault:?}: it succeeded without all files");
    let fired = sandbox.has_fired();
    assert!(fetch(None) && is_complete(&sandbox.at("hub"), ""), "{fault:?}: the next run does not complete the model");
    fired
}

/// Whether the cache has the complete model. Every file in it must equal the hub's.
fn is_complete(cache: &str, context: &str) -> bool {
    let mut count = 0;
    for file in links(cache, "golden--llama") {
        let name = file.file_name().expect("a name");
        let original = std::path::Path::new(&golden("llama")).join(name);
        let Ok(bytes) = std::fs::read(&file) else { continue };
        assert!(bytes == std::fs::read(&original).expect("a file of the hub"), "{context}: {}", original.display());
        count += usize::from(["config.json", "model.safetensors"].iter().any(|needed| name == *needed));
    }
    count == 2
}

#[test]
#[ignore = "minutes: every call of a download"]
fn downloads_survive_every_call_that_fails() {
    if shim().is_none() {
        return;
    }
    let hub = Hub::start();
    hub.offer_folder("golden/llama", std::path::Path::new(&golden("llama")));
    assert!(!pull(&hub, None));
    let disk: (&str, &[i32]) = ("disk", &[ENOSPC]);
    let kinds = [&CONNECTIONS[..], &FAULTS[..], &[disk]].concat();
    let runs = all_faults(&kinds, |at| if at < 60 { 1 } else { at / 7 }, false, |fault| pull(&hub, Some(fault)));
    println!("pull: {runs} runs with a fault");
}

/// `pull` twice and `rm` at once, each of which may be killed: no snapshot names a file that is not there, each process
/// that ends by itself did its work or prints one error, and the next `pull` completes the model.
fn pull_and_remove(rounds: usize) {
    let hub = Hub::start();
    hub.offer_folder("golden/llama", std::path::Path::new(&golden("llama")));
    let sandbox = Sandbox::new();
    let start = |words: &[&str]| {
        let mut command = sandbox.program(None);
        command.args(words).env("HF_HUB_OFFLINE", "0").env("HF_ENDPOINT", hub.url()).env("HF_HOME", sandbox.at("hub"));
        Running::start(&mut command)
    };
    let (pull, remove) = (["pull", "golden/llama"], ["rm", "-y", "golden/llama"]);
    for round in 0..rounds {
        let context = format!("round {round}");
        // Each kind begins first in some rounds, and some milliseconds after the others in some.
        let mut running: Vec<Running> = (0..3)
            .map(|number| {
                std::thread::sleep(Duration::from_millis((round * (number + 3) % 7) as u64));
                start(if (round + number) % 3 == 0 { &remove } else { &pull })
            })
            .collect();
        let killed = (round % 4 < 3).then(|| running.swap_remove(round % 3));
        for mut one in running {
            let mut err = one.0.stderr.take().expect("it is piped");
            let code = one.ends(&context);
            let mut stderr = String::new();
            err.read_to_string(&mut stderr).expect("UTF-8");
            check_exit(&context, code, &stderr);
        }
        drop(killed);
        is_complete(&sandbox.at("hub"), &context);
        let dangling: Vec<_> =
            links(&sandbox.at("hub"), "golden--llama").into_iter().filter(|link| !link.exists()).collect();
        assert!(dangling.is_empty(), "{context}: {dangling:?}");
        if round % 5 == 0 {
            assert_eq!(start(&pull).ends(&context), Some(0), "{context}");
            assert!(is_complete(&sandbox.at("hub"), &context), "{context}");
        }
    }
}

/// Containers that share a cache, whose processes have the same numbers.
#[test]
#[cfg(target_os = "linux")]
fn pulls_of_containers_that_share_a_cache_all_succeed() {
    const CONTAINER: [&str; 2] = ["--pid", "--fork"];
    const PARTS: usize = 60;
    if !Command::new("unshare").args(CONTAINER).arg("true").status().is_ok_and(|status| status.success()) {
        return println!("skipped: processes with numbers of their own (unshare)");
    }
    let hub = Hub::start();
    // Many files, which all of them link at the same time once the last one is there.
    let parts: Vec<String> = (1..=PARTS).map(|part| format!("m-F16-{part:05}-of-{PARTS:05}.gguf")).collect();
    let files: Vec<(&str, Vec<u8>)> = parts.iter().map(|part| (part.as_str(), part.repeat(100).into_bytes())).collect();
    hub.offer("many/parts", &files);
    for round in 0..8 {
        let sandbox = Sandbox::new();
        let start = |_| {
            let mut command = Command::new("unshare");
            crate::at_home(&mut command, sandbox.outside.path());
            command.args(CONTAINER).arg(env!("CARGO_BIN_EXE_foretoken")).args(["pull", "many/parts"]);
            command.env("HF_HUB_OFFLINE", "0").env("HF_ENDPOINT", hub.url()).env("HF_HOME", sandbox.at("hub"));
            Running::start(&mut command)
        };
        let running: Vec<Running> = (0..6).map(start).collect();
        for mut one in running {
            let mut err = one.0.stderr.take().expect("it is piped");
            let code = one.ends(&format!("round {round}"));
            let mut stderr = String::new();
            err.read_to_string(&mut stderr).expect("UTF-8");
            assert_eq!(code, Some(0), "round {round}: {stderr}");
        }
        let links = links(&sandbox.at("hub"), "many--parts");
        assert!(links.len() == PARTS && links.iter().all(|link| link.exists()), "round {round}: {links:?}");
    }
}

/// The links of a repository's snapshots, whether their files are there or not.
fn links(cache: &str, repository: &str) -> Vec<std::path::PathBuf> {
    let snapshots = std::path::Path::new(cache).join(format!("hub/models--{repository}/snapshots"));
    let folders = std::fs::read_dir(snapshots).into_iter().flatten().flatten();
    let links = folders.flat_map(|folder| std::fs::read_dir(folder.path()).into_iter().flatten().flatten());
    // What a process that was killed had not named yet.
    let is_named = |path: &std::path::PathBuf| path.extension().is_none_or(|ending| ending != "new");
    links.map(|link| link.path()).filter(is_named).collect()
}

#[test]
fn pulls_and_removals_at_once_leave_no_half_model() {
    pull_and_remove(8);
}

#[test]
#[ignore = "minutes: as many rounds as FORETOKEN_KILLS says, or a thousand"]
fn a_thousand_pulls_and_removals_at_once_leave_no_half_model() {
    let rounds = std::env::var("FORETOKEN_KILLS").ok().and_then(|rounds| rounds.parse().ok());
    pull_and_remove(rounds.unwrap_or(1000));
}
