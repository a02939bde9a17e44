//! Tests of one network in every format in which its family is distributed: half types, odd addresses, shards, other
//! names, older configurations, GGUF. Each of them must have the logits of the plain f32 fixture.

use std::path::Path;

use foretoken_kernels::rope::Pairing;
use foretoken_model::{CacheType, Checkpoint, Model, Options};
use foretoken_weights::Bytes;
use serde_json::{Value, json};

use crate::files::{Form, Gguf, Tensors, Wide, config, read, safetensors_file};
use crate::golden::goldens;
use crate::{fixture, logits};

pub(crate) fn tokens() -> Vec<u32> {
    (0..24u32).map(|i| (i * 37 + 5) % 96).collect()
}

/// The tokens of the tests, reduced to those of a vocabulary.
fn tokens_below(vocabulary: usize) -> Vec<u32> {
    tokens().into_iter().map(|token| token % vocabulary as u32).collect()
}

/// A checkpoint's logits for the tokens.
pub(crate) fn logits_of(checkpoint: &Checkpoint) -> Vec<f32> {
    let options = Options::for_positions(64, 1).with_cache(CacheType::F32);
    let mut model = Model::load(checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"));
    let tokens = tokens_below(model.spec().vocabulary);
    logits(&mut model, &tokens, &[24])
}

fn of_parts(config: &Value, file: Vec<u8>) -> Checkpoint {
    Checkpoint::from_parts("test", config.to_string().as_bytes(), Bytes::from_vec(file))
        .unwrap_or_else(|e| panic!("{e}"))
}

/// The logits of a Hugging Face checkpoint of f32 tensors.
pub(crate) fn logits_of_tensors(config: &Value, tensors: &Tensors) -> Vec<f32> {
    logits_of(&of_parts(config, safetensors_file(tensors, Form::F32, 0)))
}

/// The logits of a GGUF file, through a real file.
pub(crate) fn logits_of_gguf(gguf: &Gguf) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, gguf.bytes()).unwrap();
    logits_of(&Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}")))
}

/// Asserts that logits differ by at most 1e-5 of the largest, as the same sums in another order do.
#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    assert_within(1e-5, found, expected, what);
}

