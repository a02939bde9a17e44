//! Tests of quantized checkpoints of networks of experts: each expert's matrices are read like other matrices,
//! whichever program packed them, and matrices that were not quantized (the router) are not changed.
//!
//! The checkpoints are packed here from known integers and bits of floats, together with the floats that these
//! represent. Dense networks, and files of the packing programs, are tested in `quantized.rs`.

use std::path::Path;

use foretoken_kernels::Pool;
use foretoken_kernels::dtype::f16;

use foretoken_model::network::{Dense, Experts, Ffn, Inner};
use foretoken_model::{CacheType, Checkpoint, Model, Options, Unpacked, family};
use foretoken_testkit::rows::Numbers;
use foretoken_weights::Bytes;
use serde_json::{Map, Value, json};

use crate::files::{config, read};
use crate::rows::{Subject, play_subject};
use crate::{fixture, logits};

/// Families, and changes that make their golden configurations wide enough for blocks of 32.
const FAMILIES: [(&str, &str); 3] = [
    ("mixtral", r#"{"intermediate_size": 32}"#),
    ("olmoe", r#"{"intermediate_size": 32}"#),
    ("qwen3_moe", r#"{"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 32}"#),
];

/// A shape of a golden family with dimensions that are multiples of 32.
fn widened(family: &str, name: &str, shape: &[usize]) -> Vec<usize> {
    let widened_dimension = |dimension: &usize| match (family, dimension) {
        ("mixtral" | "qwen3_moe", 24) | ("olmoe" | "qwen3_moe", 16) if name.contains(".experts.") => 32,
        ("qwen3_moe", 24) => 32,
        ("qwen3_moe", 40) => 64,
        (_, other) => *other,
    };
    shape.iter().map(widened_dimension).collect()
}

/// How matrices are packed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Gptq,
    Awq,
    Compressed,
    /// Floats of 8 bits with a scale for each block of these numbers of outputs and inputs.
    Float8([usize; 2]),
    /// [`Method::Float8`] in the format of compressed-tensors.
    CompressedFloat8([usize; 2]),
}

const METHODS: [Method; 5] = [
    Method::Gptq,
    Method::Awq,
    Method::Compressed,
    Method::Float8([16, 32]),
    // The blocks do not divide a matrix.
    Method::CompressedFloat8([24, 20]),
];

impl Method {
    fn config(self) -> Value {
        let compressed = |format: &str, weights: Value| {
            let group = json!({"targets": ["Linear"], "weights": weights});
            json!({"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group},
                   "ignore": ["lm_head", "re:.*gate$"]})
        };
        match self {
            Self::Gptq => json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": false, "desc_act": false,
                                 "dynamic": {r"-:.*\.gate\..*": {}}}),
            Self::Awq => json!({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true,
                                "version": "gemm", "modules_to_not_convert": ["gate"]}),
            Self::Compressed => compressed(
                "pack-quantized",
                json!({"num_bits": 4, "type": "int", "symmetric": false, "strategy": "group", "group_size": 32}),
            ),
            Self::Float8(block) => json!({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                          "weight_block_size": block, "modules_to_not_convert": ["gate"]}),
            Self::CompressedFloat8(block) => compressed(
                "float-quantized",
                json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": block}),
            ),
        }
    }
}

