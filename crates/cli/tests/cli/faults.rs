//! Fault injection: system calls that fail, full disks, clocks that jump.
//!
//! All system calls of the program go through libc, so a small library in C (`faults/shim.c`), which is loaded before
//! it, makes the n-th call of one kind fail. As in SQLite's tests, each command runs with n = 1, 2, 3 ... until no
//! fault fires any more. Whatever fails, the run ends by itself and either did all of its work or prints one error; an
//! existing file is intact, with its old or new content; and the next run removes temporary files. Disks are full at
//! every byte. Also, a run is killed at ten thousand random moments (`faults/kills.rs`).
//!
//! CI runs samples; `cargo test -p foretoken-cli --test cli faults -- --ignored` runs all (FORETOKEN_FAULTS names one
//! command, with a kind after a colon: `logits:read`; of kills only the command). Linux only. Also with faults of
//! connections: the server and downloads (`faults/network.rs`). Memory is tested in `machine.rs`, and mapped files that
//! change in `weights/src/map.rs`.

mod answers;
mod kills;
mod layers;
mod network;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::{demo, golden, program};

/// A run that takes longer hangs.
const SECONDS_MAX: u64 = 20;
/// A loop ends after this many failed runs.
const WRONG_MAX: usize = 10;
const EIO: i32 = 5;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;

/// Kinds of calls with the errors that they return; 0 is a call that does half of its work.
const FAULTS: [(&str, &[i32]); 12] = [
    ("read", &[EIO, EINTR, 0]),
    ("open", &[EIO, EINTR]),
    ("write", &[ENOSPC, EIO, EINTR, 0]),
    ("sync", &[EIO, EINTR]),
    ("rename", &[EIO, ENOSPC]),
    ("unlink", &[EIO]),
    ("mkdir", &[EIO]),
    ("mmap", &[ENOMEM]),
    ("truncate", &[EIO]),
    ("stat", &[EIO]),
    ("lock", &[EIO, EINTR]),
    ("thread", &[EAGAIN]),
];

/// The library that makes calls fail, compiled once; `None` outside Linux.
fn shim() -> Option<&'static Path> {
    static SHIM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("shim-{}.so", std::process::id()));
        let from = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/faults/shim.c");
        let compiler = std::env::var("CC").unwrap_or("cc".to_string());
        let mut command = Command::new(compiler);
        command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&to).arg(from).args(["-ldl", "-lpthread"]);
        assert!(command.status().is_ok_and(|status| status.success()), "{command:?}");
        Some(to)
    };
    SHIM.get_or_init(compile).as_deref()
}

/// A command with the files that it writes.
struct Case {
    name: &'static str,
    /// `{}` stands for the folder.
    line: Vec<&'static str>,
    input: &'static str,
    /// Files that it writes, with the command that reads them again: the words before the file's name.
    written: Vec<(&'static str, Vec<&'static str>)>,
    /// Whether its cache folder is in the folder, too, and what it has there before faults.
    cache: Option<CacheBefore>,
}

/// What is in a cache folder before a run with a fault.
#[derive(Clone, Copy, PartialEq)]
enum CacheBefore {
    Nothing,
    /// What a first run writes.
    Filled,
}

fn case(name: &'static str, line: &'static str, written: &[(&'static str, &'static str)]) -> Case {
    let split = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    let written = written.iter().map(|(file, reader)| (*file, split(reader))).collect();
    Case { name, line: split(line), input: "", written, cache: None }
}

