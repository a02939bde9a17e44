//! Defaults of a file and of the environment, their precedence, and `foretoken config`.

use serde_json::Value;

use crate::{demo, file, run, run_with, words};

/// Runs the program with this configuration file.
fn with_file(text: &str, line: &str, variables: &[(&str, &str)]) -> crate::Run {
    let (_folder, path) = file("config.toml", text);
    run_with(&[&words(line)[..], &["--config", &path]].concat(), variables, "")
}

/// The values and sources of some settings, by `foretoken config`.
fn settings(text: &str, line: &str, variables: &[(&str, &str)], names: &[&str]) -> Vec<(String, String)> {
    let found = with_file(text, &format!("config {line} --json"), variables).ok();
    let found: Value = serde_json::from_str(&found).expect("it is JSON");
    let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_string);
    let of = |name: &&str| {
        let setting = &found["settings"][*name];
        (text(&setting["value"]), text(&setting["from"]))
    };
    names.iter().map(of).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(value, from)| (value.to_string(), from.to_string())).collect()
}

#[test]
fn a_default_means_the_same_as_the_option() {
    let plain = run(&words("generate hello -s 5 -n 8 --temp 0.3 --top-k 7 --stop zz --stop yy --ignore-eos")).ok();
    let text =
        "seed = 5\nn-predict = 8\n[generate]\ntemp = 0.3\nstop = [\"zz\", \"yy\"]\nignore_eos = true\ntop_k = 7\n";
    assert_eq!(with_file(text, "generate hello", &[]).ok(), plain);
    let variables = [
        ("FORETOKEN_SEED", "5"),
        ("FORETOKEN_N_PREDICT", "8"),
        ("FORETOKEN_TEMP", "0.3"),
        ("FORETOKEN_TOP_K", "7"),
        ("FORETOKEN_IGNORE_EOS", "true"),
    ];
    assert_eq!(run_with(&["generate", "hello"], &variables, "").ok(), plain);
    // The user's own file, and the one that a variable names.
    let (folder, path) = file("named.toml", text);
    assert_eq!(run_with(&["generate", "hello"], &[("FORETOKEN_CONFIG", &path)], "").ok(), plain);
    let own = folder.path().join("foretoken");
    std::fs::create_dir(&own).expect("a folder can be made");
    std::fs::write(own.join("config.toml"), text).expect("a file can be written");
    let home = folder.path().display().to_string();
    assert_eq!(run_with(&["generate", "hello"], &[("XDG_CONFIG_HOME", &home)], "").ok(), plain);
}

#[test]
fn sources_have_a_precedence() {
    let text =
        "temp = 0.1\ntop-k = 1\ntop-p = 0.5\nmin-p = 0.2\n[generate]\ntop-p = 0.6\n[serve]\ntop-p = 0.7\nport = 9\n";
    let variables = [("FORETOKEN_TOP_K", "2"), ("FORETOKEN_TEMP", "0.2"), ("FORETOKEN_SERVE_THIS", "1")];
    let names = ["temp", "top-k", "top-p", "min-p", "typical"];
    let expected = [("0.9", "command line"), ("2", "environment"), ("0.6", "file"), ("0.2", "file"), ("1", "program")];
    assert_eq!(settings(text, "generate --temp 0.9", &variables, &names), pairs(&expected));
    assert_eq!(settings(text, "--temp 0.9", &variables, &names), pairs(&expected));
    assert_eq!(settings(text, "serve", &variables, &["top-p", "port"]), pairs(&[("0.7", "file"), ("9", "file")]));
    assert_eq!(
        settings(text, "chat", &variables, &["top-p", "temp"]),
        pairs(&[("0.5", "file"), ("0.2", "environment")])
    );
    // A list is replaced and not added to.
    let stops = "stop = [\"a\", \"b\"]\n";
    let expected = |values: &str, from: &str| pairs(&[(values, from)]);
    assert_eq!(settings(stops, "generate --stop c", &[], &["stop"]), expected("c", "command line"));
    assert_eq!(settings(stops, "generate", &[], &["stop"]), expected("[\"a\",\"b\"]", "file"));
    assert_eq!(settings(stops, "generate", &[("FORETOKEN_STOP", "d")], &["stop"]), expected("d", "environment"));
}

