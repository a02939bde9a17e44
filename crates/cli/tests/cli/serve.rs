//! `foretoken serve` as a command: its output, its errors and its end. Its answers are tested in the crate `server`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use super::{file, program, run, run_with, words};

/// A server, the rest of its standard error, and its address.
fn start(home: &std::path::Path, options: &[&str]) -> (Child, BufReader<ChildStderr>, String) {
    let mut command = program(home);
    command.args(["serve", "--port", "0", "-c", "256", "-np", "2", "-a", "stories"]).args(options);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut server = command.spawn().expect("the program starts");
    let mut stderr = BufReader::new(server.stderr.take().expect("it is piped"));
    match address(&mut stderr) {
        Some(address) => (server, stderr, address),
        None => panic!("it ended without an address: {:?}", server.wait()),
    }
}

/// The address that a server prints.
fn address(stderr: &mut impl BufRead) -> Option<String> {
    let mut lines = stderr.lines().map_while(Result::ok);
    lines.find_map(|line| Some(line.trim().strip_prefix("stories at http://")?.to_string()))
}

/// The answer to a request: its head and body.
fn answer(address: &str, path: &str, body: &str) -> String {
    let mut client = TcpStream::connect(address).expect("it listens");
    let head = format!("{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).expect("it takes a request");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("it answers");
    answer
}

const SHORT: &str = r#"{"prompt": "the", "max_tokens": 3, "seed": 1}"#;

/// The answer to a short request.
fn ask(address: &str) -> String {
    let answer = answer(address, "POST /v1/completions", SHORT);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"model\":\"stories\""), "{answer}");
    answer
}

fn signal(server: &Child, name: &str) {
    Command::new("kill").args([name, &server.id().to_string()]).status().expect("it can be asked to end");
}

#[test]
fn a_server_prints_its_address_answers_and_ends_on_a_signal() {
    // The signals of a service manager and of a closed terminal.
    for name in ["-TERM", "-HUP"] {
        let home = tempfile::tempdir().expect("a folder can be made");
        let store = home.path().join("store").display().to_string();
        let (mut server, mut stderr, address) = start(home.path(), &["-lcd", &store]);
        ask(&address);
        signal(&server, name);
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).expect("it can be read");
        assert!(server.wait().expect("it ends").success(), "{name}: {rest}");
        assert!(rest.contains(" INFO answered ") && !rest.contains("prompt="), "{rest}");
        assert!(std::path::Path::new(&store).exists(), "{name}: its texts are kept");
    }
}