/// All commands that write, and those that read a model's folder.
fn cases() -> Vec<Case> {
    const STORE: &str = "generate x -n 1 -lcs";
    const CACHE: &str = "generate x -n 1 --prompt-cache-ro --prompt-cache";
    const COSTS: &str = "generate x -n 1 --costs";
    const GGUF: &str = "inspect";
    let all = "generate Hello -n 2 -s 1 -t 2 -lcd {}/store --prompt-cache {}/cache --costs {}/costs";
    let several = "generate -f {}/corpus.txt -n 2 -s 1 -t 2 --n-best 2 -lcd {}/store";
    let timed = "bench generate --prompts {}/corpus.txt -n 2 -s 1 -t 1 --spec-type lookup --costs {}/costs -q";
    let mut chat = case("chat", "chat -n 1 -s 1 -t 1 -lcd {}/store", &[("store", STORE), ("saved.json", "")]);
    chat.input = "Hello\n/save --force {}/saved.json\n/load {}/saved.json\n";
    vec![
        case("generate", all, &[("store", STORE), ("cache", CACHE), ("costs", COSTS)]),
        case("several", several, &[("store", STORE)]),
        case(
            "folder",
            "generate -m {}/model --prompt-ids 1,2 --output-ids -n 2 -s 1 -t 2 --config {}/config.toml",
            &[],
        ),
        case("quantize", "quantize {}/model {}/out.gguf --type f16 --force -t 1", &[("out.gguf", GGUF)]),
        case("gguf", "quantize {}/model.gguf {}/out.gguf --type q8_0 --force -t 1", &[("out.gguf", GGUF)]),
        case("logits", "logits -m {}/model.gguf --tokens 5,17,3 -o {}/logits --force -t 1", &[("logits", "")]),
        case("lookup", "lookup build {}/corpus.txt -m DEMO -o {}/store --force", &[("store", STORE)]),
        case("completions", "completions bash", &[]),
        case("man", "man generate", &[]),
        case("inspect", "inspect {}/model", &[]),
        case("timed", timed, &[("costs", COSTS)]),
        case("batch", answers::LINE, &[(answers::NAME, answers::READER)]),
        layers::case("packing", CacheBefore::Nothing),
        layers::case("packed", CacheBefore::Filled),
        chat,
    ]
}

/// A folder with the files that commands read, and with older versions of the files that they write.
struct Sandbox {
    folder: tempfile::TempDir,
    /// Another folder: home, standard output, and the file that is written when a fault fires.
    outside: tempfile::TempDir,
}

