//! Tests of networks of experts: contradictory configurations are refused, and a network is the same however its
//! experts are stored: in a tensor for each matrix, fused as in transformers 5, or as in a GGUF file.

use foretoken_model::{Batch, CacheType, Checkpoint, Executor, Model, Options, PageId, PageTable, Span, family};
use foretoken_weights::Bytes;
use serde_json::{Value, json};

use crate::bad_input::{FILE, refused, refused_tensors};
use crate::files::{Form, Gguf, Tensors, Wide, config, read, safetensors_file};
use crate::forms::{logits_of_gguf, logits_of_tensors};
use crate::{fixture, load_with, logits};

/// A golden network.
struct Golden {
    config: Value,
    tensors: Tensors,
}

impl Golden {
    fn new(name: &str) -> Self {
        Self { config: config(&fixture(name)), tensors: read(&fixture(name)) }
    }

    fn logits(&self) -> Vec<f32> {
        logits_of_tensors(&self.config, &self.tensors)
    }

    /// The first of these fields that is present, as a number.
    fn number(&self, fields: &[&str]) -> usize {
        let found = fields.iter().find_map(|field| self.config[*field].as_u64());
        found.unwrap_or_else(|| panic!("none of {fields:?}")) as usize
    }

    fn layers(&self) -> usize {
        self.number(&["num_hidden_layers"])
    }

    /// Removes the experts of a layer from the tensors and returns all gate, all up and all down matrices; `None` if
    /// the layer has none.
    fn take_experts(&mut self, prefix: &str, names: [&str; 3]) -> Option<[Vec<Wide>; 3]> {
        let take = |name: &str, tensors: &mut Tensors| {
            (0..).map_while(|number| tensors.remove(&format!("{prefix}.{number}.{name}.weight"))).collect::<Vec<_>>()
        };
        let all = names.map(|name| take(name, &mut self.tensors));
        (!all[0].is_empty()).then_some(all)
    }

    /// The network as in transformers 5's memory: gate and up of all experts of a layer in one tensor.
    fn fused(mut self, prefix: &str, names: [&str; 3]) -> Self {
        for layer in 0..self.layers() {
            let Some([gates, ups, downs]) = self.take_experts(&format!("model.layers.{layer}.{prefix}"), names) else {
                continue;
            };
            let both = in_one(gates, ups);
            self.tensors.insert(format!("model.layers.{layer}.mlp.experts.gate_up_proj"), both);
            self.tensors.insert(format!("model.layers.{layer}.mlp.experts.down_proj"), stacked(&downs));
        }
        self
    }

    /// The network with parts of its tensors' names replaced.
    fn renamed(self, parts: &[(&str, &str)]) -> Self {
        let rename = |name: String| parts.iter().fold(name, |name, (from, to)| name.replace(from, to));
        Self { tensors: self.tensors.into_iter().map(|(name, tensor)| (rename(name), tensor)).collect(), ..self }
    }
}

/// Matrices of one shape as one tensor.
fn stacked(all: &[Wide]) -> Wide {
    let shape = [&[all.len()][..], &all[0].shape].concat();
    Wide { shape, elements: all.iter().flat_map(|wide| wide.elements.clone()).collect() }
}

/// The rows of gate and up of all experts in one tensor.
fn in_one(gates: Vec<Wide>, ups: Vec<Wide>) -> Wide {
    let both: Vec<Wide> = gates.into_iter().zip(ups).flat_map(|(gate, up)| [gate, up]).collect();
    let Wide { shape, elements } = stacked(&both);
    Wide { shape: vec![shape[0] / 2, 2 * shape[1], shape[2]], elements }
}

const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

