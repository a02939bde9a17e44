//! `bench pass` and `bench batch`: the printed numbers are consistent; what cannot be measured is refused.

use serde_json::Value;

use crate::{golden, run, run_with, words};

/// Runs `bench pass --json` with these words.
fn objects(line: &str) -> Vec<Value> {
    let out = run(&[&["bench", "pass", "--json"], words(line).as_slice()].concat()).ok();
    serde_json::from_str::<Vec<Value>>(&out).expect("it is an array")
}

/// A number of an object, for this number of rows.
#[track_caller]
fn number(object: &Value, field: &str, rows: &str) -> f64 {
    object[field][rows].as_f64().unwrap_or_else(|| panic!("{field} of {rows} rows: {object}"))
}

/// The rounding error of a printed number, which has four digits after the point.
const ROUNDING: f64 = 0.5e-4;

/// Whether three printed numbers are the rounded ones of an exact `a * b = c`, where the rounding of each factor is
/// multiplied with the other one.
fn is_product(a: f64, b: f64, c: f64) -> bool {
    let tolerance = ROUNDING * (a.abs() + b.abs() + 1.0 + ROUNDING);
    (a * b - c).abs() <= tolerance + 1e-12 * c.abs()
}

#[test]
fn each_context_has_times_and_rooflines_by_rows() {
    let model = golden("llama");
    let found = objects(&format!("-m {model} --rows 1,3,65 --context 40,0 --repeat 2 -t 2"));
    assert_eq!(found.iter().map(|one| one["context"].as_u64()).collect::<Vec<_>>(), [Some(0), Some(40)]);
    for one in &found {
        assert_eq!((one["model"].as_str(), one["threads"].as_u64()), (Some(model.as_str()), Some(2)));
        assert_eq!((&one["logits"]["3"], &one["logits"]["65"]), (&Value::from(3), &Value::from(1)));
        for rows in ["1", "3", "65"] {
            let (ms, roofline) = (number(one, "ms_per_pass", rows), number(one, "roofline", rows));
            assert!(ms > 0.0 && roofline > 0.0 && number(one, "least_ms_per_pass", rows) <= ms, "{one}");
            assert!(is_product(number(one, "ratio_to_one", rows), number(one, "ms_per_pass", "1"), ms), "{one}");
            let bound = number(one, "share_of_bandwidth", rows).max(number(one, "share_of_operations", rows));
            let ratio = number(one, "ratio_to_roofline", rows);
            // The 1 is not rounded, but the tolerance need not be tighter for it.
            assert!(is_product(ratio, bound, 1.0), "{one}");
            assert!(is_product(ratio, roofline, ms), "{one}");
        }
        for rate in ["bandwidth_gb_s", "bandwidth_median_gb_s", "fma_gflop_s", "int8_gop_s"] {
            assert!(number(one, "roofline", rate) > 0.0, "{one}");
        }
    }
    // The same rows after a longer context read more of the cache.
    let bytes = |one: &Value| number(one, "gb_s", "1") * number(one, "ms_per_pass", "1");
    assert!(bytes(&found[1]) > bytes(&found[0]), "{found:?}");
}

#[test]
fn sources_are_read_by_the_encoder_and_seen_by_every_row_of_the_decoder() {
    let model = golden("t5-v1_1");
    let found = objects(&format!("-m {model} --rows 1,3 --context 0,40 --source 64,256,64 --repeat 2"));
    let shapes: Vec<_> =
        found.iter().map(|one| [&one["source"]["tokens"], &one["context"]].map(Value::as_u64)).collect();
    assert_eq!(shapes, [[64, 0], [64, 40], [256, 0], [256, 40]].map(|pair| pair.map(Some)));
    for one in &found {
        let field = |name: &str| one["source"][name].as_f64().unwrap_or_else(|| panic!("{name}: {one}"));
        assert!(field("least_ms") > 0.0 && field("least_ms") <= field("ms"), "{one}");
        assert!(is_product(field("ratio_to_roofline"), field("roofline_ms"), field("ms")), "{one}");
        assert!((field("tokens_per_second") * field("ms") / (1e3 * field("tokens")) - 1.0).abs() < 1e-2, "{one}");
    }
    // One row reads 192 further keys and values of 24 elements in f16, in each of 3 layers.
    let bytes = |one: &Value| number(one, "bytes_per_pass", "1");
    assert_eq!(bytes(&found[2]) - bytes(&found[0]), 192.0 * 2.0 * 24.0 * 2.0 * 3.0);
    let default = objects(&format!("-m {model} --rows 1 --repeat 1 -c 100"));
    assert_eq!((&default[0]["source"]["tokens"], default.len()), (&Value::from(100), 1));
    let out = run(&words(&format!("bench pass -m {model} --rows 1 --source 9 --repeat 1"))).ok();
    assert!(out.contains("\nsource of 9 tokens: the encoder takes ") && out.contains("\ncontext 64\n"), "{out}");
    let refused = run(&words(&format!("bench pass -m {model} -c 100 --source 101"))).error(2);
    assert_eq!(refused, "--source: expected at most 100 (the longest text), found 101");
    assert_eq!(objects(&format!("-m {} --rows 1 --repeat 1", golden("llama")))[0]["source"], Value::Null);
}

