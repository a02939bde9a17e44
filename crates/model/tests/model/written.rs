//! Tests of checkpoints exported to GGUF files: the file has the logits of the checkpoint, and what files cannot
//! express is refused by its field.
//!
//! Logits are equal to the bit with three exceptions: if the rows of q and k are permuted, the elements of a head are
//! added in another order; if frequencies are divided one by one, the quotient is rounded once more; and in some
//! architectures GGUF computes GELU by tanh.

use std::fs::File;
use std::path::Path;

use foretoken_model::export::{Export, gguf};
use foretoken_model::spec::Scaling;
use foretoken_model::{CacheType, Checkpoint, Model, ModelError, Options, family};
use foretoken_weights::gguf::{Metadata, TensorInfo, Writer};
use foretoken_weights::{Bytes, Dtype};
use serde_json::{Value, json};

use crate::files::{Form, Tensors, Wide, config, read, safetensors_file};
use crate::forms::tokens;
use crate::golden::goldens;
use crate::{fixture, logits};

/// A checkpoint's logits for 48 tokens, when it is opened for sequences of this length.
fn logits_for_context(checkpoint: &Checkpoint, context: Option<usize>) -> Vec<f32> {
    logits_of(checkpoint, context, 48)
}

/// A checkpoint's logits for the first `len` of 48 tokens.
fn logits_of(checkpoint: &Checkpoint, context: Option<usize>, len: usize) -> Vec<f32> {
    let options = Options { context, ..Options::for_positions(64, 1).with_cache(CacheType::F32) };
    let mut model = Model::load(checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"));
    let vocabulary = model.spec().vocabulary as u32;
    let tokens = tokens().into_iter().chain(tokens()).map(|token| token % vocabulary);
    logits(&mut model, &tokens.take(len).collect::<Vec<u32>>(), &[len])
}

/// The largest difference, relative to the largest expected number.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    found.iter().zip(expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs())) / largest
}

/// Writes all tensors in f32.
fn write(export: &Export, path: &Path) {
    let info = |tensor: &foretoken_model::export::Exported| TensorInfo {
        name: tensor.name.clone(),
        dtype: Dtype::F32,
        shape: tensor.shape.clone(),
    };
    let infos: Vec<TensorInfo> = export.tensors.iter().map(info).collect();
    let metadata = Metadata::new("written", export.metadata.iter().cloned());
    let mut writer = Writer::new(File::create(path).unwrap(), "written", &metadata, &infos).unwrap();
    for tensor in &export.tensors {
        let mut elements = vec![0.0; tensor.rows() * tensor.columns()];
        tensor.reader().read(0, &mut elements);
        writer.append(&Form::F32.bytes(&elements)).unwrap();
    }
    writer.finish().unwrap();
}

fn of_parts(config: &Value, tensors: &Tensors) -> Checkpoint {
    let file = Bytes::from_vec(safetensors_file(tensors, Form::F32, 0));
    Checkpoint::from_parts("test", config.to_string().as_bytes(), file).unwrap_or_else(|error| panic!("{error}"))
}

/// A checkpoint's exported file.
struct Written {
    /// The error of its logits, relative to the largest.
    off: f32,
    /// The allowed error.
    bound: f32,
    notes: Vec<String>,
}

fn written(checkpoint: &Checkpoint, context: Option<usize>) -> Result<Written, ModelError> {
    let export = gguf(checkpoint)?;
    assert!(export.left_out.is_empty(), "{:?}", export.left_out);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write(&export, &path);
    let file = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
    let off = difference(&logits_for_context(&file, context), &logits_for_context(checkpoint, context));
    Ok(Written { off, bound: bound(checkpoint, &file), notes: export.notes })
}

/// Asserts that a checkpoint's exported file has its logits, within `bound` times the largest.
#[track_caller]
pub(crate) fn assert_written(config: &Value, tensors: &Tensors, bound: f32, what: &str) {
    let Written { off, .. } = written(&of_parts(config, tensors), None).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(off <= bound, "{what}: off by {off:e}");
}

/// The allowed error of the files of architectures that compute GELU by tanh.
const GELU_BOUND: f32 = 1e-3;

