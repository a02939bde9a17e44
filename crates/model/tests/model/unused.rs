//! Tests that every tensor of a file is accounted for: a configuration that describes less than its file is refused,
//! tensors that no computation needs are ignored, and tensors of other parts of the model are reported.

use std::fs;

use foretoken_model::{Checkpoint, family};
use foretoken_weights::Bytes;
use serde_json::{Value, json};

use crate::files::{Form, Tensors, Wide, config, read, safetensors_file};
use crate::fixture;
use crate::forms::llama_gguf;

/// The tensors that are left out of a fixture with these fields (null removes one) and changed tensors, or the error.
fn left_out(family: &str, changes: Value, change: impl FnOnce(&mut Tensors)) -> Result<Vec<String>, String> {
    let mut config = config(&fixture(family));
    for (field, value) in changes.as_object().unwrap() {
        config[field] = value.clone();
    }
    let mut tensors = read(&fixture(family));
    change(&mut tensors);
    let file = Bytes::from_vec(safetensors_file(&tensors, Form::F32, 0));
    let checkpoint = Checkpoint::from_parts("test", config.to_string().as_bytes(), file).unwrap();
    of(&checkpoint)
}

fn of(checkpoint: &Checkpoint) -> Result<Vec<String>, String> {
    family::read(checkpoint, None).map(|network| network.left_out).map_err(|error| error.to_string())
}

fn vector(elements: &[f32]) -> Wide {
    Wide { shape: vec![elements.len()], elements: elements.to_vec() }
}

#[test]
fn fewer_layers_than_the_file_has_are_refused() {
    let found = left_out("llama", json!({"num_hidden_layers": 1}), |_| ()).unwrap_err();
    let of_layer = read(&fixture("llama")).keys().filter(|name| name.starts_with("model.layers.1.")).count();
    let expected = format!(
        "test/config.json: num_hidden_layers: expected 2, as test/model.safetensors has tensors of so many layers \
         ({of_layer} of those beyond, the first model.layers.1.input_layernorm.weight), found 1"
    );
    assert_eq!(found, expected);
    let found = left_out("gpt2", json!({"n_layer": 1}), |_| ()).unwrap_err();
    assert!(found.starts_with("test/config.json: n_layer: expected 2, as "), "{found}");
    // An absurd layer number gives the same error.
    let name = format!("model.layers.{}.mlp.up_proj.weight", usize::MAX);
    let found = left_out("llama", json!({}), |all| _ = all.insert(name, vector(&[1.0]))).unwrap_err();
    assert!(found.contains(&format!("expected {}", usize::MAX)), "{found}");
}

#[test]
fn fewer_layers_than_shards_have_are_refused() {
    let (folder, from) = (tempfile::tempdir().unwrap(), fixture("llama"));
    let mut config = config(&from);
    config["num_hidden_layers"] = json!(1);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let (mut first, mut map) = (read(&from), serde_json::Map::new());
    let second = first.split_off("model.layers.1");
    for (shard, tensors) in [("1.safetensors", first), ("2.safetensors", second)] {
        map.extend(tensors.keys().map(|name| (name.clone(), json!(shard))));
        fs::write(folder.path().join(shard), safetensors_file(&tensors, Form::F32, 0)).unwrap();
    }
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, json!({ "weight_map": map }).to_string()).unwrap();
    let found = of(&Checkpoint::open(folder.path()).unwrap()).unwrap_err();
    let expected = format!("num_hidden_layers: expected 2, as {} has tensors of so many layers", index.display());
    assert!(found.contains(&expected) && found.ends_with("found 1"), "{found}");
}

#[test]
fn fewer_blocks_than_a_gguf_file_has_are_refused() {
    let from = fixture("llama");
    let (tensors, folder) = (read(&from), tempfile::tempdir().unwrap());
    let path = folder.path().join("model.gguf");
    let open = |changes: Value, further: &[&str]| {
        let mut config = config(&from);
        changes.as_object().unwrap().iter().for_each(|(field, value)| config[field] = value.clone());
        let mut gguf = llama_gguf(&config, &tensors, Form::F32);
        for (name, tensor) in further.iter().map(|name| (name, vector(&[1.0; 32]))) {
            gguf = gguf.tensor(name, &tensor, Form::F32);
        }
        if !further.is_empty() {
            gguf = gguf.u32("llama.nextn_predict_layers", 1);
        }
        fs::write(&path, gguf.bytes()).unwrap();
        of(&Checkpoint::open(&path).unwrap())
    };
    let found = open(json!({"num_hidden_layers": 1}), &[]).unwrap_err();
    let expected =
        format!("{0}: llama.block_count: expected 2, as there are tensors of so many layers (", path.display());
    assert!(found.starts_with(&expected) && found.ends_with("found 1"), "{found}");
    assert_eq!(open(json!({}), &[]), Ok(Vec::new()));
    // Multi-token prediction layers are counted as layers, but do not belong to the language model.
    let further = ["blk.2.attn_norm.weight", "blk.2.nextn.eh_proj.weight"];
    assert_eq!(open(json!({"num_hidden_layers": 3}), &further).unwrap(), further);
    let found = open(json!({"num_hidden_layers": 1}), &further).unwrap_err();
    assert!(found.contains("llama.nextn_predict_layers: expected fewer than llama.block_count, 1, found 1"), "{found}");
}

