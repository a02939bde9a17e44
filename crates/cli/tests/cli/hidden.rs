//! `hidden`: answers become shards, a stream has the same rows, and unusable input is named.

use std::path::Path;

use foretoken_weights::{Bytes, Dtype, Weights, safetensors};
use serde_json::Value;

use crate::{demo, file, golden, program, run, words};

/// The values of a tensor of 32-bit integers.
fn integers(file: &Weights, name: &str) -> Vec<i32> {
    let bytes = &file.get(name).expect("it is there").bytes;
    bytes.chunks_exact(4).map(|bytes| i32::from_le_bytes(bytes.try_into().expect("four"))).collect()
}

fn shard(folder: &Path, number: usize) -> Weights {
    safetensors::open(folder.join(format!("{number:05}.safetensors"))).expect("the shard is well-formed")
}

/// Three prompts with their answers, as `generate` writes them.
fn answers(folder: &Path) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    std::fs::write(at("prompts.txt"), "once upon a time\nthe little dog\nhello\n").expect("it can be written");
    let line = ["generate", "-n", "5", "-s", "1", "--json", "--prompts", &at("prompts.txt")];
    run(&[&line[..], &["--resume", &at("answers.jsonl")]].concat()).ok();
    at("answers.jsonl")
}

#[test]
fn shards_have_the_tokens_of_the_answers() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (texts, rows) = (answers(folder.path()), folder.path().join("rows"));
    let out = rows.display().to_string();
    let line = ["hidden", "--texts", &texts, "-o", &out];
    let out_line = run(&line).ok();
    let text = std::fs::read_to_string(&texts).expect("it is there");
    let ids = |line: &str, field: &str| -> Vec<i32> {
        let object: Value = serde_json::from_str(line).expect("each line is JSON");
        serde_json::from_value(object[field].clone()).expect("a list of ids")
    };
    let expected: Vec<i32> =
        text.lines().flat_map(|line| [ids(line, "prompt_ids"), ids(line, "ids")].concat()).collect();
    let file = shard(&rows, 0);
    assert_eq!(integers(&file, "tokens"), expected);
    let prompt_lens: Vec<i32> = text.lines().map(|line| ids(line, "prompt_ids").len() as i32).collect();
    assert_eq!(integers(&file, "prompt_lens"), prompt_lens);
    let hidden = file.require("hidden").expect("it is there");
    assert_eq!((hidden.dtype, &hidden.shape[..]), (Dtype::BF16, &[expected.len(), 4 * 384][..]));
    for (name, value) in [
        ("format", "foretoken-hidden/1"),
        ("layers", "1,3,5,6"),
        ("width", "384"),
        ("vocabulary", "8192"),
        ("texts", "0..3"),
    ] {
        assert_eq!(file.metadata(name), Some(value), "{name}");
    }
    let bytes = std::fs::metadata(rows.join("00000.safetensors")).expect("it is there").len();
    let expected = format!("{out}: 3 texts, {} tokens, 1 shards, {bytes} bytes\n", expected.len());
    assert_eq!(out_line, expected);
    // A second run has nothing to do.
    let rerun = run(&line);
    assert!(rerun.err.contains(&format!("note: {out}: 3 of 3 texts are there")), "{}", rerun.err);
    assert_eq!(rerun.ok(), expected);
    // A stream has the same, text by text.
    let mut command = program(folder.path());
    let output = command.args(["hidden", "--texts", &texts, "-o", "-"]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut rest, mut tokens, mut states) = (&output.stdout[..], Vec::new(), Vec::new());
    while let Some((len, tail)) = rest.split_first_chunk::<8>() {
        let (bytes, tail) = tail.split_at(u64::from_le_bytes(*len) as usize);
        let file = safetensors::parse("stream", Bytes::from_vec(bytes.to_vec())).expect("it is well-formed");
        tokens.extend(integers(&file, "tokens"));
        states.extend_from_slice(&file.require("hidden").expect("it is there").bytes);
        rest = tail;
    }
    assert!(tokens == integers(&file, "tokens") && states == hidden.bytes[..]);
}

