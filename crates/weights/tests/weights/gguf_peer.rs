//! Compares this reader with another one: the Python package `gguf` of llama.cpp's authors.
//!
//! Whatever this crate accepts, valid or mutated, the package reads with the same metadata and tensors, or refuses for
//! a reason that is listed here. If the package is not installed, the test prints that and passes;
//! `FORETOKEN_PEER_CASES` sets the number of mutated files. Files that only the package accepts are not compared; there
//! are many, since it shortens lengths that reach beyond the file.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use foretoken_weights::gguf::{Array, Gguf, Value};
use foretoken_weights::{Bytes, gguf};
use serde_json::{Value as Json, json};

use super::mutations::mutated;
use super::seeds;

/// The default number of mutated files.
const CASES: u64 = 2000;

/// Why the package refuses files that this crate reads: a tensor without elements has a dimension beyond all addresses.
const STRICTER: [&str; 2] = ["array is too big", "Maximum allowed dimension exceeded"];

/// The running package.
struct Peer {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the package; `None` if it is not installed.
    fn start() -> Option<Self> {
        let import = Command::new("python3").args(["-c", "import gguf"]).stderr(Stdio::null()).status();
        if !import.is_ok_and(|status| status.success()) {
            return None;
        }
        let listing = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/gguf_listing.py");
        let mut process =
            Command::new("python3").arg(listing).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (requests, answers) = (process.stdin.take()?, BufReader::new(process.stdout.take()?));
        Some(Self { process, requests, answers })
    }

    fn listing(&mut self, path: &Path) -> Json {
        writeln!(self.requests, "{}", path.display()).expect("the request is written");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the answer is read");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Compares what both read. Returns whether this crate accepts the bytes, and whether the package does.
    fn compare(&mut self, path: &Path, bytes: Vec<u8>, what: &str) -> (bool, bool) {
        let theirs = self.listing(path);
        let bytes = Bytes::from_vec(bytes);
        let Ok(file) = gguf::parse("probe", bytes.clone()) else { return (false, theirs.get("refused").is_none()) };
        match theirs.get("refused").and_then(Json::as_str) {
            Some(why) => assert!(STRICTER.iter().any(|reason| why.contains(reason)), "{what}: refused by them: {why}"),
            None => assert_eq!(ours(&file, &bytes), theirs, "{what}"),
        }
        (true, theirs.get("refused").is_none())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What this crate reads, in the form that the package prints.
fn ours(file: &Gguf, bytes: &Bytes) -> Json {
    let start = bytes.as_ptr().addr();
    let metadata = file.metadata.iter().map(|(key, value)| (key.to_string(), entry(value)));
    let tensors = file.weights.iter().map(|tensor| {
        let at = tensor.bytes.as_ptr().addr() - start;
        let kind = tensor.dtype.name().to_uppercase();
        let listed = json!({"type": kind, "shape": &tensor.shape[..], "at": at, "bytes": tensor.bytes.len()});
        (tensor.name.to_string(), listed)
    });
    json!({"metadata": Json::Object(metadata.collect()), "tensors": Json::Object(tensors.collect())})
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn entry(value: &Value) -> Json {
    let one = |kind: &'static str, text: String| (vec![kind], vec![text]);
    let (types, values) = match value {
        Value::U8(value) => one("UINT8", value.to_string()),
        Value::I8(value) => one("INT8", value.to_string()),
        Value::U16(value) => one("UINT16", value.to_string()),
        Value::I16(value) => one("INT16", value.to_string()),
        Value::U32(value) => one("UINT32", value.to_string()),
        Value::I32(value) => one("INT32", value.to_string()),
        Value::U64(value) => one("UINT64", value.to_string()),
        Value::I64(value) => one("INT64", value.to_string()),
        Value::Bool(value) => one("BOOL", u8::from(*value).to_string()),
        Value::F32(value) => one("FLOAT32", hex(&value.to_le_bytes())),
        Value::F64(value) => one("FLOAT64", hex(&value.to_le_bytes())),
        Value::String(text) => one("STRING", hex(text.as_bytes())),
        Value::Array(array) => {
            let (mut types, mut values) = (Vec::new(), Vec::new());
            elements(array, &mut types, &mut values);
            (types, values)
        }
    };
    json!({"types": types, "values": values})
}

/// The elements of an array and of the arrays inside it. The types are those of the first elements, since an empty
/// array has no element whose type could be named.
fn elements(array: &Array, types: &mut Vec<&'static str>, values: &mut Vec<String>) {
    types.push("ARRAY");
    macro_rules! each {
        ($($kind:ident: $name:literal, $shown:expr;)*) => {
            match array {
                $(Array::$kind(all) => {
                    types.extend(all.first().map(|_| $name));
                    values.extend(all.iter().map($shown));
                })*
                Array::Array(all) => {
                    for (at, one) in all.iter().enumerate() {
                        let mut inner = Vec::new();
                        elements(one, &mut inner, values);
                        types.extend(inner.into_iter().filter(|_| at == 0));
                    }
                }
            }
        };
    }
    each! {
        U8: "UINT8", u8::to_string;
        I8: "INT8", i8::to_string;
        U16: "UINT16", u16::to_string;
        I16: "INT16", i16::to_string;
        U32: "UINT32", u32::to_string;
        I32: "INT32", i32::to_string;
        U64: "UINT64", u64::to_string;
        I64: "INT64", i64::to_string;
        Bool: "BOOL", |value| u8::from(*value).to_string();
        F32: "FLOAT32", |value| hex(&value.to_le_bytes());
        F64: "FLOAT64", |value| hex(&value.to_le_bytes());
        String: "STRING", |text| hex(text.as_bytes());
    }
}

#[test]
fn this_crate_reads_what_the_package_reads() {
    let Some(mut peer) = Peer::start() else {
        println!("skipped: python3 has no package gguf");
        return;
    };
    let mut paths: Vec<_> = std::fs::read_dir(seeds::folder("gguf"))
        .expect("a folder")
        .map(|entry| entry.expect("a file").path())
        .collect();
    paths.retain(|path| path.extension().is_some());
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).expect("a file")).collect();
    for (path, seed) in paths.iter().zip(&seeds) {
        let both = peer.compare(path, seed.clone(), &path.display().to_string());
        assert_eq!(both, (true, true), "{}", path.display());
    }
    let others = std::env::var_os("FORETOKEN_TEST_DATA").map(|folder| Path::new(&folder).join("models"));
    for folder in others.iter().flat_map(std::fs::read_dir).flatten().flatten() {
        for file in std::fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            if file.path().extension().is_some_and(|extension| extension == "gguf") {
                let bytes = std::fs::read(file.path()).expect("a file");
                let both = peer.compare(&file.path(), bytes, &file.path().display().to_string());
                assert_eq!(both, (true, true), "{}", file.path().display());
            }
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mutated.gguf");
    let cases = std::env::var("FORETOKEN_PEER_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let (mut here, mut both, mut there) = (0, 0, 0);
    for number in 0..cases {
        let data = mutated(&seeds, number);
        if data.is_empty() {
            continue; // an empty file cannot be mapped
        }
        std::fs::write(&path, &data).expect("written");
        let (ours, theirs) = peer.compare(&path, data, &format!("case {number}"));
        here += u64::from(ours);
        there += u64::from(theirs);
        both += u64::from(ours && theirs);
    }
    println!("of {cases} mutated files {here} are accepted here, {there} by the package, {both} by both");
    assert!(both > 0, "nothing is compared");
}