#[test]
fn fused_experts_have_the_logits_of_single_ones() {
    const PREFIX: &str = "mlp.experts";
    for name in ["qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "glm4_moe-groups", "ernie4_5_moe"] {
        let statics = [("mlp.moe_statics", "mlp.gate.moe_statics")];
        let fused = Golden::new(name).fused(PREFIX, PROJECTIONS).renamed(&statics);
        assert!(fused.tensors.keys().any(|name| name.ends_with(".mlp.experts.gate_up_proj")), "{name}");
        assert!(fused.logits() == Golden::new(name).logits(), "{name}");
    }
    let mixtral = Golden::new("mixtral").fused("block_sparse_moe.experts", ["w1", "w3", "w2"]);
    let mixtral = mixtral.renamed(&[("block_sparse_moe.gate", "mlp.gate")]);
    assert!(mixtral.logits() == Golden::new("mixtral").logits());
    // The experts of Granite are also fused in files, with other names.
    for name in ["granitemoe", "granitemoeshared"] {
        let held = Golden::new(name).renamed(&[
            ("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"),
            ("block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.down_proj"),
            ("block_sparse_moe.router.layer", "block_sparse_moe.router"),
        ]);
        assert!(held.logits() == Golden::new(name).logits(), "{name}");
    }
}

