//! Tests of whole models in each of the thirteen block formats of GGUF files, and with absurd scales.
//!
//! The model is a small Llama whose rows are whole blocks of 256, of random bytes with plausible scales, so that every
//! bit of a format is in use. Its logits are compared with those of the f32 model of the floats that its blocks
//! represent, and its rows with themselves in other batches. The loss of quantization is tested with the kernels.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foretoken_kernels::block::{Format, dequantize};
use foretoken_kernels::dtype::f16;
use foretoken_model::{CacheType, Checkpoint, Model, ModelError, Options, WeightType};
use foretoken_testkit::rows::{Numbers, first_difference};

use crate::files::{Form, Gguf, Wide};
use crate::forms::{assert_within, logits_of, logits_of_gguf, tokens};
use crate::logits;
use crate::rows::{Subject, play_subject};

const WIDTH: usize = 256;
const VOCABULARY: usize = 96;

/// The allowed error of logits, relative to the largest: activations are rounded to 8 bits in blocks of 32 or 256, so
/// each is off by up to a 254th of its block's largest, before every product. The largest error in these tests is
/// 0.031.
const NEAR: f32 = 0.05;

/// The formats of GGUF files; the only other format is tested in `quantized.rs`.
fn formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| *format != Format::Int4)
}

/// ggml's number of a format.
fn number(format: Format) -> u32 {
    match format {
        Format::Q4_0 => 2,
        Format::Q4_1 => 3,
        Format::Q5_0 => 6,
        Format::Q5_1 => 7,
        Format::Q8_0 => 8,
        Format::Q2K => 10,
        Format::Q3K => 11,
        Format::Q4K => 12,
        Format::Q5K => 13,
        Format::Q6K => 14,
        Format::Iq4Nl => 20,
        Format::Iq4Xs => 23,
        Format::Mxfp4 => 39,
        Format::Int4 => unreachable!("INT4 is not ggml's"),
    }
}

/// The offsets of a block's f16 scale and, if it has one, its f16 minimum, and the minimum that centers quants around
/// 0, as a multiple of the scale.
fn halves(format: Format) -> (usize, Option<(usize, f32)>) {
    match format {
        Format::Q8_0 | Format::Q4_0 | Format::Q5_0 | Format::Iq4Nl | Format::Iq4Xs | Format::Int4 => (0, None),
        Format::Q4_1 => (0, Some((2, -7.5))),
        Format::Q5_1 => (0, Some((2, -15.5))),
        Format::Q2K => (80, Some((82, 1.5))),
        Format::Q3K => (108, None),
        Format::Q4K => (0, Some((2, 7.5))),
        Format::Q5K => (0, Some((2, 15.5))),
        Format::Q6K => (208, None),
        Format::Mxfp4 => unreachable!("scales of MXFP4 are of one byte"),
    }
}

fn set_half(block: &mut [u8], offset: usize, half: f16) {
    block[offset..offset + 2].copy_from_slice(&half.to_le_bytes());
}

/// Random blocks whose floats have a root mean square of about `size`.
fn random_blocks(numbers: &mut Numbers, format: Format, elements: usize, size: f32) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..elements / format.elements() * format.bytes()).map(|_| numbers.bits() as u8).collect();
    if format == Format::Mxfp4 {
        // The values of MXFP4 have a root mean square of about 3 times the power of two.
        let exponent = 127.0 + (size / 2.9).log2().round();
        bytes.chunks_exact_mut(format.bytes()).for_each(|block| block[0] = exponent as u8);
        return bytes;
    }
    let (scale, minimum) = halves(format);
    let mut floats = vec![0.0; format.elements()];
    for block in bytes.chunks_exact_mut(format.bytes()) {
        let mut set = |unit: f32| {
            set_half(block, scale, f16::from_f32(unit));
            if let Some((place, multiple)) = minimum {
                set_half(block, place, f16::from_f32(unit * multiple));
            }
            dequantize(format, block, &mut floats);
            (floats.iter().map(|x| x * x).sum::<f32>() / floats.len() as f32).sqrt()
        };
        let typical = set(1.0 / 64.0);
        set(size / 64.0 / typical);
    }
    bytes
}

/// A matrix in blocks.
struct Quantized {
    name: String,
    shape: [usize; 2],
    bytes: Vec<u8>,
}

/// A Llama of two layers whose matrices all have one format.
struct Blocks {
    format: Format,
    norms: Vec<(String, Wide)>,
    matrices: Vec<Quantized>,
}

