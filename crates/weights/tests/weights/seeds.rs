//! The seed files of the fuzz targets, made here so that they can be made again:
//! `cargo test -p foretoken-weights -- --ignored write_the_seeds`.

use std::path::PathBuf;

use foretoken_weights::safetensors::{Elements, write};

use super::gguf_writer::{ARRAY, F32, GgufWriter, STRING, array, string};
use super::safetensors::file;

/// The folder of the seeds of one target.
pub fn folder(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target].iter().collect()
}

/// A GGUF file with every type of value and several of tensors.
pub fn gguf_everything() -> GgufWriter {
    let floats = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let types = [1_i32, -3].map(i32::to_le_bytes).concat();
    let nested = [array(0, 2, &[1, 2]), array(7, 0, &[])].concat();
    GgufWriter::new()
        .str("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .raw("epsilon", F32, &1e-5_f32.to_le_bytes())
        .raw("yes", 7, &[1])
        .raw("i8", 1, &(-8_i8).to_le_bytes())
        .raw("u8", 0, &[8])
        .raw("u16", 2, &16_u16.to_le_bytes())
        .raw("i16", 3, &(-16_i16).to_le_bytes())
        .raw("u64", 10, &(1_u64 << 40).to_le_bytes())
        .raw("i64", 11, &(-64_i64).to_le_bytes())
        .raw("f64", 12, &0.5_f64.to_le_bytes())
        .raw("nested", ARRAY, &array(ARRAY, 2, &nested))
        .strings("tokenizer.ggml.tokens", &["<unk>", "", "é", "a\nb"])
        .raw("tokenizer.ggml.scores", ARRAY, &array(F32, 2, &floats(&[0.0, -1.5])))
        .raw("tokenizer.ggml.token_type", ARRAY, &array(5, 2, &types))
        .tensor("matrix", &[3, 2], 0, &floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]))
        .tensor("f16", &[4], 1, &[1; 8])
        .tensor("bf16", &[2, 2], 30, &[2; 8])
        .tensor("q8", &[32, 2], 8, &[3; 68])
        .tensor("iq1_s", &[256], 19, &[4; 50])
}

fn gguf_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let vocabulary = GgufWriter::new()
        .str("tokenizer.ggml.model", "gpt2")
        .strings("tokenizer.ggml.tokens", &["a", "b", "ab"])
        .raw("tokenizer.ggml.merges", ARRAY, &array(STRING, 1, &string("a b")));
    let aligned = GgufWriter::new().alignment(8).tensor("a", &[3], 24, b"abc").tensor("b", &[1, 1, 1, 2], 25, &[0; 4]);
    vec![
        ("everything.gguf", gguf_everything().bytes()),
        ("vocabulary.gguf", vocabulary.bytes()),
        ("version2.gguf", GgufWriter { version: 2, ..aligned }.bytes()),
        ("empty.gguf", GgufWriter::new().bytes()),
    ]
}

fn safetensors_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.safetensors");
    let tensors: [(&str, &[usize], _); 3] = [
        ("logits", &[2, 3], Elements::F32(&[0.0, 0.5, 1.0, 1.5, 2.0, 2.5])),
        ("tokens", &[2], Elements::I32(&[7, -1])),
        ("scalar", &[], Elements::F32(&[1.0])),
    ];
    write(&mut std::fs::File::create(&path).unwrap(), "written", &tensors).unwrap();
    let types = r#"{"__metadata__":{"format":"pt"},
        "half":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},
        "brain":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14]},
        "none":{"dtype":"F32","shape":[0,4],"data_offsets":[14,14]},
        "odd":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[14,17]},
        "packed":{"dtype":"F4","shape":[1,2],"data_offsets":[17,18]}}"#;
    vec![
        ("written.safetensors", std::fs::read(&path).unwrap()),
        ("types.safetensors", file(types, &[5; 18])),
        ("empty.safetensors", file("{}", &[])),
    ]
}

#[test]
#[ignore = "writes the seed files of the fuzz targets"]
fn write_the_seeds() {
    for (target, seeds) in [("gguf", gguf_seeds()), ("safetensors", safetensors_seeds())] {
        std::fs::create_dir_all(folder(target)).unwrap();
        for (name, bytes) in seeds {
            std::fs::write(folder(target).join(name), bytes).unwrap();
        }
    }
}

#[test]
fn the_committed_seeds_are_these() {
    for (target, seeds) in [("gguf", gguf_seeds()), ("safetensors", safetensors_seeds())] {
        for (name, bytes) in seeds {
            let committed = std::fs::read(folder(target).join(name)).unwrap_or_default();
            assert!(committed == bytes, "fuzz/corpus/{target}/{name} is out of date: run write_the_seeds");
        }
    }
}
