//! Tests of bad checkpoints: an error is one line that names the file, the field or tensor, what was expected and what
//! was found; and no file makes the loader panic or allocate memory for data that it does not have.

use std::path::Path;
use std::time::{Duration, Instant};

use foretoken_model::{CacheType, Checkpoint, Model, ModelError, Options};
use foretoken_testkit::rows::Numbers;
use foretoken_weights::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::files::{Form, Tensors, config, read, safetensors_file};
use crate::fixture;
use crate::golden::goldens;

fn load(config: &[u8], file: Vec<u8>) -> Result<Model, ModelError> {
    let checkpoint = Checkpoint::from_parts("test", config, Bytes::from_vec(file))?;
    Model::load(&checkpoint, Options::for_positions(32, 1), &mut |_, _| ())
}

/// Asserts that the result is an error of one line that contains all of `parts`, within a few seconds.
#[track_caller]
pub(crate) fn assert_error(result: Result<Model, ModelError>, parts: &[&str], start: Instant) {
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
    let message = match result {
        Ok(_) => panic!("loaded, instead of an error with {parts:?}"),
        Err(error) => error.to_string(),
    };
    println!("{message}");
    assert!(!message.contains('\n') && message.len() < 800, "not one line: {message}");
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

/// Asserts that a fixture with these fields (null removes one) is refused with a message that contains `parts`.
#[track_caller]
pub(crate) fn refused(family: &str, changes: Value, parts: &[&str]) {
    let mut config = config(&fixture(family));
    for (field, value) in changes.as_object().unwrap() {
        config[field] = value.clone();
    }
    let file = safetensors_file(&read(&fixture(family)), Form::F32, 0);
    let start = Instant::now();
    assert_error(load(config.to_string().as_bytes(), file), parts, start);
}

/// Asserts that a fixture with changed tensors is refused.
#[track_caller]
pub(crate) fn refused_tensors(family: &str, change: impl FnOnce(&mut Tensors), parts: &[&str]) {
    let mut tensors = read(&fixture(family));
    change(&mut tensors);
    let file = safetensors_file(&tensors, Form::F32, 0);
    assert_error(load(config(&fixture(family)).to_string().as_bytes(), file), parts, Instant::now());
}

pub(crate) const FILE: &str = "test/config.json: ";

#[test]
fn missing_and_malformed_files_are_refused() {
    let empty = tempfile::tempdir().unwrap();
    let open = |path: &Path| Checkpoint::open(path).map(|_| unreachable!("opened {}", path.display()));
    assert_error(open(empty.path()), &["config.json", "cannot be read"], Instant::now());
    std::fs::copy(fixture("llama").join("config.json"), empty.path().join("config.json")).unwrap();
    assert_error(open(empty.path()), &["expected model.safetensors"], Instant::now());
    assert_error(open(&empty.path().join("model.gguf")), &["model.gguf"], Instant::now());

    let text = std::fs::read(fixture("llama").join("config.json")).unwrap();
    let file = || safetensors_file(&read(&fixture("llama")), Form::F32, 0);
    for end in [0, 1, text.len() / 2, text.len() - 2] {
        assert_error(load(&text[..end], file()), &[FILE, "expected JSON"], Instant::now());
    }
    assert_error(load(b"[1, 2]", file()), &[FILE, "expected a JSON object", "an array of 2"], Instant::now());
    assert_error(load(b"\xff\xfe", file()), &[FILE, "JSON"], Instant::now());
    let cut = file().split_off(1000);
    assert_error(load(&text, cut), &["test/model.safetensors"], Instant::now());
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_error(load(nested.as_bytes(), file()), &[FILE, "recursion"], Instant::now());
}

#[test]
fn missing_fields_are_refused() {
    let llama = ["hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size"];
    for field in llama {
        refused("llama", json!({ field: null }), &[FILE, field, "expected a whole number", "found nothing"]);
    }
    for field in ["n_embd", "n_head", "n_layer", "vocab_size"] {
        refused("gpt2", json!({ field: null }), &[FILE, field, "expected a whole number", "found nothing"]);
    }
    refused("llama", json!({"model_type": null}), &[FILE, "model_type", "one of llama, gpt2", "found nothing"]);
    for field in ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"] {
        let mut rope = config(&fixture("llama3-rope"))["rope_parameters"].clone();
        rope[field] = Value::Null;
        let named = format!("rope_parameters.{field}");
        refused("llama3-rope", json!({"rope_parameters": rope}), &[FILE, &named, "found nothing"]);
    }
}

