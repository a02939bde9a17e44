//! Output files: never over inputs or existing files, complete or not at all; streams are written to and kept.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Run, demo, file, golden, program, run};

/// A small model as a GGUF file, in a new folder.
fn model() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("x.gguf").display().to_string();
    run(&["quantize", &golden("llama"), &path, "--type", "f32"]).ok();
    (folder, path)
}

/// Runs all commands that write a file named by the user, with this model or corpus and this output.
fn writing(
    model: &str,
    corpus: &str,
    to: &str,
    more: &'static [&'static str],
) -> impl Iterator<Item = (&'static str, Run)> {
    let demo = demo("demo-target");
    let lines = [
        ("logits", vec!["logits", "-m", model, "--tokens", "5,17,3", "-o", to]),
        ("quantize", vec!["quantize", model, to, "--type", "q8_0"]),
        ("lookup", vec!["lookup", "build", corpus, "-m", &demo, "-o", to]),
    ];
    let owned = |line: Vec<&str>| line.iter().map(|word| word.to_string()).collect::<Vec<String>>();
    let lines = lines.map(|(name, line)| (name, owned(line)));
    lines.into_iter().map(move |(name, line)| {
        let line: Vec<&str> = line.iter().map(String::as_str).chain(more.iter().copied()).collect();
        (name, run(&line))
    })
}

/// Names of a folder's files, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(unix)]
#[test]
fn inputs_are_never_overwritten() {
    let (folder, model) = model();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let corpus = at("corpus.txt");
    std::fs::write(&corpus, "the little dog").expect("it can be written");
    std::os::unix::fs::symlink("x.gguf", at("link.gguf")).expect("a link can be made");
    std::fs::hard_link(&model, at("other.gguf")).expect("a second name can be made");
    let whole = std::fs::read(&model).expect("it is there");
    for to in [model.clone(), at("link.gguf"), at("other.gguf"), at("./x.gguf")] {
        for (name, run) in writing(&model, &corpus, &to, &["--force"]).take(2) {
            let error = run.error(1);
            assert_eq!(error, format!("{to}: expected another file than what is read, found {model}"), "{name}");
            assert!(std::fs::read(&model).expect("it is there") == whole, "{name} {to}");
        }
    }
    // A tokenizer is read from the model, texts from the corpus.
    let line = ["lookup", "build", &corpus, "-m", &model, "-o"];
    run(&[&line[..], &[&model, "--force"]].concat()).error(1);
    let demo = demo("demo-target");
    let error = run(&["lookup", "build", &corpus, "-m", &demo, "-o", &corpus, "--force"]).error(1);
    assert_eq!(error, format!("{corpus}: expected another file than what is read, found {corpus}"));
    assert!(std::fs::read(&model).expect("it is there") == whole);
    assert_eq!(std::fs::read_to_string(&corpus).expect("it is there"), "the little dog");
    assert_eq!(names(folder.path()), ["corpus.txt", "link.gguf", "other.gguf", "x.gguf"]);
}

#[test]
fn existing_files_are_kept_without_force() {
    let (folder, model) = model();
    let (_corpus_folder, corpus) = file("corpus.txt", "the little dog");
    let to = folder.path().join("out").display().to_string();
    std::fs::write(&to, "old").expect("it can be written");
    for (name, run) in writing(&model, &corpus, &to, &[]) {
        assert_eq!(run.error(1), format!("{to}: expected no such file (--force writes over it), found one"), "{name}");
        assert_eq!(std::fs::read(&to).expect("it is there"), b"old", "{name}");
    }
    for (name, run) in writing(&model, &corpus, &to, &["--force"]) {
        run.ok();
        assert!(std::fs::read(&to).expect("it is there") != b"old", "{name}");
        std::fs::write(&to, "old").expect("it can be written");
    }
    assert_eq!(names(folder.path()), ["out", "x.gguf"], "no temporary file is left");
}