/// The allowed error of a checkpoint's file, which depends on the exception that applies.
fn bound(checkpoint: &Checkpoint, file: &Checkpoint) -> f32 {
    let [own, of_file] =
        [checkpoint, file].map(|opened| family::plan(opened).unwrap_or_else(|error| panic!("{error}")).spec);
    let [first, first_of_file] = [&own, &of_file].map(|spec| spec.positions.rotations().first());
    if own.feed_forward != of_file.feed_forward {
        GELU_BOUND
    } else if first.map(|rotation| rotation.pairing) != first_of_file.map(|rotation| rotation.pairing) {
        2e-6
    } else if first.is_some_and(|rotation| matches!(rotation.scaling, Scaling::LongRope { .. })) {
        1e-5
    } else {
        0.0
    }
}

/// Golden networks that files cannot express, of families that can be exported, each with the field that is refused,
/// and changes with which it can be exported.
const REFUSED: [(&str, &str, Option<&str>); 13] = [
    ("gemma2", "query_pre_attn_scalar", Some(r#"{"query_pre_attn_scalar": 8}"#)),
    ("gemma3", "query_pre_attn_scalar", Some(r#"{"query_pre_attn_scalar": 8}"#)),
    ("phi-qk-norm", "qk_layernorm", Some(r#"{"qk_layernorm": false}"#)),
    ("falcon-rw", "bias", None),
    ("smollm3", "no_rope_layers", Some(r#"{"no_rope_layers": [1, 1, 1]}"#)),
    ("cohere2", "layer_types", Some(r#"{"layer_types": null}"#)),
    ("ernie4_5-bias", "use_bias", None),
    ("seed_oss-bias", "attention_out_bias", None),
    ("hunyuan_v1_dense-bias", "attention_bias", None),
    ("t5-v1_1", "relative_attention_max_distance", Some(r#"{"relative_attention_max_distance": 128}"#)),
    ("mt5", "relative_attention_max_distance", Some(r#"{"relative_attention_max_distance": 128}"#)),
    // llama.cpp does not support dense layers together with layers with experts.
    ("qwen2_moe", "mlp_only_layers", None),
    ("qwen3_moe", "decoder_sparse_step", None),
];

/// Golden networks with windows of 32 that files of their architecture cannot express, each with a change that removes
/// the windows, so that longer sequences can be compared.
const BOUNDED: [(&str, &str); 4] = [
    ("mistral", r#"{"sliding_window": 512}"#),
    ("ministral", r#"{"sliding_window": null, "layer_types": null}"#),
    ("qwen2-window", r#"{"use_sliding_window": false, "layer_types": null}"#),
    ("starcoder2-window", r#"{"sliding_window": null}"#),
];

fn change(config: &mut Value, changes: &str) {
    let changes: Value = serde_json::from_str(changes).unwrap();
    changes.as_object().unwrap().iter().for_each(|(field, value)| config[field] = value.clone());
}

#[test]
fn files_that_cannot_express_windows_have_a_context_within_them() {
    for (name, _) in BOUNDED {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let export = gguf(&checkpoint).unwrap_or_else(|error| panic!("{name}: {error}"));
        let context = export.metadata.iter().filter(|(key, _)| key.ends_with(".context_length"));
        assert_eq!(context.map(|(_, value)| value.clone()).collect::<Vec<_>>(), [32u32.into()], "{name}");
        assert!(export.notes.len() == 1 && export.notes[0].contains("texts of up to 32 tokens"), "{:?}", export.notes);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        write(&export, &path);
        let file = Checkpoint::open(&path).unwrap();
        let [from_file, from_folder] = [&file, &checkpoint].map(|checkpoint| logits_of(checkpoint, None, 32));
        let off = difference(&from_file, &from_folder);
        assert!(off <= bound(&checkpoint, &file), "{name}: off by {off:e}");
    }
}

#[test]
fn golden_networks_have_the_same_logits_from_their_files_or_are_refused_by_field() {
    let mut count = 0;
    for name in goldens().iter().map(String::as_str) {
        let (mut config, tensors) = (config(&fixture(name)), read(&fixture(name)));
        let refusal = gguf(&of_parts(&config, &tensors)).map_err(|error| error.to_string()).err();
        if refusal.is_some_and(|refusal| refusal.contains("expected a family that can be written as GGUF")) {
            continue;
        }
        if let Some((_, field, changes)) = REFUSED.iter().find(|(refused, ..)| *refused == name) {
            let error = gguf(&of_parts(&config, &tensors)).map(drop).expect_err(name).to_string();
            assert!(error.starts_with(&format!("test/config.json: {field}: expected ")), "{name}: {error}");
            let Some(changes) = changes else { continue };
            change(&mut config, changes);
        }
        BOUNDED.iter().filter(|(bounded, _)| *bounded == name).for_each(|(_, changes)| change(&mut config, changes));
        for context in [None, Some(16)] {
            let checkpoint = of_parts(&config, &tensors);
            if name == "phi3" && !config["sliding_window"].is_null() {
                let notes = gguf(&checkpoint).unwrap().notes;
                assert!(notes.len() == 1 && notes[0].contains("rows see 32 positions"), "{notes:?}");
                config["sliding_window"] = Value::Null;
                continue;
            }
            if name == "phi-qk-norm" {
                // Without its norms it is a different network.
                let error = gguf(&checkpoint).map(|_| ()).unwrap_err().to_string();
                assert!(error.contains("self_attn.k_layernorm.bias: expected none"), "{name}: {error}");
                continue;
            }
            let Written { off, bound, notes } = written(&checkpoint, context).unwrap_or_else(|e| panic!("{name}: {e}"));
            println!("{name} for {context:?}: {off:e} {notes:?}");
            assert!(off <= bound, "{name}: off by {off:e}");
            let noted = bound == GELU_BOUND || name.starts_with("dynamic") || name == "qwen-long";
            assert_eq!(notes.len(), usize::from(noted), "{name}: {notes:?}");
        }
        count += 1;
    }
    assert!(count >= 64, "expected at least 64 networks that are written, found {count}");
}

/// A golden network whose dense layers are replaced by copies of a layer with experts.
fn with_experts_everywhere(name: &str, changes: &str) -> (Value, Tensors) {
    let (mut config, mut tensors) = (config(&fixture(name)), read(&fixture(name)));
    change(&mut config, changes);
    let router = |layer: usize| format!("model.layers.{layer}.mlp.gate.weight");
    let layers = config["num_hidden_layers"].as_u64().unwrap() as usize;
    let like = (0..layers).find(|layer| tensors.contains_key(&router(*layer))).unwrap();
    for layer in (0..layers).filter(|layer| !read(&fixture(name)).contains_key(&router(*layer))) {
        let [own, other] = [layer, like].map(|layer| format!("model.layers.{layer}.mlp."));
        tensors.retain(|name, _| !name.starts_with(&own));
        let others: Tensors = tensors.clone().into_iter().filter(|(name, _)| name.starts_with(&other)).collect();
        tensors.extend(others.into_iter().map(|(name, tensor)| (name.replace(&other, &own), tensor)));
    }
    (config, tensors)
}

const EVERYWHERE: [(&str, &str); 2] =
    [("qwen2_moe", r#"{"mlp_only_layers": []}"#), ("qwen3_moe", r#"{"decoder_sparse_step": 1}"#)];

/// Experts in a tensor for each matrix, or fused as in transformers 5, give the same file.
#[test]
fn experts_are_stacked_in_files() {
    for (name, changes) in EVERYWHERE {
        let (config, tensors) = with_experts_everywhere(name, changes);
        assert_written(&config, &tensors, 0.0, name);
        let mut fused = tensors.clone();
        fused.retain(|name, _| !name.contains(".mlp.experts."));
        let shape = |end: &str| tensors[&format!("model.layers.0.mlp.{end}.weight")].shape.clone();
        let (count, f, width) = (shape("gate")[0], shape("experts.0.up_proj")[0], shape("gate")[1]);
        for layer in 0..3 {
            let elements_of = |matrices: &[&str]| -> Vec<f32> {
                let names = (0..count).flat_map(|number| matrices.iter().map(move |matrix| (number, matrix)));
                let name = |(number, matrix)| format!("model.layers.{layer}.mlp.experts.{number}.{matrix}_proj.weight");
                names.flat_map(|matrix| tensors[&name(matrix)].elements.clone()).collect()
            };
            let (both, down) = (elements_of(&["gate", "up"]), elements_of(&["down"]));
            for (name, shape, elements) in
                [("gate_up_proj", vec![count, 2 * f, width], both), ("down_proj", vec![count, width, f], down)]
            {
                fused.insert(format!("model.layers.{layer}.mlp.experts.{name}"), Wide { shape, elements });
            }
        }
        let [each, fused] = [&tensors, &fused].map(|tensors| {
            let checkpoint = of_parts(&config, tensors);
            let export = gguf(&checkpoint).unwrap_or_else(|error| panic!("{error}"));
            let folder = tempfile::tempdir().unwrap();
            write(&export, &folder.path().join("model.gguf"));
            std::fs::read(folder.path().join("model.gguf")).unwrap()
        });
        assert!(each == fused, "{name}");
    }
}

/// In files, the architecture implies whether the weights of experts are normalized.
#[test]
fn another_normalization_of_expert_weights_than_the_architectures_is_refused() {
    for (name, changes) in EVERYWHERE {
        let (mut config, tensors) = with_experts_everywhere(name, changes);
        config["norm_topk_prob"] = json!(!config["norm_topk_prob"].as_bool().unwrap());
        let error = gguf(&of_parts(&config, &tensors)).map(drop).expect_err(name).to_string();
        assert!(error.starts_with("test/config.json: norm_topk_prob: expected weights brought to"), "{name}: {error}");
    }
}

/// Some names and keys that are particular to an architecture; `bench/peers/gguf_files.py` compares them all.
#[test]
fn names_and_keys_are_those_of_llama_cpp() {
    let exported = |name: &str| gguf(&Checkpoint::open(&fixture(name)).unwrap()).unwrap();
    let falcon = exported("falcon-new");
    let key =
        |export: &Export, key: &str| export.metadata.iter().find(|(known, _)| known == key).map(|(_, v)| v.clone());
    assert_eq!(key(&falcon, "general.architecture"), Some("falcon".into()));
    assert_eq!(key(&falcon, "falcon.tensor_data_layout"), Some("jploski".into()));
    assert_eq!(key(&falcon, "falcon.attention.head_count_kv"), Some(2u32.into()));
    let names: Vec<&str> = falcon.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    for name in ["blk.0.attn_norm_2.weight", "blk.0.attn_norm.bias", "blk.0.attn_qkv.weight", "output_norm.bias"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    assert!(!names.contains(&"output.weight"));
    let stablelm = exported("stablelm-parallel");
    let norm = stablelm.tensors.iter().find(|tensor| tensor.name == "blk.0.attn_q_norm.weight").unwrap();
    assert_eq!((norm.shape.len(), norm.shape[0] * norm.shape[1]), (2, 32));
    let olmo = exported("olmo3");
    assert_eq!(key(&olmo, "general.architecture"), Some("olmo2".into()));
    assert_eq!(key(&olmo, "olmo2.attention.sliding_window"), Some(32u32.into()));
    let mixtral = exported("mixtral");
    assert_eq!(key(&mixtral, "general.architecture"), Some("llama".into()));
    assert_eq!(key(&mixtral, "llama.expert_count"), Some(4u32.into()));
    assert_eq!(key(&mixtral, "llama.expert_used_count"), Some(2u32.into()));
    let shape = |name: &str| mixtral.tensors.iter().find(|tensor| tensor.name == name).unwrap().shape.clone();
    assert_eq!(shape("blk.1.ffn_gate_exps.weight"), [4, 24, 32]);
    assert_eq!(shape("blk.1.ffn_down_exps.weight"), [4, 32, 24]);
    assert_eq!(shape("blk.1.ffn_gate_inp.weight"), [4, 32]);
    let t5 = exported("t5");
    assert_eq!(key(&t5, "general.architecture"), Some("t5".into()));
    assert_eq!(key(&t5, "t5.attention.relative_buckets_count"), Some(32u32.into()));
    let names: Vec<&str> = t5.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    for name in ["enc.blk.0.attn_rel_b.weight", "dec.blk.0.attn_rel_b.weight", "dec.blk.1.cross_attn_o.weight"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    assert_eq!(key(&exported("mistral-nemo"), "general.architecture"), Some("llama".into()));
}

/// Gemma's norms multiply by 1 + their weight, and those of files by their weight.
#[test]
fn the_norms_of_gemma_are_written_plus_1() {
    let folder = fixture("gemma");
    let export = gguf(&Checkpoint::open(&folder).unwrap()).unwrap();
    let norm = export.tensors.iter().find(|tensor| tensor.name == "output_norm.weight").unwrap();
    let mut found = vec![0.0; norm.columns()];
    norm.reader().read(0, &mut found);
    let expected: Vec<f32> = read(&folder)["model.norm.weight"].elements.iter().map(|x| x + 1.0).collect();
    assert_eq!(found, expected);
}

#[test]
fn the_language_model_of_a_multimodal_model_is_exported() {
    let text = fixture("mistral-nemo");
    let (config, tensors) = (config(&text), read(&text));
    let rename = |name: &String| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.clone(),
    };
    let tensors: Tensors = tensors.iter().map(|(name, tensor)| (rename(name), tensor.clone())).collect();
    let config = json!({"model_type": "mistral3", "text_config": config, "vision_config": {}});
    assert_written(&config, &tensors, 2e-6, "mistral3");
}

/// Only one of the architectures with YaRN has keys for the turns between which pairs are blended.
#[test]
fn the_turns_of_yarn_are_written_for_mistral3() {
    let (mut config, tensors) = (config(&fixture("ministral3")), read(&fixture("ministral3")));
    let export = |config: &Value| gguf(&of_parts(config, &tensors)).unwrap_or_else(|error| panic!("{error}"));
    let before = logits_for_context(&of_parts(&config, &tensors), None);
    change(&mut config["rope_parameters"], r#"{"beta_fast": 16.0, "beta_slow": 0.015625}"#);
    assert_ne!(logits_for_context(&of_parts(&config, &tensors), None), before, "the turns have no effect");
    assert_written(&config, &tensors, 2e-6, "ministral3");
    let expected = ("mistral3.rope.scaling.yarn_beta_slow".to_string(), 0.015625f32.into());
    assert!(export(&config).metadata.contains(&expected));
}

/// Networks that llama.cpp could not load, or would run otherwise, are refused even if our own reader could run the
/// file.
#[test]
fn networks_that_llama_cpp_cannot_load_are_refused() {
    for (name, changes, field) in [
        ("qwen3", json!({"attention_bias": true}), "attention_bias"),
        ("gemma", json!({"tie_word_embeddings": false}), "tie_word_embeddings"),
        ("gemma4", json!({"attention_bias": true}), "attention_bias"),
        ("gemma4-per-layer", json!({"num_kv_shared_layers": 1}), "num_kv_shared_layers"),
        ("gemma4-per-layer", json!({"vocab_size_per_layer_input": 65}), "vocab_size_per_layer_input"),
        ("gpt_neox", json!({"tie_word_embeddings": true}), "tie_word_embeddings"),
        ("gpt_neox", json!({"attention_bias": false}), "attention_bias"),
        (
            "qwen2-yarn",
            json!({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
            "original_max_position_embeddings": 64, "beta_slow": 0.1}}),
            "rope_parameters",
        ),
        (
            "qwen2",
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 4.0, "rope_theta": 1e4,
            "original_max_position_embeddings": 64, "low_freq_factor": 1, "high_freq_factor": 4}}),
            "rope_parameters",
        ),
        (
            "bloom",
            json!({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32,
            "zero_point": true, "version": "gemm"}}),
            "quantization_config",
        ),
    ] {
        let mut config = config(&fixture(name));
        changes.as_object().unwrap().iter().for_each(|(field, value)| config[field] = value.clone());
        let error = gguf(&of_parts(&config, &read(&fixture(name)))).map(drop).expect_err(name).to_string();
        assert!(error.starts_with(&format!("test/config.json: {field}: expected ")), "{name}: {error}");
    }
}