#[test]
fn fields_of_the_wrong_type_are_refused() {
    for wrong in [json!("32"), json!(32.5), json!(-32), json!(true), json!([32]), json!({}), json!(1e40)] {
        refused("llama", json!({"hidden_size": wrong}), &[FILE, "hidden_size", "expected a whole number"]);
        refused("gpt2", json!({"n_inner": wrong}), &[FILE, "n_inner", "expected a whole number"]);
    }
    refused("llama", json!({"rms_norm_eps": "small"}), &[FILE, "rms_norm_eps", "a finite number", "\"small\""]);
    refused("llama", json!({"rms_norm_eps": 1e300}), &[FILE, "rms_norm_eps", "a finite number", "1e+300"]);
    refused("llama", json!({"rms_norm_eps": -1.0}), &[FILE, "rms_norm_eps", "at least 0", "-1"]);
    refused("llama", json!({"tie_word_embeddings": 1}), &[FILE, "tie_word_embeddings", "true or false", "1"]);
    refused("llama", json!({"rope_parameters": 7}), &[FILE, "rope_parameters", "an object", "7"]);
    refused("llama", json!({"model_type": 7}), &[FILE, "model_type", "a string", "7"]);
    refused("llama", json!({"attention_bias": "no"}), &[FILE, "attention_bias", "true or false"]);
    refused("llama", json!({"hidden_act": {}}), &[FILE, "hidden_act", "a string", "an object"]);
}

#[test]
fn unsupported_values_are_refused_by_field() {
    refused("llama", json!({"model_type": "mamba"}), &[FILE, "model_type", "one of llama, gpt2", "\"mamba\""]);
    refused("llama", json!({"model_type": "a\nb".repeat(1000)}), &[FILE, "model_type"]);
    refused("llama", json!({"hidden_act": "tanh"}), &[FILE, "hidden_act", "silu", "\"tanh\""]);
    refused("gpt2", json!({"activation_function": "tanh"}), &[FILE, "activation_function", "gelu_new", "\"tanh\""]);
    refused("gpt2", json!({"add_cross_attention": true}), &[FILE, "add_cross_attention", "false"]);
    refused("gpt2", json!({"scale_attn_by_inverse_layer_idx": true}), &[FILE, "scale_attn_by_inverse_layer_idx"]);
    refused("llama", json!({"partial_rotary_factor": 0.5}), &[FILE, "partial_rotary_factor", "0.5"]);
    for family in ["llama", "gpt2"] {
        let quantization = json!({"quantization_config": {"quant_method": "gptq", "bits": 3}});
        refused(family, quantization, &[FILE, "quantization_config.bits: expected 4, found 3"]);
    }
    for kind in ["proportional", "mrope", ""] {
        let parts = [FILE, "rope_parameters.rope_type", "one of default, linear, llama3", &format!("{kind:?}")];
        refused("llama", json!({"rope_parameters": {"rope_type": kind, "factor": 2.0}}), &parts);
        let older = json!({"rope_parameters": null, "rope_scaling": {"type": kind, "factor": 2.0}});
        refused("llama", older, &[FILE, "rope_scaling.type", "one of default, linear, llama3"]);
    }
}

