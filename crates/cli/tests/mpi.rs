//! `--backend mpi`: jobs of `mpirun` write what one process writes, and end in one line when a rank fails.
//!
//! Built with the feature `mpi` alone. Where there is no `mpirun`, the tests say that they are skipped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_foretoken");

/// Whether there is an `mpirun`; says that tests are skipped if not.
fn is_there() -> bool {
    let found = Command::new("mpirun").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: ranks over MPI, no mpirun");
    }
    found
}

/// A command without the user's settings.
fn at_home(mut command: Command, home: &Path) -> Command {
    for name in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME"] {
        command.env(name, home);
    }
    command.env("HF_HUB_OFFLINE", "1");
    command
}

/// `mpirun` with these words of its own.
fn mpirun(home: &Path, words: &str) -> Command {
    let mut command = at_home(Command::new("mpirun"), home);
    command.args("--allow-run-as-root --oversubscribe --bind-to none".split(' ')).args(words.split_whitespace());
    command
}

/// A job of this many ranks.
fn job(home: &Path, ranks: usize, words: &[&str]) -> Command {
    let mut command = mpirun(home, &format!("-n {ranks}"));
    command.arg(PROGRAM).args(words).args(["--backend", "mpi", "--threads", "1"]);
    command
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What is the same on any number of ranks, of each answer that a command prints as JSON.
fn written(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", err(output));
    let answers = String::from_utf8(output.stdout.clone()).expect("output is UTF-8");
    let fields = ["text", "ids", "logprobs", "log_probability", "finish_reason"];
    let answer = |line: &str| {
        let object: Value = serde_json::from_str(line).expect("each line is JSON");
        fields.iter().map(|field| object[field].clone()).collect()
    };
    answers.lines().map(answer).collect()
}

fn model(name: &str) -> String {
    format!("{}/../../models/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn jobs_write_what_one_process_writes() {
    if !is_there() {
        return;
    }
    let home = tempfile::tempdir().expect("a folder can be made");
    let (experts, draft) = (model("demo-experts"), model("demo-draft"));
    let prompt = "generate -p once --seed 3 -q --json";
    for (ranks, words) in [
        (&[1, 2, 4][..], vec!["-n", "12", "--logprobs", "--spec-type", "none"]),
        (&[2], vec!["-n", "16", "--logprobs", "--spec-type", "draft+suffix", "-md", &draft]),
        (&[2], vec!["-n", "10", "--num-beams", "3", "--n-best", "2", "--spec-type", "draft", "-md", &draft]),
        (&[2, 4], vec!["-n", "10", "--logprobs", "--spec-type", "suffix", "-m", &experts]),
    ] {
        let words: Vec<&str> = prompt.split(' ').chain(words).collect();
        let mut alone = at_home(Command::new(PROGRAM), home.path());
        let expected = written(&alone.args(&words).output().expect("the program starts"));
        assert!(!expected.is_empty());
        for ranks in ranks {
            let found = job(home.path(), *ranks, &words).output().expect("mpirun starts");
            assert_eq!(written(&found), expected, "{words:?} on {ranks}");
        }
    }
}

#[test]
fn a_pass_tells_what_it_sends() {
    if !is_there() {
        return;
    }
    let home = tempfile::tempdir().expect("a folder can be made");
    let words = ["bench", "pass", "--rows", "1,4", "--repeat", "2", "--json"];
    let output = job(home.path(), 2, &words).output().expect("mpirun starts");
    assert!(output.status.success(), "{}", err(&output));
    let object: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let number = |field: &str, rows: &str| object[0][field][rows].as_u64().expect("a number");
    assert!(number("messages_per_pass", "1") > 1);
    assert_eq!(number("messages_per_pass", "1"), number("messages_per_pass", "4"));
    // The command that begins a pass hardly grows with its rows, and everything else does.
    assert!(number("bytes_sent_per_pass", "4") > 3 * number("bytes_sent_per_pass", "1"));
}

#[test]
fn ranks_of_other_settings_or_files_are_refused_in_one_line() {
    if !is_there() {
        return;
    }
    let home = tempfile::tempdir().expect("a folder can be made");
    let mut differ = mpirun(home.path(), "-n 1");
    differ.arg(PROGRAM).args("generate -p a -n 5 -q --backend mpi".split(' '));
    differ.args([":", "-n", "1", PROGRAM]).args("generate -p a -n 6 -q --backend mpi".split(' '));
    let output = differ.output().expect("mpirun starts");
    assert!(!output.status.success());
    let lines = |output: &Output| -> Vec<String> {
        err(output).lines().filter(|line| line.starts_with("error: ")).map(str::to_string).collect()
    };
    let expected = "error: rank 1: settings: expected \"5\" (as rank 0), found \"6\"";
    assert_eq!(lines(&output), [expected], "{}", err(&output));

    // The same relative path in two folders.
    for (folder, byte) in [("a", 0), ("b", 1)] {
        let folder = home.path().join(folder).join("m");
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        for entry in std::fs::read_dir(model("demo-target")).expect("it is there") {
            let path = entry.expect("it is there").path();
            let mut bytes = std::fs::read(&path).expect("it can be read");
            if path.extension().is_some_and(|ending| ending == "safetensors") {
                let last = bytes.len() - 1;
                bytes[last] ^= byte;
            }
            std::fs::write(folder.join(path.file_name().expect("a name")), bytes).expect("it can be written");
        }
    }
    let [first, second] = ["a", "b"].map(|name| home.path().join(name).display().to_string());
    let mut differ = mpirun(home.path(), &format!("-n 1 -wdir {first}"));
    let line = "generate -m m -p a -n 5 -q --backend mpi";
    differ.arg(PROGRAM).args(line.split(' ')).args([":", "-n", "1", "-wdir", &second, PROGRAM]).args(line.split(' '));
    let output = differ.output().expect("mpirun starts");
    assert!(!output.status.success());
    let expected = "error: m: rank 1: m: weights: expected those of rank 0, found others";
    assert_eq!(lines(&output), [expected], "{}", err(&output));
}

/// A job that is running, and the process of its rank 1.
struct Running {
    child: Child,
    /// Standard error, from what follows the first text on.
    errors: std::thread::JoinHandle<String>,
    second: u32,
}

impl Running {
    /// Starts a job, and waits until it writes.
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("mpirun starts");
        let mut errors = child.stderr.take().expect("it is piped");
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut first = [0; 8];
        out.read_exact(&mut first).expect("the job writes");
        std::thread::spawn(move || out.lines().for_each(drop));
        let second = rank_of(child.id(), 1).expect("rank 1 is a child of mpirun");
        Self { child, errors, second }
    }

    fn signal(&self, name: &str) {
        signal(self.second, name);
    }

    /// Whether it failed, what it wrote to standard error and how long it took to end.
    fn end(mut self) -> (bool, String, Duration) {
        let since = Instant::now();
        let status = self.child.wait().expect("the job ends");
        (!status.success(), self.errors.join().expect("it is read"), since.elapsed())
    }
}

fn signal(process: u32, name: &str) {
    let status = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(status.expect("kill starts").success());
}

/// The process of a rank of the job that this `mpirun` started.
fn rank_of(mpirun: u32, rank: u32) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let status = String::from_utf8_lossy(&read("status")).into_owned();
        let is_child = status.lines().any(|line| line == format!("PPid:\t{mpirun}"));
        let variable = format!("OMPI_COMM_WORLD_RANK={rank}").into_bytes();
        is_child && read("environ").split(|byte| *byte == 0).any(|found| found == variable)
    })
}