#[test]
fn tensors_of_another_network_are_refused() {
    let part = "model.layers.1.self_attn.q_norm.weight";
    let found = left_out("llama", json!({}), |all| _ = all.insert(part.to_string(), vector(&[1.0; 8]))).unwrap_err();
    let expected = format!(
        "test/model.safetensors: tensor {part}: expected none of this name in a llama network as the configuration \
         says it, found it"
    );
    assert_eq!(found, expected);
    // The configuration excludes these biases, in layers and of the head.
    let found = left_out("llama-biased", json!({"attention_bias": false}), |_| ()).unwrap_err();
    assert!(found.contains("tensor model.layers.0.self_attn.k_proj.bias: expected none"), "{found}");
    assert!(found.ends_with(" like it"), "{found}");
    let found = left_out("llama", json!({}), |all| _ = all.insert("lm_head.bias".to_string(), vector(&[0.0, 1.0])));
    assert!(found.unwrap_err().contains("tensor lm_head.bias: expected none"));
}

#[test]
fn a_head_beside_a_tied_embedding_has_to_be_a_copy() {
    const EMBEDDING: &str = "model.embed_tokens.weight";
    const HEAD: &str = "lm_head.weight";
    let copy = |all: &mut Tensors| _ = all.insert(HEAD.to_string(), all[EMBEDDING].clone());
    assert_eq!(left_out("llama-tied", json!({}), copy), Ok(Vec::new()));
    let other = |all: &mut Tensors| {
        copy(all);
        all.get_mut(HEAD).unwrap().elements[7] += 1.0;
    };
    let found = left_out("llama-tied", json!({}), other).unwrap_err();
    let expected = format!(
        "test/config.json: tie_word_embeddings: expected false, as {HEAD} of test/model.safetensors is not the same as \
         {EMBEDDING}, found true"
    );
    assert_eq!(found, expected);
    // With the correct field it is a different network, which is run.
    assert_eq!(left_out("llama-tied", json!({"tie_word_embeddings": false}), other), Ok(Vec::new()));
}

#[test]
fn buffers_are_ignored_and_other_parts_of_the_model_are_reported() {
    let mut reported = vec!["vision_tower.patch.weight", "model.mtp.0.norm.weight", "model.layers.2.eh_proj.weight"];
    let silent = [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.1.self_attn.o_proj.bias",
        "model.rotary_emb.inv_freq",
    ];
    let further = "model.layers.2.input_layernorm.weight";
    let found = left_out("llama", json!({}), |all| {
        for name in reported.iter().chain(&silent).chain([&further]) {
            all.insert(name.to_string(), vector(&[0.0; 4]));
        }
    });
    reported.push(further);
    reported.sort_unstable();
    assert_eq!(found.unwrap(), reported);
}

/// The multi-token prediction layer of a GLM-4.5 has experts of its own and a head.
#[test]
fn multi_token_prediction_layers_are_reported() {
    let of_layer = |name: &str| format!("model.layers.3.{name}");
    let found = left_out("glm4_moe", json!({}), |all| {
        let last: Vec<_> = all.iter().filter(|(name, _)| name.starts_with("model.layers.2.")).collect();
        let last: Vec<_> = last.into_iter().map(|(name, wide)| (name.replace(".2.", ".3."), wide.clone())).collect();
        all.extend(last);
        for name in ["eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head.head.weight"] {
            all.insert(of_layer(name), vector(&[0.0; 4]));
        }
    });
    let reported = found.unwrap();
    assert!(reported.iter().all(|name| name.starts_with("model.layers.3.")), "{reported:?}");
    for name in ["eh_proj.weight", "mlp.experts.5.up_proj.weight", "mlp.gate.e_score_correction_bias"] {
        assert!(reported.contains(&of_layer(name)), "{name} in {reported:?}");
    }
    // Without the matrix that marks such a layer, it counts as an ordinary layer.
    let found = left_out("glm4_moe", json!({}), |all| _ = all.insert(of_layer("enorm.weight"), vector(&[0.0; 4])));
    assert!(found.unwrap_err().contains("num_hidden_layers: expected 4"));
}