#[test]
fn the_models_file_counts_before_the_program() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let from = format!("{}/{name}", demo("demo-draft"));
        std::fs::copy(from, folder.path().join(name)).expect("a file can be copied");
    }
    let text = r#"{"temperature": 0.6, "top_p": 0.8, "top_k": 20}"#;
    std::fs::write(folder.path().join("generation_config.json"), text).expect("a file can be written");
    let model = folder.path().display().to_string();
    let names = ["temp", "top-p", "top-k", "min-p"];
    let expected = [("0.6", "model"), ("0.8", "model"), ("5", "file"), ("0.05", "program")];
    assert_eq!(settings("top-k = 5\n", &format!("generate -m {model}"), &[], &names), pairs(&expected));
    assert_eq!(settings("top-k = 5\n", &format!("chat {model}"), &[], &names), pairs(&expected));
    assert_eq!(settings(&format!("model = \"{model}\"\ntop-k = 5\n"), "serve", &[], &names), pairs(&expected));
    let page = run(&["config", "-m", &model]).ok();
    let line = page.lines().find(|line| line.starts_with("temp ")).unwrap_or_default();
    assert_eq!(words(line), ["temp", "0.6", &format!("{model}/generation_config.json")]);
    // Settings are printed without a model, too.
    let found = run(&words("config generate -m nowhere --temp 0.2"));
    assert!(found.err.starts_with("note: what the model decides is left out: nowhere"), "{}", found.err);
    assert!(found.ok().contains("temp "));
    let found = run(&words("config generate -hf a/b"));
    let expected = "note: what the model decides is left out: a/b: expected the whole model in the cache ";
    assert!(found.err.starts_with(expected), "{}", found.err);
}

#[test]
fn a_default_that_excludes_an_option_is_dropped() {
    let (_prompts, path) = file("prompts.txt", "hello\n");
    let text = format!("prompts = \"{path}\"\nquiet = true\n[generate]\njson = true\n");
    assert!(with_file(&text, "generate -n 2", &[]).ok().starts_with('{'));
    let found = with_file(&text, "generate hello -n 2 --output-ids", &[]);
    assert!(found.err.is_empty() && !found.out.contains('{'), "{}{}", found.out, found.err);
    assert!(!with_file(&text, "generate hello -n 2 --no-json", &[]).ok().starts_with('{'));
    assert!(!with_file(&text, "generate hello -n 2 -v", &[]).err.contains("config.toml: line 1"));
    assert!(with_file(&text, "generate hello -n 2 --no-quiet", &[]).err.contains("seed: "));
    let found = with_file(&text, "generate -n 2 -v", &[]);
    assert!(found.err.contains("line 4: json true"), "{}", found.err);
    // Of two defaults the stronger one counts.
    let found = with_file(&text, "generate hello -n 2", &[("FORETOKEN_OUTPUT_IDS", "1")]).ok();
    assert!(!found.starts_with('{'), "{found}");
    let model = demo("demo-draft");
    let found = with_file("model = \"nowhere\"\n", &format!("inspect {model}"), &[]).ok();
    assert!(found.contains("demo-draft"), "{found}");
}

