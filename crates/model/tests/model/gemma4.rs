//! Tests of Gemma 4, which has many features of its own: its GGUF files have the logits of its Hugging Face form,
//! layers that share keys and values take no cache, and unsupported fields and keys are refused by name.

use std::path::Path;

use foretoken_model::{CacheType, Checkpoint, Model, Options};
use serde_json::{Value, json};

use crate::files::{Form, Gguf, Tensors, Wide, config, read};
use crate::fixture;
use crate::forms::{logits_of_gguf, logits_of_tensors};

const GOLDENS: [&str; 3] = ["gemma4", "gemma4-per-layer", "gemma4-experts"];

/// The data of a golden network that the converter writes.
struct Written {
    config: Value,
    tensors: Tensors,
    layers: usize,
    /// Whether each layer has full attention.
    full: Vec<bool>,
    kv_heads: Vec<usize>,
    ffn_widths: Vec<usize>,
    shared: usize,
}

impl Written {
    fn golden(name: &str) -> Self {
        let (config, tensors) = (config(&fixture(name)), read(&fixture(name)));
        let full: Vec<bool> =
            config["layer_types"].as_array().unwrap().iter().map(|kind| kind == "full_attention").collect();
        let rows = |layer: usize, part: &str| tensors[&format!("model.layers.{layer}.{part}.weight")].shape[0];
        let shared = config["num_kv_shared_layers"].as_u64().unwrap() as usize;
        let own = |layer: usize| (0..full.len() - shared).rfind(|other| full[*other] == full[layer]).unwrap();
        let kv_heads = |layer| rows(own(layer), "self_attn.k_proj") / rows(own(layer), "self_attn.k_norm");
        Self {
            kv_heads: (0..full.len()).map(kv_heads).collect(),
            ffn_widths: (0..full.len()).map(|layer| rows(layer, "mlp.up_proj")).collect(),
            layers: full.len(),
            shared,
            full,
            config,
            tensors,
        }
    }

