//! Checks for any `config.json`: reading it does not panic, an error is one line that names the file and the field, and
//! an accepted configuration is a network that can be described, packed and run, or is refused by its tensors.
//!
//! The first byte of an input selects a checkpoint of the golden tests; the bytes after it are edits of its fields
//! ([`edited`]), so that most inputs are configurations of some family that differ in a few fields. Some are packed and
//! run with the tensors of the checkpoint. If the first byte is beyond the last checkpoint, the rest is the text of a
//! configuration. The fuzz target calls the same function.

use std::sync::LazyLock;

use foretoken_model::spec::Experts;
use foretoken_model::{
    Batch, CacheType, Checkpoint, Executor, Model, ModelError, Options, PageId, PageTable, Span, Spec, export, family,
};
use foretoken_weights::Bytes;
use serde_json::{Map, Value, json};

/// The name of the configuration in messages.
const NAME: &str = "probe";
/// Maximum number of layers that are described one by one.
const LAYERS_MAX: usize = 1 << 16;
/// Maximum number of elements of a head.
const HEAD_DIM_MAX: usize = 1 << 12;
/// The largest value of other numbers.
const FIELD_MAX: usize = 1 << 24;
/// Maximum number of edits of one input.
const EDITS_MAX: usize = 8;
/// Number of bytes of one edit.
const EDIT_LEN: usize = 6;
/// One in this many inputs whose last edit is truncated is packed and run, which takes a hundred times as long as
/// reading it; so are all inputs without edits.
const RUN_ONE_IN: u8 = 8;

macro_rules! checkpoints {
    ($($name:literal),* $(,)?) => {
        &[$(Golden {
            config: include_str!(concat!("../golden/", $name, "/config.json")),
            tensors: include_bytes!(concat!("../golden/", $name, "/model.safetensors")),
        }),*]
    };
}

/// A checkpoint of the golden tests.
struct Golden {
    config: &'static str,
    tensors: &'static [u8],
}

/// At least one checkpoint of each family and of each optional feature of a family.
#[rustfmt::skip]
const GOLDENS: &[Golden] = checkpoints![
    "arcee", "baichuan", "baichuan-13b", "bloom", "chatglm", "codegen", "cohere", "cohere-qk-norm", "cohere2",
    "dynamic-rope-above", "dynamic-rope-below", "ernie4_5", "ernie4_5-bias", "falcon", "falcon-11b", "falcon-new",
    "falcon-rw", "gemma", "gemma2", "gemma3", "gemma4", "gemma4-per-layer", "glm", "glm4", "gpt2", "gpt_bigcode",
    "gpt_bigcode-multi-head", "gpt_neox", "gpt_neox-sequential", "gptj", "granite", "hunyuan_v1_dense",
    "hunyuan_v1_dense-bias", "internlm2", "linear-rope", "llama", "llama-biased", "llama-head-dim", "llama-tied",
    "llama3-rope", "longrope", "ministral", "ministral3", "mistral", "mistral-nemo", "olmo2", "olmo3", "opt",
    "opt-350m", "phi", "phi-qk-norm", "phi3", "phi3-long-above", "phi3-long-below", "phi4-mini", "quantized-awq",
    "quantized-float8", "quantized-float8-tensor", "quantized-gptq", "quantized-gptq-zeros", "quantized-packed",
    "quantized-packed-zeros", "qwen", "qwen-long", "qwen2", "qwen2-window", "qwen2-yarn", "qwen3", "seed_oss",
    "seed_oss-bias", "smollm3", "stablelm", "stablelm-parallel", "starcoder2", "starcoder2-window", "yarn-rope",
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared", "glm4_moe", "glm4_moe-groups",
    "ernie4_5_moe", "ernie4_5_moe-least", "gemma4-experts", "gpt_oss", "quantized-mxfp4",
];

/// The number of checkpoints: if the first byte of an input is not below this, the rest is the text itself.
pub const CHECKPOINTS: usize = GOLDENS.len();