#[test]
fn default_rows_fit_into_the_context() {
    let found = objects(&format!("-m {} --repeat 1", golden("gpt2")));
    let rows: Vec<&String> = found[0]["ms_per_pass"].as_object().expect("an object").keys().collect();
    assert!(rows.iter().any(|rows| *rows == "1") && !rows.iter().any(|rows| *rows == "512"), "{rows:?}");
    let alone = objects(&format!("-m {} --repeat 1 --rows 2,2", golden("gpt2")));
    assert_eq!(alone[0]["ratio_to_one"], serde_json::json!({ "2": null }));
}

#[test]
fn the_table_has_a_line_per_number_of_rows() {
    let out = run(&words("bench pass --rows 1,2 --context 8,16 --repeat 1")).ok();
    for part in
        ["demo-target: ", " M weights in BF16", "this machine: memory ", "context 8\n", "context 16\n", "/ roofline"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    let lines = |rows: &str| out.lines().filter(|line| line.trim_start().starts_with(rows)).count();
    assert_eq!((lines("1 "), lines("2 ")), (2, 2), "{out}");
    let portable = run_with(&words("bench pass --rows 1 --context 0 --repeat 1"), &[("FORETOKEN_ISA", "portable")], "");
    let portable = portable.ok();
    assert!(portable.contains("portable") && portable.contains("bf16 dots none"), "{portable}");
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_line() {
    for (options, expected) in [
        ("--rows 0", "--rows: expected a whole number from 1 up, found \"0\""),
        ("--rows 1,many", "--rows: expected a whole number from 1 up, found \"many\""),
        ("--rows 1,,2", "--rows: expected a whole number from 1 up, found nothing"),
        ("--context -1", "--context: expected a whole number from 0 up, found \"-1\""),
        ("--repeat 0", "--repeat: expected a whole number from 1 up, found \"0\""),
        ("-t 0", "--threads: expected a whole number from 1 to 1024, found \"0\""),
        (
            "--rows 1,2000 --context 64",
            "--rows: expected at most 1984 (the longest text has 2048 tokens, the context 64), found 2000",
        ),
        (
            "--rows 9 -c 16 --context 4,8",
            "--rows: expected at most 8 (the longest text has 16 tokens, the context 8), found 9",
        ),
        ("--context 2048", "--context: expected less than 2048 (the longest text), found 2048"),
        ("--source 0", "--source: expected a whole number from 1 up, found \"0\""),
        ("--source 9", "--source: expected a model with an encoder, found demo-target"),
    ] {
        assert_eq!(run(&[&["bench", "pass"], words(options).as_slice()].concat()).error(2), expected, "{options}");
    }
    let expected = "bench: expected what to measure (pass, replay, trie, generate, compare, batch, serve), found none";
    assert_eq!(run(&["bench"]).error(2), expected);
    for line in ["bench pass --frobnicate", "bench generation", "bench pass extra"] {
        run(&words(line)).error(2);
    }
    assert!(run(&["bench", "pass", "-m", "nowhere.gguf"]).error(1).starts_with("nowhere.gguf: "));
}

#[test]
fn bench_batch_times_concurrent_texts() {
    let line = "bench batch -np 1,3 -npp 40 --shared 33 -ntg 6 --repeat 1 -t 1 --json";
    let rows: Vec<Value> = run(&words(line)).ok().lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["texts"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3]);
    for row in &rows {
        let fields = ["seconds", "tokens_per_second_in_all", "first_token_median", "first_token_p95", "longest_wait"];
        assert!(fields.iter().all(|field| row[field].as_f64().unwrap() > 0.0), "{row}");
        assert!(row["first_token_p95"].as_f64() <= row["seconds"].as_f64(), "{row}");
    }
}

#[test]
fn bench_batch_times_guided_texts_next_to_others() {
    let form = r#"--json-schema={"type":"array","items":{"type":"boolean"},"minItems":90}"#;
    let line = "bench batch -np 2 --guided 1 -npp 9 -ntg 40 --repeat 1 -t 1 --json";
    let row: Value = serde_json::from_str(run(&[words(line), vec![form]].concat()).ok().trim()).unwrap();
    assert!(row["beside"].as_f64().unwrap() > 0.0 && row["beside"].as_f64() <= row["beside_p99"].as_f64(), "{row}");
    let line = "bench batch -np 2 -npp 9 -ntg 40 --repeat 1 -t 1 --choice yes";
    let error = run(&words(line)).error(1);
    assert!(error.starts_with("expected a form that a text of --n-predict tokens fits into, found one"), "{error}");
}

#[test]
fn a_batch_that_cannot_be_measured_is_refused_in_one_line() {
    for (options, expected) in [
        ("-npp 8 --shared 9", "--shared: expected at most 8 (--prompt-tokens), found 9"),
        ("--guided 1", "--guided: expected a form beside it, as --json-schema says one, found none"),
        (
            "-npp 30 -ntg 9 -c 32",
            "--prompt-tokens and --n-predict: expected at most 32 together (the longest text), found 39",
        ),
    ] {
        assert_eq!(run(&[&["bench", "batch"], words(options).as_slice()].concat()).error(2), expected, "{options}");
    }
}
