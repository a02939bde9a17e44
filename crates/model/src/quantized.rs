//! Matrices of quantized Hugging Face checkpoints: their tensors, and the exact weights that these represent.
//!
//! A weight of a 4-bit matrix is `scale * (quant - zero)`, with a scale and a zero point for each group of inputs. The
//! matrix becomes blocks of 32 with the same numbers: Q4_0 if all zero points are 8, otherwise INT4. If a scale is not
//! representable as f16 (a bf16 below 2^-17 may not be), the matrix becomes f32 floats. A weight of an FP8 matrix, a
//! float of 8 bits times a scale, becomes an f32, which is exact if scales are bf16 and rounded once if they are f32.
//! All this happens when a matrix is packed, so that there is never a second copy of the model in memory.
//! `quantization.rs` reads `quantization_config`.

mod integers;

use foretoken_kernels::Pool;
use foretoken_kernels::block::Format;
use foretoken_kernels::dtype::f16;
use foretoken_kernels::panel::PanelFormat;
use foretoken_weights::{Bytes, Tensor, Weights, WeightsError};

use crate::error::ModelError;
use crate::storage::Storage;
use integers::Integers;

/// Number of elements of a block.
const BLOCK: usize = 32;
/// Number of outputs of a task; this many consecutive words of GPTQ and AWQ are read together.
const AT_ONCE: usize = 16;
/// The zero point of Q4_0.
const MIDDLE: u8 = 8;
/// The nibble of a word in which AWQ stores each of 8 outputs.
const AWQ_NIBBLES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// How quantized matrices are packed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Quantization {
    /// 4-bit integers.
    Int4 {
        /// The order of nibbles.
        packing: Packing,
        /// Number of inputs that share a scale and a zero point; `None` if all inputs of an output do.
        group: Option<usize>,
    },
    /// Floats of 8 bits (`float8_e4m3fn`) and scales that they are multiplied with.
    Float8 {
        /// The name of the tensor of scales, after the matrix's name.
        scales: &'static str,
        /// The numbers of outputs and inputs of a block that shares a scale; `None` if there is one scale for the
        /// tensor or for each output.
        block: Option<[usize; 2]>,
    },
    /// Floats of 4 bits and a power of two for each block, for experts only (`mxfp4.rs`).
    Mxfp4,
}

/// How integers are packed in words of 32 bits, 8 in each, the first in the lowest bits unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Packing {
    /// `[inputs / 8, outputs]`, zero points `[groups, outputs / 8]`.
    Gptq {
        /// Whether zero points are stored minus 1 (`checkpoint_format` gptq, not gptq_v2).
        minus_one: bool,
    },
    /// `[inputs, outputs / 8]`, zero points `[groups, outputs / 8]`; a word has outputs 0, 2, 4, 6, 1, 3, 5, 7 in this
    /// order.
    Awq,
    /// `[outputs, inputs / 8]`, zero points `[outputs / 8, groups]`, both plus 8.
    Compressed {
        /// Whether the zero point is 0 everywhere and is not stored.
        symmetric: bool,
    },
}

/// A description of a quantized matrix `[outputs, inputs]`. Nothing of it is read yet.
#[derive(Clone)]
pub(crate) struct Quantized {
    file: String,
    inputs: usize,
    outputs: usize,
    values: Values,
    /// The scales, `[groups, outputs]`, or in compressed-tensors `[outputs, groups]`; in FP8 one for the matrix, for
    /// each output or for each block.
    scales: Tensor,
}

#[derive(Clone)]
enum Values {
    Int4(Box<Int4>),
    Float8 {
        weight: Tensor,
        /// The numbers of outputs and inputs that share a scale.
        block: [usize; 2],
    },
}

#[derive(Clone)]
struct Int4 {
    packing: Packing,
    words: Tensor,
    /// The zero points; `None` if all are 8.
    zeros: Option<Tensor>,
    /// The group of each input, if the file has it.
    groups: Option<Tensor>,
    /// Number of inputs of a group.
    group: usize,
}

/// Finds the tensors of a matrix and checks their types and shapes.
struct Finder<'a> {
    weights: &'a Weights,
    name: &'a str,
}

