//! Every command that README, guide and `--help` show is run, so that documentation cannot rot.
//!
//! Commands are read from blocks of code and from lines of help that begin with `foretoken`. They run in a folder with
//! small files under the names that documents use, with a hub of our own that offers the demo pair under the names of
//! real models. What cannot run here is listed with its reason; an exception that nothing needs is an error, too. Left
//! out: whether what documents say of the results is true.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::hub_server::Server;

/// No command takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Documents whose commands are run.
const DOCUMENTS: [&str; 4] = ["README.md", "docs/guide.md", "docs/hub.md", "docs/server.md"];

/// Lines that are not run, by how they begin, and why.
const EXCEPTIONS: [(&str, &str); 5] = [
    ("cargo install", "it builds the program anew"),
    ("cargo test", "it is this test"),
    ("python3 bench/inflate.py", "it needs PyTorch; the demo target stands in for what it makes"),
    ("curl", "tests of real clients use it"),
    ("cp ", "it is the system's"),
];

/// What documents name, and what stands in for it.
const STAND_INS: [(&str, &str); 8] = [
    ("/tmp/inflated", "TARGET"),
    ("/tmp/dialogues.jsonl", "PROMPTS.jsonl"),
    ("TARGET", "{models}/demo-target"),
    ("DRAFT", "{models}/demo-draft"),
    ("MODEL", "{models}/demo-target"),
    ("models/demo-draft", "{models}/demo-draft"),
    ("models/demo-target", "{models}/demo-target"),
    ("0.0.0.0", "127.0.0.1"),
];

/// Further words for commands that would take longer than a test should: less of the same.
const LESS: [(&str, &str); 7] = [
    ("bench generate", "-n 8 --repeat 1 -c 512"),
    ("bench batch", "-n 8 -c 512"),
    ("bench pass", "--seconds 0.1"),
    ("generate", "-c 512"),
    ("check", "-n 8 -c 512"),
    ("chat", "-n 16 -c 512"),
    ("serve", "--port 0 -c 512"),
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The lines of commands in a document: blocks of code that are no other language, lines that go on put together,
/// remarks left out.
fn commands_of_document(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut inside = None;
    let mut begun = String::new();
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            inside = if inside.is_some() { None } else { Some(language.to_string()) };
        } else if inside.as_deref() == Some("") {
            match line.strip_suffix('\\') {
                Some(start) => begun.push_str(start),
                None => {
                    begun.push_str(line);
                    let line = std::mem::take(&mut begun);
                    let line = line.split(" #").next().unwrap_or_default().trim().to_string();
                    commands.extend(line.split(" && ").map(str::to_string).filter(|part| !part.is_empty()));
                }
            }
        }
    }
    commands
}

/// The examples of help.
fn commands_of_help(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| line.starts_with(' ')).map(str::trim);
    let examples = lines.filter(|line| line.starts_with("foretoken ") && !line.contains('['));
    examples.map(|line| line.split("  ").next().unwrap_or_default().split(" #").next().unwrap_or_default().trim().to_string())
}