#[cfg(unix)]
#[test]
fn streams_are_written_to_and_not_replaced() {
    let (folder, model) = model();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let file = at("file");
    let line = ["logits", "-m", &model, "--tokens", "5,17,3", "-o"];
    run(&[&line[..], &[&file]].concat()).ok();
    let expected = std::fs::read(&file).expect("it is there");
    let is_device = |path: &str| !std::fs::metadata(path).expect("it is there").is_file();
    run(&[&line[..], &["/dev/null"]].concat()).ok();
    assert!(is_device("/dev/null"));
    // A pipe is written to, and a file that is standard output is appended to.
    let mut command = program(folder.path());
    let output = command.args(line).arg("/dev/stdout").output().expect("the program runs");
    assert!(output.status.success() && output.stdout == expected, "{}", String::from_utf8_lossy(&output.stderr));
    let log = at("log");
    std::fs::write(&log, "before").expect("it can be written");
    let appended = std::fs::File::options().append(true).open(&log).expect("it can be opened");
    let mut command = program(folder.path());
    let status = command.args(line).arg("/dev/stdout").stdout(appended).status().expect("the program runs");
    assert!(status.success() && std::fs::read(&log).expect("it is there") == [b"before", &expected[..]].concat());
    let pipe = at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || {
            let mut found = Vec::new();
            std::fs::File::open(pipe).and_then(|mut pipe| pipe.read_to_end(&mut found)).expect("it can be read");
            found
        }
    });
    run(&[&line[..], &[&pipe]].concat()).ok();
    assert!(reader.join().expect("it reads") == expected && is_device(&pipe));
    assert_eq!(names(folder.path()), ["file", "log", "pipe", "x.gguf"]);
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_no_temporary_file_and_old_ones_are_removed() {
    let (folder, corpus) = file("corpus.txt", "the little dog");
    let source = demo("demo-target");
    let to = folder.path().join("out.gguf").display().to_string();
    // The command waits for the end of its corpus, which never comes, since a named pipe has no writer.
    let pipe = folder.path().join("more.txt").display().to_string();
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let mut command = program(folder.path());
        command.args(["lookup", "build", &corpus, &pipe, "-m", &source, "-o", &to]);
        let mut child = command.stderr(Stdio::null()).spawn().expect("the program starts");
        let has_part = || names(folder.path()).iter().any(|name| name.ends_with(".part"));
        (0..600).take_while(|_| !has_part()).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(50)));
        assert!(has_part(), "the temporary file is there");
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
        assert_eq!(child.wait().expect("it ends").code(), Some(code), "{signal}");
        assert_eq!(names(folder.path()), ["corpus.txt", "more.txt"], "{signal}");
    }
    std::fs::write(folder.path().join(".out.gguf.1-0.part"), "half of").expect("it can be written");
    std::fs::write(folder.path().join(".out.gguf.my-own.part"), "mine").expect("it can be written");
    run(&["quantize", &golden("llama"), &to, "--type", "f16"]).ok();
    assert_eq!(names(folder.path()), [".out.gguf.my-own.part", "corpus.txt", "more.txt", "out.gguf"]);
}

/// While a model is loaded, while texts are read, while a file is written: a signal ends the program, and leaves a file
/// that is whole, or what was there before: none at all, or an older file.
#[cfg(unix)]
#[test]
fn a_signal_at_any_moment_leaves_a_whole_file_or_the_old_one() {
    const SIGNALS: [(&str, i32); 3] = [("-INT", 130), ("-TERM", 143), ("-HUP", 129)];
    let (folder, corpus) = file("corpus.txt", &"the little dog went home\n".repeat(3000));
    let out = folder.path().join("out");
    let (to, demo) = (out.display().to_string(), demo("demo-target"));
    let (_prompts, prompts) = file("prompts.txt", "the little dog\n");
    for line in [
        vec!["check", "-m", &demo, "--prompts", &prompts, "-n", "16", "--temp", "0"],
        vec!["lookup", "build", &corpus, "-m", &demo, "-o", &to, "--force"],
        vec!["quantize", &demo, &to, "--type", "q8_0", "-t", "1", "--force"],
    ] {
        let started = std::time::Instant::now();
        run(&line).ok();
        let (took, whole) = (started.elapsed(), std::fs::read(&out).ok());
        for round in 0..6 {
            let _ = std::fs::remove_file(&out);
            let old = (round % 2 > 0).then(|| b"old".to_vec());
            old.iter().for_each(|bytes| std::fs::write(&out, bytes).expect("it can be written"));
            let (signal, code) = SIGNALS[round % 3];
            let home = tempfile::tempdir().expect("a folder can be made");
            let mut command = program(home.path());
            command.args(&line).stdout(Stdio::null()).stderr(Stdio::piped());
            let child = command.spawn().expect("the program starts");
            std::thread::sleep(took * round as u32 / 6);
            let id = child.id().to_string();
            assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
            let output = child.wait_with_output().expect("it ends");
            let err = String::from_utf8_lossy(&output.stderr);
            // Without a code the signal came before anything was to be cleaned up.
            let ended = output.status.code().is_none_or(|found| found == 0 || found == code);
            assert!(ended && !err.contains("error: "), "{line:?} {signal}: {:?} {err}", output.status);
            let others: Vec<String> = names(folder.path()).into_iter().filter(|name| name != "out").collect();
            assert_eq!(others, ["corpus.txt"], "{line:?} {signal}");
            let found = std::fs::read(&out).ok();
            assert!(found == old || found == whole, "{line:?} {signal}: neither the old file nor the new one is left");
        }
        let _ = std::fs::remove_file(&out);
    }
}
