//! Logits and greedy continuations as transformers computed them, for small random networks of each family.
//!
//! The fixtures hold f32 weights, the tokens, the logits of every row and 48 greedy tokens. The bound is 1e-4 of
//! the largest logit: far above the rounding of either side, far below what a wrong activation does.

use foretoken_model::Model;
use foretoken_weights::safetensors;

use crate::{fixture, load, logits};

const FAMILIES: [&str; 6] = ["llama", "llama-tied", "llama-biased", "llama3-rope", "linear-rope", "gpt2"];

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
        let all = logits(model, &tokens, &[tokens.len()]);
        let vocabulary = all.len() / tokens.len();
        tokens.push(argmax(&all[all.len() - vocabulary..]));
    }
    tokens
}

fn check(folder: &std::path::Path) {
    let golden = safetensors::open(folder.join("golden.safetensors")).unwrap();
    let (prompt, expected) = (tokens(&golden, "tokens"), floats(&golden, "logits"));
    let mut model = load(folder, 256, 2);
    let found = logits(&mut model, &prompt, &[prompt.len()]);
    let largest = expected.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
    let worst = found.iter().zip(&expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert_eq!(found.len(), expected.len());
    println!("{}: largest difference {:.1e} of the largest logit", folder.display(), worst / largest);
    assert!(worst <= 1e-4 * largest, "{}: off by {worst}, the largest logit is {largest}", folder.display());
    let expected = tokens(&golden, "greedy");
    assert_eq!(greedy(&mut model, &prompt[..16], expected.len()), expected, "{}: greedy", folder.display());
}

#[test]
fn logits_and_greedy_text_are_those_of_transformers() {
    for family in FAMILIES {
        check(&fixture(family));
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
