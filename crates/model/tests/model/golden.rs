//! Tests that compare logits and greedy continuations with those of transformers, for small random networks of each
//! family; for families that transformers has no class for, with those of llama.cpp.
//!
//! The fixtures hold f32 weights, the tokens, the logits of every row and 48 greedy tokens. The bound is 1e-5 of the
//! largest logit, far above the rounding of either program and far below the effect of a wrong activation.

use std::path::{Path, PathBuf};

use foretoken_model::{CacheType, Model, Options};
use foretoken_weights::safetensors;

use crate::{fixture, load_with, logits, open_source, score};

/// The beginnings of the names of golden folders with tests of their own: quantized checkpoints are compared with their
/// own weights (`quantized.rs`), and heads read hidden states.
const OTHERS: [&str; 3] = ["quantized-", "eagle3-", "medusa-"];

/// The names of the other golden folders, in alphabetical order, so that every test finds a new folder.
pub(crate) fn goldens() -> Vec<String> {
    let folders = std::fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap());
    let names = folders.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !OTHERS.iter().any(|other| name.starts_with(other))).collect();
    names.sort();
    names
}

#[test]
fn every_golden_folder_is_compared() {
    let found = goldens().len();
    assert!(found >= 83, "expected at least 83 golden networks, found {found}");
}

fn floats(weights: &foretoken_weights::Weights, name: &str) -> Vec<f32> {
    let bytes = &weights.get(name).unwrap_or_else(|| panic!("golden tensor {name}")).bytes;
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn tokens(weights: &foretoken_weights::Weights, name: &str) -> Vec<u32> {
    let bytes = &weights.get(name).unwrap_or_else(|| panic!("golden tensor {name}")).bytes;
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}

/// The greedy continuation of `tokens` up to `len` tokens in all, one row at a time.
fn greedy(model: &mut Model, tokens: &[u32], len: usize) -> Vec<u32> {
    let mut tokens = tokens.to_vec();
    while tokens.len() < len {
        let all = score(model, &tokens, &[tokens.len()]);
        let vocabulary = all.len() / tokens.len();
        tokens.push(argmax(&all[all.len() - vocabulary..]));
    }
    tokens
}

/// Compares the golden logits and greedy text of a folder with those of its checkpoint.
fn check(folder: &Path) {
    compare(folder, folder, 1e-5);
}

/// Compares them with those of any checkpoint of the network; `bound` is the allowed error relative to the largest
/// logit.
fn compare(folder: &Path, checkpoint: &Path, bound: f32) {
    let golden = safetensors::open(folder.join("golden.safetensors")).unwrap();
    let (prompt, expected) = (tokens(&golden, "tokens"), floats(&golden, "logits"));
    // Some rotary embeddings choose their frequencies by the longest sequence.
    let context = golden.get("context").map(|_| tokens(&golden, "context")[0] as usize);
    let options = Options { context, ..Options::for_positions(256, 2).with_cache(CacheType::F32) };
    let mut model = load_with(checkpoint, options);
    if golden.get("source").is_some() {
        open_source(&mut model, 0, &tokens(&golden, "source"), 0);
    }
    let found = score(&mut model, &prompt, &[prompt.len()]);
    let largest = expected.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
    let worst = found.iter().zip(&expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert_eq!(found.len(), expected.len());
    println!("{}: largest difference {:.1e} of the largest logit", checkpoint.display(), worst / largest);
    assert!(worst <= bound * largest, "{}: off by {worst}, the largest logit is {largest}", checkpoint.display());
    if bound > 1e-5 {
        return;
    }
    let expected = tokens(&golden, "greedy");
    assert_eq!(greedy(&mut model, &prompt[..16], expected.len()), expected, "{}: greedy", checkpoint.display());
}

#[test]
fn logits_and_greedy_text_are_those_of_the_goldens() {
    let fails = |name: &String| std::panic::catch_unwind(|| check(&fixture(name))).is_err();
    let failed: Vec<String> = goldens().into_iter().filter(fails).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

/// The errors of a network's logits, relative to the largest, compared with a cache without rounding: with this type of
/// keys and with this type of values, for 200 positions of a trained network in one pass.
fn error_of(kind: CacheType) -> [f32; 2] {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo-draft"));
    let plain = Options::for_positions(200, 2).with_cache(CacheType::F32);
    let logits_with = |options: Options| {
        let mut model = load_with(&path, options);
        let tokens: Vec<u32> = (0..200).map(|i| (i * 37 % 500) as u32).collect();
        logits(&mut model, &tokens, &[200])
    };
    let expected = logits_with(plain);
    let largest = expected.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
    [Options { key_type: kind, ..plain }, Options { value_type: kind, ..plain }].map(|options| {
        let found = logits_with(options);
        found.iter().zip(&expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs())) / largest
    })
}

/// Each type of the cache has an error according to its rounding: 11 bits, 8 bits, and 7 bits of the largest of 32. The
/// table has the measured errors, twice of which are allowed; an error of 0 would mean that the type is not in use.
#[test]
fn the_error_of_a_narrow_cache_is_that_of_its_rounding() {
    assert_eq!(error_of(CacheType::F32), [0.0, 0.0]);
    let table =
        [(CacheType::F16, [1.4e-4, 8.1e-5]), (CacheType::BF16, [1.7e-3, 6.9e-4]), (CacheType::Q8_0, [5.1e-3, 2.6e-3])];
    for (kind, measured) in table {
        let found = error_of(kind);
        println!("{kind:?}: keys {:.1e}, values {:.1e} of the largest logit", found[0], found[1]);
        for (found, measured) in found.into_iter().zip(measured) {
            assert!(found > 0.0 && found <= 2.0 * measured, "{kind:?}: {found:e}, measured {measured:e}");
        }
    }
}

/// More goldens, from a folder of such folders: `FORETOKEN_GOLDEN=DIR cargo test -p foretoken-model`.
#[test]
fn goldens_of_a_given_folder() {
    let Some(folder) = std::env::var_os("FORETOKEN_GOLDEN") else {
        println!("skipped: FORETOKEN_GOLDEN is not set");
        return;
    };
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check(&path);
        }
    }
}

