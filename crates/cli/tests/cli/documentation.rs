//! Runs every command that README, guides and `--help` show, so that the documentation stays correct.
//!
//! Commands are read from blocks of code and from lines of help that begin with `foretoken`. They run in a folder with
//! small files under the names that documents use, with a local hub that offers the demo pair under the names of real
//! models. Commands that cannot run here are listed with reasons; an unused exception is an error. Outputs shown in
//! documents are not compared.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::hub::server::Server;

/// The time limit of a command.
const TIME_MAX: Duration = Duration::from_secs(120);

/// The documents whose commands are run.
const DOCUMENTS: [&str; 4] = ["README.md", "docs/guide.md", "docs/hub.md", "docs/server.md"];

/// Lines that are not run, by a part of them, with the reason.
const EXCEPTIONS: [(&str, &str); 9] = [
    ("cargo install", "it builds the program again"),
    ("cargo run --release", "it builds the program again"),
    ("cargo test", "it is this test"),
    ("python3 bench/inflate.py", "it needs numpy; the demo target stands in for what it makes"),
    ("grep dialogue bench/prompts.jsonl >", "its output is prepared here"),
    ("bench/peers/same", "it needs other programs, a real model and questions; bench/tests has stand-ins"),
    ("curl ", "tests of real clients use it"),
    ("haproxy ", "tests of replicas use it"),
    ("| man ", "not every system has manuals"),
];

/// Names in documents and their replacements.
const STAND_INS: [(&str, &str); 5] = [
    ("/tmp/inflated", "TARGET"),
    ("/tmp/dialogues.jsonl", "PROMPTS.jsonl"),
    ("0.0.0.0", "127.0.0.1"),
    ("--port 8000", "--port 0"),
    ("--port 8081", "--port 0"),
];

/// Further options for commands that would take too long for a test. Options of the line itself count more.
const SHORTENING: [(&str, &str); 11] = [
    ("rm", "--yes"),
    ("bench generate", "--repeat 1 -c 512"),
    ("bench batch", "-c 512"),
    ("bench pass", "--repeat 1"),
    ("bench replay", ""),
    ("analyze", "--repeat 1 -c 512"),
    ("generate", "-c 512"),
    ("batch", "-n 16 -c 512"),
    ("check", "-c 512"),
    ("chat", "-n 16 -c 512"),
    ("serve", "--port 0 -c 512"),
];

/// A row of `bench generate --json`, as far as comparing needs it.
const ROW: &str = r#"{"method": "plain", "tokens": 8, "seconds_behind_first_token_by_group": [[0.5, 0.25]]}"#;

/// A line of a batch file.
const BATCH: &str = r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hello"}}"#;

fn root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().expect("the repository is there")
}

/// The commands in a document's code blocks without a language. Continued lines are joined, and comments are removed.
fn commands_of_document(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut inside = None;
    let mut joined = String::new();
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            inside = if inside.is_some() { None } else { Some(language.to_string()) };
        } else if inside.as_deref() == Some("") {
            match line.strip_suffix('\\') {
                Some(start) => joined.push_str(start),
                None => {
                    joined.push_str(line);
                    let line = std::mem::take(&mut joined);
                    let line = line.split(" #").next().unwrap_or_default().trim().to_string();
                    commands.extend(line.split(" && ").map(str::to_string).filter(|part| !part.is_empty()));
                }
            }
        }
    }
    commands
}

/// The examples of a help page.
fn commands_of_help(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| line.starts_with(' ')).map(str::trim);
    let examples =
        lines.filter(|line| (line.starts_with("foretoken ") || line.contains(" | foretoken ")) && !line.contains('['));
    examples.map(|line| line.split("  ").next().unwrap_or_default().to_string())
}

/// The environment of the commands.
struct Environment {
    home: tempfile::TempDir,
    hub: Server,
}