/// A text that takes longer than any test.
const LONG: &str = "generate -p once -n 100000 -c 0 --ignore-eos -q --spec-type none --rank-timeout 2";

#[test]
fn a_rank_that_is_killed_or_stopped_ends_the_job_within_seconds() {
    if !is_there() {
        return;
    }
    let home = tempfile::tempdir().expect("a folder can be made");
    let start = || Running::start(job(home.path(), 2, &LONG.split(' ').collect::<Vec<_>>()));
    let killed = start();
    killed.signal("-KILL");
    let (failed, _, took) = killed.end();
    assert!(failed && took < Duration::from_secs(20), "{took:?}");
    let stopped = start();
    stopped.signal("-STOP");
    let (failed, errors, took) = stopped.end();
    assert!(failed && took < Duration::from_secs(20), "{took:?}: {errors}");
    let lines: Vec<&str> = errors.lines().filter(|line| line.contains("error: ")).collect();
    assert_eq!(lines, ["error: rank 1 of 2: expected an answer within 2 s, found none"], "{errors}");
}

/// Ticks of processor time that a process has taken, of which there are 100 a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("the name is in parentheses").split_whitespace().collect();
    [fields[11], fields[12]].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn an_idle_rank_sleeps_and_a_job_that_ends_leaves_nothing() {
    if !is_there() {
        return;
    }
    let home = tempfile::tempdir().expect("a folder can be made");
    let mut chat = Running::start(job(home.path(), 2, &["chat", "-n", "4", "--spec-type", "none", "-p", "hello"]));
    // It has answered, and waits for its user.
    std::thread::sleep(Duration::from_secs(2));
    let before = ticks(chat.second);
    std::thread::sleep(Duration::from_secs(2));
    let taken = ticks(chat.second) - before;
    assert!(taken < 40, "{taken} of 200 ticks");
    let second = chat.second;
    // The end of its input ends a chat.
    drop(chat.child.stdin.take());
    let (failed, errors, _) = chat.end();
    assert!(!failed, "{errors}");
    assert!(!is_running(second), "rank 1 is still there");
}