/// Golden networks that no GGUF file expresses completely: the file lacks a window, the pattern of layers, the scale of
/// scores, a scaling of rotations, the distance of the last bucket, or the width of the feed-forward network; or the
/// converter does not support the family.
const INCOMPLETE_IN_GGUF: [&str; 34] = [
    "bloom",
    "codegen",
    "cohere2",
    "dynamic-rope-above",
    "ernie4_5_moe-least",
    "falcon",
    "falcon-11b",
    "falcon-new",
    "falcon-rw",
    "gemma2",
    "gemma3",
    "glm",
    "gpt2",
    "gpt_bigcode",
    "gpt_bigcode-multi-head",
    "gpt_oss",
    "gptj",
    "longrope",
    "ministral",
    "mistral",
    "mt5",
    "olmoe",
    "opt",
    "opt-350m",
    "phi",
    "phi-qk-norm",
    "phi3",
    "qwen2-window",
    "qwen2_moe",
    "qwen3_moe",
    "smollm3",
    "stablelm-parallel",
    "starcoder2-window",
    "t5-v1_1",
];

/// Goldens as llama.cpp's converter writes them (`bench/peers/golden_gguf.py`), one `NAME.gguf` each:
/// `FORETOKEN_GOLDEN_GGUF=DIR cargo test -p foretoken-model`. The folders are in `FORETOKEN_GOLDEN` if that is set:
/// those that `golden.py --gguf` makes, whose networks files express completely.
#[test]
fn goldens_as_gguf_of_a_given_folder() {
    let Some(folder) = std::env::var_os("FORETOKEN_GOLDEN_GGUF") else {
        println!("skipped: FORETOKEN_GOLDEN_GGUF is not set");
        return;
    };
    let given = std::env::var_os("FORETOKEN_GOLDEN").map(PathBuf::from);
    let mut failed = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if given.is_none() && INCOMPLETE_IN_GGUF.contains(&&*name) {
            println!("{name}: not compared, GGUF does not express it completely");
            continue;
        }
        let folder = given.as_ref().map_or_else(|| fixture(&name), |given| given.join(&name));
        // llama.cpp computes the GELU of two architectures by tanh.
        let tanh = name.starts_with("gpt_neox") || name.starts_with("falcon");
        if std::panic::catch_unwind(|| compare(&folder, &path, if tanh { 1e-3 } else { 1e-5 })).is_err() {
            failed.push(path);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