/// A tensor of a file: its name, type, shape and bytes.
type Raw = (String, &'static str, Vec<usize>, Vec<u8>);

fn floats(name: &str, shape: &[usize], elements: &[f32]) -> Raw {
    (name.to_string(), "F32", shape.to_vec(), elements.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// Words of 8 quants each, in which the first of `order` has the lowest bits.
fn words(quants: &[u8], order: [usize; 8]) -> Vec<u8> {
    let word = |eight: &[u8]| (0..8).map(|at| u32::from(eight[order[at]]) << (4 * at)).sum::<u32>();
    quants.chunks_exact(8).flat_map(|eight| word(eight).to_le_bytes()).collect()
}

/// Transposes `[rows, columns]` to `[columns, rows]`.
fn transposed<T: Copy>(all: &[T], columns: usize) -> Vec<T> {
    (0..columns).flat_map(|column| all.iter().skip(column).step_by(columns).copied()).collect()
}

const IN_ORDER: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// A random matrix `[outputs, inputs]` of integers, and the floats that it represents.
fn integers(how: Method, name: &str, [outputs, inputs]: [usize; 2], chance: &mut Numbers) -> (Vec<Raw>, Vec<f32>) {
    let groups = inputs / 32;
    let mut below = |end: usize, len: usize| -> Vec<u8> { (0..len).map(|_| chance.below(end) as u8).collect() };
    let (quants, zeros) = (below(16, outputs * inputs), below(8, outputs * groups));
    let zeros: Vec<u8> = zeros.iter().map(|zero| zero + 4).collect();
    let scales: Vec<f16> =
        below(32, outputs * groups).iter().map(|part| f16::from_f32((32.0 + f32::from(*part)) / 1024.0)).collect();
    let float = |(at, quant): (usize, &u8)| {
        let group = at / inputs * groups + at % inputs / 32;
        scales[group].to_f32() * (f32::from(*quant) - f32::from(zeros[group]))
    };
    let floats = quants.iter().enumerate().map(float).collect();
    let of_scales = |scales: &[f16]| scales.iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<u8>>();
    let part = |part: &str, dtype: &'static str, shape: [usize; 2], bytes: Vec<u8>| {
        (format!("{name}.{part}"), dtype, shape.to_vec(), bytes)
    };
    // Zero points and scales are `[groups, outputs]`.
    let (zeros, transposed_scales) = (transposed(&zeros, groups), of_scales(&transposed(&scales, groups)));
    let raw = match how {
        Method::Gptq => {
            let (quants, zeros) = (words(&quants, IN_ORDER), zeros.iter().map(|zero| zero - 1).collect::<Vec<_>>());
            let quants = transposed(quants.as_chunks::<4>().0, inputs / 8).concat();
            vec![
                part("qweight", "I32", [inputs / 8, outputs], quants),
                part("qzeros", "I32", [groups, outputs / 8], words(&zeros, IN_ORDER)),
                part("scales", "F16", [groups, outputs], transposed_scales),
            ]
        }
        Method::Awq => {
            let order = [0, 2, 4, 6, 1, 3, 5, 7];
            vec![
                part("qweight", "I32", [inputs, outputs / 8], words(&transposed(&quants, inputs), order)),
                part("qzeros", "I32", [groups, outputs / 8], words(&zeros, order)),
                part("scales", "F16", [groups, outputs], transposed_scales),
            ]
        }
        _ => {
            let zeros = transposed(words(&zeros, IN_ORDER).as_chunks::<4>().0, outputs / 8).concat();
            vec![
                part("weight_packed", "I32", [outputs, inputs / 8], words(&quants, IN_ORDER)),
                part("weight_zero_point", "I32", [outputs / 8, groups], zeros),
                part("weight_scale", "F16", [outputs, groups], of_scales(&scales)),
            ]
        }
    };
    (raw, floats)
}

/// A random matrix in floats of 8 bits, and the floats that it represents.
fn float8(
    (name, scale_name): (&str, &str),
    [outputs, inputs]: [usize; 2],
    [block_outputs, block_inputs]: [usize; 2],
    chance: &mut Numbers,
) -> (Vec<Raw>, Vec<f32>) {
    let blocks = [outputs.div_ceil(block_outputs), inputs.div_ceil(block_inputs)];
    let scales: Vec<f32> = (0..blocks[0] * blocks[1]).map(|_| 0.2 + 0.1 * chance.unit()).collect();
    // The bits are a sign, an exponent of at most 0, and a fraction.
    let bits: Vec<u8> = (0..outputs * inputs).map(|_| (chance.below(56) | chance.below(2) << 7) as u8).collect();
    let float = |(at, bits): (usize, &u8)| {
        let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7) / 8.0);
        let magnitude = match exponent {
            0 => fraction * 2f32.powi(-6),
            _ => (1.0 + fraction) * 2f32.powi(exponent - 7),
        };
        let scale = scales[at / inputs / block_outputs * blocks[1] + at % inputs / block_inputs];
        if *bits < 128 { magnitude * scale } else { -magnitude * scale }
    };
    let all = bits.iter().enumerate().map(float).collect();
    let weight = (format!("{name}.weight"), "F8_E4M3", vec![outputs, inputs], bits);
    (vec![weight, floats(&format!("{name}.{scale_name}"), &blocks, &scales)], all)
}

/// A checkpoint whose matrices are packed, and the same network in floats.
struct Packed {
    config: Value,
    quantized: Vec<Raw>,
    plain: Vec<Raw>,
}