impl Blocks {
    fn random(format: Format) -> Self {
        let mut numbers = Numbers::new(11);
        let mut new = Self { format, norms: Vec::new(), matrices: Vec::new() };
        for layer in 0..2 {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            for part in ["attn_norm", "ffn_norm"] {
                new.norm(&mut numbers, name(part));
            }
            let matrices = [
                ("attn_q", [WIDTH, WIDTH]),
                ("attn_k", [WIDTH / 2, WIDTH]),
                ("attn_v", [WIDTH / 2, WIDTH]),
                ("attn_output", [WIDTH, WIDTH]),
                ("ffn_gate", [2 * WIDTH, WIDTH]),
                ("ffn_up", [2 * WIDTH, WIDTH]),
                ("ffn_down", [WIDTH, 2 * WIDTH]),
            ];
            for (part, shape) in matrices {
                new.matrix(&mut numbers, name(part), shape);
            }
        }
        new.norm(&mut numbers, "output_norm.weight".into());
        for name in ["token_embd.weight", "output.weight"] {
            new.matrix(&mut numbers, name.into(), [VOCABULARY, WIDTH]);
        }
        new
    }

    fn norm(&mut self, numbers: &mut Numbers, name: String) {
        let elements = numbers.units(WIDTH).iter().map(|x| 1.0 + 0.2 * x).collect();
        self.norms.push((name, Wide { shape: vec![WIDTH], elements }));
    }

    fn matrix(&mut self, numbers: &mut Numbers, name: String, shape: [usize; 2]) {
        let size = (shape[1] as f32).sqrt().recip();
        let bytes = random_blocks(numbers, self.format, shape[0] * shape[1], size);
        self.matrices.push(Quantized { name, shape, bytes });
    }

    /// Bytes of a row of a matrix.
    fn row_bytes(&self, matrix: &Quantized) -> usize {
        matrix.shape[1] / self.format.elements() * self.format.bytes()
    }

    /// Replaces both halves of the first block of one row.
    fn set_halves(&mut self, name: &str, row: usize, half: f16) {
        let at = self.matrices.iter().position(|matrix| matrix.name == name).expect(name);
        let first = row * self.row_bytes(&self.matrices[at]);
        let block = &mut self.matrices[at].bytes[first..];
        if self.format == Format::Mxfp4 {
            // These are the smallest and the largest power.
            block[0] = if half.is_finite() && half != f16::MAX { 0 } else { 255 };
            return;
        }
        let (scale, minimum) = halves(self.format);
        set_half(block, scale, half);
        if let Some((place, _)) = minimum {
            set_half(block, place, half);
        }
    }

    /// The file with the keys and the vectors.
    fn head(&self) -> Gguf {
        let mut gguf = Gguf::default()
            .str("general.architecture", "llama")
            .u32("llama.block_count", 2)
            .u32("llama.context_length", 512)
            .u32("llama.embedding_length", WIDTH)
            .u32("llama.feed_forward_length", 2 * WIDTH)
            .u32("llama.attention.head_count", 4)
            .u32("llama.attention.head_count_kv", 2)
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-6)
            .f32("llama.rope.freq_base", 1e4);
        for (name, norm) in &self.norms {
            gguf = gguf.tensor(name, norm, Form::F32);
        }
        gguf
    }

    /// The file of blocks.
    fn gguf(&self) -> Gguf {
        let add = |gguf: Gguf, matrix: &Quantized| {
            gguf.raw(&matrix.name, &matrix.shape, number(self.format), matrix.bytes.clone())
        };
        self.matrices.iter().fold(self.head(), add)
    }

    /// The file of the floats that the blocks represent.
    fn widened(&self) -> Gguf {
        let add = |gguf: Gguf, matrix: &Quantized| {
            let mut elements = vec![0.0; matrix.shape[0] * matrix.shape[1]];
            dequantize(self.format, &matrix.bytes, &mut elements);
            gguf.tensor(&matrix.name, &Wide { shape: matrix.shape.to_vec(), elements }, Form::F32)
        };
        self.matrices.iter().fold(self.head(), add)
    }
}

