//! Command lines from the documentation of llama.cpp, ik_llama.cpp, ollama and vLLM, with the program's name and models
//! replaced: each runs, with a note about ignored options, or is refused in one message that names all unsupported
//! options.
//!
//! A shell splits them into words, as when they are pasted. Their output is not compared with that of those programs.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::sync::Mutex;

use crate::{at_home, demo};

/// The expected outcome of a line.
enum Outcome {
    /// It runs, and these options are ignored with a note.
    Runs(&'static [&'static str]),
    /// It is refused in one message with these parts.
    Refused(&'static [&'static str]),
}

use Outcome::{Refused, Runs};

/// The lines, without the program. $M is a model, $D a draft model, $G a grammar, $F a text.
const LINES: &[(&str, Outcome)] = &[
    // llama-server
    ("serve -m $M -c 2048", Runs(&[])),
    ("serve --model $M --ctx-size 4096 -ngl 999", Runs(&["-ngl 999"])),
    ("serve -m $M -ngl 0 -c 0 -fa on --jinja -b 512", Runs(&["-ngl 0", "-fa on", "--jinja", "-b 512"])),
    ("serve --jinja -fa -m $M", Runs(&["--jinja", "-fa"])),
    ("serve -m $M -c 1024 --cache-type-k q8_0 --cache-type-v q8_0", Runs(&[])),
    ("serve -m $M -c 512 --host 127.0.0.1 --port 0 --n-gpu-layers 99", Runs(&["--n-gpu-layers 99"])),
    ("serve -m $M -ngl 99 -c 65536 --parallel 1", Runs(&["-ngl 99"])),
    ("serve -m $M -c 16384 -np 4", Runs(&[])),
    ("serve -m $M -md $D", Runs(&[])),
    ("serve -m $M --embedding --pooling cls -ub 8192", Refused(&["--embedding, --pooling: expected no such option"])),
    ("serve -m $M --reranking", Refused(&["--reranking: expected no such option"])),
    ("serve -m $M --grammar-file $G", Runs(&[])),
    (
        "serve -m $M --mirostat 2 -ngl 9 --lora x --rope-scaling yarn",
        Refused(&["--mirostat: ", "--lora: ", "--rope-scaling: "]),
    ),
    // llama-cli
    ("-m $M -cnv --chat-template chatml", Runs(&["-cnv"])),
    ("-m $M -p 'I believe the meaning of life is' -n 128 -no-cnv", Runs(&["-no-cnv"])),
    ("-m $M --prompt 'Once upon a time'", Runs(&[])),
    (
        "-m $M -p 'Building a website can be done in 10 simple steps:' -n 400 -e -ngl 33 -sm none -mg 0",
        Runs(&["-e", "-ngl 33", "-sm none", "-mg 0"]),
    ),
    ("-m $M -n 256 --grammar-file $G -p 'Request: schedule a call at 8pm; Command:'", Runs(&[])),
    (
        "generate -mla 1 -rtr -b 1024 -ub 1024 -m $M -c 2048 --mlock -n 30 -f $F -ngl 999 -ot '\\.ffn_.*_exps\\.=CPU'",
        Runs(&["-mla 1", "-rtr", "-b 1024", "-ub 1024", "--mlock", "-ngl 999", "-ot \\.ffn_.*_exps\\.=CPU"]),
    ),
    (
        "chat -m $M -ngl 99 --rpc 192.168.88.10:50052,192.168.88.11:50052",
        Runs(&["-ngl 99", "--rpc 192.168.88.10:50052,192.168.88.11:50052"]),
    ),
    (
        "chat -r 'User:' --in-prefix ' ' --in-suffix 'Assistant:'",
        Refused(&["--in-prefix, --in-suffix: expected no such"]),
    ),
    (
        "-m $M -p hi --special --control-vector-scaled v.gguf:0.8 --control-vector-layer-range 10 31",
        Refused(&[
            "--control-vector-scaled, --control-vector-layer-range: expected no such option: there are no adapters",
        ]),
    ),
    // ollama
    ("run $M", Runs(&[])),
    ("run $M 'why is the sky blue'", Runs(&[])),
    ("run $M --think 'Where should I visit in Lisbon?'", Runs(&["--think"])),
    ("run $M --think=false 'Summarize this article'", Refused(&["--think: expected no such option"])),
    ("run $M --hidethinking 'Is 9.9 bigger or 9.11?'", Refused(&["--hidethinking: expected -q, --quiet"])),
    ("serve", Runs(&[])),
    ("ls", Runs(&[])),
    ("show $M", Runs(&[])),
    ("create -f Modelfile", Refused(&["create: expected a model's folder or file"])),
    ("ps", Refused(&["ps: expected foretoken serve"])),
    ("stop gemma4", Refused(&["stop: expected Ctrl-C where foretoken serve runs"])),
    // vLLM
    (
        "serve $M --dtype auto --api-key token-abc123 --max-model-len 4096 --gpu-memory-utilization 0.9",
        Runs(&["--dtype auto", "--gpu-memory-utilization 0.9"]),
    ),
    ("serve $M --tensor-parallel-size 4", Runs(&["--tensor-parallel-size 4"])),
    ("serve $M --dtype auto --max-model-len 4096 --trust-remote-code", Runs(&["--dtype auto", "--trust-remote-code"])),
    ("serve $M --enable-prefix-caching", Runs(&["--enable-prefix-caching"])),
    (
        "serve $M --enable-auto-tool-choice --tool-call-parser hermes",
        Runs(&["--enable-auto-tool-choice", "--tool-call-parser hermes"]),
    ),
    ("serve $M --reasoning-parser deepseek_r1", Runs(&["--reasoning-parser deepseek_r1"])),
    ("serve $M --quantization awq", Refused(&["--quantization: expected --dtype, or foretoken quantize"])),
    (
        "serve $M --enable-lora --lora-modules sql=x --tensor-parallel-size 2",
        Refused(&["--enable-lora, --lora-modules: expected no such option: there are no adapters"]),
    ),
];

