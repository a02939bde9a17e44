//! Tests with real files: the demonstration model of this repository and, if `FORETOKEN_TEST_DATA` names a folder that
//! has them, a small llama and four vocabularies of other projects.

use std::path::PathBuf;

use foretoken_weights::{Dtype, gguf, safetensors};

/// A path in the folder of test data; if there is no such folder, `None` and a printed line.
fn test_data(path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("FORETOKEN_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: FORETOKEN_TEST_DATA is not set ({path})");
    }
    Some(folder?.join(path))
}

#[test]
fn the_demonstration_model_opens() {
    let dir: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../models/demo-target"].iter().collect();
    let weights = safetensors::open_dir(&dir).unwrap();
    let path = dir.join("model.safetensors");
    assert_eq!(weights.source(), path.display().to_string());

    let bytes = std::fs::read(&path).unwrap();
    let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(weights.len(), theirs.len());
    assert!(!weights.is_empty());
    for name in theirs.names() {
        let (our, their) = (weights.require(name).unwrap(), theirs.tensor(name).unwrap());
        assert_eq!((our.dtype.name(), &our.shape[..]), (their.dtype().to_string().as_str(), their.shape()));
        assert!(our.bytes[..] == *their.data(), "data of `{name}`");
    }
}

#[test]
fn the_small_llama_opens() {
    let Some(path) = test_data("models/stories260K/stories260K.gguf") else { return };
    let file = gguf::open(path).unwrap();
    let metadata = &file.metadata;
    assert_eq!((file.version, metadata.str("general.architecture").unwrap()), (3, "llama"));
    assert_eq!(metadata.usize("llama.block_count").unwrap(), 5);
    assert_eq!(metadata.f32("llama.attention.layer_norm_rms_epsilon").unwrap(), 1e-5);
    assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap().len(), 512);
    assert_eq!(metadata.f32s("tokenizer.ggml.scores").unwrap().len(), 512);
    assert_eq!(metadata.i32s("tokenizer.ggml.token_type").unwrap()[..4], [2, 3, 3, 6]);
    assert_eq!(metadata.optional_u32("llama.vocab_size").unwrap(), None);

    assert_eq!(file.weights.len(), 48);
    let embedding = file.weights.require("token_embd.weight").unwrap();
    assert_eq!((embedding.dtype, &embedding.shape[..]), (Dtype::F32, &[512, 64][..]));
    assert_eq!(file.weights.require("blk.0.attn_k.weight").unwrap().shape, [32, 64], "32 outputs, 64 inputs");
    let norm = file.weights.require("output_norm.weight").unwrap();
    let values = norm.bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap()));
    assert!(values.into_iter().all(|value| value.is_finite() && value.abs() < 100.0), "floats where they should be");
}

#[test]
fn vocabularies_open() {
    for (name, tokens, merges) in [
        ("gpt-2", 50257, Some(50000)),
        ("gpt-neox", 50432, Some(50009)),
        ("llama-spm", 32000, None),
        ("starcoder", 49152, Some(48872)),
    ] {
        let Some(path) = test_data(&format!("data/vocab/ggml-vocab-{name}.gguf")) else { return };
        let file = gguf::open(path).unwrap();
        assert!(file.weights.is_empty(), "{name}");
        assert_eq!(file.metadata.strings("tokenizer.ggml.tokens").unwrap().len(), tokens, "{name}");
        assert_eq!(file.metadata.i32s("tokenizer.ggml.token_type").unwrap().len(), tokens, "{name}");
        let found = file.metadata.optional_strings("tokenizer.ggml.merges").unwrap();
        assert_eq!(found.map(<[String]>::len), merges, "{name}");
    }
}