impl Packed {
    fn new((family, changes): (&str, &str), how: Method) -> Self {
        let mut config = config(&fixture(family));
        let changes: Map<String, Value> = serde_json::from_str(changes).unwrap();
        config.as_object_mut().unwrap().extend(changes);
        config["quantization_config"] = how.config();
        let (mut quantized, mut plain) = (Vec::new(), Vec::new());
        let mut chance = Numbers::new(7);
        for (name, tensor) in read(&fixture(family)) {
            let shape = widened(family, &name, &tensor.shape);
            let left_alone = name.contains("embed") || name.contains("lm_head") || name.ends_with(".gate.weight");
            if let (false, &[outputs, inputs]) = (left_alone, &shape[..]) {
                let matrix = name.strip_suffix(".weight").unwrap();
                let (raw, all) = match how {
                    Method::Float8(block) => {
                        float8((matrix, "weight_scale_inv"), [outputs, inputs], block, &mut chance)
                    }
                    Method::CompressedFloat8(block) => {
                        float8((matrix, "weight_scale"), [outputs, inputs], block, &mut chance)
                    }
                    _ => integers(how, matrix, [outputs, inputs], &mut chance),
                };
                quantized.extend(raw);
                plain.push(floats(&name, &shape, &all));
                continue;
            }
            let mut elements = chance.units(shape.iter().product());
            if shape.len() == 1 {
                elements.iter_mut().for_each(|x| *x = 1.0 + 0.2 * *x);
            }
            let tensor = floats(&name, &shape, &elements);
            quantized.push(tensor.clone());
            plain.push(tensor);
        }
        Self { config, quantized, plain }
    }

    fn quantized(&self) -> Checkpoint {
        checkpoint(&self.config, &self.quantized)
    }

    fn plain(&self) -> Checkpoint {
        let mut config = self.config.clone();
        config.as_object_mut().unwrap().remove("quantization_config");
        checkpoint(&config, &self.plain)
    }

    /// Changes a tensor.
    fn tensor(mut self, end: &str, change: impl FnOnce(&mut Raw)) -> Self {
        change(self.quantized.iter_mut().find(|(name, ..)| name.ends_with(end)).expect(end));
        self
    }

    #[track_caller]
    fn refused(self, parts: &[&str]) {
        let message = match family::read(&self.quantized(), None) {
            Ok(_) => panic!("read, instead of an error with {parts:?}"),
            Err(error) => error.to_string(),
        };
        assert!(!message.contains('\n'), "not one line: {message}");
        for part in parts {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    }
}

fn file(tensors: &[Raw]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let from = data.len();
        data.extend(bytes);
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [from, data.len()]}));
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn checkpoint(config: &Value, tensors: &[Raw]) -> Checkpoint {
    let file = Bytes::from_vec(file(tensors));
    Checkpoint::from_parts("test", config.to_string().as_bytes(), file).unwrap_or_else(|error| panic!("{error}"))
}

/// The floats of all matrices of the feed-forward networks, in order.
fn matrices(checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
    let network = family::read(checkpoint, None).unwrap_or_else(|error| panic!("{error}"));
    let pool = Pool::new(1);
    let mut all = Vec::new();
    let mut add = |matrix: &Unpacked| all.push(matrix.read(&pool).unwrap_or_else(|error| panic!("{error}")).floats());
    for layer in &network.layers {
        let of_layer: Vec<&Dense<Unpacked>> = match &layer.ffn {
            Ffn::Dense(dense) => vec![dense],
            Ffn::Experts(Experts { router, all, .. }) => {
                add(router);
                all.iter().collect()
            }
            Ffn::DenseWithExperts(_) => panic!("both"),
        };
        for Dense { inner, down } in of_layer {
            let Inner::Gated { gate, up, .. } = inner else { panic!("no gate") };
            [gate, up, down].into_iter().for_each(&mut add);
        }
    }
    all
}

