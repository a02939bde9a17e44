//! Files that are kept between runs: several processes write at once, and names are wrong.

use std::process::Stdio;

use crate::{demo, file, golden, program, run, run_with};

/// The number of documents in a store's header.
fn documents(store: &str) -> u64 {
    let bytes = std::fs::read(store).expect("the store was written");
    u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes"))
}

#[test]
fn concurrent_processes_lose_no_text() {
    const PROCESSES: usize = 4;
    let folder = tempfile::tempdir().expect("a folder can be made");
    let store = folder.path().join("store").display().to_string();
    let write = |process: usize| {
        // One run of many texts and several of one text write the file at different times.
        let prompts: String = (0..48).map(|i| format!("process {process}, text {i}\n")).collect();
        let list = folder.path().join(format!("{process}.txt"));
        std::fs::write(&list, prompts).expect("it can be written");
        let list = list.display().to_string();
        let one = format!("alone {process}");
        for round in 0..13 {
            let prompt = if round == 6 { vec!["--prompts", &list] } else { vec![one.as_str()] };
            let line = [vec!["generate", "-n", "1", "--spec-type", "none", "-lcd", &store], prompt].concat();
            run(&line).ok();
        }
    };
    std::thread::scope(|scope| (0..PROCESSES).for_each(|process| _ = scope.spawn(move || write(process))));
    assert_eq!(documents(&store), 240, "texts of four processes, 60 each");
    // It can be read again, and there are no temporary files.
    run(&["generate", "-n", "1", "-lcd", &store, "once more"]).ok();
    assert_eq!(documents(&store), 241);
    let entries = std::fs::read_dir(folder.path()).expect("the folder is there").flatten();
    let files: Vec<_> =
        entries.map(|entry| entry.file_name()).filter(|name| !name.to_string_lossy().ends_with("txt")).collect();
    assert_eq!(files, ["store"]);
}

#[test]
fn a_chat_keeps_what_another_process_wrote() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let store = folder.path().join("store").display().to_string();
    let mut command = program(folder.path());
    command.args(["chat", "-n", "2", "--spec-type", "none", "-lcd", &store]);
    let mut chat = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
    let (mut input, mut output) = (chat.stdin.take().expect("piped"), chat.stdout.take().expect("piped"));
    let mut turn = |text: &str| {
        use std::io::{Read, Write};
        writeln!(input, "{text}").expect("it listens");
        let mut byte = [0];
        while byte != *b"\n" {
            output.read_exact(&mut byte).expect("it answers");
        }
    };
    turn("Hello");
    run(&["generate", "-n", "1", "--spec-type", "none", "-lcd", &store, "beside"]).ok();
    turn("Again");
    drop(input);
    assert!(chat.wait().expect("it ends").success());
    assert_eq!(documents(&store), 3);
}

#[test]
fn two_options_cannot_write_one_file() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let file = at("file");
    let usage_error = |options: &[&str]| run(&[&["generate", "-n", "1", "x"], options].concat()).error(2);
    let expected =
        format!("--prompt-cache: expected another file than that of --lookup-cache-dynamic, found {file} for both");
    assert_eq!(usage_error(&["-lcd", &file, "--prompt-cache", &file]), expected);
    let expected = format!("--costs: expected another file than that of --lookup-cache-dynamic, found {file} for both");
    assert_eq!(usage_error(&["--costs", &file, "-lcd", &at("./file")]), expected);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("file", at("link")).expect("a link can be made");
        std::os::unix::fs::symlink(".", at("around")).expect("a link can be made");
        for other in ["link", "around/file", "around/link"] {
            usage_error(&["--costs", &file, "--prompt-cache", &at(other)]);
        }
    }
    for option in ["-lcd", "--costs", "--prompt-cache"] {
        let error = usage_error(&[option, "-"]);
        assert!(
            error.ends_with(": expected a file, which is read again, found - (a stream; ./- is a file of this name)")
        );
    }
    assert!(!std::path::Path::new(&file).exists());
    // The program creates folders only below the cache folder.
    let deep = at("deep/costs");
    let error = run(&["generate", "-n", "1", "x", "--costs", &deep]).error(1);
    assert!(error.starts_with(&format!("{deep}: cannot be written: ")), "{error}");
    assert!(!std::path::Path::new(&at("deep")).exists());
}

#[test]
fn a_dash_is_standard_output_where_nothing_else_is_printed() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut command = program(folder.path());
    command.current_dir(folder.path());
    command.args(["logits", "-m", &golden("llama"), "--tokens", "5,17,3", "-o", "-"]);
    let output = command.output().expect("it runs");
    assert!(output.status.success() && output.stdout.len() > 100);
    assert!(!folder.path().join("-").exists());
    let (_folder, corpus) = file("corpus.txt", "the little dog");
    let error = run(&["lookup", "build", &corpus, "-m", &demo("demo-target"), "-o", "-"]).error(2);
    assert_eq!(error, "--output: expected a file (./- for one of this name), found -");
}

/// Every input file as a pipe without a writer, and as an endless device.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let pipe = at("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let one = ["generate", "-n", "1", "x"];
    for device in [pipe.as_str(), "/dev/zero"] {
        for option in ["-lcs", "-lcd", "--costs", "--prompt-cache", "--config", "-m", "-md"] {
            let error = run(&[&one[..], &[option, device]].concat()).error(1);
            assert!(error.starts_with(device) && error.contains("expected a "), "{option}: {error}");
        }
        let error = run(&[&one[..], &["--chat-template-file", device, "--chat-template-kwargs", "{}"]].concat());
        assert_ne!(error.code, 0, "{}", error.err);
        let chat = run_with(&["chat", "-n", "1"], &[], format!("/load {device}\n"));
        assert!(chat.err.contains("expected a regular file"), "{}", chat.err);
    }
    // Each file of a model's folder is replaced by a pipe.
    let model = at("model");
    let names = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"];
    let further = ["chat_template.jinja", "special_tokens_map.json"];
    for name in names.iter().chain(&further) {
        let _ = std::fs::remove_dir_all(&model);
        std::fs::create_dir(&model).expect("a folder can be made");
        for entry in std::fs::read_dir(demo("demo-target")).expect("it is there").flatten() {
            std::fs::copy(entry.path(), format!("{model}/{}", entry.file_name().to_string_lossy())).expect("copied");
        }
        let path = format!("{model}/{name}");
        let _ = std::fs::remove_file(&path);
        std::os::unix::fs::symlink(&pipe, &path).expect("a link can be made");
        let found = run_with(&["chat", "-n", "1", "-m", &model], &[], "x\n");
        assert!(found.err.contains(&format!("{path}: ")), "{name}: {}", found.err);
        assert!(
            found.code == 1 && found.err.contains("expected a regular file, found a pipe"),
            "{name}: {}",
            found.err
        );
    }
}

/// Names of folders are printed with escapes.
#[cfg(unix)]
#[test]
fn names_with_escape_sequences_are_escaped() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let model = folder.path().join("a\u{1b}[31mb\nc");
    std::fs::create_dir(&model).expect("a folder can be made");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{}/{name}", golden("llama")), model.join(name)).expect("copied");
    }
    let model = model.display().to_string();
    for line in
        [vec!["inspect", &model], vec!["generate", "-v", "--prompt-ids", "1", "--output-ids", "-n", "1", "-m", &model]]
    {
        let run = run(&line);
        assert!(run.code == 0 && !run.out.contains('\u{1b}') && !run.err.contains('\u{1b}'), "{}{}", run.out, run.err);
        assert!((run.out + &run.err).contains("a\\u{1b}[31mb\\nc"));
    }
}