impl Finder<'_> {
    /// The tensor of this name, which must have one of these types and one of these shapes.
    fn find(&self, part: &str, types: &[&str], shapes: &[&[usize]]) -> Result<Tensor, ModelError> {
        let name = format!("{}.{part}", self.name);
        let found = match self.weights.get(&name) {
            Some(found) => found,
            None => self.weights.require(&name)?, // returns the error
        };
        if !types.contains(&found.dtype.name()) {
            return Err(wrong(self.weights.source(), &name, "type", types.join(" or "), found.dtype));
        }
        if !shapes.contains(&found.shape.as_slice()) {
            let file = self.weights.source().to_string();
            return Err(ModelError::Shape {
                file,
                tensor: name,
                expected: shapes[0].to_vec(),
                found: found.shape.clone(),
            });
        }
        Ok(found.clone())
    }

    fn has(&self, part: &str) -> bool {
        self.weights.get(&format!("{}.{part}", self.name)).is_some()
    }
}

/// An error about a tensor.
fn wrong(
    file: &str,
    tensor: &str,
    field: &'static str,
    expected: impl std::fmt::Display,
    found: impl std::fmt::Display,
) -> ModelError {
    ModelError::Weights(WeightsError::Tensor {
        file: file.to_string(),
        tensor: tensor.to_string(),
        field,
        expected: expected.to_string(),
        found: found.to_string(),
    })
}

const FLOATS: [&str; 3] = ["F16", "BF16", "F32"];
const WORDS: [&str; 1] = ["I32"];

/// The names of the tensors of a quantized matrix, after the matrix's name. Zero points may be stored even if all are
/// 8.
pub(crate) const PARTS: [&str; 11] = [
    "weight",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
];

/// Number of weights that an element of a tensor with this name stands for: 8 in a word, none in a scale or a zero
/// point.
pub(crate) fn weights_per_element(tensor: &str) -> usize {
    match tensor.rsplit('.').next() {
        Some("qweight" | "weight_packed") => 8,
        Some("qzeros" | "scales" | "g_idx") => 0,
        Some("weight_scale" | "weight_scale_inv" | "weight_zero_point" | "weight_shape" | "weight_g_idx") => 0,
        _ => crate::mxfp4::weights_per_element(tensor),
    }
}

/// Whether there is a matrix of integers of this name.
pub(crate) fn has_integers(weights: &Weights, name: &str) -> bool {
    ["qweight", "weight_packed"].iter().any(|part| weights.get(&format!("{name}.{part}")).is_some())
}

impl Quantized {
    /// The matrix of this name; `None` if its `weight` is floats.
    ///
    /// # Errors
    /// A tensor is missing or has another type or shape, or groups do not divide the inputs.
    pub(crate) fn find(
        weights: &Weights,
        name: &str,
        quantization: Quantization,
        [inputs, outputs]: [usize; 2],
    ) -> Result<Option<Self>, ModelError> {
        let finder = Finder { weights, name };
        let float8 = weights.get(&format!("{name}.weight")).map(|weight| weight.dtype.name() == "F8_E4M3");
        let (values, scales) = match (quantization, float8) {
            (Quantization::Float8 { scales, block }, Some(true)) => {
                let weight = finder.find("weight", &["F8_E4M3"], &[&[outputs, inputs]])?;
                let of_blocks = block.map(|size| [outputs.div_ceil(size[0]), inputs.div_ceil(size[1])]);
                let scales = match &of_blocks {
                    Some(shape) => finder.find(scales, &FLOATS, &[shape])?,
                    None => finder.find(scales, &FLOATS, &[&[1], &[], &[outputs, 1], &[outputs]])?,
                };
                let one = scales.shape.iter().product::<usize>() == 1;
                let block = block.unwrap_or([if one { outputs } else { 1 }, inputs]);
                (Values::Float8 { weight, block }, scales)
            }
            (Quantization::Int4 { packing, group }, None) => {
                let group = group.unwrap_or(inputs);
                if !inputs.is_multiple_of(group) || !group.is_multiple_of(BLOCK) {
                    let expected = format!("a multiple of groups of {group}, which is one of {BLOCK}");
                    return Err(wrong(weights.source(), name, "inputs", expected, inputs));
                }
                if !outputs.is_multiple_of(8) && !matches!(packing, Packing::Compressed { .. }) {
                    return Err(wrong(weights.source(), name, "outputs", "a multiple of 8", outputs));
                }
                finder.integers(packing, group, [inputs, outputs])?
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { file: weights.source().to_string(), inputs, outputs, values, scales }))
    }