/// The words of a line, as a shell has them: blanks part, quotes keep together.
fn words_of(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Where commands run.
struct House {
    folder: tempfile::TempDir,
    hub: Server,
}

impl House {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let hub = Server::start();
        let models = root().join("models");
        for (name, model) in [
            ("Qwen/Qwen2.5-1.5B-Instruct", "demo-target"),
            ("Qwen/Qwen2.5-0.5B-Instruct", "demo-draft"),
        ] {
            hub.offer_folder(name, &models.join(model));
        }
        let prompts = std::fs::read_to_string(root().join("bench/prompts.jsonl")).expect("it is there");
        let first = prompts.lines().take(2).collect::<Vec<_>>().join("\n");
        let text = "the little dog went to the park with his friend. ".repeat(20);
        for (name, content) in [("PROMPTS.jsonl", &first), ("PROMPT.txt", &text), ("CORPUS.txt", &text)] {
            std::fs::write(folder.path().join(name), content).expect("a file can be written");
        }
        Self { folder, hub }
    }

    fn command(&self, line: &str) -> Command {
        let models = root().join("models").canonicalize().expect("models are there");
        let mut words = words_of(line);
        for word in &mut words[1..] {
            for (name, stand_in) in STAND_INS {
                if word == name {
                    *word = stand_in.replace("{models}", &models.to_string_lossy());
                }
            }
        }
        let of = |name: &&(&str, &str)| line.starts_with(&format!("foretoken {}", name.0));
        let less = LESS.iter().find(of).map_or("", |(_, less)| less);
        let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
        command.args(&words[1..]).args(less.split_whitespace()).current_dir(self.folder.path());
        for variable in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "HOME"] {
            command.env(variable, self.folder.path().join("home"));
        }
        command.env("HF_ENDPOINT", self.hub.url()).env_remove("HF_HUB_CACHE").env_remove("HF_HUB_OFFLINE");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    fn run(&self, line: &str) -> Result<(), String> {
        let mut child = self.command(line).spawn().map_err(|error| error.to_string())?;
        // What a chat is told; others do not read it.
        let _ = child.stdin.take().expect("it is piped").write_all(b"hello\n");
        let begun = Instant::now();
        let out = child.stdout.take().expect("it is piped");
        let reader = std::thread::spawn(move || std::io::copy(&mut BufReader::new(out), &mut std::io::sink()));
        let mut said = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut all = String::new();
        let mut line_read = String::new();
        while said.read_line(&mut line_read).map_err(|error| error.to_string())? > 0 {
            if line.starts_with("foretoken serve") && line_read.contains(" at http://") {
                Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("it can be asked to end");
            }
            all.push_str(&line_read);
            line_read.clear();
        }
        reader.join().expect("no panic").map_err(|error| error.to_string())?;
        let status = child.wait().map_err(|error| error.to_string())?;
        match (status.success(), begun.elapsed() < PATIENCE) {
            (true, true) => Ok(()),
            (_, false) => Err(format!("expected it within {PATIENCE:?}, found {:?}", begun.elapsed())),
            (false, _) => Err(format!("expected success, found {status}: {all}")),
        }
    }
}

/// Help of the program and of its commands.
fn helps() -> Vec<(String, String)> {
    let help = |words: &[&str]| super::run(&[words, &["--help"]].concat()).ok();
    let all = help(&[]);
    let mut helps = vec![("--help".to_string(), all)];
    for command in [
        "generate", "chat", "serve", "inspect", "check", "logits", "quantize", "lookup", "bench", "pull", "list", "rm",
        "config",
    ] {
        helps.push((format!("{command} --help"), help(&[command])));
    }
    helps
}

#[test]
fn every_command_that_is_shown_works() {
    let house = House::new();
    let mut unused: BTreeSet<&str> = EXCEPTIONS.iter().map(|(start, _)| *start).collect();
    let (mut done, mut failures) = (BTreeSet::new(), Vec::new());
    let documents = DOCUMENTS.map(|name| {
        let text = std::fs::read_to_string(root().join(name)).expect("the document is there");
        (name.to_string(), commands_of_document(&text))
    });
    let helps = helps().into_iter().map(|(name, text)| (name, commands_of_help(&text).collect()));
    for (place, commands) in documents.into_iter().chain(helps) {
        for command in commands {
            if let Some((start, _)) = EXCEPTIONS.iter().find(|(start, _)| command.starts_with(start)) {
                unused.remove(start);
            } else if !command.starts_with("foretoken ") {
                // What a document makes for itself (a file of prompts) stands ready here.
                let is_made = command.starts_with("grep dialogue bench/prompts.jsonl >");
                if !is_made {
                    failures.push(format!("{place}: {command}: expected a command of foretoken or an exception"));
                }
            } else if done.insert(command.clone()) {
                let result = house.run(&command);
                failures.extend(result.err().map(|why| format!("{place}: {command}: {why}")));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(unused.is_empty(), "exceptions that nothing needs: {unused:?}");
    assert!(done.len() > 25, "only {} commands were found: {done:?}", done.len());
}

#[test]
fn commands_are_found_as_a_reader_finds_them() {
    let text = "a\n```\nforetoken a \\\n  \"b c\"   # why\npython3 x && foretoken d\n```\n```toml\nforetoken no\n```\n";
    assert_eq!(commands_of_document(text), ["foretoken a   \"b c\"", "python3 x", "foretoken d"]);
    assert_eq!(words_of("foretoken a  \"b c\" ''"), ["foretoken", "a", "b c", ""]);
    let help = "Usage: foretoken [x]\n\nExamples:\n  foretoken chat -m M   talk\n  foretoken serve  # why\n";
    assert_eq!(commands_of_help(help).collect::<Vec<_>>(), ["foretoken chat -m M", "foretoken serve"]);
}