/// The material of edits: everything in the configurations of the golden tests, and invalid values.
struct Vocabulary {
    configs: Vec<Value>,
    tensors: Vec<Bytes>,
    fields: Vec<String>,
    values: Vec<Value>,
}

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let configs: Vec<Value> =
        GOLDENS.iter().map(|golden| serde_json::from_str(golden.config).expect("a golden configuration")).collect();
    let (mut fields, mut values) = (Vec::new(), edges());
    configs.iter().for_each(|config| collect(config, &mut fields, &mut values));
    for field in ["text_config", "rope_scaling", "alibi", "mrope_section", "low_freq_factor", "num_local_experts"] {
        fields.push(field.to_string());
    }
    fields.sort_unstable();
    fields.dedup();
    let tensors = GOLDENS.iter().map(|golden| Bytes::from_vec(golden.tensors.to_vec())).collect();
    Vocabulary { configs, tensors, fields, values }
});

/// Edge values of fields.
fn edges() -> Vec<Value> {
    let mut all = vec![json!(null), json!(true), json!(false), json!(""), json!("a\nb"), json!([]), json!({})];
    for number in [0_u64, 1, 2, 3, 5, 7, 8, 31, 32, 64, 65, 4095, 4097, 65_535, 65_537] {
        all.push(json!(number));
    }
    for power in [20, 24, 25, 31, 32, 53, 62, 63] {
        all.extend([json!(1_u64 << power), json!((1_u64 << power) - 1)]);
    }
    all.extend([json!(u64::MAX), json!(-1), json!(i64::MIN)]);
    for number in [0.0, -0.0, 0.5, 1.5, -1.5, 1e-45, 1e-300, 1e30, 3.5e38, 1e300, f64::MAX] {
        all.push(json!(number));
    }
    all.extend([json!([1]), json!([0]), json!([1e300]), json!(["full_attention"]), json!([[1]]), json!({"a": {}})]);
    all.push(json!(vec!["sliding_attention"; 9]));
    all.push(json!(vec![1.0; 4]));
    all.push(json!("y".repeat(10_000)));
    all
}

/// Collects the fields and values of a configuration, including nested objects.
fn collect(value: &Value, fields: &mut Vec<String>, values: &mut Vec<Value>) {
    let Value::Object(object) = value else { return };
    for (field, value) in object {
        fields.push(field.clone());
        if !values.contains(value) {
            values.push(value.clone());
        }
        collect(value, fields, values);
    }
}

/// Reads a configuration made of bytes. Returns whether it is accepted, with any tensors.
pub fn config(data: &[u8]) -> bool {
    let Some((first, rest)) = data.split_first() else { return false };
    let Some(golden) = VOCABULARY.configs.get(usize::from(*first)) else { return document(rest, None) };
    let config = edited(golden.clone(), rest);
    let tail = rest.chunks_exact(EDIT_LEN).remainder();
    let is_run = rest.is_empty() || tail.len() == EDIT_LEN - 1 && tail[0].is_multiple_of(RUN_ONE_IN);
    document(config.to_string().as_bytes(), is_run.then(|| VOCABULARY.tensors[usize::from(*first)].clone()))
}

/// A configuration after edits of six bytes each: which nested object, which field (of its own or of all known ones),
/// and the change.
fn edited(mut config: Value, edits: &[u8]) -> Value {
    for edit in edits.chunks_exact(EDIT_LEN).take(EDITS_MAX) {
        let [object, kind, field_low, field_high, low, high] = edit.try_into().expect("six bytes");
        let number = u16::from_le_bytes([low, high]);
        let field = usize::from(u16::from_le_bytes([field_low, field_high]));
        if kind == u8::MAX {
            config = json!({ "model_type": (["gemma3", "gemma4", "mistral3"][field % 3]), "text_config": config });
            continue;
        }
        let all = objects(&config);
        let path = all[usize::from(object) % all.len()].clone();
        let Some(Value::Object(fields)) = config.pointer_mut(&path) else { unreachable!("{path} is an object") };
        edit_field(fields, kind, field, number);
    }
    config
}