/// Where layers cannot be read, a service manager or a router should know: until they can be read again.
#[test]
fn a_server_whose_passes_fail_is_not_healthy() {
    let home = tempfile::tempdir().expect("a folder can be made");
    let (mut server, _stderr, address) = start(home.path(), &["--offload", "7MB", "--spec-type", "none"]);
    let states = || ["GET /health", "GET /ready"].map(|path| answer(&address, path, ""));
    let text =
        |answer: &str| answer.split_once("\"text\":").map(|(_, text)| text.split('}').next().map(str::to_string));
    let expected = text(&ask(&address));
    let layers = home.path().join("foretoken/layers");
    let path = std::fs::read_dir(layers).expect("a folder").next().expect("a file").expect("it can be read").path();
    let whole = std::fs::read(&path).expect("it can be read");
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("it can be written");
    file.set_len(8192).expect("it can be cut");
    let failed = answer(&address, "POST /v1/completions", SHORT);
    assert!(failed.starts_with("HTTP/1.1 503 ") && failed.contains("the file was shortened"), "{failed}");
    // Neither a stream nor what needs no pass looks like a success.
    let streamed = answer(&address, "POST /v1/completions", &SHORT.replace('{', r#"{"stream": true, "#));
    assert!(streamed.starts_with("HTTP/1.1 503 "), "{streamed}");
    answer(&address, "POST /v1/completions", &SHORT.replace("\"max_tokens\": 3", "\"max_tokens\": 0"));
    for state in states() {
        assert!(state.starts_with("HTTP/1.1 503 ") && state.contains("found the latest failed"), "{state}");
    }
    // A router may try again, or nobody would learn that requests succeed.
    let start = Instant::now();
    while !states()[1].starts_with("HTTP/1.1 200 ") {
        assert!(start.elapsed() < Duration::from_secs(60), "it is never ready again");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(states()[0].starts_with("HTTP/1.1 503 "));
    file.write_all(&whole).expect("it can be written");
    assert!(text(&ask(&address)) == expected);
    assert!(states().iter().all(|state| state.starts_with("HTTP/1.1 200 ")));
    signal(&server, "-TERM");
    assert!(server.wait().expect("it ends").success());
}

#[test]
fn a_repeated_model_option_adds_a_model() {
    let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let [target, draft] = ["demo-target", "demo-draft"].map(|name| models.join(name).display().to_string());
    for options in [
        vec!["-m", &target, "-m", &draft],
        vec![&target, "--model", &draft],
        vec!["-m", &target, "-np", "3", &format!("--model={draft}")],
    ] {
        let home = tempfile::tempdir().expect("a folder can be made");
        let (mut server, mut stderr, address) = start(home.path(), &options);
        let list = answer(&address, "GET /v1/models", "");
        for part in [r#""id":"stories""#, r#""id":"demo-draft""#, r#""value":"loaded""#, r#""value":"unloaded""#] {
            assert!(list.contains(part), "no {part}: {list}");
        }
        ask(&address);
        signal(&server, "-TERM");
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).expect("it can be read");
        assert!(server.wait().expect("it ends").success(), "{rest}");
    }
}

#[test]
fn a_closed_standard_error_does_not_end_the_server() {
    let home = tempfile::tempdir().expect("a folder can be made");
    let (mut server, stderr, address) = start(home.path(), &[]);
    drop(stderr);
    (0..3).for_each(|_| drop(ask(&address)));
    signal(&server, "-TERM");
    assert!(server.wait().expect("it ends").success());
}

#[test]
fn invalid_options_are_refused_in_one_line() {
    for (options, expected) in [
        ("--host nowhere", "--host: expected an IP address (127.0.0.1, 0.0.0.0, ::1), found nowhere"),
        ("--queue-max 2000000", "--queue-max: expected a whole number from 1 to 1048576, found 2000000"),
        ("--timeout 90000", "--timeout: expected a whole number from 1 to 86400, found 90000"),
        ("--api-key=", "--api-key: expected keys of at least one letter, found an empty one"),
        ("--cors-origin=", "--cors-origin: expected names of at least one letter, found an empty one"),
        ("--host-name=", "--host-name: expected names of at least one letter, found an empty one"),
        ("-np 0", "--parallel: expected a whole number from 1 to 256, found \"0\""),
    ] {
        let line = [vec!["serve", "--port", "0", "-c", "64"], words(options)].concat();
        assert_eq!(run(&line).error(2), expected, "{options}");
    }
    assert!(run(&["serve", "--port", "70000"]).error(2).starts_with("--port: "));
    let missing = run(&["serve", "-c", "64", "--api-key-file", "no/such/file"]).error(1);
    assert!(missing.starts_with("no/such/file: cannot be read: "), "{missing}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("it has an address").port().to_string();
    let refused = run(&["serve", "-c", "64", "--port", &port]).error(1);
    assert!(refused.starts_with(&format!("host and port 127.0.0.1:{port}: cannot be listened on: ")), "{refused}");
}

/// Keys that are given and empty would leave the server open to everybody.
#[test]
fn empty_keys_are_refused_wherever_they_come_from() {
    let serve = ["serve", "--port", "0", "-c", "64"];
    let empty = "expected keys of at least one letter, found an empty one";
    for keys in ["", ",,", " , ", ",", "secret,", ",secret"] {
        let refused = run_with(&serve, &[("FORETOKEN_API_KEY", keys)], "").error(2);
        assert_eq!(refused, format!("FORETOKEN_API_KEY: {empty}"), "{keys:?}");
    }
    let refused = run_with(&serve, &[("FORETOKEN_API_KEY", "a\tb")], "").error(2);
    let control = "expected keys of at least one letter, found one with a control character";
    assert_eq!(refused, format!("FORETOKEN_API_KEY: {control}"));
    let refused = run_with(&serve, &[("FORETOKEN_API_KEY_FILE", "")], "").error(2);
    assert_eq!(refused, "FORETOKEN_API_KEY_FILE: expected a file of keys, found none");
    for key in ["", " ", "\t"] {
        let key_option = format!("--api-key={key}");
        let refused = run(&[&serve[..], &["--api-key", "secret", &key_option]].concat()).error(2);
        assert_eq!(refused, format!("--api-key: {empty}"), "{key:?}");
    }
    for (text, expected) in [
        ("", "expected keys, one a line, found none"),
        ("\n \n", "expected keys, one a line, found none"),
        ("\u{feff}", "expected keys, one a line, found none"),
        ("\u{feff}\r\n", "expected keys, one a line, found none"),
        ("secret\0\n", control),
        ("\0", control),
    ] {
        let (_folder, path) = file("keys", text);
        let refused = run(&[&serve[..], &["--api-key-file", &path]].concat()).error(1);
        assert_eq!(refused, format!("{path}: {expected}"), "{text:?}");
    }
    for (text, expected) in [
        ("[serve]\napi-key = \"\"\n", format!("--api-key: {empty}")),
        ("[serve]\napi-key = [\"secret\", \" \"]\n", format!("--api-key: {empty}")),
        ("[serve]\napi-key = []\n", "line 2: api-key: expected at least one, found []".to_string()),
    ] {
        let (_folder, path) = file("config.toml", text);
        let refused = run(&[&serve[..], &["--config", &path]].concat());
        assert!(refused.code != 0 && refused.err.ends_with(&format!("{expected}\n")), "{text}: {}", refused.err);
    }
}

#[test]
fn a_byte_order_mark_is_not_a_part_of_a_key() {
    let home = tempfile::tempdir().expect("a folder can be made");
    let (_folder, path) = file("keys", "\u{feff}secret\r\n\r\nother\r\n");
    let (mut server, mut stderr, address) = start(home.path(), &["--api-key-file", &path]);
    let status = |key: &str| {
        let mut client = TcpStream::connect(&address).expect("it listens");
        let head = format!("GET /v1/models HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\r\n");
        client.write_all(head.as_bytes()).expect("it takes a request");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("it answers");
        answer.split(' ').nth(1).unwrap_or_default().to_string()
    };
    assert_eq!(["secret", "other", "", "wrong"].map(status), ["200", "200", "401", "401"]);
    signal(&server, "-TERM");
    stderr.read_to_string(&mut String::new()).expect("it can be read");
    assert!(server.wait().expect("it ends").success());
}

#[test]
fn bench_serve_times_engine_and_server() {
    let line = "bench serve --texts 1 --repeat 1 -n 4 -np 1,2 -c 128 --json -p the";
    let lines = run_with(&words(line), &[], "").ok();
    let rows: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 2);
    for (row, clients) in rows.iter().zip([1, 2]) {
        assert_eq!((row["clients"].as_u64(), row["tokens"].as_u64()), (Some(clients), Some(4)));
        for who in ["engine", "server"] {
            assert!(row[who]["tokens_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{row}");
            assert!(row[who]["first_token_ms"].as_f64().is_some_and(|time| time > 0.0), "{row}");
        }
    }
    let (_folder, path) = file("prompts.txt", "once upon\n");
    for (prompts, found) in
        [(format!("--prompts {path} --chat"), "a conversation"), ("--prompt-ids 1".into(), "token ids")]
    {
        let error = run(&words(&format!("bench serve {prompts}"))).error(2);
        assert_eq!(error, format!("bench serve: expected prompts that are texts, found {found}"));
    }
    let refused = run(&words("bench serve -p the --url llama")).error(2);
    assert_eq!(refused, "--url: expected NAME=http://HOST:PORT, found \"llama\"");
    let nobody = run(&words("bench serve --texts 1 --repeat 1 -n 4 -np 1 -c 128 -p the --url x=http://127.0.0.1:9"));
    assert!(nobody.err.contains("error: http://127.0.0.1:9: "), "{}", nobody.err);
}