    fn gguf(&self) -> Gguf {
        let number = |field: &str| self.config[field].as_u64().unwrap() as usize;
        let [head_dim, head_dim_full] = [number("head_dim"), 16];
        let windowed: Vec<bool> = self.full.iter().map(|full| !full).collect();
        let divisors: Vec<f32> =
            (0..head_dim_full / 2).map(|i| if i < head_dim_full / 8 { 1.0 } else { 1e30 }).collect();
        let mut gguf = Gguf::default()
            .str("general.architecture", "gemma4")
            .u32("gemma4.block_count", self.layers)
            .u32("gemma4.context_length", number("max_position_embeddings"))
            .u32("gemma4.embedding_length", number("hidden_size"))
            .u32s("gemma4.feed_forward_length", &self.ffn_widths)
            .u32("gemma4.attention.head_count", number("num_attention_heads"))
            .u32s("gemma4.attention.head_count_kv", &self.kv_heads)
            .f32("gemma4.rope.freq_base", 1e6)
            .f32("gemma4.rope.freq_base_swa", 1e4)
            .f32("gemma4.attention.layer_norm_rms_epsilon", 0.01)
            .f32("gemma4.final_logit_softcapping", 1.5)
            .u32("gemma4.attention.sliding_window", number("sliding_window"))
            .u32("gemma4.attention.shared_kv_layers", self.shared)
            .u32("gemma4.embedding_length_per_layer_input", number("hidden_size_per_layer_input"))
            .bools("gemma4.attention.sliding_window_pattern", &windowed)
            .u32("gemma4.attention.key_length", head_dim_full)
            .u32("gemma4.attention.value_length", head_dim_full)
            .u32("gemma4.attention.key_length_swa", head_dim)
            .u32("gemma4.attention.value_length_swa", head_dim)
            .u32("gemma4.rope.dimension_count", head_dim_full)
            .u32("gemma4.rope.dimension_count_swa", head_dim)
            .tensor("rope_freqs.weight", &Wide { shape: vec![divisors.len()], elements: divisors }, Form::F32);
        for (key, field) in [
            ("expert_count", "num_experts"),
            ("expert_used_count", "top_k_experts"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
        ] {
            if let Some(number) = self.config[field].as_u64() {
                gguf = gguf.u32(&format!("gemma4.{key}"), number as usize);
            }
        }
        for (name, tensor) in &self.tensors {
            gguf = gguf.tensor(&gguf_name(name), tensor, Form::F32);
        }
        gguf
    }
}

fn gguf_name(name: &str) -> String {
    const PARTS: [(&str, &str); 29] = [
        ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("experts.down_proj", "ffn_down_exps.weight"),
        ("router.proj", "ffn_gate_inp"),
        ("router.scale", "ffn_gate_inp.scale"),
        ("router.per_expert_scale", "ffn_down_exps.scale"),
        ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        ("model.", ""),
        ("layers.", "blk."),
        ("embed_tokens_per_layer", "per_layer_token_embd"),
        ("embed_tokens", "token_embd"),
        ("per_layer_model_projection", "per_layer_model_proj"),
        ("per_layer_projection_norm", "per_layer_proj_norm"),
        ("post_per_layer_input_norm", "post_norm"),
        ("per_layer_input_gate", "inp_gate"),
        ("per_layer_projection", "proj"),
        ("layer_scalar", "layer_output_scale.weight"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("input_layernorm", "attn_norm"),
        ("mlp.", "ffn_"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("q_proj", "q"),
        ("k_proj", "k"),
        ("v_proj", "v"),
        ("gate_proj", "gate"),
        ("up_proj", "up"),
        ("down_proj", "down"),
    ];
    let name = PARTS.iter().fold(name.to_string(), |name, (from, to)| name.replace(from, to));
    if name == "norm.weight" { "output_norm.weight".to_string() } else { name }
}

#[test]
fn gguf_has_the_logits_of_the_hugging_face_form() {
    for name in GOLDENS {
        let written = Written::golden(name);
        let expected = logits_of_tensors(&written.config, &written.tensors);
        assert!(logits_of_gguf(&written.gguf()) == expected, "{name}");
    }
}

/// Files may have gate and up of all experts in separate tensors.
#[test]
fn experts_of_gguf_are_fused_or_not() {
    let mut written = Written::golden("gemma4-experts");
    let expected = logits_of_gguf(&written.gguf());
    for layer in 0..written.layers {
        let at = |name: &str| format!("model.layers.{layer}.{name}");
        let fused = written.tensors.remove(&at("experts.gate_up_proj")).unwrap();
        let shape = vec![fused.shape[0], fused.shape[1] / 2, fused.shape[2]];
        let halves = fused.elements.chunks_exact(shape[1] * shape[2]);
        for (half, name) in ["ffn_gate_exps", "ffn_up_exps"].into_iter().enumerate() {
            let elements = halves.clone().skip(half).step_by(2).flatten().copied().collect();
            let tensor = Wide { shape: shape.clone(), elements };
            written.tensors.insert(at(&format!("{name}.weight")), tensor);
        }
    }
    assert!(logits_of_gguf(&written.gguf()) == expected);
}

/// Programs that quantize checkpoints write a tensor for each matrix.
#[test]
fn experts_of_a_directory_are_fused_or_each_by_itself() {
    let Written { config, mut tensors, layers, .. } = Written::golden("gemma4-experts");
    let expected = logits_of_tensors(&config, &tensors);
    for layer in 0..layers {
        let at = |name: &str| format!("model.layers.{layer}.experts.{name}");
        for (name, parts) in [("gate_up_proj", &["gate_proj", "up_proj"][..]), ("down_proj", &["down_proj"])] {
            let fused = tensors.remove(&at(name)).unwrap();
            let shape = vec![fused.shape[1] / parts.len(), fused.shape[2]];
            for (i, elements) in fused.elements.chunks_exact(shape[0] * shape[1]).enumerate() {
                let (expert, part) = (i / parts.len(), parts[i % parts.len()]);
                let tensor = Wide { shape: shape.clone(), elements: elements.to_vec() };
                tensors.insert(at(&format!("{expert}.{part}.weight")), tensor);
            }
        }
    }
    assert!(logits_of_tensors(&config, &tensors) == expected);
}

/// The second half of the layers has no keys and values.
#[test]
fn layers_that_share_keys_and_values_take_no_cache() {
    let checkpoint = Checkpoint::open(&fixture("gemma4-per-layer")).unwrap();
    let model = Model::load(&checkpoint, Options::for_positions(64, 1), &mut |_, _| ()).unwrap();
    let spec = model.spec();
    let two_layers = 2 * 4 * (8 + 16);
    assert_eq!(spec.cache_bytes_per_position([CacheType::F32; 2]), two_layers);
    assert_eq!((0..4).map(|layer| spec.kv_layer_of(layer)).collect::<Vec<_>>(), [0, 1, 0, 1]);
    assert_eq!((0..4).map(|layer| spec.ffn_width_of(layer)).collect::<Vec<_>>(), [16, 16, 32, 32]);
}

/// The type of the cache must fit both widths of heads.
#[test]
fn a_cache_type_must_fit_the_heads_of_all_layers() {
    let checkpoint = Checkpoint::open(&fixture("gemma4")).unwrap();
    let options = Options::for_positions(64, 1).with_cache(CacheType::Q8_0);
    let error = Model::load(&checkpoint, options, &mut |_, _| ()).err().unwrap().to_string();
    assert!(error.contains("key_type q8_0") && error.contains("a multiple of 32"), "{error}");
}

fn refused(changed: Written, parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, changed.gguf().bytes()).unwrap();
    refused_file(&path, parts);
}

fn refused_file(path: &Path, parts: &[&str]) {
    let load = |checkpoint| Model::load(&checkpoint, Options::for_positions(32, 1), &mut |_, _| ());
    let error = match Checkpoint::open(path).and_then(load) {
        Ok(_) => panic!("loaded, instead of an error with {parts:?}"),
        Err(error) => error.to_string(),
    };
    assert!(!error.contains('\n') && parts.iter().all(|part| error.contains(part)), "{error:?}: {parts:?}");
}

#[test]
fn gguf_files_with_contradictory_layers_are_refused() {
    let golden = || Written::golden("gemma4-per-layer");
    let kv_heads = vec![1, 1, 2, 1];
    refused(Written { kv_heads, ..golden() }, &["gemma4.attention.head_count_kv", "1 in all layers of a kind", "2"]);
    refused(Written { kv_heads: vec![1; 3], ..golden() }, &["gemma4.attention.head_count_kv", "one a layer, 4", "3"]);
    refused(Written { kv_heads: vec![3; 4], ..golden() }, &["gemma4.attention.head_count_kv", "a divisor of", "3"]);
    let ffn_widths = vec![16, 8, 32, 32];
    refused(Written { ffn_widths, ..golden() }, &["gemma4.feed_forward_length", "16 in layer 1", "8"]);
    refused(Written { shared: 4, ..golden() }, &["gemma4.attention.shared_kv_layers", "fewer than", "4"]);
    refused(Written { shared: 3, ..golden() }, &["gemma4.attention.shared_kv_layers", "a layer of each kind", "3"]);
    let pattern = "gemma4.attention.sliding_window_pattern";
    refused(Written { full: vec![true; 3], ..golden() }, &[pattern, "a truth value for each layer"]);
    let without = |name: &str| {
        let mut golden = golden();
        assert!(golden.tensors.remove(name).is_some());
        golden
    };
    refused(without("model.layers.1.layer_scalar"), &["blk.1.layer_output_scale.weight"]);
    refused(without("model.layers.0.self_attn.k_proj.weight"), &["blk.0.attn_k.weight"]);
    refused(without("model.embed_tokens_per_layer.weight"), &["per_layer_token_embd.weight"]);
    let experts = |change: fn(&mut Written)| {
        let mut golden = Written::golden("gemma4-experts");
        change(&mut golden);
        golden
    };
    let chosen = experts(|golden| golden.config["top_k_experts"] = json!(7));
    refused(chosen, &["gemma4.expert_used_count", "at most gemma4.expert_count, 6", "7"]);
    let none = experts(|golden| golden.config["num_experts"] = json!(null));
    refused(none, &["ffn_down_exps", "expected none of this name"]);
    let scales = experts(|golden| drop(golden.tensors.remove("model.layers.1.router.scale")));
    refused(scales, &["blk.1.ffn_gate_inp.scale"]);
}

/// Published configurations have separate fields, or rely on the defaults of transformers' class.
#[test]
fn heads_are_read_layer_by_layer_or_from_fields() {
    let folder = tempfile::tempdir().unwrap();
    for (name, count) in [("gemma4", Some(1)), ("gemma4-per-layer", None)] {
        let (mut config, tensors) = (config(&fixture(name)), read(&fixture(name)));
        let expected = logits_of_tensors(&config, &tensors);
        let fields = config.as_object_mut().unwrap();
        fields.remove("per_layer_config");
        fields.insert("global_head_dim".into(), json!(16));
        fields.insert("num_global_key_value_heads".into(), json!(count));
        fields.remove("rope_parameters");
        assert!(logits_of_tensors(&config, &tensors) == expected, "{name}");
        // The default is 512.
        config.as_object_mut().unwrap().remove("global_head_dim");
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        std::fs::copy(fixture(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        refused_file(folder.path(), &["self_attn.q_proj.weight", "shape", "24"]);
    }
}
