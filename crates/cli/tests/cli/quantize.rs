//! `quantize`: converts all forms of models to the same network in GGUF, and writes no file after an error.

mod refusals;

use std::path::Path;

use foretoken_weights::gguf::{self, Array, Metadata, TensorInfo, Value, Writer};
use foretoken_weights::{Dtype, safetensors};

use crate::{demo, golden, run, test_data};

/// Writes a file and returns the notes of the program.
#[track_caller]
fn quantize(from: &str, to: &Path, kind: &str) -> String {
    let run = run(&["quantize", from, &to.display().to_string(), "--type", kind]);
    assert_eq!((run.code, run.out.as_str()), (0, ""), "{}", run.err);
    run.err
}

/// Logits after each of some tokens.
fn logits(model: &str, tokens: &str) -> Vec<f32> {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("logits").display().to_string();
    run(&["logits", "-m", model, "--tokens", tokens, "-o", &path, "-ctk", "f32", "-ctv", "f32"]).ok();
    let weights = safetensors::open(&path).expect("the file is well-formed");
    let bytes = &weights.require("logits").expect("it has logits").bytes;
    bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().expect("four bytes"))).collect()
}

/// The largest difference over the largest magnitude.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = a.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    a.iter().zip(b).fold(0f32, |worst, (a, b)| worst.max((a - b).abs())) / largest
}

/// A greedy text.
fn text(model: &str, prompt: &str) -> String {
    run(&["generate", "-m", model, "--temp", "0", "-s", "1", "-n", "40", "--ignore-eos", prompt]).ok()
}

/// A small GGUF file of one tensor and some keys.
fn small(path: &Path, architecture: &str, dtype: Dtype, values: Vec<u8>, more_keys: Vec<(&str, Value)>) -> String {
    let layout = dtype.layout();
    let columns = values.len() / layout.bytes * layout.elements / 2;
    let more_keys = [vec![("general.architecture", architecture.into())], more_keys].concat();
    file_of(path, &[("blk.0.odd.weight", dtype, &[2, columns], values)], more_keys)
}

/// A GGUF file of some tensors and keys.
fn file_of(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)], keys: Vec<(&str, Value)>) -> String {
    let mut metadata = Metadata::new("small", []);
    keys.into_iter().for_each(|(key, value)| metadata.set(key, value));
    let info = |(name, dtype, shape, _): &(&str, Dtype, &[usize], Vec<u8>)| TensorInfo {
        name: name.to_string(),
        dtype: *dtype,
        shape: shape.to_vec(),
    };
    let infos: Vec<TensorInfo> = tensors.iter().map(info).collect();
    let file = std::fs::File::create(path).expect("a file can be made");
    let mut writer = Writer::new(file, "small", &metadata, &infos).expect("a file can be written");
    tensors.iter().for_each(|(.., values)| writer.append(values).expect("a file can be written"));
    writer.finish().expect("a file can be written");
    path.display().to_string()
}

fn bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Golden networks of all families that GGUF can express; those with a note about a difference come last.
const WRITTEN: [&str; 24] = [
    "llama",
    "llama-biased",
    "llama-tied",
    "llama3-rope",
    "linear-rope",
    "gpt2",
    "qwen2-yarn",
    "qwen3",
    "mistral-nemo",
    "gemma",
    "phi",
    "phi4-mini",
    "gpt_bigcode",
    "starcoder2",
    "bloom",
    "stablelm",
    "stablelm-parallel",
    "olmo3",
    "glm",
    "glm4",
    "granite",
    "cohere-qk-norm",
    "gpt_neox",
    "falcon-new",
];