#[test]
fn errors_in_a_file_are_named_with_their_line() {
    for (text, expected) in [
        ("temp = 1\n\ntmep = 2\n", "line 3: tmep: expected an option's name, found no such; did you mean temp?"),
        ("xyzzy = 2\n", "line 1: xyzzy: expected an option's name, found no such"),
        ("[generate]\n# hot\ntemp = \"hot\"\n", "line 3: temp: expected a number from 0 up, found \"hot\""),
        ("verify = \"maybe\"\n", "line 1: verify: expected one of exact, rejection, block, found \"maybe\""),
        ("json = \"yes\"\n", "line 1: json: expected true or false, found \"yes\""),
        ("temp = [1, 2]\n", "line 1: temp: expected one value, found [\"1\", \"2\"]"),
        ("temp = true\n", "line 1: temp: expected a number from 0 up, found \"true\""),
        (
            "[serve]\ntop-p = 1\ntemperate = 1\n",
            "line 3: temperate: expected an option of serve, found no such; did you mean temp?",
        ),
        ("[generate]\nport = 1\n", "line 2: port: expected an option of generate, found one of other commands"),
        (
            "[genrate]\n",
            "line 1: genrate: expected a command's name or an option's, found neither; did you mean generate?",
        ),
        ("help = true\n", "line 1: help: expected an option's name, found no such"),
        (
            "temp = 2020-01-01\n",
            "line 1: temp: expected true, false, a number, a text or a list of these, found a date",
        ),
        (
            "logprobs = true\n",
            "line 1: logprobs: generate: expected --json, found none; foretoken generate -h shows how",
        ),
    ] {
        let error = with_file(text, "generate hello", &[]).error(1);
        let (_, after) = error.split_once("config.toml: ").unwrap_or_else(|| panic!("{error}"));
        assert!(after.starts_with(expected), "{text}: {error}");
    }
    let error = with_file("temp = = 1\n", "generate hello", &[]).error(1);
    assert!(error.contains("config.toml: line 1: expected TOML, found: "), "{error}");
    let error = run(&words("generate hello --config nowhere.toml")).error(1);
    assert!(error.starts_with("nowhere.toml: cannot be read: "), "{error}");
    // Values for other commands are not checked, and these commands have no defaults.
    assert!(with_file("port = \"x\"\n", "generate hello -n 1", &[]).code == 0);
    for line in ["version", "completions bash", "man", "--version", "generate -h"] {
        assert_eq!(with_file("tmep = 1\n", line, &[]).code, 0, "{line}");
    }
}

#[test]
fn variables_of_the_command_are_checked() {
    let found = |name: &str, value: &str| run_with(&words("generate hello -n 1"), &[(name, value)], "");
    let error = found("FORETOKEN_TEMP", "hot").error(2);
    assert_eq!(error, "FORETOKEN_TEMP: expected a number from 0 up, found \"hot\"");
    assert_eq!(found("FORETOKEN_JSON", "yes").error(2), "FORETOKEN_JSON: expected true or false, found \"yes\"");
    assert!(found("FORETOKEN_JSON", "1").ok().starts_with('{') && !found("FORETOKEN_JSON", "0").ok().starts_with('{'));
    // Variables of other commands, of no option, or empty.
    for (name, value) in [("FORETOKEN_PORT", "x"), ("FORETOKEN_TEST_DATA", "/x"), ("FORETOKEN_TEMP", "")] {
        assert_eq!(found(name, value).code, 0, "{name}");
    }
    let page = run_with(&["config"], &[("FORETOKEN_TMEP", "1")], "");
    assert!(page.err.contains("note: FORETOKEN_TMEP: expected an option's name behind FORETOKEN_"), "{}", page.err);
}

#[test]
fn keys_are_not_shown() {
    let text = "[serve]\napi-key = [\"hush\"]\n";
    for (text, variables) in [(text, &[][..]), ("", &[("FORETOKEN_API_KEY", "hush")][..])] {
        let page = with_file(text, "config serve", variables).ok();
        let line = page.lines().find(|line| line.starts_with("api-key ")).unwrap_or_default();
        assert!(line.contains("(not shown)") && !page.contains("hush"), "{page}");
    }
    let page = run(&words("config serve --api-key hush --json")).ok();
    assert!(page.contains("(not shown)") && !page.contains("hush"), "{page}");
}

#[test]
fn config_refuses_invalid_lines() {
    let error = run(&words("config generate --temp hot")).error(2);
    assert_eq!(error, "--temp: expected a number from 0 up, found \"hot\"");
    assert!(run(&words("config generate --tmep 1")).error(2).ends_with("did you mean --temp?"));
    assert_eq!(run(&["generate", "--config", ""]).error(2), "--config: expected a value, found none");
    assert!(run(&words("config genrate")).error(2).ends_with("did you mean generate?"));
}