/// Runs a line, a server until it listens. Returns standard error, and whether it succeeded.
fn run(line: &str, folder: &std::path::Path) -> (String, bool) {
    let port = if line.starts_with("serve") && !line.contains("--port") { " --port 0" } else { "" };
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("exec '{}' {line}{port}", env!("CARGO_BIN_EXE_foretoken"))]);
    at_home(&mut command, folder);
    command.env("M", demo("demo-target")).env("D", demo("demo-draft")).env("HF_HOME", folder).current_dir(folder);
    command.env("G", folder.join("grammar.gbnf")).env("F", folder.join("text.txt"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a shell starts");
    // A turn of a chat; other commands do not read it.
    let _ = child.stdin.take().expect("it is piped").write_all(b"hello\n");
    let mut out = child.stdout.take().expect("it is piped");
    let reader = std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
    let mut stderr = String::new();
    for line in BufReader::new(child.stderr.take().expect("it is piped")).lines() {
        let line = line.expect("it is text");
        if line.contains(" at http://") {
            let id = child.id().to_string();
            std::process::Command::new("kill").args(["-TERM", &id]).status().expect("it can be asked to end");
        }
        stderr += &(line + "\n");
    }
    reader.join().expect("no panic").expect("it can be read");
    (stderr, child.wait().expect("it ends").success())
}

/// The line and its output, if they do not have the expected outcome.
fn mismatch(line: &str, outcome: &Outcome, folder: &std::path::Path) -> Option<String> {
    let (stderr, is_well) = run(line, folder);
    let notes: Vec<&str> = stderr.lines().filter(|line| line.starts_with("note: passed over, ")).collect();
    let is_right = match outcome {
        Runs([]) => is_well && notes.is_empty(),
        Runs(ignored) => {
            let has = |option: &&str| notes.len() == 1 && notes[0].contains(&format!(" {option}"));
            is_well && ignored.iter().all(has)
        }
        Refused(parts) => {
            let is_one = stderr.lines().count() == 1 && stderr.starts_with("error: ");
            !is_well && is_one && parts.iter().all(|part| stderr.contains(part))
        }
    };
    (!is_right).then(|| format!("{line}: {stderr}"))
}

#[test]
fn pasted_lines_run_or_are_refused_in_one_message() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for (name, text) in [("grammar.gbnf", "root ::= \"{\" [a-z]+ \"}\""), ("text.txt", "once upon a time")] {
        std::fs::write(folder.path().join(name), text).expect("a file can be written");
    }
    // Two at a time, since most of the time is spent on starting.
    let (next, failures) = (Mutex::new(LINES.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((line, outcome)) = next.lock().expect("nobody panics").next() else { return };
                    failures.lock().expect("nobody panics").extend(mismatch(line, outcome, folder.path()));
                }
            });
        }
    });
    let failures = failures.into_inner().expect("nobody panics");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn notes_are_silenced_by_quiet_and_by_errors() {
    let quiet = crate::run(&crate::words("generate hello -n 2 -s 1 -ngl 0 -q"));
    assert_eq!((quiet.code, quiet.err.as_str()), (0, ""));
    let folder = tempfile::tempdir().expect("a folder can be made");
    assert_eq!(mismatch("generate -ngl 0 --temp -1", &Refused(&["--temp: expected"]), folder.path()), None);
}

