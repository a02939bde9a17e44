//! Tests of GGUF files of networks of experts with wrong keys or stacked tensors: loading does not panic or allocate
//! memory for missing data, an error is one line that names the file, and an accepted file can be run.
//!
//! The files are golden networks, in which a few keys of experts get other values and a few tensors get other shapes or
//! are removed. The bytes of the format itself are tested in `foretoken-weights`.

use std::time::{Duration, Instant};

use foretoken_model::{Checkpoint, Model, Options};
use foretoken_testkit::rows::Numbers;
use proptest::prelude::*;

use crate::experts::{gguf_of, sigmoid_in_groups};
use crate::files::Gguf;

/// Golden networks and their architectures.
const NETWORKS: [(&str, &str); 5] = [
    ("qwen2_moe", "qwen2moe"),
    ("qwen3_moe", "qwen3moe"),
    ("olmoe", "olmoe"),
    ("glm4_moe-groups", "glm4moe"),
    ("ernie4_5_moe", "ernie4_5-moe"),
];

/// Keys that affect experts.
const KEYS: [&str; 15] = [
    "expert_count",
    "expert_used_count",
    "expert_shared_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "feed_forward_length",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "leading_dense_block_count",
    "interleave_moe_layer_step",
    "nextn_predict_layers",
    "block_count",
];

const COUNTS: [usize; 18] =
    [0, 1, 2, 3, 4, 6, 7, 8, 9, 16, 64, 65_535, 65_537, 1 << 20, 1 << 24, (1 << 24) + 1, 1 << 31, u32::MAX as usize];

/// The file of a network, with gate and up of experts in one tensor if `fused`.
fn file_of(network: usize, fused: bool) -> (Gguf, &'static str) {
    let (name, architecture) = NETWORKS[network];
    let keys = if name == "glm4_moe-groups" { sigmoid_in_groups() } else { Vec::new() };
    (gguf_of((name, fused), architecture, &keys), architecture)
}

/// The file with another value of a key, perhaps of a wrong type.
fn with_key(file: Gguf, key: &str, numbers: &mut Numbers) -> Gguf {
    let file = file.without(key);
    let count = COUNTS[numbers.below(COUNTS.len())];
    match numbers.below(8) {
        0 => file,
        1 => file.f32(key, [0.0, -1.5, 1e-38, 3e38, f32::NAN, f32::INFINITY][numbers.below(6)]),
        2 => file.bool(key, numbers.below(2) == 0),
        3 => file.str(key, "softmax"),
        4 => file.u32s(key, &[count; 3]),
        _ => file.u32(key, count),
    }
}

/// The file with another shape of a tensor and the number of bytes that it needs, or without the tensor.
fn with_shape(file: Gguf, name: &str, numbers: &mut Numbers) -> Gguf {
    let Some(mut shape) = file.shape(name) else { return file };
    let at = numbers.below(shape.len());
    match numbers.below(7) {
        0 => return file.without_tensor(name),
        1 => shape[at] += 1,
        2 => shape[at] = shape[at].saturating_sub(1),
        3 => shape[at] = 0,
        4 => shape.reverse(),
        5 => shape = vec![shape.iter().product()],
        _ => shape.insert(0, 1),
    }
    file.with_shape(name, &shape)
}

/// Loads and runs a file; returns whether it was accepted.
fn is_accepted(file: &Gguf, what: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("probe.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    let load = |checkpoint| Model::load(&checkpoint, Options::for_positions(32, 1), &mut |_, _| ());
    let start = Instant::now();
    let found = Checkpoint::open(&path).and_then(load);
    let accepted = found.is_ok();
    match found {
        Ok(mut model) => assert!(!crate::logits(&mut model, &[1, 2, 3], &[3]).is_empty(), "{what}"),
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains("probe.gguf"), "{what}: does not name the file: {message}");
            assert!(!message.contains(char::is_control) && message.len() < 800, "{what}: not one line: {message}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{what}: it took {:?}", start.elapsed());
    accepted
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn keys_and_shapes_of_experts_never_panic(seed: u64) {
        let mut numbers = Numbers::new(seed);
        let (mut file, architecture) = file_of(numbers.below(NETWORKS.len()), numbers.below(3) == 0);
        let mut what = architecture.to_string();
        for _ in 0..1 + numbers.below(3) {
            if numbers.below(3) > 0 {
                let key = KEYS[numbers.below(KEYS.len())];
                file = with_key(file, &format!("{architecture}.{key}"), &mut numbers);
                what += &format!(", {key}");
            } else {
                let of_experts: Vec<String> = file.names().filter(|name| name.contains("exp") || name.contains("inp"))
                    .map(str::to_string).collect();
                let Some(name) = of_experts.get(numbers.below(of_experts.len().max(1))) else { continue };
                file = with_shape(file, name, &mut numbers);
                what += &format!(", {name}");
            }
        }
        is_accepted(&file, &what);
    }
}

/// Tries each key alone with each edge value, without random choices.
#[test]
fn edge_values_of_counts_never_panic() {
    for network in 0..NETWORKS.len() {
        for key in KEYS {
            let mut accepted = 0;
            for count in COUNTS {
                let (file, architecture) = file_of(network, false);
                let name = format!("{architecture}.{key}");
                let file = file.without(&name).u32(&name, count);
                accepted += usize::from(is_accepted(&file, &format!("{name} = {count}")));
            }
            // A count of parts of the file has at most one right value, and perhaps 0, which means that it is unset.
            if ["expert_count", "expert_feed_forward_length", "block_count"].contains(&key) {
                assert!(accepted <= 2, "{network}: {accepted} values of {key}");
            }
        }
    }
}

/// A width without a key is that of the tensors, and may not be 0.
#[test]
fn experts_of_no_width_are_refused() {
    for name in ["ffn_down_exps", "ffn_down_shexp"] {
        let (file, _) = file_of(0, false);
        let mut file = file.without("qwen2moe.expert_feed_forward_length");
        for layer in [0, 2] {
            let tensor = format!("blk.{layer}.{name}.weight");
            let mut shape = file.shape(&tensor).expect("a layer with experts");
            *shape.last_mut().expect("three dimensions") = 0;
            file = file.with_shape(&tensor, &shape);
        }
        assert!(!is_accepted(&file, name), "{name} of no width");
    }
}
