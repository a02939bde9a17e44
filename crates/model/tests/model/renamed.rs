//! Tests of families that transformers has no class for, but that are networks of other families with other names: a
//! golden network whose tensors are renamed, fused and cut as in their checkpoints must have the same logits, to the
//! bit.

use serde_json::{Value, json};

use crate::files::{Tensors, Wide, config, read};
use crate::fixture;
use crate::forms::{assert_within, logits_of_tensors};
use crate::written::assert_written;

/// A golden network: its configuration and its tensors.
struct Network {
    config: Value,
    tensors: Tensors,
}

impl Network {
    fn golden(name: &str) -> Self {
        Self { config: config(&fixture(name)), tensors: read(&fixture(name)) }
    }

    fn number(&self, field: &str) -> usize {
        self.config[field].as_u64().unwrap() as usize
    }

    /// Rows of several tensors, one after another; each part is `(name, rows)`.
    fn rows(&self, parts: &[(String, std::ops::Range<usize>)]) -> Wide {
        let columns = self.tensors[&parts[0].0].shape.get(1).copied();
        let elements_of = |(name, rows): &(String, std::ops::Range<usize>)| {
            let width = columns.unwrap_or(1);
            self.tensors[name].elements[rows.start * width..rows.end * width].to_vec()
        };
        let rows = parts.iter().map(|(_, rows)| rows.len()).sum();
        let shape = std::iter::once(rows).chain(columns).collect();
        Wide { shape, elements: parts.iter().flat_map(elements_of).collect() }
    }

    /// Queries, keys and values of a layer in one tensor, in this order of heads of queries (0), keys (1), values (2).
    fn fused(&self, layer: usize, part: &str, order: &[(usize, usize)]) -> Wide {
        let dim = self.number("head_dim");
        let part_of = |(which, head): &(usize, usize)| {
            let name = ["q_proj", "k_proj", "v_proj"][*which];
            (format!("model.layers.{layer}.self_attn.{name}.{part}"), head * dim..(head + 1) * dim)
        };
        self.rows(&order.iter().map(part_of).collect::<Vec<_>>())
    }

    /// The tensors, without queries, keys and values, with parts of their names replaced.
    fn renamed(&self, parts: &[(&str, &str)]) -> Tensors {
        let kept =
            self.tensors.iter().filter(|(name, _)| !["q_proj", "k_proj", "v_proj"].iter().any(|p| name.contains(p)));
        let rename = |name: &String| parts.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
        kept.map(|(name, tensor)| (rename(name), tensor.clone())).collect()
    }

    /// The configuration with other fields; null removes one.
    fn with(&self, changes: Value) -> Value {
        let mut config = self.config.clone();
        for (field, value) in changes.as_object().unwrap() {
            config[field] = value.clone();
        }
        config
    }

    fn logits(&self) -> Vec<f32> {
        logits_of_tensors(&self.config, &self.tensors)
    }
}

/// The logits of the first `count` tokens, of each row.
fn first_logits(config: &Value, tensors: &Tensors, count: usize) -> Vec<f32> {
    let vocabulary = config["vocab_size"].as_u64().unwrap() as usize;
    logits_of_tensors(config, tensors).chunks_exact(vocabulary).flat_map(|row| row[..count].to_vec()).collect()
}

