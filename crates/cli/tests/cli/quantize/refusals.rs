//! What `quantize` refuses, and that it then writes no file.

use std::path::Path;

use foretoken_weights::Dtype;
use foretoken_weights::gguf::{self, Value};

use super::{bytes, small};
use crate::{golden, run, words};

/// The error of a run that must not have written anything.
#[track_caller]
pub(super) fn refused(folder: &Path, code: i32, line: &[&str]) -> String {
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("readable").file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let error = run(&[&["quantize"], line].concat()).error(code);
    assert_eq!(names(), before, "{error}");
    error
}

#[test]
fn invalid_paths_are_refused() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (from, to) = (golden("llama"), at("out.gguf"));
    let refused = |code, line: &[&str]| refused(folder.path(), code, line);
    let error = refused(1, &["nowhere.gguf", &to, "--type", "f16"]);
    assert_eq!(error, "nowhere.gguf: expected a directory or a .gguf file, found nothing");
    let error = refused(1, &[&from, &at("nowhere/out.gguf"), "--type", "f16"]);
    assert!(error.starts_with(&format!("{}: cannot be written: ", at("nowhere/out.gguf"))), "{error}");
    let error = refused(1, &[&from, &at("."), "--type", "f16", "--force"]);
    assert!(error.ends_with("cannot be written: expected a file, found a folder"), "{error}");
    std::fs::write(&to, "old").expect("a file can be written");
    let error = refused(1, &[&from, &to, "--type", "f16"]);
    assert_eq!(error, format!("{to}: expected no such file (--force writes over it), found one"));
    assert_eq!(std::fs::read(&to).expect("it is there"), b"old");
    run(&["quantize", &from, &to, "--type", "f16", "--force"]).ok();
    assert!(gguf::open(&to).is_ok());
    let error = refused(1, &[&to, &to, "--type", "q8_0", "--force"]);
    assert_eq!(error, format!("{to}: expected another file than what is read, found {to}"));
    let copy = tempfile::tempdir().expect("a folder can be made");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(Path::new(&from).join(name), copy.path().join(name)).expect("a file can be copied");
    }
    let (copied, weights) = (copy.path().display().to_string(), copy.path().join("model.safetensors"));
    let error = refused(1, &[&copied, &weights.display().to_string(), "--type", "f16", "--force"]);
    assert!(error.contains("expected another file than what is read"), "{error}");
    run(&["quantize", &copied, &copy.path().join("ours.gguf").display().to_string(), "--type", "f16"]).ok();
}

#[test]
fn invalid_types_and_sources_are_named() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = |name: &str| folder.path().join(name);
    let to = at("out.gguf").display().to_string();
    let from = golden("llama");
    let error = refused(folder.path(), 2, &[&from, &to, "--type", "q5_9"]);
    assert!(error.starts_with("--type: expected one of f32, f16, bf16, q8_0, q6_k, q5_k, "), "{error}");
    assert!(error.ends_with(", q3_k_s, q2_k, found \"q5_9\""), "{error}");
    run(&words("quantize a b")).error(2);
    run(&words("quantize a --type f32")).error(2);
    let iq1_s = Dtype::from_ggml_name("IQ1_S").expect("ggml has it");
    let odd = small(&at("odd.gguf"), "elman", iq1_s, vec![0; 100], vec![]);
    let error = refused(folder.path(), 1, &[&odd, &to, "--type", "f16"]);
    assert!(error.starts_with(&format!("{odd}: tensor `blk.0.odd.weight`: type: expected ")), "{error}");
    assert!(error.ends_with("found IQ1_S"), "{error}");
    let parts = vec![("split.count", Value::U16(3)), ("split.no", Value::U16(1))];
    let part = small(&at("part.gguf"), "elman", Dtype::F32, bytes([1.0; 64]), parts);
    let error = refused(folder.path(), 1, &[&part, &to, "--type", "f16"]);
    let expected = format!("{part}: name: expected a name that ends with -00002-of-00003.gguf");
    assert!(error.starts_with(&expected), "{error}");
    let values = bytes((0..128).map(|i| if i == 70 { f32::NAN } else { 1.0 }));
    let sick = small(&at("sick.gguf"), "elman", Dtype::F32, values, vec![]);
    let error = refused(folder.path(), 1, &[&sick, &to, "--type", "q8_0"]);
    let expected = "tensor blk.0.odd.weight: row 1: expected finite numbers that fit to quantize, found others";
    assert_eq!(error, format!("{sick}: {expected}"));
}

#[test]
fn a_directory_that_gguf_cannot_express_is_refused_by_field() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let from = folder.path().join("from");
    std::fs::create_dir(&from).expect("a folder can be made");
    std::fs::copy(Path::new(&golden("gpt2")).join("model.safetensors"), from.join("model.safetensors"))
        .expect("copied");
    let config = std::fs::read_to_string(Path::new(&golden("gpt2")).join("config.json")).expect("it is there");
    std::fs::write(from.join("config.json"), config.replace("gelu_new", "relu")).expect("written");
    let to = folder.path().join("out.gguf").display().to_string();
    let error = refused(folder.path(), 1, &[&from.display().to_string(), &to, "--type", "f16"]);
    assert!(
        error.ends_with("activation_function: expected gelu_new (GGUF's gpt2 has no other), found \"relu\""),
        "{error}"
    );
}

#[test]
fn families_without_gguf_and_quantized_checkpoints_are_refused_by_field() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let to = folder.path().join("out.gguf").display().to_string();
    let refused = |name: &str| refused(folder.path(), 1, &[&golden(name), &to, "--type", "f16"]);
    let error = refused("cohere2");
    assert!(error.starts_with(&format!("{}/config.json: layer_types: expected ", golden("cohere2"))), "{error}");
    let error = refused("opt");
    assert!(error.contains("model_type: expected a family that can be written as GGUF: llama, "), "{error}");
    assert!(error.ends_with("found opt"), "{error}");
    let error = refused("quantized-gptq");
    let expected = "quantization_config: expected nothing (only checkpoints of floats are written), found gptq";
    assert_eq!(error, format!("{}/config.json: {expected}", golden("quantized-gptq")));
}
