//! Tests of bad GGUF files: each is refused by its key or tensor, like configurations (`bad_input.rs`).

use std::time::Instant;

use foretoken_model::{Checkpoint, Model, Options};

use crate::bad_input::assert_error;
use crate::files::{Form, Gguf, Wide};

/// A small GGUF file with valid keys, one of which may be changed.
fn gguf(change: impl Fn(&str) -> Option<Option<f32>>) -> Gguf {
    let integers = [
        ("llama.block_count", 1),
        ("llama.context_length", 64),
        ("llama.embedding_length", 8),
        ("llama.feed_forward_length", 8),
        ("llama.attention.head_count", 2),
    ];
    let mut gguf = Gguf::default().str("general.architecture", "llama");
    for (key, value) in integers {
        gguf = match change(key) {
            None => gguf.u32(key, value),
            Some(Some(other)) => gguf.u32(key, other as usize),
            Some(None) => gguf,
        };
    }
    for (key, value) in [("llama.attention.layer_norm_rms_epsilon", 1e-6), ("llama.rope.freq_base", 1e4)] {
        gguf = match change(key) {
            None => gguf.f32(key, value),
            Some(Some(other)) => gguf.f32(key, other),
            Some(None) => gguf,
        };
    }
    gguf.tensor("token_embd.weight", &Wide { shape: vec![16, 8], elements: vec![0.5; 128] }, Form::F32)
}

/// Asserts that loading a file fails, soon, with a message that has these parts; the file is called `bad.gguf`.
fn assert_refused(gguf: Gguf, parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.gguf");
    std::fs::write(&path, gguf.bytes()).unwrap();
    let load = |checkpoint| Model::load(&checkpoint, Options::for_positions(32, 1), &mut |_, _| ());
    let start = Instant::now();
    assert_error(Checkpoint::open(&path).and_then(load), parts, start);
}

#[test]
fn gguf_files_that_cannot_be_run_are_refused() {
    let refused = |gguf: Gguf, parts: &[&str]| assert_refused(gguf, &[&["bad.gguf"], parts].concat());
    let with = |field: &'static str, value: Option<f32>| gguf(move |key| (key == field).then_some(value));
    refused(gguf(|_| None), &["expected tensor `blk.0.attn_norm.weight`"]);
    for key in ["llama.block_count", "llama.embedding_length", "llama.attention.layer_norm_rms_epsilon"] {
        refused(with(key, None), &[key, "no such key"]);
    }
    refused(with("llama.attention.head_count", Some(3.0)), &["llama.embedding_length", "a multiple of", "found 8"]);
    refused(with("llama.attention.head_count", Some(0.0)), &["llama.attention.head_count", "found 0"]);
    refused(with("llama.block_count", Some(4e9)), &["llama.block_count", "from 1 to"]);
    refused(with("llama.embedding_length", Some(1e9)), &["llama.embedding_length", "from 1 to"]);
    refused(with("llama.embedding_length", Some((1 << 24) as f32)), &["width of heads"]);
    refused(with("llama.rope.freq_base", Some(f32::NAN)), &["llama.rope.freq_base", "above 0", "NaN"]);
    refused(with("llama.attention.layer_norm_rms_epsilon", Some(f32::NAN)), &["layer_norm_rms_epsilon", "NaN"]);
    refused(Gguf::default(), &["general.architecture", "no such key"]);
    refused(
        Gguf::default().str("general.architecture", "mamba"),
        &["general.architecture", "llama, gpt2", "\"mamba\""],
    );
    let experts = |chosen: usize| {
        let file = gguf(|_| None).u32("llama.expert_count", 8);
        if chosen > 0 { file.u32("llama.expert_used_count", chosen) } else { file }
    };
    refused(experts(0), &["llama.expert_used_count", "a number above 0", "none"]);
    refused(experts(9), &["llama.expert_used_count", "at most llama.expert_count, 8", "9"]);
    refused(experts(2), &["llama.expert_count", "0 (a dense network)", "8"]);
    let router = Wide { shape: vec![8, 8], elements: vec![0.5; 64] };
    let routed = || experts(5).tensor("blk.0.ffn_gate_inp.weight", &router, Form::F32);
    refused(routed().u32("llama.expert_gating_func", 4), &["llama.expert_gating_func", "2 (sigmoid)", "found 4"]);
    let corrections = Wide { shape: vec![8], elements: vec![0.5; 8] };
    let corrected =
        routed().u32("llama.expert_gating_func", 3).tensor("blk.0.exp_probs_b.bias", &corrections, Form::F32);
    refused(corrected, &["llama.expert_gating_func", "another than 3", "exp_probs_b", "found 3"]);
    refused(
        gguf(|_| None).u32("llama.expert_count", 5000).u32("llama.expert_used_count", 2),
        &["at most 4096", "5000"],
    );
    let groups =
        |count, chosen| routed().u32("llama.expert_group_count", count).u32("llama.expert_group_used_count", chosen);
    refused(groups(3, 1), &["llama.expert_group_count", "groups of one size", "llama.expert_count, 8", "found 3"]);
    refused(groups(4, 0), &["llama.expert_group_used_count", "from 1 to llama.expert_group_count, 4", "found 0"]);
    refused(groups(4, 2), &["llama.expert_group_used_count", "at least the 5 experts", "found 2"]);
    refused(groups(2, 2), &["expected tensor `blk.0.attn_norm.weight`"]);
    refused(gguf(|_| None).u32("llama.rope.dimension_count", 3), &["llama.rope.dimension_count", "even", "3"]);
    refused(gguf(|_| None).u32("llama.attention.head_count_kv", 0), &["head_count_kv", "found 0"]);
    refused(gguf(|_| None).u32("llama.attention.value_length", 2), &["value_length", "the key length, 4", "2"]);
    for divisor in [0.0, f32::NAN] {
        let divisors = Wide { shape: vec![2], elements: vec![1.0, divisor] };
        let file = gguf(|_| None).tensor("rope_freqs.weight", &divisors, Form::F32);
        refused(file, &["rope_freqs.weight", "finite numbers above 0", &divisor.to_string()]);
    }
    refused(gguf(|_| None).str("llama.rope.scaling.type", "su"), &["llama.rope.scaling.type", "none, linear", "su"]);
}

/// Files of Qwen 1 say the width of gate and up together.
#[test]
fn an_odd_feed_forward_width_of_qwen_1_is_refused() {
    let numbers = [("block_count", 1), ("context_length", 64), ("embedding_length", 8), ("attention.head_count", 2)];
    let file = |width: usize| {
        let named = Gguf::default().str("general.architecture", "qwen").u32("qwen.feed_forward_length", width);
        let file = numbers.into_iter().fold(named, |file, (key, number)| file.u32(&format!("qwen.{key}"), number));
        let embedding = Wide { shape: vec![16, 8], elements: vec![0.5; 128] };
        file.f32("qwen.attention.layer_norm_rms_epsilon", 1e-6).tensor("token_embd.weight", &embedding, Form::F32)
    };
    assert_refused(
        file(9),
        &["bad.gguf: qwen.feed_forward_length", "an even number (gate and up together)", "found 9"],
    );
    assert_refused(file(16), &["bad.gguf", "expected tensor `blk.0.attn_norm.weight`"]);
}
