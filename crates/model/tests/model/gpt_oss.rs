//! Tests that gpt-oss as a GGUF file has the logits of its folder, to the bit, and that missing keys and tensors are
//! refused by name.

use serde_json::{Value, json};

use crate::files::{Form, Gguf, Tensors, Wide, config, read};
use crate::fixture;
use crate::forms::{logits_of_gguf, logits_of_tensors};

/// The golden network with the values that files imply: the limit of gates, and YaRN's borders as integers.
fn golden() -> (Value, Tensors) {
    let mut config = config(&fixture("gpt_oss"));
    config["swiglu_limit"] = json!(7.0);
    config["rope_parameters"]["truncate"] = json!(true);
    (config, read(&fixture("gpt_oss")))
}

/// Every `step`th column from `first` on of a tensor `[experts, inputs, columns]`, as a row of each expert's matrix.
fn transposed(tensor: &Wide, [first, step]: [usize; 2]) -> Wide {
    let [experts, inputs, columns] = tensor.shape[..] else { panic!("shape {:?}", tensor.shape) };
    let mut elements = Vec::new();
    for expert in 0..experts {
        for column in (first..columns).step_by(step) {
            elements.extend((0..inputs).map(|input| tensor.elements[(expert * inputs + input) * columns + column]));
        }
    }
    Wide { shape: vec![experts, columns / step, inputs], elements }
}

/// Every `step`th column from `first` on of biases `[experts, columns]`.
fn biases(tensor: &Wide, [first, step]: [usize; 2]) -> Wide {
    let [experts, columns] = tensor.shape[..] else { panic!("shape {:?}", tensor.shape) };
    let rows = tensor.elements.chunks_exact(columns);
    let elements = rows.flat_map(|row| row.iter().skip(first).step_by(step).copied()).collect();
    Wide { shape: vec![experts, columns / step], elements }
}

/// The file that the converter writes, without the keys and tensors that `keep` rejects.
fn gguf(keep: &dyn Fn(&str) -> bool) -> Gguf {
    let (config, tensors) = golden();
    let mut file = Gguf::default().str("general.architecture", "gpt-oss");
    let rope = &config["rope_parameters"];
    for (key, value) in [
        ("block_count", &config["num_hidden_layers"]),
        ("context_length", &config["max_position_embeddings"]),
        ("embedding_length", &config["hidden_size"]),
        ("feed_forward_length", &config["intermediate_size"]),
        ("expert_feed_forward_length", &config["intermediate_size"]),
        ("attention.head_count", &config["num_attention_heads"]),
        ("attention.head_count_kv", &config["num_key_value_heads"]),
        ("attention.key_length", &config["head_dim"]),
        ("attention.value_length", &config["head_dim"]),
        ("attention.sliding_window", &config["sliding_window"]),
        ("expert_count", &config["num_local_experts"]),
        ("expert_used_count", &config["num_experts_per_tok"]),
        ("rope.scaling.original_context_length", &rope["original_max_position_embeddings"]),
    ] {
        if keep(key) {
            file = file.u32(&format!("gpt-oss.{key}"), value.as_u64().expect(key) as usize);
        }
    }
    for (key, value) in [
        ("attention.layer_norm_rms_epsilon", &config["rms_norm_eps"]),
        ("rope.freq_base", &rope["rope_theta"]),
        ("rope.scaling.factor", &rope["factor"]),
    ] {
        file = file.f32(&format!("gpt-oss.{key}"), value.as_f64().expect(key) as f32);
    }
    file = file.str("gpt-oss.rope.scaling.type", "yarn");
    let names = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("self_attn.sinks", "attn_sinks.weight"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.router", "ffn_gate_inp"),
    ];
    for (name, tensor) in &tensors {
        let name = names.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
        let parts = match name.split_once("mlp.experts.") {
            None => vec![(name.clone(), Wide { shape: tensor.shape.clone(), elements: tensor.elements.clone() })],
            Some((layer, part)) => {
                let matrices: &[(&str, [usize; 2])] = match part.starts_with("gate_up_proj") {
                    true => &[("gate", [0, 2]), ("up", [1, 2])],
                    false => &[("down", [0, 1])],
                };
                let written = |(matrix, columns): &(&str, [usize; 2])| match part.ends_with("_bias") {
                    true => (format!("{layer}ffn_{matrix}_exps.bias"), biases(tensor, *columns)),
                    false => (format!("{layer}ffn_{matrix}_exps.weight"), transposed(tensor, *columns)),
                };
                matrices.iter().map(written).collect()
            }
        };
        file = parts
            .iter()
            .filter(|(name, _)| keep(name))
            .fold(file, |file, (name, tensor)| file.tensor(name, tensor, Form::F32));
    }
    file
}

#[test]
fn a_file_has_the_logits_of_the_folder() {
    let (config, tensors) = golden();
    let found = logits_of_gguf(&gguf(&|_| true));
    assert!(found == logits_of_tensors(&config, &tensors));
    // Each of these changes the logits.
    for change in [json!({"swiglu_limit": 1.5}), json!({"sliding_window": 20}), json!({"swiglu_alpha": 1.0})] {
        let mut other = config.clone();
        change.as_object().unwrap().iter().for_each(|(field, value)| other[field] = value.clone());
        assert!(found != logits_of_tensors(&other, &tensors), "{change}");
    }
    let mut other = read(&fixture("gpt_oss"));
    other.get_mut("model.layers.2.self_attn.sinks").unwrap().elements[3] -= 1.0;
    assert!(found != logits_of_tensors(&config, &other));
}

/// Asserts the error of a file without a key or a tensor.
#[track_caller]
fn refused_without(missing: &str, part: &str) {
    let result = std::panic::catch_unwind(|| logits_of_gguf(&gguf(&|name| name != missing)));
    let error = result.expect_err(missing);
    let message = error.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(message.contains(part), "without {missing}: {message}");
}

#[test]
fn files_without_a_key_or_tensor_are_refused_by_its_name() {
    refused_without("attention.sliding_window", "gpt-oss.attention.sliding_window: expected a number of positions");
    for tensor in ["attn_sinks.weight", "ffn_gate_inp.bias", "ffn_up_exps.bias", "post_attention_norm.weight"] {
        refused_without(&format!("blk.1.{tensor}"), tensor);
    }
}