    /// The weights, in blocks or as floats.
    ///
    /// # Errors
    /// If a zero point or the number of a group is impossible.
    pub(crate) fn storage(&self, pool: &Pool) -> Result<Storage, ModelError> {
        let scales = self.scales();
        let storage = match &self.values {
            Values::Float8 { weight, block } => self.float8(pool, weight, *block, &scales),
            Values::Int4(int4) => self.blocks(pool, &self.integers(int4, scales)?),
        };
        self.tensors().iter().for_each(|tensor| tensor.bytes.release());
        Ok(storage)
    }

    /// The number of bytes of its weights and scales, and the number of its weights.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.tensors().iter().map(|tensor| tensor.bytes.len()).sum(), self.inputs * self.outputs)
    }

    /// The form of its weights, which depends on scales and zero points.
    ///
    /// # Errors
    /// As [`storage`](Self::storage).
    pub(crate) fn form(&self) -> Result<PanelFormat, ModelError> {
        match &self.values {
            Values::Float8 { .. } => Ok(PanelFormat::F32),
            Values::Int4(int4) => Ok(self.integers(int4, self.scales())?.form()),
        }
    }

    /// The most likely form of its weights, found without reading scales and zero points: scales of bf16 may be too
    /// small for f16, and all zero points may be 8.
    pub(crate) fn likely_form(&self) -> PanelFormat {
        match &self.values {
            Values::Float8 { .. } => PanelFormat::F32,
            Values::Int4(int4) => PanelFormat::Blocks(if int4.zeros.is_some() { Format::Int4 } else { Format::Q4_0 }),
        }
    }

    fn scales(&self) -> Vec<f32> {
        let mut scales = vec![0.0; self.scales.shape.iter().product()];
        Storage::new(&self.scales).widen(0..scales.len(), &mut scales);
        scales
    }

    fn integers<'a>(&self, int4: &'a Int4, scales: Vec<f32>) -> Result<Integers<'a>, ModelError> {
        let Int4 { packing, words, zeros, groups, group } = int4;
        if let Some(groups) = groups {
            self.check_groups(groups, *group)?;
        }
        let zeros = zeros.as_ref().map(|zeros| self.zeros(*packing, zeros, *group)).transpose()?;
        Ok(Integers { packing: *packing, words, zeros, scales, group: *group })
    }

    fn tensors(&self) -> [&Tensor; 2] {
        match &self.values {
            Values::Int4(int4) => [&int4.words, &self.scales],
            Values::Float8 { weight, .. } => [weight, &self.scales],
        }
    }

    /// Checks that groups are consecutive inputs, which they are not with act-order.
    fn check_groups(&self, groups: &Tensor, group: usize) -> Result<(), ModelError> {
        for (input, word) in words_of(groups).enumerate() {
            if word as usize != input / group {
                let expected = format!("{} for input {input}, as without act-order", input / group);
                return Err(wrong(&self.file, &groups.name, "group", expected, word as i32));
            }
        }
        Ok(())
    }

    /// The zero points, in the order of the scales.
    fn zeros(&self, packing: Packing, tensor: &Tensor, group: usize) -> Result<Vec<u8>, ModelError> {
        let groups = self.inputs / group;
        let words: Vec<u32> = words_of(tensor).collect();
        let mut zeros = Vec::with_capacity(groups * self.outputs);
        let nibble = |word: u32, at: usize| (word >> (4 * at) & 15) as u8;
        match packing {
            Packing::Gptq { .. } => zeros.extend(words.iter().flat_map(|word| (0..8).map(|at| nibble(*word, at)))),
            Packing::Awq => zeros.extend(words.iter().flat_map(|word| AWQ_NIBBLES.map(|at| nibble(*word, at)))),
            Packing::Compressed { .. } => {
                for output in 0..self.outputs {
                    let row = &words[output / 8 * groups..][..groups];
                    zeros.extend(row.iter().map(|word| nibble(*word, output % 8)));
                }
            }
        }
        if let Packing::Gptq { minus_one: true } = packing {
            // The zero point 0 is stored as -1, which programs read as 0, as 16, or as a carry into the next nibble.
            if let Some(at) = zeros.iter().position(|zero| *zero == 15) {
                let expected = format!("0 to 14 for group {} of output {}", at / self.outputs, at % self.outputs);
                return Err(wrong(&self.file, &tensor.name, "zero point", expected, 15));
            }
            zeros.iter_mut().for_each(|zero| *zero += 1);
        }
        Ok(zeros)
    }

    fn float8(&self, pool: &Pool, weight: &Tensor, block: [usize; 2], scales: &[f32]) -> Storage {
        let blocks = self.inputs.div_ceil(block[1]);
        let table: [f32; 256] = std::array::from_fn(|bits| widen_float8(bits as u8));
        let mut out = vec![0.0; self.outputs * self.inputs];
        pool.each_chunk(&mut out, self.inputs, &|output, out| {
            let row = weight.bytes[output * self.inputs..][..self.inputs].chunks(block[1]);
            let scales = &scales[output / block[0] * blocks..][..blocks];
            for ((out, row), scale) in out.chunks_mut(block[1]).zip(row).zip(scales) {
                out.iter_mut().zip(row).for_each(|(out, bits)| *out = table[usize::from(*bits)] * scale);
            }
        });
        Storage::F32(out)
    }

    fn blocks(&self, pool: &Pool, integers: &Integers<'_>) -> Storage {
        let Self { inputs, outputs, .. } = *self;
        let PanelFormat::Blocks(format) = integers.form() else {
            let mut out = vec![0.0; outputs * inputs];
            pool.each_chunk(&mut out, AT_ONCE * inputs, &|chunk, out| {
                for first in (0..inputs).step_by(BLOCK) {
                    for (lane, row) in out.chunks_exact_mut(inputs).enumerate() {
                        let (quants, at) = integers.block(self, chunk * AT_ONCE + lane, first);
                        let (scale, zero) = (integers.scales[at], integers.zero(at));
                        for (out, quant) in row[first..first + BLOCK].iter_mut().zip(quants) {
                            *out = scale * (f32::from(quant) - f32::from(zero));
                        }
                    }
                }
            });
            return Storage::F32(out);
        };
        let row_bytes = inputs / BLOCK * format.bytes();
        let mut bytes = vec![0; outputs * row_bytes];
        pool.each_chunk(&mut bytes, AT_ONCE * row_bytes, &|chunk, out| {
            for block in 0..inputs / BLOCK {
                for (lane, row) in out.chunks_exact_mut(row_bytes).enumerate() {
                    let (quants, at) = integers.block(self, chunk * AT_ONCE + lane, block * BLOCK);
                    let out = &mut row[block * format.bytes()..][..format.bytes()];
                    out[..2].copy_from_slice(&f16::from_f32(integers.scales[at]).to_le_bytes());
                    if format == Format::Int4 {
                        out[2] = integers.zero(at);
                    }
                    let packed = &mut out[format.bytes() - BLOCK / 2..];
                    for (i, out) in packed.iter_mut().enumerate() {
                        *out = quants[i] | quants[i + BLOCK / 2] << 4;
                    }
                }
            }
        });
        Storage::Blocks(format, Bytes::from_vec(bytes))
    }
}