/// Asserts that logits differ by at most `part` of the largest.
#[track_caller]
pub(crate) fn assert_within(part: f32, found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let worst = found.iter().zip(expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    println!("{what}: off by {} of the largest logit", worst / largest);
    assert!(worst <= part * largest, "{what}: off by {worst}, the largest logit is {largest}");
}

fn rounded(tensors: &Tensors, form: Form) -> Tensors {
    let round = |w: &Wide| Wide { shape: w.shape.clone(), elements: form.rounded(&w.elements) };
    tensors.iter().map(|(name, wide)| (name.clone(), round(wide))).collect()
}

/// Widening is exact: a network in half precision has the bits of the f32 network of the same numbers. The address of
/// its bytes makes no difference: at an odd address they are copied.
#[test]
fn half_types_have_the_bits_of_their_f32_values_at_any_address() {
    for family in ["llama", "llama-tied", "gpt2"] {
        let (config, tensors) = (config(&fixture(family)), read(&fixture(family)));
        for form in [Form::F32, Form::F16, Form::BF16] {
            let expected = logits_of_tensors(&config, &rounded(&tensors, form));
            for offset in [0, 1, 2, 4] {
                let found = logits_of(&of_parts(&config, safetensors_file(&tensors, form, offset)));
                assert!(found == expected, "{family} in {form:?}, {offset} bytes off");
            }
        }
    }
}

#[test]
fn shards_are_one_model() {
    for family in ["llama", "gpt2"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(fixture(family).join("config.json"), folder.path().join("config.json")).unwrap();
        let mut map = serde_json::Map::new();
        let mut shards = [Tensors::new(), Tensors::new(), Tensors::new()];
        for (i, (name, tensor)) in read(&fixture(family)).into_iter().enumerate() {
            map.insert(name.clone(), json!(format!("model-{}-of-3.safetensors", i % 3)));
            shards[i % 3].insert(name, tensor);
        }
        for (i, shard) in shards.iter().enumerate() {
            let path = folder.path().join(format!("model-{i}-of-3.safetensors"));
            std::fs::write(path, safetensors_file(shard, Form::F32, 0)).unwrap();
        }
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string();
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        let found = logits_of(&Checkpoint::open(folder.path()).unwrap());
        assert!(found == logits_of(&Checkpoint::open(&fixture(family)).unwrap()), "{family}");
    }
}

#[test]
fn names_without_their_prefix() {
    for (family, prefix) in [("llama", "model."), ("llama-tied", "model."), ("gpt2", "transformer.")] {
        let (config, tensors) = (config(&fixture(family)), read(&fixture(family)));
        let short = |name: &str| name.strip_prefix(prefix).unwrap_or(name).to_string();
        let bare: Tensors = tensors.iter().map(|(name, tensor)| (short(name), tensor.clone())).collect();
        assert!(logits_of_tensors(&config, &bare) == logits_of_tensors(&config, &tensors), "{family}");
    }
}

/// `rope_scaling` with a top-level `rope_theta`, and its kind under `rope_type` or, older still, `type`.
#[test]
fn older_formats_of_rope_scaling() {
    for family in ["llama3-rope", "linear-rope", "llama"] {
        let (config, tensors) = (config(&fixture(family)), read(&fixture(family)));
        let expected = logits_of_tensors(&config, &tensors);
        for kind in ["rope_type", "type"] {
            let mut older = config.clone();
            let fields = older.as_object_mut().unwrap();
            let mut scaling = fields.remove("rope_parameters").unwrap();
            let inner = scaling.as_object_mut().unwrap();
            fields.insert("rope_theta".into(), inner.remove("rope_theta").unwrap());
            let name = inner.remove("rope_type").unwrap();
            let scaling = if name == "default" {
                Value::Null
            } else {
                inner.insert(kind.into(), name);
                scaling
            };
            fields.insert("rope_scaling".into(), scaling);
            assert!(logits_of_tensors(&older, &tensors) == expected, "{family} with {kind}");
        }
    }
}

/// Each golden network's configuration as transformers 4 wrote it, `config.4.json`: other names and places of fields,
/// and fields that did not exist yet.
#[test]
fn configurations_of_transformers_4() {
    let mut read_ones = 0;
    for name in goldens() {
        let folder = fixture(&name);
        let Ok(older) = std::fs::read(folder.join("config.4.json")) else { continue };
        let older: Value = serde_json::from_slice(&older).unwrap();
        let tensors = read(&folder);
        assert!(logits_of_tensors(&older, &tensors) == logits_of_tensors(&config(&folder), &tensors), "{name}");
        read_ones += 1;
    }
    assert!(read_ones > 40, "{read_ones}");
}

/// The base is read in both of its places.
#[test]
fn rope_theta_matters() {
    let (config, tensors) = (config(&fixture("llama")), read(&fixture("llama")));
    let mut other = config.clone();
    other["rope_parameters"]["rope_theta"] = json!(500.0);
    let mut older = config.clone();
    older.as_object_mut().unwrap().remove("rope_parameters");
    older["rope_theta"] = json!(500.0);
    assert!(logits_of_tensors(&other, &tensors) != logits_of_tensors(&config, &tensors));
    assert!(logits_of_tensors(&other, &tensors) == logits_of_tensors(&older, &tensors));
}

/// Rows of q or k as the converter permutes them: within a head, (half, pair) becomes (pair, half).
fn permuted(tensor: &Wide, heads: usize) -> Wide {
    let inputs = tensor.shape.get(1).copied().unwrap_or(1);
    let half = tensor.shape[0] / heads / 2;
    let mut elements = Vec::new();
    for (head, pair, side) in (0..heads).flat_map(|h| (0..half).flat_map(move |p| [(h, p, 0), (h, p, 1)])) {
        let row = (head * 2 + side) * half + pair;
        elements.extend_from_slice(&tensor.elements[row * inputs..][..inputs]);
    }
    Wide { shape: tensor.shape.clone(), elements }
}

/// The converter's name of a Llama tensor.
fn llama_name(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let parts = [
        ("layers.", "blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("embed_tokens", "token_embd"),
        ("lm_head", "output"),
    ];
    let name = parts.iter().fold(name.to_string(), |name, (from, to)| name.replace(from, to));
    if name == "norm.weight" { "output_norm.weight".to_string() } else { name }
}

/// A Llama fixture as the converter writes it: matrices in `form` where their rows allow it, vectors in f32.
pub(crate) fn llama_gguf(config: &Value, tensors: &Tensors, form: Form) -> Gguf {
    llama_kin_gguf("llama", config, tensors, form)
}

/// A file of another architecture that is written in the same way.
fn llama_kin_gguf(architecture: &str, config: &Value, tensors: &Tensors, form: Form) -> Gguf {
    let number = |field: &str| config[field].as_u64().unwrap() as usize;
    let (heads, kv_heads) = (number("num_attention_heads"), number("num_key_value_heads"));
    let head_dim = config["head_dim"].as_u64().map_or(number("hidden_size") / heads, |head_dim| head_dim as usize);
    let key = |field: &str| format!("{architecture}.{field}");
    let mut gguf = Gguf::default()
        .str("general.architecture", architecture)
        .u32(&key("block_count"), number("num_hidden_layers"))
        .u32(&key("context_length"), number("max_position_embeddings"))
        .u32(&key("embedding_length"), number("hidden_size"))
        .u32(&key("feed_forward_length"), number("intermediate_size"))
        .u32(&key("attention.head_count"), heads)
        .u32(&key("attention.head_count_kv"), kv_heads)
        .u32(&key("attention.key_length"), head_dim)
        .u32(&key("attention.value_length"), head_dim)
        .u32(&key("rope.dimension_count"), head_dim)
        .f32(&key("attention.layer_norm_rms_epsilon"), config["rms_norm_eps"].as_f64().unwrap() as f32)
        .f32(&key("rope.freq_base"), config["rope_parameters"]["rope_theta"].as_f64().unwrap() as f32);
    let scaling = &config["rope_parameters"];
    let of_scaling = |field: &str| scaling[field].as_f64().unwrap() as f32;
    match scaling["rope_type"].as_str().unwrap() {
        "linear" => {
            gguf = gguf.str(&key("rope.scaling.type"), "linear").f32(&key("rope.scaling.factor"), of_scaling("factor"));
        }
        "llama3" => gguf = gguf.tensor("rope_freqs.weight", &llama3_divisors(scaling, 8), Form::F32),
        "yarn" => {
            let trained = scaling["original_max_position_embeddings"].as_u64().unwrap() as usize;
            gguf = gguf
                .str(&key("rope.scaling.type"), "yarn")
                .u32(&key("rope.scaling.original_context_length"), trained)
                .f32(&key("rope.scaling.factor"), of_scaling("factor"))
                .f32(&key("rope.scaling.yarn_beta_fast"), of_scaling("beta_fast"))
                .f32(&key("rope.scaling.yarn_beta_slow"), of_scaling("beta_slow"))
                .f32(&key("rope.scaling.yarn_log_multiplier"), of_scaling("mscale_all_dim"))
                .f32(&key("attention.temperature_scale"), of_scaling("llama_4_scaling_beta"));
        }
        _ => (),
    }
    for (name, tensor) in tensors {
        let form = form_of(tensor, form);
        let tensor = match name {
            name if name.contains("q_proj") => &permuted(tensor, heads),
            name if name.contains("k_proj") => &permuted(tensor, kv_heads),
            _ => tensor,
        };
        gguf = gguf.tensor(&llama_name(name), tensor, form);
    }
    gguf
}

/// The type in which a tensor is written if matrices are written in `form`.
fn form_of(tensor: &Wide, form: Form) -> Form {
    match (tensor.shape.len(), form) {
        (1, _) => Form::F32,
        (_, Form::Q8) if !tensor.shape[1].is_multiple_of(32) => Form::F16,
        _ => form,
    }
}

/// The tensor of divisors that the converter computes for llama3 scaling, with the converter's formula.
fn llama3_divisors(scaling: &Value, head_dim: usize) -> Wide {
    let number = |field: &str| scaling[field].as_f64().unwrap();
    let (factor, trained) = (number("factor"), number("original_max_position_embeddings"));
    let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
    let divisor = |i: usize| {
        let frequency = number("rope_theta").powf(-(2.0 * i as f64) / head_dim as f64);
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength < trained / high {
            1.0
        } else if wavelength > trained / low {
            factor
        } else {
            let smooth = (trained / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    let elements: Vec<f32> = (0..head_dim / 2).map(|i| divisor(i) as f32).collect();
    Wide { shape: vec![elements.len()], elements }
}

#[test]
fn llama_in_gguf() {
    for family in ["llama", "llama-tied", "llama3-rope", "linear-rope", "llama-biased"] {
        let (config, tensors) = (config(&fixture(family)), read(&fixture(family)));
        for form in [Form::F32, Form::F16, Form::BF16, Form::Q8] {
            let round = |(name, wide): (&String, &Wide)| {
                let elements = form_of(wide, form).rounded(&wide.elements);
                (name.clone(), Wide { shape: wide.shape.clone(), elements })
            };
            let expected = logits_of_tensors(&config, &tensors.iter().map(round).collect());
            let found = logits_of_gguf(&llama_gguf(&config, &tensors, form));
            let what = format!("{family} in {form:?}");
            if form == Form::Q8 {
                // Activations are rounded to 8 bits before each product, by up to a 254th of the largest of 32.
                assert_within(0.05, &found, &expected, &what);
            } else {
                assert_near(&found, &expected, &what);
            }
        }
    }
}

/// The file has YaRN with betas and multiplier of its own, and queries that grow with every eighth position.
#[test]
fn ministral3_in_gguf() {
    let tensors = read(&fixture("ministral3"));
    let changes = [
        json!({}),
        json!({"beta_fast": 0.2, "beta_slow": 0.1}),
        json!({"mscale_all_dim": 0.5}),
        json!({"mscale_all_dim": 0.0}),
        json!({"llama_4_scaling_beta": 0.7}),
    ];
    let mut earlier = Vec::new();
    for change in &changes {
        let mut config = config(&fixture("ministral3"));
        let parameters = config["rope_parameters"].as_object_mut().unwrap();
        for fields in [&json!({"original_max_position_embeddings": 8, "rope_theta": 100.0}), change] {
            parameters.extend(fields.as_object().unwrap().clone());
        }
        let expected = logits_of_tensors(&config, &tensors);
        let found = logits_of_gguf(&llama_kin_gguf("mistral3", &config, &tensors, Form::F32));
        assert_near(&found, &expected, &format!("mistral3 with {change}"));
        assert!(earlier.iter().all(|other| *other != found), "{change} has no effect");
        earlier.push(found);
    }
}

#[test]
fn gguf_pairs_are_interleaved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, llama_gguf(&config(&fixture("llama")), &read(&fixture("llama")), Form::F32).bytes()).unwrap();
    let spec = foretoken_model::family::plan(&Checkpoint::open(&path).unwrap()).unwrap().spec;
    assert_eq!(spec.positions.rotations().first().map(|rotation| rotation.pairing), Some(Pairing::Interleaved));
    assert_eq!((spec.vocabulary, spec.width, spec.layers, spec.heads, spec.kv_heads), (96, 32, 2, 4, 2));
}

fn transposed(tensor: &Wide) -> Wide {
    let (rows, columns) = (tensor.shape[0], tensor.shape[1]);
    let at = |i: usize| tensor.elements[i % rows * columns + i / rows];
    Wide { shape: vec![columns, rows], elements: (0..rows * columns).map(at).collect() }
}

fn gpt2_gguf(config: &Value, tensors: &Tensors, form: Form, with_head: bool) -> Gguf {
    let number = |field: &str| config[field].as_u64().unwrap() as usize;
    let mut gguf = Gguf::default()
        .str("general.architecture", "gpt2")
        .u32("gpt2.block_count", number("n_layer"))
        .u32("gpt2.context_length", number("n_positions"))
        .u32("gpt2.embedding_length", number("n_embd"))
        .u32("gpt2.feed_forward_length", number("n_inner"))
        .u32("gpt2.attention.head_count", number("n_head"))
        .f32("gpt2.attention.layer_norm_epsilon", config["layer_norm_epsilon"].as_f64().unwrap() as f32);
    let parts = [
        ("h.", "blk."),
        ("attn.c_attn", "attn_qkv"),
        ("attn.c_proj", "attn_output"),
        ("ln_1", "attn_norm"),
        ("ln_2", "ffn_norm"),
        ("mlp.c_fc", "ffn_up"),
        ("mlp.c_proj", "ffn_down"),
        ("wte", "token_embd"),
        ("wpe", "position_embd"),
        ("ln_f", "output_norm"),
    ];
    for (name, tensor) in tensors {
        let short = name.strip_prefix("transformer.").unwrap();
        let found = parts.iter().fold(short.to_string(), |name, (from, to)| name.replacen(from, to, 1));
        let stored = if name.contains(".c_") && tensor.shape.len() == 2 { &transposed(tensor) } else { tensor };
        gguf = gguf.tensor(&found, stored, if tensor.shape.len() == 1 { Form::F32 } else { form });
    }
    if with_head { gguf.tensor("output.weight", &tensors["transformer.wte.weight"], form) } else { gguf }
}

#[test]
fn gpt2_in_gguf() {
    let (config, tensors) = (config(&fixture("gpt2")), read(&fixture("gpt2")));
    for form in [Form::F32, Form::F16, Form::BF16] {
        let round = |(name, wide): (&String, &Wide)| {
            let elements = if wide.shape.len() == 1 { wide.elements.clone() } else { form.rounded(&wide.elements) };
            (name.clone(), Wide { shape: wide.shape.clone(), elements })
        };
        let expected = logits_of_tensors(&config, &tensors.iter().map(round).collect());
        for with_head in [false, true] {
            let found = logits_of_gguf(&gpt2_gguf(&config, &tensors, form, with_head));
            // The rows have the same order, so nothing is rounded differently.
            assert!(found == expected, "gpt2 in {form:?}, head of its own: {with_head}");
        }
    }
}

/// An untied head is used when the configuration says so, even if the family's heads are usually tied.
#[test]
fn an_untied_head_is_used() {
    for (family, embedding) in [("gpt2", "transformer.wte.weight"), ("llama", "lm_head.weight")] {
        let (mut config, mut tensors) = (config(&fixture(family)), read(&fixture(family)));
        let before = logits_of_tensors(&config, &tensors);
        let mut head = tensors[embedding].clone();
        head.elements.iter_mut().for_each(|x| *x *= 2.0);
        tensors.insert("lm_head.weight".into(), head);
        config["tie_word_embeddings"] = json!(false);
        assert!(logits_of_tensors(&config, &tensors) != before, "{family}");
    }
}

#[test]
fn loading_reports_progress_after_each_layer() {
    let checkpoint = Checkpoint::open(Path::new(&fixture("llama"))).unwrap();
    let mut reports = Vec::new();
    Model::load(&checkpoint, Options::for_positions(8, 1), &mut |done, all| reports.push((done, all))).unwrap();
    assert_eq!(reports, [(1, 2), (2, 2)]);
}