#[test]
fn size_limits_hold_and_left_out_texts_are_reported() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (_texts, texts) = file("texts.jsonl", &"{\"text\": \"the little dog went to the park\"}\n".repeat(40));
    let rows = folder.path().join("rows");
    let out = rows.display().to_string();
    let line = ["hidden", "--texts", &texts, "-o", &out, "--layers", "6", "--shard-size", "20kB", "--size-max", "90kB"];
    let full = run(&line);
    assert!(full.err.contains("note: --size-max 90000 bytes: the next text would go beyond, so "), "{}", full.err);
    let bytes: Vec<u64> =
        std::fs::read_dir(&rows).expect("it is there").map(|it| it.unwrap().metadata().unwrap().len()).collect();
    assert!(
        bytes.iter().sum::<u64>() <= 90_000 && bytes.iter().all(|bytes| *bytes <= 20_000) && bytes.len() > 2,
        "{bytes:?}"
    );
    full.ok();
    let all = run(&["hidden", "--texts", &texts, "-o", &out, "--layers", "6"]);
    assert!(!all.err.contains("--size-max"), "{}", all.err);
    assert!(all.ok().starts_with(&format!("{out}: 40 texts, ")));
}

#[test]
fn records_of_all_kinds_are_texts() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let texts = "{\"text\": \"the little dog\"}\n\
        {\"prompt\": null, \"text\": \"the little dog\"}\n\
        {\"prompt\": \"the little\", \"text\": \" dog\"}\n\
        {\"prompt\": \"the little\", \"output\": \" dog\"}\n\
        {\"prompt_ids\": [5, 17], \"ids\": [3], \"prompt\": \"other\", \"text\": \"words\"}\n\
        {\"prompt_ids\": [5, 17], \"ids\": []}\n\
        {\"text\": [5, 17, 3]}\n";
    let (_texts, texts) = file("texts.jsonl", texts);
    let rows = folder.path().join("rows");
    run(&["hidden", "--texts", &texts, "-o", &rows.display().to_string(), "--hidden-type", "f32"]).ok();
    let file = shard(&rows, 0);
    let starts: Vec<usize> =
        file.get("starts").expect("it is there").bytes.chunks_exact(8).map(|it| it[0] as usize).collect();
    let tokens = integers(&file, "tokens");
    let of = |text: usize| &tokens[starts[text]..starts[text + 1]];
    assert_eq!((of(0), of(2)), (of(1), of(3)));
    assert_eq!((of(4), of(5), of(6)), (&[5, 17, 3][..], &[5, 17][..], &[5, 17, 3][..]));
    let prompt_lens = integers(&file, "prompt_lens");
    assert_eq!((prompt_lens[0], prompt_lens[1], &prompt_lens[4..]), (0, 0, &[2, 2, 0][..]));
    assert!(prompt_lens[2] > 0 && (prompt_lens[2] as usize) < of(2).len());
    assert_eq!(file.require("hidden").expect("it is there").dtype, Dtype::F32);
    let long = run(&["hidden", "--texts", &texts, "-o", &folder.path().join("short").display().to_string(), "-c", "2"]);
    assert!(long.err.contains("note: 6 of 7 texts are longer than the context, 2 tokens, and are cut"), "{}", long.err);
    long.ok();
}