#[test]
fn internlm2_is_llama_fused_group_by_group() {
    let llama = Network::golden("llama-head-dim");
    let mut tensors = llama.renamed(&[
        ("model.embed_tokens", "model.tok_embeddings"),
        ("input_layernorm", "attention_norm"),
        ("self_attn.o_proj", "attention.wo"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("lm_head", "output"),
    ]);
    let (kv_heads, group) = (llama.number("num_key_value_heads"), 2);
    let order: Vec<_> = (0..kv_heads).flat_map(|kv| [(0, group * kv), (0, group * kv + 1), (1, kv), (2, kv)]).collect();
    for layer in 0..llama.number("num_hidden_layers") {
        tensors.insert(format!("model.layers.{layer}.attention.wqkv.weight"), llama.fused(layer, "weight", &order));
    }
    let config = llama.with(json!({"model_type": "internlm2", "bias": false}));
    assert!(logits_of_tensors(&config, &tensors) == llama.logits());
    assert_written(&config, &tensors, 2e-6, "internlm2");
}

/// The 7B, in which every head has its own keys and values: those of the golden network are used twice.
#[test]
fn baichuan_is_llama_fused() {
    let llama = Network::golden("llama-head-dim");
    let heads = llama.number("num_attention_heads");
    let group = heads / llama.number("num_key_value_heads");
    let heads_of = |which: usize| (0..heads).map(move |head| (which, if which == 0 { head } else { head / group }));
    let order: Vec<_> = (0..3).flat_map(heads_of).collect();
    let mut tensors = llama.renamed(&[]);
    for layer in 0..llama.number("num_hidden_layers") {
        let fused = llama.fused(layer, "weight", &order);
        tensors.insert(format!("model.layers.{layer}.self_attn.W_pack.weight"), fused);
    }
    let config = llama.with(json!({"model_type": "baichuan", "num_key_value_heads": null}));
    assert!(logits_of_tensors(&config, &tensors) == llama.logits());
    assert_written(&config, &tensors, 2e-6, "baichuan");
    // Without rotary positions it is the 13B, which has other logits.
    let other = llama.with(json!({"model_type": "baichuan", "num_key_value_heads": null,
        "max_position_embeddings": null, "model_max_length": 512}));
    assert!(logits_of_tensors(&other, &tensors) != llama.logits());
}

/// Baichuan 2, recognized by its 125 696 tokens, normalizes the rows of its head to length 1, which those of the golden
/// network already have: with its tokens repeated and rows of other lengths, the first logits are the golden's.
#[test]
fn the_head_of_baichuan_2() {
    const VOCABULARY: usize = 125_696;
    for golden in ["baichuan", "baichuan-13b"] {
        let first = Network::golden(golden);
        let known = first.number("vocab_size");
        let mut tensors = first.tensors.clone();
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let tensor = tensors.get_mut(name).unwrap();
            tensor.shape[0] = VOCABULARY;
            tensor.elements = tensor.elements.iter().copied().cycle().take(tensor.shape.iter().product()).collect();
        }
        let head = tensors.get_mut("lm_head.weight").unwrap();
        for (i, row) in head.elements.chunks_exact_mut(head.shape[1]).enumerate() {
            row.iter_mut().for_each(|x| *x *= [0.25, 1.0, 8.0][i % 3]);
        }
        let config = first.with(json!({"vocab_size": VOCABULARY}));
        let found = first_logits(&config, &tensors, known);
        assert_within(1e-6, &found, &first.logits(), golden);
        // With one token fewer it is Baichuan 1, whose head is not normalized.
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let tensor = tensors.get_mut(name).unwrap();
            tensor.shape[0] -= 1;
            tensor.elements.truncate(tensor.shape.iter().product());
        }
        let config = first.with(json!({"vocab_size": VOCABULARY - 1}));
        assert!(first_logits(&config, &tensors, known) != found, "{golden}: the head of Baichuan 1");
    }
}

/// The language model of a multimodal model is the same network as the language model alone, in both spellings of its
/// tensors' names.
#[test]
fn the_text_of_a_model_with_images() {
    let wrapped = [("gemma3", "gemma3"), ("gemma4", "gemma4"), ("gemma4-per-layer", "gemma4")];
    for (golden, wrapper) in wrapped.into_iter().chain([("ministral3", "mistral3"), ("mistral", "mistral3")]) {
        let text = Network::golden(golden);
        for (prefix, head) in [("model.language_model.", ""), ("language_model.model.", "language_model.")] {
            let rename = |name: &String| match name.strip_prefix("model.") {
                Some(rest) => format!("{prefix}{rest}"),
                None => format!("{head}{name}"),
            };
            let tensors = text.tensors.iter().map(|(name, tensor)| (rename(name), tensor.clone())).collect();
            let config = json!({"model_type": wrapper, "text_config": text.config, "vision_config": {}});
            assert!(logits_of_tensors(&config, &tensors) == text.logits(), "{golden} with {prefix}");
        }
    }
}