#[test]
fn positional_words_are_a_model_and_a_prompt() {
    let model = demo("demo-target");
    let chat = |words: &[&str], input: &str| {
        let run = crate::run_with(&[words, &["-s", "1", "-n", "8", "--temp", "0"]].concat(), &[], input);
        run.ok()
    };
    let answer = chat(&["chat", "-m", &model], "what is a hat\n");
    for line in [
        &["chat", "-m", &model, "what is a hat"][..],
        &["chat", &model, "what is a hat"],
        &["chat", "what is a hat", "-m", &model],
        &["chat", "-m", &model, "-p", "what is a hat"],
        &["chat", "what is a hat"],
        &[&model, "what is a hat"],
        &["-m", &model, "what is a hat"],
        &["run", &model, "what is a hat"],
        &["run", "-m", &model, "what is a hat"],
    ] {
        assert_eq!(chat(line, ""), answer, "{line:?}");
    }
    // A prompt is the first turn; `run` and -st end the chat after it.
    let both = chat(&["chat", "-m", &model], "what is a hat\nand a cat\n");
    assert_eq!(chat(&["chat", &model, "what is a hat"], "and a cat\n"), both);
    assert_eq!(chat(&["run", &model, "what is a hat"], "and a cat\n"), answer);
    assert_eq!(chat(&["chat", &model, "-st"], "what is a hat\nand a cat\n"), answer);
    assert_ne!(both, answer);
    // A prompt that looks like a chat command is a text here.
    assert_ne!(chat(&["chat", "-m", &model, "/exit"], ""), "");
    let text = chat(&["generate", "-m", &model, "what is a hat"], "");
    assert_eq!(chat(&["generate", &model, "what is a hat"], ""), text);
    assert_eq!(chat(&["generate", &model, "-p", "what is a hat"], ""), text);
    assert_eq!(chat(&["generate", &model], "what is a hat\n"), text);
    for (line, expected) in [
        (
            &["serve", "-m", "a/b", "-hf", "c/d"][..],
            "found -m, --model a/b and -hf, --hf-repo c/d; leave out all but one",
        ),
        (&["serve", "a/b", "-hf", "c/d"], "found \"a/b\" and -hf, --hf-repo c/d; leave out all but one"),
        (&["chat", &model, "hi", "there"], "a prompt of several words stands in quotes"),
        (&["generate", &model, "hi", "there"], "a prompt of several words stands in quotes"),
        (
            &["chat", "a/b", "hi", "-m", "c/d"],
            "expected one model, found \"a/b\" and -m, --model c/d; leave out all but one",
        ),
    ] {
        let error = crate::run(line).error(2);
        assert!(error.ends_with(expected), "{line:?}: {error}");
    }
}

#[test]
fn a_context_of_zero_is_the_models_own() {
    let record = |more: &str| {
        let line = format!("generate hello -n 1 -s 1 --json {more}");
        let object: serde_json::Value = serde_json::from_str(&crate::run(&crate::words(&line)).ok()).expect("JSON");
        object["record"]["settings"]["model"]["ctx_size"].as_u64()
    };
    assert_eq!(["-c 0", "--ctx-size 0", "--num-ctx=0", "-c 99"].map(record), [2048, 2048, 2048, 99].map(Some));
}