impl Environment {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a folder can be made");
        let hub = Server::start();
        for (name, model) in [
            ("Qwen/Qwen2.5-1.5B-Instruct", "demo-target"),
            ("Qwen/Qwen2.5-0.5B-Instruct", "demo-draft"),
            ("Qwen/Qwen3-8B", "demo-target"),
            ("Qwen/Qwen3-0.6B", "demo-draft"),
            ("org/name", "demo-target"),
        ] {
            hub.offer_folder(name, &root().join("models").join(model));
        }
        for (name, model) in
            [("google/flan-t5-base", "t5-v1_1"), ("google/flan-t5-small", "mt5"), ("google/flan-t5-xl", "t5-v1_1")]
        {
            hub.offer_folder(name, super::encoder_decoder::with_tokenizer(model).path());
        }
        for (name, model) in [("model.gguf", "demo-target"), ("small.gguf", "demo-draft")] {
            let (to, from) = (home.path().join(name), root().join("models").join(model));
            super::run(&["quantize", &from.to_string_lossy(), &to.to_string_lossy(), "--type", "bf16"]).ok();
        }
        for (name, file) in [("Qwen/Qwen3-8B-GGUF", "model.gguf"), ("Qwen/Qwen3-0.6B-GGUF", "small.gguf")] {
            let bytes = std::fs::read(home.path().join(file)).expect("it was written");
            hub.offer(name, &[("a-Q4_K_M.gguf", bytes.clone()), ("a-Q8_0.gguf", bytes)]);
        }
        let (corpus, texts) = (home.path().join("corpus.txt"), home.path().join("texts.ftks"));
        std::fs::write(&corpus, "the little dog went to the park").expect("a file can be written");
        let (target, corpus, texts) =
            (root().join("models/demo-target"), corpus.to_string_lossy(), texts.to_string_lossy());
        super::run(&["lookup", "build", &corpus, "-o", &texts, "-m", &target.to_string_lossy()]).ok();
        std::fs::create_dir_all(home.path().join(".local/share/bash-completion/completions")).expect("a folder");
        Self { home, hub }
    }

    /// A folder for a command, with the files that documents name.
    fn folder(&self, line: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let link = |from: PathBuf, name: &str| {
            std::os::unix::fs::symlink(from, folder.path().join(name)).expect("a link can be made");
        };
        for name in ["models", "bench"] {
            link(root().join(name), name);
        }
        for (name, model) in
            [("TARGET", "target"), ("MODEL", "target"), ("model", "target"), ("DRAFT", "draft"), ("small", "draft")]
        {
            link(root().join("models").join(format!("demo-{model}")), name);
        }
        // A file that the command writes must not exist.
        let names = ["model.gguf", "small.gguf", "texts.ftks"].into_iter();
        for name in names.filter(|name| !line.contains(&format!("-o {name}"))) {
            link(self.home.path().join(name), name);
        }
        let prompts = std::fs::read_to_string(root().join("bench/prompts.jsonl")).expect("it is there");
        let prompts = prompts.lines().take(2).collect::<Vec<_>>().join("\n");
        let text = "the little dog went to the park with his friend. ".repeat(20);
        let records = r#"{"prompt": "the little dog went to", "output": "the park with his friend"}"#;
        std::fs::create_dir(folder.path().join("corpus")).expect("a folder can be made");
        for (name, content) in [
            ("PROMPTS.jsonl", prompts.as_str()),
            ("prompts.jsonl", &prompts),
            ("FILE", "hello\nthe little dog\n"),
            ("prompts.txt", "hello\nthe little dog\n"),
            ("PROMPT.txt", &text),
            ("prompt.txt", &text),
            ("notes.txt", &text),
            ("CORPUS.txt", &text),
            ("corpus/a.txt", &text),
            ("records.jsonl", records),
            ("BATCH.jsonl", BATCH),
            ("requests.jsonl", BATCH),
            ("texts.jsonl", records),
            ("keys.txt", "a-key\n"),
            ("BEFORE", ROW),
            ("AFTER", ROW),
        ] {
            std::fs::write(folder.path().join(name), content).expect("a file can be written");
        }
        folder
    }

    fn command(&self, line: &str, folder: &Path) -> Command {
        let mut line = STAND_INS.iter().fold(line.to_string(), |line, (name, stand_in)| line.replace(name, stand_in));
        for (name, shorter) in SHORTENING {
            let name = format!("foretoken {name}");
            if let Some(at) = line.find(&name) {
                line.insert_str(at + name.len(), &format!(" {shorter}"));
                break;
            }
        }
        if line.starts_with("foretoken ") && !line.contains(" | ") {
            line.insert_str(0, "exec "); // so that signals reach the program
        }
        let program = Path::new(env!("CARGO_BIN_EXE_foretoken")).parent().expect("it is in a folder");
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command.args(["-c", &line]).current_dir(folder).env("PATH", path);
        super::at_home(&mut command, self.home.path());
        command.env("HF_HOME", self.home.path()).env("HOME", self.home.path());
        command.env("HF_ENDPOINT", self.hub.url()).env_remove("HF_HUB_OFFLINE");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    fn run(&self, line: &str) -> Result<(), String> {
        let folder = self.folder(line);
        let mut child = self.command(line, folder.path()).spawn().map_err(|error| error.to_string())?;
        // A turn of a chat; other commands do not read it.
        let _ = child.stdin.take().expect("it is piped").write_all(b"hello\n");
        let started = Instant::now();
        let out = child.stdout.take().expect("it is piped");
        let reader = std::thread::spawn(move || std::io::copy(&mut BufReader::new(out), &mut std::io::sink()));
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let (mut all, mut line_read) = (String::new(), String::new());
        while stderr.read_line(&mut line_read).map_err(|error| error.to_string())? > 0 {
            if line_read.contains(" at http://") {
                Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("it can be asked to end");
            }
            all.push_str(&line_read);
            line_read.clear();
        }
        reader.join().expect("no panic").map_err(|error| error.to_string())?;
        let status = child.wait().map_err(|error| error.to_string())?;
        match (status.success(), started.elapsed() < TIME_MAX) {
            (true, true) => Ok(()),
            (_, false) => Err(format!("expected it within {TIME_MAX:?}, found {:?}", started.elapsed())),
            (false, _) => Err(format!("expected success, found {status}: {all}")),
        }
    }
}

