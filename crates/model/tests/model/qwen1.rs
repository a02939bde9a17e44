//! Tests of what Qwen 1 does in texts longer than its trained length: queries that grow with their position, and a
//! rotation that is slower each time the length doubles. The golden network `qwen-long` is trained for 48 tokens; its
//! logits, for 96, hold both to the definition, and these tests hold each to its limits.

use foretoken_model::spec::QueryGrowth;
use foretoken_model::{CacheType, Checkpoint, Model, Options};
use foretoken_weights::Bytes;
use serde_json::{Value, json};

use crate::files::{Form, config, read, safetensors_file};
use crate::{fixture, logits};

/// The trained length of the golden network.
const TRAINED: usize = 48;
const VOCABULARY: usize = 64;

/// Logits `[96, 64]` of the golden network with other fields, opened for texts of `context` tokens.
fn logits_with(changes: &Value, context: usize) -> Vec<f32> {
    let mut config = config(&fixture("qwen-long"));
    for (field, value) in changes.as_object().unwrap() {
        config[field] = value.clone();
    }
    let file = Bytes::from_vec(safetensors_file(&read(&fixture("qwen-long")), Form::F32, 0));
    let checkpoint = Checkpoint::from_parts("test", config.to_string().as_bytes(), file).unwrap();
    let options = Options { context: Some(context), ..Options::for_positions(128, 1).with_cache(CacheType::F32) };
    let mut model = Model::load(&checkpoint, options, &mut |_, _| ()).unwrap();
    let tokens: Vec<u32> = (0..96u32).map(|i| (i * 37 + 5) % VOCABULARY as u32).collect();
    logits(&mut model, &tokens, &[tokens.len()])
}

/// The number of rows before the first that differs.
fn equal_rows(a: &[f32], b: &[f32]) -> usize {
    a.chunks(VOCABULARY).zip(b.chunks(VOCABULARY)).take_while(|(a, b)| a == b).count()
}

#[test]
fn queries_grow_from_the_first_token_beyond_the_trained_length() {
    let plain = logits_with(&json!({"use_logn_attn": false, "use_dynamic_ntk": false}), 96);
    let grown = logits_with(&json!({"use_logn_attn": true, "use_dynamic_ntk": false}), 96);
    assert_eq!(equal_rows(&plain, &grown), TRAINED);
    let growth = QueryGrowth::Logarithm { trained: TRAINED };
    assert_eq!([0, 1, 46, 47].map(|position| growth.at(position)), [1.0; 4]);
    assert!([(48, 1.00533), (95, 1.17905)].iter().all(|(p, factor)| (growth.at(*p) - factor).abs() < 1e-5));
    // Where no text can be longer than the trained length, nothing grows.
    let within = json!({"seq_length": 512});
    assert_eq!(equal_rows(&logits_with(&within, 96), &plain), 96);
}

#[test]
fn the_rotation_changes_each_time_the_context_doubles() {
    let of = |context: usize| logits_with(&json!({"use_logn_attn": false}), context);
    let plain = logits_with(&json!({"use_logn_attn": false, "use_dynamic_ntk": false}), 400);
    let [within, twice, four_times] = [TRAINED, 2 * TRAINED, 4 * TRAINED].map(of);
    assert!(within == plain && of(1) == plain);
    assert!(of(TRAINED + 1) == twice && of(2 * TRAINED + 1) == four_times);
    // The first row has nothing to compare positions with.
    assert_eq!([equal_rows(&within, &twice), equal_rows(&twice, &four_times)], [1, 1]);
    // Qwen's base for 2 and for 4 times the length is that of dynamic scaling by 2: it grows by 3 and by 7.
    for (times, grown) in [(2, 3.0f64), (4, 7.0)] {
        let base = 10_000.0 * grown.powf(8.0 / 6.0);
        let fixed = json!({"use_logn_attn": false, "use_dynamic_ntk": false, "rotary_emb_base": base});
        let largest = plain.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let (found, expected) = (of(times * TRAINED), logits_with(&fixed, 96));
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-5 * largest), "{times} times");
    }
}