#[test]
fn chatglm_is_glm_by_other_names() {
    let glm = Network::golden("glm");
    let mut tensors = glm.renamed(&[
        ("model.embed_tokens", "transformer.embedding.word_embeddings"),
        ("model.layers", "transformer.encoder.layers"),
        ("self_attn.o_proj", "self_attention.dense"),
        ("mlp.gate_up_proj", "mlp.dense_h_to_4h"),
        ("mlp.down_proj", "mlp.dense_4h_to_h"),
        ("model.norm", "transformer.encoder.final_layernorm"),
        ("lm_head", "transformer.output_layer"),
    ]);
    let counts = [("num_attention_heads", 0), ("num_key_value_heads", 1), ("num_key_value_heads", 2)];
    let order: Vec<_> =
        counts.iter().flat_map(|(field, which)| (0..glm.number(field)).map(|head| (*which, head))).collect();
    for (layer, part) in (0..glm.number("num_hidden_layers")).flat_map(|i| [(i, "weight"), (i, "bias")]) {
        let name = format!("transformer.encoder.layers.{layer}.self_attention.query_key_value.{part}");
        tensors.insert(name, glm.fused(layer, part, &order));
    }
    let config = json!({
        "model_type": "chatglm",
        "padded_vocab_size": glm.number("vocab_size"), "hidden_size": glm.number("hidden_size"),
        "num_layers": glm.number("num_hidden_layers"), "num_attention_heads": glm.number("num_attention_heads"),
        "multi_query_attention": true, "multi_query_group_num": glm.number("num_key_value_heads"),
        "kv_channels": glm.number("head_dim"), "ffn_hidden_size": glm.number("intermediate_size"),
        "layernorm_epsilon": glm.config["rms_norm_eps"], "seq_length": 512, "add_qkv_bias": true, "rmsnorm": true,
        "post_layer_norm": true, "add_bias_linear": false,
    });
    assert!(logits_of_tensors(&config, &tensors) == glm.logits());
    assert_written(&config, &tensors, 0.0, "chatglm");
    // The ratio multiplies the base, but divides positions in ChatGLM 2.
    let rotated = |parameters: Value| {
        let mut changed = glm.with(json!({"rope_parameters": parameters}));
        changed["rope_parameters"]["partial_rotary_factor"] = json!(0.5);
        logits_of_tensors(&changed, &glm.tensors)
    };
    let with_ratio = |name: &str| {
        let mut changed = config.clone();
        (changed["rope_ratio"], changed["_name_or_path"]) = (json!(4), json!(name));
        assert_written(&changed, &tensors, 0.0, name);
        logits_of_tensors(&changed, &tensors)
    };
    let (base, divided) = (json!({"rope_theta": 40000.0}), json!({"rope_type": "linear", "factor": 4.0}));
    assert!(with_ratio("THUDM/chatglm3-6b-32k") == rotated(base));
    assert!(with_ratio("THUDM/chatglm2-6b-32k") == rotated(divided));
}

/// Qwen 1, in which every head has its own keys and values: those of the golden network are used twice.
#[test]
fn qwen_1_is_qwen_2_by_other_names() {
    let mut qwen2 = Network::golden("qwen2");
    let (heads, kv_heads) = (qwen2.number("num_attention_heads"), qwen2.number("num_key_value_heads"));
    qwen2.config["head_dim"] = json!(qwen2.number("hidden_size") / heads);
    let mut tensors = qwen2.renamed(&[
        ("model.embed_tokens", "transformer.wte"),
        ("model.layers", "transformer.h"),
        ("input_layernorm", "ln_1"),
        ("self_attn.o_proj", "attn.c_proj"),
        ("post_attention_layernorm", "ln_2"),
        ("mlp.gate_proj", "mlp.w2"),
        ("mlp.up_proj", "mlp.w1"),
        ("mlp.down_proj", "mlp.c_proj"),
        ("model.norm", "transformer.ln_f"),
    ]);
    tensors.insert("lm_head.weight".to_string(), tensors["transformer.wte.weight"].clone());
    let heads_of =
        |which: usize| (0..heads).map(move |head| (which, if which == 0 { head } else { head * kv_heads / heads }));
    let order: Vec<_> = (0..3).flat_map(heads_of).collect();
    for (layer, part) in (0..qwen2.number("num_hidden_layers")).flat_map(|i| [(i, "weight"), (i, "bias")]) {
        tensors.insert(format!("transformer.h.{layer}.attn.c_attn.{part}"), qwen2.fused(layer, part, &order));
    }
    let config = json!({
        "model_type": "qwen", "vocab_size": qwen2.number("vocab_size"), "hidden_size": qwen2.number("hidden_size"),
        "num_hidden_layers": qwen2.number("num_hidden_layers"), "num_attention_heads": heads,
        "intermediate_size": 2 * qwen2.number("intermediate_size"), "seq_length": 512,
        "layer_norm_epsilon": qwen2.config["rms_norm_eps"],
    });
    assert!(logits_of_tensors(&config, &tensors) == qwen2.logits());
    assert_written(&config, &tensors, 0.0, "qwen");
    // Buffers of old checkpoints are passed over.
    tensors.insert("transformer.rotary_emb.inv_freq".to_string(), Wide { shape: vec![1], elements: vec![1.0] });
    assert!(logits_of_tensors(&config, &tensors) == qwen2.logits());
}
