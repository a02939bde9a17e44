//! Tests of quantized Hugging Face checkpoints: their logits are those of transformers for the floats that they
//! represent, and bad checkpoints are refused.
//!
//! The goldens were packed by `bench/peers/quantized.py` from known integers. The bits of every weight are tested with
//! the reader (`src/quantized.rs`), GGUF's blocks in `blocks.rs`.

use std::path::Path;

use foretoken_kernels::Pool;
use foretoken_model::network::{Dense, Ffn, Inner};
use foretoken_model::{CacheType, Checkpoint, Model, Options};
use foretoken_weights::{Tensor, Weights, safetensors};
use serde_json::{Value, json};

use crate::files::config;
use crate::forms::assert_within;
use crate::rows::{Subject, play_subject};
use crate::{fixture, logits};

/// Checkpoints in blocks of 4 bits, whose products round activations to 8 bits.
const INTEGERS: [&str; 6] = [
    "quantized-gptq",
    "quantized-gptq-zeros",
    "quantized-awq",
    "quantized-packed",
    "quantized-packed-zeros",
    "quantized-mxfp4",
];
/// The allowed error of their logits in this narrow network, relative to the largest: the measured one is up to 0.064,
/// and a zero point that is off by one makes it 1.19.
const NEAR: f32 = 0.1;

/// Checkpoints in floats, whose products do not round activations.
const FLOATS: [&str; 2] = ["quantized-float8", "quantized-float8-tensor"];