#[test]
fn impossible_numbers_are_refused() {
    for (field, zero) in [("num_hidden_layers", 0), ("num_attention_heads", 0), ("hidden_size", 0), ("vocab_size", 0)] {
        refused("llama", json!({ field: zero }), &[FILE, field, "a number from 1", "found 0"]);
    }
    refused("llama", json!({"num_key_value_heads": 0}), &[FILE, "num_key_value_heads", "found 0"]);
    refused("llama", json!({"num_key_value_heads": 3}), &[FILE, "num_key_value_heads", "a divisor of", "4", "found 3"]);
    let odd = json!({"head_dim": null, "hidden_size": 33});
    refused("llama", odd, &[FILE, "hidden_size", "a multiple of num_attention_heads = 4", "33"]);
    refused("llama", json!({"head_dim": 7}), &[FILE, "head_dim", "an even number", "7"]);
    refused("gpt2", json!({"n_embd": 33}), &[FILE, "n_embd", "a multiple of n_head = 4", "33"]);
    for theta in [0.0, -1.0, 1e-60] {
        let parts = [FILE, "rope_parameters.rope_theta", "a number above 0"];
        refused("llama", json!({"rope_parameters": {"rope_theta": theta}}), &parts);
    }
    refused(
        "linear-rope",
        json!({"rope_parameters": {"rope_type": "linear", "factor": 0}}),
        &[FILE, "factor", "above 0"],
    );
    let mut rope = config(&fixture("llama3-rope"))["rope_parameters"].clone();
    rope["high_freq_factor"] = json!(0.5);
    refused("llama3-rope", json!({"rope_parameters": rope}), &[FILE, "high_freq_factor", "above low_freq_factor = 1"]);
}