#[test]
fn unusable_input_is_named() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let out = folder.path().join("rows").display().to_string();
    let model = golden("llama");
    let refused = |code: i32, text: &str, more: &str| {
        let (_texts, path) = file("texts.jsonl", text);
        // An option that is given twice counts once, but a list grows.
        let layers = if more.contains("--layers") { "" } else { "--layers 1,2" };
        let line = format!("hidden -m {model} --texts {path} -o {out} {layers} {more}");
        run(&words(&line)).error(code).replace(&path, "FILE")
    };
    let good = "{\"prompt_ids\": [1, 2], \"ids\": [3]}\n";
    for (text, expected) in [
        ("", "FILE: expected texts, found none"),
        (
            "{\"prompt_ids\": [1], \"ids\": [96]}",
            "FILE: record 1: token 1: expected a number below 96 (the vocabulary), found 96",
        ),
        ("{\"prompt_ids\": [], \"ids\": []}", "FILE: record 1: tokens: expected at least one, found none"),
        ("{\"prompt_ids\": [1]}", "FILE: record 1: ids: expected a text or token ids, found none"),
        ("{\"text\": 7}", "FILE: record 1: text: expected a text or token ids, found a number"),
        ("[7]", "FILE: record 1: record: expected an object, found a number"),
        ("{\"title\": \"x\"}", "FILE: record 1: prompt or question: expected a text or token ids, found none"),
    ] {
        assert_eq!(refused(1, text, ""), expected);
        assert!(!Path::new(&out).exists(), "{expected}");
    }
    let error = refused(1, &format!("{good}{{\"text\""), "");
    assert!(error.starts_with("FILE: record 2: expected JSON, found: "), "{error}");
    let error = refused(1, "{\"text\": \"words\"}", "");
    assert!(error.starts_with(&format!("{model}/tokenizer.json: expected a tokenizer (or ")), "{error}");
    let range = "--layers: expected numbers from 1 (the entry of the second layer) to 2 (behind the last)";
    assert_eq!(refused(2, good, "--layers 0"), format!("{range}, found 0"));
    assert_eq!(refused(2, good, "--layers 3"), format!("{range}, found 3"));
    assert_eq!(refused(2, good, "--layers 1,1"), "--layers: expected each layer once, found 1 twice");
    assert_eq!(refused(2, good, "--layers x"), "--layers: expected a whole number from 0 up, found \"x\"");
    assert_eq!(refused(2, good, "--hidden-type q8_0"), "--hidden-type: expected one of bf16, f16, f32, found \"q8_0\"");
    let expected = "expected a folder (-o), which it belongs to, found -";
    assert_eq!(refused(2, good, "-o - --size-max 1GB"), format!("--size-max: {expected}"));
    assert_eq!(refused(2, good, "-o - --shard-size 1GB"), format!("--shard-size: {expected}"));
    let none = run(&["hidden", "-m", &model, "--texts", "nowhere", "-o", &out]).error(2);
    assert_eq!(none, "--layers: expected some of 1 to 2 (a model of few layers has no default), found none");
    let (_file, is_file) = file("rows", "");
    let error = refused(1, good, &format!("-o {is_file}"));
    assert!(error.starts_with(&format!("{is_file}: cannot be read: ")), "{error}");
    refused_shards(&model, &out);
}

/// Existing shards of other settings are refused with the setting that differs.
fn refused_shards(model: &str, out: &str) {
    let (_texts, path) = file("texts.jsonl", "{\"prompt_ids\": [1, 2], \"ids\": [3]}\n");
    let line = format!("hidden --texts {path} -o {out}");
    run(&words(&format!("{line} -m {model} --layers 1,2"))).ok();
    let shard = format!("{out}/00000.safetensors");
    for (more, expected) in [
        (format!("-m {model} --layers 2"), "layers: expected 2, as this run has it, found 1,2"),
        (
            format!("-m {model} --layers 1,2 --hidden-type f16"),
            "hidden_type: expected f16, as this run has it, found bf16",
        ),
        (format!("-m {model} --layers 1,2 -ctk f32"), "cache_type_k: expected f32, as this run has it, found f16"),
        (format!("-m {}", demo("demo-target")), "model: expected "),
    ] {
        let error = run(&words(&format!("{line} {more}"))).error(1);
        assert!(error.starts_with(&format!("{shard}: {expected}")), "{error}");
    }
}