/// The pointers of all objects in a value.
fn objects(value: &Value) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut at = 0;
    while at < all.len() {
        let path = all[at].clone();
        for (field, value) in value.pointer(&path).and_then(Value::as_object).into_iter().flatten() {
            if value.is_object() {
                all.push(format!("{path}/{}", field.replace('~', "~0").replace('/', "~1")));
            }
        }
        at += 1;
    }
    all
}

fn edit_field(fields: &mut Map<String, Value>, kind: u8, field: usize, number: u16) {
    let known = &*VOCABULARY;
    let own = fields.keys().nth(field % fields.len().max(1)).filter(|_| kind.is_multiple_of(2));
    let name = own.unwrap_or(&known.fields[field % known.fields.len()]).clone();
    let value = match kind / 2 % 5 {
        0 => {
            fields.remove(&name);
            return;
        }
        1 => json!(number),
        2 => json!(f64::from(i32::from(number) - 32768) / 256.0),
        3 => fields.values().nth(usize::from(number) % fields.len().max(1)).cloned().unwrap_or_default(),
        _ => known.values[usize::from(number) % known.values.len()].clone(),
    };
    fields.insert(name, value);
}

/// Reads the text of a configuration, without tensors and with those of a checkpoint. Returns whether it is accepted.
pub fn document(text: &[u8], tensors: Option<Bytes>) -> bool {
    let mut none = 2_u64.to_le_bytes().to_vec();
    none.extend(b"{}");
    let bare = match Checkpoint::from_parts(NAME, text, Bytes::from_vec(none)) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return refuse(&error),
    };
    let spec = match family::plan(&bare).map(|plan| plan.spec) {
        Ok(spec) => spec,
        Err(error) => return refuse(&error),
    };
    check(&spec);
    let written = export::gguf(&bare).map(drop);
    refuse(&written.expect_err("a network without tensors was written"));
    if let Some(tensors) = tensors {
        let options = Options { context: Some(spec.context_max * 2), ..Options::for_positions(32, 1) };
        let loaded = Model::load(&bare, options, &mut |_, _| ()).map(drop);
        refuse(&loaded.expect_err("a network without tensors was loaded"));
        let whole = Checkpoint::from_parts(NAME, text, tensors).unwrap_or_else(|error| panic!("{error}"));
        export::gguf(&whole).map_or_else(|error| refuse(&error), |_| true);
        match Model::load(&whole, options.with_cache(CacheType::F32), &mut |_, _| ()) {
            Ok(mut model) => run(&mut model),
            Err(error) => drop(refuse(&error)),
        }
    }
    true
}