/// The help pages of the program and of its commands.
fn helps() -> impl Iterator<Item = (String, String)> {
    let names = super::help::COMMANDS.into_iter().filter(|name| !name.starts_with('-'));
    names.map(|name| (format!("{name} --help"), super::run(&super::words(&format!("{name} --help"))).ok()))
}

#[test]
fn every_command_in_the_documentation_works() {
    let environment = Environment::new();
    let mut unused: BTreeSet<&str> = EXCEPTIONS.iter().map(|(part, _)| *part).collect();
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let documents = DOCUMENTS.map(|name| {
        let text = std::fs::read_to_string(root().join(name)).expect("the document is there");
        (name.to_string(), commands_of_document(&text))
    });
    let helps = helps().map(|(name, text)| (name, commands_of_help(&text).collect()));
    for (source, commands) in documents.into_iter().chain(helps) {
        for command in commands {
            match EXCEPTIONS.iter().find(|(part, _)| command.contains(part)) {
                Some((part, _)) => drop(unused.remove(part)),
                None => drop(all.entry(command).or_insert_with(|| source.clone())),
            }
        }
    }
    assert!(unused.is_empty(), "unused exceptions: {unused:?}");
    assert!(all.len() > 25, "only {} commands were found: {all:?}", all.len());
    // Two at a time, since most of the time is spent on starting.
    let (next, failures) = (Mutex::new(all.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((command, source)) = next.lock().expect("nobody panics").next() else { return };
                    if let Err(why) = environment.run(command) {
                        failures.lock().expect("nobody panics").push(format!("{source}: {command}: {why}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("nobody panics");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn commands_are_found_in_documents_and_help() {
    let text = "a\n```\nforetoken a \\\n  \"b c\"   # why\npython3 x && foretoken d\n```\n```toml\nforetoken no\n```\n";
    assert_eq!(commands_of_document(text), ["foretoken a   \"b c\"", "python3 x", "foretoken d"]);
    let help = "Usage: foretoken [x]\n\nExamples:\n  foretoken chat -m M   talk\n  foretoken serve\n";
    assert_eq!(commands_of_help(help).collect::<Vec<_>>(), ["foretoken chat -m M", "foretoken serve"]);
}