impl Finder<'_> {
    /// The words, zero points and scales of a matrix of integers.
    fn integers(
        &self,
        packing: Packing,
        group: usize,
        [inputs, outputs]: [usize; 2],
    ) -> Result<(Values, Tensor), ModelError> {
        let count = inputs / group;
        let optional = |part: &str, types: &[&str], shape: &[usize]| {
            if self.has(part) { self.find(part, types, &[shape]).map(Some) } else { Ok(None) }
        };
        let values = |words, zeros, groups| Values::Int4(Box::new(Int4 { packing, words, zeros, groups, group }));
        Ok(match packing {
            Packing::Gptq { .. } | Packing::Awq => {
                let gptq = matches!(packing, Packing::Gptq { .. });
                let shape = if gptq { [inputs / 8, outputs] } else { [inputs, outputs / 8] };
                let words = self.find("qweight", &WORDS, &[&shape])?;
                let zeros = self.find("qzeros", &WORDS, &[&[count, outputs / 8]])?;
                let groups = optional("g_idx", &WORDS, &[inputs])?;
                (values(words, Some(zeros), groups), self.find("scales", &FLOATS, &[&[count, outputs]])?)
            }
            Packing::Compressed { symmetric } => {
                let words = self.find("weight_packed", &WORDS, &[&[outputs, inputs / 8]])?;
                let shape = [outputs.div_ceil(8), count];
                let zeros = if symmetric { None } else { Some(self.find("weight_zero_point", &WORDS, &[&shape])?) };
                if let Some(found) = optional("weight_shape", &["I64"], &[2])? {
                    let found: Vec<i64> = found.bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
                    if found != [outputs as i64, inputs as i64] {
                        let tensor = format!("{}.weight_shape", self.name);
                        let expected = format!("[{outputs}, {inputs}]");
                        return Err(wrong(self.weights.source(), &tensor, "value", expected, format!("{found:?}")));
                    }
                }
                let groups = optional("weight_g_idx", &WORDS, &[inputs])?;
                (values(words, zeros, groups), self.find("weight_scale", &FLOATS, &[&[outputs, count]])?)
            }
        })
    }
}