fn logits_of(checkpoint: &Checkpoint) -> Vec<f32> {
    let options = Options::for_positions(64, 2).with_cache(CacheType::F32);
    let mut model = Model::load(checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"));
    let tokens: Vec<u32> = (0..32).map(|i| (i * 37 + 5) % 64).collect();
    logits(&mut model, &tokens, &[32])
}

/// Every matrix is compared bit by bit, and so is every logit of checkpoints in floats of 8 bits, whose products do not
/// round activations.
#[test]
fn experts_have_the_bits_of_their_floats() {
    for family in FAMILIES {
        for how in METHODS {
            let packed = Packed::new(family, how);
            let (quantized, plain) = (packed.quantized(), packed.plain());
            let [found, expected] = [&quantized, &plain].map(matrices);
            assert!(expected.len() > 8 && found == expected, "{family:?}, {how:?}");
            let (found, expected) = (logits_of(&quantized), logits_of(&plain));
            assert!(found.iter().all(|logit| logit.is_finite()), "{family:?}, {how:?}");
            let rounds = matches!(how, Method::Gptq | Method::Awq | Method::Compressed);
            assert!((found == expected) != rounds, "{family:?}, {how:?}: {} logits", found.len());
        }
    }
}

fn write(packed: &Packed, folder: &Path) {
    std::fs::write(folder.join("model.safetensors"), file(&packed.quantized)).unwrap();
    std::fs::write(folder.join("config.json"), packed.config.to_string()).unwrap();
}

#[test]
fn rows_of_quantized_experts_are_scored_as_if_alone() {
    for how in [Method::Gptq, Method::Float8([16, 32])] {
        let folder = tempfile::tempdir().unwrap();
        write(&Packed::new(FAMILIES[2], how), folder.path());
        play_subject(&Subject::new(folder.path(), [CacheType::F16; 2]), 4);
    }
}

/// A router that was quantized is multiplied as floats: its input is not rounded.
#[test]
fn a_quantized_router_does_not_round_its_input() {
    let (how, router) = (Method::Compressed, "model.layers.1.mlp.gate");
    let packed = |scale: f32| {
        let mut packed = Packed::new(FAMILIES[2], how);
        let at = |all: &[Raw]| all.iter().position(|(name, ..)| *name == format!("{router}.weight")).unwrap();
        let (mut raw, mut all) = integers(how, router, [8, 32], &mut Numbers::new(3));
        // The tensor has eight experts, but the configuration has six.
        raw.iter_mut().for_each(|(.., shape, bytes)| {
            let (rows, row) = (shape[0], bytes.len() / shape[0]);
            let keep = if rows == 8 { 6 } else { rows };
            (shape[0], _) = (keep, bytes.truncate(keep * row));
        });
        all.truncate(6 * 32);
        all.iter_mut().for_each(|x| *x *= scale);
        let [quantized, plain] = [at(&packed.quantized), at(&packed.plain)];
        packed.quantized.remove(quantized);
        packed.quantized.extend(raw);
        packed.plain[plain] = floats(&format!("{router}.weight"), &[6, 32], &all);
        packed
    };
    let same = packed(1.0);
    // All but the router is in floats, so that nothing else is rounded.
    let parts: Vec<Raw> = same.quantized.iter().filter(|(name, ..)| name.starts_with(router)).cloned().collect();
    let plain = same.plain.iter().filter(|(name, ..)| !name.starts_with(router)).cloned();
    let mixed: Vec<Raw> = plain.chain(parts).collect();
    assert!(logits_of(&checkpoint(&same.config, &mixed)) == logits_of(&same.plain()));
    assert!(logits_of(&packed(0.5).plain()) != logits_of(&same.plain()), "the router has no effect");
}

#[test]
fn misshapen_tensors_and_unsupported_fields_are_refused_by_name() {
    let expert = "experts.3.down_proj";
    let packed = |how: Method| Packed::new(FAMILIES[2], how);
    let gptq = |end: &str, change: fn(&mut Raw)| packed(Method::Gptq).tensor(&format!("{expert}.{end}"), change);
    gptq("qweight", |raw| raw.0 += "x").refused(&[expert]);
    gptq("scales", |raw| raw.2 = vec![32, 1]).refused(&[expert, "scales", "[1, 32]", "[32, 1]"]);
    let float8 = || packed(Method::Float8([16, 32]));
    let scales = format!("{expert}.weight_scale_inv");
    float8().tensor(&scales, |raw| raw.0 += "x").refused(&[&scales]);
    float8().tensor(&scales, |raw| raw.2 = vec![1, 2]).refused(&[&scales, "[2, 1]", "[1, 2]"]);
    let with = |field: &str, value: Value| {
        let mut packed = float8();
        packed.config["quantization_config"][field] = value;
        packed
    };
    with("weight_block_size", json!([128, 128])).refused(&["weight_scale_inv", "[1, 1]", "[2, 1]"]);
    with("weight_block_size", json!([0, 128])).refused(&["quantization_config.weight_block_size", "two numbers"]);
    with("weight_block_size", json!([128])).refused(&["quantization_config.weight_block_size", "two numbers"]);
    with("activation_scheme", json!("static")).refused(&["activation_scheme", "dynamic", "static"]);
    with("fmt", json!("e5m2")).refused(&["quantization_config.fmt", "e4m3"]);
    let mut dynamic = packed(Method::Gptq);
    dynamic.config["quantization_config"]["dynamic"] = json!({"+:.*up_proj.*": {"bits": 8}});
    dynamic.refused(&["quantization_config.dynamic"]);
    // The experts are stacked in one tensor, as in transformers' memory.
    let mut stacked = float8();
    let place = "model.layers.1.mlp.experts";
    stacked.quantized.retain(|(name, ..)| !name.starts_with(place));
    for (name, shape) in [("gate_up_proj", [6, 64, 32]), ("down_proj", [6, 32, 32])] {
        let bits = vec![0; shape.iter().product()];
        stacked.quantized.push((format!("{place}.{name}"), "F8_E4M3", shape.to_vec(), bits));
    }
    stacked.refused(&[&format!("{place}.gate_up_proj"), "found F8_E4M3"]);
    let mut block = packed(Method::CompressedFloat8([24, 20]));
    block.config["quantization_config"]["config_groups"]["group_0"]["weights"]["block_structure"] = json!(null);
    block.refused(&["weights.block_structure", "two numbers", "nothing"]);
}