#[test]
fn every_family_and_rotary_embedding_computes_the_same_from_gguf() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let tokens: Vec<String> = (0..60).map(|i| (i * 37 % 64).to_string()).collect();
    let tokens = tokens.join(",");
    for name in WRITTEN {
        let path = |kind: &str| folder.path().join(format!("{name}-{kind}.gguf"));
        let notes = quantize(&golden(name), &path("f32"), "f32");
        // These families compute GELU by the error function, but GGUF by tanh.
        let tanh = name == "gpt_neox" || name == "falcon-new";
        let expected = format!("note: {}/tokenizer.json: expected a tokenizer", golden(name));
        assert!(notes.contains(&expected) && notes.lines().count() == 1 + usize::from(tanh), "{notes}");
        assert_eq!(notes.contains("computes GELU by tanh"), tanh, "{notes}");
        let expected = logits(&golden(name), &tokens);
        let off = |kind: &str| difference(&expected, &logits(&path(kind).display().to_string(), &tokens));
        // Elements of a head are summed in another order, and divisors of frequencies are rounded once more.
        let (exact, limit) = (off("f32"), if tanh { 1e-3 } else { 2e-6 });
        assert!(exact < limit, "{name}: {exact}");
        // Rows of 32 are whole blocks of Q8_0, which also replaces Q6_K; rows of 24 and 48 fit no block. The largest
        // difference seen was 0.11.
        for kind in ["q8_0", "q6_k"] {
            quantize(&golden(name), &path(kind), kind);
            let off = off(kind);
            println!("{name} {kind}: {exact:e} in f32, {off:e}");
            assert!(off > exact && off < 0.2, "{name} {kind}: {off}");
            // Converting the GGUF file gives the same blocks as converting the directory.
            let again = path("again");
            let _ = std::fs::remove_file(&again);
            quantize(&path("f32").display().to_string(), &again, kind);
            let [first, second] = [path(kind), again].map(|path| gguf::open(path).expect("ours"));
            for tensor in first.weights.iter() {
                let other = second.weights.require(&tensor.name).expect("it is there");
                assert!(tensor.dtype == other.dtype && tensor.bytes[..] == other.bytes[..], "{name}: {}", tensor.name);
            }
        }
    }
}

#[test]
fn the_demo_models_write_the_same_text() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for name in ["demo-target", "demo-draft", "demo-other-tokenizer"] {
        let (from, to) = (demo(name), folder.path().join(format!("{name}.gguf")));
        for kind in ["f32", "bf16"] {
            let _ = std::fs::remove_file(&to);
            quantize(&from, &to, kind);
            let to = to.display().to_string();
            for prompt in ["once upon a time, there was", "<|user|>I need a table for 2, naïve café  ☕<|end|>"] {
                assert_eq!(text(&from, prompt), text(&to, prompt), "{name} {kind}");
            }
            let off = difference(&logits(&from, "5,17,3,1000,42,7"), &logits(&to, "5,17,3,1000,42,7"));
            println!("{name} {kind}: {off:e}");
            assert!(off < 2e-6, "{name} {kind}: {off}");
        }
    }
}

#[test]
fn every_type_loads_generates_and_is_close() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (from, tokens) = (demo("demo-target"), "5,17,3,1000,42,7,99,2000,8000");
    let exact = logits(&from, tokens);
    let mut last = u64::MAX;
    // The types are ordered from many bits to few; the limits are at least three times the differences seen.
    for (kind, dtypes, limit) in [
        ("F16", &["F16", "F32"][..], 0.001),
        ("q8_0", &["F32", "Q8_0"], 0.03),
        ("q6_k", &["F32", "Q6_K", "Q8_0"], 0.03),
        ("q5_k_m", &["F32", "Q5_1", "Q5_K", "Q6_K", "Q8_0"], 0.08),
        ("q5_1", &["F32", "Q5_1", "Q8_0"], 0.08),
        ("q5_k_s", &["F32", "Q5_1", "Q5_K", "Q8_0"], 0.08),
        ("q5_0", &["F32", "Q5_0", "Q8_0"], 0.1),
        ("q4_k_m", &["F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"], 0.1),
        ("q4_k", &["F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"], 0.1),
        ("q4_k_s", &["F32", "Q4_K", "Q5_0", "Q5_1", "Q8_0"], 0.1),
        ("q4_1", &["F32", "Q4_1", "Q8_0"], 0.2),
        ("q3_k_l", &["F32", "IQ4_NL", "Q5_1", "Q5_K", "Q8_0"], 0.2),
        ("q3_k_m", &["F32", "IQ4_NL", "Q4_K", "Q5_0", "Q5_1", "Q8_0"], 0.2),
        ("iq4_nl", &["F32", "IQ4_NL", "Q8_0"], 0.2),
        ("q4_0", &["F32", "Q4_0", "Q8_0"], 0.25),
        ("iq4_xs", &["F32", "IQ4_NL", "IQ4_XS", "Q8_0"], 0.2),
        ("q3_k_s", &["F32", "IQ4_NL", "Q3_K", "Q8_0"], 0.2),
        ("q2_k", &["F32", "IQ4_NL", "Q3_K", "Q8_0"], 0.2),
    ] {
        let file = folder.path().join(format!("{kind}.gguf"));
        let notes = quantize(&from, &file, kind);
        assert_eq!(notes.contains("rows of 384 are no whole blocks"), !["F16", "q8_0"].contains(&kind), "{notes}");
        let name = file.display().to_string();
        let facts: serde_json::Value =
            serde_json::from_str(&run(&["inspect", "--json", &name]).ok()).expect("facts are JSON");
        let found: Vec<&str> = facts["dtypes"].as_object().expect("types").keys().map(String::as_str).collect();
        assert_eq!(found, dtypes, "{kind}");
        let off = difference(&exact, &logits(&name, tokens));
        println!("{kind}: {off:e}");
        assert!(off > 0.0 && off < limit, "{kind}: {off}");
        assert!(text(&name, "once upon a time, there was").len() > 40, "{kind}");
        let len = std::fs::metadata(&file).expect("the file is there").len();
        assert!(len <= last, "{kind}: {len} bytes after {last}");
        last = len;
    }
}

