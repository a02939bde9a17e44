//! Command lines as users of other programs write them: a model in the place of the command, other programs' option
//! names, mistyped ones, standard input.

use crate::{demo, file, golden, run, run_with, words};

/// The table of other programs' options; its own tests are in the program.
#[path = "../../src/arguments/other_programs.rs"]
#[allow(dead_code, reason = "the program uses more of it than this test")]
mod other_programs;

use other_programs::Meaning;

#[test]
fn a_model_without_a_command_means_chat() {
    let model = demo("demo-draft");
    let plain = run_with(&["chat", "-m", &model, "-s", "1", "-n", "8"], &[], "hello\n").ok();
    for line in [vec![model.as_str()], vec!["chat", &model], vec!["-m", &model], vec!["-q", &model]] {
        let words = [&line[..], &["-s", "1", "-n", "8"]].concat();
        assert_eq!(run_with(&words, &[], "hello\n").ok(), plain, "{line:?}");
    }
    let plain = run(&["generate", "-m", &model, "hello", "-s", "1", "-n", "8"]).ok();
    assert_eq!(run(&[&model, "-p", "hello", "-s", "1", "-n", "8"]).ok(), plain);
    let error = run(&["chat", &model, "-m", &model]).error(2);
    assert!(error.starts_with("expected one model, found ") && error.contains("-m, --model"), "{error}");
    // Names of commands win over folders of the same name; a word written as a path is a path.
    let folder = tempfile::tempdir().expect("a folder can be made");
    std::fs::create_dir(folder.path().join("chat")).expect("a folder can be made");
    let path = folder.path().join("chat").display().to_string();
    assert!(run(&[&path]).error(1).starts_with(&path));
    assert!(run(&["nothing.gguf"]).error(1).starts_with("nothing.gguf: "));
    assert!(run(&["serve", "nothing.gguf"]).error(1).starts_with("nothing.gguf: "));
}

#[test]
fn unknown_commands_get_the_nearest_name() {
    for (word, end) in [("genrate", "did you mean generate?"), ("xyzzy", "foretoken -h shows the commands")] {
        let expected = "expected a command or a model (a directory, a .gguf file or org/name), found neither";
        assert_eq!(run(&[word, "hello"]).error(2), format!("{word}: {expected}; {end}"));
    }
    for (name, ours) in other_programs::COMMANDS {
        assert_eq!(run(&[name, "x"]).error(2), format!("{name}: expected {ours}"));
    }
}

#[test]
fn options_of_other_programs_are_answered_with_ours() {
    for (entries, meaning) in other_programs::OPTIONS {
        for name in entries.iter().map(|entry| other_programs::name_of(entry)) {
            let command = match name {
                // Only the server has this option.
                _ if *meaning == Meaning::Same("alias") => "serve",
                _ => "generate",
            };
            let refused = || run(&[command, "hello", &format!("{name}=77")]).error(2);
            match meaning {
                // Their values are checked like ours; flags have none.
                Meaning::Same("model" | "model-draft" | "special" | "quiet" | "no-page") => {}
                Meaning::Same("alias" | "stop" | "json-schema" | "regex" | "grammar") => {
                    let error = run(&[command, &format!("{name}=x"), "--temp", "-1"]).error(2);
                    assert!(error.starts_with("--temp: "), "{error}");
                }
                Meaning::Same(ours) => {
                    let error = run(&[command, &format!("{name}=wrong")]).error(2);
                    assert!(error.starts_with(&format!("--{ours}: expected ")), "{name}: {error}");
                }
                Meaning::Use(ours) | Meaning::Unless(_, Meaning::Use(ours)) => {
                    assert_eq!(refused(), format!("{name}: expected {ours}"));
                }
                Meaning::Refused(why) | Meaning::Unless(_, Meaning::Refused(why)) => {
                    assert_eq!(refused(), format!("{name}: expected no such option: {why}"));
                }
                // These are tested in `line.rs`.
                Meaning::Ignored(_) | Meaning::Selects(_) | Meaning::Escapes => {}
                Meaning::Unless(..) => panic!("{name}: expected a reason"),
            }
        }
    }
}

#[test]
fn synonyms_are_accepted() {
    let plain = run(&words("generate hello -s 1 -n 6 --top-p 0.9 --stop xyz")).ok();
    for line in [
        "generate hello --seed 1 --max-new-tokens 6 --top_p 0.9 -r xyz",
        "generate hello --seed=1 --max_tokens=6 --top_p=0.9 --stop-strings=xyz",
    ] {
        assert_eq!(run(&words(line)).ok(), plain, "{line}");
    }
    let (model, small) = (demo("demo-target"), demo("demo-draft"));
    let line = ["generate", "hello", "-v", "-s", "1", "-n", "6", "--model-path", &model, "--assistant-model", &small];
    let found = run(&line);
    assert!(found.err.contains("draft accepted"), "{}", found.err);
}