impl Sandbox {
    fn new() -> Self {
        let (folder, outside) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let sandbox = Self { folder, outside };
        std::fs::create_dir(sandbox.at("model")).expect("a folder can be made");
        std::fs::create_dir(sandbox.at(layers::MODEL)).expect("a folder can be made");
        for (fixture, folder) in [("llama", "model"), (layers::FIXTURE, layers::MODEL)] {
            for name in ["config.json", "model.safetensors"] {
                std::fs::copy(Path::new(&golden(fixture)).join(name), sandbox.at(folder).join(name)).expect("copied");
            }
        }
        std::fs::write(sandbox.at("corpus.txt"), "the little dog").expect("written");
        std::fs::write(sandbox.at("requests.jsonl"), answers::REQUESTS).expect("written");
        std::fs::write(sandbox.at("config.toml"), "seed = 1\n").expect("written");
        for line in [
            "quantize {}/model {}/model.gguf --type f32",
            "generate x -n 1 -s 1 -t 1 -lcd {}/store --prompt-cache {}/cache --costs {}/costs",
        ] {
            let output = sandbox.run(&case("", line, &[]), &[], Stdio::piped());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        std::fs::copy(sandbox.at("model.gguf"), sandbox.at("out.gguf")).expect("copied");
        std::fs::write(sandbox.at("logits"), "old").expect("written");
        std::fs::write(sandbox.at("saved.json"), "[]").expect("written");
        sandbox
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn fired(&self) -> PathBuf {
        self.outside.path().join("fired")
    }

    /// The names and contents of all files, also of those in the cache folder.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let entries = ["", layers::FOLDER].map(|folder| std::fs::read_dir(self.at(folder)));
        let entries = entries.into_iter().flatten().flatten().flatten();
        let entries = entries.filter(|entry| entry.path().is_file());
        let name = |entry: std::fs::DirEntry| {
            let bytes = std::fs::read(entry.path()).expect("it can be read");
            let name = entry.path().strip_prefix(self.folder.path()).expect("inside").display().to_string();
            (name, bytes)
        };
        let mut files: Vec<_> = entries.map(name).collect();
        files.sort();
        files
    }

    /// Restores the folder to these files.
    fn restore(&self, files: &[(String, Vec<u8>)]) {
        let now = self.files();
        for (name, _) in now.iter().filter(|(name, _)| !files.iter().any(|(old, _)| old == name)) {
            std::fs::remove_file(self.at(name)).expect("it can be removed");
        }
        for (name, bytes) in files.iter().filter(|file| !now.contains(file)) {
            std::fs::write(self.at(name), bytes).expect("it can be written");
        }
    }

    fn command(&self, case: &Case, variables: &[(&str, String)]) -> Command {
        let folder = self.folder.path().display().to_string();
        let mut command = program(self.outside.path());
        let word = |word: &&str| word.replace("{}", &folder).replace("DEMO", &demo("demo-target"));
        command.args(case.line.iter().map(word));
        if case.cache.is_some() {
            command.env("XDG_CACHE_HOME", self.folder.path());
        }
        command.envs(variables.iter().map(|(name, value)| (*name, value)));
        command
    }

    /// Runs a command to its end, which must come.
    fn run(&self, case: &Case, variables: &[(&str, String)], out: impl Into<Stdio>) -> Output {
        let mut command = self.command(case, variables);
        let mut child = command.stdin(Stdio::piped()).stdout(out).stderr(Stdio::piped()).spawn().expect("it starts");
        let input = case.input.replace("{}", &self.folder.path().display().to_string());
        let _ = std::io::Write::write_all(&mut child.stdin.take().expect("piped"), input.as_bytes());
        let id = child.id().to_string();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let watch = std::thread::spawn(move || {
            let too_long = ended.recv_timeout(Duration::from_secs(SECONDS_MAX)).is_err();
            if too_long {
                let _ = Command::new("kill").args(["-KILL", &id]).status();
            }
            too_long
        });
        let output = child.wait_with_output().expect("it ends");
        let _ = end.send(());
        assert!(!watch.join().expect("it watches"), "{} hangs: {variables:?}", case.name);
        output
    }

    /// Runs a command with a fault. Returns whether it fired. `old`: the files before; `reference`: the result of a run
    /// without a fault.
    fn run_fault(
        &self,
        case: &Case,
        fault: &[(&str, String)],
        old: &[(String, Vec<u8>)],
        reference: &Reference,
    ) -> bool {
        self.restore(old);
        let _ = std::fs::remove_file(self.fired());
        let out_path = self.folder.path().join("standard-output");
        let out = std::fs::File::create(&out_path).expect("it can be made");
        let folder = self.folder.path().display().to_string();
        let mut variables = vec![
            ("LD_PRELOAD", shim().expect("it was compiled").display().to_string()),
            ("FAULT_UNDER", folder),
            ("FAULT_SAID", self.fired().display().to_string()),
        ];
        variables.extend(fault.iter().cloned());
        let output = self.run(case, &variables, out);
        let fired = self.fired().exists();
        let stdout = std::fs::read_to_string(&out_path).unwrap_or_default();
        std::fs::remove_file(&out_path).expect("it is there");
        self.check_result(case, fault, &output, &stdout, old, reference);
        fired
    }

    fn check_result(
        &self,
        case: &Case,
        fault: &[(&str, String)],
        output: &Output,
        stdout: &str,
        old: &[(String, Vec<u8>)],
        reference: &Reference,
    ) {
        let err = String::from_utf8_lossy(&output.stderr);
        let what = format!("{} {fault:?}: {:?}\n{err}", case.name, output.status);
        // Measured times differ between runs, and a chat continues after an error.
        let may_differ = ["chat", "timed"].contains(&case.name);
        let errors = err.lines().filter(|line| line.starts_with("error: ")).count();
        assert!(!err.contains("panicked"), "{what}");
        match output.status.code() {
            Some(0) => {
                assert!(
                    errors == 0 && (stdout == reference.stdout || case.name == "timed"),
                    "{what}\n{stdout:?}\n{:?}",
                    reference.stdout
                );
            }
            Some(1) => {
                // The line of a text that ends early is ended.
                let is_begun = reference.stdout.starts_with(stdout.trim_end_matches('\n'));
                assert!(errors == 1 && (is_begun || may_differ), "{what}\n{stdout:?}");
            }
            _ => panic!("{what}"),
        }
        for (name, reader) in &case.written {
            let now = std::fs::read(self.at(name)).ok();
            let before = old.iter().find(|(file, _)| file == name).map(|(_, bytes)| bytes.clone());
            let is_new = now.as_ref() == reference.files.get(*name);
            let is_intact = is_new || now == before;
            // Measured costs and times differ between runs.
            let is_measured = ["costs", answers::NAME].contains(name);
            assert!(!output.status.success() || is_new || is_measured, "{what}: {name} is unchanged without an error");
            if !is_intact && !reader.concat().is_empty() {
                self.read_again(name, reader, &what);
            } else {
                assert!(is_intact, "{what}: {name} is neither old nor new");
            }
        }
    }

    /// Reads a file again, by the command of these words and the file's name.
    fn read_again(&self, name: &str, reader: &[&str], what: &str) {
        let (folder, path) = (self.folder.path().display().to_string(), self.at(name).display().to_string());
        let words: Vec<String> = reader.iter().map(|word| word.replace("{}", &folder)).chain([path]).collect();
        let read = crate::run(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(read.code, 0, "{what}: {name}: {}", read.err);
        if name == answers::NAME {
            answers::check(&self.at(name));
        }
    }

    /// The next run must remove what a run left behind.
    fn next_run_cleans_up(&self, case: &Case, known: &BTreeSet<String>) {
        let output = self.run(case, &[], Stdio::null());
        assert!(output.status.success(), "{}: {}", case.name, String::from_utf8_lossy(&output.stderr));
        if case.name == "batch" {
            answers::check(&self.at(answers::NAME));
        }
        let names: Vec<String> = self.files().into_iter().map(|(name, _)| name).collect();
        assert!(names.iter().all(|name| known.contains(name)), "{}: {names:?}", case.name);
    }
}

/// The output and the files of a run without faults.
struct Reference {
    stdout: String,
    files: std::collections::BTreeMap<String, Vec<u8>>,
}

/// Runs a case with the faults of all kinds whose names begin with `kinds`. `step`: the next increment of n.
fn all_faults(case: &Case, kinds: &str, step: impl Fn(u64) -> u64) -> usize {
    let sandbox = Sandbox::new();
    if case.cache == Some(CacheBefore::Filled) {
        sandbox.run(case, &[], Stdio::null());
    }
    let old = sandbox.files();
    let output = sandbox.run(case, &[], Stdio::piped());
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {err}", case.name);
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    let reference = Reference { stdout, files: sandbox.files().into_iter().collect() };
    let known: BTreeSet<String> = reference.files.keys().cloned().collect();
    let mut runs = 0;
    // All failures are printed, not only the first.
    let mut wrong = 0;
    let mut run_fault = |fault: &[(&str, String)]| {
        runs += 1;
        let run_one = || sandbox.run_fault(case, fault, &old, &reference);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run_one)).unwrap_or_else(|_| {
            wrong += 1;
            wrong < WRONG_MAX
        })
    };
    for (kind, errors) in FAULTS.into_iter().filter(|(kind, _)| kind.starts_with(kinds)) {
        for error in errors {
            let mut at = 1;
            let fault = |at: u64| {
                [("FAULT_KIND", kind.to_string()), ("FAULT_ERROR", error.to_string()), ("FAULT_AT", at.to_string())]
            };
            while run_fault(&fault(at)) {
                at += step(at);
            }
            sandbox.next_run_cleans_up(case, &known);
        }
    }
    // A disk that is full after this many bytes.
    let mut bytes = 0;
    while "disk".starts_with(kinds) && run_fault(&[("FAULT_KIND", "disk".into()), ("FAULT_AT", bytes.to_string())]) {
        bytes += step(bytes.max(1));
    }
    sandbox.next_run_cleans_up(case, &known);
    // A clock that jumps by hours, forwards and back.
    for (hours, at) in [(5, 1), (5, 3), (-5, 1), (-5, 2), (-5, 7), (100_000, 5)] {
        if "clock".starts_with(kinds) {
            run_fault(&[("FAULT_CLOCK", (hours * 3600).to_string()), ("FAULT_AT", at.to_string())]);
        }
    }
    assert_eq!(wrong, 0, "{}: this many of {runs} runs with a fault went wrong", case.name);
    runs
}

#[test]
fn a_fault_is_one_error_and_loses_no_file() {
    if shim().is_none() {
        return;
    }
    // The first calls, then fewer and fewer: loops of reading and writing are long and uniform.
    for case in cases().iter().filter(|case| ["lookup", "gguf", "packing", "packed"].contains(&case.name)) {
        all_faults(case, "", |at| at.max(2) * 2);
    }
}

#[test]
#[ignore = "minutes: every call of every command"]
fn every_call_of_every_command_may_fail() {
    let selection = std::env::var("FORETOKEN_FAULTS").unwrap_or_default();
    let (name, kinds) = selection.split_once(':').unwrap_or((&selection, ""));
    for case in cases().iter().filter(|case| case.name.contains(name)) {
        let started = Instant::now();
        // Each of the first calls and bytes, then growing steps, so that no period is missed.
        let runs = all_faults(case, kinds, |at| if at < 400 { 1 } else { at / 37 });
        println!("{}: {runs} runs with a fault, {:.0?}", case.name, started.elapsed());
    }
}