#[test]
fn keys_are_copied_and_threads_change_nothing() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let nested = Array::Array(vec![Array::U8(vec![1, 2]), Array::Bool(vec![])]);
    let values = bytes((0..2 * 40_000).map(|i| (i as f32 * 0.37).sin()));
    let more_keys = vec![
        ("zoo.animals", Value::Array(Array::String(vec!["gnu".into(), "äöü".into()]))),
        ("zoo.cages", Value::Array(nested)),
        ("zoo.age", Value::I16(-7)),
        ("general.alignment", Value::U32(64)),
        ("general.file_type", Value::U32(0)),
    ];
    // The architecture is unknown; its tensors are quantized anyway.
    let from = small(&folder.path().join("from.gguf"), "elman", Dtype::F32, values, more_keys);
    let quantized_with = |threads: &str| {
        let to = folder.path().join(format!("{threads}.gguf"));
        let name = to.display().to_string();
        run(&["quantize", &from, &name, "--type", "q8_0", "-t", threads]).ok();
        std::fs::read(to).expect("the file was written")
    };
    assert!(quantized_with("1") == quantized_with("3"), "the file depends on the number of threads");
    let (before, after) = (gguf::open(&from).expect("ours"), gguf::open(folder.path().join("1.gguf")).expect("ours"));
    for (key, value) in before.metadata.iter().filter(|(key, _)| *key != "general.file_type") {
        assert_eq!(after.metadata.get(key), Some(value), "{key}");
    }
    assert_eq!(after.metadata.get("general.file_type"), Some(&Value::U32(7)));
    assert_eq!(after.metadata.get("general.quantization_version"), Some(&Value::U32(2)));
    assert_eq!(after.metadata.len(), before.metadata.len() + 1);
    assert_eq!(after.weights.require("blk.0.odd.weight").expect("it is there").dtype, Dtype::Q8_0);
    let same = folder.path().join("same.gguf");
    quantize(&from, &same, "f32");
    let same = gguf::open(&same).expect("ours");
    let tensor = |file: &gguf::Gguf| file.weights.require("blk.0.odd.weight").expect("it is there").bytes.to_vec();
    assert!(tensor(&same) == tensor(&before), "unchanged tensors are copied");
}

#[test]
fn quantizing_twice_prints_a_warning() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = |name: &str| folder.path().join(name);
    let from = small(&path("f32.gguf"), "elman", Dtype::F32, bytes((0..512).map(|i| i as f32)), vec![]);
    assert_eq!(quantize(&from, &path("q8_0.gguf"), "q8_0"), "");
    let q8_0 = path("q8_0.gguf").display().to_string();
    let warning = "warning: 1 tensors are quantized already and lose twice, as blk.0.odd.weight (Q8_0)\n";
    assert_eq!(quantize(&q8_0, &path("q6_k.gguf"), "q6_k"), warning);
    assert_eq!(quantize(&q8_0, &path("again.gguf"), "q8_0"), "");
    assert_eq!(quantize(&q8_0, &path("back.gguf"), "f32"), "");
    let bytes = |name: &str| std::fs::read(path(name)).expect("the file was written");
    assert!(bytes("again.gguf") == bytes("q8_0.gguf"));
}

