//! Lookup of tensors for the families, by name, with shapes checked against the configuration.

use std::cell::RefCell;
use std::collections::BTreeSet;

use foretoken_weights::{Dtype, Tensor, Weights};

use crate::error::ModelError;
use crate::linear::{Table, Unpacked};
use crate::mxfp4::{self, MatrixSelection, Mxfp4};
use crate::quantized::{PARTS, Quantization, Quantized, has_integers};
use crate::spec::Spec;
use crate::storage::{Storage, nth_matrix};

/// Whether a linear layer has a bias. A bias that the configuration requires and the file lacks is an error: without it
/// the network would still run, but with wrong results.
#[derive(Clone, Copy)]
pub(super) enum Bias {
    Required,
    /// There is no bias. A file that has one anyway is refused unless it is all zeros (`unused.rs`).
    None,
    /// There is a bias if the file has one, in formats whose configuration does not say so.
    IfThere,
}

/// The tensor of this name, which must be there and have this shape.
fn require<'a>(weights: &'a Weights, name: &str, shape: &[usize]) -> Result<&'a Tensor, ModelError> {
    let tensor = weights.require(name)?;
    if tensor.shape != shape {
        return Err(ModelError::Shape {
            file: weights.source().to_string(),
            tensor: name.to_string(),
            expected: shape.to_vec(),
            found: tensor.shape.clone(),
        });
    }
    Ok(tensor)
}

/// A vector as f32: norms and biases are small and used by element-wise kernels.
fn vector(weights: &Weights, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
    let storage = Storage::new(require(weights, name, &[len])?);
    let mut out = vec![0.0; len];
    storage.widen(0..len, &mut out);
    Ok(out)
}

/// A vector that may be missing.
pub(super) fn optional_vector(weights: &Weights, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
    if weights.get(name).is_some() { vector(weights, name, len).map(Some) } else { Ok(None) }
}