/// A key of a file and its value.
pub(crate) enum Key {
    Count(&'static str, usize),
    Number(&'static str, f32),
    Truth(&'static str, bool),
}

/// A golden network as a file of an architecture whose queries and keys are not permuted.
fn gguf(name: &str, architecture: &str, keys: &[Key]) -> Gguf {
    gguf_of((name, false), architecture, keys)
}

/// A golden network as such a file, with gate and up of all experts in one tensor if `fused`.
pub(crate) fn gguf_of((name, fused): (&str, bool), architecture: &str, keys: &[Key]) -> Gguf {
    let mut golden = Golden::new(name);
    let key = |field: &str| format!("{architecture}.{field}");
    let (width, heads) = (golden.number(&["hidden_size"]), golden.number(&["num_attention_heads"]));
    let head_dim = golden.config["head_dim"].as_u64().map_or(width / heads, |head_dim| head_dim as usize);
    let rope = golden.config["rope_parameters"].clone();
    let part = rope["partial_rotary_factor"].as_f64().unwrap_or(1.0);
    let mut file = Gguf::default().str("general.architecture", architecture);
    for (field, count) in [
        ("block_count", golden.layers()),
        ("context_length", golden.number(&["max_position_embeddings"])),
        ("embedding_length", width),
        ("feed_forward_length", golden.number(&["intermediate_size"])),
        ("attention.head_count", heads),
        ("attention.head_count_kv", golden.number(&["num_key_value_heads"])),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("rope.dimension_count", (head_dim as f64 * part) as usize),
        ("expert_count", golden.number(&["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"])),
        ("expert_used_count", golden.number(&["num_experts_per_tok", "moe_k"])),
    ] {
        file = file.u32(&key(field), count);
    }
    file = file.f32(&key("attention.layer_norm_rms_epsilon"), golden.config["rms_norm_eps"].as_f64().unwrap() as f32);
    file = file.f32(&key("rope.freq_base"), rope["rope_theta"].as_f64().unwrap() as f32);
    for one in keys {
        file = match *one {
            Key::Count(field, count) => file.u32(&key(field), count),
            Key::Number(field, number) => file.f32(&key(field), number),
            Key::Truth(field, truth) => file.bool(&key(field), truth),
        };
    }
    for layer in 0..golden.layers() {
        let experts = golden.take_experts(&format!("model.layers.{layer}.mlp.experts"), PROJECTIONS);
        let Some([gates, ups, downs]) = experts else { continue };
        let gates = match fused {
            true => vec![("gate_up", in_one(gates, ups))],
            false => vec![("gate", stacked(&gates)), ("up", stacked(&ups))],
        };
        for (name, all) in gates.into_iter().chain([("down", stacked(&downs))]) {
            file = file.tensor(&format!("blk.{layer}.ffn_{name}_exps.weight"), &all, Form::F32);
        }
    }
    let norm = if architecture == "glm4moe" { "post_attention_norm" } else { "ffn_norm" };
    let golden = golden.renamed(&[
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", norm),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias"),
        ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        ("mlp.shared_experts.", "mlp.shared_expert."),
        ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp.gate.", "ffn_gate_inp."),
    ]);
    golden.tensors.iter().fold(file, |file, (name, tensor)| file.tensor(name, tensor, Form::F32))
}

fn sigmoid(normed: bool, factor: f32) -> Vec<Key> {
    let scoring = Key::Count("expert_gating_func", 2);
    vec![scoring, Key::Truth("expert_weights_norm", normed), Key::Number("expert_weights_scale", factor)]
}

/// The router's keys in the file of `glm4_moe-groups`.
pub(crate) fn sigmoid_in_groups() -> Vec<Key> {
    let mut keys = sigmoid(false, 0.5);
    keys.extend([Key::Count("expert_group_count", 4), Key::Count("expert_group_used_count", 2)]);
    keys
}

#[test]
fn files_have_the_logits_of_folders() {
    for (name, architecture, keys) in [
        ("qwen2_moe", "qwen2moe", Vec::new()),
        ("qwen3_moe", "qwen3moe", Vec::new()),
        ("olmoe", "olmoe", Vec::new()),
        ("glm4_moe", "glm4moe", sigmoid(true, 1.5)),
        ("glm4_moe-groups", "glm4moe", sigmoid_in_groups()),
        ("ernie4_5_moe", "ernie4_5-moe", Vec::new()),
    ] {
        assert!(logits_of_gguf(&gguf(name, architecture, &keys)) == Golden::new(name).logits(), "{name}");
    }
    let fused = logits_of_gguf(&gguf_of(("qwen2_moe", true), "qwen2moe", &[]));
    assert!(fused == Golden::new("qwen2_moe").logits());
    // These keys change the network: another factor, weights that are not normalized, and a softmax over the chosen
    // experts.
    let other = logits_of_gguf(&gguf("glm4_moe", "glm4moe", &sigmoid(true, 1.0)));
    assert!(other != Golden::new("glm4_moe").logits());
    let of_chosen = logits_of_gguf(&gguf("olmoe", "olmoe", &[Key::Count("expert_gating_func", 3)]));
    let mut normalized = Golden::new("olmoe");
    normalized.config["norm_topk_prob"] = json!(true);
    assert!(of_chosen == normalized.logits() && of_chosen != Golden::new("olmoe").logits());
    // The weights of such a softmax have the sum 1, whatever the key says, and a single group has no effect.
    let same = [Key::Count("expert_gating_func", 3), Key::Truth("expert_weights_norm", false)];
    let alone = [Key::Count("expert_gating_func", 3), Key::Count("expert_group_count", 1)];
    assert!([same, alone].iter().all(|keys| logits_of_gguf(&gguf("olmoe", "olmoe", keys)) == of_chosen));
}

/// Experts that are stored in both ways, or partly missing, are refused.
#[test]
fn experts_that_are_stored_twice_or_incompletely_are_refused() {
    let twice = |tensors: &mut Tensors| {
        let fused = Wide { shape: vec![8, 32, 32], elements: vec![0.5; 8 * 32 * 32] };
        tensors.insert("model.layers.0.mlp.experts.gate_up_proj".to_string(), fused);
    };
    refused_tensors("olmoe", twice, &["model.layers.0.mlp.experts.gate_up_proj", "expected none of this name"]);
    let half = |tensors: &mut Tensors| {
        tensors.remove("model.layers.0.block_sparse_moe.output_linear.weight");
    };
    refused_tensors("granitemoe", half, &["expected tensor", "layers.0.block_sparse_moe.output_linear.weight"]);
    let narrow = json!({"intermediate_size": 15});
    refused("granitemoe", narrow, &["block_sparse_moe.input_linear.weight", "[6, 30, 32]", "[6, 32, 32]"]);
}

#[test]
fn corrections_that_are_missing_infinite_or_misshapen_are_refused() {
    let glm = "model.layers.1.mlp.gate.e_score_correction_bias";
    let gone = |tensors: &mut Tensors| assert!(tensors.remove(glm).is_some());
    refused_tensors("glm4_moe", gone, &[glm, "expected tensor"]);
    let infinite = |tensors: &mut Tensors| tensors.get_mut(glm).unwrap().elements[2] = f32::INFINITY;
    refused_tensors("glm4_moe", infinite, &[glm, "finite numbers", "found inf"]);
    let ernie = "model.layers.1.mlp.moe_statics.e_score_correction_bias";
    let short =
        |tensors: &mut Tensors| *tensors.get_mut(ernie).unwrap() = Wide { shape: vec![1, 5], elements: vec![0.0; 5] };
    refused_tensors("ernie4_5_moe", short, &[ernie, "shape: expected [1, 6], found [1, 5]"]);
}

#[test]
fn impossible_groups_are_refused() {
    const GLM: &str = "glm4_moe-groups";
    refused(GLM, json!({"n_group": 3}), &[FILE, "n_group", "groups of one size", "n_routed_experts, 8", "found 3"]);
    refused(GLM, json!({"n_group": 8}), &[FILE, "n_group", "at least 2 of n_routed_experts, 8", "found 8"]);
    refused(GLM, json!({"n_group": 0}), &[FILE, "topk_group", "from 1 to n_group, 0", "found 2"]);
    refused(GLM, json!({"topk_group": 5}), &[FILE, "topk_group", "from 1 to n_group, 4", "found 5"]);
    refused(GLM, json!({"topk_group": 1}), &[FILE, "topk_group", "at least the 3 experts", "found 1"]);
    refused(GLM, json!({"num_experts_per_tok": 9}), &[FILE, "num_experts_per_tok", "n_routed_experts, 8", "found 9"]);
}

#[test]
fn which_layers_have_experts_and_how_many() {
    refused("glm4_moe", json!({"first_k_dense_replace": 2}), &["test/model.safetensors", "layers.1.mlp.gate_proj"]);
    refused("glm4_moe", json!({"first_k_dense_replace": 0}), &["test/model.safetensors", "layers.0.mlp"]);
    refused("glm4_moe", json!({"n_shared_experts": 2}), &["shared_experts.gate_proj.weight", "[32, 24]", "[16, 24]"]);
    refused("glm4_moe", json!({"n_shared_experts": 0}), &["mlp.shared_experts", "expected none of this name"]);
    refused("glm4_moe", json!({"use_qk_norm": true}), &["test/model.safetensors", "self_attn.k_norm.weight"]);
    const ERNIE: &str = "ernie4_5_moe-least";
    refused(ERNIE, json!({"moe_k": 5}), &[FILE, "moe_k", "at most moe_num_experts, 4", "found 5"]);
    refused(ERNIE, json!({"moe_layer_interval": 0}), &[FILE, "moe_layer_interval", "from 1 to"]);
    refused(ERNIE, json!({"moe_layer_interval": 1}), &["test/model.safetensors", "layers.2.mlp"]);
    refused(ERNIE, json!({"moe_layer_end_index": -1}), &["test/model.safetensors", "layers.3.mlp"]);
    refused(ERNIE, json!({"moe_layer_end_index": -2}), &[FILE, "moe_layer_end_index", "a whole number", "found -2"]);
    refused(ERNIE, json!({"moe_layer_start_index": 2}), &["test/model.safetensors", "layers.1.mlp"]);
    refused(ERNIE, json!({"moe_norm_min": -0.5}), &[FILE, "moe_norm_min", "at least 0", "found -0.5"]);
    refused(ERNIE, json!({"use_bias": true}), &[FILE, "use_bias", "false", "found true"]);
    refused("granitemoe", json!({"num_local_experts": 0}), &[FILE, "num_local_experts", "from 1 to"]);
    refused("granitemoe", json!({"num_experts_per_tok": 7}), &[FILE, "num_experts_per_tok", "num_local_experts, 6"]);
    let shared = json!({"shared_intermediate_size": 0});
    refused("granitemoeshared", shared, &["shared_mlp.input_linear.weight", "expected none of this name"]);
}

#[test]
fn experts_that_contradict_the_configuration() {
    let chosen = json!({"num_experts_per_tok": 5});
    refused("mixtral", chosen, &[FILE, "num_experts_per_tok", "at most num_local_experts, 4", "found 5"]);
    refused("mixtral", json!({"num_local_experts": 0}), &[FILE, "num_local_experts", "from 1 to"]);
    refused("mixtral", json!({"num_local_experts": 4097}), &[FILE, "num_local_experts", "at most 4096", "found 4097"]);
    let many = json!({"num_local_experts": 4096, "num_hidden_layers": 65});
    refused("mixtral", many, &[FILE, "experts", "at most 262144 of all layers", "found 266240"]);
    refused("mixtral", json!({"num_local_experts": 5}), &["test/model.safetensors", "experts.4.w1.weight"]);
    // With fewer experts than the file has it would be a different network.
    refused("mixtral", json!({"num_local_experts": 3}), &["test/model.safetensors", "block_sparse_moe"]);
    refused("qwen2_moe", json!({"mlp_only_layers": [0]}), &["test/model.safetensors", "model.layers.0.mlp.gate_proj"]);
    refused("qwen3_moe", json!({"decoder_sparse_step": 0}), &[FILE, "decoder_sparse_step", "from 1 to"]);
    refused(
        "qwen2_moe",
        json!({"shared_expert_intermediate_size": 25}),
        &["shared_expert.gate_proj.weight", "[25, 32]"],
    );
    refused("olmoe", json!({"clip_qkv": 8.0}), &[FILE, "clip_qkv", "null", "found 8"]);
    let gemma4 = |changes: Value, parts: &[&str]| refused("gemma4-experts", changes, parts);
    gemma4(json!({"num_experts": null}), &[FILE, "num_experts", "a whole number", "nothing"]);
    gemma4(json!({"moe_intermediate_size": null}), &[FILE, "moe_intermediate_size", "a whole number", "nothing"]);
    gemma4(json!({"top_k_experts": 7}), &[FILE, "top_k_experts", "at most num_experts, 6", "found 7"]);
    gemma4(json!({"num_experts": 5}), &["test/model.safetensors", "layers.0.", "[6, ", "[5, "]);
    gemma4(json!({"moe_intermediate_size": 4}), &["experts.gate_up_proj", "[6, 8, 24]", "[6, 16, 24]"]);
    // Without experts it would be a different network.
    gemma4(json!({"enable_moe_block": false}), &["test/model.safetensors", "model.layers.0.experts.down_proj"]);
    refused("gpt_oss", json!({"sliding_window": null}), &[FILE, "sliding_window", "a number of positions"]);
    refused("gpt_oss", json!({"swiglu_limit": 0.0}), &[FILE, "swiglu_limit", "above 0", "found 0"]);
    refused("gpt_oss", json!({"rope_parameters": null}), &[FILE, "rope_parameters", "found nothing"]);
    refused("gpt_oss", json!({"intermediate_size": 17}), &["experts.gate_up_proj_bias", "[6, 34]", "[6, 32]"]);
    refused("gpt_oss", json!({"num_local_experts": 5}), &["experts.gate_up_proj_bias", "[5, 32]", "[6, 32]"]);
    let router = |tensors: &mut Tensors| {
        let tensor = tensors.get_mut("model.layers.1.mlp.gate.weight").unwrap();
        tensor.shape = vec![32, 8];
    };
    refused_tensors("olmoe", router, &["model.layers.1.mlp.gate.weight", "shape: expected [8, 32], found [32, 8]"]);
}

/// A token reads all matrices of the file but the embedding and the experts that it does not choose, and a pass of one
/// row reads at least as much: matrices are packed in panels of 16 outputs.
#[test]
fn a_token_reads_the_experts_that_it_chooses() {
    for name in ["mixtral", "qwen2_moe", "granitemoe", "glm4_moe", "ernie4_5_moe-least", "gpt_oss"] {
        let golden = Golden::new(name);
        let count = golden.number(&["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"]);
        let chosen = golden.number(&["num_experts_per_tok", "moe_k"]);
        let network = family::read(&Checkpoint::open(&fixture(name)).unwrap(), None).unwrap();
        let is_tied = golden.config["tie_word_embeddings"] == json!(true);
        let is_left = |name: &str| {
            name.contains("embed_tokens") && !is_tied
                || name.ends_with("bias")
                || network.left_out.iter().any(|left| left == name)
        };
        let (mut expected, mut of_experts) = (0, 0);
        for (name, wide) in golden.tensors.iter().filter(|(name, wide)| wide.shape.len() > 1 && !is_left(name)) {
            let is_of_expert = name.contains(".experts.") || wide.shape.len() == 3;
            expected += 4 * wide.elements.len();
            of_experts += if is_of_expert { 4 * wide.elements.len() } else { 0 };
        }
        expected -= of_experts / count * (count - chosen);
        assert_eq!(network.token_bytes(), expected, "{name}");
        let mut model = load_with(&fixture(name), Options::for_positions(16, 1));
        logits(&mut model, &[1], &[1]);
        let packed = model.weights_read().bytes;
        assert!((expected..2 * expected).contains(&packed), "{name}: {packed} bytes, in the file {expected}");
    }
}

/// A row with NaN scores has NaN logits, and the other rows of the pass have the logits that they have alone, although
/// they go through the same experts.
#[test]
fn nan_stays_in_its_row() {
    const WRONG: u32 = 5;
    for name in ["mixtral", "glm4_moe-groups", "ernie4_5_moe"] {
        let mut golden = Golden::new(name);
        let embedding = golden.tensors.get_mut("model.embed_tokens.weight").unwrap();
        let width = embedding.shape[1];
        embedding.elements[WRONG as usize * width..][..width].fill(f32::NAN);
        // With a tied head, the logit of this token would be NaN in every row.
        if golden.config["tie_word_embeddings"] == json!(true) {
            golden.config["tie_word_embeddings"] = json!(false);
            let rows = Golden::new(name).tensors["model.embed_tokens.weight"].clone();
            golden.tensors.insert("lm_head.weight".to_string(), rows);
        }
        let file = Bytes::from_vec(safetensors_file(&golden.tensors, Form::F32, 0));
        let checkpoint = Checkpoint::from_parts("test", golden.config.to_string().as_bytes(), file).unwrap();
        let options = Options::for_positions(128, 2).with_cache(CacheType::F32);
        let mut model = Model::load(&checkpoint, options, &mut |_, _| ()).unwrap();
        let tokens = [1, 9, 17, 33];
        let alone = logits(&mut model, &tokens, &[4]);
        let pages = model.capacity().groups[0].pages_for(4) as u32;
        let table = |first: u32| vec![(first..first + pages).map(PageId).collect::<PageTable>()];
        let [own, other] = [table(0), table(pages)];
        let plain = Span { start: 0, wanted: &[0, 1, 2, 3], ..Span::default() };
        let spans = [
            Span { sequence: 1, tables: &other, tokens: &[WRONG; 4], ..plain },
            Span { sequence: 0, tables: &own, tokens: &tokens, ..plain },
        ];
        model.forward(&Batch { spans: &spans, hidden_layers: &[] }).unwrap();
        let row = |row: usize| model.outputs().row(row).to_vec();
        assert!((0..4).flat_map(row).all(|logit| logit.is_nan()), "{name}");
        assert!((4..8).flat_map(row).collect::<Vec<_>>() == alone, "{name}");
    }
}