#[test]
fn rows_without_whole_blocks_and_numbers_beyond_f16_are_noted() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let values = bytes((0..80).map(|i| if i == 3 { -1e9 } else { 1.0 }));
    let from = small(&folder.path().join("from.gguf"), "elman", Dtype::F32, values, vec![]);
    let to = folder.path().join("to.gguf");
    let expected = "note: rows of 40 are no whole blocks of Q4_K: F16 for 1 tensors, as blk.0.odd.weight\n\
        note: blk.0.odd.weight: 1 numbers beyond f16 became its greatest\n";
    assert_eq!(quantize(&from, &to, "Q4_K"), expected);
    let file = gguf::open(&to).expect("ours");
    let tensor = file.weights.require("blk.0.odd.weight").expect("it is there");
    assert_eq!((tensor.dtype, &tensor.bytes[6..8]), (Dtype::F16, &0xfbff_u16.to_le_bytes()[..]));
}

/// Importances of one tensor in the newer format: sums for each matrix, over four positions.
fn importances(path: &Path, tensor: &str, shape: &[usize], sums: impl IntoIterator<Item = f32>) -> String {
    let (summed, counted) = (format!("{tensor}.in_sum2"), format!("{tensor}.counts"));
    let keys = vec![
        ("imatrix.datasets", vec!["wiki.txt".to_string()].into()),
        ("imatrix.chunk_count", Value::U32(3)),
        ("imatrix.chunk_size", Value::U32(512)),
    ];
    let counts = bytes(vec![4.0; shape[0]]);
    let tensors = [(&*summed, Dtype::F32, shape, bytes(sums)), (&*counted, Dtype::F32, &[shape[0], 1][..], counts)];
    file_of(path, &tensors, keys)
}

/// A model with three experts that have importances of their own, and two matrices without importances.
#[test]
fn important_columns_lose_least() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = |name: &str| folder.path().join(name);
    let (columns, name) = (512, "blk.0.ffn_up_exps.weight");
    let values = |seed: usize, count: usize| bytes((0..count).map(|i| ((i * 37 + seed) as f32 * 0.61).sin()));
    let experts: &[usize] = &[3, 2, columns];
    let matrix: &[usize] = &[2, columns];
    let tensors = [
        (name, Dtype::F32, experts, values(1, 3 * 2 * columns)),
        ("blk.0.attn_q.weight", Dtype::F32, matrix, values(2, 2 * columns)),
        ("token_embd.weight", Dtype::F32, matrix, values(3, 2 * columns)),
    ];
    let architecture = || vec![("general.architecture", Value::String("elman".into()))];
    let from = file_of(&path("from.gguf"), &tensors, architecture());
    // One column of each expert, a different one each time, is a thousand times as important.
    let important_column = |expert: usize| 100 * expert + 7;
    let sums = (0..3 * columns).map(|i| if i % columns == important_column(i / columns) { 4000.0 } else { 4.0 });
    let imatrix = importances(&path("by.gguf"), name, &[3, columns], sums);
    for kind in ["q2_k", "q3_k_s", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "iq4_xs", "q4_k_s", "q5_k_s", "q6_k"] {
        let (plain, weighed) = (path("plain.gguf"), path("weighed.gguf"));
        let notes = run(&["quantize", &from, &plain.display().to_string(), "--type", kind, "--force"]).err;
        assert_eq!(notes, "", "{kind}");
        let to = weighed.display().to_string();
        let notes = run(&["quantize", &from, &to, "--type", kind, "--imatrix", &imatrix, "--force", "-t", "2"]).err;
        assert_eq!(notes, format!("note: {imatrix}: no importances for 1 tensors, as blk.0.attn_q.weight\n"), "{kind}");
        let [plain, weighed] = [plain, weighed].map(|path| {
            let file = gguf::open(&path).expect("ours");
            let floats = path.with_extension("f32").display().to_string();
            run(&["quantize", &path.display().to_string(), &floats, "--type", "f32", "--force"]).ok();
            (file, gguf::open(&floats).expect("ours"))
        });
        let off = |file: &gguf::Gguf, column: &dyn Fn(usize) -> bool| -> f32 {
            let floats = |bytes: &[u8]| -> Vec<f32> {
                bytes.chunks_exact(4).map(|float| f32::from_le_bytes(float.try_into().expect("four"))).collect()
            };
            let found = floats(&file.weights.require(name).expect("it is there").bytes);
            let pairs = found.iter().zip(floats(&tensors[0].3)).enumerate();
            pairs.filter(|(i, _)| column(*i)).map(|(_, (a, b))| (a - b) * (a - b)).sum()
        };
        let is_important = |i: usize| i % columns == important_column(i / (2 * columns));
        let (before, after) = (off(&plain.1, &is_important), off(&weighed.1, &is_important));
        println!("{kind}: {before:e} and {after:e} in the important columns");
        assert!(after < 0.5 * before, "{kind}: {before:e} and {after:e} in the important columns");
        let bytes =
            |file: &gguf::Gguf| file.weights.require("blk.0.attn_q.weight").expect("it is there").bytes.to_vec();
        assert!(bytes(&plain.0) == bytes(&weighed.0), "{kind}: tensors without importances are unchanged");
        let keys = &weighed.0.metadata;
        assert_eq!(keys.get("quantize.imatrix.file"), Some(&imatrix.as_str().into()));
        assert_eq!(keys.get("quantize.imatrix.dataset"), Some(&"wiki.txt".into()));
        assert_eq!(keys.get("quantize.imatrix.entries_count"), Some(&Value::U32(1)));
        assert_eq!(keys.get("quantize.imatrix.chunks_count"), Some(&Value::U32(3)));
        assert_eq!(keys.len(), plain.0.metadata.len() + 4);
    }
}