/// The 32-bit words of a tensor.
fn words_of(tensor: &Tensor) -> impl Iterator<Item = u32> {
    tensor.bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The value of 8 bits as `float8_e4m3fn`: a sign, 4 bits of exponent with a bias of 7, 3 bits of fraction, no
/// infinities, and NaN if all bits but the sign are 1.
fn widen_float8(bits: u8) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction / 8.0 * 2f32.powi(-6),
        _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use foretoken_weights::safetensors;

    use super::*;
    use crate::Checkpoint;
    use crate::checkpoint::Config;
    use crate::quantization;

    fn floats(storage: &Storage) -> Vec<f32> {
        let mut floats = vec![0.0; storage.elements()];
        storage.widen(0..floats.len(), &mut floats);
        floats
    }

    /// The format of a matrix of a folder's checkpoint, and whether its floats are bit-identical to those of a tensor
    /// in another file of the folder.
    fn read(folder: &Path, name: &str, file: &str, tensor: &str) -> (Option<Format>, bool) {
        let checkpoint = Checkpoint::open(folder).unwrap();
        let Config::Json(config) = &checkpoint.config else { panic!("{}: not JSON", folder.display()) };
        let how = quantization::read(config).unwrap().unwrap();
        let file = safetensors::open(folder.join(file)).unwrap();
        let expected = file.require(tensor).unwrap();
        let shape = [expected.shape[1], expected.shape[0]];
        let found = Quantized::find(&checkpoint.weights, name, how, shape).unwrap().expect(name);
        let found = found.storage(&Pool::new(2)).unwrap();
        // The output head is not quantized.
        assert!(Quantized::find(&checkpoint.weights, "lm_head", how, [64, 64]).unwrap().is_none());
        (found.format(), floats(&found) == floats(&Storage::new(expected)))
    }

    /// Tests one matrix of each golden checkpoint, with its expected form.
    #[test]
    fn unpacked_weights_are_bit_identical_to_those_that_were_packed() {
        let goldens = [
            ("gptq", Some(Format::Q4_0)),
            ("gptq-zeros", Some(Format::Int4)),
            ("awq", Some(Format::Int4)),
            ("packed", Some(Format::Q4_0)),
            ("packed-zeros", Some(Format::Int4)),
            ("float8", None),
            ("float8-tensor", None),
        ];
        for (name, format) in goldens {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/quantized-{name}"));
            let found = read(&folder, "model.layers.1.self_attn.k_proj", "golden.safetensors", "weight");
            assert_eq!(found, (format, true), "{name}");
        }
    }

    /// Tests every matrix of checkpoints that the packing programs wrote (`bench/peers/quantized_by_programs.py`):
    /// `FORETOKEN_QUANTIZED=DIR cargo test -p foretoken-model quantized`.
    #[test]
    fn weights_of_a_given_folder() {
        let Some(folder) = std::env::var_os("FORETOKEN_QUANTIZED") else {
            println!("skipped: FORETOKEN_QUANTIZED is not set");
            return;
        };
        let folders = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut compared = 0;
        for folder in folders.filter(|path| path.is_dir()) {
            const FLOATS: &str = "floats.safetensors";
            let matrices = safetensors::open(folder.join(FLOATS)).unwrap();
            let all = matrices.iter().map(|matrix| read(&folder, &matrix.name, FLOATS, &matrix.name));
            let all: Vec<_> = all.collect();
            let other = all.iter().filter(|(_, same)| !same).count();
            println!("{}: {:?}, {other} of {} matrices differ", folder.display(), all[0].0, all.len());
            assert_eq!(other, 0, "{}", folder.display());
            compared += all.len();
        }
        assert!(compared > 0, "nothing to compare");
    }

    #[test]
    fn floats_of_8_bits() {
        let cases = [(0x00, 0.0), (0x01, 1.0 / 512.0), (0x08, 1.0 / 64.0), (0x38, 1.0), (0x7e, 448.0), (0xb9, -1.125)];
        for (bits, expected) in cases {
            assert_eq!(widen_float8(bits), expected, "{bits:#04x}");
        }
        assert!(widen_float8(0x7f).is_nan() && widen_float8(0xff).is_nan());
        assert!(widen_float8(0x80) == 0.0 && widen_float8(0x80).is_sign_negative());
    }
}
