//! Matrices of Hugging Face checkpoints in MXFP4, such as the experts of gpt-oss: 4-bit floats, and a power of two for
//! each 32 inputs of an output.
//!
//! The experts of a layer are two tensors: `{name}_blocks` `[experts, outputs, inputs / 32, 16]`, two inputs per byte,
//! the first in its low half, and `{name}_scales` `[experts, outputs, inputs / 32]`. They become GGUF's blocks of the
//! same values, without rounding; bytes of these hold one of the first sixteen inputs in the low half and one of the
//! last sixteen in the high half. This happens when a matrix is packed, one after another. Only matrices that are
//! stacked this way are read.

use foretoken_kernels::Pool;
use foretoken_kernels::block::Format;
use foretoken_weights::{Bytes, Tensor, Weights, WeightsError};

use crate::error::ModelError;
use crate::storage::{self, Storage};

/// Number of inputs of a block.
const BLOCK: usize = 32;
/// Number of bytes of their values.
const PACKED: usize = BLOCK / 2;

/// A matrix in a tensor of stacked matrices, and a selection of its outputs: every `step`th from `first` on.
#[derive(Clone, Copy)]
pub(crate) struct MatrixSelection {
    pub(crate) number: usize,
    pub(crate) matrices: usize,
    pub(crate) first: usize,
    pub(crate) step: usize,
}

/// A description of one matrix `[outputs, inputs]` of several that are stacked. Nothing of it is read yet.
#[derive(Clone)]
pub(crate) struct Mxfp4 {
    /// The blocks of all its outputs.
    blocks: Bytes,
    scales: Bytes,
    selection: MatrixSelection,
    inputs: usize,
    outputs: usize,
}

/// The names of the two tensors that stacked matrices of this name consist of.
pub(crate) fn parts(name: &str) -> [String; 2] {
    [format!("{name}_blocks"), format!("{name}_scales")]
}

/// Number of weights that an element of a tensor of this name stands for: 2 in a byte of blocks, none in a scale.
pub(crate) fn weights_per_element(tensor: &str) -> usize {
    match tensor {
        _ if tensor.ends_with("_proj_blocks") => 2,
        _ if tensor.ends_with("_proj_scales") => 0,
        _ => 1,
    }
}

impl Mxfp4 {
    /// The matrix of this name; `None` if there are no blocks of it.
    ///
    /// # Errors
    /// A tensor is missing or has another type or shape, or the inputs are not a whole number of blocks.
    pub(crate) fn find(
        weights: &Weights,
        name: &str,
        selection: MatrixSelection,
        [inputs, outputs]: [usize; 2],
    ) -> Result<Option<Self>, ModelError> {
        let [blocks, scales] = parts(name);
        if weights.get(&blocks).is_none() {
            return Ok(None);
        }
        let refuse = |tensor: &str, field: &'static str, expected: String, found: String| {
            let (file, tensor) = (weights.source().to_string(), tensor.to_string());
            ModelError::Weights(WeightsError::Tensor { file, tensor, field, expected, found })
        };
        if !inputs.is_multiple_of(BLOCK) {
            return Err(refuse(&blocks, "inputs", format!("a multiple of {BLOCK}"), inputs.to_string()));
        }
        let find = |name: &str, shape: &[usize]| {
            let found = match weights.get(name) {
                Some(found) => found,
                None => weights.require(name)?, // returns the error
            };
            if found.dtype.name() != "U8" {
                return Err(refuse(name, "type", "U8".to_string(), found.dtype.to_string()));
            }
            if found.shape != shape {
                let (file, tensor) = (weights.source().to_string(), name.to_string());
                let (expected, found) = (shape.to_vec(), found.shape.clone());
                return Err(ModelError::Shape { file, tensor, expected, found });
            }
            Ok(found)
        };
        let shape = [selection.matrices, outputs * selection.step, inputs / BLOCK, PACKED];
        let part = |tensor: &Tensor| storage::nth_matrix(tensor, selection.number).bytes;
        let (blocks, scales) = (part(find(&blocks, &shape)?), part(find(&scales, &shape[..3])?));
        Ok(Some(Self { blocks, scales, selection, inputs, outputs }))
    }

    /// The number of bytes of the blocks and scales of all its outputs, and the number of their weights.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.blocks.len() + self.scales.len(), self.outputs * self.selection.step * self.inputs)
    }

    /// The weights, in blocks.
    pub(crate) fn storage(&self, pool: &Pool) -> Storage {
        let Self { inputs, outputs, selection: MatrixSelection { first, step, .. }, .. } = *self;
        let (format, count) = (Format::Mxfp4, inputs / BLOCK);
        let row = count * format.bytes();
        let mut bytes = vec![0; outputs * row];
        pool.each_chunk(&mut bytes, row, &|output, out| {
            let from = (first + output * step) * count;
            let values = self.blocks[from * PACKED..][..count * PACKED].chunks_exact(PACKED);
            let scales = &self.scales[from..][..count];
            for ((out, values), scale) in out.chunks_exact_mut(format.bytes()).zip(values).zip(scales) {
                let quant = |input: usize| values[input / 2] >> (input % 2 * 4) & 15;
                out[0] = *scale;
                for (i, out) in out[1..].iter_mut().enumerate() {
                    *out = quant(i) | quant(i + PACKED) << 4;
                }
            }
        });
        [&self.blocks, &self.scales].iter().for_each(|bytes| bytes.release());
        Storage::Blocks(format, Bytes::from_vec(bytes))
    }
}