#[test]
fn importances_of_another_model_are_refused_by_tensor() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = |name: &str| folder.path().join(name);
    let from = small(&at("from.gguf"), "elman", Dtype::F32, bytes((0..128).map(|i| i as f32)), vec![]);
    let to = at("out.gguf").display().to_string();
    let imatrix = at("by.gguf");
    let refused = || {
        let imatrix = imatrix.display().to_string();
        let error = refusals::refused(folder.path(), 1, &[&from, &to, "--type", "q4_0", "--imatrix", &imatrix]);
        error.strip_prefix(&format!("{imatrix}: ")).unwrap_or_else(|| panic!("{error}")).to_string()
    };
    let ones = |count: usize| vec![1.0; count];
    importances(&imatrix, "blk.0.even.weight", &[1, 64], ones(64));
    let error = refused();
    assert_eq!(error, format!("tensor blk.0.even.weight: expected the name of one of {from}, found no such"));
    importances(&imatrix, "blk.0.odd.weight", &[1, 32], ones(32));
    assert_eq!(refused(), "tensor blk.0.odd.weight: expected 64 importances, found 32");
    importances(&imatrix, "blk.0.odd.weight", &[2, 32], ones(64));
    assert_eq!(refused(), "tensor blk.0.odd.weight: expected 64 importances, found 32 for each of 2 matrices");
    importances(&imatrix, "blk.0.odd.weight", &[1, 64], (0..64).map(|i| if i == 5 { f32::NAN } else { 1.0 }));
    assert!(refused().contains("found NaN at index 5"));
    std::fs::copy(&from, &imatrix).expect("a file can be copied");
    assert!(refused().starts_with("tensors: expected those of an importance matrix (NAME.in_sum2)"));
    let older = |len: i32| {
        [&1i32.to_le_bytes()[..], &16i32.to_le_bytes(), b"blk.0.odd.weight", &[0; 4], &len.to_le_bytes(), &[0; 80]]
            .concat()
    };
    std::fs::write(&imatrix, older(20)).expect("a file can be written");
    assert_eq!(refused(), "tensor blk.0.odd.weight: expected 64 importances, found 20 in all");
    std::fs::write(&imatrix, older(i32::MAX)).expect("a file can be written");
    assert!(refused().ends_with("expected 8589934588 bytes, found 80 bytes left"));
    std::fs::remove_file(&imatrix).expect("it was there");
    assert!(refused().contains("No such file"));
}

#[test]
fn a_published_model_is_converted() {
    let Some(from) = test_data("models/stories260K/stories260K.gguf") else { return };
    let folder = tempfile::tempdir().expect("a folder can be made");
    for kind in ["f32", "f16", "q8_0", "q4_k"] {
        let to = folder.path().join(format!("{kind}.gguf"));
        quantize(&from, &to, kind);
        let (from, to) = (text(&from, "Once upon a time"), text(&to.display().to_string(), "Once upon a time"));
        assert!(if ["f32", "f16"].contains(&kind) { from == to } else { to.len() > 40 }, "{kind}: {to}");
    }
}