fn elements<T: bytemuck::AnyBitPattern>(weights: &Weights, name: &str) -> Vec<T> {
    weights.get(name).unwrap().bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// The logits for the tokens of a golden folder: those of a checkpoint, and transformers'.
fn logits_of(folder: &Path, golden: &str) -> (Vec<f32>, Vec<f32>) {
    let golden = safetensors::open(fixture(golden).join("golden.safetensors")).unwrap();
    let options = Options::for_positions(64, 2).with_cache(CacheType::F32);
    let checkpoint = Checkpoint::open(folder).unwrap_or_else(|error| panic!("{error}"));
    let mut model = Model::load(&checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"));
    let tokens: Vec<u32> = elements(&golden, "tokens");
    (logits(&mut model, &tokens, &[tokens.len()]), elements(&golden, "logits"))
}

#[test]
fn integers_have_nearly_the_logits_of_their_floats() {
    for name in INTEGERS {
        let (found, expected) = logits_of(&fixture(name), name);
        assert_within(NEAR, &found, &expected, name);
    }
}

#[test]
fn floats_of_8_bits_have_the_logits_of_their_floats() {
    for name in FLOATS {
        let (found, expected) = logits_of(&fixture(name), name);
        assert_within(1e-5, &found, &expected, name);
    }
}

#[test]
fn rows_are_scored_as_if_alone() {
    for name in ["quantized-gptq", "quantized-awq", "quantized-float8", "quantized-mxfp4"] {
        play_subject(&Subject::new(&fixture(name), [CacheType::F16; 2]), 4);
    }
}

/// The matrices of one expert have the floats that transformers reads.
#[test]
fn experts_in_mxfp4_are_exact() {
    let folder = fixture("quantized-mxfp4");
    let network = foretoken_model::family::read(&Checkpoint::open(&folder).unwrap(), None).unwrap();
    let Ffn::Experts(experts) = &network.layers[1].ffn else { panic!("no experts") };
    let Dense { inner: Inner::Gated { gate, up, .. }, down } = &experts.all[2] else { panic!("no gates") };
    let golden = safetensors::open(folder.join("golden.safetensors")).unwrap();
    for (name, matrix) in [("gate", gate), ("up", up), ("down", down)] {
        let expected: Vec<f32> = elements(&golden, name);
        let all = matrix.read(&Pool::new(2)).unwrap();
        assert_eq!((all.dtype(), all.floats() == expected), ("MXFP4", true), "{name}");
        // This is a rank's part of the outputs.
        let [outputs, inputs] = matrix.shape();
        let part = matrix.outputs(outputs / 4..outputs / 2).read(&Pool::new(1)).unwrap();
        assert!(part.floats() == expected[outputs / 4 * inputs..outputs / 2 * inputs], "{name}");
    }
}

#[test]
fn malformed_experts_in_mxfp4_are_refused() {
    let (name, scales) = ("quantized-mxfp4", "layers.1.mlp.experts.down_proj_scales");
    Changed::new(name).without(scales).refused(&["model.safetensors", scales]);
    let blocks = "layers.0.mlp.experts.gate_up_proj_blocks";
    let swapped = |tensor: &mut Tensor| tensor.shape.swap(1, 2);
    Changed::new(name).tensor(blocks, swapped).refused(&[blocks, "[4, 192, 2, 16]", "[4, 2, 192, 16]"]);
    let signed = |tensor: &mut Tensor| {
        let half = foretoken_weights::Bytes::from_vec(vec![0; 2 * tensor.bytes.len()]);
        (tensor.dtype, tensor.bytes) = (foretoken_weights::Dtype::BF16, half);
    };
    Changed::new(name).tensor(scales, signed).refused(&[scales, "type: expected U8, found BF16"]);
    Changed::new(name).without("layers.1.mlp.experts.down_proj_bias").refused(&["down_proj_bias"]);
    let mut odd = Changed::new(name);
    odd.config["intermediate_size"] = json!(80);
    odd.refused(&["model.safetensors", "gate_up_proj_bias", "[4, 160]", "[4, 192]"]);
}

/// A golden checkpoint in a folder of its own, changed.
struct Changed {
    folder: tempfile::TempDir,
    config: Value,
    tensors: Vec<Tensor>,
}

impl Changed {
    fn new(name: &str) -> Self {
        let weights = safetensors::open(fixture(name).join("model.safetensors")).unwrap();
        let tensors = weights.iter().cloned().collect();
        Self { folder: tempfile::tempdir().unwrap(), config: config(&fixture(name)), tensors }
    }

    /// Sets another value of a field of the quantization, given by its path.
    fn field(mut self, path: &str, value: Value) -> Self {
        let mut at = &mut self.config["quantization_config"];
        for part in path.split('.') {
            at = &mut at[part];
        }
        *at = value;
        self
    }

    fn tensor(mut self, end: &str, change: impl FnOnce(&mut Tensor)) -> Self {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name.ends_with(end)).expect(end);
        change(tensor);
        self
    }

    fn bytes(self, end: &str, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        self.tensor(end, |tensor| {
            let mut bytes = tensor.bytes.to_vec();
            change(&mut bytes);
            tensor.bytes = foretoken_weights::Bytes::from_vec(bytes);
        })
    }

    fn without(mut self, end: &str) -> Self {
        let at = self.tensors.iter().position(|tensor| tensor.name.ends_with(end)).expect(end);
        self.tensors.remove(at);
        self
    }

    /// Writes both files.
    fn written(&self) -> &Path {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for Tensor { name, dtype, shape, bytes } in &self.tensors {
            let from = data.len();
            data.extend_from_slice(bytes);
            let info = json!({"dtype": dtype.name(), "shape": shape, "data_offsets": [from, data.len()]});
            header.insert(name.clone(), info);
        }
        let header = Value::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        std::fs::write(self.folder.path().join("model.safetensors"), file).unwrap();
        std::fs::write(self.folder.path().join("config.json"), self.config.to_string()).unwrap();
        self.folder.path()
    }

    #[track_caller]
    fn refused(self, parts: &[&str]) {
        let load = |checkpoint| Model::load(&checkpoint, Options::for_positions(64, 1), &mut |_, _| ());
        let message = match Checkpoint::open(self.written()).and_then(load) {
            Ok(_) => panic!("loaded, instead of an error with {parts:?}"),
            Err(error) => error.to_string(),
        };
        assert!(!message.contains('\n') && message.len() < 400, "not one line: {message}");
        for part in parts {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    }
}

/// Version 2 stores zero points as they are, version 1 minus 1; a file that is read as the wrong version has a large
/// error.
#[test]
fn zero_points_of_both_versions_of_gptq() {
    let name = "quantized-gptq-zeros";
    let version = |version: &str| Changed::new(name).field("checkpoint_format", json!(version));
    let mut second = version("gptq_v2");
    for tensor in second.tensors.iter_mut().filter(|tensor| tensor.name.ends_with("qzeros")) {
        let words = tensor.bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let bytes = words.flat_map(|word| (word + 0x1111_1111).to_le_bytes()).collect();
        tensor.bytes = foretoken_weights::Bytes::from_vec(bytes);
    }
    let (found, expected) = logits_of(&fixture(name), name);
    assert!(logits_of(second.written(), name).0 == found);
    let wrong = logits_of(version("gptq_v2").written(), name).0;
    assert!(std::panic::catch_unwind(|| assert_within(3.0 * NEAR, &wrong, &expected, "off by one")).is_err());
}

/// A matrix with scales that are not representable as f16 becomes floats and is not rounded.
#[test]
fn scales_of_any_float() {
    let (name, tiny) = ("quantized-packed-zeros", 2f32.powi(-40));
    let end = "layers.0.self_attn.v_proj.weight_scale";
    let set = |value: f32| {
        Changed::new(name).bytes(end, |bytes| {
            bytes[..2].copy_from_slice(&foretoken_kernels::dtype::bf16::from_f32(value).to_le_bytes());
        })
    };
    // The weights of one group are nearly 0.
    let (found, expected) = (logits_of(set(tiny).written(), name).0, logits_of(set(0.0).written(), name).0);
    assert_within(NEAR, &found, &expected, "a scale of 2^-40");
}

#[test]
fn unsupported_fields_are_refused_by_name() {
    let gptq = |field: &str, value: Value| Changed::new("quantized-gptq").field(field, value);
    gptq("desc_act", json!(true)).refused(&["config.json: quantization_config.desc_act", "expected nothing"]);
    gptq("bits", json!(8)).refused(&["quantization_config.bits: expected 4, found 8"]);
    gptq("bits", json!(null)).refused(&["quantization_config.bits", "a whole number"]);
    gptq("group_size", json!(48)).refused(&["quantization_config.group_size", "a multiple of 32", "48"]);
    gptq("group_size", json!(0)).refused(&["quantization_config.group_size", "a multiple of 32", "0"]);
    gptq("checkpoint_format", json!("marlin")).refused(&["checkpoint_format", "gptq or gptq_v2", "marlin"]);
    gptq("dynamic", json!({"x": {}})).refused(&["quantization_config.dynamic"]);
    gptq("quant_method", json!("bitsandbytes"))
        .refused(&["quant_method", "gptq, awq, fp8, mxfp4 or compressed-tensors"]);
    gptq("quant_method", json!(null)).refused(&["quant_method", "found nothing"]);
    let awq = |field: &str, value: Value| Changed::new("quantized-awq").field(field, value);
    awq("version", json!("gemv")).refused(&["quantization_config.version: expected gemm", "gemv"]);
    awq("zero_point", json!(false)).refused(&["quantization_config.zero_point: expected true"]);
    let packed = |field: &str, value: Value| Changed::new("quantized-packed").field(field, value);
    let weights = |field: &str, value: Value| packed(&format!("config_groups.group_0.weights.{field}"), value);
    packed("format", json!("nvfp4-pack-quantized")).refused(&["format", "pack-quantized or float-quantized"]);
    packed("config_groups", json!({})).refused(&["config_groups: expected one group, found 0"]);
    packed("config_groups.group_1", json!({})).refused(&["config_groups: expected one group, found 2"]);
    packed("kv_cache_scheme", json!({"num_bits": 8})).refused(&["kv_cache_scheme"]);
    packed("config_groups.group_0.input_activations", json!({})).refused(&["group_0.input_activations"]);
    packed("config_groups.group_0.weights", json!(7)).refused(&["group_0.weights", "an object"]);
    weights("num_bits", json!(8)).refused(&["config_groups.group_0.weights.num_bits: expected 4, found 8"]);
    weights("actorder", json!("group")).refused(&["weights.actorder", "static", "group"]);
    weights("strategy", json!("block")).refused(&["weights.strategy", "group or channel", "block"]);
    let float8 = |field: &str, value: Value| {
        Changed::new("quantized-float8").field(&format!("config_groups.group_0.{field}"), value)
    };
    float8("weights.strategy", json!("group")).refused(&["weights.strategy", "tensor, channel or block", "group"]);
    float8("weights.strategy", json!("block")).refused(&["weights.block_structure", "two numbers", "nothing"]);
    float8("weights.type", json!("int")).refused(&["weights.type", "float", "int"]);
    float8("input_activations.dynamic", json!(false)).refused(&["input_activations.dynamic: expected true"]);
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let gptq = || Changed::new("quantized-gptq");
    let up = "layers.1.mlp.up_proj";
    gptq().without(&format!("{up}.scales")).refused(&["model.safetensors", &format!("{up}.scales`")]);
    gptq().without(&format!("{up}.qzeros")).refused(&[&format!("{up}.qzeros`")]);
    gptq().without(&format!("{up}.qweight")).refused(&[&format!("{up}.qweight`")]);
    // Without `g_idx`, groups are consecutive inputs.
    let sound = gptq().without(&format!("{up}.g_idx"));
    assert!(
        logits_of(sound.written(), "quantized-gptq").0 == logits_of(&fixture("quantized-gptq"), "quantized-gptq").0
    );
    gptq().bytes(&format!("{up}.g_idx"), |bytes| bytes[0] = 1).refused(&["up_proj.g_idx", "expected 0 for input 0"]);
    gptq().bytes(&format!("{up}.g_idx"), |bytes| bytes[3] = 0x80).refused(&["up_proj.g_idx", "found -2147483648"]);
    gptq().bytes(&format!("{up}.qzeros"), |bytes| bytes[0] = 0xf7).refused(&["up_proj.qzeros", "0 to 14", "output 1"]);
    gptq()
        .tensor(&format!("{up}.qweight"), |tensor| tensor.shape.reverse())
        .refused(&["up_proj.qweight", "shape: expected [8, 128], found [128, 8]"]);
    gptq().field("group_size", json!(64)).refused(&["shape: expected [1,"]);
    gptq().field("group_size", json!(-1)).refused(&["shape: expected [1,"]);
    gptq().field("group_size", json!(96)).refused(&["inputs: expected a multiple of groups of 96"]);
    let half = |tensor: &mut Tensor| {
        tensor.dtype = foretoken_weights::Dtype::F32;
    };
    gptq().tensor(&format!("{up}.qweight"), half).refused(&["up_proj.qweight", "type: expected I32, found F32"]);
    let packed = || Changed::new("quantized-packed-zeros");
    packed().without("up_proj.weight_zero_point").refused(&["up_proj.weight_zero_point"]);
    packed().bytes("0.mlp.up_proj.weight_shape", |bytes| bytes[1] = 1).refused(&["weight_shape", "[128, 64]", "384"]);
    Changed::new("quantized-float8").without("0.mlp.up_proj.weight_scale").refused(&["up_proj.weight_scale"]);
    // The matrix is packed in one way and declared as another.
    packed().field("quant_method", json!("gptq")).refused(&["quantization_config.bits"]);
    let unsaid = |name: &str| {
        let mut changed = Changed::new(name);
        changed.config.as_object_mut().unwrap().remove("quantization_config");
        changed
    };
    unsaid("quantized-gptq").refused(&["model.layers.0.self_attn.q_proj.weight"]);
    unsaid("quantized-mxfp4").refused(&["mlp.experts.gate_up_proj"]);
    unsaid("quantized-float8").refused(&["q_proj.weight", "found F8_E4M3"]);
}

/// Files that end too early, at any place, are refused.
#[test]
fn files_that_end_early() {
    let changed = Changed::new("quantized-awq");
    let file = std::fs::read(changed.written().join("model.safetensors")).unwrap();
    for len in [7, 100, file.len() / 2, file.len() - 1] {
        std::fs::write(changed.folder.path().join("model.safetensors"), &file[..len]).unwrap();
        assert!(Checkpoint::open(changed.folder.path()).is_err());
    }
}

/// Whatever value a field has, the checkpoint is read or refused in one line.
#[test]
fn fields_of_any_value() {
    let values =
        [json!(null), json!(0), json!(-1), json!(1e30), json!(64), json!("x"), json!([]), json!({}), json!(true)];
    for name in INTEGERS.into_iter().chain(FLOATS) {
        for path in paths(&config(&fixture(name))["quantization_config"]) {
            for value in &values {
                let changed = Changed::new(name).field(&path, value.clone());
                let load = |checkpoint| Model::load(&checkpoint, Options::for_positions(64, 1), &mut |_, _| ());
                if let Err(error) = Checkpoint::open(changed.written()).and_then(load) {
                    let message = error.to_string();
                    assert!(!message.contains('\n') && message.len() < 400, "{name} {path} {value}: {message}");
                }
            }
        }
    }
}

/// The paths of all fields in an object.
fn paths(object: &Value) -> Vec<String> {
    let Some(fields) = object.as_object() else { return Vec::new() };
    let within = |(name, value): (&String, &Value)| {
        let deeper = paths(value).into_iter().map(move |path| format!("{name}.{path}"));
        std::iter::once(name.clone()).chain(deeper).collect::<Vec<_>>()
    };
    fields.iter().flat_map(within).collect()
}

/// A model that is quantized already is not written as GGUF.
#[test]
fn export_is_refused() {
    let checkpoint = Checkpoint::open(&fixture("quantized-gptq")).unwrap();
    let message = foretoken_model::export::gguf(&checkpoint).err().unwrap().to_string();
    assert!(
        message.contains("quantization_config: expected nothing (only checkpoints of floats are written), found gptq"),
        "{message}"
    );
    // The parameters are those of 2 layers of 4-bit matrices, of embedding and head, and of norms.
    let layer = 64 * (64 + 32 + 32 + 64 + 3 * 128);
    assert_eq!(checkpoint.parameters(), 2 * layer + 2 * 64 * 64 + 5 * 64);
}