/// The tensors of a checkpoint, from which the parts of a network are made.
pub(super) struct Tensors<'a> {
    pub(super) weights: &'a Weights,
    /// How quantized matrices are packed.
    quantization: Option<Quantization>,
    /// Names of the tensors that were read.
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Tensors<'a> {
    /// The tensors of a checkpoint, none of them read yet. `quantization` describes how quantized matrices are packed.
    pub(super) fn new(weights: &'a Weights, quantization: Option<Quantization>) -> Self {
        Self { weights, quantization, read: RefCell::default() }
    }

    /// Names of the tensors that were read.
    pub(super) fn into_read(self) -> BTreeSet<String> {
        self.read.into_inner()
    }

    /// Records that a tensor is read.
    fn mark_read(&self, name: &str) {
        self.read.borrow_mut().insert(name.to_string());
    }

    /// The tensor of this name, which must be there and have this shape.
    fn require(&self, name: &str, shape: &[usize]) -> Result<&'a Tensor, ModelError> {
        self.mark_read(name);
        require(self.weights, name, shape)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.weights.get(name).is_some()
    }

    /// Whether there is a matrix of this name, quantized or not.
    pub(super) fn has_matrix(&self, name: &str) -> bool {
        self.has(&format!("{name}.weight")) || self.quantization.is_some() && has_integers(self.weights, name)
    }

    /// The matrix of this name, if it is quantized.
    fn quantized(&self, name: &str, inputs: usize, outputs: usize) -> Result<Option<Quantized>, ModelError> {
        let Some(quantization) = self.quantization else { return Ok(None) };
        let found = Quantized::find(self.weights, name, quantization, [inputs, outputs])?;
        if found.is_some() {
            PARTS.iter().for_each(|part| self.mark_read(&format!("{name}.{part}")));
        }
        Ok(found)
    }

    fn bias(&self, name: &str, len: usize, bias: Bias) -> Result<Option<Vec<f32>>, ModelError> {
        let name = format!("{name}.bias");
        match bias {
            Bias::Required => self.vector(&name, len).map(Some),
            Bias::None => Ok(None),
            Bias::IfThere => {
                self.mark_read(&name);
                optional_vector(self.weights, &name, len)
            }
        }
    }

    /// The table `name.weight` `[rows, width]`, of which single rows are read.
    pub(super) fn table(&self, name: &str, width: usize, rows: usize) -> Result<Table, ModelError> {
        let tensor = self.require(&format!("{name}.weight"), &[rows, width])?;
        Ok(Table::new(Storage::new(tensor), width, rows))
    }

    /// The output head: the tensor `head` with `.weight`, `[vocabulary, embedding_width]`, or the embedding if it is
    /// tied.
    pub(super) fn head(&self, head: &str, embedding: &str, spec: &Spec, bias: Bias) -> Result<Unpacked, ModelError> {
        let (inputs, outputs) = (spec.embedding_width, spec.output_vocabulary());
        if spec.tied_head {
            let table = self.linear(embedding, inputs, outputs, Bias::None)?;
            return Ok(table.with_name("the embedding, which is the head"));
        }
        self.linear(head, inputs, outputs, bias)
    }

    /// The linear layer of `name.weight` `[outputs, inputs]` and `name.bias`.
    pub(super) fn linear(&self, name: &str, inputs: usize, outputs: usize, bias: Bias) -> Result<Unpacked, ModelError> {
        if let Some(matrix) = self.quantized(name, inputs, outputs)? {
            let bias = self.bias(name, outputs, bias)?;
            return Ok(Unpacked::quantized(name, matrix, bias, inputs, outputs));
        }
        let tensor = self.require(&format!("{name}.weight"), &[outputs, inputs])?;
        Ok(Unpacked::new(tensor, self.bias(name, outputs, bias)?, inputs, outputs))
    }

    /// Matrix `number` of a tensor `[matrices, outputs, inputs]` of this whole name, with its row of `bias_name`
    /// `[matrices, outputs]`.
    pub(super) fn stacked(
        &self,
        name: &str,
        bias_name: &str,
        (number, matrices): (usize, usize),
        [inputs, outputs]: [usize; 2],
        bias: Bias,
    ) -> Result<Unpacked, ModelError> {
        let bias = self.bias_of_matrix(bias_name, [number, matrices, outputs], bias)?;
        let tensor = nth_matrix(self.require(name, &[matrices, outputs, inputs])?, number);
        Ok(Unpacked::new(&tensor, bias, inputs, outputs).with_name(&format!("tensor {name}, matrix {number}")))
    }

    /// Row `number` of biases `[matrices, outputs]`.
    fn bias_of_matrix(
        &self,
        name: &str,
        [number, matrices, outputs]: [usize; 3],
        bias: Bias,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        match bias {
            Bias::None => Ok(None),
            Bias::IfThere if !self.has(name) => Ok(None),
            Bias::IfThere | Bias::Required => {
                let mut out = vec![0.0; outputs];
                Storage::new(&nth_matrix(self.require(name, &[matrices, outputs])?, number))
                    .widen(0..outputs, &mut out);
                Ok(Some(out))
            }
        }
    }

    /// Every `step`th column from `first` on of matrix `number` of `name` `[matrices, inputs, columns]`, or of its
    /// blocks in MXFP4 `[matrices, columns, inputs]`, with its part of `name_bias` `[matrices, columns]`.
    pub(super) fn interleaved(
        &self,
        name: &str,
        (number, matrices): (usize, usize),
        [first, step]: [usize; 2],
        [inputs, outputs]: [usize; 2],
        bias: Bias,
    ) -> Result<Unpacked, ModelError> {
        let (columns, matrix_name) = (outputs * step, format!("tensor {name}, matrix {number}"));
        let bias = self.bias_of_matrix(&format!("{name}_bias"), [number, matrices, columns], bias)?;
        let bias = bias.map(|bias| bias.into_iter().skip(first).step_by(step).collect());
        if self.quantization == Some(Quantization::Mxfp4) {
            let selection = MatrixSelection { number, matrices, first, step };
            if let Some(matrix) = Mxfp4::find(self.weights, name, selection, [inputs, outputs])? {
                mxfp4::parts(name).iter().for_each(|part| self.mark_read(part));
                return Ok(Unpacked::mxfp4(matrix_name, matrix, bias, [inputs, outputs]));
            }
        }
        let tensor = nth_matrix(self.require(name, &[matrices, inputs, columns])?, number);
        Ok(Unpacked::columns(&tensor, [first, step], bias, outputs).with_name(&matrix_name))
    }

    /// The linear layer with one output, `name.weight` `[1, inputs]`, or `[inputs]` as in GGUF.
    pub(super) fn row(&self, name: &str, inputs: usize) -> Result<Unpacked, ModelError> {
        let is_vector = |tensor: &Tensor| tensor.shape.len() == 1;
        if !self.weights.get(&format!("{name}.weight")).is_some_and(is_vector) {
            return self.linear(name, inputs, 1, Bias::None);
        }
        let tensor = self.require(&format!("{name}.weight"), &[inputs])?;
        Ok(Unpacked::new(&Tensor { shape: vec![1, inputs], ..tensor.clone() }, None, inputs, 1))
    }

    /// Like [`linear`](Self::linear), with a weight that is stored `[inputs, outputs]` unless it is quantized.
    pub(super) fn transposed(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
        bias: Bias,
    ) -> Result<Unpacked, ModelError> {
        if has_integers(self.weights, name) {
            return self.linear(name, inputs, outputs, bias);
        }
        let tensor = self.require(&format!("{name}.weight"), &[inputs, outputs])?;
        Ok(Unpacked::transposed(tensor, self.bias(name, outputs, bias)?, inputs, outputs))
    }

    /// A vector as f32.
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.mark_read(name);
        vector(self.weights, name, len)
    }

    /// A vector of finite numbers with this whole name, `[len]` or `[1, len]`.
    pub(super) fn finite(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let is_row = |tensor: &Tensor| tensor.shape.len() == 2;
        let all = match self.weights.get(name).is_some_and(is_row) {
            true => self.matrix(name, [1, len])?,
            false => self.vector(name, len)?,
        };
        match all.iter().find(|number| !number.is_finite()) {
            None => Ok(all),
            Some(found) => {
                let tensor = format!("tensor {name}");
                Err(ModelError::config(self.weights.source(), tensor, "finite numbers", found))
            }
        }
    }

    /// The tensor of this whole name and length, of any type; `None` if there is none.
    fn tensor_of_len(&self, name: &str, len: usize) -> Result<Option<&'a Tensor>, ModelError> {
        let Some(tensor) = self.weights.get(name) else { return Ok(None) };
        self.mark_read(name);
        if tensor.shape == [len] {
            return Ok(Some(tensor));
        }
        let (file, tensor, found) = (self.weights.source().to_string(), name.to_string(), tensor.shape.clone());
        Err(ModelError::Shape { file, tensor, expected: vec![len], found })
    }

    /// An error about the type of a tensor.
    fn wrong_type(&self, tensor: &Tensor, expected: &str) -> ModelError {
        let field = format!("type of tensor {}", tensor.name);
        ModelError::config(self.weights.source(), field, expected, tensor.dtype.name())
    }

    /// The integers of 32 or 64 bits with this whole name; `None` if there is no such tensor.
    pub(super) fn integers(&self, name: &str, len: usize) -> Result<Option<Vec<i64>>, ModelError> {
        let Some(tensor) = self.tensor_of_len(name, len)? else { return Ok(None) };
        match tensor.dtype.name() {
            "I64" => Ok(Some(tensor.bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())),
            "I32" => {
                let wide = |bytes: &[u8; 4]| i64::from(i32::from_le_bytes(*bytes));
                Ok(Some(tensor.bytes.as_chunks().0.iter().map(wide).collect()))
            }
            _ => Err(self.wrong_type(tensor, "I64 or I32")),
        }
    }

    /// The booleans with this whole name; `None` if there is no such tensor.
    pub(super) fn booleans(&self, name: &str, len: usize) -> Result<Option<Vec<bool>>, ModelError> {
        let Some(tensor) = self.tensor_of_len(name, len)? else { return Ok(None) };
        match tensor.dtype.name() {
            "BOOL" | "U8" => Ok(Some(tensor.bytes.iter().map(|byte| *byte != 0).collect())),
            _ => Err(self.wrong_type(tensor, "BOOL")),
        }
    }

    /// Checks that all numbers are finite in the tensors of floats or blocks that were read.
    pub(super) fn check_all_finite(&self) -> Result<(), ModelError> {
        let read = self.read.borrow();
        let computed = |tensor: &&Tensor| read.contains(&tensor.name) && !matches!(tensor.dtype, Dtype::Other(_));
        self.weights.iter().filter(computed).try_for_each(|tensor| self.check_finite(&tensor.name))
    }

    /// Checks that all numbers of a tensor of floats or blocks are finite.
    fn check_finite(&self, name: &str) -> Result<(), ModelError> {
        const CHUNK: usize = 1 << 14;
        let storage = Storage::new(self.weights.require(name)?);
        let (mut out, elements) = (vec![0.0; CHUNK], storage.elements());
        for first in (0..elements).step_by(CHUNK) {
            let out = &mut out[..CHUNK.min(elements - first)];
            storage.widen(first..first + out.len(), out);
            if let Some(found) = out.iter().find(|number| !number.is_finite()) {
                let tensor = format!("tensor {name}");
                return Err(ModelError::config(self.weights.source(), tensor, "finite numbers", found));
            }
        }
        Ok(())
    }

    /// A small matrix as f32.
    pub(super) fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Vec<f32>, ModelError> {
        let storage = Storage::new(self.require(name, &shape)?);
        let mut out = vec![0.0; storage.elements()];
        storage.widen(0..out.len(), &mut out);
        Ok(out)
    }
}