/// A server, alone or on two ranks, and its address.
struct Serving {
    child: Child,
    errors: BufReader<std::process::ChildStderr>,
    address: String,
}

impl Serving {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut errors = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        while !line.contains(" at http://") {
            line.clear();
            assert!(errors.read_line(&mut line).expect("it can be read") > 0, "it ended: {:?}", child.wait());
        }
        let address = line.trim().rsplit("http://").next().expect("an address").to_string();
        Self { child, errors, address }
    }

    /// Asks for a completion.
    fn ask(&self, body: &str) -> TcpStream {
        let mut client = TcpStream::connect(&self.address).expect("it listens");
        let head = format!("POST /v1/completions HTTP/1.0\r\nHost: {}\r\n", self.address);
        write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).expect("it takes a request");
        client
    }

    /// The choices of the answers to two requests at a time, with log-probabilities.
    fn answers(&self) -> [Value; 2] {
        let ask = |prompt| {
            let body = format!(r#"{{"prompt": "{prompt}", "max_tokens": 12, "seed": 5, "logprobs": 2}}"#);
            self.ask(&body)
        };
        ["once upon a time", "the cat"].map(ask).map(|client| {
            let answer = rest(client);
            let (head, body) = answer.split_once("\r\n\r\n").expect("it is HTTP");
            assert!(head.starts_with("HTTP/1.0 200 "), "{answer}");
            serde_json::from_str::<Value>(body).expect("it is JSON")["choices"].take()
        })
    }

    /// Waits until it has ended. Its exit code, and what it wrote to standard error since it listens.
    fn end(mut self) -> (Option<i32>, String) {
        let mut errors = String::new();
        self.errors.read_to_string(&mut errors).expect("it can be read");
        (self.child.wait().expect("it ends").code(), errors)
    }
}

/// What comes until the connection ends.
fn rest(mut client: TcpStream) -> String {
    let mut text = String::new();
    client.read_to_string(&mut text).expect("it can be read");
    text
}

/// Whether a process is there. One that was killed is until the system has cleaned up after it.
fn is_running(process: u32) -> bool {
    let since = Instant::now();
    let is_there = || Path::new(&format!("/proc/{process}")).exists();
    while is_there() && since.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    is_there()
}

const SERVE: [&str; 5] = ["serve", "--port", "0", "-np", "2"];

#[test]
fn a_server_on_ranks_answers_as_one_process_and_ends_with_mpirun() {
    if !is_there() {
        return;
    }
    let home = tempfile::tempdir().expect("a folder can be made");
    let mut alone = at_home(Command::new(PROGRAM), home.path());
    alone.args(SERVE).args(["--threads", "1"]);
    let alone = Serving::start(alone);
    let expected = alone.answers();
    signal(alone.child.id(), "-TERM");
    assert_eq!(alone.end().0, Some(0));
    for name in ["-INT", "-TERM"] {
        let serving = Serving::start(job(home.path(), 2, &SERVE));
        assert_eq!(serving.answers(), expected);
        let ranks = [0, 1].map(|rank| rank_of(serving.child.id(), rank).expect("it is a child of mpirun"));
        let since = Instant::now();
        signal(serving.child.id(), name);
        let (code, errors) = serving.end();
        // The code is mpirun's own.
        assert_eq!(code, Some(1), "{name}: {errors}");
        assert!(since.elapsed() < Duration::from_secs(15), "{name}: {:?}", since.elapsed());
        assert!(errors.contains("shutting down") && !errors.contains("error: "), "{name}: {errors}");
        assert!(!ranks.into_iter().any(is_running), "{name}: a rank is still there");
    }
}

/// Whoever ends a server asks rank 0. Other ranks may be told the same, and stay for its requests.
#[test]
fn a_server_on_ranks_lets_its_requests_finish() {
    if !is_there() {
        return;
    }
    let home = tempfile::tempdir().expect("a folder can be made");
    let serving = Serving::start(job(home.path(), 2, &SERVE));
    let ranks = [1, 0].map(|rank| rank_of(serving.child.id(), rank).expect("it is a child of mpirun"));
    let mut client = serving.ask(r#"{"prompt": "once", "max_tokens": 1500, "ignore_eos": true, "stream": true}"#);
    let mut begin = [0; 64];
    client.read_exact(&mut begin).expect("it begins to answer");
    ranks.into_iter().for_each(|rank| signal(rank, "-TERM"));
    let since = Instant::now();
    let answer = rest(client);
    assert!(since.elapsed() > Duration::from_millis(20), "the answer was complete before the signals");
    assert!(answer.trim_end().ends_with("data: [DONE]") && answer.contains(r#""length""#), "{answer}");
    let (code, errors) = serving.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(!ranks.into_iter().any(is_running), "a rank is still there");
}