/// A file in a temporary folder, which is removed when it is dropped.
fn written(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// In these products only activations are rounded.
#[test]
fn each_format_has_nearly_the_logits_of_its_floats() {
    for format in formats() {
        let model = Blocks::random(format);
        let (found, expected) = (logits_of_gguf(&model.gguf()), logits_of_gguf(&model.widened()));
        assert!(expected.iter().all(|logit| logit.is_finite()), "{}", format.name());
        assert_within(NEAR, &found, &expected, format.name());
        // The tolerance detects errors: with one wrong matrix of fifteen the error is far outside.
        let mut other = Blocks::random(format);
        other.matrices[6].bytes = random_blocks(&mut Numbers::new(12), format, 2 * WIDTH * WIDTH, 1.0 / 22.6);
        let wrong = std::panic::catch_unwind(|| assert_within(NEAR, &logits_of_gguf(&other.gguf()), &expected, ""));
        assert!(wrong.is_err(), "{}", format.name());
    }
}

#[test]
fn rows_of_each_format_are_scored_as_if_alone() {
    for format in formats() {
        let (_folder, path) = written(&Blocks::random(format).gguf().bytes());
        play_subject(&Subject::new(&path, [CacheType::F16; 2]), 4);
    }
}

/// No scale makes loading or a pass fail or hang, and it affects only what depends on it.
#[test]
fn absurd_scales_affect_only_what_depends_on_them() {
    let start = Instant::now();
    for format in formats() {
        let name = format.name();
        let healthy = logits_of_gguf(&Blocks::random(format).gguf());
        for half in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY, f16::MAX, f16::MIN_POSITIVE_SUBNORMAL, f16::NEG_ZERO] {
            let sound = half.is_finite() && half != f16::MAX;
            let mut model = Blocks::random(format);
            for part in ["blk.0.attn_q", "blk.0.ffn_up", "blk.1.ffn_down", "blk.1.attn_v", "output"] {
                model.set_halves(&format!("{part}.weight"), 3, half);
            }
            let found = logits_of_gguf(&model.gguf());
            assert_eq!(found.len(), tokens().len() * VOCABULARY);
            if sound {
                assert_within(NEAR, &found, &logits_of_gguf(&model.widened()), &format!("{name} with {half}"));
            } else if !half.is_finite() {
                assert!(found.iter().any(|logit| !logit.is_finite()), "{name} with {half}");
            }
            // The scale is in the embedding of one token: the rows before that token do not depend on it.
            let mut model = Blocks::random(format);
            let position = 10;
            model.set_halves("token_embd.weight", tokens()[position] as usize, half);
            let found = logits_of_gguf(&model.gguf());
            let before = position * VOCABULARY;
            assert_eq!(first_difference(&found[..before], &healthy[..before]), None, "{name} with {half}");
            assert!(first_difference(&found[before..], &healthy[before..]).is_some(), "{name} with {half}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(120), "it took {:?}", start.elapsed());
}

/// Asserts that opening and loading these bytes fails with one line that has these parts.
#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    let (_folder, path) = written(bytes);
    assert_refused(&path, Options::for_positions(32, 1), parts);
}

#[track_caller]
fn assert_refused(path: &Path, options: Options, parts: &[&str]) {
    let load = |checkpoint: Checkpoint| Model::load(&checkpoint, options, &mut |_, _| ());
    let error: ModelError = match Checkpoint::open(path).and_then(load) {
        Ok(_) => panic!("loaded, instead of an error with {parts:?}"),
        Err(error) => error,
    };
    let message = error.to_string();
    assert!(!message.contains('\n') && message.len() < 400, "not one line: {message}");
    for part in [&["model.gguf"], parts].concat() {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[test]
fn unsupported_types_are_refused_with_tensor_and_type() {
    let with = |number: u32, bytes: usize| {
        let mut model = Blocks::random(Format::Q8_0);
        let at = model.matrices.iter().position(|matrix| matrix.name == "blk.1.ffn_up.weight").unwrap();
        let taken = model.matrices.remove(at);
        model.gguf().raw(&taken.name, &taken.shape, number, vec![0; bytes]).bytes()
    };
    let elements = 2 * WIDTH * WIDTH;
    let tensor = "tensor `blk.1.ffn_up.weight`: type: expected ";
    refused(&with(19, elements / 256 * 50), &[tensor, "F32, F16, BF16, Q8_0", "found IQ1_S"]);
    refused(&with(34, elements / 256 * 54), &[tensor, "found TQ1_0"]);
    refused(&with(26, elements * 4), &[tensor, "found I32"]);
    refused(&with(4, elements), &[tensor, "a type of ggml in use", "found 4 (Q4_2)"]);
    for number in [43, 77, u32::MAX] {
        refused(&with(number, elements), &[tensor, "the number of a ggml type", &format!("found {number}")]);
    }
}

#[test]
fn rows_that_are_no_whole_blocks_are_refused_with_their_shape() {
    for (format, columns) in [(Format::Q4K, 128), (Format::Q6K, 384), (Format::Q8_0, 20), (Format::Iq4Nl, 16)] {
        // The number of blocks is right; only the rows are wrong.
        let (name, multiple) = (format.name(), format.elements());
        let bytes = vec![0; (16_usize * columns).div_ceil(multiple) * format.bytes()];
        let file = Blocks::random(format).gguf().raw("odd.weight", &[16, columns], number(format), bytes);
        let rows = format!("rows of a multiple of {multiple} {name} elements");
        refused(&file.bytes(), &["tensor `odd.weight`: shape", &rows, &format!("found [16, {columns}]")]);
    }
    // The rows are whole blocks, but not as many as the network's width requires.
    let mut model = Blocks::random(Format::Q8_0);
    let up = model.matrices.iter_mut().find(|matrix| matrix.name == "blk.0.ffn_up.weight").unwrap();
    (up.shape[1], up.bytes) = (128, vec![0; 2 * WIDTH * 128 / 32 * 34]);
    refused(&model.gguf().bytes(), &["blk.0.ffn_up.weight", "shape: expected [512, 256]", "found [512, 128]"]);
}

#[test]
fn blocks_that_end_early_are_refused() {
    for format in formats() {
        let file = Blocks::random(format).gguf().bytes();
        for missing in [1, format.bytes() - 1, format.bytes(), VOCABULARY * WIDTH / format.elements() * format.bytes()]
        {
            refused(&file[..file.len() - missing], &["tensor `output.weight`: offset", "bytes inside the"]);
        }
    }
}

/// Only floats are converted to a requested type, and narrow rows get a type that fits; quantized weights are refused.
#[test]
fn a_requested_type_converts_floats_and_refuses_blocks() {
    let converted = |gguf: &Gguf, wanted: &str| {
        let (_folder, path) = written(&gguf.bytes());
        let weight_type: Option<WeightType> = Some(wanted.parse().unwrap());
        let options = Options { weight_type, ..Options::for_positions(64, 1).with_cache(CacheType::F32) };
        let mut model = Model::load(&Checkpoint::open(&path).unwrap(), options, &mut |_, _| ()).unwrap();
        logits(&mut model, &tokens(), &[24])
    };
    for format in [Format::Q8_0, Format::Q5K, Format::Iq4Xs] {
        let (_folder, path) = written(&Blocks::random(format).gguf().bytes());
        for wanted in ["f32", "q4_k", "q8_0"] {
            let weight_type: Option<WeightType> = Some(wanted.parse().unwrap());
            let options = Options { weight_type, ..Options::for_positions(32, 1) };
            let found = format!("expected weights in F32, F16 or BF16, found {}", format.name());
            assert_refused(&path, options, &["blk.0.attn_q.weight", &format!("weight_type {wanted}"), &found]);
        }
    }
    let wide = Blocks::random(Format::Q8_0).widened();
    assert!(converted(&wide, "f32") == logits_of_gguf(&wide) && converted(&wide, "q4_k") != logits_of_gguf(&wide));
    // Numbers that blocks cannot hold would become other numbers.
    for (value, wanted, found) in
        [(f32::NAN, "q8_0", "NaN"), (f32::NEG_INFINITY, "q4_0", "-inf"), (3e38, "q4_k", "3"), (1e9, "q6_k", "1")]
    {
        let sick =
            Blocks::random(Format::Q8_0).widened().with_bytes("blk.0.ffn_up.weight", 4 * 700, &value.to_le_bytes());
        let (_folder, path) = written(&sick.bytes());
        let weight_type: Option<WeightType> = Some(wanted.parse().unwrap());
        let expected = format!("weight_type {wanted}: expected finite weights that its blocks can hold, found {found}");
        let options = Options { weight_type, ..Options::for_positions(32, 1) };
        assert_refused(&path, options, &["tensor blk.0.ffn_up.weight: row ", &expected]);
    }
    // The rows have 32 and 72 elements: neither is a multiple of 256, and 72 is not a multiple of 32.
    let narrow = Checkpoint::open(&crate::fixture("llama")).unwrap();
    let narrowed = |wanted: &str| {
        let weight_type: WeightType = wanted.parse().unwrap();
        assert_eq!((weight_type.fitting(72), weight_type.fitting(32).to_string()), (WeightType::F16, "q8_0".into()));
        let options = Options::for_positions(64, 1).with_cache(CacheType::F32);
        let mut model =
            Model::load(&narrow, Options { weight_type: Some(weight_type), ..options }, &mut |_, _| ()).unwrap();
        logits(&mut model, &tokens(), &[24])
    };
    // Weights and activations are rounded to 8 bits in a very narrow network, whose error is 0.0503.
    let found = narrowed("q8_0");
    assert_within(0.1, &found, &logits_of(&narrow), "q8_0");
    assert_eq!(first_difference(&narrowed("q4_k"), &found), None);
    assert_eq!(first_difference(&narrowed("q6_k"), &found), None);
}