#[test]
fn unknown_options_get_the_nearest_name_or_their_command() {
    for (line, expected) in [
        ("generate x --tmep 1", "--tmep: expected an option of foretoken generate; did you mean --temp?"),
        (
            "generate x --frobnicate",
            "--frobnicate: expected an option of foretoken generate; foretoken generate --help shows them",
        ),
        ("inspect --port 1", "--port: expected an option of foretoken inspect, found one of serve"),
        ("bench pass -z", "-z: expected an option of foretoken bench pass; foretoken bench pass --help shows them"),
        ("--frobnicate", "--frobnicate: expected an option of foretoken chat; foretoken chat --help shows them"),
        (
            "generate once upon",
            "generate: expected no further word, found \"upon\"; a prompt of several words stands in quotes",
        ),
        ("generate x -p y", "[PROMPT]: expected without --prompt <PROMPT>, found both"),
        (
            "generate x --tmep 1 --lora y -mg 0 --mirostat 2 --tfs 0.5 --port 1",
            "--tmep: expected an option of foretoken generate; did you mean --temp?; --lora: expected no such option: \
             there are no adapters; merge them into the model; --mirostat, --tfs: expected no such option: there \
             is no such sampler; --port: expected an option of foretoken generate, found one of serve",
        ),
        ("check", "check: expected --prompts <FILE>, found none; foretoken check -h shows how"),
        ("bench frob", "bench: expected what to do (foretoken bench -h shows it), found \"frob\""),
    ] {
        assert_eq!(run(&words(line)).error(2), expected, "{line}");
    }
    assert!(run(&words("")).error(2).starts_with("expected a command or a model, found none"));
}

#[test]
fn flags_can_be_unset() {
    assert!(run(&words("generate hello -n 2 -q --no-quiet")).err.contains("seed: "));
    assert!(!run(&words("generate hello -n 2 --json --no-json")).ok().starts_with('{'));
}

#[test]
fn a_dash_is_standard_input() {
    let plain = run(&words("generate hello -s 1 -n 4")).ok();
    for line in ["generate -s 1 -n 4", "generate - -s 1 -n 4", "generate -p - -s 1 -n 4", "generate -f - -s 1 -n 4"] {
        assert_eq!(run_with(&words(line), &[], "hello\n").ok(), plain, "{line}");
    }
    let (_folder, path) = file("prompts.txt", "a b\nonce upon\n");
    let listed = run(&words(&format!("generate --prompts {path} -s 1 -n 4"))).ok();
    let from_input = |text: &str| run_with(&words("generate --prompts - -s 1 -n 4"), &[], text).ok();
    assert_eq!(from_input("a b\nonce upon\n"), listed);
    assert_eq!(from_input("{\"prompt\": \"a b\"}\n{\"text\": \"once upon\"}\n"), listed);
    let error = run_with(&words("check --prompts -"), &[], "{\"title\": 1}\n").error(1);
    assert_eq!(error, "standard input: line 1: prompt: expected a text or token ids, found none");
}

#[test]
fn a_file_or_folder_that_is_part_of_a_model_gets_a_hint() {
    let model = golden("llama");
    for part in ["config.json", "model.safetensors"] {
        let error = run(&["generate", "-m", &format!("{model}/{part}"), "x"]).error(1);
        let found = format!("found a file of one; give {model}");
        assert_eq!(error, format!("{model}/{part}: expected a model's directory or a .gguf file, {found}"));
    }
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().display().to_string();
    let error = run(&["inspect", &path]).error(1);
    assert_eq!(error, format!("{path}: expected config.json with .safetensors files, or a .gguf file, found neither"));
    std::fs::write(folder.path().join("b.gguf"), "").expect("a file can be written");
    std::fs::write(folder.path().join("a.gguf"), "").expect("a file can be written");
    let error = run(&["inspect", &path]).error(1);
    let found = format!("found a folder of .gguf files; give one of them, as {path}/a.gguf");
    assert_eq!(error, format!("{path}: expected a model's directory or a .gguf file, {found}"));
    std::fs::copy(format!("{model}/config.json"), folder.path().join("config.json")).expect("a file can be copied");
    std::fs::write(folder.path().join("pytorch_model.bin"), "").expect("a file can be written");
    let error = run(&["inspect", &path]).error(1);
    assert!(error.contains("found pickled tensors; this converts them: python3"), "{error}");
    let (_folder, path) = file("weights.pth", "");
    assert!(run(&["inspect", &path]).error(1).contains("found pickled tensors"));
}