/// A configuration may contain any number; data that is not in the file takes neither memory nor time.
#[test]
fn absurd_numbers_fail_at_once() {
    let fields = [
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "num_hidden_layers",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "head_dim",
    ];
    for field in fields {
        for number in [json!(10u64.pow(18)), json!(u64::MAX)] {
            refused("llama", json!({ field: number }), &[FILE, field, "from 1 to"]);
        }
    }
    refused("llama", json!({"num_hidden_layers": 1_000_000}), &["test/model.safetensors", "model.layers.2."]);
    refused("gpt2", json!({"n_layer": 1_000_000}), &["test/model.safetensors", "transformer.h.2."]);
    let wide = json!({"hidden_size": 1 << 24, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": null});
    refused("llama", wide, &[FILE, "hidden_size / num_attention_heads", "width of heads"]);
    let largest = json!({"hidden_size": 1 << 24, "num_attention_heads": 1 << 24, "num_key_value_heads": 1 << 24,
        "head_dim": 1 << 12, "intermediate_size": 1 << 24, "vocab_size": 1 << 24, "num_hidden_layers": 1 << 24});
    refused("llama", largest, &["test/model.safetensors", "tensor"]);
    let largest =
        json!({"n_embd": 1 << 24, "n_head": 1 << 20, "n_inner": 1 << 24, "vocab_size": 1 << 24, "n_layer": 1 << 24});
    refused("gpt2", largest, &["test/model.safetensors", "tensor"]);
}

#[test]
fn a_cache_beyond_the_memory_is_refused() {
    let checkpoint = Checkpoint::open(&fixture("llama")).unwrap();
    for pages in [1 << 40, usize::MAX] {
        let options = Options { pages, ..Options::for_positions(1, 1) };
        let start = Instant::now();
        let result = Model::load(&checkpoint, options, &mut |_, _| ());
        assert_error(result, &["llama: cache: expected memory for", "positions of", "bytes each, found less"], start);
    }
}

/// Heads of 8 cannot be cut into blocks of 32.
#[test]
fn a_cache_type_that_does_not_fit_the_heads_is_refused() {
    let checkpoint = Checkpoint::open(&fixture("llama")).unwrap();
    let plain = Options::for_positions(32, 1);
    let keys = Options { key_type: CacheType::Q8_0, ..plain };
    let values = Options { value_type: CacheType::Q8_0, ..plain };
    for (options, option) in [(keys, "key_type q8_0"), (values, "value_type q8_0")] {
        let start = Instant::now();
        let result = Model::load(&checkpoint, options, &mut |_, _| ());
        assert_error(result, &["llama", option, "a multiple of 32", "found a width of 8"], start);
    }
}

#[test]
fn tensors_that_contradict_the_configuration_are_refused() {
    let names: Vec<String> = read(&fixture("llama")).into_keys().chain(read(&fixture("gpt2")).into_keys()).collect();
    for name in names {
        let family = if name.starts_with("transformer.") { "gpt2" } else { "llama" };
        let gone = |tensors: &mut Tensors| assert!(tensors.remove(&name).is_some());
        // Without the embedding under its prefix, the reader expects names without the prefix.
        let parts = if name.contains("embed_tokens") || name.contains("wte") {
            vec!["test/model.safetensors", "expected tensor"]
        } else {
            vec!["test/model.safetensors", name.as_str(), "expected tensor"]
        };
        refused_tensors(family, gone, &parts);
        let grown = |tensors: &mut Tensors| {
            let tensor = tensors.get_mut(&name).unwrap();
            tensor.shape[0] += 1;
            tensor.elements.resize(tensor.shape.iter().product(), 0.0);
        };
        refused_tensors(family, grown, &["test/model.safetensors", &name, "shape: expected [", "found ["]);
        let flat = |tensors: &mut Tensors| {
            let tensor = tensors.get_mut(&name).unwrap();
            tensor.shape = vec![1, 1, tensor.elements.len()];
        };
        refused_tensors(family, flat, &[&name, "shape: expected [", "found [1, 1, "]);
    }
    let untied = json!({"tie_word_embeddings": false});
    refused("llama-tied", untied.clone(), &["test/model.safetensors", "lm_head.weight"]);
    refused("gpt2", untied, &["test/model.safetensors", "lm_head.weight"]);
    refused("llama", json!({"attention_bias": true}), &["test/model.safetensors", "self_attn.q_proj.bias"]);
    refused("llama", json!({"mlp_bias": true}), &["test/model.safetensors", "mlp.gate_proj.bias"]);
    refused("llama", json!({"vocab_size": 95}), &["model.embed_tokens.weight", "[95, 32]", "[96, 32]"]);
}

/// In every family a tensor that is missing or of another shape is refused, in one line that names a tensor.
#[test]
fn tensors_of_every_family_that_contradict_its_configuration() {
    for family in &goldens() {
        let (config, tensors) = (config(&fixture(family)).to_string(), read(&fixture(family)));
        // The first layer stands for all layers.
        let later = |name: &str| name.split('.').any(|part| part.parse().is_ok_and(|number: usize| number > 0));
        let names = tensors.keys().filter(|name| !later(name));
        for name in names {
            let mut changed = [tensors.clone(), tensors.clone()];
            changed[0].remove(name);
            let tensor = changed[1].get_mut(name).unwrap();
            tensor.shape[0] += 1;
            tensor.elements.resize(tensor.shape.iter().product(), 0.0);
            for tensors in changed {
                let file = safetensors_file(&tensors, Form::F32, 0);
                let message = match load(config.as_bytes(), file) {
                    Ok(_) => panic!("{family}: loaded with another {name}"),
                    Err(error) => error.to_string(),
                };
                assert!(message.contains("tensor") && !message.contains('\n'), "{family}, {name}: {message}");
            }
        }
    }
}

/// Features that a family does not support are refused by the field that asks for them.
#[test]
fn unsupported_features_of_families_are_refused_by_field() {
    for (family, changes, parts) in [
        ("mistral", json!({"hidden_act": "quick_gelu"}), &["hidden_act", "one of silu", "quick_gelu"][..]),
        ("ministral", json!({"layer_types": vec!["chunked_attention"; 4]}), &["layer_types", "chunked_attention"]),
        ("ministral", json!({"layer_types": ["full_attention"]}), &["layer_types", "one a layer", "1"]),
        ("mistral", json!({"sliding_window": 0}), &["sliding_window", "from 1 to"]),
        ("qwen2", json!({"rope_parameters": {"rope_type": "mrope"}}), &["rope_type", "mrope"]),
        ("gemma2", json!({"use_bidirectional_attention": true}), &["use_bidirectional_attention", "false"]),
        ("gemma2", json!({"attn_logit_softcapping": -1.0}), &["attn_logit_softcapping", "above 0"]),
        ("gemma4", json!({"use_bidirectional_attention": "all"}), &["use_bidirectional_attention", "vision", "all"]),
        ("gemma4", json!({"num_kv_shared_layers": 1}), &["num_kv_shared_layers", "a layer of each kind", "found 1"]),
        ("gemma4", json!({"num_kv_shared_layers": 3}), &["num_kv_shared_layers", "fewer than", "found 3"]),
        ("gemma4", json!({"per_layer_config": {"3": {}}}), &["per_layer_config", "layers below 3", "\"3\""]),
        ("gemma4", json!({"per_layer_config": {"2": {"skip": 1}}}), &["per_layer_config.2.skip", "nothing but"]),
        ("gemma4", json!({"per_layer_config": {"1": {"head_dim": 4}}}), &["per_layer_config", "layers of a kind", "4"]),
        ("gemma4", json!({"rope_parameters": {}}), &["rope_parameters.full_attention", "an object", "nothing"]),
        (
            "gemma4-per-layer",
            json!({"vocab_size_per_layer_input": 63}),
            &["vocab_size_per_layer_input", "at least vocab_size, 64", "63"],
        ),
        ("phi3", json!({"model_type": "phimoe"}), &["model_type", "phimoe"]),
        (
            "phi4-mini",
            json!({"partial_rotary_factor": null, "rope_parameters":
            {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}}),
            &["_factor", "numbers above 0"],
        ),
        ("gptj", json!({"rotary_dim": null}), &["rotary_dim", "found nothing"]),
        ("gptj", json!({"rotary_dim": 64}), &["rotary_dim", "at most the width of a head"]),
        ("codegen", json!({"n_head": 2}), &["n_head", "a multiple of 4"]),
        ("gpt_bigcode", json!({"add_cross_attention": true}), &["add_cross_attention"]),
        ("starcoder2", json!({"mlp_type": "gated"}), &["mlp_type", "default", "gated"]),
        ("opt", json!({"layer_norm_elementwise_affine": false}), &["layer_norm_elementwise_affine", "true"]),
        ("bloom", json!({"apply_residual_connection_post_layernorm": true}), &["apply_residual_connection"]),
        ("falcon-new", json!({"parallel_attn": false}), &["parallel_attn", "true"]),
        ("smollm3", json!({"no_rope_layers": [1]}), &["no_rope_layers", "one number a layer"]),
        ("granite", json!({"logits_scaling": 0.0}), &["logits_scaling", "above 0"]),
        ("arcee", json!({"hidden_act": "relu6"}), &["hidden_act", "relu2", "relu6"]),
        ("ernie4_5", json!({"compression_ratio": 2.0}), &["compression_ratio", "2"]),
        ("hunyuan_v1_dense", json!({"use_cla": true}), &["use_cla", "false"]),
        ("hunyuan_v1_dense", json!({"use_qk_norm": false}), &["use_qk_norm", "true"]),
        ("hunyuan_v1_dense", json!({"rope_parameters": {"rope_type": "xdrope"}}), &["rope_type", "xdrope"]),
        ("qwen", json!({"kv_channels": 16}), &["kv_channels", "hidden_size / num_attention_heads = 32 / 4", "16"]),
        ("qwen", json!({"intermediate_size": 97}), &["intermediate_size", "an even number", "97"]),
        ("qwen", json!({"seq_length": null}), &["seq_length", "found nothing"]),
        ("qwen", json!({"seq_length": 1}), &["seq_length", "at least 2", "1"]),
        ("qwen", json!({"rotary_pct": 1.5}), &["rotary_pct", "up to 1", "1.5"]),
        ("qwen", json!({"rotary_pct": 0.4}), &["rotary_pct", "even number of rotated elements", "3"]),
        ("chatglm", json!({"position_encoding_2d": true}), &["position_encoding_2d", "ChatGLM 2", "both directions"]),
        ("chatglm", json!({"inner_hidden_size": 96}), &["position_encoding_2d", "ChatGLM 2", "both directions"]),
        ("chatglm", json!({"original_rope": false}), &["original_rope", "true"]),
        ("chatglm", json!({"pre_seq_len": 128}), &["pre_seq_len", "0", "128"]),
        ("chatglm", json!({"quantization_bit": 4}), &["quantization_bit", "0", "4"]),
        (
            "glm",
            json!({"quantization_config": {"quant_method": "quark"}}),
            &["quantization_config.quant_method", "awq"],
        ),
        (
            "glm",
            json!({"quantization_config": {"quant_method": "a\nb"}}),
            &["quantization_config.quant_method", "a\\nb"],
        ),
    ] {
        refused(family, changes, &[&[FILE], parts].concat());
    }
}

/// The error names the type that cannot be computed with, and the tensor.
#[test]
fn tensors_of_unsupported_types_are_refused() {
    let file = safetensors_file(&read(&fixture("llama")), Form::F32, 0);
    let header = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let text = String::from_utf8(file[8..8 + header].to_vec()).unwrap().replace("\"F32\"", "\"I32\"");
    let bytes = [&file[..8], text.as_bytes(), &file[8 + header..]].concat();
    let config = config(&fixture("llama")).to_string();
    assert_error(load(config.as_bytes(), bytes), &["test/model.safetensors", "input_layernorm", "I32"], Instant::now());
}

/// A value that is unlikely to be valid.
fn odd_value(numbers: &mut Numbers) -> Value {
    let sizes = [0, 1, 2, 3, 7, 8, 31, 33, 64, 96, 97, 1 << 12, 1 << 24, 1 << 40, u64::MAX];
    match numbers.below(9) {
        0 => Value::Null,
        1 => json!(numbers.below(2) == 0),
        2 => json!("silu"),
        3 => json!([1, "a"]),
        4 => json!({"rope_type": "linear", "factor": numbers.unit() * 10.0}),
        5 => json!(-1),
        6 => json!(f64::from(numbers.unit()) * 10f64.powi(numbers.below(80) as i32 - 40)),
        _ => json!(sizes[numbers.below(sizes.len())]),
    }
}

/// Replaces some fields of a configuration, at any depth, by other values.
fn mutate(value: &mut Value, numbers: &mut Numbers) {
    let Value::Object(fields) = value else { return };
    for (_, value) in fields.iter_mut() {
        match numbers.below(8) {
            0 => *value = odd_value(numbers),
            _ => mutate(value, numbers),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any configuration gives a model or an error of one line, within seconds.
    #[test]
    fn mutated_configurations_never_panic(seed: u64) {
        let mut numbers = Numbers::new(seed);
        let families = goldens();
        let family = &families[numbers.below(families.len())];
        let mut config = config(&fixture(family));
        let model_type = config["model_type"].clone();
        mutate(&mut config, &mut numbers);
        config["model_type"] = model_type;
        let file = std::fs::read(fixture(family).join("model.safetensors")).unwrap();
        let start = Instant::now();
        match load(config.to_string().as_bytes(), file) {
            // A context of one position is valid, but too short for this.
            Ok(model) if model.spec().context_max < 3 => drop(model),
            Ok(mut model) => {
                crate::logits(&mut model, &[1, 2, 3], &[3]);
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
        prop_assert!(start.elapsed() < Duration::from_secs(5));
    }
}