/// Asserts that a description is valid: no computation with it overflows, divides by zero or never ends.
fn check(spec: &Spec) {
    let Spec { vocabulary, width, embedding_width, layers, heads, kv_heads, head_dim, ffn_width, context_max, .. } =
        spec;
    for number in [vocabulary, width, embedding_width, layers, heads, kv_heads, ffn_width, context_max] {
        assert!((1..=FIELD_MAX).contains(number), "{number} in {spec:?}");
    }
    assert!((1..=HEAD_DIM_MAX).contains(head_dim) && heads.is_multiple_of(*kv_heads), "heads of {spec:?}");
    assert!((1..=LAYERS_MAX).contains(&spec.attention.len()), "{} kinds of layers", spec.attention.len());
    let rotations = spec.positions.rotations();
    for layer in 0..spec.attention.len().min(*layers) {
        let attention = spec.attention_of(layer);
        assert!(attention.rotation.is_none_or(|rotation| rotation < rotations.len()), "layer {layer} of {spec:?}");
        assert!(attention.window != Some(0), "layer {layer} has an empty window: {spec:?}");
        let own = spec.kv_heads_of(layer);
        assert!((1..=HEAD_DIM_MAX).contains(&own.head_dim), "layer {layer}: {own:?}");
        assert!(own.count > 0 && heads.is_multiple_of(own.count), "layer {layer}: {own:?}");
    }
    for rotation in rotations {
        assert!(rotation.frequencies.len() <= HEAD_DIM_MAX / 2, "{} frequencies", rotation.frequencies.len());
        let numbers = rotation.frequencies.iter().chain([&rotation.magnitude]);
        assert!(numbers.clone().all(|number| number.is_finite()), "{rotation:?}");
    }
    let slopes = spec.positions.slopes();
    assert!(slopes.is_empty() || slopes.len() == *heads && slopes.iter().all(|slope| slope.is_finite()), "{slopes:?}");
    if let Some(experts) = &spec.experts {
        check_experts(experts);
    }
    assert!(spec.kv_layers() >= 1 && spec.kv_layers() <= *layers, "{spec:?}");
    for layer in [0, spec.kv_layers() - 1, spec.kv_layers().min(layers - 1), layers - 1] {
        assert!(spec.kv_layer_of(layer) < spec.kv_layers(), "layer {layer} of {spec:?}");
    }
    let numbers = [spec.attention_scale, spec.embedding_multiplier, spec.residual_multiplier, spec.logit_multiplier];
    assert!(numbers.iter().all(|number| number.is_finite()), "{spec:?}");
    assert!(spec.cache_bytes_per_position([CacheType::F32; 2]) > 0);
}

/// Asserts that every row finds as many experts as it chooses.
fn check_experts(experts: &Experts) {
    let Experts { count, chosen, ffn_width, router, shared, beside_dense: _, layers } = experts;
    for number in [*count, *ffn_width, shared.map_or(1, |shared| shared.ffn_width)] {
        assert!((1..=FIELD_MAX).contains(&number), "{number} in {experts:?}");
    }
    assert!((1..=LAYERS_MAX).contains(&layers.len()), "{} kinds of layers", layers.len());
    let open = router.groups.map_or(*count, |groups| {
        assert!(count.is_multiple_of(groups.count) && (1..=groups.count).contains(&groups.chosen), "{experts:?}");
        count / groups.count * groups.chosen
    });
    assert!((1..=open).contains(chosen), "{experts:?}");
    let numbers = router.divided.map_or([0.0; 2], |sum| [sum.added, sum.least]);
    assert!(router.factor.is_finite() && numbers.iter().all(|number| number.is_finite()), "{experts:?}");
}

/// Scores a few tokens and checks that there is a logit for each token of the vocabulary.
fn run(model: &mut Model) {
    let groups = model.capacity().groups.clone();
    let table = |group: &foretoken_model::Group| (0..group.pages_for(4) as u32).map(PageId).collect();
    let tables: Vec<PageTable> = groups.iter().map(table).collect();
    // A context may be shorter than 4.
    let tokens = vec![0; 4.min(model.capacity().context_max)];
    let wanted = [0, tokens.len() as u32 - 1];
    let wanted = &wanted[..tokens.len().min(2)];
    let span = Span { sequence: 0, tables: &tables, start: 0, tokens: &tokens, wanted, ..Span::default() };
    model.forward(&Batch { spans: &[span], hidden_layers: &[] }).unwrap_or_else(|error| panic!("{error}"));
    let vocabulary = model.spec().vocabulary;
    assert!((0..wanted.len()).all(|row| model.outputs().row(row).len() == vocabulary));
}

fn refuse(error: &ModelError) -> bool {
    let message = error.to_string();
    assert!(message.starts_with(NAME), "does not name the file: {message}");
    assert!(!message.contains(char::is_control), "not one line: {message:?}");
    assert!(message.contains("expected") || message.contains("missing"), "does not say what was expected: {message}");
    assert!(message.len() < 8192, "too long: {} bytes", message.len());
    false
}
